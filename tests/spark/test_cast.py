"""The cast layer converts any stored Arrow type to the schema that Spark checks."""

import datetime as dt
import decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from needed import needs

from quiver.errors import UsageError
from quiver.spark.cast import spark_schema
from quiver.spark.spark_features import TIME_COLUMNS, from_arrow_schema, to_arrow_schema
from quiver.store.segment.cast import cast_to_schema
from quiver.store.segment.type_promotion import common_schema

UTC = dt.UTC

DICTIONARY = pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.uint8()), pa.array(["x", "y"]))
STRUCT = pa.StructArray.from_arrays(
    [DICTIONARY, pa.array([1, 2, 3], pa.uint16())],
    fields=[pa.field("a", DICTIONARY.type), pa.field("b", pa.uint16(), nullable=False)],
)
TRACE_ID = pa.array([b"a" * 16, None, b"b" * 16], pa.binary(16))

CASES = {
    "bool": (pa.array([True, None, False]), pa.bool_(), None),
    "int8": (pa.array([1, None, -3], pa.int8()), pa.int8(), None),
    "uint8": (pa.array([1, None, 255], pa.uint8()), pa.int16(), None),
    "uint16": (pa.array([1, None, 65535], pa.uint16()), pa.int32(), None),
    "uint32": (pa.array([1, None, 2**32 - 1], pa.uint32()), pa.int64(), None),
    "uint64": (
        pa.array([1, None, 2**64 - 1], pa.uint64()),
        pa.decimal128(20, 0),
        [decimal.Decimal(1), None, decimal.Decimal(2**64 - 1)],
    ),
    "float16": (pa.array([1.5, None, 0.0], pa.float16()), pa.float32(), None),
    "decimal256": (pa.array([decimal.Decimal("1.50"), None, None], pa.decimal256(9, 2)), pa.decimal128(9, 2), None),
    "large string": (pa.array(["x", None, "y"], pa.large_string()), pa.string(), None),
    "string view": (pa.array(["x", None, "y"], pa.string_view()), pa.string(), None),
    "binary view": (pa.array([b"x", None, b"y"], pa.binary_view()), pa.binary(), None),
    "trace id": (TRACE_ID, pa.binary(), None),
    "trace id in a dictionary": (TRACE_ID.dictionary_encode(), pa.binary(), None),
    "dictionary": (DICTIONARY, pa.string(), None),
    "run ends": (pc.run_end_encode(pa.array([1, 1, 2])), pa.int64(), [1, 1, 2]),
    "struct": (STRUCT, pa.struct([pa.field("a", pa.string()), pa.field("b", pa.int32())]), None),
    "dictionary of structs": (
        pa.DictionaryArray.from_arrays(pa.array([2, None, 0]), STRUCT),
        pa.struct([pa.field("a", pa.string()), pa.field("b", pa.int32())]),
        [{"a": "y", "b": 3}, None, {"a": "x", "b": 1}],
    ),
    "list of dictionaries": (
        pa.ListArray.from_arrays(pa.array([0, 1, 1, 3], pa.int32()), DICTIONARY),
        pa.list_(pa.field("element", pa.string())),
        None,
    ),
    "large list": (pa.array([[1], None, []], pa.large_list(pa.uint8())), pa.list_(pa.int16()), None),
    "fixed list": (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.uint8(), 2)), pa.list_(pa.int16()), None),
    "list view": (pa.array([[1, 2], None, [3]], pa.list_view(pa.uint8())), pa.list_(pa.int16()), None),
    "map": (pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.uint8())), pa.map_(pa.string(), pa.int16()), None),
    "ns with zone": (
        pa.array([1_234_567, None, 0], pa.timestamp("ns", "Europe/Berlin")),
        pa.timestamp("us", "UTC"),
        [dt.datetime(1970, 1, 1, 0, 0, 0, 1234, UTC), None, dt.datetime(1970, 1, 1, tzinfo=UTC)],
    ),
    "s without zone": (pa.array([1, None, 0], pa.timestamp("s")), pa.timestamp("us"), None),
    "duration": (
        pa.array([1_500, None, 0], pa.duration("ns")),
        pa.duration("us"),
        [dt.timedelta(microseconds=1), None, dt.timedelta(0)],
    ),
    "time": (pa.array([1, None, 0], pa.time32("s")), pa.time64("ns"), None),
    "date64": (pa.array([86_400_000, None, 0], pa.date64()), pa.date32(), None),
    "null": (pa.nulls(3), pa.null(), None),
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=needs(TIME_COLUMNS)) if case == "time" else case for case in CASES]
)
@pytest.mark.parametrize("part", [slice(0, 3), slice(1, 3), slice(0, 0)])
def test_every_stored_type_is_converted(case, part):
    """Values are kept, and the schema is the one that Spark derives from the declared one, also for slices."""
    array, kind, expected = CASES[case]
    batch = pa.record_batch({"c": array})
    target = spark_schema(batch.schema)
    assert target.field("c").type.equals(kind)
    declared = to_arrow_schema(from_arrow_schema(target))
    out = cast_to_schema(batch.slice(part.start, part.stop - part.start), declared)
    assert declared.equals(out.schema)
    out.validate(full=True)
    assert out["c"].to_pylist() == (array.to_pylist() if expected is None else expected)[part]


def test_nanoseconds_can_be_exact():
    """As bigint on request; otherwise microseconds, truncated."""
    batch = pa.record_batch({"t": pa.array([1_234_567], pa.timestamp("ns"))})
    exact = spark_schema(batch.schema, nanos_as_bigint=True)
    assert cast_to_schema(batch, exact)["t"].to_pylist() == [1_234_567]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
    ],
)
def test_a_type_without_a_spark_type_is_refused_by_name(array):
    """The column is named, and can be excluded."""
    batch = pa.record_batch({"odd": array, "fine": pa.array([1])})
    with pytest.raises(UsageError, match="column odd is"):
        spark_schema(batch.schema)
    assert spark_schema(batch.schema, columns=["fine"]).names == ["fine"]


def test_two_columns_with_the_same_name_are_refused():
    """Spark could not distinguish them."""
    with pytest.raises(UsageError, match="two columns are named a"):
        spark_schema(pa.schema([("a", pa.int64()), ("a", pa.int64())]))


def test_columns_have_the_requested_order():
    """Missing ones are null, others are removed."""
    batch = pa.record_batch({"a": pa.array([1]), "b": pa.array([2])})
    target = pa.schema([("c", pa.string()), ("b", pa.int64())])
    assert cast_to_schema(batch, target).to_pylist() == [{"c": None, "b": 2}]


def test_a_frame_without_columns_keeps_its_rows():
    """So that it can be counted."""
    assert cast_to_schema(pa.record_batch({"a": pa.array([1, 2])}), pa.schema([])).num_rows == 2


def test_a_value_that_does_not_fit_is_an_error():
    """It is neither wrapped nor truncated."""
    batch = pa.record_batch({"a": pa.array([300])})
    with pytest.raises(UsageError, match="column a is int64 and does not fit int8"):
        cast_to_schema(batch, pa.schema([("a", pa.int8())]))
    with pytest.raises(UsageError, match="declared not null"):
        cast_to_schema(
            pa.record_batch({"a": pa.array([None], pa.int64())}),
            pa.schema([pa.field("a", pa.int64(), nullable=False)]),
        )


MERGES = [
    (pa.int32(), pa.int64(), pa.int64()),
    (pa.int8(), pa.float32(), pa.float64()),
    (pa.uint64(), pa.int64(), pa.decimal128(20, 0)),
    (pa.dictionary(pa.int8(), pa.string()), pa.string(), pa.string()),
    (pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.string()), pa.string()),
    (pa.string(), pa.string_view(), pa.string()),
    (pa.timestamp("s", "UTC"), pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("us", "UTC")),
    (pa.list_(pa.uint8()), pa.list_(pa.int64(), 2), pa.list_(pa.field("element", pa.int64()))),
    (
        pa.struct([("a", pa.int32())]),
        pa.struct([("b", pa.dictionary(pa.int8(), pa.string())), ("a", pa.int64())]),
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
    ),
]


@pytest.mark.parametrize(("left", "right", "both"), MERGES)
def test_different_segments_share_one_schema(left, right, both):
    """Each column is wide enough for all, in a type that Spark has, and both batches can be cast to it."""
    merged = spark_schema(common_schema([pa.schema([("c", left), ("d", pa.int64())]), pa.schema([("c", right)])]))
    assert merged == pa.schema([("c", both), ("d", pa.int64())])
    for kind in (left, right):
        assert cast_to_schema(pa.record_batch({"c": pa.nulls(1, kind)}), merged).schema == merged
