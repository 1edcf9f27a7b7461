"""Delta tables: readable by other programs, and next to other writers."""

import contextlib
import datetime

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from table_exports import export

from quiver.errors import UsageError
from quiver.spark.processors.settings import SqlSettings
from quiver.spark.table_formats.settings import DeltaSettings

pytestmark = pytest.mark.spark


def numbers(path):
    return sorted(DeltaTable(path).to_pyarrow_table(columns=["time_unix_nano"])[0].to_pylist())


def test_each_signal_is_a_table_that_other_programs_read(spark, store, tmp_path):
    """With delta-rs, DuckDB and Polars; the files of the log have statistics."""
    store.otlp(6)
    settings = DeltaSettings(path=str(tmp_path / "lake"))
    export(spark, store, settings)
    logs = str(tmp_path / "lake" / "logs")
    assert numbers(logs) == [*range(5), *range(15, 20)]
    assert pl.read_delta(str(tmp_path / "lake" / "spans")).height == 10
    metrics = DeltaTable(str(tmp_path / "lake" / "metrics")).to_pyarrow_dataset()
    assert duckdb.from_arrow(metrics).sum("int_value").fetchall() == [(sum([*range(10, 15), *range(25, 30)]),)]
    adds = pa.table(DeltaTable(logs).get_add_actions(flatten=True)).to_pylist()
    assert min(one["min.time_unix_nano"] for one in adds) == 0
    assert max(one["max.time_unix_nano"] for one in adds) == 19
    assert sum(one["num_records"] for one in adds) == 10


def test_another_writer_may_commit_at_any_moment(spark, store, tmp_path, monkeypatch):
    """The commit is checked again and repeated; if the other writer committed the same batch, it is not."""
    store.otlp(1)
    lake = tmp_path / "lake"
    settings = DeltaSettings(path=str(lake))
    real = DeltaTable.create_write_transaction
    others = []

    def overtaken(table, actions, mode, schema, **options):
        if len(others) < 2:
            other = DeltaTable(table.table_uri)
            others.append(other)
            if len(others) == 2:
                real(other, actions, mode, schema, **options)  # a driver that was thought dead
            else:
                other.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
        real(table, actions, mode, schema, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", overtaken)
    export(spark, store, settings)
    assert len(others) == 2
    assert numbers(str(lake / "logs")) == [0, 1, 2, 3, 4]
    assert DeltaTable(str(lake / "logs")).version() == 2


def test_the_day_of_a_time_is_a_column(spark, store, tmp_path):
    """Readers skip the files of other days."""
    store.otlp(1)
    query = "SELECT timestamp_seconds(time_unix_nano * 40000) AS at, time_unix_nano AS n FROM logs"
    settings = DeltaSettings(path=str(tmp_path), partition_by=("day(at)",))
    export(spark, store, settings, [SqlSettings(query, output="t")])
    table = DeltaTable(str(tmp_path / "t"))
    second = [("at_day", "=", datetime.date(1970, 1, 2))]
    assert sorted(table.to_pyarrow_table(columns=["n"], filters=second)["n"].to_pylist()) == [3, 4]
    days = pa.table(table.get_add_actions(flatten=True))["partition.at_day"].to_pylist()
    assert sorted(days) == [datetime.date(1970, 1, 1), datetime.date(1970, 1, 2)]
    assert table.schema().to_json().count('"at_day"') == 1


def test_a_type_is_not_widened(spark, store, tmp_path):
    """The files that exist have the narrower type."""
    settings = DeltaSettings(path=str(tmp_path))
    for number, query in enumerate(("SELECT 1 AS a FROM logs", "SELECT bigint(1) AS a FROM logs")):
        store.otlp(1)
        with contextlib.nullcontext() if number == 0 else pytest.raises(UsageError, match="never changes"):
            export(spark, store, settings, [SqlSettings(query, output="t")], number=number)
