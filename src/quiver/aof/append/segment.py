"""
One segment that is being written: a preallocated, mapped file, and the state of its records.

::

    spare ──activate──▶ active ──retire──▶ pending ──seal──▶ sealed (a file in the catalog, mapped when it is read)

Two threads change it. The writer, with the tail's lock, stores records and advances `size`. The flusher, with its own
lock, advances `durable` to a `size` that it read before the sync. A reader may read up to either without a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from quiver.aof.format.durability import ScanMark, SegmentDurability
from quiver.aof.format.names import SegmentName
from quiver.aof.format.record import RECORD_HEAD_BYTES, RecordScan, checksum_of_bytes, join_record_id, scan_records
from quiver.aof.format.segment_file import (
    FOOTER_BYTES,
    HEADER_BYTES,
    SegmentFooter,
    SegmentHeader,
    encode_footer,
    encode_header,
)
from quiver.errors import CorruptionError
from quiver.primitives.checksum import crc64_nvme, fold64to32
from quiver.primitives.disk.file_system import Buffer, File, FileSystem
from quiver.primitives.disk.prealloc import reserve_blocks

__all__ = ["AHEAD_BYTES", "Segment", "allocate"]

AHEAD_BYTES = 1 << 20
"""How many bytes are zeroed ahead of records that are synced in small pieces."""

_ZEROS = memoryview(bytes(AHEAD_BYTES))


class Segment:
    """
    A mapped segment file. Made by `allocate`, or by recovery from an unsealed file.

    Attributes:
        size: the end of the last record: how far a reader may read.
        durable: the end of the last synced record.
        durable_scan: the result of a scan up to there; None if nothing was synced yet.
        usable: the offset that no record may pass; the footer begins there.
        limit: the smaller of `usable` and the offset at which too much would be unsynced; set by the tail.
        flush_at: the size at which the tail requests a flush; set by the tail.
        store: writes many bytes at an offset.
        zeroed: the offset up to which blocks were zeroed ahead of the records.
        named: whether the file has its final name, durably.
        watermark: how far the upstream log was imported when the segment got its last record; set by the tail.
    """

    __slots__ = (
        "_checked", "_file", "_mapping", "_suspect", "activated_s", "base_offset", "base_record_count",
        "base_timestamp", "crc64", "created_at", "durable", "durable_scan", "ext_id", "flush_at", "id_base",
        "last_offset", "last_timestamp", "limit", "max_size", "named", "path", "record_count", "segment_id", "size",
        "store", "usable", "view", "watermark", "zeroed",
    )  # fmt: skip

    def __init__(self, file: File, max_size: int) -> None:
        self.path = file.path
        self._file = file
        self._mapping = file.map_write()
        self.view = self._mapping.view()
        self.store = self._mapping.store
        self._suspect = False
        self.max_size = max_size
        self.usable = max_size - FOOTER_BYTES
        self.limit = self.usable
        self.flush_at = 0
        self.size = HEADER_BYTES
        self.durable = self.zeroed = self.watermark = 0
        self.durable_scan: RecordScan | None = None
        self._checked = (HEADER_BYTES, 0)
        self.record_count = 0
        self.last_offset = HEADER_BYTES
        self.last_timestamp = 0
        self.crc64 = 0
        self.segment_id = self.id_base = -1
        self.base_offset = self.base_record_count = self.created_at = self.base_timestamp = self.ext_id = 0
        self.activated_s = 0.0
        self.named = False

    def activate(self, header: SegmentHeader, *, now_s: float) -> None:
        """Turn a spare into the segment that *header* describes. Nothing is written before the first record."""
        self.segment_id = header.segment_index
        self.id_base = join_record_id(header.segment_index, 0)
        self.base_offset = header.base_offset
        self.base_record_count = header.base_record_count
        self.created_at = header.created_at
        self.base_timestamp = header.base_timestamp
        self.ext_id = header.ext_id
        self.activated_s = now_s

    def restore(self, header: SegmentHeader, found: RecordScan, *, now_s: float) -> None:
        """Continue after the records that recovery *found*, and made durable, in an unsealed file."""
        self.activate(header, now_s=now_s)
        self.size = self.durable = found.end
        self.durable_scan = found
        self.record_count = found.record_count
        self.last_offset = found.last_offset
        self.last_timestamp = found.last_timestamp
        self.crc64 = found.crc64
        self.named = True

    @property
    def capacity(self) -> int:
        """How many bytes of records, including their heads, fit into the empty segment."""
        return self.usable - HEADER_BYTES

    @property
    def backlog(self) -> int:
        """Bytes that are written but not yet synced."""
        return self.size - self.durable if self.record_count else 0

    @property
    def header(self) -> SegmentHeader:
        """The header in its first 64 bytes, or the one to be written."""
        return SegmentHeader(
            self.segment_id, self.base_record_count, self.base_offset, self.max_size, self.created_at,
            self.base_timestamp, self.ext_id,
        )  # fmt: skip

    def write_header(self, timestamp: int) -> None:
        """Store the header. *timestamp* is that of the first record, which is stored next."""
        self.base_timestamp = timestamp
        self.view[:HEADER_BYTES] = encode_header(self.header)

    def zero_ahead(self) -> None:
        """
        Zero the blocks of the next records: written blocks are synced faster than preallocated ones.

        Call it with the tail's lock held and no open reservation, so that nothing else is stored there.
        """
        if self.zeroed - self.size < AHEAD_BYTES // 2 and self.zeroed < self.usable:
            start = max(self.zeroed, self.size)
            self.zeroed = min(start + AHEAD_BYTES, self.usable)
            self.store(start, _ZEROS[: self.zeroed - start])

    def zero(self, start: int, end: int) -> None:
        """Store zeros from *start* to *end*: no bytes after the last record may ever parse as a record."""
        self.view[start:end] = bytes(end - start)

    def store_each(self, heads: Iterable[bytes], payloads: Sequence[Buffer]) -> None:
        """
        Store records after the last one, copying each payload once into place. The caller updates `size`.

        After an error the bytes are zero again.
        """
        view, start, crc64 = self.view, self.size, self.crc64
        end = start
        try:
            for head, payload in zip(heads, payloads, strict=True):
                end = start + RECORD_HEAD_BYTES + len(payload)
                view[start + RECORD_HEAD_BYTES : end] = payload
                view[start : start + RECORD_HEAD_BYTES] = head
                crc64 = crc64_nvme(payload, crc64)
                start = end
        except BaseException:
            # Complete records may be stored by now, but the error means that nothing was written.
            self.zero(self.size, end)
            raise
        self.crc64 = crc64

    def store_joined(self, heads: Iterable[bytes], payloads: Sequence[Buffer], size: int) -> None:
        """
        Store records after the last one as one piece of *size* bytes: faster for small records. Otherwise as
        `store_each`.

        Raises:
            ValueError: the size differs: `len` of a view of wider numbers counts numbers, not bytes.
        """
        records = b"".join(chain.from_iterable(zip(heads, payloads, strict=True)))
        if len(records) != size:
            raise ValueError("payloads have more bytes than items")
        self.store(self.size, records)
        self.crc64 = crc64_nvme(b"".join(payloads), self.crc64)

    # ---- durability: one thread at a time, with the flusher's lock

    def scanned(self) -> RecordScan:
        """Return what a scan over all records would find. Call it with the tail's lock held."""
        return RecordScan(self.size, self.last_offset, self.record_count, self.last_timestamp, self.crc64)

    def sync(self, fs: FileSystem, directory: str, written: RecordScan) -> int:
        """
        Make all records that were *written*, as `scanned` returned it, durable under the segment's final name; return
        how many bytes that were.

        Raises:
            OSError: it is unknown what is durable. The next call stores everything again first.
            CorruptionError: the stored bytes differ when read back: the kernel dropped pages after an earlier error.
        """
        end = written.end
        if self._suspect:
            self._store_again(end)
        self._suspect = True
        self._mapping.sync()
        if not self.named:
            # In this order a segment's name never refers to a file without a header.
            target = f"{directory}/{SegmentName(self.segment_id, self.base_offset, self.created_at)}"
            if self.path != target:
                fs.rename(self.path, target)
                self.path = target
            fs.sync_dir(directory)
            self.named = True
        self._suspect = False
        gained, self.durable = end - self.durable, end
        self.durable_scan = written
        return gained

    def _store_again(self, end: int) -> None:
        # 1. A sync fails; the kernel marks the pages clean although the disk never got them. 2. A second sync finds
        # nothing to do and succeeds. So the pages are made dirty first. The kernel may also have dropped some of them
        # and read the old ones back, so the records are verified before they are reported as durable.
        start = max(self.durable, HEADER_BYTES)
        found = scan_records(self.view, start, end)
        if found.end != end:
            reason = found.damage.reason if found.damage else "records are missing"
            raise CorruptionError(self.path, found.end, f"after a failed sync: {reason}")
        self._mapping.touch(self.durable, end)

    def durability(self) -> SegmentDurability:
        """Return what the durability snapshot has of the segment. Called by one thread at a time."""
        found, requested = self.durable_scan, max(self.size, self.durable)
        if found is None or not found.record_count:
            return SegmentDurability(self.segment_id, requested, self.durable)
        start, value = self._checked
        value = checksum_of_bytes(self.view, start, found.end, value)
        self._checked = found.end, value
        mark = ScanMark(found.record_count, found.last_offset, found.last_timestamp, found.crc64, value)
        return SegmentDurability(self.segment_id, requested, found.end, mark)

    def seal(self, *, sealed_at: int, flush_failure: bool) -> SegmentFooter:
        """
        Store the footer, durably. All records must be durable already.

        Raises:
            OSError: the footer may or may not be stored; call it again.
        """
        footer = SegmentFooter(
            segment_index=self.segment_id,
            base_record_count=self.base_record_count,
            record_count=self.record_count,
            durable_bytes=self.base_offset + self.durable,
            last_record_id=self.id_base | self.last_offset,
            last_timestamp=self.last_timestamp,
            sealed_at=sealed_at,
            checksum=fold64to32(self.crc64),
            ext_id=self.ext_id,
            coordinator_watermark=self.watermark,
            flush_failure=flush_failure,
        )
        self.view[self.usable :] = encode_footer(footer)
        self._mapping.touch(self.usable, self.max_size)
        self._mapping.sync()
        return footer

    def close(self) -> None:
        """Close the file. Existing views of it stay valid. Makes nothing durable."""
        self._mapping.close()
        self._file.close()


def allocate(fs: FileSystem, path: str, size: int) -> Segment:
    """
    Create a spare of *size* bytes at *path*, with its blocks allocated and zero. Its name becomes durable on first use.

    Raises:
        OSError: the disk is full or failed. The file is removed, as far as the disk allows.
    """
    file = fs.create(path)
    try:
        reserve_blocks(file, 0, size, on_unsupported="zeros")
        return Segment(file, size)
    except OSError:
        file.close()
        fs.remove(path)
        raise
