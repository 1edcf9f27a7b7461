"""Rows are divided into directories as Hive writes them, and readers get the values back."""

from __future__ import annotations

import datetime

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from quiver.errors import SettingsError, UsageError
from quiver.objects.port import check_key
from quiver.otap import view_schema
from quiver.spark.lake.layout import DEFAULT_PARTITION, PartitionBy, encode_value
from quiver.spark.lake.partition_rows import split_rows

NOON = datetime.datetime(2026, 1, 31, 12, 59, 59, tzinfo=datetime.UTC)
VALUES = ["plain", "a b/c", "100%", "..", "ä✓", "=", DEFAULT_PARTITION, "x" * 300, "'", ""]


def value(**given):
    return {field.name: given.get(field.name) for field in view_schema("logs").field("body").type}


def rows(view, *given):
    """Return a batch of *view* with these columns, and null in the others."""
    schema = view_schema(view)
    return pa.RecordBatch.from_pylist([{name: one.get(name) for name in schema.names} for one in given], schema=schema)


def split(keys, table, batch):
    return {directory: part.num_rows for directory, part in split_rows(PartitionBy(tuple(keys)), table, batch)}


def test_days_and_hours_are_those_of_the_event_in_utc():
    """Also before 1970; a row without an event time has the time of its observation, or none."""
    batch = rows(
        "logs",
        {"time": NOON},
        {"time": NOON + datetime.timedelta(seconds=1)},
        {"observed_time": NOON},
        {"time": datetime.datetime(1969, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)},
        {},
    )
    assert split(["day", "hour"], "logs", batch) == {
        "logs/day=2026-01-31/hour=12": 2,
        "logs/day=2026-01-31/hour=13": 1,
        "logs/day=1969-12-31/hour=23": 1,
        f"logs/day={DEFAULT_PARTITION}/hour={DEFAULT_PARTITION}": 1,
    }
    assert split(["day"], "spans", rows("spans", {"start_time": NOON, "end_time": NOON})) == {"spans/day=2026-01-31": 1}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_event_times_of_any_unit(unit):
    """A processor may return another unit."""
    batch = pa.record_batch({"time": pa.array([NOON, None], pa.timestamp(unit, "UTC"))})
    expected = {"t/day=2026-01-31/hour=12": 1, f"t/day={DEFAULT_PARTITION}/hour={DEFAULT_PARTITION}": 1}
    assert split(["day", "hour"], "t", batch) == expected


def test_a_time_that_no_calendar_has_is_no_error():
    """The row is in the default partition."""
    batch = pa.record_batch({"time": pa.array([2**61, -(2**61)], pa.timestamp("s"))})
    found = list(split_rows(PartitionBy(("day",)), "t", batch))
    assert {directory for directory, _ in found} == {f"t/day={DEFAULT_PARTITION}"}
    assert sum(part.num_rows for _, part in found) == 2


def test_attributes_of_the_record_precede_those_of_the_resource():
    """Values of every type become text."""
    batch = rows(
        "logs",
        {"attributes": [("k", value(string_value="own"))], "resource_attributes": [("k", value(string_value="r"))]},
        {"resource_attributes": [("k", value(string_value="r"))]},
        {"attributes": [("k", value(int_value=7))]},
        {"attributes": [("k", value(bool_value=True))]},
        {"attributes": [("other", value(int_value=7))]},
    )
    names = ["own", "r", "7", "true", DEFAULT_PARTITION]
    assert split(["k"], "logs", batch) == {f"logs/k={name}": 1 for name in names}


def test_the_signal_replaces_the_directory_of_the_table():
    """In any position; the order of the keys is that of the directories."""
    batch = rows("logs", {"time": NOON})
    assert split(["day", "signal"], "logs", batch) == {"day=2026-01-31/signal=logs": 1}
    assert split(["signal"], "logs", batch) == {"signal=logs": 1}


def test_slots_and_tables_without_keys_are_not_divided():
    """Their rows have no event time."""
    batch = pa.record_batch({"x": [1, 2]})
    assert split(["day"], "slots/logs", batch) == {"slots/logs": 2}
    assert split([], "logs", batch) == {"logs": 2}
    assert split(["x"], "logs", batch.slice(0, 0)) == {}
    with pytest.raises(UsageError, match="no event time"):
        split(["day"], "errors", batch)
    assert split(["x"], "errors", batch) == {"errors/x=1": 1, "errors/x=2": 1}


def test_rows_of_a_partition_keep_their_order():
    """Every row is in exactly one of them."""
    batch = pa.record_batch({"k": [str(n % 3) for n in range(100)], "n": list(range(100))})
    parts = dict(split_rows(PartitionBy(("k",)), "t", batch))
    assert {name: part["n"].to_pylist() for name, part in parts.items()} == {
        f"t/k={k}": list(range(k, 100, 3)) for k in range(3)
    }


def test_many_keys_do_not_overflow():
    """Eight keys with a thousand values each have more combinations than a number of 64 bits."""
    keys = tuple(f"k{n}" for n in range(8))
    batch = pa.record_batch({key: [str(n) for n in range(1000)] for key in keys})
    assert len(split(keys, "t", batch)) == 1000


@pytest.mark.parametrize("text", VALUES)
def test_every_value_is_part_of_a_key(text):
    """No value leads out of its directory, on a disk and in a bucket."""
    assert check_key(f"logs/service.name={encode_value(text)}/f.parquet")


def test_long_values_stay_different():
    """They are cut, with a digest of all of them."""
    assert encode_value("x" * 300) != encode_value("x" * 301)
    assert encode_value("ä" * 300).startswith("%C3%A4")
    assert encode_value("%" * 90).count("%25") * 3 + 17 == len(encode_value("%" * 90))


def test_readers_get_the_values_back(tmp_path):
    """DuckDB, Polars and pyarrow decode the names."""
    texts = ["plain", "a b/c", "100%", "ä✓", "=", "'", ""]
    batch = pa.record_batch({"k": texts, "n": list(range(len(texts)))})
    for directory, part in split_rows(PartitionBy(("k",)), "t", batch):
        (tmp_path / directory).mkdir(parents=True)
        pq.write_table(pa.Table.from_batches([part.select(["n"])]), tmp_path / directory / "f.parquet")
    expected = [(n, text or None) for n, text in enumerate(texts)]
    pattern = f"{tmp_path}/t/**/*.parquet"
    found = duckdb.sql(f"select n, k from read_parquet('{pattern}', hive_partitioning=true) order by n").fetchall()
    assert found == expected
    assert pl.scan_parquet(pattern, hive_partitioning=True).sort("n").collect().rows() == expected
    table = ds.dataset(str(tmp_path / "t"), format="parquet", partitioning="hive").to_table().sort_by("n")
    assert list(zip(table["n"].to_pylist(), table["k"].to_pylist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (("day", "day"), "repeated"),
        (("hour",), "needs day"),
        (("hour", "day"), "needs day"),
        ((".hidden",), "neither"),
        (("_hidden",), "neither"),
        (("",), "neither"),
        (("a b",), "neither"),
        (("x" * 200,), "neither"),
        ((7,), "neither"),
    ],
)
def test_impossible_keys_are_refused(keys, reason):
    """With the reason."""
    with pytest.raises(SettingsError, match=reason):
        PartitionBy(keys)
