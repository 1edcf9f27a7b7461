"""What readers read from: segments, wherever they lie, with their bytes, and how far they may be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from quiver.aof.format.sparse_index import IndexMark

__all__ = ["TIME_UNKNOWN", "Extent", "Place", "Record", "Source", "Sources"]

TIME_UNKNOWN = (1 << 63) - 1
"""Stands for the time of the last record of a segment that is still written."""


class Extent(NamedTuple):
    """
    Where a segment lies in its log: what is known without its records. The segment that follows begins right behind it,
    or else what was between them is lost.

    Attributes:
        base_offset: bytes of the log before it.
        end: the offset behind its last record; None while records are appended.
        base_record_count: records of the log before it; None where its header is lost.
        record_count: its records; None while they become more, or where its footer is lost.
    """

    base_offset: int
    end: int | None
    base_record_count: int | None
    record_count: int | None


class Source(NamedTuple):
    """
    A segment that can be read up to `end`; `complete` when nothing will ever be behind it.

    Attributes:
        last_timestamp: of its last record at this moment, or `TIME_UNKNOWN`.
        first_timestamp: of its first record; 0 where that is not known.
        problem: why bytes of it may not be those that were written; empty when nothing is known to be wrong.
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
        """The offset up to which there are bytes: less than `end` where the file was cut short."""
        return min(self.end, len(self.view))


class Record(NamedTuple):
    """
    One record, as it was appended.

    The payload is `bytes`, or a read-only view of the mapped segment where views were asked for.
    """

    record_id: int
    timestamp: int
    ext_id: int
    payload: bytes | memoryview


class Place(NamedTuple):
    """
    A place in a log: the id that the record there has, or will have, and how many bytes and records
    come before it.
    """

    record_id: int
    log_bytes: int
    record_count: int


class Sources(Protocol):
    """Where a reader finds segments."""

    directory: str
    """Of the log."""

    def source(self, segment_id: int, *, durable_only: bool) -> Source | None:
        """
        Return the segment with that id, as far as it can be read now; None when there is none.

        Raises:
            CorruptionError: it is there, and none of its bytes can be read.
        """

    def extent(self, segment_id: int) -> Extent | None:
        """
        Return where the segment with that id lies in the log, without reading it; None when nothing
        is known of it.
        """

    def next_segment_id(self, segment_id: int) -> int | None:
        """Return the lowest id above *segment_id* that a segment has."""

    def next_sealed_segment_id(self, segment_id: int) -> int | None:
        """Return the lowest id above *segment_id* that a sealed segment has."""

    def last_timestamp(self, segment_id: int) -> int | None:
        """Return the timestamp of the last record of a sealed segment, without reading it; None for any other."""

    def marks(self, segment_id: int) -> Sequence[IndexMark]:
        """Return what is known of where records of a sealed segment begin; nothing for any other."""

    def stretch(self, segment_id: int, start: int, end: int | None) -> Source | None:
        """Return a segment of which only what lies from offset *start* to *end* (None: all) is going to be read."""
