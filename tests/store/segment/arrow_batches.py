"""
Random Arrow schemas and batches, and their rows without Arrow's own comparison.

`rows` is the oracle of the fidelity tests: plain Python tokens per row, floats and decimals by their bits, read from
offsets and keys. Two arrays with the same type and tokens have the same data, for any dictionaries.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

FIXED = [
    pa.int8(), pa.uint16(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(),
    pa.decimal128(38, 2), pa.decimal256(76, 3), pa.date32(), pa.timestamp("ns", "UTC"), pa.duration("us"),
    pa.month_day_nano_interval(),
]  # fmt: skip
TEXT = [pa.utf8(), pa.large_utf8(), pa.binary(), pa.large_binary(), pa.string_view(), pa.binary_view()]
PLAIN = [*FIXED, *TEXT, pa.bool_(), pa.binary(3)]
KEYS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]

plain_types = st.sampled_from(PLAIN)
key_types = st.sampled_from(KEYS)


def field_of(kind: pa.DataType, name: str = "f", *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable)


@st.composite
def dictionary_types(draw: Any) -> pa.DataType:
    values = draw(
        st.one_of(
            plain_types,
            plain_types.map(lambda kind: pa.struct([field_of(kind, "x"), field_of(pa.int8(), "y")])),
            plain_types.map(pa.list_),
            st.just(pa.null()),
        )
    )
    return pa.dictionary(draw(key_types), values, ordered=draw(st.booleans()))


def nested_over(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    two = st.tuples(inner, st.one_of(plain_types, inner))
    return st.one_of(
        two.map(lambda kinds: pa.struct([field_of(kinds[0], "a"), field_of(kinds[1], "b")])),
        inner.map(lambda kind: pa.list_(field_of(kind, "item"))),
        inner.map(pa.large_list),
        inner.map(lambda kind: pa.list_(kind, 2)),
        inner.map(pa.list_view),
        inner.map(pa.large_list_view),
        inner.map(lambda kind: pa.map_(pa.utf8(), kind)),
        two.map(lambda kinds: pa.sparse_union([field_of(kinds[0], "a"), field_of(kinds[1], "b")])),
        two.map(lambda kinds: pa.dense_union([field_of(kinds[0], "a"), field_of(kinds[1], "b")])),
    )


run_end_types = st.one_of(plain_types, dictionary_types()).map(lambda kind: pa.run_end_encoded(pa.int32(), kind))
dictionary_columns = st.recursive(dictionary_types(), nested_over, max_leaves=3)
nested_columns = st.recursive(st.one_of(plain_types, dictionary_types()), nested_over, max_leaves=4)
any_columns = st.one_of(plain_types, st.just(pa.null()), nested_columns, run_end_types)


def schemas(columns: st.SearchStrategy[pa.DataType], *, columns_min: int = 0) -> st.SearchStrategy[pa.Schema]:
    return st.builds(
        lambda kinds, metadata: pa.schema([field_of(kind, f"c{i}") for i, kind in enumerate(kinds)], metadata=metadata),
        st.lists(columns, min_size=columns_min, max_size=3),
        st.sampled_from([None, {"source": "test"}]),
    )


def random_array(kind: pa.DataType, length: int, rng: random.Random) -> pa.Array:
    """An array of exactly this type with nulls, repeated values, and arbitrary bytes in unused places."""
    types = pa.types
    if types.is_null(kind):
        return pa.nulls(length)
    if types.is_dictionary(kind):
        return _random_dictionary(kind, length, rng)
    if kind in FIXED:
        return _random_fixed(kind, length, rng)
    if types.is_struct(kind):
        children = [random_array(kind.field(i).type, length, rng) for i in range(kind.num_fields)]
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=_mask(length, rng))
    if types.is_union(kind):
        return _random_union(kind, length, rng)
    if types.is_run_end_encoded(kind):
        ends = sorted(rng.sample(range(1, length), min(rng.randrange(3), max(0, length - 1)))) if length > 1 else []
        ends = [*ends, length] if length else []
        return pa.RunEndEncodedArray.from_arrays(
            pa.array(ends, kind.run_end_type), random_array(kind.value_type, len(ends), rng), type=kind
        )
    if kind.num_fields:
        return _random_list(kind, length, rng)
    return _random_variable(kind, length, rng)


def _mask(length: int, rng: random.Random) -> pa.Array:
    return pa.array([rng.random() < 0.2 for _ in range(length)], pa.bool_())


def _random_fixed(kind: pa.DataType, length: int, rng: random.Random) -> pa.Array:
    width = kind.bit_width // 8
    pool = [bytes(width), b"\x01" + bytes(width - 1), bytes(width - 1) + b"\x80", bytes(width - 1) + b"\x01"]
    if kind == pa.float64():
        pool += [struct.pack("<d", float("nan")), struct.pack("<Q", 0x7FF8000000000001)]
    data = b"".join(rng.choice(pool) for _ in range(length))
    validity = pa.array([rng.random() < 0.8 for _ in range(length)], pa.bool_()).buffers()[1] if length else None
    return pa.Array.from_buffers(kind, length, [validity, pa.py_buffer(data)])


def _random_variable(kind: pa.DataType, length: int, rng: random.Random) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array([rng.choice([True, False, None]) for _ in range(length)], kind)
    pool: list[bytes | None] = [b"aaa", b"bbb", b"", b"a longer value than fits into a view", None]
    if kind == pa.binary(3):
        pool = [b"aaa", b"bbb", b"\0\0\0", None]
    if rng.random() < 0.3 and kind != pa.binary(3):
        pool += [str(rng.randrange(1000)).encode() for _ in range(5)]
    binary = kind if not _is_text(kind) else pa.large_binary()
    values = pa.array([rng.choice(pool) for _ in range(length)], binary)
    return values.cast(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _random_list(kind: pa.DataType, length: int, rng: random.Random) -> pa.Array:
    types = pa.types
    mask = _mask(length, rng)
    if types.is_fixed_size_list(kind):
        values = random_array(kind.value_type, length * kind.list_size, rng)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=mask)
    sizes = [rng.randrange(4) for _ in range(length)]
    offsets = [sum(sizes[:i]) for i in range(length + 1)]
    if types.is_map(kind):
        keys = pa.array([f"k{rng.randrange(9)}" for _ in range(offsets[-1])], kind.key_type)
        items = random_array(kind.item_type, offsets[-1], rng)
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, type=kind)
    values = random_array(kind.value_type, offsets[-1], rng)
    wide = types.is_large_list(kind) or types.is_large_list_view(kind)
    places = pa.array(offsets, pa.int64() if wide else pa.int32())
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        order = list(range(length))
        rng.shuffle(order)
        counts = pa.array([sizes[i] for i in order], places.type)
        starts = pa.array([offsets[i] for i in order], places.type)
        maker = pa.LargeListViewArray if wide else pa.ListViewArray
        return maker.from_arrays(starts, counts, values, type=kind, mask=mask)
    maker = pa.LargeListArray if wide else pa.ListArray
    return maker.from_arrays(places, values, type=kind, mask=mask)


def _random_union(kind: pa.DataType, length: int, rng: random.Random) -> pa.Array:
    codes = [rng.randrange(kind.num_fields) for _ in range(length)]
    names = [kind.field(i).name for i in range(kind.num_fields)]
    if kind.mode == "sparse":
        children = [random_array(kind.field(i).type, length, rng) for i in range(kind.num_fields)]
        return pa.UnionArray.from_sparse(pa.array(codes, pa.int8()), children, names)
    counts = [0] * kind.num_fields
    offsets = []
    for code in codes:
        offsets.append(counts[code])
        counts[code] += 1
    children = [random_array(kind.field(i).type, counts[i], rng) for i in range(kind.num_fields)]
    return pa.UnionArray.from_dense(pa.array(codes, pa.int8()), pa.array(offsets, pa.int32()), children, names)


def _random_dictionary(kind: pa.DataType, length: int, rng: random.Random) -> pa.Array:
    size = rng.choice([0, 1, 3, 6])
    values = random_array(kind.value_type, size, rng)
    if size == 6 and pa.types.is_string(kind.value_type) and rng.random() < 0.5:
        # Enough to overflow a short key.
        start = rng.randrange(10_000)
        values = pa.array([f"v{start + i}" for i in range(100)])
    keys = [None if not len(values) or rng.random() < 0.2 else rng.randrange(len(values)) for _ in range(length)]
    indices = pa.array(keys, kind.index_type)
    return pa.DictionaryArray.from_arrays(indices, values, ordered=kind.ordered)


def random_batch(schema: pa.Schema, rng: random.Random, *, rows_max: int = 8) -> pa.RecordBatch:
    """A batch of this schema, often a slice of a larger one."""
    length = rng.randrange(rows_max + 1)
    before = rng.choice([0, 0, 1, 3])
    after = rng.choice([0, 0, 2])
    arrays = [random_array(field.type, before + length + after, rng) for field in schema]
    if not arrays:
        return pa.RecordBatch.from_arrays([], schema=schema)
    return pa.RecordBatch.from_arrays(arrays, schema=schema).slice(before, length)


def rows(array: pa.Array) -> list[Any]:
    """One token per row: None for any kind of null; floats and other fixed-width values by their bits."""
    kind = array.type
    types = pa.types
    if not len(array):
        return []  # also since asking an empty union from IPC for its type codes crashes pyarrow 26
    if isinstance(kind, pa.BaseExtensionType):
        return rows(array.storage)
    if types.is_dictionary(kind):
        values = rows(array.dictionary)
        return [None if key is None else values[key] for key in array.indices.to_pylist()]
    if types.is_struct(kind):
        valid = array.is_valid().to_pylist()
        children = [rows(array.field(i)) for i in range(kind.num_fields)]
        return [tuple(c[i] for c in children) if is_valid else None for i, is_valid in enumerate(valid)]
    if types.is_union(kind):
        # type_codes and offsets of a sliced union are those of the whole, so they are read from the buffers.
        codes = memoryview(array.buffers()[1]).cast("b")[array.offset :][: len(array)]
        children = [rows(array.field(i)) for i in range(kind.num_fields)]
        dense = kind.mode == "dense"
        places = memoryview(array.buffers()[2]).cast("i")[array.offset :][: len(array)] if dense else range(len(codes))
        return [(code, children[code][place]) for code, place in zip(codes, places, strict=True)]
    if types.is_run_end_encoded(kind):
        ends = array.run_ends.to_pylist()
        values = rows(array.values)
        return [values[next(i for i, end in enumerate(ends) if end > row)] for row in _window(array)]
    if types.is_fixed_size_list(kind):
        values = rows(array.values)
        n = kind.list_size
        valid = array.is_valid().to_pylist()
        return [values[at * n : at * n + n] if ok else None for at, ok in zip(_window(array), valid, strict=True)]
    if kind.num_fields:
        return _list_rows(array)
    if kind in FIXED:
        tokens = array.view(pa.binary(kind.bit_width // 8)).to_pylist()
        return list(tokens)
    return array.to_pylist()


def _window(array: pa.Array) -> range:
    return range(array.offset, array.offset + len(array))


def _list_rows(array: pa.Array) -> list[Any]:
    kind = array.type
    valid = array.is_valid().to_pylist()
    if pa.types.is_map(kind):
        values: list[Any] = list(zip(rows(array.keys), rows(array.items), strict=True))
    else:
        values = rows(array.values)
    starts = array.offsets.to_pylist()
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        ends = [start + size for start, size in zip(starts, array.sizes.to_pylist(), strict=True)]
    else:
        ends = starts[1:]
    return [values[starts[i] : ends[i]] if ok else None for i, ok in enumerate(valid)]


def assert_same(actual: pa.RecordBatch, expected: pa.RecordBatch) -> None:
    """Assert the same rows and schema, to the last bit, and that Arrow's own check passes."""
    assert actual.schema.equals(expected.schema, check_metadata=True)
    assert actual.num_rows == expected.num_rows
    actual.validate(full=True)
    for name, ours, theirs in zip(expected.schema.names, actual.columns, expected.columns, strict=True):
        assert rows(ours) == rows(theirs), name
