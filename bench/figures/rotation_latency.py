"""
How long an `ingest` call takes that rotates the log, with the next file prepared and with the file created in the call.

One thread ingests bundles at a steady rate into a store whose log is synced every 25 ms. The second way does within the
call what the store did before decision 0096: it creates the next file, and syncs its name. Both ways take turns in
every round, so a busy machine slows down both.

    PYTHONPATH=bench .venv/bin/python bench/figures/rotation_latency.py [--rounds N] [--quick] [--rotate-mib N]
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from unittest.mock import patch

import quiver
from engine import GIB, HOUR_S, SLOT, SOURCES, sources
from quiver.store.wal.writer import WalWriter
from report import BenchParser, Quick, Report, machine

ROTATIONS = 48
PREPARED, IN_THE_CALL = "prepared", "in the call"


@contextmanager
def everything_in_the_call() -> Iterator[None]:
    """Let a rotation create the next file and sync its name."""
    rotate = WalWriter._rotate_as_leader  # noqa: SLF001 - what the store did before is not an option of it

    def rotate_and_sync(writer: WalWriter) -> None:
        rotate(writer)
        writer._sync_name()  # noqa: SLF001

    with (
        patch.object(WalWriter, "prepare_next", lambda _: None),
        patch.object(WalWriter, "_rotate_as_leader", rotate_and_sync),
    ):
        yield


def run(directory: Path, rows: int, rate: float, rotations: int, rotate_bytes: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of the calls that rotated the log, and of the others; the first rotation warms up."""
    source, bundle = sources(rows), quiver.Bundle
    rotating: list[float] = []
    others: list[float] = []
    settings = quiver.Settings(
        segment_open_s_max=HOUR_S, segment_bytes_max=GIB, wal_bytes_max=GIB, wal_rotate_bytes=rotate_bytes,
        wal_files_max=rotations + 8,
    )  # fmt: skip
    with quiver.open(directory / "store", settings) as store:
        ingest = store.ingest
        count = began = last = 0
        next_due = 0.0
        while len(rotating) <= rotations:
            batch = bundle({SLOT: source[count % SOURCES]})
            left_s = next_due - perf_counter()
            if left_s > 0:
                time.sleep(left_s)
            is_rotating = last - began >= rotate_bytes
            started = perf_counter()
            position = ingest(batch).wal_position
            took_ms = (perf_counter() - started) * 1e3
            (rotating if is_rotating else others).append(took_ms)
            began = last if is_rotating else began
            next_due = max(next_due, started) + 1 / rate
            last = position
            count += 1
        files = store.stats()["wal_files"]
        if files != len(rotating) + 1:
            raise RuntimeError(f"{len(rotating)} rotations were expected, and there are {files} files")
    return rotating[1:], others


def quartiles(values: Sequence[float]) -> list[float]:
    return statistics.quantiles(values, n=4)


def line(way: str, found: Sequence[tuple[list[float], list[float]]]) -> str:
    medians = [statistics.median(rotating) for rotating, _ in found]
    low, median, high = quartiles([ms for rotating, _ in found for ms in rotating])
    fastest = min(ms for rotating, _ in found for ms in rotating)
    usual = statistics.median(ms for _, others in found for ms in others)
    return (
        f"| {way} | {median:.2f} | {min(medians):.2f} to {max(medians):.2f} | {low:.2f} to {high:.2f} | "
        f"{fastest:.2f} | {usual:.3f} |"
    )


def main() -> None:
    parser = BenchParser(__doc__, quick=Quick(share=8))
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--rate", type=float, default=2_000.0, help="bundles per second")
    parser.add_argument("--rotate-mib", type=int, default=4, help="size of a log file")
    options = parser.options()
    rotations = ROTATIONS // options.share
    report = Report(
        "rotation_latency",
        f"Measured by `bench/figures/rotation_latency.py` ({machine()}; {options.rounds} rounds of {rotations} "
        f"rotations after {options.rotate_mib} MiB; {options.rate:,.0f} bundles/s of {options.rows} rows). "
        "Milliseconds of an `ingest` call that rotates the log.",
        "the next file", "median", "medians of rounds", "quartiles", "fastest", "call without a rotation",
    )  # fmt: skip
    found: dict[str, list[tuple[list[float], list[float]]]] = {IN_THE_CALL: [], PREPARED: []}
    with tempfile.TemporaryDirectory(prefix="bench-rotation-", dir=Path.cwd()) as scratch:
        for number in range(options.rounds):
            for way in (IN_THE_CALL, PREPARED) if number % 2 else (PREPARED, IN_THE_CALL):
                gc.collect()
                directory = Path(scratch) / f"{way.replace(' ', '-')}-{number}"
                arguments = (directory, options.rows, options.rate, rotations, options.rotate_mib << 20)
                if way is PREPARED:
                    found[way].append(run(*arguments))
                else:
                    with everything_in_the_call():
                        found[way].append(run(*arguments))
    report.add([line(way, runs) for way, runs in found.items()])
    report.finish(options.write)


if __name__ == "__main__":
    main()
