"""
Taking requests apart: protobuf objects beside whole columns, into the rows of a view and into OTAP tables.

Log records with ten attributes in requests of a thousand, records per second of one core. The floor is the protobuf
library's own parser, which makes objects and nothing of them. *view* is one row a record with all columns of the
view; *tables* is what a receiver keeps of a request, one at a time.

    .venv/bin/python bench/decode.py [--rounds N] [--quick] [--write docs/benchmarks.md]
    .venv/bin/python bench/decode.py --columns  # where the time of *view* goes

The process keeps the memory that it frees, as those of a pipeline do; ``MIMALLOC_PURGE_DELAY=10`` measures without. The
row without the compiled kernel is measured in a process of its own; ``QUIVER_PURE=1`` measures everything without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from argparse import SUPPRESS
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from quiver.otap import decode_groups, iter_bundles, view_schema
from quiver.otap.arrays import FallbackNeededError
from quiver.otap.request import measure_request
from quiver.otap.stored import StoredTables
from quiver.otap.tables.from_otlp import tables_of_message, tables_of_request
from quiver.otap.views import view as views
from quiver.otap.views.columnar import decode_columnar
from quiver.primitives.freed_memory import keeping_freed_memory
from report import BenchParser, Quick, Report, machine, noise, ratios, run_rounds
from telemetry import ROWS, log_request

FLOOR = "parser alone"
AIM = 400_000


def rate(requests: list[bytes], work: Callable[[list[bytes]], object]) -> Callable[[Path], float]:
    def run(_directory: Path) -> float:
        work(requests[:4])
        started = process_time()
        work(requests)
        return len(requests) * ROWS / (process_time() - started)

    return run


def parse(requests: list[bytes]) -> None:
    for data in requests:
        ExportLogsServiceRequest.FromString(data)


def rows_by_column(requests: list[bytes]) -> None:
    for decoded in decode_groups(requests, "logs"):
        assert not decoded.bad


def rows_elsewhere(count: int, environment: Mapping[str, str]) -> Callable[[Path], float]:
    """Measure *rows_by_column* in a process with another environment."""
    command = [sys.executable, __file__, "--alone", str(count)]

    def run(_directory: Path) -> float:
        return float(subprocess.run(command, capture_output=True, check=True, env=environment).stdout)

    return run


def rows_by_object(requests: list[bytes]) -> None:
    def refuse(*_: object) -> None:
        raise FallbackNeededError

    kept, views.decode_columnar = views.decode_columnar, refuse
    try:
        rows_by_column(requests)
    finally:
        views.decode_columnar = kept


def rows_of_tables(requests: list[bytes]) -> Callable[[Path], float]:
    bundles = [bundle for data in requests for bundle in iter_bundles(data, "logs")]
    stored = [StoredTables(bundle.batches, "logs") for bundle in bundles]

    def run(_directory: Path) -> float:
        started = process_time()
        for decoded in decode_groups(stored, "logs"):
            assert not decoded.bad
        return len(requests) * ROWS / (process_time() - started)

    return run


def tables_by_column(requests: list[bytes]) -> None:
    for data in requests:
        tables_of_request(data, "logs")


def tables_by_object(requests: list[bytes]) -> None:
    for data in requests:
        tables_of_message(ExportLogsServiceRequest.FromString(data), "logs")


def print_columns(requests: list[bytes], rounds: int) -> None:
    """Print the processor time of each step and column, in microseconds per record: the median and the lowest."""
    schema = view_schema("logs")
    group = requests[:14]  # about as many as one batch has
    times: dict[str, list[float]] = {}

    def measure(name: str, work: Callable[[], object]) -> Any:
        started = process_time()
        result = work()
        times.setdefault(name, []).append((process_time() - started) * 1e6 / (len(group) * ROWS))
        return result

    for _ in range(rounds + 1):
        measure("(parser alone)", lambda: parse(group))
        measure("(measurement of requests)", lambda: [measure_request(data, "logs") for data in group])
        found = measure("(compiled decoder)", lambda: decode_columnar(group, "logs"))
        for name in schema.names:
            measure(name, found.makers[name])
    for name, found_us in sorted(times.items(), key=lambda item: -median(item[1][1:])):
        print(f"| {name} | {median(found_us[1:]):.3f} | {min(found_us[1:]):.3f} |")


def main() -> None:
    parser = BenchParser(__doc__, quick=Quick(share=10))
    parser.add_argument("--columns", action="store_true", help="print the processor time of each column instead")
    parser.add_argument("--alone", type=int, metavar="COUNT", help=SUPPRESS)
    options = parser.options()
    if options.alone:
        measure = rate([log_request(seed) for seed in range(options.alone)], rows_by_column)
        measure(Path())  # as in the other process, where the first round is not counted
        print(measure(Path()))
        return
    if keeping_freed_memory(os.environ) != os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], keeping_freed_memory(os.environ))
    if options.columns:
        print_columns([log_request(seed) for seed in range(14)], options.rounds)
        return
    requests = [log_request(seed) for seed in range(40 // options.share)]
    few = requests[: max(4, len(requests) // 8)]
    contenders = {
        FLOOR: rate(requests, parse),
        "view, whole columns": rate(requests, rows_by_column),
        "view, pure Python": rows_elsewhere(len(requests), {**os.environ, "QUIVER_PURE": "1"}),
        "view, from OTAP tables": rows_of_tables(requests),
        "view, objects": rate(few, rows_by_object),
        "tables, whole columns": rate(requests, tables_by_column),
        "tables, objects": rate(few, tables_by_object),
    }
    with tempfile.TemporaryDirectory(prefix="bench-decode-", dir=Path.cwd()) as scratch:
        results = run_rounds(contenders, rounds=options.rounds, scratch=Path(scratch))
    report = Report(
        "decode",
        f"Measured by `bench/decode.py` ({machine()}; {options.rounds} rounds). A ratio is records per second of "
        f"one core over the {FLOOR}'s in the same round. The aim for views is 800,000, and {AIM:,} in pure Python.",
        "way", "ratio to the parser", "lowest to highest", "records/s of a core (median)", "own swing",
    )  # fmt: skip
    for name, result in results.items():
        median, low, high = ratios(result, results[FLOOR])
        row = f"| {name} | {median:.2f} | {low:.2f} to {high:.2f} | {result.median:,.0f} | {noise(result):.0%} |"
        report.add([row])
        if name.endswith("whole columns"):
            way = name.removesuffix(", whole columns")
            pure = results.get(f"{way}, pure Python")
            report.compare(f"OTLP to {way}", result, results[FLOOR], "records/s", pure=pure)
    report.finish(options.write)


if __name__ == "__main__":
    main()
