"""
Start-up: how long `quiver.open` takes on directories with much in them, and how much memory it needs for that.

Three directories, made by the store itself, each as a crash leaves it: 1,000 segments of 1 MiB, 100,000 segments of
one small bundle, and 100,000 entries that are in the log alone. Each is opened by a fresh process again and again,
beside the floor of the same round: a process that reads the same files' ends (of the log: every byte, with its
checksum) and does nothing with them. Files are in the page cache.

    .venv/bin/python bench/startup.py [--rounds N] [--quick] [--write docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

import pyarrow as pa

import quiver
from quiver.primitives.disk.real_files import RealFile, RealFileSystem
from quiver.store.format.names import CURSOR_NAME
from quiver.store.opening import open_store
from report import BenchParser, Quick, Report, Result, machine

TAIL_BYTES = 16 * 1024
"""What the floor reads of each segment: as much as opening one reads."""

HOUR_S = 3600.0


class UnsyncedFile(RealFile):
    """A file whose syncs do nothing: a directory is made in seconds, and nobody pulls the plug."""

    __slots__ = ()

    def sync_data(self) -> None:
        pass

    def sync(self) -> None:
        pass


class UnsyncedFiles(RealFileSystem):
    """The real file system without its syncs."""

    def _open(self, path: str, flags: int, mode: int = 0o600) -> UnsyncedFile:
        fd = os.open(path, flags | os.O_CLOEXEC, mode)
        return UnsyncedFile(path, fd, self._platform)

    def sync_dir(self, path: str) -> None:
        pass


@dataclass(frozen=True)
class Case:
    """One directory: how many of what, who makes it, and in how many seconds it should open."""

    name: str
    count: int
    aim_s: float
    build: Callable[[Path, int], None]


def batch(number: int, rows: int, message_bytes: int) -> pa.RecordBatch:
    text = "m" * message_bytes
    return pa.record_batch({"number": pa.array(range(number, number + rows)), "message": pa.array([text] * rows)})


def build_segments(directory: Path, count: int, *, rows: int, message_bytes: int) -> None:
    settings = quiver.Settings(segment_open_s_max=HOUR_S)
    source = batch(0, rows, message_bytes)
    with open_store(directory, settings, fs=UnsyncedFiles(), background=False) as store:
        store.register("reader", start="earliest")
        for _ in range(count):
            store.ingest(quiver.Bundle({30: source}))
            store.seal()


def build_large(directory: Path, count: int) -> None:
    build_segments(directory, count, rows=1024, message_bytes=1000)


def build_small(directory: Path, count: int) -> None:
    build_segments(directory, count, rows=10, message_bytes=20)


def build_log(directory: Path, count: int) -> None:
    settings = quiver.Settings(segment_bytes_max=1 << 30, segment_open_s_max=HOUR_S)
    source = [batch(seed, 10, 20) for seed in range(16)]
    store = open_store(directory, settings, fs=UnsyncedFiles(), background=False)
    for number in range(count):
        store.ingest(quiver.Bundle({30: source[number & 15]}))
    # As a kill leaves it when the disk had no room for segments: all of it is in the log, and only there.
    for path in (directory / "segments").iterdir():
        path.unlink()
    (directory / "wal" / CURSOR_NAME).unlink(missing_ok=True)
    os._exit(0)


CASES = (
    Case("segments of 1 MiB", 1_000, 2.0, build_large),
    Case("small segments", 100_000, 20.0, build_small),
    Case("log entries", 100_000, 5.0, build_log),
)


def measure(what: Callable[[Path], None], directory: Path) -> dict[str, float]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, worked = perf_counter(), process_time()
    what(directory)
    seconds, processor = perf_counter() - started, process_time() - worked
    return {
        "seconds": seconds,
        "processor": processor,
        "bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024,
    }


def open_as_store(directory: Path) -> None:
    open_store(directory, quiver.Settings(segment_open_s_max=HOUR_S), background=False)


def open_as_floor(directory: Path) -> None:
    """The same files, read the cheapest way."""
    for name in sorted(os.listdir(directory / "segments")):  # noqa: PTH208
        fd = os.open(directory / "segments" / name, os.O_RDONLY)
        size = os.fstat(fd).st_size
        os.pread(fd, TAIL_BYTES, max(0, size - TAIL_BYTES))
        os.close(fd)
    for path in sorted((directory / "wal").glob("quiver.wal*")):
        zlib.crc32(path.read_bytes())


STORE, FLOOR = "Quiver", "files read"
CHILDREN = {STORE: open_as_store, FLOOR: open_as_floor}


def in_child(*arguments: str) -> str:
    return subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True).stdout


def run_case(case: Case, count: int, rounds: int, scratch: Path, report: Report) -> None:
    """Open the directory of *case* in each round, and report its row."""
    original = scratch / "original"
    in_child("--build", case.name, str(count), str(original))
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CHILDREN}
    for turn in range(rounds + 1):
        for name in CHILDREN:
            # Opening replays, and a replay may seal: each round opens a copy, linked where that is enough.
            directory = scratch / "copy"
            copy_directory(original, directory)
            one = json.loads(in_child("--child", name, str(directory)))
            shutil.rmtree(directory)
            if turn:  # the first round warms up
                found[name].append(one)
    shutil.rmtree(original)
    results = {name: Result(name, [one["seconds"] for one in found[name]]) for name in CHILDREN}
    seconds, floors = results[STORE].rates, results[FLOOR].rates
    processor = statistics.median(one["processor"] for one in found[STORE])
    ratio = statistics.median(floor / mine for floor, mine in zip(floors, seconds, strict=True))
    memory = statistics.median(one["bytes"] for one in found[STORE]) / (1 << 20)
    row = (
        f"| {count:,} {case.name} | {statistics.median(seconds):.2f} | {min(seconds):.2f} to {max(seconds):.2f} | "
        f"{processor:.2f} | {case.aim_s * count / case.count:g} | {ratio:.2f} | {memory:.0f} MiB |"
    )
    report.add([row])
    report.compare(f"{count:,} {case.name}", results[STORE], results[FLOOR], "s", lower_is_better=True, style=".2f")


def copy_directory(source: Path, target: Path) -> None:
    """A copy to open: segments never change and are linked; everything else is copied."""
    target.mkdir()
    for path in source.iterdir():
        if path.name == "segments":
            shutil.copytree(path, target / path.name, copy_function=os.link)
        elif path.is_dir():
            shutil.copytree(path, target / path.name)
        else:
            shutil.copy2(path, target / path.name)


def main() -> None:
    parser = BenchParser(__doc__, quick=Quick(share=100))
    parser.add_argument("--child", nargs=2, metavar=("WHO", "DIRECTORY"), help=argparse.SUPPRESS)
    parser.add_argument("--build", nargs=3, metavar=("CASE", "COUNT", "DIRECTORY"), help=argparse.SUPPRESS)
    options = parser.options()
    if options.build:
        name, count, directory = options.build
        next(case for case in CASES if case.name == name).build(Path(directory), int(count))
        return
    if options.child:
        who, directory = options.child
        print(json.dumps(measure(CHILDREN[who], Path(directory))))
        sys.stdout.flush()
        os._exit(0)  # closing the store would seal, which is not what is measured
    report = Report(
        "startup",
        f"Measured by `bench/startup.py` ({machine()}; {options.rounds} rounds). The floor reads the same files and "
        "does nothing with them; the ratio is its time over the store's in the same round. Processor seconds are the "
        "store's own work, independent of other processes. Memory is the growth of the process.",
        "opened", "seconds (median)", "lowest to highest", "processor seconds", "aim (s)", "ratio to floor", "memory",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-startup-", dir=Path.cwd()) as scratch:
        for case in CASES:
            run_case(case, case.count // options.share, options.rounds, Path(scratch), report)
    report.finish(options.write)


if __name__ == "__main__":
    main()
