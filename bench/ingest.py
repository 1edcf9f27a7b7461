"""
Ingest: the store beside a bare log with the same bytes, checksum and sync policy, LMDB,
RocksDB, and a SQLite queue.

Three settings. *synced*: every bundle is durable before the next, as many as fit in one open segment. *burst*: the
same, synced every 25 ms instead. *sustained*: many segments until the last is sealed: every byte is written twice.

    .venv/bin/python bench/ingest.py [--rounds N] [--quick] [--write docs/benchmarks.md]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pyarrow as pa

import quiver
from report import BenchParser, Quick, Report, Result, machine, noise, ratios, run_rounds
from rivals.stores import BareLog, LmdbQueue, RocksQueue, SqliteQueue

ROWS = (100, 1_000, 8_192)
BUNDLES = {
    "synced": {100: 2_500, 1_000: 400, 8_192: 60},
    "burst": {100: 3_500, 1_000: 400, 8_192: 48},
    "sustained": {100: 30_000, 1_000: 5_000, 8_192: 700},
}
FLOOR = "bare log"
PRODUCTS = "LMDB", "RocksDB", "SQLite queue"
AIMS = {"synced": 0.9, "burst": 0.6, "sustained": 0.3}


def batches(rows: int) -> list[pa.RecordBatch]:
    """Sixteen different batches: int64, int64, utf8 of about 40 bytes."""
    return [
        pa.record_batch(
            {
                "timestamp": pa.array(range(1_700_000_000_000 + seed, 1_700_000_000_000 + seed + rows)),
                "value": pa.array([row * 100 + seed for row in range(rows)]),
                "message": pa.array([f"Log message number {row:06d} with content {seed}" for row in range(rows)]),
            }
        )
        for seed in range(16)
    ]


def timed(append: Callable[[pa.RecordBatch], object], source: list[pa.RecordBatch], bundles: int) -> float:
    started = perf_counter()
    for number in range(bundles):
        append(source[number & 15])
    return perf_counter() - started


def store_contender(source: list[pa.RecordBatch], setting: str, bundles: int) -> Callable[[Path], float]:
    def run(directory: Path) -> float:
        bundle, ingest_bytes = quiver.Bundle, 32 * 1024 * 1024 if setting == "sustained" else 64 * 1024 * 1024
        settings = quiver.Settings(segment_bytes_max=ingest_bytes, segment_open_s_max=3600)
        with quiver.open(directory / "store", settings) as store:
            ingest = store.ingest
            if setting != "sustained":
                # A running store, not one in its first second: its memory was used for the segment before.
                timed(lambda batch: ingest(bundle({30: batch})), source, bundles)
                store.seal()
            if setting == "synced":
                seconds = timed(lambda batch: ingest(bundle({30: batch}), durable=True), source, bundles)
            else:
                seconds = timed(lambda batch: ingest(bundle({30: batch})), source, bundles)
            if setting == "sustained":
                started = perf_counter()
                store.seal()
                seconds += perf_counter() - started
        return bundles / seconds

    return run


def rival_contender(
    make: Callable[[Path], object], source: list[pa.RecordBatch], setting: str, bundles: int
) -> Callable[[Path], float]:
    def run(directory: Path) -> float:
        rival = make(directory)
        if setting != "sustained":
            timed(rival.append, source, bundles)
        seconds = timed(rival.append, source, bundles)
        rival.close()
        return bundles / seconds

    return run


def contenders(setting: str, rows: int, bundles: int) -> dict[str, Callable[[Path], float]]:
    source = batches(rows)
    synced = setting == "synced"
    makers: dict[str, Callable[[Path], object]] = {
        FLOOR: lambda directory: BareLog(directory, sync_each=synced),
        "LMDB": lambda directory: LmdbQueue(directory, sync_each=synced),
        "RocksDB": lambda directory: RocksQueue(directory, sync_each=synced),
        "SQLite queue": lambda directory: SqliteQueue(directory, sync_each=synced),
    }
    if synced:
        size = (2 * bundles * (source[0].nbytes + 1024) >> 20) + 1 << 20
        makers["bare log, zeroed ahead"] = lambda directory: BareLog(directory, sync_each=True, zeroed_bytes=size)
    all_of_them = {name: rival_contender(make, source, setting, bundles) for name, make in makers.items()}
    return {"Quiver": store_contender(source, setting, bundles), **all_of_them}


def table(setting: str, rows: int, results: dict[str, Result]) -> list[str]:
    lines = []
    for name, result in results.items():
        median, low, high = ratios(result, results[FLOOR])
        lines.append(
            f"| {setting} | {rows:,} | {name} | {median:.2f} | {low:.2f} to {high:.2f} | {result.median:,.0f} | "
            f"{noise(result):.0%} |"
        )
    return lines


def main() -> None:
    parser = BenchParser(__doc__, quick=Quick(share=10, rounds=2))
    parser.add_argument("--settings", nargs="*", default=list(BUNDLES))
    parser.add_argument("--rows", nargs="*", type=int, default=list(ROWS))
    options = parser.options()
    report = Report(
        "ingest",
        f"Measured by `bench/ingest.py` ({machine()}; {options.rounds} rounds). A ratio is bundles per second over "
        "the bare log's in the same round.",
        "setting", "rows", "contender", "ratio to the bare log", "lowest to highest", "bundles/s (median)", "own swing",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-ingest-", dir=Path.cwd()) as scratch:
        for setting in options.settings:
            for rows in options.rows:
                bundles = BUNDLES[setting][rows] // options.share
                found = run_rounds(contenders(setting, rows, bundles), rounds=options.rounds, scratch=Path(scratch))
                report.add(table(setting, rows, found))
                rival = max((found[name] for name in PRODUCTS), key=lambda result: result.median)
                report.compare(f"{setting}, {rows:,} rows", found["Quiver"], rival, "bundles/s")
    report.finish(options.write)


if __name__ == "__main__":
    main()
