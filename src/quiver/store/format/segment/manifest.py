"""
The batch manifest of a segment: which chunks of which streams make up each bundle. Bytes only.

One Arrow IPC file with one row per bundle, in the order of arrival: `bundle_index`, `slot_refs` (a list of
slot, stream and chunk) and, in the `otap` profile, `item_count`. Everything else that Quiver needs is in the schema's
metadata, which other readers ignore:

=============================  ====================================================================
``quiver.wal_position_start``  decimal: where the first bundle starts in the log
``quiver.wal_position_end``    decimal: where the last bundle ends; replay continues there
``quiver.sequence_first``      decimal: sequence number of the first bundle
``quiver.sequence_last``       decimal: sequence number of the last bundle
``quiver.directory_crc32``     decimal: CRC-32 of the stream directory
``quiver.ingested_at_ns``      base64 of zlib of little-endian int64: the first time, then differences
``quiver.event_columns``       the streams with event times: `store/format/segment/event_times.py`
``quiver.event_times``         earliest and latest event time of each chunk
``quiver.item_counts``         how many items the OTLP requests of each stream have
=============================  ====================================================================

With the checksum of the directory, a reader can trust the directory before it has read the whole file for the
segment's own checksum. All data stays in columns: no object is created for a bundle until it is requested.
"""

from __future__ import annotations

import base64
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Literal, NamedTuple

import pyarrow as pa

from quiver.errors import BundleUnavailableError, UsageError
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Damage
from quiver.store.format.names import U64_MAX
from quiver.store.format.segment.event_times import (
    EVENT_TIMES_KEY,
    EventColumn,
    EventStream,
    decode_event_columns,
    decode_event_times,
    decode_item_counts,
    encode_event_streams,
    encode_item_counts,
)
from quiver.store.format.segment.file import BUNDLES_READ_MAX, BUNDLES_WRITTEN_MAX, StreamEntry
from quiver.store.format.segment.ipc_table import (
    ascending,
    column_of,
    decode_table,
    decode_table_head,
    encode_table,
    fixed_width,
    view_of,
)
from quiver.store.format.wal_entry import SLOTS_MAX

__all__ = [
    "INGESTED_AT_KEY",
    "Manifest",
    "ManifestBuilder",
    "ManifestMetadata",
    "ManifestSummary",
    "SlotRef",
    "check_manifest",
    "decode_manifest",
    "decode_manifest_summary",
]

INGESTED_AT_KEY = b"quiver.ingested_at_ns"
_NUMBER_KEYS = (
    b"quiver.wal_position_start",
    b"quiver.wal_position_end",
    b"quiver.sequence_first",
    b"quiver.sequence_last",
    b"quiver.directory_crc32",
)
_WHAT = "batch manifest"

_REF_FIELDS = (
    pa.field("slot_id", pa.uint16(), nullable=False),
    pa.field("stream_id", pa.uint32(), nullable=False),
    pa.field("chunk_index", pa.uint32(), nullable=False),
)
_REF_CODES: tuple[Literal["H", "I"], ...] = ("H", "I", "I")
_REFS = pa.list_(pa.field("item", pa.struct(_REF_FIELDS), nullable=True))
_BUNDLE_INDEX = pa.field("bundle_index", pa.uint32(), nullable=False)
_ITEM_COUNT = pa.field("item_count", pa.uint64(), nullable=False)
_SLOT_REFS = pa.field("slot_refs", _REFS, nullable=False)


class SlotRef(NamedTuple):
    """The place of one slot of a bundle: record batch `chunk_index` of stream `stream_id`."""

    slot: int
    stream_id: int
    chunk_index: int


@dataclass(frozen=True, slots=True)
class ManifestMetadata:
    """
    The part of the log that a segment covers, None if it was never logged; and the checksum of its directory.

    Positions run from the first byte of the first entry to the byte after the last entry. Sequences are inclusive.
    """

    wal_position_start: int | None = None
    wal_position_end: int | None = None
    sequence_first: int | None = None
    sequence_last: int | None = None
    directory_crc32: int | None = None


class ManifestBuilder:
    """Collects the manifest of the open segment. Not thread-safe: the caller holds the store's lock."""

    __slots__ = ("_chunks", "_ends", "_ingested", "_items", "_slots", "_streams", "events", "stream_items")

    def __init__(self) -> None:
        self._slots = array("H")
        self._streams = array("I")
        self._chunks = array("I")
        self._ends = array("i", (0,))
        self._ingested = array("q")
        self._items = array("Q")
        self.events: Sequence[EventStream] = ()
        """For each stream with a column of event times, the time ranges of its chunks."""
        self.stream_items: Mapping[int, int] = {}
        """For each stream of OTLP requests, by its id, how many items they have."""

    @property
    def bundle_count(self) -> int:
        """Number of bundles appended so far."""
        return len(self._ingested)

    def append(
        self,
        slots: Sequence[int],
        streams: Sequence[int],
        chunks: Sequence[int],
        ingested_at_ns: int,
        item_count: int | None = None,
    ) -> None:
        """Add a bundle: its slots, ascending, and for each the stream and the chunk within it."""
        into = self._slots
        # One slot is the common case, and append costs half as much as extend.
        if len(slots) == 1:
            into.append(slots[0])
            self._streams.append(streams[0])
            self._chunks.append(chunks[0])
        else:
            into.extend(slots)
            self._streams.extend(streams)
            self._chunks.extend(chunks)
        self._ends.append(len(into))
        self._ingested.append(ingested_at_ns)
        if item_count is not None:
            self._items.append(item_count)

    def extend(
        self,
        slots: array[int],
        streams: array[int],
        chunks: array[int],
        ends: array[int],
        ingested_at_ns: array[int],
        item_counts: Iterable[int] = (),
    ) -> None:
        """
        Add bundles: the slots of all of them, for each slot the stream and the chunk, and for each bundle where its
        slots end in these.
        """
        start = len(self._slots)
        self._slots += slots
        self._streams += streams
        self._chunks += chunks
        if start:
            self._ends.extend(map(start.__add__, ends))
        else:
            self._ends.frombytes(ends.tobytes())
        self._ingested += ingested_at_ns
        self._items.extend(item_counts)

    def encode(self, metadata: ManifestMetadata, profile: Literal["spec", "otap"]) -> bytes:
        """
        Return the manifest. The `otap` profile adds `item_count` if it is known for every bundle.

        Raises:
            UsageError: there are more bundles than a progress file can track.
        """
        count = self.bundle_count
        if count > BUNDLES_WRITTEN_MAX:
            raise UsageError(f"{count} bundles in one segment; {BUNDLES_WRITTEN_MAX} is the limit")
        refs = [fixed_width(values, field.type) for values, field in zip(self._columns(), _REF_FIELDS, strict=True)]
        structs = pa.StructArray.from_arrays(refs, fields=list(_REF_FIELDS))
        ends = fixed_width(self._ends, pa.int32())
        columns = [
            fixed_width(array("I", range(count)), pa.uint32()),
            pa.ListArray.from_arrays(ends, structs, type=_REFS),
        ]
        fields = [_BUNDLE_INDEX, _SLOT_REFS]
        if profile == "otap" and len(self._items) == count:
            columns.insert(1, fixed_width(self._items, pa.uint64()))
            fields.insert(1, _ITEM_COUNT)
        schema = pa.schema(fields, metadata=self._schema_metadata(metadata))
        return encode_table(pa.record_batch(columns, schema=schema))

    def _columns(self) -> tuple[array[int], array[int], array[int]]:
        return self._slots, self._streams, self._chunks

    def _schema_metadata(self, metadata: ManifestMetadata) -> dict[bytes, bytes]:
        numbers = (
            metadata.wal_position_start,
            metadata.wal_position_end,
            metadata.sequence_first,
            metadata.sequence_last,
            metadata.directory_crc32,
        )
        pairs = zip(_NUMBER_KEYS, numbers, strict=True)
        known = {key: str(number).encode() for key, number in pairs if number is not None}
        known[INGESTED_AT_KEY] = _pack_times(self._ingested)
        return {**known, **encode_event_streams(self.events), **encode_item_counts(self.stream_items)}


class Manifest:
    """
    A decoded manifest. A lookup costs the same for every bundle.

    Attributes:
        bundle_count: number of rows.
        metadata: the part of the log that the segment covers.
        item_counts: items of every bundle, or None if they were not written.
        slot_ids: the slot of every reference, bundle after bundle.
        stream_ids: the stream of every reference.
        chunk_indexes: the chunk of every reference.
        ends: `bundle_count` + 1 places: the references of bundle i are those from ``ends[i]`` to ``ends[i + 1]``.
        bundle_indexes: the column of that name; 0 upwards in a valid file.
        ingested_times_ns: time of ingestion of each bundle, or None if another engine wrote the file.
        event_columns: the streams with event times, and the range of each.
        stream_items: for streams of OTLP requests, by stream id, how many items they have.
    """

    __slots__ = (
        "_event_times",
        "bundle_count",
        "bundle_indexes",
        "chunk_indexes",
        "ends",
        "event_columns",
        "ingested_times_ns",
        "item_counts",
        "metadata",
        "slot_ids",
        "stream_ids",
        "stream_items",
    )

    def __init__(
        self,
        *,
        bundle_indexes: memoryview,
        ends: memoryview,
        refs: tuple[memoryview, memoryview, memoryview],
        item_counts: memoryview | None,
        ingested_times_ns: array[int] | None,
        metadata: ManifestMetadata,
        event_columns: tuple[EventColumn, ...] = (),
        event_times: bytes | None = None,
        stream_items: Mapping[int, int] | None = None,
    ) -> None:
        self.bundle_count = len(bundle_indexes)
        self.bundle_indexes = bundle_indexes
        self.ends = ends
        self.slot_ids, self.stream_ids, self.chunk_indexes = refs
        self.item_counts = item_counts
        self.ingested_times_ns = ingested_times_ns
        self.metadata = metadata
        self.event_columns = event_columns
        self._event_times = event_times
        self.stream_items = stream_items or {}

    @property
    def wal_position_start(self) -> int | None:
        """Log position where the first bundle starts."""
        return self.metadata.wal_position_start

    @property
    def wal_position_end(self) -> int | None:
        """Log position where the last bundle ends."""
        return self.metadata.wal_position_end

    @property
    def sequence_first(self) -> int | None:
        """Sequence number of the first bundle."""
        return self.metadata.sequence_first

    @property
    def sequence_last(self) -> int | None:
        """Sequence number of the last bundle."""
        return self.metadata.sequence_last

    def refs(self, index: int) -> tuple[SlotRef, ...]:
        """
        Return the places of the slots of bundle *index*, in the order of the file.

        Raises:
            BundleUnavailableError: the bundle does not exist.
        """
        self._require(index)
        start, end = self.ends[index], self.ends[index + 1]
        slots, streams, chunks = self.slot_ids, self.stream_ids, self.chunk_indexes
        return tuple([SlotRef(slots[at], streams[at], chunks[at]) for at in range(start, end)])

    def ingested_at_ns(self, index: int) -> int | None:
        """
        Return the time of ingestion of bundle *index* in nanoseconds since the epoch, or None if it is unknown.

        Raises:
            BundleUnavailableError: the bundle does not exist.
        """
        self._require(index)
        return None if self.ingested_times_ns is None else self.ingested_times_ns[index]

    def event_times(self, directory: Iterable[StreamEntry], *, at: int = 0) -> dict[int, array[int]] | Damage:
        """
        Return, by stream id, the earliest and the latest event time of each chunk, nanoseconds since the epoch.

        Streams without a column of event times are omitted; in a chunk without any, the latest time is before the
        earliest.
        """
        chunk_counts = {stream.stream_id: stream.chunk_count for stream in directory}
        return decode_event_times(self._event_times, self.event_columns, chunk_counts, at)

    def _require(self, index: int) -> None:
        if not 0 <= index < self.bundle_count:
            raise BundleUnavailableError(f"bundle {index} is not in a segment of {self.bundle_count} bundles")


def decode_manifest(buffer: Buffer | pa.Buffer, bundle_count: int, *, at: int = 0) -> Manifest | Damage:
    """
    Decode the manifest in *buffer* for *bundle_count* bundles, as the footer gives it; *at* is its file offset.

    The manifest holds views into *buffer*. `check_manifest` compares it with the directory.
    """
    batch = decode_table(buffer, what=_WHAT, at=at)
    if isinstance(batch, Damage):
        return batch
    if batch.num_rows != bundle_count or bundle_count > BUNDLES_READ_MAX:
        return Damage(at, f"the {_WHAT} has {batch.num_rows} bundles, the footer says {bundle_count}")
    indexes = column_of(batch, "bundle_index", pa.uint32(), what=_WHAT, at=at)
    if isinstance(indexes, Damage):
        return indexes
    refs = _decode_refs(batch, at)
    if isinstance(refs, Damage):
        return refs
    items = column_of(batch, "item_count", pa.uint64(), what=_WHAT, at=at)
    raw = batch.schema.metadata or {}
    metadata = _decode_metadata(raw, at)
    if isinstance(metadata, Damage):
        return metadata
    times = _unpack_times(raw.get(INGESTED_AT_KEY), bundle_count, at)
    if isinstance(times, Damage):
        return times
    events = decode_event_columns(raw, at)
    if isinstance(events, Damage):
        return events
    ends, *columns = refs
    slot_ids, stream_ids, chunk_indexes = columns
    return Manifest(
        bundle_indexes=view_of(indexes, "I"),
        ends=ends,
        refs=(slot_ids, stream_ids, chunk_indexes),
        # Optional, and irrelevant for delivery: with an unexpected type the counts are just unknown.
        item_counts=None if isinstance(items, Damage) else view_of(items, "Q"),
        ingested_times_ns=times,
        metadata=metadata,
        event_columns=events,
        event_times=raw.get(EVENT_TIMES_KEY),
        stream_items=decode_item_counts(raw),
    )


class ManifestSummary(NamedTuple):
    """A manifest's data about all bundles, and their times of ingestion (None if another engine wrote it)."""

    metadata: ManifestMetadata
    ingested_times_ns: array[int] | None
    raw: dict[bytes, bytes]

    def event_columns(self, *, at: int = 0) -> tuple[EventColumn, ...] | Damage:
        """Return the streams with event times, and the range of each; *at* is the manifest's file offset."""
        return decode_event_columns(self.raw, at)


def decode_manifest_summary(buffer: Buffer | pa.Buffer, bundle_count: int, *, at: int = 0) -> ManifestSummary | Damage:
    """
    Decode what the manifest states about all bundles, and their times of ingestion, without reading its columns.

    This costs a fraction of `decode_manifest`, which a store with many segments would have to run for each at every
    start.
    """
    head = decode_table_head(buffer, what=_WHAT, at=at)
    if isinstance(head, Damage):
        return head
    raw, row_count = head
    if row_count != bundle_count or bundle_count > BUNDLES_READ_MAX:
        return Damage(at, f"the {_WHAT} has {row_count} bundles, the footer says {bundle_count}")
    metadata = _decode_metadata(raw, at)
    if isinstance(metadata, Damage):
        return metadata
    times = _unpack_times(raw.get(INGESTED_AT_KEY), bundle_count, at)
    return times if isinstance(times, Damage) else ManifestSummary(metadata, times, raw)


def _decode_refs(batch: pa.RecordBatch, at: int) -> tuple[memoryview, ...] | Damage:
    index = batch.schema.get_field_index("slot_refs")
    if index < 0:
        return Damage(at, f"the {_WHAT} has no column slot_refs")
    lists = batch.column(index)
    if not pa.types.is_list(lists.type) or not pa.types.is_struct(lists.type.value_type):
        return Damage(at, f"column slot_refs of the {_WHAT} is not a list of structs")
    structs = lists.values
    if lists.null_count or structs.null_count:
        return Damage(at, f"column slot_refs of the {_WHAT} has nulls")
    children = structs.flatten()
    views = [view_of(lists.offsets, "i")]
    for field, code in zip(_REF_FIELDS, _REF_CODES, strict=True):
        place = structs.type.get_field_index(field.name)
        if place < 0 or children[place].type != field.type or children[place].null_count:
            return Damage(at, f"slot_refs of the {_WHAT} has no valid {field.name} of type {field.type}")
        views.append(view_of(children[place], code))
    return tuple(views)


def _decode_metadata(raw: dict[bytes, bytes], at: int) -> ManifestMetadata | Damage:
    numbers: list[int | None] = []
    for key in _NUMBER_KEYS:
        text = raw.get(key)
        if text is None:
            numbers.append(None)
        elif len(text) > len(str(U64_MAX)) or not text.isdigit() or int(text) > U64_MAX:
            return Damage(at, f"{key.decode()} in the {_WHAT} is not a number")
        else:
            numbers.append(int(text))
    start, end, first, last, directory_crc32 = numbers
    for low, high, name in ((start, end, "wal_position"), (first, last, "sequence")):
        if low is not None and high is not None and low > high:
            return Damage(at, f"{name} in the {_WHAT} runs from {low} to {high}")
    return ManifestMetadata(start, end, first, last, directory_crc32)


def check_manifest(manifest: Manifest, directory: Sequence[StreamEntry], *, at: int = 0) -> Damage | None:
    """
    Return the first contradiction between *manifest* and *directory*, or None.

    After this check, bundle indexes run from 0, every reference names an existing chunk of a stream of the same slot,
    no bundle has a slot twice, and event times belong to existing chunks.
    """
    streams = {stream.stream_id: stream for stream in directory}
    # Most segments have one stream, with its chunks in sequence: comparing bytes is faster than a look at each bundle.
    if manifest.bundle_indexes.tobytes() != ascending(0, manifest.bundle_count):
        return Damage(at, "bundle_index does not count from 0")
    for slot, stream_id in _distinct(manifest.slot_ids, manifest.stream_ids):
        stream = streams.get(stream_id)
        if stream is None or stream.slot != slot or slot >= SLOTS_MAX:
            return Damage(at, f"a bundle has slot {slot} in stream {stream_id}, which is not such a stream")
    chunk_max: dict[int, int] = {}
    if len(streams) == 1 and len(manifest.chunk_indexes):
        (only,) = streams
        chunks = manifest.chunk_indexes.tobytes()
        in_sequence = chunks == ascending(0, len(manifest.chunk_indexes))
        chunk_max[only] = len(manifest.chunk_indexes) - 1 if in_sequence else max(array("I", chunks))
    else:
        for stream_id, chunk in zip(manifest.stream_ids, manifest.chunk_indexes, strict=True):
            if chunk > chunk_max.get(stream_id, -1):
                chunk_max[stream_id] = chunk
    for stream_id, chunk in chunk_max.items():
        chunk_count = streams[stream_id].chunk_count
        if chunk >= chunk_count:
            return Damage(at, f"a bundle has chunk {chunk} of stream {stream_id}, which has {chunk_count}")
    slot_ids, ends = manifest.slot_ids, manifest.ends
    has_one_slot_each = ends.tobytes() == ascending(0, manifest.bundle_count + 1)
    for index in range(0 if has_one_slot_each else manifest.bundle_count):
        start, end = ends[index], ends[index + 1]
        if end - start > 1 and len(set(slot_ids[start:end])) != end - start:
            return Damage(at, f"bundle {index} has a slot twice")
    events = manifest.event_times(directory, at=at)
    return events if isinstance(events, Damage) else None


def _distinct(slot_ids: memoryview, stream_ids: memoryview) -> set[tuple[int, int]]:
    """Return the distinct pairs of slot and stream."""
    count = len(slot_ids)
    if all(column.tobytes() == column[:1].tobytes() * count for column in (slot_ids, stream_ids)):
        return set(zip(slot_ids[:1], stream_ids[:1], strict=True))
    return set(zip(slot_ids, stream_ids, strict=True))


def _pack_times(times: array[int]) -> bytes:
    deltas = times[:1]
    deltas.extend(map(sub, times[1:], times))
    return base64.b64encode(zlib.compress(_little_endian(deltas).tobytes(), 1))


def _unpack_times(text: bytes | None, count: int, at: int) -> array[int] | Damage | None:
    if text is None:
        return None
    problem = Damage(at, f"{INGESTED_AT_KEY.decode()} in the {_WHAT} is not {count} times")
    size = count * 8
    inflater = zlib.decompressobj()
    try:
        # One byte more than allowed, so that a decompression bomb is detected without unpacking it.
        raw = inflater.decompress(base64.b64decode(text, validate=True), size + 1)
        if len(raw) != size or not inflater.eof:
            return problem
        return array("q", accumulate(_little_endian(array("q", raw))))
    except (ValueError, OverflowError, zlib.error):
        return problem


def _little_endian(values: array[int]) -> array[int]:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values
