"""
Bundles → streams, in memory.

An open segment only collects: per slot and schema, the messages that the log has already written, and per bundle, the
places of its slots. Expensive work is left to `SealedSegment.streams`, which the writer calls off the ingest path.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quiver.primitives.yielding import yielding
from quiver.store.format.segment.event_times import EventStream
from quiver.store.format.segment.file import BUNDLES_WRITTEN_MAX
from quiver.store.format.segment.ipc_table import fixed_width, view_of
from quiver.store.format.segment.manifest import ManifestBuilder, ManifestMetadata
from quiver.store.format.wal_entry import CRC, ENTRY_HEAD, SLOT_HEAD
from quiver.store.segment.dictionaries import DictionaryRun, encode_runs
from quiver.store.segment.ipc_file import IpcFile, assemble
from quiver.store.segment.log_backed import loaded
from quiver.store.segment.schemas import check_schema
from quiver.store.segment.stream_events import stream_events

__all__ = [
    "EncodedRun",
    "EncodedSlot",
    "OpenSegment",
    "RunPart",
    "SealedSegment",
    "SealedStream",
    "StreamSchema",
    "check_schema",
    "self_contained",
]

_SLOTS = 64
_STREAM_BYTES = 1024
_REF_BYTES = 64
"""Upper bounds for the file bytes of a stream and of a reference to one of its chunks, besides schemas and messages."""
_CHUNK_MASK = 0xFFFFFFFF
_stop_of = attrgetter("stop")
_ENTRY_OVERHEAD = ENTRY_HEAD.size + CRC.size


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StreamSchema:
    """
    A schema as streams need it. Create one per schema and pass the same object again: it is compared by identity.

    Attributes:
        schema: a schema that passed `check_schema`.
        fingerprint: 32 bytes that identify it in log and directory.
        schema_message: ``schema.serialize()``.
        has_dictionaries: the result of `check_schema`.
    """

    schema: pa.Schema
    fingerprint: bytes
    schema_message: pa.Buffer
    has_dictionaries: bool
    schema_bytes: bytes = field(init=False, repr=False)
    """The part of the schema before a message in the log: empty if each message brings its own."""
    head: struct.Struct = field(init=False, repr=False)
    """`SLOT_HEAD`, then `schema_bytes`."""

    def __post_init__(self) -> None:
        spoken = b"" if self.has_dictionaries else bytes(self.schema_message)
        object.__setattr__(self, "schema_bytes", spoken)
        object.__setattr__(self, "head", struct.Struct(f"{SLOT_HEAD.format}{len(spoken)}s"))


@dataclass(slots=True)
class EncodedSlot:
    """
    One slot of a bundle, serialized once.

    Attributes:
        row_count: rows of the batch.
        message: the result of ``batch.serialize()``; for a schema with dictionaries, a complete Arrow stream, since a
            message alone would lack them. It must not change until the segment is on disk. Large ones are a
            `LogBackedMessage`, or without a log and if their buffers cannot change, a `PiecedMessage`.
    """

    slot: int
    stream_schema: StreamSchema
    row_count: int
    message: Any
    payload_bytes: int = 0
    """Length of the slot's complete Arrow stream in the log's entry."""


class RunPart(NamedTuple):
    """Bundles of a run with the same slot and schema; they end before the index *stop*."""

    slot: int
    stream_schema: StreamSchema
    stop: int


@dataclass(frozen=True, slots=True)
class EncodedRun:
    """
    Consecutive bundles of one log file with one slot each, taken over from the log's bytes.

    `messages`, `row_counts`, `ingested_at_ns`, `sequences` and `ends` have one item for each bundle.

    Attributes:
        parts: slot and schema of all bundles, in order.
        start: log position of the first entry.
        ends: the offset in the file after each entry,
        shift: and how much further that is in the log.
    """

    parts: Sequence[RunPart]
    messages: Sequence[memoryview]
    row_counts: Sequence[int]
    ingested_at_ns: Sequence[int]
    sequences: Sequence[int]
    start: int
    ends: Sequence[int]
    shift: int

    def __len__(self) -> int:
        return len(self.messages)

    def start_of(self, index: int) -> int:
        """Return the log position of an entry; of the length, the end of the run."""
        return self.ends[index - 1] + self.shift if index else self.start

    def nbytes(self, first: int, stop: int) -> int:
        """Return the bytes of the bundles from *first* until *stop*, as `SlotEncoder` counts them."""
        return self.start_of(stop) - self.start_of(first) - (stop - first) * _ENTRY_OVERHEAD


def self_contained(batch: pa.RecordBatch) -> pa.Buffer:
    """Return *batch* as one Arrow stream that starts with its dictionaries."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


@dataclass(frozen=True, slots=True)
class SealedStream:
    """
    One stream as it is written to the file: its row of the directory, and its Arrow IPC file.

    `event_column` is the index of its column of event times, and `event_ranges` the earliest and the latest time of
    each chunk; None and empty if it has no such column. `item_count` is how many records its OTLP requests have.
    """

    slot: int
    fingerprint: bytes
    row_count: int
    chunk_count: int
    file: IpcFile
    event_column: int | None = None
    event_ranges: Sequence[int] = ()
    item_count: int | None = None


class _Stream:
    """The chunks of one slot and schema: messages, or complete Arrow streams if dictionaries must be unified first."""

    __slots__ = ("chunks", "index", "row_counts", "slot", "stream_schema")

    def __init__(self, index: int, slot: int, stream_schema: StreamSchema) -> None:
        self.index = index
        self.slot = slot
        self.stream_schema = stream_schema
        self.chunks: list[Any] = []
        self.row_counts = array("Q")


class OpenSegment:
    """
    The segment that bundles are added to. Not thread-safe: the store's ingest lock guards it.

    Args:
        streams_max: `is_full` becomes true at this number of streams,
        bytes_max: or at this number of bytes.
    """

    __slots__ = (
        "_by_schema", "_ingested_at_ns", "_refs", "_refs_end", "_sequence_first", "_sequence_last", "_streams",
        "_wal_end", "_wal_start", "bytes_max", "nbytes", "stream_bytes", "streams_max",
    )  # fmt: skip

    def __init__(self, *, streams_max: int, bytes_max: int = sys.maxsize) -> None:
        self.streams_max = streams_max
        self.bytes_max = bytes_max
        self.nbytes = 0
        """Bytes of the bundles so far, as the callers of `append` count them."""
        self.stream_bytes = 0
        """File bytes of its streams besides their messages: each has its schema at both ends."""
        self._streams: list[_Stream] = []
        self._by_schema: list[dict[StreamSchema, _Stream]] = [{} for _ in range(_SLOTS)]
        # One item per reference of every bundle, in order: stream index in the high half, chunk index in the low half.
        self._refs = array("Q")
        self._refs_end = array("I")
        self._ingested_at_ns = array("q")
        self._sequence_first: int | None = None
        self._sequence_last: int | None = None
        self._wal_start: int | None = None
        self._wal_end: int | None = None

    @property
    def bundle_count(self) -> int:
        """Number of bundles so far."""
        return len(self._ingested_at_ns)

    @property
    def file_bytes(self) -> int:
        """Upper bound for the size of its file, uncompressed."""
        return self.nbytes + self.stream_bytes + _REF_BYTES * len(self._refs)

    @property
    def stream_count(self) -> int:
        """Number of streams so far. Sealing may split streams with dictionaries, so a file may have more."""
        return len(self._streams)

    @property
    def is_empty(self) -> bool:
        """Whether it has no bundle yet."""
        return not self._ingested_at_ns

    @property
    def ingested_first_ns(self) -> int | None:
        """Time of ingestion of its first bundle, in nanoseconds since the epoch; None if it is empty."""
        return self._ingested_at_ns[0] if self._ingested_at_ns else None

    @property
    def sequence_first(self) -> int | None:
        """Sequence of its first bundle; None if it is empty."""
        return self._sequence_first

    @property
    def wal_position_start(self) -> int | None:
        """Position of its first bundle's log entry; None if it is empty."""
        return self._wal_start

    @property
    def has_all_sequences(self) -> bool:
        """Whether its bundles have consecutive sequence numbers, as those of an intact log have."""
        first, last = self._sequence_first, self._sequence_last
        return first is None or last is None or last - first + 1 == self.bundle_count

    def ingested_at_ns(self, index: int) -> int:
        """Return when bundle *index* was ingested, in nanoseconds since the epoch."""
        return self._ingested_at_ns[index]

    def slots_of(self, index: int) -> list[tuple[int, StreamSchema, Any]]:
        """Return slot, schema and message of each slot of bundle *index*, also after `seal`."""
        start = self._refs_end[index - 1] if index else 0
        found = []
        for ref in self._refs[start : self._refs_end[index]]:
            stream = self._streams[ref >> 32]
            found.append((stream.slot, stream.stream_schema, stream.chunks[ref & _CHUNK_MASK]))
        return found

    @property
    def is_full(self) -> bool:
        """Whether it has reached a cap of bytes or streams, or the most bundles that a progress file can track."""
        return (
            self.nbytes >= self.bytes_max
            or len(self._streams) >= self.streams_max
            or len(self._refs_end) >= BUNDLES_WRITTEN_MAX
        )

    def append(
        self,
        encoded: Sequence[EncodedSlot],
        ingested_at_ns: int,
        sequence: int,
        wal_start: int,
        wal_end: int,
        nbytes: int,
    ) -> bool:
        """
        Add a bundle and return `is_full`. The bundle is kept until `seal`; its messages are not copied.

        *sequence* and the WAL positions are those of its log entry; *encoded* is ascending by slot.
        """
        refs = self._refs
        for slot in encoded:
            stream = self._by_schema[slot.slot].get(slot.stream_schema)
            if stream is None:
                stream = self._stream(slot.slot, slot.stream_schema)
            chunks = stream.chunks
            refs.append(stream.index << 32 | len(chunks))
            chunks.append(slot.message)
            stream.row_counts.append(slot.row_count)
        self._refs_end.append(len(refs))
        if self._wal_start is None:
            self._wal_start = wal_start
            self._sequence_first = sequence
        self._wal_end = wal_end
        self._sequence_last = sequence
        self._ingested_at_ns.append(ingested_at_ns)
        self.nbytes = total = self.nbytes + nbytes
        # `is_full` without the call: this runs for every bundle.
        return (
            total >= self.bytes_max
            or len(self._streams) >= self.streams_max
            or len(self._refs_end) >= BUNDLES_WRITTEN_MAX
        )

    def append_run(self, run: EncodedRun, first: int, count_max: int) -> int:
        """
        Add bundles of *run* from *first* on, as many calls of `append` would, until `is_full` or *count_max*.

        Returns how many were added: at least one.
        """
        at, stop = first, first + self._fitting(run, first, count_max)
        for slot, stream_schema, part_stop in run.parts[bisect_right(run.parts, first, key=_stop_of) :]:
            stream = self._by_schema[slot].get(stream_schema)
            if stream is None:
                stream = self._stream(slot, stream_schema)
            is_full = len(self._streams) >= self.streams_max
            until = at + 1 if is_full else min(part_stop, stop)
            chunk = stream.index << 32 | len(stream.chunks)
            self._refs.extend(range(chunk, chunk + until - at))
            stream.chunks += run.messages[at:until]
            stream.row_counts.extend(run.row_counts[at:until])
            at = until
            if is_full or at >= stop:
                break
        refs = len(self._refs)
        self._refs_end.extend(range(refs - (at - first) + 1, refs + 1))
        self._ingested_at_ns.extend(run.ingested_at_ns[first:at])
        if self._wal_start is None:
            self._wal_start = run.start_of(first)
            self._sequence_first = run.sequences[first]
        self._wal_end = run.start_of(at)
        self._sequence_last = run.sequences[at - 1]
        self.nbytes += run.nbytes(first, at)
        return at - first

    def _fitting(self, run: EncodedRun, first: int, count_max: int) -> int:
        """Return after how many bundles of *run* their number or bytes make it full; at least 1."""
        count_max = max(1, min(count_max, len(run) - first, BUNDLES_WRITTEN_MAX - len(self._refs_end)))
        left = self.bytes_max - self.nbytes
        if run.nbytes(first, first + count_max) < left:
            return count_max
        return 1 + bisect_left(range(1, count_max), left, key=lambda count: run.nbytes(first, first + count))

    def _stream(self, slot: int, stream_schema: StreamSchema) -> _Stream:
        by_schema = self._by_schema[slot]
        found = next((stream for known, stream in by_schema.items() if _are_same(known, stream_schema)), None)
        if found is None:
            found = _Stream(len(self._streams), slot, stream_schema)
            self._streams.append(found)
            self.stream_bytes += 2 * len(stream_schema.schema_message) + _STREAM_BYTES
        by_schema[stream_schema] = found
        return found

    def seal(self, *, keeps_messages: bool = False) -> SealedSegment:
        """
        Return everything collected, ready to be written. Cheap; nothing may be appended afterwards.

        With *keeps_messages*, `slots_of` can be called while it is written, too.
        """
        return SealedSegment(
            streams=self._streams,
            keeps_messages=keeps_messages,
            refs=self._refs,
            refs_end=self._refs_end,
            ingested_at_ns=self._ingested_at_ns,
            metadata=ManifestMetadata(self._wal_start, self._wal_end, self._sequence_first, self._sequence_last),
            nbytes=self.nbytes,
            file_bytes=self.file_bytes,
        )


class SealedSegment:
    """
    A full segment that is about to be written. After a failure it can be written again, to the same bytes.

    Used by one thread at a time.

    Attributes:
        bundle_count: number of bundles.
        nbytes: `OpenSegment.nbytes` at the seal.
        file_bytes: `OpenSegment.file_bytes` at the seal.
        metadata: the part of the log that it covers.
        ingested_min_ns: the earliest time of ingestion; None if it is empty.
        ingested_max_ns: the latest; None if it is empty.
    """

    def __init__(
        self,
        *,
        streams: Sequence[_Stream],
        keeps_messages: bool,
        refs: array[int],
        refs_end: array[int],
        ingested_at_ns: array[int],
        metadata: ManifestMetadata,
        nbytes: int,
        file_bytes: int,
    ) -> None:
        self._open_streams = streams
        self._keeps_messages = keeps_messages
        self._refs = refs
        self._refs_end = refs_end
        self._ingested_at_ns = ingested_at_ns
        self._runs: list[list[SealedStream]] = []
        self.metadata = metadata
        self.nbytes = nbytes
        self.file_bytes = file_bytes
        self.bundle_count = len(ingested_at_ns)
        found = pc.min_max(fixed_width(ingested_at_ns, pa.int64())).as_py()
        self.ingested_min_ns: int | None = found["min"]
        self.ingested_max_ns: int | None = found["max"]

    @property
    def wal_position_start(self) -> int | None:
        """Position of the first bundle's log entry; None if it is empty."""
        return self.metadata.wal_position_start

    @property
    def wal_position_end(self) -> int | None:
        """Position after the last bundle's log entry; None if it is empty."""
        return self.metadata.wal_position_end

    @property
    def sequence_first(self) -> int | None:
        """Sequence of the first bundle; None if it is empty."""
        return self.metadata.sequence_first

    @property
    def sequence_last(self) -> int | None:
        """Sequence of the last bundle; None if it is empty."""
        return self.metadata.sequence_last

    def streams(self) -> list[SealedStream]:
        """Return the streams of the file; a stream's number is its index. The first call does the work."""
        self._encode()
        if not self._is_split:
            return [runs[0] for runs in self._runs]
        starts = self._run_starts()
        return [starts[ref] for ref in self._refs if ref in starts]

    def manifest(self, item_count: Callable[[Mapping[int, int]], int | None] | None = None) -> ManifestBuilder:
        """
        Return which chunks of which streams make up each bundle.

        With *item_count*, also how many items each bundle has: it receives the number of rows by slot.
        """
        self._encode()
        chunks, streams = _chunks_and_streams(self._refs)
        slots = array("H", [stream.slot for stream in self._open_streams])
        slot_ids = array("H")
        if len(slots) == 1:
            slot_ids = slots * len(streams)
        elif slots:
            taken = fixed_width(slots, pa.uint16()).take(fixed_width(streams, pa.uint32()))
            slot_ids.frombytes(view_of(taken, "H").tobytes())
        if self._is_split:
            chunks, streams = _chunks_and_streams(self._moved_refs())
        builder = ManifestBuilder()
        builder.events = [
            EventStream(number, stream.event_column, stream.event_ranges)
            for number, stream in enumerate(self.streams())
            if stream.event_column is not None
        ]
        builder.stream_items = {
            number: stream.item_count for number, stream in enumerate(self.streams()) if stream.item_count is not None
        }
        items = [] if item_count is None else self._items_of_all(item_count)
        builder.extend(slot_ids, streams, chunks, self._refs_end, self._ingested_at_ns, items)
        return builder

    def _items_of_all(self, item_count: Callable[[Mapping[int, int]], int | None]) -> list[int]:
        """Return the number of items of each bundle; fewer numbers if that is not known for all of them."""
        starts = chain((0,), self._refs_end)
        found = []
        for start, end in yielding(zip(starts, self._refs_end, strict=False)):
            items = self._items(start, end, item_count)
            if items is None:
                break
            found.append(items)
        return found

    def _items(self, start: int, end: int, item_count: Callable[[Mapping[int, int]], int | None]) -> int | None:
        if start == end:
            return 0
        places = ((self._open_streams[ref >> 32], ref & _CHUNK_MASK) for ref in self._refs[start:end])
        return item_count({stream.slot: stream.row_counts[chunk] for stream, chunk in places})

    @property
    def _is_split(self) -> bool:
        return any(len(runs) > 1 for runs in self._runs)

    def _encode(self) -> None:
        # Each stream releases its batches as soon as it is encoded: never more than one stream is in memory twice.
        for stream in self._open_streams[len(self._runs) :]:
            self._runs.append(_runs(stream))
            if not self._keeps_messages:
                stream.chunks = []

    def _run_starts(self) -> dict[int, SealedStream]:
        """Return each run by the reference to its first chunk, as `append` created it."""
        starts: dict[int, SealedStream] = {}
        for stream, runs in zip(self._open_streams, self._runs, strict=True):
            chunk = 0
            for run in runs:
                starts[stream.index << 32 | chunk] = run
                chunk += run.chunk_count
        return starts

    def _moved_refs(self) -> array[int]:
        """Return the references with the stream and chunk numbers after runs have become streams."""
        starts = self._run_starts()
        moved = array("Q")
        # A stream's chunks come in order, so a reference belongs to the latest run of its stream.
        latest: dict[int, tuple[int, int]] = {}
        numbers = count()
        for ref in self._refs:
            if ref in starts:
                latest[ref >> 32] = (next(numbers), ref & _CHUNK_MASK)
            number, first_chunk = latest[ref >> 32]
            moved.append(number << 32 | (ref & _CHUNK_MASK) - first_chunk)
        return moved


def _chunks_and_streams(refs: array[int]) -> tuple[array[int], array[int]]:
    """Return the low and the high half of each reference."""
    halves = array("I", refs.tobytes())
    low, high = (0, 1) if sys.byteorder == "little" else (1, 0)
    return halves[low::2], halves[high::2]


def _are_same(one: StreamSchema, other: StreamSchema) -> bool:
    # The same schema in another object. A foreign fingerprint may be used for two schemas: those become two streams.
    return one.fingerprint == other.fingerprint and one.schema.equals(other.schema, check_metadata=True)


def _runs(stream: _Stream) -> list[SealedStream]:
    """Return the stream as streams of the file: one, or several if its dictionaries cannot be unified."""
    known = stream.stream_schema
    chunks = [_only_batch(chunk) for chunk in stream.chunks] if known.has_dictionaries else stream.chunks
    runs = encode_runs(known.schema, chunks) if known.has_dictionaries else [DictionaryRun((), chunks)]
    events = stream_events(stream.slot, known.schema, chunks)
    sealed = []
    start = 0
    for run in runs:
        end = start + len(run.batches)
        sealed.append(
            SealedStream(
                slot=stream.slot,
                fingerprint=known.fingerprint,
                row_count=sum(stream.row_counts[start:end]),
                chunk_count=end - start,
                file=assemble(bytes(known.schema_message), run.dictionaries, run.batches),
                event_column=None if events is None else events.column,
                event_ranges=() if events is None else events.ranges[2 * start : 2 * end],
                item_count=None if events is None else events.item_count,
            )
        )
        start = end
    return sealed


def _only_batch(stream: Any) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(loaded(stream))) as reader:
        return reader.read_next_batch()
