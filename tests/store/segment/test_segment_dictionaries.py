"""The streams of a segment return the ingested batches: same types, same values per row."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from arrow_batches import any_columns, assert_same, dictionary_columns, key_types, random_batch, schemas
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiver.errors import InvalidBundleError
from quiver.store.segment import dictionaries
from quiver.store.segment.accumulator import self_contained
from quiver.store.segment.dictionaries import DictionaryRun, encode_runs
from quiver.store.segment.ipc_file import assemble
from quiver.store.segment.schemas import check_schema

seeds = st.integers(0, 2**32)
quick = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def read_back(schema: pa.Schema, batches: list[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], int]:
    """The batches after a round trip through the required number of IPC files, and that number."""
    message = schema.serialize().to_pybytes()
    found: list[pa.RecordBatch] = []
    if check_schema(schema):
        runs = encode_runs(schema, batches)
    else:
        runs = [DictionaryRun((), [batch.serialize() for batch in batches])]
    for run in runs:
        file = assemble(message, run.dictionaries, run.batches)
        data = b"".join(file.parts())
        assert len(data) == file.nbytes
        reader = pa.ipc.open_file(data)
        found += [reader.get_batch(i) for i in range(reader.num_record_batches)]
    return found, len(runs)


def check(schema: pa.Schema, batches: list[pa.RecordBatch]) -> int:
    found, runs = read_back(schema, batches)
    assert len(found) == len(batches)
    for actual, expected in zip(found, batches, strict=True):
        assert_same(actual, expected)
    return runs


def keyed(kind: pa.DataType, values: Any, keys: list[int | None], *, ordered: bool = False) -> pa.RecordBatch:
    values = values if isinstance(values, pa.Array) else pa.array(values)
    column = pa.DictionaryArray.from_arrays(pa.array(keys, kind), values, ordered=ordered)
    return pa.record_batch([column], names=["d"])


def check_all(*batches: pa.RecordBatch) -> int:
    return check(batches[0].schema, list(batches))


@quick
@given(schemas(dictionary_columns, columns_min=1), seeds, st.integers(1, 6))
def test_dictionaries_of_any_kind_at_any_depth_come_back(schema: pa.Schema, seed: int, count: int) -> None:
    rng = random.Random(seed)
    check(schema, [random_batch(schema, rng) for _ in range(count)])


@quick
@given(schemas(any_columns), seeds, st.integers(1, 3))
def test_any_accepted_schema_is_preserved(schema: pa.Schema, seed: int, count: int) -> None:
    rng = random.Random(seed)
    check(schema, [random_batch(schema, rng) for _ in range(count)])


@given(key_types, st.lists(st.lists(st.integers(0, 300), max_size=130), min_size=1, max_size=8))
@quick
def test_a_dictionary_that_outgrows_its_keys_starts_another_run(kind: pa.DataType, words: list[list[int]]) -> None:
    batches = [
        keyed(kind, pa.array([str(w) for w in some], pa.utf8()), [*range(min(len(some), 127)), None]) for some in words
    ]
    runs = check_all(*batches)
    if kind.bit_width > 8:
        assert runs == 1


@pytest.mark.parametrize(("kind", "capacity"), [(pa.int8(), 128), (pa.uint8(), 256), (pa.int16(), 32768)])
def test_a_dictionary_may_fill_its_keys_to_the_last_one(kind: pa.DataType, capacity: int) -> None:
    half = capacity // 2
    first = keyed(kind, list(range(half)), [0, half - 1])
    second = keyed(kind, list(range(half, capacity)), [0, half - 1])
    more = keyed(kind, [capacity], [0])
    assert check_all(first, second) == 1
    assert check_all(first, second, first, second) == 1
    assert check_all(first, second, more) == 2
    assert check_all(first, second, more, first, second) == 3


def test_a_dictionary_longer_than_its_key_type_is_not_changed() -> None:
    long = keyed(pa.int8(), [str(i) for i in range(300)], [0, 127, None])
    short = keyed(pa.int8(), ["a"], [0])
    assert check_all(long, short, long, short) == 4


def test_nulls_in_keys_and_nulls_in_values_both_stay_nulls() -> None:
    check_all(keyed(pa.int8(), ["a", None], [0, 1, None]), keyed(pa.int8(), [None, "b", None], [0, 1, 2, None]))


def test_repeated_and_unused_values_are_accepted() -> None:
    check_all(keyed(pa.int8(), ["a", "b", "a", "c"], [2, 0, 1]), keyed(pa.int8(), ["c", "c", "x"], [1, 0]))


def test_floats_keep_their_bits() -> None:
    odd = pa.Array.from_buffers(
        pa.float64(), 2, [None, pa.py_buffer(bytes.fromhex("010000000000f87f000000000000f87f"))]
    )
    assert (
        check_all(keyed(pa.int8(), odd, [0, 1]), keyed(pa.int8(), [0.0, -0.0], [1, 0]), keyed(pa.int8(), [-0.0], [0]))
        == 1
    )


def test_an_ordered_dictionary_keeps_its_order() -> None:
    low_high = keyed(pa.int8(), ["low", "high"], [0, 1], ordered=True)
    high_low = keyed(pa.int8(), ["high", "low"], [0, 1], ordered=True)
    batches = [low_high, low_high, high_low]
    found, runs = read_back(low_high.schema, batches)
    assert runs == 2
    assert [batch.column(0).dictionary.to_pylist() for batch in found] == [
        ["low", "high"],
        ["low", "high"],
        ["high", "low"],
    ]
    assert check_all(*batches) == 2


def test_batches_of_no_rows_and_dictionaries_of_no_values() -> None:
    empty = keyed(pa.int8(), pa.array([], pa.utf8()), [])
    nulls = keyed(pa.int8(), pa.array([], pa.utf8()), [None, None])
    full = keyed(pa.int8(), ["a"], [0])
    assert check_all(empty, nulls, full, empty, nulls) == 1
    assert check_all(full, nulls, empty) == 1


def test_a_batch_whose_keys_stay_is_not_copied() -> None:
    batch = keyed(pa.int8(), ["a", "b"], [0, 1])
    (run,) = encode_runs(batch.schema, [batch, batch.slice(1), keyed(pa.int8(), ["a", "b", "c"], [2])])
    assert all(isinstance(message, pa.Buffer) for message in run.batches)
    (run,) = encode_runs(batch.schema, [batch, keyed(pa.int8(), ["b"], [0])])
    assert [type(message) for message in run.batches] == [pa.Buffer, bytearray]


def test_invalid_keys_below_a_null_parent_are_ignored() -> None:
    def batch(words: list[str], stray: int) -> pa.RecordBatch:
        keys = pa.Array.from_buffers(pa.int8(), 2, [None, pa.py_buffer(bytes([0, stray]))])
        child = pa.DictionaryArray.from_arrays(keys, pa.array(words), safe=False)
        return pa.record_batch(
            [pa.StructArray.from_arrays([child], names=["c"], mask=pa.array([False, True]))], names=["s"]
        )

    batches = [batch(["a"], 0), batch(["b"], 99)]
    found, runs = read_back(batches[0].schema, batches)
    assert runs == 2
    assert [one.column(0).to_pylist() for one in found] == [[{"c": "a"}, None], [{"c": "b"}, None]]


def test_dictionaries_inside_the_values_of_dictionaries() -> None:
    def batch(words: list[str]) -> pa.RecordBatch:
        values = pa.StructArray.from_arrays([pa.array(words).dictionary_encode()], names=["k"])
        return pa.record_batch([pa.DictionaryArray.from_arrays(pa.array([1, 0, 1], pa.int8()), values)], names=["d"])

    assert check_all(batch(["a", "b"]), batch(["b", "c"]), batch(["a", "b"])) == 3


def test_an_extension_around_a_dictionary() -> None:
    kind = pa.opaque(pa.dictionary(pa.int8(), pa.utf8()), "words", "test")

    def batch(words: list[str]) -> pa.RecordBatch:
        storage = pa.array(words).dictionary_encode().cast(kind.storage_type)
        return pa.record_batch([pa.ExtensionArray.from_storage(kind, storage)], names=["e"])

    assert check_all(batch(["a", "b"]), batch(["b", "c"])) == 1


def test_fields_that_must_not_be_null_and_metadata_are_kept() -> None:
    words = pa.field("w", pa.dictionary(pa.uint8(), pa.utf8()), nullable=False, metadata={"unit": "word"})
    inside = pa.field("l", pa.list_(pa.field("element", words.type, nullable=False, metadata={"a": "b"})))
    schema = pa.schema([words, inside], metadata={"top": "level"})

    def batch(some: list[str]) -> pa.RecordBatch:
        array = pa.array(some).dictionary_encode().cast(words.type)
        lists = pa.ListArray.from_arrays(pa.array([0, 1, len(some)], pa.int32()), array, type=inside.type)
        return pa.record_batch([array.slice(0, 2), lists], schema=schema)

    assert check(schema, [batch(["a", "b", "c"]), batch(["c", "d", "a"])]) == 1


def test_many_small_dictionaries_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dictionary is unified in groups, so no batch causes all earlier ones to be processed again."""
    looked_at = 0
    plain = dictionaries.pc.dictionary_encode

    def counting(values: pa.Array, **options: Any) -> pa.Array:
        nonlocal looked_at
        looked_at += len(values)
        return plain(values, **options)

    monkeypatch.setattr(dictionaries.pc, "dictionary_encode", counting)
    growing = [keyed(pa.uint16(), [f"{i}-{j}" for j in range(20)], [19, 0]) for i in range(1_000)]
    assert len(encode_runs(growing[0].schema, growing)) == 1
    assert looked_at < 4 * 20 * 1_000
    looked_at = 0
    splitting = [keyed(pa.uint8(), [f"{i}-{j}" for j in range(100)], [99, 0]) for i in range(300)]
    assert len(encode_runs(splitting[0].schema, splitting)) == 150
    assert looked_at < 12 * 100 * 300


class _Unregistered(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(pa.int32(), "test.unregistered")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> _Unregistered:
        return cls()


def test_an_unregistered_extension_type_is_accepted() -> None:
    assert check_schema(pa.schema([("e", _Unregistered())])) is False


def _deep() -> pa.DataType:
    kind = pa.int8()
    for _ in range(70):
        kind = pa.list_(kind)
    return kind


@pytest.mark.parametrize(
    "kind",
    [
        pa.dictionary(pa.int8(), pa.dictionary(pa.int8(), pa.utf8())),
        pa.list_(pa.struct([("d", pa.dictionary(pa.int8(), pa.dictionary(pa.int8(), pa.utf8())))])),
        pa.dictionary(pa.int8(), pa.uuid()),
        pa.dictionary(pa.int8(), pa.list_(pa.dictionary(pa.int8(), pa.uuid()))),
        _deep(),
    ],
    ids=["dictionary of dictionary", "nested", "dictionary of extension", "extension within values", "too deep"],
)
def test_types_that_arrow_ipc_cannot_store_are_refused_at_ingest(kind: pa.DataType) -> None:
    with pytest.raises(InvalidBundleError, match="Arrow IPC"):
        check_schema(pa.schema([("c", kind)]))


def test_check_schema_returns_whether_there_is_a_dictionary() -> None:
    words = pa.dictionary(pa.int8(), pa.utf8())
    assert check_schema(pa.schema([])) is False
    assert check_schema(pa.schema([("a", pa.map_(pa.utf8(), pa.list_(pa.int8())))])) is False
    assert check_schema(pa.schema([("a", pa.map_(pa.utf8(), pa.list_(words)))])) is True
    assert check_schema(pa.schema([("a", pa.run_end_encoded(pa.int32(), words))])) is True


@quick
@given(schemas(dictionary_columns, columns_min=1), seeds, st.integers(0, 7))
def test_streams_at_any_alignment_in_the_log_are_read(schema: pa.Schema, seed: int, shift: int) -> None:
    """The open segment refers to log entries, which have no alignment."""
    rng = random.Random(seed)
    batches = [random_batch(schema, rng) for _ in range(3)]
    moved = []
    for batch in batches:
        payload = self_contained(batch)
        region = bytearray(shift + payload.size)
        region[shift:] = payload
        with pa.ipc.open_stream(pa.py_buffer(memoryview(region)[shift:])) as reader:
            moved.append(reader.read_next_batch())
    found, _ = read_back(schema, moved)
    for actual, expected in zip(found, batches, strict=True):
        assert_same(actual, expected)
