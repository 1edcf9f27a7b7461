"""
The pipeline from the bytes of an SDK to Parquet, beside what Spark has for it today: a directory of OTLP files.

Both get the same requests and write the same rows of the logs view with the same decoder. *Quiver* takes requests in as
its receivers do (one process for each core, synced in groups), seals them, and exports with its Parquet exporter.
*Files* writes each request into a file (temporary name, sync, rename), and a stream of Spark's own file source decodes
them into Spark's own Parquet sink.

*Stages* are timed one behind the other: all taken in, then all exported, in one run of a query from its start.
*Latency* is timed with everything running at once: from just before a request is taken in to the moment at which its
Parquet file has its name, at a steady rate. Quiver also with small segments: sealed and exported every 100 ms.

    .venv/bin/python bench/pipeline.py [--rounds N] [--quick] [--cores 1 2] [--write docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from time import perf_counter, sleep, time_ns
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

import quiver
import quiver.spark
from quiver.bundle import OTLP_SCHEMA
from quiver.counted import counted
from quiver.otap import decode_requests, view_schema
from report import BenchParser, Report, Result, machine, noise, ratios, run_rounds_of_several
from telemetry import log_request

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

ROWS = 1_000
FILES = "Spark's file source"
OURS = "Quiver"
SMALL = "Quiver, small segments"
STAGES = ("taken in", "to Parquet", "end to end")
LATENCIES = ("p50", "p95")
RATE = 5_000
RATE_ROWS = 100
AIMS = "end to end ahead of Spark's file source; p50 under 2 s, with small segments under 600 ms, and ahead of it"
DIFFERENT = 16
LOGS = 60


def requests_of(number: int, rows: int = ROWS) -> list[bytes]:
    """*number* requests; the first few are different ones, then the same again."""
    different = [log_request(seed, rows) for seed in range(min(number, DIFFERENT))]
    return [different[at % DIFFERENT] for at in range(number)]


def bundle_of(request: bytes) -> quiver.Bundle:
    return quiver.Bundle({LOGS: pa.record_batch({"data": [request]}, schema=OTLP_SCHEMA)})


# ── taking in ────────────────────────────────────────────────────────────────────────────────────────


def take_into_store(root: Path, requests: list[bytes], *, cores: int | None, core: int | None) -> None:
    settings = quiver.Settings(segment_open_s_max=3600)
    with quiver.open(root, settings, cores=cores, core=core) as store:
        for request in requests:
            store.ingest(bundle_of(request))
        store.seal()


def take_into_files(root: Path, requests: list[bytes], *, core: int | None) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for number, request in enumerate(requests):
        write_file(root, f"{core or 0}-{number:08}", request)


def write_file(root: Path, name: str, request: bytes) -> None:
    hidden = root / f".{name}"
    with hidden.open("wb") as file:
        file.write(request)
        file.flush()
        os.fsync(file.fileno())
    hidden.rename(root / f"{name}.pb")


def serve_takers(kind: str, root: str, number: str, cores: str, core: str) -> None:
    """One of the processes that take in: makes its requests, waits for the word, and says when it is done."""
    requests = requests_of(int(number))
    print("ready", flush=True)
    sys.stdin.readline()
    if kind == OURS:
        several = int(cores) > 1
        take_into_store(
            Path(root), requests, cores=int(cores) if several else None, core=int(core) if several else None
        )
    else:
        take_into_files(Path(root), requests, core=int(core))
    print("done", flush=True)


def take_in(kind: str, root: Path, number: int, cores: int) -> float:
    """Let a process for each core take its part of *number* requests in; return the seconds it took."""
    share = str(number // cores)
    takers = [
        subprocess.Popen(
            [sys.executable, __file__, "--take", kind, str(root), share, str(cores), str(core)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for core in range(cores)
    ]  # fmt: skip
    try:
        for taker in takers:
            if taker.stdout.readline() != "ready\n":
                raise SystemExit(f"a process that takes in for {kind} did not start")
        started = perf_counter()
        for taker in takers:
            taker.stdin.write("go\n")
            taker.stdin.flush()
        for taker in takers:
            if taker.stdout.readline() != "done\n":
                raise SystemExit(f"a process that takes in for {kind} failed")
        return perf_counter() - started
    finally:
        for taker in takers:
            taker.stdin.close()
            taker.wait()
            taker.stdout.close()


# ── exporting ────────────────────────────────────────────────────────────────────────────────────────


def decode_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a user of the file source writes, with our decoder."""
    for batch in batches:
        yield decode_requests(batch.column("content").to_pylist(), "logs").batch


def start(
    kind: str,
    spark: SparkSession,
    source: Path,
    directory: Path,
    trigger: Mapping[str, Any],
    compression: str = "snappy",
) -> tuple[StreamingQuery, Path]:
    """Start the export of *source*; return the query, and where its Parquet files of logs will be."""
    from pyspark.sql.pandas.types import from_arrow_schema

    out, checkpoint = directory / "out", directory / "checkpoint"
    if kind != FILES:
        query = quiver.spark.run_exporter(
            spark, str(source), "bench", str(out), str(checkpoint), trigger=trigger, compression=compression
        )
        return query, out / "logs"
    files = spark.readStream.format("binaryFile").option("pathGlobFilter", "*.pb").schema(
        "path string, modificationTime timestamp, length long, content binary"
    )  # fmt: skip
    rows = files.load(str(source)).select("content").mapInArrow(decode_files, from_arrow_schema(view_schema("logs")))
    writer = rows.writeStream.format("parquet").option("path", str(out)).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger).start(), out


def named(out: Path) -> dict[Path, int]:
    """
    The Parquet files that count, each with the time from which it does.

    Spark's own sink writes under final names; what counts is in its log. Ours have no name before they are whole.
    """
    log = out / "_spark_metadata"
    if not log.exists():
        # A rename is a change of the file's node, not of its contents.
        return {path: path.stat().st_ctime_ns for path in out.glob("[!._]*.parquet")}
    found: dict[Path, int] = {}
    for entry in log.glob("[!.]*"):
        for line in entry.read_text().splitlines()[1:]:
            path = out / json.loads(line)["path"].rpartition("/")[2]
            since_ns = entry.stat().st_ctime_ns
            found[path] = min(found.get(path, since_ns), since_ns)
    return found


def rows_in(out: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in named(out))


def stages(kind: str, spark: SparkSession, number: int, cores: int) -> Callable[[Path], Mapping[str, float]]:
    """One timed run: everything in, then everything out, in records per second."""

    def run(directory: Path) -> Mapping[str, float]:
        source = directory / "source"
        taken_s = take_in(kind, source, number, cores)
        started = perf_counter()
        query, out = start(kind, spark, source, directory, {"availableNow": True})
        query.awaitTermination()
        exported_s = perf_counter() - started
        rows = number // cores * cores * ROWS
        if rows_in(out) != rows:
            raise SystemExit(f"{kind} exported {rows_in(out)} records of {rows}")
        return {
            "taken in": rows / taken_s,
            "to Parquet": rows / exported_s,
            "end to end": rows / (taken_s + exported_s),
        }

    return run


# ── latency ──────────────────────────────────────────────────────────────────────────────────────────


def stamped(rows: int) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    request.ParseFromString(log_request(7, rows))
    return request


def stamp(request: ExportLogsServiceRequest) -> bytes:
    """The request's bytes, its records as old as this moment."""
    now = time_ns()
    for resource in request.resource_logs:
        for scope in resource.scope_logs:
            for record in scope.log_records:
                record.time_unix_nano = now
    return request.SerializeToString()


def latency(kind: str, spark: SparkSession, seconds: float) -> Callable[[Path], Mapping[str, float]]:
    """Milliseconds from a request to its Parquet file, at the rate; as its inverse, since higher is better."""

    def run(directory: Path) -> Mapping[str, float]:
        source = directory / "source"
        small = kind == SMALL
        trigger = {"processingTime": "100 milliseconds" if small else "1 second"}
        request = stamped(RATE_ROWS)
        number = int(seconds * RATE / RATE_ROWS)
        if kind == FILES:
            source.mkdir()
            query, out = start(kind, spark, source, directory, trigger)
            steadily(number, lambda at: write_file(source, f"{at:08}", stamp(request)))
        else:
            settings = quiver.Settings(segment_open_s_max=0.1 if small else 1.0)
            with quiver.open(source, settings) as store:
                query, out = start(kind, spark, source, directory, trigger)
                steadily(number, lambda _: store.ingest(bundle_of(stamp(request)), durable=True))
                await_rows(out, number * RATE_ROWS)
        await_rows(out, number * RATE_ROWS)
        query.stop()
        found = sorted(latencies_ms(out))
        # What came while the query was starting tells of the start.
        settled = sorted(found_ms for found_ms, _ in sorted(found, key=lambda one: one[1])[len(found) // 4 :])
        return {"p50": 1000 / statistics.median(settled), "p95": 1000 / settled[int(len(settled) * 0.95)]}

    return run


def steadily(number: int, send: Callable[[int], object]) -> None:
    began = perf_counter()
    for at in range(number):
        sleep(max(0.0, began + at * RATE_ROWS / RATE - perf_counter()))
        send(at)


def await_rows(out: Path, rows: int) -> None:
    deadline = perf_counter() + 120
    while not out.exists() or rows_in(out) < rows:
        if perf_counter() > deadline:
            raise SystemExit(f"{rows_in(out) if out.exists() else 0} records of {rows} were exported in two minutes")
        threading.Event().wait(0.2)


def latencies_ms(out: Path) -> Iterator[tuple[float, int]]:
    for path, named_ns in named(out).items():
        for came_ns in pq.read_table(path, columns=["time_unix_nano"]).column(0).to_pylist():
            yield (named_ns - came_ns) / 1e6, came_ns


# ── the table ────────────────────────────────────────────────────────────────────────────────────────


def measure(cores: int, rounds: int, number: int, seconds: float) -> dict[str, dict[str, dict[str, list[float]]]]:
    """All figures with Spark on *cores* cores; in a process of their own, since that has one JVM."""
    spark = quiver.spark.session("bench", master=f"local[{cores}]")
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-pipeline-", dir=Path.cwd()) as scratch:
        of_stages = {kind: stages(kind, spark, number, cores) for kind in (FILES, OURS)}
        of_latency = {kind: latency(kind, spark, seconds) for kind in (FILES, OURS, SMALL)}
        for contenders in (of_stages, of_latency):
            results = run_rounds_of_several(contenders, rounds=rounds, scratch=Path(scratch))
            for figure, by_name in results.items():
                found[figure] = {name: {"rates": result.rates} for name, result in by_name.items()}
    spark.stop()
    return found


def table(cores: int, found: Mapping[str, Mapping[str, Result]]) -> list[str]:
    lines = []
    for figure in (*STAGES, *LATENCIES):
        results = found[figure]
        for name, result in results.items():
            middle, lowest, highest = ratios(result, results[FILES])
            is_time = figure in LATENCIES
            shown = f"{1000 / result.median:,.0f} ms" if is_time else f"{result.median:,.0f} records/s"
            lines.append(
                f"| {cores} | {figure} | {name} | {middle:.2f} | {lowest:.2f} to {highest:.2f} | {shown} "
                f"| {noise(result):.0%} |"
            )
    return lines


def main() -> None:
    parser = BenchParser(__doc__)
    parser.add_argument("--requests", type=int, default=400, help="of a thousand records each, for the stages")
    parser.add_argument("--seconds", type=float, default=20.0, help="of steady load, for the latency")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--take", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.options()
    options.requests //= options.share
    if options.quick:
        options.seconds, options.cores = 2.0, options.cores[:1]
    if options.take:
        serve_takers(*options.take)
        return
    if options.measure:
        found = measure(options.measure, options.rounds, options.requests, options.seconds)
        print(f"found {json.dumps(found)}")
        return
    report = Report(
        "pipeline",
        f"Measured by `bench/pipeline.py` ({machine()}; {options.rounds} rounds; {options.requests * ROWS:,} "
        f"records, and {RATE:,} a second for {options.seconds:.0f} s). A ratio is to {FILES} in the same round; "
        f"above 1 is better, also for latencies. Aims: {AIMS}.",
        "cores", "figure", "contender", f"ratio to {FILES}", "lowest to highest", "median", "own swing",
    )  # fmt: skip
    rest = ["--rounds", str(options.rounds), "--requests", str(options.requests), "--seconds", str(options.seconds)]
    for cores in options.cores:
        argv = [sys.executable, __file__, "--measure", str(cores), *rest]
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
        answer = next(line for line in done.stdout.splitlines() if line.startswith("found "))
        answered = json.loads(answer.removeprefix("found "))
        found = {
            figure: {name: Result(name, one["rates"]) for name, one in results.items()}
            for figure, results in answered.items()
        }
        report.add(table(cores, found))
        for figure in STAGES:
            results = found[figure]
            report.compare(f"{figure}, {counted(cores, 'core')}", results[OURS], results[FILES], "records/s")
    report.finish(options.write)


if __name__ == "__main__":
    main()
