"""The exporter of tables after processors to Parquet files, in a directory or a bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from quiver.spark.exporters.exported import ExportedAmount, exported_parts
from quiver.spark.exporters.parquet_commit import StagedFile
from quiver.spark.lake.output import configured_output
from quiver.spark.lake.part_files import PartFiles
from quiver.spark.store.sink_stage import task_place

if TYPE_CHECKING:
    from quiver.bundle import BundleRef
    from quiver.spark.exporters.table_exporter import BatchOf, Tables
    from quiver.spark.lake.layout import FileLayout
    from quiver.spark.lake.output import BatchCommitter
    from quiver.spark.lake.settings import ParquetTables
    from quiver.spark.lake.staging import Staging

__all__ = ["ParquetTableExporter"]

_RESULT = "table string, part string, rows bigint, bytes bigint"


class ParquetTableExporter:
    """Writes every table as Parquet files, each batch exactly once."""

    def __init__(self, settings: ParquetTables, *, subscriber: str) -> None:
        self._layout = settings.layout()
        self._output = configured_output(settings)
        self._subscriber = subscriber
        self._committers: dict[str, BatchCommitter] = {}

    def has(self, batch: BatchOf) -> bool:
        """Return whether *batch* has its files, durably in place."""
        return self._committer(batch).is_committed(batch.number)

    def exported_through(self, batch: BatchOf) -> Mapping[str, BundleRef]:
        """Return the positions of earlier queries, so that nothing is written twice after a checkpoint is lost."""
        return self._committer(batch).exported_through

    def exported_individually(self, names: AbstractSet[str]) -> set[str]:
        """Return those of *names* that have files."""
        return self._output.committed_individually(names)

    def export(self, tables: Tables, batch: BatchOf) -> ExportedAmount:
        """
        Write staged files in the tasks, and make them visible together. Durable on return.

        Raises:
            Exception: any error of a task, such as a table that cannot be partitioned.
        """
        committer = self._committer(batch)
        with committer.writing(batch.number) as prefix:
            staging = self._output.staging(batch.query, prefix)
            rows = [
                row
                for name, frame in tables.items()
                for row in frame.mapInArrow(_Task(name, staging, self._layout), _RESULT).toArrow().to_pylist()
            ]
        parts = [StagedFile(row["table"], row["part"], row["rows"], row["bytes"]) for row in rows]
        committer.commit(batch.number, parts, batch.through or {})
        return exported_parts(parts)

    def _committer(self, batch: BatchOf) -> BatchCommitter:
        if batch.query not in self._committers:
            self._committers[batch.query] = self._output.committer(
                batch.query, stores=batch.stores, subscriber=self._subscriber
            )
        return self._committers[batch.query]


@dataclass(frozen=True)
class _Task:
    """Runs in a task: writes its rows, and returns the staged files."""

    table: str
    staging: Staging
    layout: FileLayout

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition, task = task_place()
        files = PartFiles(self.staging, self.layout, f"{self.table}-{partition:05}-{task}")
        try:
            for batch in batches:
                files.add(self.table, batch)
            parts = files.finish()
        finally:
            files.close()
        yield pa.record_batch(
            {
                "table": pa.array([part.table for part in parts], pa.string()),
                "part": pa.array([part.name for part in parts], pa.string()),
                "rows": pa.array([part.rows for part in parts], pa.int64()),
                "bytes": pa.array([part.size_bytes for part in parts], pa.int64()),
            }
        )
