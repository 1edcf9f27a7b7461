"""
How much a seal delays concurrent `ingest` calls: latency per call while a segment is being sealed, beside calls when
none is.

One thread ingests bundles at a steady rate into a store with a log that is synced every 25 ms. Another thread seals
whenever the open segment has SEAL_BYTES. A call belongs to *sealing* if a seal ran at any time during it. Both kinds
alternate within one run, so a busy machine slows down both.

    PYTHONPATH=bench .venv/bin/python bench/figures/seal_latency.py [--rounds N] [--quick] [--rows N …] [--rate N]
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import quiver
from engine import GIB, HOUR_S, SLOT, SOURCES, sources
from report import BenchParser, Quick, Report, machine

SEAL_BYTES = 16 << 20
SEALS = 8
PERCENTILES = (50.0, 90.0, 99.0, 99.9)

Span = tuple[float, float]


def run(directory: Path, rows: int, rate: float, seals: int, rotate_mib: int) -> tuple[list[Span], list[Span]]:
    """Return when each call and each seal began and ended; the first seal warms up and is not counted."""
    source, bundle = sources(rows), quiver.Bundle
    calls: list[Span] = []
    sealed: list[Span] = []
    due = threading.Semaphore(0)
    finished = threading.Event()

    def seal_when_due() -> None:
        for _ in range(seals + 1):
            due.acquire()
            started = perf_counter()
            store.seal()
            sealed.append((started, perf_counter()))
        finished.set()

    settings = quiver.Settings(
        segment_open_s_max=HOUR_S, segment_bytes_max=GIB, wal_bytes_max=GIB, wal_rotate_bytes=rotate_mib << 20,
        wal_files_max=64,
    )  # fmt: skip
    with quiver.open(directory / "store", settings) as store:
        ingest = store.ingest
        sealer = threading.Thread(target=seal_when_due, daemon=True)
        sealer.start()
        position = asked = next_due = 0.0
        while not finished.is_set():
            batch = bundle({SLOT: source[len(calls) % SOURCES]})
            left_s = next_due - perf_counter()
            if left_s > 0:
                time.sleep(left_s)
            started = perf_counter()
            position = ingest(batch).wal_position
            ended = perf_counter()
            calls.append((started, ended))
            next_due = max(next_due, started) + 1 / rate
            if position - asked >= SEAL_BYTES:
                asked = position
                due.release()
        sealer.join()
    first = sealed[0][1]
    return [call for call in calls if call[0] > first], sealed[1:]


def divide(calls: Sequence[Span], seals: Sequence[Span]) -> tuple[list[float], list[float]]:
    """Return the microseconds of the calls during a seal, and of the others."""
    during: list[float] = []
    others: list[float] = []
    ends = [end for _, end in seals]
    for start, end in calls:
        at = bisect_right(ends, start)
        (during if at < len(seals) and seals[at][0] < end else others).append((end - start) * 1e6)
    return during, others


def percentile(values: Sequence[float], percent: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def lines_of(rows: int, percent: float, found: Sequence[tuple[list[float], list[float]]]) -> str:
    during = [percentile(slow, percent) for slow, _ in found]
    others = [percentile(usual, percent) for _, usual in found]
    each = [slow / usual for slow, usual in zip(during, others, strict=True)]
    during_seals = sum(len(slow) for slow, _ in found)
    return (
        f"| {rows:,} | {percent:g} | {statistics.median(others):,.0f} | {statistics.median(during):,.0f} | "
        f"{statistics.median(each):.2f} | {min(each):.2f} to {max(each):.2f} | {during_seals:,} |"
    )


def main() -> None:
    parser = BenchParser(__doc__, quick=Quick(share=4))
    parser.add_argument("--rows", nargs="*", type=int, default=[100])
    parser.add_argument("--rate", type=float, default=2_000.0, help="bundles per second")
    parser.add_argument("--rotate-mib", type=int, default=256, help="size of a log file: 256 for no rotation meanwhile")
    options = parser.options()
    seals = SEALS // options.share
    report = Report(
        "seal_latency",
        f"Measured by `bench/figures/seal_latency.py` ({machine()}; {options.rounds} rounds of {seals} seals of "
        f"{SEAL_BYTES >> 20} MiB; {options.rate:,.0f} bundles/s). Microseconds of an `ingest` call, medians of the "
        "rounds; the ratio is that of the same round.",
        "rows", "percentile", "no seal", "during a seal", "ratio", "lowest to highest", "calls during seals",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-seal-", dir=Path.cwd()) as scratch:
        for rows in options.rows:
            found = []
            for number in range(options.rounds):
                gc.collect()
                directory = Path(scratch) / f"{rows}-{number}"
                found.append(divide(*run(directory, rows, options.rate, seals, options.rotate_mib)))
            report.add([lines_of(rows, percent, found) for percent in PERCENTILES])
    report.finish(options.write)


if __name__ == "__main__":
    main()
