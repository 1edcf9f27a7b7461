"""
What is known of a sealed segment without reading its streams.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SegmentInfo"]


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """
    One sealed segment.

    Attributes:
        seq: segment number; -1 when the file's name is not a segment's.
        path: where it lies.
        bundle_count: number of bundles.
        size_bytes: length of the file.
        wal_position_start: log position of its first bundle; None when another engine wrote it, or when empty.
        wal_position_end: log position behind its last bundle; replay goes on there.
        sequence_first: sequence of its first bundle.
        sequence_last: sequence of its last bundle.
        ingested_min_ns: earliest time of ingestion, nanoseconds since the epoch; None when not recorded.
        ingested_max_ns: latest time of ingestion.
    """

    seq: int
    path: str
    bundle_count: int
    size_bytes: int
    wal_position_start: int | None
    wal_position_end: int | None
    sequence_first: int | None
    sequence_last: int | None
    ingested_min_ns: int | None
    ingested_max_ns: int | None
