"""
Where the processor time of a log record goes, from an OTLP receiver to Parquet.

The records are those of `pipeline.py`. Steps are measured individually in this process. A receiving process and a Spark
session are measured as a whole: what they need beyond their steps is the rest of the receiver, of Spark's Python
processes, and of the JVM. Two runs of a query that differ in their number of records separate the time of a record from
that of a query's start. Processor time counts, so other work on the machine changes little; the last lines are what
two cores could do at most, and what a long run did.

    PYTHONPATH=bench .venv/bin/python bench/figures/record_steps.py [--rounds N] [--quick] [--write docs/benchmarks.md]
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import pipeline
import quiver
import quiver.spark
import receive
from pipeline import DIFFERENT, OURS, ROWS, bundle_of, requests_of, rows_in, start
from quiver.otap import decode_groups
from quiver.otap.request import parse_request
from quiver.otap.views.parquet_options import parquet_options
from quiver.spark.bundles import open_bundles_at
from quiver.spark.exporters.parquet import PartWriter
from quiver.spark.lake.layout import FileLayout
from quiver.spark.lake.staging import DirectoryStaging
from report import BenchParser, Quick, Report, machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2
SYNC_EVERY = 4
"""Requests that share a sync, as with four clients of a receiver."""

PARSE = "receiver: parse and check the request"
INGEST = "receiver: log, open segment"
SEAL = "receiver: write the segment"
REST_OF_RECEIVER = "receiver: gRPC, confirmation"
OPEN = "task: open the segment, find the requests"
DECODE = "task: decode to the rows of the view"
PARQUET = "task: encode and write Parquet"
REST_OF_PYTHON = "Spark: Python processes beyond these steps"
JVM = "Spark: JVM"
STEPS = (REST_OF_RECEIVER, PARSE, INGEST, SEAL, OPEN, DECODE, PARQUET, REST_OF_PYTHON, JVM)
START = "start of a query"
ENCODINGS = "own ", "defaults "


# ── steps in this process ────────────────────────────────────────────────────────────────────────────


def microseconds(work: Callable[[], object], records: int) -> float:
    started = process_time()
    work()
    return (process_time() - started) * 1e6 / records


def ingest(store: quiver.Store, bundles: list[quiver.Bundle]) -> None:
    for number, bundle in enumerate(bundles, 1):
        store.ingest(bundle)
        if not number % SYNC_EVERY:
            store.sync()


def descriptors(root: Path) -> list[pa.RecordBatch]:
    """Describe all bundles, as the tasks of an exporter receive them."""
    from quiver.spark.store.read_partition import BUNDLE_SCHEMA, PartitionReader
    from quiver.store.reading.partitions import BundleRange

    reader = PartitionReader("bundles", None, None, BUNDLE_SCHEMA, fail_on_data_loss=True)
    paths = sorted(root.glob("segments/*.qseg"))
    return list(reader.read([BundleRange(int(path.stem), str(path), 0, 1 << 30, 0) for path in paths]))


def write(output: Path, described: list[pa.RecordBatch]) -> None:
    task = PartWriter(DirectoryStaging(str(output), ".bench-"), FileLayout(), exported_through={})
    for _ in task(described):
        pass


def steps_here(requests: list[bytes], directory: Path) -> dict[str, float]:
    """Microseconds of a record in each step that can run alone."""
    records = len(requests) * ROWS
    bundles = [bundle_of(data) for data in requests]
    found = {PARSE: microseconds(lambda: all(map(partial(parse_request, signal="logs"), requests)), records)}
    root = directory / "store"
    with quiver.open(root, quiver.Settings(segment_open_s_max=3600)) as store:
        found[INGEST] = microseconds(lambda: ingest(store, bundles), records)
        found[SEAL] = microseconds(store.seal, records)
    described = descriptors(root)
    found[OPEN] = microseconds(lambda: sum(1 for _ in open_bundles_at(described)), records)
    found[DECODE] = microseconds(lambda: sum(1 for _ in decode_groups(requests, "logs")), records)
    task = microseconds(lambda: write(directory / "out", described), records)
    found[PARQUET] = task - found[OPEN] - found[DECODE]
    return found


def encode(table: pa.Table, sizes: list[int], **options: Any) -> None:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", **options) as writer:
        writer.write_table(table)
    sizes.append(sink.getvalue().size)


def encodings(requests: list[bytes]) -> dict[str, float]:
    """Microseconds and bytes of a record in Parquet, with the columns' own options and with Arrow's defaults."""
    table = pa.Table.from_batches([group.batch for group in decode_groups(requests[:DIFFERENT], "logs")])
    found = {}
    for name, options in (("own", parquet_options(table.schema)), ("defaults", {})):
        sizes: list[int] = []
        encode(table, sizes, **options)
        found[f"{name} µs"] = microseconds(partial(encode, table, sizes, **options), table.num_rows)
        found[f"{name} bytes"] = sizes[0] / table.num_rows
    return found


def receiver(requests: list[bytes], directory: Path) -> float:
    """Microseconds of a record in a receiving process."""
    contender = receive.otlp_contender(partial(receive.ours, "pass_through"), requests)
    return 1e6 / contender(directory)["records/s of a core"]


# ── a query ──────────────────────────────────────────────────────────────────────────────────────────


def processes() -> Iterator[tuple[int, int, float, str]]:
    """Process, parent, processor seconds with those of ended children, and command."""
    tick = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:  # it ended
                continue
            fields = text.rpartition(")")[2].split()
            yield int(entry.name), int(fields[1]), sum(map(int, fields[11:15])) / tick, text.split("(")[1].split(")")[0]


def spent() -> tuple[float, float]:
    """Processor seconds of this process and the JVM, and of Spark's Python processes."""
    found = list(processes())
    ours, python, jvm = {os.getpid()}, 0.0, process_time()
    grown = True
    while grown:
        more = {pid for pid, parent, _, _ in found if parent in ours} - ours
        ours, grown = ours | more, bool(more)
    for pid, _, seconds, command in found:
        if pid in ours - {os.getpid()}:
            if command == "java":
                jvm += seconds
            else:
                python += seconds
    return jvm, python


def export(spark: SparkSession, count: int, directory: Path) -> tuple[float, float, float, float]:
    """Store and export *count* requests: processor seconds of the JVM and of Python, seconds to take in, to export."""
    directory.mkdir()
    source = directory / "source"
    taken_s = pipeline.take_in(OURS, source, count, CORES)
    jvm, python = spent()
    started = perf_counter()
    query, out = start(OURS, spark, source, directory, {"availableNow": True}, compression="zstd")
    query.awaitTermination()
    exported_s = perf_counter() - started
    after_jvm, after_python = spent()
    if rows_in(out) != count * ROWS:
        raise SystemExit(f"exported {rows_in(out)} records of {count * ROWS}")
    return after_jvm - jvm, after_python - python, taken_s, exported_s


def query(spark: SparkSession, few: int, many: int, directory: Path) -> dict[str, float]:
    """Return microseconds of a record in the JVM and in Python, seconds of a start, and the rate of the long run."""
    jvm_few, python_few, _, _ = export(spark, few, directory / "few")
    jvm_many, python_many, taken_s, exported_s = export(spark, many, directory / "many")
    more = (many - few) * ROWS
    jvm, python = (jvm_many - jvm_few) / more, (python_many - python_few) / more
    return {
        JVM: jvm * 1e6,
        REST_OF_PYTHON: python * 1e6,
        START: jvm_few + python_few - (jvm + python) * few * ROWS,
        "rate": many * ROWS / (taken_s + exported_s),
    }


# ── the table ────────────────────────────────────────────────────────────────────────────────────────


def one_round(spark: SparkSession, count: int, scratch: Path) -> dict[str, float]:
    requests = requests_of(count)
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        directory = Path(name)
        found = steps_here(requests, directory)
        received = receiver(requests, directory)
        found |= query(spark, count // 4 // CORES * CORES, 4 * count, directory)
    found |= encodings(requests)
    found[REST_OF_RECEIVER] = received - found[PARSE] - found[INGEST]
    found[REST_OF_PYTHON] -= found[OPEN] + found[DECODE] + found[PARQUET]
    return found


def table(rounds: list[dict[str, float]]) -> list[str]:
    lines = []
    middles = {step: statistics.median(found[step] for found in rounds) for step in STEPS}
    total = sum(middles.values())
    for step, middle in middles.items():
        each = [found[step] for found in rounds]
        lines.append(f"| {step} | {middle:.2f} | {min(each):.2f} to {max(each):.2f} | {middle / total:.0%} |")
    lines.append(f"| all | {total:.2f} |  | 100% |")
    rates = [found["rate"] for found in rounds]
    starts = [found[START] for found in rounds]
    lines.append("")
    lines.append(
        f"At most {CORES * 1e6 / total:,.0f} records/s on two cores. The start of a query takes "
        f"{statistics.median(starts):.1f} s of processor time in a session that has run one. "
        f"From ingest to Parquet, one after the other, with that start: {statistics.median(rates):,.0f} records/s "
        f"({min(rates):,.0f} to {max(rates):,.0f})."
    )
    middle = {key: statistics.median(found[key] for found in rounds) for key in rounds[0] if key.startswith(ENCODINGS)}
    lines.append(
        f"A record in Parquet, in memory: {middle['own µs']:.2f} µs and {middle['own bytes']:.0f} bytes; with Arrow's "
        f"default dictionaries and statistics {middle['defaults µs']:.2f} µs and {middle['defaults bytes']:.0f} bytes."
    )
    return lines


def main() -> None:
    parser = BenchParser(__doc__, rounds=3, quick=Quick(share=25))
    parser.add_argument("--requests", type=int, default=400, help="of a thousand records each; four times in the query")
    options = parser.options()
    count = options.requests // options.share
    spark = quiver.spark.session("bench", master=f"local[{CORES}]")
    with tempfile.TemporaryDirectory(prefix="bench-steps-", dir=Path.cwd()) as scratch:
        found = [one_round(spark, count, Path(scratch)) for _ in range(options.rounds + 1)][1:]
    spark.stop()
    report = Report(
        "record_steps",
        f"Measured by `bench/figures/record_steps.py` ({machine()}; {options.rounds} rounds of {count * ROWS:,} "
        f"records for the steps, and {4 * count * ROWS:,} for the query). The aim is 200,000 records/s.",
        "step", "µs of processor time a record", "lowest to highest", "share",
    )  # fmt: skip
    report.add(table(found))
    report.finish(options.write)


if __name__ == "__main__":
    main()
