"""
Rows per second into Parquet, Delta and Iceberg beside pyarrow alone.

The steps of an exporter run in one process, without Spark; `spark_tables.py` measures them on Spark, and
`table_commits.py` the latency of many commits.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from quiver.otap import decode_groups, view_schema
from quiver.otap.views.parquet_options import parquet_options
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.exporters.output_files import synced_bytes
from quiver.spark.exporters.parquet_commit import ExportCommitter
from quiver.spark.lake.layout import FileLayout
from quiver.spark.lake.part_files import PartFiles
from quiver.spark.lake.staging import DirectoryStaging
from quiver.spark.table_formats.batch_record import BatchRecord, DataFile
from quiver.spark.table_formats.data_files import WriteTask, data_file
from quiver.spark.table_formats.delta import DeltaTables
from quiver.spark.table_formats.export import TableFormat
from quiver.spark.table_formats.iceberg import IcebergTables
from quiver.spark.table_formats.place import TablePlace
from quiver.spark.table_formats.settings import DeltaSettings, IcebergSettings
from report import BenchParser, Quick, Report, Result, machine, noise, ratios, run_rounds
from telemetry import log_request

REQUESTS = 64
"""Each of 1,000 records: a batch of 64,000 rows, about what a pipeline exports in a second."""
BATCHES = 4
BARE = "pyarrow alone"
TUNED = "pyarrow alone, the exporters' options"
TABLE_FORMATS = "Delta", "Iceberg"
AIM = 0.8


class Tables:
    """The steps of an exporter to tables: look, write, record, commit."""

    def __init__(self, kind: str, directory: Path) -> None:
        settings = (DeltaSettings if kind == "Delta" else IcebergSettings)(path=str(directory))
        self.place = TablePlace(settings.location)
        self.records = self.place.records()
        self.tables: TableFormat = (DeltaTables if kind == "Delta" else IcebergTables)(settings, self.place)
        self.next_batch = 0

    def write(self, rows: list[pa.RecordBatch]) -> tuple[DataFile, ...]:
        self.tables.has("logs", "query", self.next_batch)
        layout = self.tables.prepare("logs", rows[0].schema)
        folder = f"logs/{layout.folder}"
        self.place.prepare(folder)
        task = WriteTask(
            place=self.place, table="logs", folder=layout.folder, prefix=f"{secrets.token_hex(4)}-",
            schema=layout.schema, partitions=layout.partitions, omitted=layout.omitted, compression="zstd",
        )  # fmt: skip
        found = tuple(data_file(row) for result in task(rows) for row in result.to_pylist())
        self.place.sync_folder(folder.rstrip("/"))
        return found

    def commit(self, files: tuple[DataFile, ...]) -> float:
        record = BatchRecord("query", self.next_batch, "exporter", {}, files)
        self.next_batch += 1
        started = perf_counter()
        self.tables.commit("logs", self.records.put(record))
        return perf_counter() - started


def rows_of_requests(count: int) -> list[pa.RecordBatch]:
    requests = [log_request(seed) for seed in range(count)]
    return [group.batch.cast(view_schema("logs")) for group in decode_groups(requests, "logs")]


def bare(rows: list[pa.RecordBatch], batches: int, options: dict[str, Any]) -> Callable[[Path], float]:
    def run(directory: Path) -> float:
        started = perf_counter()
        for number in range(batches):
            path = f"{directory}/{number}.parquet"
            with pq.ParquetWriter(path, rows[0].schema, compression="zstd", **options) as writer:
                writer.write_table(pa.Table.from_batches(rows))
            synced_bytes(path)
            REAL_FILES.sync_dir(str(directory))
        return batches * sum(one.num_rows for one in rows) / (perf_counter() - started)

    return run


def parquet(rows: list[pa.RecordBatch], batches: int) -> Callable[[Path], float]:
    def run(directory: Path) -> float:
        committer = ExportCommitter(REAL_FILES, str(directory), query_id="query", stores=["store"], subscriber="bench")
        committer.recover()
        started = perf_counter()
        for number in range(batches):
            with committer.writing(number) as prefix:
                files = PartFiles(DirectoryStaging(str(directory), prefix), FileLayout(), "00000-0")
                for one in rows:
                    files.add("logs", one)
                parts = files.finish()
            committer.commit(number, parts, {})
        return batches * sum(one.num_rows for one in rows) / (perf_counter() - started)

    return run


def exported(kind: str, rows: list[pa.RecordBatch], batches: int) -> Callable[[Path], float]:
    def run(directory: Path) -> float:
        tables = Tables(kind, directory)
        tables.tables.prepare("logs", rows[0].schema)
        started = perf_counter()
        for _ in range(batches):
            tables.commit(tables.write(rows))
        return batches * sum(one.num_rows for one in rows) / (perf_counter() - started)

    return run


def line_of(name: str, result: Result, floor: Result) -> str:
    median, low, high = ratios(result, floor)
    aim = "" if name in {BARE, TUNED} else f"{AIM:.2f}"
    swing = f"{noise(result):.0%}"
    return f"| {name} | {median:.2f} | {low:.2f} to {high:.2f} | {result.median:,.0f} | {swing} | {aim} |"


def main() -> None:
    options = BenchParser(__doc__, quick=Quick(share=50)).options()
    rows = rows_of_requests(REQUESTS)
    batches = max(BATCHES // options.share, 1)
    contenders = {
        BARE: bare(rows, batches, {}),
        TUNED: bare(rows, batches, parquet_options(rows[0].schema)),
        "Parquet exporter": parquet(rows, batches),
        **{f"{kind} exporter": exported(kind, rows, batches) for kind in TABLE_FORMATS},
    }
    report = Report(
        "tables",
        f"Measured by `bench/figures/tables.py` ({machine()}; {options.rounds} rounds of {batches} batches of "
        f"{sum(one.num_rows for one in rows):,} log records). The exporter's steps in one process, without Spark: data "
        "file, record of the batch and commit, all synced. A ratio is to the rows per second of pyarrow in that round.",
        "contender", "ratio to pyarrow", "lowest to highest", "rows/s (median)", "own swing", "aim",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-tables-", dir=Path.cwd()) as scratch:
        found = run_rounds(contenders, rounds=options.rounds, scratch=Path(scratch))
        report.add(line_of(name, result, found[BARE]) for name, result in found.items())
        for kind in TABLE_FORMATS:
            report.compare(f"{kind}, rows", found[f"{kind} exporter"], found[BARE], "rows/s")
    report.finish(options.write)


if __name__ == "__main__":
    main()
