"""
The metadata of each segment that a query needs before it reads the segment: times, and the schemas of its streams.

It is read once from the end of each file, with a single read per segment. Only for an unknown schema the head of its
stream is read too. Segments never change.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from quiver.bundle import schema_fingerprint
from quiver.errors import CorruptionError
from quiver.store.format.segment.event_times import EventColumn
from quiver.store.format.segment.file import StreamEntry
from quiver.store.reading.directory import StoreDirectory
from quiver.store.segment.info import SegmentInfo
from quiver.store.segment.reader import SegmentReader

__all__ = ["SegmentDigest", "SegmentDigests", "StreamDigest"]


@dataclass(frozen=True, slots=True)
class StreamDigest:
    """One stream that has rows; `event` is None if no event times were recorded."""

    slot: int
    schema: pa.Schema
    event: EventColumn | None

    def event_range_ns(self, name: str) -> tuple[int, int] | None:
        """
        Return the earliest and latest time in column *name*, in reverse order if it has none; None when they are
        unknown.
        """
        if name not in self.schema.names:
            return 0, -1
        if self.event is None or self.event.column != self.schema.names.index(name):
            return None
        return self.event.min_ns, self.event.max_ns


@dataclass(frozen=True, slots=True)
class SegmentDigest:
    """One segment. Its directory was verified; its other numbers may be damaged."""

    info: SegmentInfo
    streams: tuple[StreamDigest, ...]

    def of_slot(self, slot: int) -> list[StreamDigest]:
        """Return the streams of one slot."""
        return [stream for stream in self.streams if stream.slot == slot]


class SegmentDigests:
    """The digests of one directory's segments, each created on first use. Thread-safe."""

    def __init__(self, directory: StoreDirectory) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._known: dict[int, SegmentDigest] = {}
        self._schemas: dict[bytes, pa.Schema] = {}

    def keep_only(self, present: list[int]) -> None:
        """Keep the digests only of the segments *present*."""
        with self._lock:
            for seq in self._known.keys() - set(present):
                del self._known[seq]
                self.directory.forget(seq)

    def get(self, seq: int) -> SegmentDigest | None:
        """Return the digest of segment *seq*; None when the segment was deleted, or is damaged, which is reported."""
        with self._lock:
            known = self._known.get(seq)
            if known is None:
                known = self._made(seq)
                if known is not None:
                    self._known[seq] = known
            return known

    def _made(self, seq: int) -> SegmentDigest | None:
        tail = self.directory.segment_tail(seq)
        if tail is not None and tail.streams is not None and tail.event_columns is not None:
            schemas = {one.stream_id: self._schemas.get(one.fingerprint) for one in tail.streams if one.chunk_count}
            if all(schema is not None for schema in schemas.values()):
                return SegmentDigest(tail.info, _streams(tail.streams, schemas, tail.event_columns))
        return self._made_by_reader(seq)

    def _made_by_reader(self, seq: int) -> SegmentDigest | None:
        reader = self.directory.open_segment(seq)
        if reader is None:
            return None
        try:
            reader.verify_directory()
            schemas = {
                stream_id: self._schema(stream.fingerprint, reader, stream_id)
                for stream_id, stream in reader.streams.items()
                if stream.chunk_count
            }
        except CorruptionError as damage:
            self.directory.report(damage)
            return None
        finally:
            reader.close()
        return SegmentDigest(
            reader.info, _streams(tuple(reader.streams.values()), schemas, reader.manifest.event_columns)
        )

    def _schema(self, fingerprint: bytes, reader: SegmentReader, stream_id: int) -> pa.Schema:
        known = self._schemas.get(fingerprint)
        return self.learn(fingerprint, reader.schema(stream_id)) if known is None else known

    def schema_of(self, fingerprint: bytes) -> pa.Schema | None:
        """Return the schema with this *fingerprint*; None when it is unknown."""
        return self._schemas.get(fingerprint)

    def learn(self, fingerprint: bytes, schema: pa.Schema) -> pa.Schema:
        """
        Remember the schema of *fingerprint*, if that is its digest: a fingerprint of another engine can have
        several.
        """
        if schema_fingerprint(schema) == fingerprint:
            self._schemas[fingerprint] = schema
        return schema


def _streams(
    entries: Sequence[StreamEntry], schemas: Mapping[int, pa.Schema | None], events: Sequence[EventColumn]
) -> tuple[StreamDigest, ...]:
    """Return the digests of the streams whose schema is in *schemas*."""
    known = {event.stream_id: event for event in events}
    found = ((entry, schemas.get(entry.stream_id)) for entry in entries)
    return tuple(
        StreamDigest(entry.slot, schema, known.get(entry.stream_id)) for entry, schema in found if schema is not None
    )
