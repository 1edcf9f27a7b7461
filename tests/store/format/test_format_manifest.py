"""The batch manifest: columns, metadata of ours, laziness and speed."""

import base64
import time
import zlib
from array import array

import format_segments as segments
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import format_feeding as feeding
from quiver.errors import BundleUnavailableError, UsageError
from quiver.primitives.scan import Damage
from quiver.store.format.segment.file import StreamEntry
from quiver.store.format.segment.manifest import (
    INGESTED_AT_KEY,
    Manifest,
    ManifestBuilder,
    ManifestMetadata,
    SlotRef,
    check_manifest,
    decode_manifest,
)

DIRECTORY = tuple(StreamEntry(stream, slot, b"f" * 32, 0, 0, 0, 2) for stream, slot in enumerate((30, 31, 30)))
U64 = st.integers(0, 2**64 - 1)


def encoded(profile: str = "spec", metadata: ManifestMetadata = segments.METADATA) -> bytes:
    return segments.manifest_builder(item_counts=(5, 0, 2**64 - 1)).encode(metadata, profile)


def decoded(data: bytes, bundle_count: int = 3) -> Manifest:
    manifest = decode_manifest(data, bundle_count)
    assert isinstance(manifest, Manifest), manifest
    return manifest


@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_comes_back(profile):
    """Everything that was appended, and what part of the log it covers."""
    manifest = decoded(encoded(profile))
    for index, (slots, streams, chunks) in enumerate(segments.BUNDLES):
        refs = tuple(SlotRef(*ref) for ref in zip(slots, streams, chunks, strict=True))
        assert manifest.refs(index) == refs
        assert manifest.ingested_at_ns(index) == segments.TIMES_NS[index]
    assert manifest.bundle_count == 3
    assert manifest.metadata == segments.METADATA
    assert (manifest.wal_position_start, manifest.wal_position_end) == (1000, 2500)
    assert (manifest.sequence_first, manifest.sequence_last) == (40, 42)
    assert (None if manifest.item_counts is None else list(manifest.item_counts)) == (
        [5, 0, 2**64 - 1] if profile == "otap" else None
    )
    assert check_manifest(manifest, DIRECTORY) is None


def test_columns():
    """`spec` has the document's two columns, `otap` one more between them; one batch; ours is metadata."""
    reader = pa.ipc.open_file(encoded("spec"))
    assert reader.num_record_batches == 1
    assert [(field.name, field.nullable) for field in reader.schema] == [("bundle_index", False), ("slot_refs", False)]
    kind = reader.schema.field("slot_refs").type
    assert (str(reader.schema.field("bundle_index").type), kind.value_field.name) == ("uint32", "item")
    assert kind.value_field.nullable
    assert [(child.name, str(child.type), child.nullable) for child in kind.value_type] == [
        ("slot_id", "uint16", False), ("stream_id", "uint32", False), ("chunk_index", "uint32", False),
    ]  # fmt: skip
    assert reader.read_all().column("slot_refs").to_pylist()[1] == [
        {"slot_id": 30, "stream_id": 0, "chunk_index": 1},
        {"slot_id": 31, "stream_id": 1, "chunk_index": 0},
    ]
    assert reader.schema.metadata[b"quiver.wal_position_end"] == b"2500"
    schema = pa.ipc.open_file(encoded("otap")).schema
    assert schema.names == ["bundle_index", "item_count", "slot_refs"]
    assert (str(schema.field("item_count").type), schema.field("item_count").nullable) == ("uint64", False)


def test_item_counts_are_written_only_when_all_are_known():
    """One bundle of unknown count, and the column is left out."""
    builder = segments.manifest_builder(item_counts=(5, None, 7))
    data = builder.encode(ManifestMetadata(), "otap")
    assert pa.ipc.open_file(data).schema.names == ["bundle_index", "slot_refs"]
    assert decoded(data).metadata == ManifestMetadata()


@st.composite
def bundles(draw):
    slots = sorted(draw(st.sets(st.integers(0, 63), max_size=4)))
    numbers = st.lists(st.integers(0, 2**32 - 1), min_size=len(slots), max_size=len(slots))
    return slots, draw(numbers), draw(numbers), draw(st.integers(0, 2**63 - 1))


@given(st.lists(bundles(), max_size=8), st.tuples(*[st.none() | U64] * 4))
def test_round_trip(rows, numbers):
    """Any references, times and numbers come back; bundles without slots too."""
    numbers = [numbers[0], numbers[1], numbers[2], numbers[3]]
    for low in (0, 2):
        pair = [number for number in numbers[low : low + 2] if number is not None]
        if len(pair) == 2:
            numbers[low : low + 2] = sorted(pair)
    builder = ManifestBuilder()
    for row in rows:
        builder.append(*row)
    assert builder.bundle_count == len(rows)
    manifest = decoded(builder.encode(ManifestMetadata(*numbers), "spec"), len(rows))
    assert manifest.metadata == ManifestMetadata(*numbers)
    for index, (slots, streams, chunks, time_ns) in enumerate(rows):
        assert [tuple(ref) for ref in manifest.refs(index)] == list(zip(slots, streams, chunks, strict=True))
        assert manifest.ingested_at_ns(index) == time_ns


@given(st.lists(bundles(), max_size=8), st.integers(0, 8), st.none() | st.integers(0, 2**64 - 1))
def test_columns_of_many_bundles_are_added_as_single_bundles_are(rows, split, items):
    """`extend` gives the same bytes as `append`, also after bundles that are there already."""
    single, together = ManifestBuilder(), ManifestBuilder()
    for row in rows:
        single.append(*row, items)
    for some in (rows[:split], rows[split:]):
        slots, streams, chunks, ends = array("H"), array("I"), array("I"), array("I")
        for row in some:
            for column, values in zip((slots, streams, chunks), row, strict=False):
                column.extend(values)
            ends.append(len(slots))
        times = array("q", [time_ns for *_, time_ns in some])
        together.extend(slots, streams, chunks, ends, times, () if items is None else [items] * len(some))
    for profile in ("spec", "otap"):
        assert together.encode(segments.METADATA, profile) == single.encode(segments.METADATA, profile)


def test_bundles_out_of_range():
    """A bundle index past the end or below zero does not exist."""
    manifest = decoded(encoded())
    for index in (-1, 3, 2**40):
        with pytest.raises(BundleUnavailableError):
            manifest.refs(index)
        with pytest.raises(BundleUnavailableError):
            manifest.ingested_at_ns(index)


def replaced(**changes: object) -> bytes:
    """The good manifest with some of its metadata or columns replaced; None removes one."""
    table = pa.ipc.open_file(encoded()).read_all()
    metadata = dict(table.schema.metadata)
    columns = {name: table.column(name).combine_chunks() for name in table.schema.names}
    for name, value in changes.items():
        key = f"quiver.{name}".encode()
        into, at = (columns, name) if name in columns or isinstance(value, pa.Array) else (metadata, key)
        if value is None:
            del into[at]
        else:
            into[at] = value
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    batch = batch.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def test_another_engines_manifest():
    """Without our metadata nothing of ours is known; odd or null item counts are not known either."""
    data = replaced(
        wal_position_start=None, wal_position_end=None, sequence_first=None, sequence_last=None, ingested_at_ns=None
    )
    manifest = decoded(data)
    assert manifest.metadata == ManifestMetadata()
    assert (manifest.ingested_at_ns(2), manifest.ingested_times_ns) == (None, None)
    assert decoded(replaced(item_count=pa.array([1, 2, 3], pa.int32()))).item_counts is None
    assert decoded(replaced(item_count=pa.array([1, None, 3], pa.uint64()))).item_counts is None
    assert decoded(replaced(byte_count=pa.array([1, None, 3], pa.uint64()))).bundle_count == 3


def times(values: list[int], *, level: int = 9) -> bytes:
    return base64.b64encode(zlib.compress(array("q", values).tobytes(), level))


REFS = pa.struct([("slot_id", pa.uint16()), ("stream_id", pa.uint32()), ("chunk_index", pa.uint32())])


@pytest.mark.parametrize(
    "changes",
    [
        {"wal_position_start": b"-1"}, {"wal_position_start": b""}, {"wal_position_start": b"1e3"},
        {"wal_position_end": str(2**64).encode()}, {"wal_position_end": b"9" * 5000},
        {"wal_position_end": "\N{ARABIC-INDIC DIGIT THREE}".encode()}, {"wal_position_end": b"999"},
        {"sequence_first": b"43"},
        {"ingested_at_ns": b""}, {"ingested_at_ns": b"???"}, {"ingested_at_ns": b"QUJD"},
        {"ingested_at_ns": times([1, 2])}, {"ingested_at_ns": times([1, 2, 3, 4])},
        {"ingested_at_ns": times([2**63 - 1, 1, 1])}, {"ingested_at_ns": times([0] * 1_000_000)},
        {"ingested_at_ns": times([1, 2, 3])[:-8]},
        {"bundle_index": None}, {"slot_refs": None},
        {"bundle_index": pa.array([0, 1, 2], pa.int32())}, {"bundle_index": pa.array([0, None, 2], pa.uint32())},
        {"slot_refs": pa.array([1, 2, 3])}, {"slot_refs": pa.array([[1], [2], [3]])},
        {"slot_refs": pa.array([None, [], []], pa.list_(REFS))},
        {"slot_refs": pa.array([[None], [], []], pa.list_(REFS))},
        {"slot_refs": pa.array([[{"slot_id": None}], [], []], pa.list_(REFS))},
        {"slot_refs": pa.array([[{"slot_id": 1}], [], []])},
        {"slot_refs": pa.array([[], [], []], pa.large_list(REFS))},
    ],
    ids=lambda changes: str(changes)[:40],
)  # fmt: skip
def test_contradictions(changes):
    """Not a number, not one time per bundle, or a column of the wrong type. Bombs are not unpacked."""
    answer = decode_manifest(replaced(**changes), 3, at=77)
    assert isinstance(answer, Damage)
    assert answer.offset == 77


def test_counts_must_agree():
    """The footer's count is the manifest's, and both are bounded."""
    for count in (0, 2, 4, 10_000_001):
        assert isinstance(decode_manifest(encoded(), count), Damage)


def refs_of(*rows: list[tuple[int, int, int]]) -> Manifest:
    builder = ManifestBuilder()
    for row in rows:
        slots, streams, chunks = ([ref[place] for ref in row] for place in range(3))
        builder.append(slots, streams, chunks, 0)
    return decoded(builder.encode(ManifestMetadata(), "spec"), len(rows))


@pytest.mark.parametrize(
    "row",
    [
        [(30, 3, 0)], [(31, 0, 0)], [(30, 1, 0)], [(30, 0, 2)], [(30, 0, 2**32 - 1)], [(30, 2**32 - 1, 0)],
        [(30, 0, 0), (30, 0, 1)], [(30, 0, 0), (31, 1, 0), (30, 2, 1)],
    ],
)  # fmt: skip
def test_references_are_checked_against_the_directory(row):
    """An unknown stream, a stream of another slot, a chunk that is not there, a slot twice in a bundle."""
    good = [(30, 0, 0), (31, 1, 1)]
    assert check_manifest(refs_of(good, good), DIRECTORY) is None
    answer = check_manifest(refs_of(good, row, good), DIRECTORY, at=5)
    assert isinstance(answer, Damage)
    assert answer.offset == 5


@pytest.mark.parametrize(
    "rows",
    [
        [[(30, 0, 0)], [(30, 0, 3)], [(30, 0, 1)]],  # a chunk that does not exist
        [[(30, 0, 0), (30, 0, 1)], [], [(30, 0, 2)]],  # a slot twice, with as many references as bundles
        [[(30, 0, 0)], [(30, 1, 1)]],
        [[(30, 0, 0)], [(31, 0, 1)]],
    ],
)
def test_references_to_a_single_stream_are_checked(rows):
    directory = (StreamEntry(0, 30, b"", 0, 0, 0, 3),)
    assert check_manifest(refs_of(*([(30, 0, chunk)] for chunk in range(3))), directory) is None
    assert check_manifest(refs_of([(30, 0, 2)], [], [(30, 0, 0)]), directory) is None
    assert isinstance(check_manifest(refs_of(*rows), directory), Damage)


def test_slots_are_bounded():
    """A directory may not lend credence to slot 64."""
    directory = (StreamEntry(0, 64, b"", 0, 0, 0, 1),)
    assert isinstance(check_manifest(refs_of([(64, 0, 0)]), directory), Damage)


def test_bundle_index_counts_from_0():
    """Rows are bundles in order of arrival."""
    manifest = decoded(replaced(bundle_index=pa.array([0, 2, 1], pa.uint32())))
    assert isinstance(check_manifest(manifest, DIRECTORY), Damage)


def test_mistreated():
    """Cut anywhere it is refused; flipped anywhere nothing raises, when asked for the bundles neither."""
    data = encoded("otap")
    for size in range(len(data)):
        assert isinstance(decode_manifest(data[:size], 3), Damage), size
    for _, hurt in feeding.flips(data):
        manifest = decode_manifest(hurt, 3)
        if isinstance(manifest, Manifest):
            check_manifest(manifest, DIRECTORY)
            for index in range(3):
                manifest.refs(index)
                manifest.ingested_at_ns(index)


def test_largest_segment():
    """65,536 bundles are written, well under 100 ms of processor time; one more is refused."""
    builder = ManifestBuilder()
    for index in range(65_536):
        builder.append((30,), (0,), (index,), index * 1000)
    best_s = 10.0
    for _ in range(3):
        start_s = time.process_time()
        data = builder.encode(ManifestMetadata(), "spec")
        best_s = min(best_s, time.process_time() - start_s)
    assert best_s < 0.5
    manifest = decoded(data, 65_536)
    assert manifest.refs(65_535) == (SlotRef(30, 0, 65_535),)
    assert manifest.ingested_at_ns(65_535) == 65_535_000
    directory = (StreamEntry(0, 30, b"", 0, 0, 0, 65_536),)
    assert check_manifest(manifest, directory) is None
    builder.append((30,), (0,), (0,), 0)
    with pytest.raises(UsageError):
        builder.encode(ManifestMetadata(), "spec")


def test_times_are_stored_as_documented():
    """Base64 of zlib of little-endian differences, the first from zero."""
    text = pa.ipc.open_file(encoded()).schema.metadata[INGESTED_AT_KEY]
    deltas = array("q", zlib.decompress(base64.b64decode(text)))
    assert list(deltas) == [segments.TIMES_NS[0], 7, segments.TIMES_NS[2] - segments.TIMES_NS[1]]


@given(st.binary(max_size=200))
def test_any_bytes(data):
    """No bytes make it raise."""
    assert isinstance(decode_manifest(data, 0), Damage)
    assert isinstance(decode_manifest(b"ARROW1\0\0" + data + b"ARROW1", 0), Damage)
