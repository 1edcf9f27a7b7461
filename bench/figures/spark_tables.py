"""
Rows per second of the exporters on Spark into Parquet, Delta and Iceberg, beside Spark's own writers.

All read one store, and each run is one batch: descriptors or rows from the store, files, and a commit. Spark's own
writers get the rows of the source `quiver`; the exporters decode them where they write them.

With `--delta io.delta:delta-spark_2.13:4.2.0`, Delta's writer for Spark is another contender. It needs PySpark 4.2:

    build/spark-4.2/bin/python bench/figures/spark_tables.py --delta io.delta:delta-spark_2.13:4.2.0
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyspark

import quiver
import quiver.spark
from quiver.bundle import OTLP_SCHEMA
from quiver.spark.exporters.parquet import ParquetExporter
from quiver.spark.exporters.query import TableBatches
from quiver.spark.exporters.tables import exporter_of
from quiver.spark.table_formats.settings import DeltaSettings, IcebergSettings
from report import BenchParser, Quick, Report, Result, machine, noise, ratios, run_rounds
from telemetry import log_request

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REQUESTS = 256
RECORDS = 1_000
SLOT_OTLP_LOGS = 60
SPARK_PARQUET, SPARK_DELTA = "Spark's Parquet writer", "Delta's writer for Spark"
RIVALS = {"Parquet exporter": SPARK_PARQUET, "Delta exporter": SPARK_DELTA, "Iceberg exporter": SPARK_PARQUET}
IVY = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""
"""Spark's default also searches the local repository of Maven, which may have the description of a jar without it."""
DELTA_CONFIG = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

Contender = Callable[[Path], float]


def fill(directory: Path, requests: int) -> int:
    """Store requests of a thousand log records, all sealed; return the number of records."""
    with quiver.open(directory) as store:
        for seed in range(requests):
            data = pa.array([log_request(seed)], pa.binary())
            store.ingest(quiver.Bundle({SLOT_OTLP_LOGS: pa.RecordBatch.from_arrays([data], schema=OTLP_SCHEMA)}))
        store.seal()
    return requests * RECORDS


def session(scratch: Path, delta: str | None) -> SparkSession:
    if delta is None:
        return quiver.spark.session("bench")
    (scratch / "ivysettings.xml").write_text(IVY)
    ivy = {"spark.jars.ivySettings": str(scratch / "ivysettings.xml"), "spark.jars.packages": delta}
    return quiver.spark.session("bench", config={**ivy, **DELTA_CONFIG})


def timed(rows: int, write: Callable[[Path], Any]) -> Contender:
    def run(directory: Path) -> float:
        started = perf_counter()
        write(directory / "lake")
        return rows / (perf_counter() - started)

    return run


def contenders(spark: SparkSession, store: str, rows: int, *, has_delta: bool) -> dict[str, Contender]:
    def views() -> Any:
        return spark.read.format("quiver").option("view", "logs").load(store)

    def bundles() -> Any:
        return spark.read.format("quiver").option("mode", "bundles").load(store)

    def parquet(output: Path) -> None:
        ParquetExporter(store, "bench", str(output)).export(bundles(), 0, query_id=str(uuid4()))

    def tables(settings: Any) -> Callable[[Path], None]:
        def write(output: Path) -> None:
            exporter = exporter_of(settings(path=str(output)), subscriber="bench")
            TableBatches(store, exporter).export(bundles(), 0, query=str(uuid4()))

        return write

    found = {
        SPARK_PARQUET: lambda output: views().write.option("compression", "zstd").parquet(str(output)),
        "Parquet exporter": parquet,
        "Delta exporter": tables(DeltaSettings),
        "Iceberg exporter": tables(IcebergSettings),
    }
    if has_delta:
        found[SPARK_DELTA] = lambda output: views().write.format("delta").save(str(output))
    return {name: timed(rows, write) for name, write in found.items()}


def lines(found: dict[str, Result]) -> Iterator[str]:
    for name, result in found.items():
        rival = found.get(RIVALS.get(name, name), found[SPARK_PARQUET])
        median, low, high = ratios(result, rival)
        beside = "" if rival is result else rival.name
        swing = f"{noise(result):.0%}"
        yield f"| {name} | {beside} | {median:.2f} | {low:.2f} to {high:.2f} | {result.median:,.0f} | {swing} |"


def main() -> None:
    parser = BenchParser(__doc__, quick=Quick(share=32))
    parser.add_argument("--delta", help="the Maven coordinates of Delta for this version of Spark")
    options = parser.options()
    with tempfile.TemporaryDirectory(prefix="bench-spark-tables-", dir=Path.cwd()) as name:
        scratch = Path(name)
        rows = fill(scratch / "buffer", max(REQUESTS // options.share, 1))
        spark = session(scratch, options.delta)
        try:
            runs = contenders(spark, str(scratch / "buffer"), rows, has_delta=options.delta is not None)
            found = run_rounds(runs, rounds=options.rounds, scratch=scratch)
        finally:
            spark.stop()
    report = Report(
        "spark_tables",
        f"Measured by `bench/figures/spark_tables.py` ({machine()}, PySpark {pyspark.__version__}; {options.rounds} "
        f"rounds of a batch of {rows:,} log records). The exporters sync what they write; Spark's writers do not.",
        "contender", "beside", "ratio", "lowest to highest", "rows/s (median)", "own swing",
    )  # fmt: skip
    report.add(lines(found))
    for ours, rival in RIVALS.items():
        if rival in found:
            report.compare(ours, found[ours], found[rival], "rows/s")
    report.finish(options.write)


if __name__ == "__main__":
    main()
