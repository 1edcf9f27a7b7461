"""Exports of everything that a store has, as one batch, and directories of tables to read back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from quiver.spark.exporters.query import TableBatches
from quiver.spark.exporters.tables import exporter_of
from quiver.spark.table_formats.delta import DeltaTables
from quiver.spark.table_formats.iceberg import IcebergTables
from quiver.spark.table_formats.settings import DeltaSettings, IcebergSettings

QUERY = "c5026f74-7f8b-4a17-8beb-a452f78be02a"
OTHER = "d5026f74-7f8b-4a17-8beb-a452f78be02a"


class Killed(BaseException):
    """Not an error that anything handles."""


def export(spark: Any, store: Any, settings: Any, chain: Any = (), *, number: int = 0, query: str = QUERY) -> None:
    """Export everything that is there as one batch, like a process that has just started."""
    frame = spark.read.format("quiver").option("mode", "bundles").load(store.root)
    exporter = exporter_of(settings, subscriber="exp")
    TableBatches(store.root, exporter, chain=chain).export(frame, number, query=query)


@dataclass
class DeltaLake:
    """A directory of Delta tables."""

    root: Path
    tables = DeltaTables
    files = ""

    def settings(self, **others):
        return DeltaSettings(path=str(self.root), **others)

    def open(self, table):
        return DeltaTable(str(self.root / table))

    def read(self, table):
        return self.open(table).to_pyarrow_table()

    def fields(self, table):
        return self.open(table).metadata().partition_columns

    def numbers(self, table):
        return sorted(self.read(table)["time_unix_nano"].to_pylist())

    def data_files(self, table):
        return list((self.root / table / self.files).rglob("*.parquet"))


@dataclass
class IcebergLake(DeltaLake):
    """A directory of Iceberg tables, with a catalog of its own."""

    tables = IcebergTables
    files = "data"

    def settings(self, **others):
        return IcebergSettings(path=str(self.root), **others)

    def open(self, table):
        catalog = load_catalog("quiver", type="sql", uri=f"sqlite:///{self.root}/_catalog.db")
        return catalog.load_table(f"telemetry.{table}")

    def read(self, table):
        return self.open(table).scan().to_arrow()

    def fields(self, table):
        return [field.name for field in self.open(table).spec().fields]
