"""The metadata of a sealed segment that is known without reading its streams."""

from __future__ import annotations

from dataclasses import dataclass

from quiver.bundle import OTAP, Adapter

__all__ = ["SegmentInfo", "SegmentStatistics", "StreamStatistics"]


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """
    One sealed segment.

    Attributes:
        seq: segment number; -1 if the file's name is not a segment's.
        path: of its file.
        bundle_count: number of bundles.
        size_bytes: length of the file.
        wal_position_start: log position of its first bundle; None if another engine wrote it, or if it is empty.
        wal_position_end: log position after its last bundle; replay continues there.
        sequence_first: sequence of its first bundle.
        sequence_last: sequence of its last bundle.
        ingested_min_ns: earliest time of ingestion, nanoseconds since the epoch; None if it was not recorded.
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


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """
    One stream: the batches of one slot that share a schema.

    Attributes:
        stream_id: its number in the segment.
        slot: the slot of its batches.
        row_count: rows of all its batches.
        chunk_count: number of its batches.
        size_bytes: length of its Arrow file.
        columns: names, in the order of its schema.
        omitted: names that other streams of the slot in this segment have, and this one does not.
        event_column: the column of event times; None if none was recorded.
        event_min_ns: earliest event time, nanoseconds since the epoch; None if there is none.
        event_max_ns: latest event time.
        item_count: how many records its OTLP requests have; None if it has other rows, or if that was not recorded.
    """

    stream_id: int
    slot: int
    row_count: int
    chunk_count: int
    size_bytes: int
    columns: tuple[str, ...]
    omitted: tuple[str, ...]
    event_column: str | None
    event_min_ns: int | None
    event_max_ns: int | None
    item_count: int | None = None


@dataclass(frozen=True, slots=True)
class SegmentStatistics:
    """
    The statistics of one sealed segment, stream by stream.

    Attributes:
        info: numbers, positions and times of the whole segment.
        streams: by stream id.
        item_count: as recorded by an engine that counts items; None if it is not in the file.
    """

    info: SegmentInfo
    streams: tuple[StreamStatistics, ...]
    item_count: int | None

    @property
    def row_counts(self) -> dict[int, int]:
        """Slot → number of rows, ascending."""
        counts: dict[int, int] = {}
        for stream in sorted(self.streams, key=lambda stream: stream.slot):
            counts[stream.slot] = counts.get(stream.slot, 0) + stream.row_count
        return counts

    @property
    def event_range_ns(self) -> tuple[int, int] | None:
        """The earliest and the latest event time of all streams; None if none was recorded."""
        lows = [stream.event_min_ns for stream in self.streams if stream.event_min_ns is not None]
        highs = [stream.event_max_ns for stream in self.streams if stream.event_max_ns is not None]
        return (min(lows), max(highs)) if lows and highs else None

    def signals(self, adapter: Adapter = OTAP) -> tuple[str, ...]:
        """The signals whose data the segment holds, by the slot table of *adapter*, in alphabetical order."""
        return adapter.signals_of(self.row_counts)

    def items(self, adapter: Adapter = OTAP) -> int | None:
        """
        How many items (log records, spans, data points) it has; None if that is unknown.

        It is known if it was recorded, and if all data is in slots where a row is an item or belongs to one.
        """
        if self.item_count is not None:
            return self.item_count
        recorded = [stream.item_count for stream in self.streams if stream.item_count is not None]
        of_requests = {stream.slot for stream in self.streams if stream.item_count is not None}
        if any(stream.slot in of_requests and stream.item_count is None for stream in self.streams):
            return None
        rest = {slot: rows for slot, rows in self.row_counts.items() if slot not in of_requests}
        others = adapter.item_count(rest) if rest or not recorded else 0
        return None if others is None else sum(recorded) + others
