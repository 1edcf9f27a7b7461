"""The sources of readers: segments with their bytes, wherever these are stored, and how far they may be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from quiver.aof.format.sparse_index import IndexMark

__all__ = ["TIME_UNKNOWN", "Extent", "LogPosition", "ReadableSegment", "ReadableSegments", "Record"]

TIME_UNKNOWN = (1 << 63) - 1
"""The time of the last record of a segment that is still written."""


class Extent(NamedTuple):
    """
    The place of a segment in its log, known without reading its records. If the next segment does not follow without a
    gap, the records between them are lost.

    Attributes:
        base_offset: bytes of the log before it.
        end: the offset after its last record; None while records are appended.
        base_record_count: records of the log before it; None if its header is lost.
        record_count: its records; None while records are appended, or if its footer is lost.
    """

    base_offset: int
    end: int | None
    base_record_count: int | None
    record_count: int | None


class ReadableSegment(NamedTuple):
    """
    A segment that can be read up to `end`. It is `complete` if no records will follow.

    Attributes:
        last_timestamp: the timestamp of its present last record, or `TIME_UNKNOWN`.
        first_timestamp: the timestamp of its first record; 0 if unknown.
        problem: why its bytes may be damaged; empty when no damage is known.
    """

    segment_id: int
    path: str
    view: memoryview
    end: int
    complete: bool
    last_timestamp: int
    extent: Extent
    first_timestamp: int = 0
    problem: str = ""

    @property
    def limit(self) -> int:
        """The offset up to which there are bytes: less than `end` if the file is truncated."""
        return min(self.end, len(self.view))


class Record(NamedTuple):
    """
    One record, as it was appended.

    The payload is `bytes`, or with ``views=True`` a read-only view of the mapped segment.
    """

    record_id: int
    timestamp: int
    ext_id: int
    payload: bytes | memoryview


class LogPosition(NamedTuple):
    """A place in a log: the id of the present or future record there, and the bytes and records before it."""

    record_id: int
    log_bytes: int
    record_count: int


class ReadableSegments(Protocol):
    """The segments of a log, for readers."""

    directory: str
    """The directory of the log."""

    def source(self, segment_id: int, *, durable_only: bool) -> ReadableSegment | None:
        """
        Return the segment with that id, as far as it can be read now; None when there is none.

        Raises:
            CorruptionError: it exists, but none of its bytes can be read.
        """

    def extent(self, segment_id: int) -> Extent | None:
        """Return the extent of the segment with that id, without reading it; None when unknown."""

    def next_segment_id(self, segment_id: int) -> int | None:
        """Return the lowest segment id above *segment_id*; None when there is none."""

    def next_sealed_segment_id(self, segment_id: int) -> int | None:
        """Return the lowest id of a sealed segment above *segment_id*; None when there is none."""

    def last_timestamp(self, segment_id: int) -> int | None:
        """Return the timestamp of the last record of a sealed segment, without reading it; None for any other."""

    def marks(self, segment_id: int) -> Sequence[IndexMark]:
        """Return the known starts of records in a sealed segment; nothing for any other."""

    def stretch(self, segment_id: int, start: int, end: int | None) -> ReadableSegment | None:
        """Return a segment for reading only the bytes from offset *start* to *end* (None: all)."""
