"""
A sealed segment → a durable, read-only file that exists completely or not at all.

::

    <number>.qseg.tmp: streams │ directory │ manifest │ footer │ trailer → mode 0440 → fsync → rename → fsync directory

The checksum is computed while bytes are gathered for the disk, a MiB at a time; the file is never in memory as
a whole, and never read back. After a crash between any two steps there is either no segment of that number or the
complete one, and perhaps a temporary file, which is never read and which the next attempt replaces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quiver.bundle import Adapter
from quiver.invariant import invariant
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.atomic import TEMPORARY_SUFFIX
from quiver.primitives.disk.file_system import File, FileSystem
from quiver.primitives.yielding import yielding
from quiver.settings import Profile
from quiver.store.format.names import segment_name
from quiver.store.format.segment.file import (
    STREAM_ALIGNMENT,
    SegmentFooter,
    StreamEntry,
    encode_directory,
    encode_segment_footer,
    encode_segment_trailer,
)
from quiver.store.segment.accumulator import SealedSegment
from quiver.store.segment.compression import Compression, compressed
from quiver.store.segment.info import SegmentInfo

__all__ = ["SegmentInfo", "write_segment"]

_GATHER_BYTES = 1024 * 1024
"""Bytes of one gathered write. A larger one touches cold pages twice, and evicts the cache lines that ingest needs."""
_JOIN_BYTES_MAX = 2 * 1024
"""Pieces whose average size is below this are copied together; for larger ones, one gathered write is cheaper."""


def write_segment(
    fs: FileSystem,
    segments_dir: str,
    seq: int,
    sealed: SealedSegment,
    *,
    profile: Profile,
    compression: Compression = "none",
    adapter: Adapter | None = None,
) -> SegmentInfo:
    """
    Write segment *seq* into *segments_dir*, durably on return: contents, mode and name.

    An older file of the same number is replaced. A stream that *compression* would not make smaller stays uncompressed.
    With an *adapter*, the `otap` profile records how many items each bundle has, if that is known for all of them.

    Raises:
        OSError: there may be no such file, an older one, or (after the last step) the new one, perhaps not durable.
            *sealed* stays usable: call again.
    """
    path = f"{segments_dir}/{segment_name(seq)}"
    temporary = path + TEMPORARY_SUFFIX
    # A crash left the temporary file read-only, so opening it for writing would fail.
    with contextlib.suppress(FileNotFoundError):
        fs.remove(temporary)
    try:
        file = fs.create(temporary)
        try:
            size = _write(file, sealed, profile, compression, adapter)
            file.set_mode(0o440)
            # Contents before the name: otherwise a power loss could leave a segment of this name without contents.
            file.sync()
            invariant(file.size() == size, f"segment {seq} gets its name only when its file is complete")
        finally:
            file.close()
        fs.rename(temporary, path)
        fs.sync_dir(segments_dir)
    except OSError:
        with contextlib.suppress(OSError):
            fs.remove(temporary)
        raise
    return SegmentInfo(
        seq=seq,
        path=path,
        bundle_count=sealed.bundle_count,
        size_bytes=size,
        wal_position_start=sealed.wal_position_start,
        wal_position_end=sealed.wal_position_end,
        sequence_first=sealed.sequence_first,
        sequence_last=sealed.sequence_last,
        ingested_min_ns=sealed.ingested_min_ns,
        ingested_max_ns=sealed.ingested_max_ns,
    )


class _Gather:
    """Bytes on their way to a file, with their checksum and count."""

    __slots__ = ("_file", "_parts", "_waiting", "crc", "offset")

    def __init__(self, file: File) -> None:
        self._file = file
        self._parts: list[Any] = []
        self._waiting = 0
        self.offset = 0
        self.crc = 0

    def add(self, part: Any) -> None:
        self._parts.append(part)
        self._waiting += len(part)
        if self._waiting >= _GATHER_BYTES:
            self.flush()

    def extend(self, parts: Sequence[Any]) -> None:
        self._parts += parts
        self._waiting += sum(map(len, parts))
        if self._waiting >= _GATHER_BYTES:
            self.flush()

    def align(self) -> None:
        self.add(bytes(-(self.offset + self._waiting) % STREAM_ALIGNMENT))

    @property
    def position(self) -> int:
        return self.offset + self._waiting

    def flush(self) -> None:
        parts = self._parts
        if self._waiting < len(parts) * _JOIN_BYTES_MAX:
            parts = [b"".join(parts)]
        for part in parts:
            self.crc = crc32(part, self.crc)
        if len(parts) == 1:
            self._file.pwrite(parts[0], self.offset)
        else:
            self._file.pwritev(parts, self.offset, self._waiting)
        self.offset += self._waiting
        self._parts = []
        self._waiting = 0


def _write(
    file: File, sealed: SealedSegment, profile: Profile, compression: Compression, adapter: Adapter | None
) -> int:
    """Write all bytes of the segment and return their number. Nothing is durable yet."""
    gather = _Gather(file)
    entries = []
    for stream_id, stream in enumerate(sealed.streams()):
        gather.align()
        ipc_file = compressed(stream.file, compression)
        entries.append(
            StreamEntry(
                stream_id=stream_id,
                slot=stream.slot,
                fingerprint=stream.fingerprint,
                byte_offset=gather.position,
                byte_length=ipc_file.nbytes,
                row_count=stream.row_count,
                chunk_count=stream.chunk_count,
            )
        )
        for parts in yielding(ipc_file.groups()):
            gather.extend(parts)
    directory = encode_directory(entries)
    metadata = replace(sealed.metadata, directory_crc32=crc32(directory))
    item_count = adapter.item_count if adapter is not None and profile == "otap" else None
    manifest = sealed.manifest(item_count).encode(metadata, profile)
    footer = SegmentFooter(
        stream_count=len(entries),
        bundle_count=sealed.bundle_count,
        directory_offset=gather.position,
        directory_length=len(directory),
        manifest_offset=gather.position + len(directory),
        manifest_length=len(manifest),
    )
    for part in (directory, manifest, encode_segment_footer(footer)):
        gather.add(part)
    gather.flush()
    trailer = encode_segment_trailer(gather.crc)
    file.pwrite(trailer, gather.offset)
    return gather.offset + len(trailer)
