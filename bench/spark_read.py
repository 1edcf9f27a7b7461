"""
Spark batch reads: the `quiver` source beside Spark's own Parquet reader, over the same rows.

Three questions: *count* (how many rows), *aggregate* (sum and count by ``value % 16``), *scan* (every column of
every row, into Spark's `noop` sink). The Parquet files are written by Spark from the store. Before anything is
timed, all contenders must give the same aggregate.

    .venv/bin/python bench/spark_read.py [--rounds N] [--quick] [--write docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import quiver
import quiver.spark
from ingest import batches
from report import BenchParser, Quick, Report, Result, machine, noise, ratios, run_rounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = (8_192, 1_000)
ROWS_TOTAL = 4_194_304
FLOOR = "Parquet"
SLOT = 30
ASKED = {
    "count": (FLOOR, "Quiver", "Quiver, columns=value", "Quiver, row counts"),
    "aggregate": (FLOOR, "Quiver", "Quiver, columns=value", "Quiver, map_bundles"),
    "scan": (FLOOR, "Quiver"),
}
PARTIAL = "bucket long, total long, rows long"

Frame = Callable[[], "DataFrame"]


def fill(directory: Path, rows: int, total: int) -> int:
    """Put *total* rows into a store, *rows* a bundle, all sealed; return how many rows it holds."""
    source = batches(rows)
    bundles = -(-total // rows)
    with quiver.open(directory, quiver.Settings(segment_open_s_max=3600)) as store:
        for number in range(bundles):
            store.ingest(quiver.Bundle({SLOT: source[number & 15]}))
        store.seal()
    return bundles * rows


def partial_aggregate(_ref: quiver.BundleRef, bundle: quiver.Bundle) -> pa.RecordBatch:
    """Sum and count by value % 16, of one bundle, on the arrays themselves."""
    values = bundle[SLOT].column("value").to_numpy()
    buckets = values & 15
    totals = np.zeros(16, np.int64)
    np.add.at(totals, buckets, values)
    return pa.record_batch({"bucket": np.arange(16), "total": totals, "rows": np.bincount(buckets, minlength=16)})


def frames(spark: SparkSession, store: Path, parquet: Path) -> dict[str, Frame]:
    """What is read, by contender; each call plans anew, as a notebook's cell would."""

    def source(**options: str) -> Frame:
        return lambda: spark.read.format("quiver").options(path=str(store), **options).load()

    return {
        FLOOR: lambda: spark.read.parquet(str(parquet)),
        "Quiver": source(slot=str(SLOT)),
        "Quiver, columns=value": source(slot=str(SLOT), columns="value"),
        "Quiver, map_bundles": source(mode="bundles"),
        "Quiver, row counts": source(mode="bundles", includeMetadata="true"),
    }


def aggregate(name: str, frame: DataFrame) -> list[tuple[int, int, int]]:
    """Sum and count by value % 16, by whatever way suits the contender."""
    if name.endswith("map_bundles"):
        partial = quiver.spark.map_bundles(frame, partial_aggregate, PARTIAL)
        answer = (
            partial.groupBy("bucket").agg({"total": "sum", "rows": "sum"}).select("bucket", "sum(total)", "sum(rows)")
        )
    else:
        answer = frame.selectExpr("value % 16 AS bucket", "value").groupBy("bucket").agg({"value": "sum", "*": "count"})
        answer = answer.select("bucket", "sum(value)", "count(1)")
    return sorted(tuple(row) for row in answer.collect())


def ask(question: str, name: str, frame: Frame, total: int) -> Callable[[Path], float]:
    """One timed run: from the frame to the answer, in rows per second."""

    def run(_directory: Path) -> float:
        started = perf_counter()
        if question == "count":
            # Parquet counts from its footers; the descriptors of bundles are what comes nearest.
            counted = frame().selectExpr(f"sum(rows[{SLOT}])").first()[0] if name.endswith("row counts") else None
            found = frame().count() if counted is None else counted
        elif question == "aggregate":
            found = sum(rows for _, _, rows in aggregate(name, frame()))
        else:
            frame().write.format("noop").mode("overwrite").save()
            found = total
        seconds = perf_counter() - started
        if found != total:
            raise SystemExit(f"{name} found {found} rows of {total}")
        return total / seconds

    return run


def contenders(question: str, sources: dict[str, Frame], total: int) -> dict[str, Callable[[Path], float]]:
    return {name: ask(question, name, sources[name], total) for name in ASKED[question]}


def table(question: str, rows: int, total: int, results: dict[str, Result]) -> list[str]:
    lines = []
    for name, result in results.items():
        median, low, high = ratios(result, results[FLOOR])
        lines.append(
            f"| {question} | {rows:,} | {name} | {median:.2f} | {low:.2f} to {high:.2f} | "
            f"{total / result.median:.2f} | {noise(result):.0%} |"
        )
    return lines


def measure(spark: SparkSession, scratch: Path, rows: int, options: argparse.Namespace, report: Report) -> None:
    store, parquet = scratch / f"store-{rows}", scratch / f"parquet-{rows}"
    total = fill(store, rows, ROWS_TOTAL // options.share)
    sources = frames(spark, store, parquet)
    sources["Quiver"]().write.parquet(str(parquet))
    answers = {name: aggregate(name, sources[name]()) for name in ASKED["aggregate"]}
    if any(answer != answers[FLOOR] for answer in answers.values()):
        raise SystemExit(f"the contenders disagree: {answers}")
    for question in options.questions:
        results = run_rounds(contenders(question, sources, total), rounds=options.rounds, scratch=scratch)
        report.add(table(question, rows, total, results))
        report.compare(f"{question}, {rows:,} rows a bundle", results["Quiver"], results[FLOOR], "rows/s")
    shutil.rmtree(store)
    shutil.rmtree(parquet)


def main() -> None:
    parser = BenchParser(__doc__, rounds=7, quick=Quick(share=8, rounds=2))
    parser.add_argument("--rows", nargs="*", type=int, default=list(ROWS), help="rows a bundle")
    parser.add_argument("--questions", nargs="*", default=list(ASKED), choices=list(ASKED))
    options = parser.options()
    report = Report(
        "spark",
        f"Measured by `bench/spark_read.py` ({machine()}; {options.rounds} rounds).",
        "question", "rows", "contender", "ratio to Parquet", "lowest to highest", "seconds (median)", "own swing",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-spark-", dir=Path.cwd()) as scratch:
        spark = quiver.spark.session("bench", quick_start=False)
        try:
            for rows in options.rows:
                measure(spark, Path(scratch), rows, options, report)
        finally:
            spark.stop()
    report.finish(options.write)


if __name__ == "__main__":
    main()
