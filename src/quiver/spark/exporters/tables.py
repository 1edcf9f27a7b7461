"""
Exporters of tables: the destinations of the frames of a batch after the processors.

Each takes all tables of a batch in one call, and reports whether it already has a batch. Effects of a repeated batch:

====================  ==================================================================================
`ConsoleExporter`     prints again
`FileExporter`        nothing: files appear once, see `parquet_commit.py`
`ParquetTables`       nothing: see `spark/lake/`
`QuiverExporter`      nothing: a store takes a batch once, see `store/staged_import.py`
`TopicExporter`       nothing: topics take a batch once, see `spark/topics/export.py`
`TableFormatExporter` nothing: tables take a batch once, see `spark/table_formats/export.py`
`FormatExporter`      depends on the format and the placeholders in its options: `{query}`, `{batch}`
====================  ==================================================================================
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from quiver.bundle import OTAP, BundleRef
from quiver.counted import counted
from quiver.errors import UsageError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.exporters.exported import ExportedAmount, Observed, exported_parts
from quiver.spark.exporters.output_files import begin_file, synced_bytes
from quiver.spark.exporters.parquet_commit import ExportCommitter, StagedFile, committed_individually
from quiver.spark.exporters.settings import (
    ConsoleSettings,
    FileSettings,
    QuiverSinkSettings,
    SparkExporterSettings,
    SparkSinkSettings,
    directory_mode,
)
from quiver.spark.exporters.table_exporter import BatchOf, TableExporter, Tables
from quiver.spark.lake.settings import ParquetTables
from quiver.spark.lake.table_export import ParquetTableExporter
from quiver.spark.otlp_rows import is_view, json_of_rows
from quiver.spark.questdb.export import QuestdbExporter
from quiver.spark.questdb.export_settings import QuestdbSinkSettings
from quiver.spark.spark_features import to_arrow_schema
from quiver.spark.store.sink_options import SinkOptions
from quiver.spark.store.sink_stage import sink_root, stage_here, task_place
from quiver.spark.table_formats.export import TableFormatExporter
from quiver.spark.table_formats.place import TablePlace
from quiver.spark.table_formats.settings import DeltaSettings, IcebergSettings
from quiver.spark.tables import column_named
from quiver.spark.topics.export import TopicExporter
from quiver.spark.topics.export_settings import TopicSinkSettings
from quiver.store.format.sink_commit import INCOMING_DIR
from quiver.store.staging.batches import Staged, await_room, commit_batch, is_committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ConsoleExporter", "FileExporter", "FormatExporter", "ParquetTables", "QuiverExporter", "exporter_of"]


_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
"""Spark's JSON would truncate timestamps to milliseconds."""

_REQUEST_ROWS_MAX = 8192


def exporter_of(settings: SparkExporterSettings | ParquetTables, *, subscriber: str) -> TableExporter:
    """Return the exporter that *settings* describe, for the query that reads as *subscriber*."""
    return _MAKERS[type(settings)](settings, subscriber)


class _Forgetful:
    """The base of exporters without a record of batches."""

    def has(self, batch: BatchOf) -> bool:  # noqa: ARG002 - no records
        """Return False."""
        return False

    def exported_through(self, batch: BatchOf) -> Mapping[str, BundleRef]:  # noqa: ARG002
        """Return nothing."""
        return {}

    def exported_individually(self, names: AbstractSet[str]) -> set[str]:  # noqa: ARG002
        """Return none."""
        return set()


class ConsoleExporter(_Forgetful):
    """Prints the first rows of every table."""

    def __init__(self, settings: ConsoleSettings, out: TextIO | None = None) -> None:
        self._settings = settings
        self._out = out

    def export(self, tables: Tables, batch: BatchOf) -> ExportedAmount:
        """Print the tables. A repeated batch is printed again."""
        settings = self._settings
        out = self._out if self._out is not None else sys.stdout
        exported = ExportedAmount()
        for name, frame in tables.items():
            # One more row shows whether the table has more than that.
            lines = _lines(frame).limit(settings.rows_max + 1).toArrow().column("line").to_pylist()
            more = "" if len(lines) <= settings.rows_max else f", the first {settings.rows_max} of {frame.count()}"
            shown = lines[: settings.rows_max]
            exported += ExportedAmount(len(shown), sum(len(line.encode()) for line in shown))
            if settings.format == "jsonl":
                out.write("".join(f"{_cut(line, settings.truncate)}\n" for line in shown))
                continue
            out.write(f"batch {batch.number}, {name}: {counted(len(shown), 'row')}{more}\n")
            out.write("".join(f"  {_cut(line, settings.truncate)}\n" for line in shown))
        out.flush()
        return exported


class FormatExporter(_Forgetful):
    """Writes every table with a Spark format."""

    def __init__(self, settings: SparkSinkSettings) -> None:
        self._settings = settings

    def export(self, tables: Tables, batch: BatchOf) -> ExportedAmount:
        """Write each table in turn."""
        settings = self._settings
        exported = ExportedAmount()
        for name, frame in tables.items():
            if settings.tables and name not in settings.tables:
                continue
            path, options = settings.filled(table=name, batch=batch.number, query=batch.query)
            observed = Observed(frame)
            writer = observed.frame.write.format(settings.format).mode(settings.mode).options(**options)
            if path is None:
                writer.save()
            else:
                writer.save(path)
            exported += observed.exported()
        return exported


class QuiverExporter:
    """Writes every table to a store, and commits the tables of a batch together."""

    def __init__(self, settings: QuiverSinkSettings) -> None:
        self._settings = settings
        slot = settings.slot
        self._slot = None if slot is None else OTAP.slot(slot)
        self._root = sink_root(REAL_FILES, settings.path)

    def has(self, batch: BatchOf) -> bool:
        """Return whether the store has *batch*."""
        return is_committed(REAL_FILES, self._root, writer=batch.query, batch=batch.number)

    def exported_through(self, batch: BatchOf) -> Mapping[str, BundleRef]:  # noqa: ARG002 - stores know batches only
        """Return nothing: the store knows the batches of queries, not their positions in another store."""
        return {}

    def exported_individually(self, names: AbstractSet[str]) -> set[str]:
        """Return those of *names* that are writers with a batch in the store."""
        directory = f"{self._root}/{INCOMING_DIR}"
        writers = REAL_FILES.list_dir(directory) if REAL_FILES.exists(directory) else ()
        return {name for name in writers if name in names and self.has(BatchOf(name, 0))}

    def export(self, tables: Tables, batch: BatchOf) -> ExportedAmount:
        """
        Stage every table in the tasks, and commit them together. Durable on return.

        Raises:
            UsageError: a table is not a view, and the settings have no slot.
            CapacityError: the store has no space: it did not import the previous batch in time.
        """
        await_room(REAL_FILES, self._root, writer=batch.query)
        staged: list[Staged] = []
        for name, frame in tables.items():
            options = self._options(name, frame)
            task = _StageTask(self._root, options, batch.query, batch.number)
            rows = frame.mapInArrow(task, "part string, rows bigint, bytes bigint").toArrow().to_pylist()
            staged += [Staged((row["part"],), row["rows"], row["bytes"]) for row in rows]
        commit_batch(REAL_FILES, self._root, writer=batch.query, batch=batch.number, staged=staged)
        return ExportedAmount(sum(one.rows for one in staged), sum(one.size_bytes for one in staged))

    def _options(self, name: str, frame: DataFrame) -> SinkOptions:
        base = SinkOptions(path=self._root)
        if is_view(to_arrow_schema(frame.schema), name):
            return replace(base, view=name)
        if self._slot is None:
            raise UsageError(
                f"table {name} has other columns than the view {name}: set the slot for it, or keep the "
                "columns as they are"
            )
        return replace(base, slot=self._slot)


@dataclass(frozen=True)
class _StageTask:
    root: str
    options: SinkOptions
    writer: str
    batch: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Counted here, because a view is staged as requests.
        count = 0

        def counting() -> Iterator[pa.RecordBatch]:
            nonlocal count
            for one in batches:
                count += one.num_rows
                yield one

        staged = stage_here(self.root, counting(), writer=self.writer, batch=self.batch, options=self.options)
        rows = [count, *[0] * (len(staged.parts) - 1)] if staged.parts else []
        sizes = [staged.size_bytes, *[0] * (len(staged.parts) - 1)] if staged.parts else []
        yield pa.record_batch(
            {
                "part": pa.array(staged.parts, pa.string()),
                "rows": pa.array(rows, pa.int64()),
                "bytes": pa.array(sizes, pa.int64()),
            }
        )


# ── files ────────────────────────────────────────────────────────────────────────────────────────────


_SUFFIXES = {"none": "", "gzip": ".gz", "zstd": ".zst"}


class FileExporter:
    """Writes files to a directory with one folder per table, each batch exactly once."""

    def __init__(self, settings: FileSettings, *, subscriber: str) -> None:
        self._settings = settings
        self._subscriber = subscriber
        self._output = str(Path(settings.path).absolute())
        self._suffix = f".jsonl{_SUFFIXES[settings.compression]}"
        self._committers: dict[str, ExportCommitter] = {}

    def has(self, batch: BatchOf) -> bool:
        """Return whether *batch* has its files, durably in place."""
        return self._committer(batch).is_committed(batch.number)

    def exported_through(self, batch: BatchOf) -> Mapping[str, BundleRef]:
        """Return the positions of earlier queries, so that nothing is written twice after a checkpoint is lost."""
        return self._committer(batch).exported_through

    def exported_individually(self, names: AbstractSet[str]) -> set[str]:
        """Return those of *names* that have files."""
        return committed_individually(REAL_FILES, self._output, names)

    def export(self, tables: Tables, batch: BatchOf) -> ExportedAmount:
        """
        Write hidden files in the tasks, and make them visible together. Durable on return.

        Raises:
            UsageError: the format is OTLP, and a table is not a view.
        """
        committer = self._committer(batch)
        with committer.writing(batch.number) as prefix:
            parts = [part for name, frame in tables.items() for part in self._written(name, frame, prefix)]
        committer.commit(batch.number, parts, batch.through or {})
        return exported_parts(parts)

    def _written(self, name: str, frame: DataFrame, prefix: str) -> list[StagedFile]:
        task = _FileTask(
            output=self._output,
            table=name,
            prefix=prefix,
            format=self._settings.format,
            compression=self._settings.compression,
            file_mode=self._settings.file_mode,
        )
        if task.format == "otlp" and not is_view(to_arrow_schema(frame.schema), name):
            raise UsageError(f"table {name} has other columns than the view {name}: it cannot become OTLP; use jsonl")
        wanted = _lines(frame) if task.format == "jsonl" else frame
        rows = wanted.mapInArrow(task, "part string, rows bigint, bytes bigint").toArrow().to_pylist()
        return [StagedFile(name, row["part"], row["rows"], row["bytes"]) for row in rows]

    def _committer(self, batch: BatchOf) -> ExportCommitter:
        known = self._committers.get(batch.query)
        if known is None:
            known = ExportCommitter(
                REAL_FILES,
                self._output,
                query_id=batch.query,
                stores=batch.stores,
                subscriber=self._subscriber,
                suffix=self._suffix,
                file_mode=self._settings.file_mode,
            )
            known.recover()
            self._committers[batch.query] = known
        return known


@dataclass(frozen=True, kw_only=True)
class _FileTask:
    """Runs in a task: writes its rows to one synced hidden file, and returns its name. Without rows, does nothing."""

    output: str
    table: str
    prefix: str
    format: str
    compression: str
    file_mode: int | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition, task = task_place()
        name = f"{self.prefix}{partition:05}-{task}.part"
        path = f"{self.output}/{self.table}/{name}"
        rows = 0
        writer: Any = None
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if writer is None:
                    REAL_FILES.make_dirs(f"{self.output}/{self.table}", mode=directory_mode(self.file_mode))
                    begin_file(path, self.file_mode)
                    writer = self._open(path)
                rows += batch.num_rows
                self._write(writer, batch)
        finally:
            if writer is not None:
                writer.close()
        if rows:
            yield pa.record_batch({"part": [name], "rows": [rows], "bytes": [synced_bytes(path)]})

    def _open(self, path: str) -> Any:
        if self.compression == "none":
            return pa.OSFile(path, "wb")
        return pa.CompressedOutputStream(path, self.compression)

    def _write(self, writer: Any, batch: pa.RecordBatch) -> None:
        if self.format == "jsonl":
            writer.write("".join(f"{line}\n" for line in batch.column(0).to_pylist()).encode())
        else:
            for start in range(0, batch.num_rows, _REQUEST_ROWS_MAX):
                writer.write(json_of_rows(batch.slice(start, _REQUEST_ROWS_MAX), self.table) + b"\n")


def _table_format_exporter(settings: DeltaSettings | IcebergSettings, subscriber: str) -> TableExporter:
    # Imported by name: only users of a format need its extra.
    if isinstance(settings, DeltaSettings):
        tables = import_module("quiver.spark.table_formats.delta").DeltaTables
    else:
        tables = import_module("quiver.spark.table_formats.iceberg").IcebergTables
    place = TablePlace(settings.location, settings.records_location)
    return TableFormatExporter(tables(settings, place), place, subscriber=subscriber, settings=settings)


def _lines(frame: DataFrame) -> DataFrame:
    """Return one column, `line`: each row as JSON."""
    return frame.select(F.to_json(F.struct(*map(column_named, frame.columns)), _TIMES).alias("line"))


def _cut(line: str, length: int) -> str:
    """Return a row, still as an object with all columns, with its strings truncated to *length*."""
    if not length or len(line) <= length:
        return line
    return json.dumps(_short(json.loads(line), length), ensure_ascii=False, separators=(",", ":"))


def _short(value: Any, length: int) -> Any:
    if isinstance(value, dict):
        return {key: _short(one, length) for key, one in value.items()}
    if isinstance(value, list):
        return [_short(one, length) for one in value]
    return value if not isinstance(value, str) or len(value) <= length else f"{value[: length - 1]}…"


_MAKERS: Mapping[type[Any], Callable[[Any, str], TableExporter]] = {
    ConsoleSettings: lambda settings, _: ConsoleExporter(settings),
    SparkSinkSettings: lambda settings, _: FormatExporter(settings),
    QuiverSinkSettings: lambda settings, _: QuiverExporter(settings),
    TopicSinkSettings: lambda settings, _: TopicExporter(settings),
    QuestdbSinkSettings: lambda settings, _: QuestdbExporter(settings),
    FileSettings: lambda settings, subscriber: FileExporter(settings, subscriber=subscriber),
    DeltaSettings: _table_format_exporter,
    IcebergSettings: _table_format_exporter,
    ParquetTables: lambda settings, subscriber: ParquetTableExporter(settings, subscriber=subscriber),
}
"""Settings type → function that makes the exporter, for a subscriber."""
