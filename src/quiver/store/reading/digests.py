"""
What a query needs to know of each segment before it reads one: times, and the schemas of its streams.

Read from the end of each file, once: one read for each segment. Only a schema that was not met before is looked for in
the head of its stream. Segments never change.
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
    """One stream that holds something; `event` is None where no event times were recorded."""

    slot: int
    schema: pa.Schema
    event: EventColumn | None

    def event_range_ns(self, name: str) -> tuple[int, int] | None:
        """
        Return between which times column *name* lies, earliest above latest for none; None when
        that is not known.
        """
        if name not in self.schema.names:
            return 0, -1
        if self.event is None or self.event.column != self.schema.names.index(name):
            return None
        return self.event.min_ns, self.event.max_ns


@dataclass(frozen=True, slots=True)
class SegmentDigest:
    """One segment; its directory is as it was written, its other numbers may have a flipped bit in them."""

    info: SegmentInfo
    streams: tuple[StreamDigest, ...]

    def of_slot(self, slot: int) -> list[StreamDigest]:
        """Return the streams of one slot."""
        return [stream for stream in self.streams if stream.slot == slot]


class SegmentDigests:
    """The digests of one directory's segments, each made when it is first asked for. Thread-safe."""

    def __init__(self, directory: StoreDirectory) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._known: dict[int, SegmentDigest] = {}
        self._schemas: dict[bytes, pa.Schema] = {}

    def forget_gone(self, present: list[int]) -> None:
        """Keep the digests of the segments *present* only."""
        with self._lock:
            for seq in self._known.keys() - set(present):
                del self._known[seq]
                self.directory.forget(seq)

    def get(self, seq: int) -> SegmentDigest | None:
        """Return what is known of segment *seq*; None when it is gone, or damaged, which is reported."""
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
        """Return the schema that *fingerprint* stands for, None when it is not known."""
        return self._schemas.get(fingerprint)

    def learn(self, fingerprint: bytes, schema: pa.Schema) -> pa.Schema:
        """
        Remember what *fingerprint* stands for, if it is the digest of *schema*: another engine's may stand for
        several.
        """
        if schema_fingerprint(schema) == fingerprint:
            self._schemas[fingerprint] = schema
        return schema


def _streams(
    entries: Sequence[StreamEntry], schemas: Mapping[int, pa.Schema | None], events: Sequence[EventColumn]
) -> tuple[StreamDigest, ...]:
    """Return the digests of those streams that *schemas* has the schema of."""
    known = {event.stream_id: event for event in events}
    found = ((entry, schemas.get(entry.stream_id)) for entry in entries)
    return tuple(
        StreamDigest(entry.slot, schema, known.get(entry.stream_id)) for entry, schema in found if schema is not None
    )
