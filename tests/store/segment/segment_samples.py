"""Small bundles of several shapes, and their segments."""

from __future__ import annotations

import random

import pyarrow as pa
from arrow_batches import assert_same, random_batch

from quiver.primitives.disk.file_system import FileSystem
from quiver.settings import Profile
from quiver.store.segment.accumulator import (
    EncodedSlot,
    OpenSegment,
    SealedSegment,
    StreamSchema,
    check_schema,
    self_contained,
)
from quiver.store.segment.reader import SegmentReader
from quiver.store.segment.writer import SegmentInfo, write_segment

WORDS = pa.dictionary(pa.int8(), pa.utf8())
LOGS = pa.schema([pa.field("time", pa.int64(), nullable=False), ("body", pa.utf8())], metadata={"signal": "logs"})
ATTRIBUTES = pa.schema([("key", WORDS), ("values", pa.list_(pa.struct([("word", WORDS), ("number", pa.float64())])))])
NOTHING = pa.schema([])

Bundles = list[dict[int, pa.RecordBatch]]


def stream_schema(schema: pa.Schema, fingerprint: bytes = b"") -> StreamSchema:
    return StreamSchema(
        schema=schema,
        fingerprint=fingerprint.ljust(32, b"-"),
        schema_message=schema.serialize().to_pybytes(),
        has_dictionaries=check_schema(schema),
    )


def sample_bundles(count: int, seed: int = 0) -> Bundles:
    """Bundles with slots 1, 30 and 31 in different combinations, sometimes without any."""
    rng = random.Random(seed)
    bundles: Bundles = []
    for index in range(count):
        bundle = {30: random_batch(LOGS, rng)}
        if index % 2:
            bundle = {1: random_batch(NOTHING, rng), **bundle}
        if index % 3 != 1:
            bundle[31] = random_batch(ATTRIBUTES, rng)
        bundles.append({} if index == 4 else bundle)
    return bundles


def opened(bundles: Bundles, *, streams_max: int = 512) -> OpenSegment:
    """An open segment with *bundles*, bundle i ingested at 1000 + i, with sequence 7 + i, 100 log bytes each."""
    known: dict[int, StreamSchema] = {}
    segment = OpenSegment(streams_max=streams_max)
    for index, bundle in enumerate(bundles):
        slots = []
        for slot, batch in bundle.items():
            if slot not in known or not known[slot].schema.equals(batch.schema, check_metadata=True):
                known[slot] = stream_schema(batch.schema, b"%d" % slot)
            message = self_contained(batch) if known[slot].has_dictionaries else batch.serialize()
            slots.append(EncodedSlot(slot, known[slot], batch.num_rows, message))
        segment.append(
            slots,
            ingested_at_ns=1_000 + index,
            sequence=7 + index,
            wal_start=5_000 + 100 * index,
            wal_end=5_100 + 100 * index,
            nbytes=64,
        )
    return segment


def sealed(bundles: Bundles) -> SealedSegment:
    return opened(bundles).seal()


def write(fs: FileSystem, directory: str, bundles: Bundles, *, seq: int = 3, profile: Profile = "spec") -> SegmentInfo:
    return write_segment(fs, directory, seq, sealed(bundles), profile=profile)


def assert_holds(reader: SegmentReader, bundles: Bundles) -> None:
    """Exactly these bundles, in this order."""
    assert reader.bundle_count == len(bundles)
    for index, expected in enumerate(bundles):
        found = reader.bundle(index)
        assert list(found) == sorted(expected)
        for slot, batch in expected.items():
            assert_same(found[slot], batch)
