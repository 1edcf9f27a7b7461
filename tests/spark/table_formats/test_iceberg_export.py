"""Iceberg tables: readable by other programs, next to other writers, and durable on a disk."""

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Transaction
from table_exports import QUERY, export

from quiver.errors import SettingsError
from quiver.spark.processors.settings import SqlSettings
from quiver.spark.table_formats import iceberg_io
from quiver.spark.table_formats.iceberg import batch_property
from quiver.spark.table_formats.settings import IcebergSettings

pytestmark = pytest.mark.spark


def opened(lake, table="logs"):
    catalog = load_catalog("quiver", type="sql", uri=f"sqlite:///{lake}/_catalog.db")
    return catalog.load_table(f"telemetry.{table}")


def test_each_signal_is_a_table_that_other_programs_read(spark, store, tmp_path, monkeypatch):
    """With pyiceberg, Polars and DuckDB; the files have the ids of their columns, and bounds."""
    store.otlp(6)
    settings = IcebergSettings(path=str(tmp_path), partition_by=("hour(time)",))
    export(spark, store, settings)
    logs = opened(tmp_path)
    assert sorted(logs.scan().to_arrow()["time_unix_nano"].to_pylist()) == [*range(5), *range(15, 20)]
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # its own planner is another package
    assert pl.scan_iceberg(opened(tmp_path, "spans")).collect().height == 10
    metrics = opened(tmp_path, "metrics").scan(selected_fields=("int_value",)).to_arrow_batch_reader()
    assert duckdb.from_arrow(metrics).sum("int_value").fetchall() == [(sum([*range(10, 15), *range(25, 30)]),)]
    assert list(logs.scan(row_filter="time_unix_nano > 100").plan_files()) == []
    assert list(logs.scan(row_filter="time > '1971-01-01T00:00:00+00:00'").plan_files()) == []
    (path, *_) = (tmp_path / "logs" / "data").glob("*.parquet")
    assert pq.read_schema(path).field("attributes").metadata[b"PARQUET:field_id"]
    assert logs.current_snapshot().summary["quiver.batch"] == "0"
    assert logs.properties[batch_property(QUERY)] == "0"


def test_another_writer_may_commit_at_any_moment(spark, store, tmp_path, monkeypatch):
    """The commit is checked again and repeated; if the other writer committed the same batch, it is not."""
    store.otlp(1)
    real = Transaction.commit_transaction
    others = []

    def overtaken(transaction):
        if len(others) < 2:
            others.append(opened(tmp_path))
            with others[-1].transaction() as other:
                other.set_properties({"note": str(len(others))})
                with other.update_snapshot().fast_append():
                    pass
                if len(others) == 2:  # a driver that was thought dead
                    other.set_properties({batch_property(QUERY): "0"})
        return real(transaction)

    monkeypatch.setattr(Transaction, "commit_transaction", overtaken)
    export(spark, store, IcebergSettings(path=str(tmp_path)))
    assert opened(tmp_path).scan().to_arrow().num_rows == 0


def test_a_type_is_widened(spark, store, tmp_path):
    """Readers promote the values of older files."""
    settings = IcebergSettings(path=str(tmp_path))
    for number, query in enumerate(("SELECT 1 AS a FROM logs", "SELECT bigint(5000000000) AS a FROM logs")):
        store.otlp(1, rows=1)
        export(spark, store, settings, [SqlSettings(query, output="t")], number=number)
    assert sorted(opened(tmp_path, "t").scan().to_arrow()["a"].to_pylist()) == [1, 5_000_000_000]


def test_metadata_is_synced_before_the_catalog_names_it(spark, store, tmp_path, monkeypatch):
    """The library writes it without a sync."""
    store.otlp(1)
    synced = []
    real = iceberg_io.synced_bytes
    monkeypatch.setattr(iceberg_io, "synced_bytes", lambda path: (synced.append(path), real(path))[1])
    export(spark, store, IcebergSettings(path=str(tmp_path)))
    metadata = {str(path) for path in (tmp_path / "logs" / "metadata").iterdir()}
    assert metadata == set(synced)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"path": "gs://bucket"}, "directories and to S3"),
        ({"path": "s3://bucket"}, "name the catalog"),
        ({"path": "out", "catalog": "mysql://there"}, "catalog: expected a URL"),
        ({"path": "out", "namespace": "a/b"}, "namespace"),
        (
            {"path": "s3://b", "catalog": "http://c", "options": {"request_payer": "true"}},
            "request_payer has no effect",
        ),
        ({"path": "out", "partition_by": ("week(time)",)}, "partition_by"),
    ],
)
def test_settings_are_checked(config, reason):
    """Before anything runs."""
    with pytest.raises(SettingsError, match=reason):
        IcebergSettings(**config)
