"""
The end of a segment file → what the store keeps in memory of it: one read, no mapping, no table of its bundles.

A store with a hundred thousand segments reads the end of each when it opens, and a query that of each segment that it
may touch. They need counts, log positions, times and streams. The places of chunks are read by the reader of the
segment, which also finds damage there.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from quiver.errors import CorruptionError
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.scan import Damage, Frame
from quiver.store.format.names import parse_segment_name
from quiver.store.format.segment.event_times import EventColumn
from quiver.store.format.segment.file import (
    SegmentFooter,
    StreamEntry,
    check_directory,
    decode_directory,
    decode_segment_footer,
)
from quiver.store.format.segment.manifest import ManifestSummary, decode_manifest_summary
from quiver.store.segment.info import SegmentInfo
from quiver.store.segment.reader import SegmentReader

__all__ = ["SegmentTail", "TailSource", "read_info", "read_tail", "tail_of"]

_TAIL_BYTES = 16 * 1024
"""Directory, manifest and footer of most segments are smaller."""


class TailSource(Protocol):
    """The reads that the end of a segment needs: those of a file, or of an object."""

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to *size* bytes at *offset*; fewer only at the end."""

    def size(self) -> int:
        """Return the length in bytes."""


@dataclass(frozen=True)
class SegmentTail:
    """The contents of the end of a segment. Until its checksum is verified, `info` may have a flipped bit."""

    info: SegmentInfo
    _footer: SegmentFooter
    _summary: ManifestSummary
    _directory: memoryview | None

    @cached_property
    def streams(self) -> tuple[StreamEntry, ...] | None:
        """
        The streams as they were written; None if only the complete file can prove that, or if
        they are too far from the end.
        """
        region = self._directory
        if region is None or crc32(region) != self._summary.metadata.directory_crc32:
            return None
        found = decode_directory(region, at=self._footer.directory_offset)
        return None if isinstance(found, Damage) or check_directory(found, self._footer) is not None else found

    @cached_property
    def event_columns(self) -> tuple[EventColumn, ...] | None:
        """The streams with event times, and the range of each; None if that is damaged."""
        found = self._summary.event_columns(at=self._footer.manifest_offset)
        return None if isinstance(found, Damage) else found


def read_info(fs: FileSystem, path: str) -> SegmentInfo:
    """
    Return the info at the end of the segment at *path*. Until its checksum is verified, it may have a flipped bit.

    Raises:
        CorruptionError: it is not a complete segment; the error has the place and the reason.
        UnsupportedFormatError: a valid segment of a newer version.
        OSError: it cannot be read; FileNotFoundError if it does not exist.
    """
    tail = read_tail(fs, path)
    # Something is unusual: a longer footer, a newer version, damage. The reader finds out.
    return SegmentReader.open(fs, path).info if tail is None else tail.info


def read_tail(fs: FileSystem, path: str) -> SegmentTail | None:
    """
    Return the end of the segment at *path*; None if it is unusual, and only `SegmentReader` can find out why.

    Raises:
        CorruptionError: its manifest is damaged; the error has the place and the reason.
        OSError: it cannot be read; FileNotFoundError if it does not exist.
    """
    file = fs.open_read(path)
    try:
        return tail_of(file, path)
    finally:
        file.close()


def tail_of(source: TailSource, path: str) -> SegmentTail | None:
    """
    Return the end of the segment that *source* reads; None as `read_tail`. Errors call it *path*.

    Raises:
        CorruptionError: its manifest is damaged; the error has the place and the reason.
    """
    size = source.size()
    before = max(0, size - _TAIL_BYTES)
    tail = memoryview(source.pread(size - before, before))
    answer = decode_segment_footer(tail, size_bytes=before + len(tail))
    if not isinstance(answer, Frame):
        return None
    footer = answer.value
    region = _manifest_region(source, tail, before, footer)
    summary = decode_manifest_summary(region, footer.bundle_count, at=footer.manifest_offset)
    if isinstance(summary, Damage):
        raise CorruptionError(path, summary.offset, summary.reason)
    start = footer.directory_offset - before
    directory = tail[start : start + footer.directory_length] if start >= 0 else None
    return SegmentTail(_info(path, size, footer.bundle_count, summary), footer, summary, directory)


def _info(path: str, size_bytes: int, bundle_count: int, summary: ManifestSummary) -> SegmentInfo:
    metadata, times = summary.metadata, summary.ingested_times_ns
    seq = parse_segment_name(posixpath.basename(path))
    return SegmentInfo(
        seq=-1 if seq is None else seq,
        path=path,
        bundle_count=bundle_count,
        size_bytes=size_bytes,
        wal_position_start=metadata.wal_position_start,
        wal_position_end=metadata.wal_position_end,
        sequence_first=metadata.sequence_first,
        sequence_last=metadata.sequence_last,
        ingested_min_ns=min(times) if times else None,
        ingested_max_ns=max(times) if times else None,
    )


def _manifest_region(file: TailSource, tail: memoryview, before: int, footer: SegmentFooter) -> memoryview:
    start = footer.manifest_offset - before
    if start >= 0:
        return tail[start : start + footer.manifest_length]
    return memoryview(file.pread(footer.manifest_length, footer.manifest_offset))
