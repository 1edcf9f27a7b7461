"""
Packing a sealed segment, and reading a packed one: completely, or only the necessary frames. Needs pyarrow.

The caller provides the bytes: from a file on the disk, or from an object that is read in ranges.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from quiver.aof.format.record import RECORD_HEAD, RECORD_HEAD_BYTES, RecordScan, scan_pieces, scan_records
from quiver.aof.format.segment_file import (
    FOOTER_BYTES,
    HEADER_BYTES,
    SegmentFooter,
    SegmentHeader,
    agrees_with,
    decode_footer,
    decode_header,
    encode_footer,
)
from quiver.aof.format.warm_file import (
    FRAME_BYTES,
    SEEK_FOOTER_BYTES,
    PackedFrame,
    decode_seek_table,
    encode_seek_table,
    seek_table_bytes,
)
from quiver.errors import CorruptionError, QuiverError
from quiver.primitives.checksum import crc64_nvme
from quiver.primitives.disk.disk_full import require_room
from quiver.primitives.disk.file_system import Buffer, FileSystem
from quiver.primitives.scan import Frame
from quiver.primitives.small_file import checked_value

__all__ = ["PackedSegment", "ReadAt", "pack", "records_problem", "unpack_to"]

ReadAt = Callable[[int, int], bytes]
"""Returns the given number of bytes from an offset; fewer only at the end."""

_READ_BYTES = 8 << 20
_LIBRARY_ERRORS = (OSError, ValueError)


def _codec(level: int | None = None) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - heavy, and only for packed segments

    return pa.Codec("zstd", compression_level=level)


def pack(segment: memoryview, end: int, footer: SegmentFooter, *, level: int, verify: bool = False) -> Iterator[bytes]:
    """
    Yield the pieces of the packed file of a sealed segment, whose file is *segment* and whose logical size is *end*.

    With *verify* each piece is unpacked and compared before it is yielded.

    Raises:
        CorruptionError: a piece unpacks to other bytes.
    """
    codec = _codec(level)
    sizes: list[tuple[int, int]] = []
    for start in range(0, end, FRAME_BYTES):
        plain = segment[start : min(start + FRAME_BYTES, end)]
        packed: bytes = codec.compress(plain, asbytes=True)
        if verify and codec.decompress(packed, decompressed_size=len(plain), asbytes=True) != plain:
            raise CorruptionError(f"segment {footer.segment_index}", start, "the packed bytes unpack to other bytes")
        sizes.append((len(packed), len(plain)))
        yield packed
    packed = codec.compress(encode_footer(footer), asbytes=True)
    sizes.append((len(packed), FOOTER_BYTES))
    yield packed
    yield encode_seek_table(sizes)


class PackedSegment:
    """
    A packed segment that is read in place.

    Args:
        name: its path or key, for messages.
        size_bytes: its size.
        read_at: returns its bytes.
        known: header and footer of the segment if they are known, so that they are not read.

    Raises:
        CorruptionError: it is damaged.
    """

    def __init__(
        self,
        name: str,
        size_bytes: int,
        read_at: ReadAt,
        *,
        known: tuple[SegmentHeader, SegmentFooter] | None = None,
    ) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self._read_at = read_at
        self._codec = _codec()
        self.frames = self._table()
        self.end = self.frames[-1].offset
        self.header, self.footer = known or self._ends()
        wrong = agrees_with(self.footer, self.header)
        if wrong is not None or self.footer.durable_bytes - self.header.base_offset != self.end:
            raise CorruptionError(name, 0, wrong or "its footer contradicts the end of its frames")

    def _ends(self) -> tuple[SegmentHeader, SegmentFooter]:
        header = decode_header(memoryview(self._frame(self.frames[0])))
        footer = decode_footer(memoryview(self._frame(self.frames[-1])))
        if not isinstance(header, Frame) or not isinstance(footer, Frame):
            raise CorruptionError(self.name, 0, "it has no segment header and footer")
        return header.value, footer.value

    def _table(self) -> tuple[PackedFrame, ...]:
        tail = self._read_at(max(0, self.size_bytes - SEEK_FOOTER_BYTES), SEEK_FOOTER_BYTES)
        size = seek_table_bytes(memoryview(tail))
        if isinstance(size, Frame):
            tail = self._read_at(max(0, self.size_bytes - size.value), size.value)
        answer = decode_seek_table(memoryview(tail), self.size_bytes)
        return checked_value(answer, self.name, self.size_bytes)

    def _frame(self, frame: PackedFrame, packed: bytes | memoryview | None = None) -> bytes:
        data = self._read_at(frame.start, frame.packed_bytes) if packed is None else packed
        try:
            plain: bytes = self._codec.decompress(data, decompressed_size=frame.size_bytes, asbytes=True)
        except _LIBRARY_ERRORS as error:
            raise CorruptionError(self.name, frame.start, f"a frame cannot be unpacked: {error}") from error
        if len(plain) != frame.size_bytes:
            raise CorruptionError(self.name, frame.start, f"a frame holds {len(plain)} bytes, not {frame.size_bytes}")
        return plain

    def plain(self) -> Iterator[bytes]:
        """
        Yield header and records, frame by frame, without the footer.

        Raises:
            CorruptionError: a frame is damaged.
        """
        for batch in self._batches():
            yield from self._unpack(batch)

    def _batches(self) -> Iterator[list[PackedFrame]]:
        """Yield the frames of header and records in batches that are read together."""
        batch: list[PackedFrame] = []
        for frame in self.frames[:-1]:
            if batch and frame.start + frame.packed_bytes - batch[0].start > _READ_BYTES:
                yield batch
                batch = []
            batch.append(frame)
        yield batch

    def _unpack(
        self, batch: list[PackedFrame], data: memoryview | None = None, *, is_salvage: bool = False
    ) -> Iterator[bytes]:
        start = batch[0].start
        if data is None:
            data = memoryview(self._read_at(start, batch[-1].start + batch[-1].packed_bytes - start))
        for frame in batch:
            at = frame.start - start
            try:
                yield self._frame(frame, data[at : at + frame.packed_bytes])
            except CorruptionError:
                if not is_salvage:
                    raise
                yield bytes(frame.size_bytes)

    def inspect(self) -> tuple[int, str | None]:
        """
        Read all of it in pieces. Return the CRC-64/NVME of all packed bytes and the problem of its records, or None.
        The checksum is valid only if there is no problem.

        Raises:
            CorruptionError: a frame is damaged.
        """
        crc64 = 0

        def pieces() -> Iterator[bytes]:
            nonlocal crc64
            for batch in self._batches():
                start = batch[0].start
                data = self._read_at(start, batch[-1].start + batch[-1].packed_bytes - start)
                crc64 = crc64_nvme(data, crc64)
                yield from self._unpack(batch, memoryview(data))

        plain = pieces()
        first = next(plain)
        records: Iterator[Buffer] = itertools.chain([memoryview(first)[HEADER_BYTES:]], plain)
        problem = _contradiction(scan_pieces(records, HEADER_BYTES, self.end), self.header, self.footer)
        if problem is None:
            start = self.frames[-1].start
            crc64 = crc64_nvme(self._read_at(start, self.size_bytes - start), crc64)
        return crc64, problem

    def read(self, start: int, end: int, *, is_salvage: bool = False) -> bytes:
        """
        Return the bytes of the segment from *start* to *end*, unpacking only the necessary frames.

        With *is_salvage* a frame that cannot be unpacked is returned as zeros.

        Raises:
            CorruptionError: a frame is damaged.
        """
        end = min(end, self.end)
        if start >= end:
            return b""
        first, last = start // FRAME_BYTES, (end - 1) // FRAME_BYTES
        joined = b"".join(self._unpack(list(self.frames[first : last + 1]), is_salvage=is_salvage))
        return joined[start - first * FRAME_BYTES : end - first * FRAME_BYTES]

    def end_problem(self) -> str | None:
        """
        Check that the last record named by the footer ends at the end of the segment; return the problem or None.

        Nothing else verifies header, footer and table. A segment that claims to be larger than its records is detected
        here, before memory is allocated for it.

        Raises:
            CorruptionError: a frame is damaged.
        """
        offset = self.footer.last_record_id & 0xFFFF_FFFF
        record_end = offset
        if self.footer.record_count:
            head = self.read(offset, offset + RECORD_HEAD_BYTES)
            length = RECORD_HEAD.unpack(head)[0] if len(head) == RECORD_HEAD_BYTES else 0
            record_end = offset + RECORD_HEAD_BYTES + length if length else offset
        return (
            None
            if record_end == self.end
            else f"its last record ends at {record_end}, according to its footer at {self.end}"
        )

    def read_packed(self, start: int, length: int) -> bytes:
        """Return packed bytes without unpacking them."""
        return self._read_at(start, length)

    def checksum(self) -> int:
        """Return the CRC-64/NVME of all packed bytes."""
        value = 0
        for start in range(0, self.size_bytes, _READ_BYTES):
            value = crc64_nvme(self._read_at(start, min(_READ_BYTES, self.size_bytes - start)), value)
        return value


def records_problem(view: memoryview, header: SegmentHeader, footer: SegmentFooter) -> str | None:
    """Check the records in *view* against the footer; return the problem, or None."""
    end = footer.durable_bytes - header.base_offset
    return _contradiction(scan_records(view, HEADER_BYTES, min(end, len(view))), header, footer)


def _contradiction(found: RecordScan, header: SegmentHeader, footer: SegmentFooter) -> str | None:
    end = footer.durable_bytes - header.base_offset
    if found.damage is not None:
        return f"at {found.damage.offset}: {found.damage.reason}"
    if (found.end, found.record_count, found.checksum) != (end, footer.record_count, footer.checksum):
        return f"its records end at {found.end}, according to the footer at {end}"
    return None


def unpack_to(fs: FileSystem, path: str, packed: PackedSegment, *, max_size: int) -> None:
    """
    Unpack a segment to *path*, a file of *max_size* bytes; on return it is synced and its records are verified.

    Raises:
        CorruptionError: the packed segment is damaged; nothing is left at *path*.
        OSError: the disk is full or failed; the file is removed, as far as the disk allows.
    """
    file = fs.create_or_truncate(path)
    try:
        offset = 0
        for piece in packed.plain():
            require_room(fs, path.rpartition("/")[0], len(piece))
            file.pwrite(piece, offset)
            offset += len(piece)
        file.truncate(max_size)
        file.pwrite(encode_footer(packed.footer), max_size - FOOTER_BYTES)
        file.sync_data()
    except (OSError, QuiverError):
        with contextlib.suppress(OSError):
            fs.remove(path)
        raise
    finally:
        file.close()
    problem = records_problem(fs.map_read(path).view(), packed.header, packed.footer)
    if problem is not None:
        fs.remove(path)
        raise CorruptionError(packed.name, 0, f"the packed segment differs from the sealed one: {problem}")
