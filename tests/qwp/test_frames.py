"""Data frames become Arrow tables column by column, as `pyarrow.Table.from_pandas` does, except for NaN."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from quiver.errors import UsageError
from quiver.qwp.tables import encode_slices, record_batches
from quiver.qwp.wire.decoded import TYPE_KEY

COLUMNS: dict[str, Any] = {
    "int": [1, 2, 3],
    "bool": [True, False, True],
    "objects": [True, None, False],
    "text": ["a", None, "b"],
    "category": pd.Categorical(["x", None, "y"]),
    "nullable": pd.array([1, None, 3], "Int64"),
    "nullable float": pd.array([1.5, None, 3], "Float64"),
    "string": pd.array(["a", None, "c"], "string"),
    "stamp": pd.to_datetime(["2024-01-01", None, "2025-01-01"]),
    "zone": pd.date_range("2024", periods=3, tz="Europe/Paris"),
    "arrow": pd.Series(["1", "2", None], dtype=pd.ArrowDtype(pa.string())),
    "decimal": [Decimal("1.5"), None, Decimal(2)],
    "date": [datetime.date(2024, 1, 1), None, datetime.date(2025, 1, 1)],
    "bytes": [b"a", None, b"c"],
    "list": [[1.0], [2.0, 3.0], None],
    "byte": np.array([1, 2, 3], "u1"),
    5: [1, 2, 3],
}


def _table(frame: pd.DataFrame) -> Any:
    return pa.Table.from_batches(record_batches(frame))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_is_converted_by_arrow(name):
    """The same type, the same values, the name as a str."""
    frame = pd.DataFrame({name: COLUMNS[name]}, index=["a", "b", "c"])
    wanted = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    assert _table(frame).equals(wanted)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_floats_are_not_converted(dtype):
    """NaN is a missing float on the wire; every second row of a block is read correctly, too."""
    frame = pd.DataFrame(np.array([[1, 9], [2, 9], [np.nan, 9]], dtype), columns=["x", "y"])[::2]
    found = _table(frame)
    assert found["x"].type == pa.from_numpy_dtype(np.dtype(dtype))
    assert found["x"].null_count == 0
    assert str(found["x"].to_pylist()) == "[1.0, nan]"


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (pd.DataFrame({"x": [1, "a"]}), "column x"),
        (pd.DataFrame({"x": [1 + 2j]}), "column x"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "same name"),
    ],
)
def test_a_column_that_arrow_rejects_is_named(frame, reason):
    """Before anything is sent."""
    with pytest.raises(UsageError, match=reason):
        record_batches(frame)


STAMPS = pa.array([1], pa.timestamp("ns"))


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        ({"": [1]}, {}, "needs a name"),
        ({"": STAMPS, "a": [1]}, {}, "needs a name"),
        ({"a.b": [1]}, {}, "invalid characters: '.'"),
        ({"a-b": [1]}, {}, "invalid characters: '-'"),
        ({"a": [1], "A": [2]}, {}, "column A is repeated"),
        ({"abcdefghi": [1]}, {}, "has 9 bytes; the maximum is 8"),
        ({"a": [1]}, {"at": "x"}, "no column x; columns are a"),
        ({"a": [1]}, {"symbols": ["x"]}, "no column x; columns are a"),
        ({"a": ["x"]}, {"symbols": "a"}, "a list of column names, not 'a'"),
        ({"a": ["x"]}, {"symbols": True}, "a list of column names, not True"),
    ],
)
def test_columns_that_a_server_would_refuse_are_refused_locally(columns, options, reason):
    """By the same rules as rows; a column without a name would become the designated timestamp."""
    batch = pa.record_batch(columns)
    keys: dict[str, Any] = {"symbols": (), "at": None} | options
    with pytest.raises(UsageError, match=reason):
        next(encode_slices("t", [batch], message_bytes_max=1000, dialect="inline", name_bytes_max=8, **keys))


def test_the_designated_timestamp_may_have_any_name():
    """Its name is not sent."""
    batch = pa.record_batch({"a name that is too.long": STAMPS, "a": [1]})
    keys: dict[str, Any] = {"symbols": (), "at": "a name that is too.long"}
    (sent,) = encode_slices("t", [batch], message_bytes_max=1000, dialect="inline", name_bytes_max=8, **keys)
    assert sent[1] == 1


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_a_designated_timestamp_out_of_range_is_refused_by_name(unit):
    """As with the values of other columns."""
    batch = pa.record_batch({"when": pa.array([1 << 60], pa.timestamp(unit)), "a": [1]})
    with pytest.raises(UsageError, match="column when: .*out of bounds"):
        next(encode_slices("t", [batch], symbols=(), at="when", message_bytes_max=1000, dialect="inline"))


@pytest.mark.parametrize("said", ["UUID", "LONG256", "BOOLEAN"])
@pytest.mark.parametrize("values", [pa.array(["x"]), pa.array([b"x"]), pa.array([1.5]), pa.array([1])])
def test_a_column_that_contradicts_its_metadata_is_refused(values, said):
    """For example if a decoded column is replaced, but its field is kept."""
    schema = pa.schema([pa.field("a", values.type, metadata={TYPE_KEY: said.encode()})])
    batch = pa.record_batch([values], schema=schema)
    with pytest.raises(UsageError, match=f"column a: {values.type}, but its metadata has the type {said}"):
        next(encode_slices("t", [batch], symbols=(), at=None, message_bytes_max=1000, dialect="inline"))


def test_an_invalid_table_name_is_refused():
    """Also when only messages are made, as in a Spark task."""
    batch = pa.record_batch({"a": [1]})
    with pytest.raises(UsageError, match="invalid characters"):
        next(encode_slices("a/b", [batch], symbols=(), at=None, message_bytes_max=1000, dialect="inline"))
