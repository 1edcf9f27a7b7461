"""One slot as a table for any change of its schemas, compared with a simple model."""

from __future__ import annotations

import random
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from query_stores import LOGS, ROOT, filled, opened

from quiver.bundle import Bundle
from quiver.errors import UsageError
from quiver.store.reading.read import read
from quiver.store.segment.type_promotion import common_schema, common_type

WORDS = ["", "a", "bb", "ccc", "ü", "a longer one"]
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]
TEXTS = [
    pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.uint16(), pa.string()), pa.dictionary(pa.int32(), pa.large_string()),
    pa.run_end_encoded(pa.int32(), pa.string()),
]  # fmt: skip
TIMES = [pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")]
LISTS = [pa.list_(pa.int8()), pa.large_list(pa.int64()), pa.list_(pa.uint8(), 2), pa.list_view(pa.int16())]
STRUCTS = [
    pa.struct([("x", pa.int8())]),
    pa.struct([("y", pa.string()), ("x", pa.int32())]),
    pa.struct([("y", pa.dictionary(pa.int8(), pa.string())), ("z", pa.list_(pa.int8()))]),
]
FAMILIES = {
    "number": INTEGERS, "float": [pa.float32(), pa.float64(), pa.int16(), pa.uint8()], "text": TEXTS,
    "time": TIMES, "list": LISTS, "struct": STRUCTS, "flag": [pa.bool_()],
    "money": [pa.decimal128(5, 2), pa.int8(), pa.uint16()], "key": [pa.binary(3), pa.binary(), pa.large_binary()],
}  # fmt: skip
"""By column: types that one type can hold."""


def value(kind: pa.DataType, rng: random.Random) -> object:
    """A value that every type of the column's family can hold, or None."""
    if rng.random() < 0.2:
        return None
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return value(kind.value_type, rng)
    if pa.types.is_struct(kind):
        return {field.name: value(field.type, rng) for field in kind}
    if pa.types.is_decimal(kind):
        return Decimal(rng.randrange(-999, 999)) / 4
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_timestamp(kind):
        return pa.scalar(rng.randrange(10**9), pa.timestamp("s", "UTC")).as_py()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return rng.randrange(100)
    if pa.types.is_fixed_size_list(kind):
        return [rng.randrange(100), rng.randrange(100)]
    if hasattr(kind, "value_type"):
        return [rng.randrange(100) for _ in range(rng.randrange(4))]
    return bytes(rng.choices(b"abc", k=3)) if "binary" in str(kind) else rng.choice(WORDS)


def column(kind: pa.DataType, rows: int, rng: random.Random) -> pa.Array:
    values = [value(kind, rng) for _ in range(rows)]
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_encode(pa.array(values, kind.value_type), kind.run_end_type)
    if pa.types.is_struct(kind):
        fields = [column(field.type, rows, rng) for field in kind]
        mask = pa.array([one is None for one in values], pa.bool_())
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=mask)
    return pa.array(values, kind)


@st.composite
def drifting(draw):
    """Bundles with columns that are added, removed, moved and changed in type; and the ends of segments."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    names = draw(st.lists(st.sampled_from(sorted(FAMILIES)), min_size=1, max_size=5, unique=True))
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        batches = []
        for _ in range(draw(st.integers(0, 4))):
            here = rng.sample(names, rng.randint(1, len(names)))
            rows = rng.choice([0, 1, 3, 7])
            kinds = {name: rng.choice(FAMILIES[name]) for name in here}
            batches.append(pa.record_batch({name: column(kind, rows, rng) for name, kind in kinds.items()}))
        parts.append(batches)
    return parts


def told(one: object) -> object:
    """A value in the form that is common to all of its types."""
    if isinstance(one, dict):
        # A field that a struct did not have is null in the wider one.
        return {name: told(part) for name, part in one.items() if part is not None}
    return [told(part) for part in one] if isinstance(one, list) else one


def rows_of(batches, names):
    """The model: each row is a dict; missing values are None."""
    return [{name: told(row.get(name)) for name in names} for batch in batches for row in batch.to_pylist()]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(drifting(), st.sampled_from(["none", "zstd"]))
def test_any_change_of_schemas_gives_one_table(parts, compression):
    """
    Every row of every bundle is returned in order, in one schema: all columns in order of first appearance, with null
    where a bundle lacks one. Selected columns come from the same table. The interface for other engines returns the
    same.
    """
    store, disk = filled(parts, segment_compression=compression)
    batches = [batch for part in parts for batch in part]
    names = list(dict.fromkeys(name for batch in batches for name in batch.schema.names))
    expected = rows_of(batches, names)
    for scan in (store.scan("logs"), read(ROOT, fs=disk, strict=True).scan(LOGS)):
        assert scan.schema.names == names
        assert scan.schema == common_schema([batch.schema for batch in batches])
        for _ in range(2):
            found = list(scan)
            assert all(batch.schema.equals(scan.schema, check_metadata=True) for batch in found)
            for batch in found:
                batch.validate(full=True)
            assert rows_of(found, names) == expected
        assert scan.to_table() == pa.table(scan)
    chosen = list(reversed(names[:2]))
    assert rows_of(store.scan(LOGS, chosen), chosen) == rows_of(batches, chosen)
    store.close()


@settings(max_examples=60, deadline=None)
@given(drifting())
def test_the_promotion_of_arrow_agrees_where_it_can(parts):
    """`concat_tables` with promotion, for the same bundles without encodings that it cannot promote."""
    batches = [batch for part in parts for batch in part]
    names = {name for batch in batches for name in batch.schema.names} & {"number", "time", "flag", "key"}
    # Arrow also widens uint32 and int64 to int64; its other promotions of decimals and floats lose digits.
    tables = [pa.table({name: batch[name] for name in batch.schema.names if name in names}) for batch in batches]
    tables = [table for table in tables if table.num_columns]
    if not tables:
        return
    store, _ = filled(parts)
    order = [name for name in store.scan(LOGS).schema.names if name in names]
    expected = pa.concat_tables(tables, promote_options="permissive").select(order)
    ours = pa.table({name: store.scan(LOGS, [name]).to_table()[name] for name in order})
    assert ours.schema == expected.schema
    lacking = [batch for batch in batches if not names & set(batch.schema.names)]
    if not any(batch.num_rows for batch in lacking):
        assert ours.to_pylist() == expected.to_pylist()
    store.close()


ANY = [kind for kinds in FAMILIES.values() for kind in kinds] + [
    pa.uint64(), pa.null(), pa.timestamp("us"), pa.date32(), pa.date64(), pa.duration("s"), pa.duration("ns"),
    pa.time32("s"), pa.time64("ns"), pa.map_(pa.string(), pa.int8()), pa.map_(pa.large_string(), pa.int64()),
    pa.decimal256(60, 3), pa.timestamp("ns", "Europe/Vienna"), pa.float16(),
]  # fmt: skip


def joined(kinds):
    try:
        return common_type(kinds, "x")
    except UsageError:
        return None


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(ANY), min_size=1, max_size=5), st.randoms())
def test_the_widest_type_does_not_depend_on_the_order(kinds, rng):
    """For bundles in any order the type is the same, except for the order of a struct's fields."""
    again = rng.sample(kinds, len(kinds))
    one, other = joined(kinds), joined(again)
    if one is not None and pa.types.is_struct(one):
        assert {field.name: field.type for field in one} == {field.name: field.type for field in other}
    else:
        assert one == other
    # The widest type does not change when one of them is added again.
    if one is not None and not pa.types.is_struct(one):
        assert joined([one, *kinds]) == one


@pytest.mark.parametrize(
    ("kinds", "wide"),
    [
        ([pa.int8(), pa.int64()], pa.int64()),
        ([pa.uint8(), pa.int8()], pa.int16()),
        ([pa.uint32(), pa.int32()], pa.int64()),
        ([pa.uint64(), pa.int8()], pa.decimal128(20, 0)),
        ([pa.int64(), pa.float32()], pa.float64()),
        ([pa.float16(), pa.float32()], pa.float32()),
        ([pa.decimal128(5, 2), pa.int8()], pa.decimal128(5, 2)),
        ([pa.decimal128(38, 0), pa.decimal128(5, 4)], pa.decimal256(42, 4)),
        ([pa.decimal256(76, 1), pa.decimal256(76, 2)], pa.decimal256(76, 2)),
        ([pa.decimal256(76, 70), pa.int64()], pa.decimal256(76, 70)),
        ([pa.dictionary(pa.int8(), pa.string())] * 2, pa.dictionary(pa.int8(), pa.string())),
        ([pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int16(), pa.string())], pa.string()),
        ([pa.dictionary(pa.int8(), pa.string()), pa.string(), pa.null()], pa.string()),
        ([pa.dictionary(pa.int8(), pa.int32()), pa.int64()], pa.int64()),
        ([pa.string(), pa.large_string()], pa.large_string()),
        ([pa.string(), pa.binary(4)], pa.binary()),
        ([pa.binary(4), pa.binary(5)], pa.binary()),
        ([pa.timestamp("s", "UTC"), pa.timestamp("ns", "Europe/Vienna")], pa.timestamp("ns", "UTC")),
        ([pa.timestamp("s"), pa.timestamp("us")], pa.timestamp("us")),
        ([pa.date32(), pa.date64()], pa.date64()),
        ([pa.time32("ms"), pa.time64("us")], pa.time64("us")),
        ([pa.list_(pa.int8()), pa.list_(pa.int32(), 3)], pa.list_(pa.int32())),
        ([pa.list_(pa.int8()), pa.large_list(pa.int8())], pa.large_list(pa.int8())),
        ([pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int32())], pa.map_(pa.string(), pa.int32())),
        ([pa.null(), pa.null()], pa.null()),
    ],
    ids=str,
)
def test_the_widest_type(kinds, wide):
    """The table of `store/segment/type_promotion.py`, row by row."""
    assert common_type(kinds, "x") == wide


@pytest.mark.parametrize(
    "kinds",
    [
        [pa.string(), pa.int32()], [pa.bool_(), pa.int8()], [pa.timestamp("us"), pa.timestamp("us", "UTC")],
        [pa.date32(), pa.timestamp("s")], [pa.list_(pa.int8()), pa.struct([("a", pa.int8())])],
        [pa.dictionary(pa.int8(), pa.string()), pa.float64()], [pa.decimal256(76, 0), pa.string()],
        [pa.struct([("a", pa.int8())]), pa.struct([("a", pa.string())])],
    ],
    ids=str,
)  # fmt: skip
def test_types_without_a_common_type_are_reported(kinds):
    """With the column's name and a remedy; a scan without the column works."""
    store, _ = filled([[pa.record_batch({"id": [1], "odd": pa.nulls(1, kind)}) for kind in kinds]])
    with pytest.raises(UsageError, match=r"column odd.* is .* in some bundles and .* in others"):
        store.scan("logs")
    assert store.scan("logs", ["id"]).to_table()["id"].to_pylist() == [1] * len(kinds)
    store.close()


def test_decimals_are_one_column_if_their_values_fit():
    """For example from QWP, without a precision. A value that does not fit is refused, and only with its column."""
    few, many = Decimal("1.5"), Decimal("12345678901234567890.25")
    batches = [
        pa.record_batch({"id": [1], "d": pa.array([few], pa.decimal256(76, 1))}),
        pa.record_batch({"id": [2], "d": pa.array([many], pa.decimal256(76, 2))}),
    ]
    store, _ = filled([batches])
    assert store.scan("logs", ["d"]).to_table()["d"].to_pylist() == [few, many]
    store.close()
    complete = pa.record_batch({"id": [3], "d": pa.array([Decimal(10**75)], pa.decimal256(76, 0))})
    store, _ = filled([[*batches, complete]])
    with pytest.raises(UsageError, match="column d is .* and does not fit"):
        store.scan("logs", ["d"]).to_table()
    assert store.scan("logs", ["id"]).to_table()["id"].to_pylist() == [1, 2, 3]
    store.close()


def test_struct_fields_and_nullability():
    """A field that one struct lacks is null there; a column is nullable if it is in one bundle, or missing in one."""
    first = pa.schema([pa.field("id", pa.int8(), nullable=False), pa.field("s", pa.struct([("a", pa.int8())]))])
    second = pa.schema([
        pa.field("s", pa.struct([("b", pa.string()), ("a", pa.int64())])), pa.field("id", pa.int16(), nullable=False),
        pa.field("more", pa.bool_(), nullable=False),
    ])  # fmt: skip
    store, _ = filled([
        [pa.record_batch([pa.array([1], pa.int8()), pa.array([{"a": 5}], first.field("s").type)], schema=first)],
        [pa.record_batch(
            [pa.array([{"a": 6, "b": "x"}], second.field("s").type), pa.array([2], pa.int16()), pa.array([True])],
            schema=second,
        )],
    ])  # fmt: skip
    scan = store.scan("logs")
    assert scan.schema == pa.schema([
        pa.field("id", pa.int16(), nullable=False),
        pa.field("s", pa.struct([("a", pa.int64()), ("b", pa.string())])),
        pa.field("more", pa.bool_()),
    ])  # fmt: skip
    assert scan.to_table().to_pylist() == [
        {"id": 1, "s": {"a": 5, "b": None}, "more": None}, {"id": 2, "s": {"a": 6, "b": "x"}, "more": True},
    ]  # fmt: skip
    store.close()


def test_metadata_of_a_column_stays_if_all_bundles_agree():
    """Metadata of only some bundles would be wrong for the other rows."""

    def of(metadata):
        return pa.schema([pa.field("id", pa.int8(), metadata=metadata)])

    same = common_schema([of({"encoding": "plain"}), of({"encoding": "plain"})])
    assert same.field("id").metadata == {b"encoding": b"plain"}
    assert common_schema([of({"encoding": "plain"}), of({"encoding": "delta"})]).field("id").metadata is None
    assert common_schema([of({"encoding": "plain"}), of(None)]).field("id").metadata is None


def test_dictionaries_of_one_type_stay_and_contain_every_value():
    """Streams with different words and one key type: no batch lacks a word."""
    kind = pa.dictionary(pa.int8(), pa.string())
    parts = [
        [pa.record_batch({"k": pa.array([f"{part}-{n % 100}" for n in range(200)]).dictionary_encode().cast(kind)})]
        for part in range(4)
    ]
    store, _ = filled(parts)
    scan = store.scan("logs")
    assert scan.schema.field("k").type == kind
    assert [row["k"] for batch in scan for row in batch.to_pylist()] == [
        f"{part}-{n % 100}" for part in range(4) for n in range(200)
    ]
    store.close()


def test_columns_are_checked():
    """Unknown, duplicate and no columns: refused with a reason; no column at all still has its rows."""
    store, _ = filled([[pa.record_batch({"a": [1, 2], "b": ["x", "y"]})], []])
    with pytest.raises(UsageError, match="no column 'c'; there are a, b"):
        store.scan("logs", ["a", "c"])
    with pytest.raises(UsageError, match="requested twice"):
        store.scan("logs", ["a", "a"])
    with pytest.raises(UsageError, match=r"write a list, columns=\['ab'\]"):
        store.scan("logs", "ab")
    assert sum(batch.num_rows for batch in store.scan("logs", [])) == 2
    assert store.scan("logs", ("b", "a")).schema.names == ["b", "a"]
    assert store.scan("logs", ["b"]).schema == pa.schema([("b", pa.string())])
    store.close()


def test_a_slot_without_bundles_is_an_empty_table():
    """Its columns are unknown: the requested ones are null, and there are no rows."""
    store, _, _ = opened()
    assert store.scan("logs").to_table() == pa.table({})
    assert store.scan("logs", ["a"]).to_table() == pa.table({"a": pa.array([], pa.null())})
    store.ingest(Bundle({LOGS: pa.record_batch({"a": pa.array([], pa.int8())})}))
    assert store.scan("logs").to_table() == pa.table({"a": pa.array([], pa.int8())})
    store.close()


def test_two_columns_of_one_name_are_refused():
    """A table could not distinguish them; bundles can."""
    store, _ = filled([[pa.record_batch([pa.array([1]), pa.array([2])], names=["a", "a"])]])
    with pytest.raises(UsageError, match="two columns are named a"):
        store.scan("logs")
    store.close()
