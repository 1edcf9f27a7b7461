"""
The append-only log beside a bare framed log, LMDB, RocksDB, a SQLite queue and queuelib.

For records of 128 B, 1 KiB and 64 KiB, appended one by one and in batches of 100 and 1,000: the rate of appends,
without sync and synced after each batch, of reading all in order (as objects, and as runs of columns), of reading by
id at random. Then the time from append to follower, and the time to open a log after a kill. With `--sliding` also how
fast a new log is while its segments are still small, beside one that begins with large ones.

    .venv/bin/python bench/aof.py [--rounds N] [--quick] [--write docs/benchmarks.md]
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter

from quiver.aof import Aof, AofConfig, AofManager, FlushConfig
from report import BenchParser, Quick, Report, Result, machine, noise, ratios, run_rounds_of_several
from rivals.append_logs import RIVALS, Rival

SIZES = {128: 256_000, 1024: 128_000, 65536: 4_000}
BATCHES = (1, 100, 1_000)
SYNCED_BATCH = (1024, 100, 20_000)
FLOOR = "bare log"
PRODUCTS = "LMDB", "RocksDB", "SQLite queue", "queuelib"
NAME = "quiver aof"
WINDOW = AofConfig(segment_min_bytes=64 << 20, segment_target_bytes=256 << 20, segment_max_bytes=1 << 30)
LAZY = FlushConfig(flush_interval_ms=0, flush_watermark_bytes=1 << 40, max_unflushed_bytes=0)


def records_of(size: int, count: int) -> list[bytes]:
    """Sixteen different records, again and again."""
    different = [bytes((seed * 31 + index) & 0xFF for index in range(size)) for seed in range(16)]
    return [different[number & 15] for number in range(count)]


def rate(count: int, work: Callable[[], object]) -> float:
    started = perf_counter()
    work()
    return count / (perf_counter() - started)


def consumed(records: object) -> int:
    return sum(1 for _ in records)


class AofLog:
    """The log behind the interface of its rivals."""

    def __init__(self, directory: Path, config: AofConfig) -> None:
        self._manager = AofManager.open(str(directory / "aof"), config)
        self.log: Aof = self._manager.log("bench")
        self.ids: list[int] = []

    def append(self, records: Sequence[bytes]) -> None:
        if len(records) == 1:
            self.ids.append(self.log.append_record_with_timeout(records[0], None))
        else:
            self.ids += self.log.append_records_with_timeout(records, None)

    def sync(self) -> None:
        self.log.flush_until(self.ids[-1])

    def read(self) -> object:
        return self.log.open_reader(views=True)

    def get(self, number: int) -> bytes:
        return self.log.read_record(self.ids[number]).payload

    def close(self) -> None:
        self._manager.close()


def configured(**changes: object) -> AofConfig:
    fields = {
        name: getattr(WINDOW, name) for name in ("segment_min_bytes", "segment_target_bytes", "segment_max_bytes")
    }
    return AofConfig(**{**fields, "flush": LAZY, **changes})


def contender(
    make: Callable[[Path], Rival], size: int, batch: int, count: int, *, synced: bool
) -> Callable[[Path], Mapping[str, float]]:
    records = records_of(size, count)
    batches = [records[start : start + batch] for start in range(0, count, batch)]

    def run(directory: Path) -> Mapping[str, float]:
        rival = make(directory)
        rival.append(batches[0])  # files, pages and code are there
        rival.sync()

        def append() -> None:
            for one in batches:
                rival.append(one)
                if synced:
                    rival.sync()

        figures = {"append": rate(count, append)}
        if not synced:
            rival.sync()
            if isinstance(rival, AofLog):
                figures["read runs"] = rate(count, lambda: sum(map(len, rival.log.open_reader().runs())))
            if hasattr(rival, "get"):
                order = random.Random(1).sample(range(count), min(count, 20_000))
                figures["random read"] = rate(len(order), lambda: [rival.get(number) for number in order])
            figures["read"] = rate(count + batch, lambda: consumed(rival.read()))
        rival.close()
        return figures

    return run


def contenders(size: int, batch: int, count: int, *, synced: bool) -> dict[str, Callable[[Path], Mapping[str, float]]]:
    makers: dict[str, Callable[[Path], Rival]] = {NAME: lambda directory: AofLog(directory, configured()), **RIVALS}
    return {name: contender(make, size, batch, count, synced=synced) for name, make in makers.items()}


def rows(setting: str, size: int, batch: int, found: Mapping[str, Mapping[str, Result]]) -> list[str]:
    lines = []
    for figure, results in found.items():
        for name, result in results.items():
            if not result.rates:
                continue
            ratio = "–"
            if results[FLOOR].rates:
                median, low, high = ratios(result, results[FLOOR])
                ratio = f"{median:.2f} ({low:.2f} to {high:.2f})"
            lines.append(
                f"| {setting}{figure} | {size:,} | {batch:,} | {name} | {ratio} | {result.median:,.0f} | "
                f"{result.median * size / 1e6:,.0f} | {noise(result):.0%} |"
            )
    return lines


def latencies(directory: Path, count: int) -> tuple[float, float, float]:
    """Seconds from append to follower: median, 99 of 100, and the worst."""
    with AofManager.open(str(directory / "tail"), configured()) as manager:
        log = manager.log("bench")
        follower = log.tail_follower(0, durable_only=False)
        taken: list[float] = []
        turn = threading.Semaphore(0)
        sent = [0.0]

        def follow() -> None:
            for _ in range(count):
                follower.next()
                taken.append(perf_counter() - sent[0])
                turn.release()

        thread = threading.Thread(target=follow)
        thread.start()
        for _ in range(count):
            sent[0] = perf_counter()
            log.append_record_with_timeout(b"x" * 128, None)
            turn.acquire()
        thread.join()
    cuts = statistics.quantiles(taken, n=100)
    return cuts[49], cuts[98], max(taken)


def recovery_s(directory: Path, size: int, total_bytes: int) -> float:
    """Seconds to open a log whose process died with *total_bytes* of records in its last segment, flushed as usual."""
    live, dead = directory / "live", directory / "dead"
    config = configured(segment_target_bytes=1 << 30, preallocate_segments=0, flush=FlushConfig())
    with AofManager.open(str(live), config) as manager:
        log = manager.log("bench")
        record = records_of(size, 1)[0]
        batch = [record] * max(1, (1 << 20) // size)
        for _ in range(int(total_bytes * 0.9) // (len(batch) * (size + 24))):
            log.append_records_with_timeout(batch, None)
        log.flush()
        shutil.copytree(live, dead)  # as a kill leaves it
    os.sync()
    started = perf_counter()
    with AofManager.open(str(dead), config) as manager:
        manager.log("bench")
        return perf_counter() - started


def sliding(directory: Path, count: int) -> Mapping[str, float]:
    """Appends a second of 1 KiB records: a new log with the default sizes, and one that begins with large segments."""
    found = {}
    batch = records_of(1024, 100)
    for name, config in (("default sizes", AofConfig(flush=LAZY)), ("large from the start", configured())):
        with AofManager.open(str(directory / name.replace(" ", "-")), config) as manager:
            log = manager.log("bench")
            found[name] = rate(
                count, lambda log=log: [log.append_records_with_timeout(batch, None) for _ in range(count // 100)]
            )
    return found


def main() -> None:
    parser = BenchParser(__doc__, quick=Quick(share=10, rounds=2))
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--sliding", action="store_true", help="also compare sizes of segments")
    options = parser.options()
    rounds, share = options.rounds, options.share
    report = Report(
        "aof",
        f"Measured by `bench/aof.py` ({machine()}; {rounds} rounds). A ratio is records per second over the bare "
        "log's in the same round.",
        "what", "bytes", "batch", "contender", "ratio to the bare log", "records/s (median)", "MB/s", "own swing",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-aof-", dir=Path.cwd()) as scratch:
        where = Path(scratch)
        settings = [("", size, batch, SIZES[size] // share, False) for size in options.sizes for batch in BATCHES]
        size, batch, count = SYNCED_BATCH
        settings.append(("synced ", size, batch, count // share, True))
        for setting, size, batch, count, synced in settings:
            found = run_rounds_of_several(
                contenders(size, batch, max(batch, count), synced=synced), rounds=rounds, scratch=where
            )
            report.add(rows(setting, size, batch, found))
            for figure, results in found.items():
                if figure in {"append", "read"} and batch == max(BATCHES):
                    products = [results[name] for name in PRODUCTS if results[name].rates]
                    rival = max(products, key=lambda result: result.median)
                    what = f"{setting}{figure}, {size:,} bytes, batches of {batch:,}"
                    report.compare(what, results[NAME], rival, "records/s")
        typical, bad, worst = latencies(where, 20_000 // share)
        figures = f"{typical * 1e6:,.0f} µs, p99 {bad * 1e6:,.0f} µs, worst {worst * 1e3:,.1f} ms"
        report.add(["", f"Append to follower: {figures}."])
        for size in options.sizes:
            seconds = statistics.median(
                recovery_s(Path(tempfile.mkdtemp(dir=scratch)), size, (1 << 30) // share) for _ in range(rounds)
            )
            report.add([f"Opening {1024 // share} MiB of {size:,}-byte records after a kill: {seconds:.2f} s."])
        if options.sliding:
            for name, per_s in sliding(where, 400_000 // share).items():
                report.add([f"A new log, {name}: {per_s:,.0f} records of 1 KiB a second."])
    report.finish(options.write)


if __name__ == "__main__":
    main()
