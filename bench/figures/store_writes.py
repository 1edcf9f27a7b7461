"""The goals of the way in: durable appends, CPU per bundle, many producers, sealing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter, process_time

import pyarrow as pa

import quiver
from engine import ROOMY, SLOT, sources
from figures.goal import STORE, Figure, Goal, Run, percentile
from report import warm_memory
from rivals.stores import BareLog, GroupLog, LmdbQueue, RocksQueue, SqliteQueue

BARE, ZEROED = "bare log", "bare log, zeroed ahead"
MIB = 1 << 20
ZEROED_BYTES_MAX = 128 * 1024
"""Entries above this get no zeros ahead of them in a store."""


def blobs(records: int, record_bytes: int) -> list[pa.RecordBatch]:
    """Sixteen batches of *records* opaque records each."""
    return [pa.record_batch({"data": pa.array([os.urandom(record_bytes)] * records)}) for _ in range(16)]


def timed_each(
    append: Callable[[pa.RecordBatch], object], source: list[pa.RecordBatch], count: int
) -> dict[str, float]:
    took = []
    started = perf_counter()
    for number in range(count):
        before = perf_counter()
        append(source[number & 15])
        took.append(perf_counter() - before)
    seconds = perf_counter() - started
    return {
        "commits": count / seconds,
        "rows": count * source[0].num_rows / seconds,
        "mb": count * source[0].nbytes / 1e6 / seconds,
        "p50": percentile(took, 0.5) * 1e6,
        "p99": percentile(took, 0.99) * 1e6,
    }


def durable_store(source: list[pa.RecordBatch], count: int) -> Run:
    def run(directory: Path) -> dict[str, float]:
        with quiver.open(directory / "store", ROOMY) as store:
            ingest, bundle = store.ingest, quiver.Bundle
            # A running store, not one in its first second: its memory was used for the segment before.
            timed_each(lambda batch: ingest(bundle({SLOT: batch})), source, count)
            store.seal()
            timed_each(lambda batch: ingest(bundle({SLOT: batch}), durable=True), source, count // 10 + 1)
            warm_memory()  # again: the pages that were there went into the files of the first part
            return timed_each(lambda batch: ingest(bundle({SLOT: batch}), durable=True), source, count)

    return run


def durable_rival(make: Callable[[Path], object], source: list[pa.RecordBatch], count: int) -> Run:
    def run(directory: Path) -> dict[str, float]:
        rival = make(directory)
        try:
            timed_each(rival.append, source, count // 10 + 1)
            warm_memory()
            return timed_each(rival.append, source, count)
        finally:
            rival.close()

    return run


def durable(key: str, what: str, source: list[pa.RecordBatch], count: int, figures: tuple[Figure, ...]) -> Goal:
    zeroed_bytes = (2 * count * (source[0].nbytes + 1024) // MIB + 2) * MIB
    makers: dict[str, Callable[[Path], object]] = {
        BARE: lambda directory: BareLog(directory, sync_each=True),
        ZEROED: lambda directory: BareLog(directory, sync_each=True, zeroed_bytes=zeroed_bytes),
        "LMDB": lambda directory: LmdbQueue(directory, sync_each=True),
        "RocksDB": lambda directory: RocksQueue(directory, sync_each=True),
        "SQLite queue": lambda directory: SqliteQueue(directory, sync_each=True),
    }
    rivals = {name: durable_rival(make, source, count) for name, make in makers.items()}
    # Zeros ahead of large entries would write every byte twice: nobody does, and only before its time began is it free.
    floor = ZEROED if source[0].nbytes <= ZEROED_BYTES_MAX else BARE
    return Goal(key, what, {STORE: durable_store(source, count), **rivals}, figures, floor)


def cpu(rows: int, count: int, aim: str) -> Goal:
    source = sources(rows)

    def per_bundle(append: Callable[[pa.RecordBatch], object], flush: Callable[[], object]) -> dict[str, float]:
        for number in range(count):  # memory and caches as in a running process
            append(source[number & 15])
        flush()
        spent, started = process_time(), perf_counter()
        for number in range(count):
            append(source[number & 15])
        seconds = perf_counter() - started
        return {"cpu": (process_time() - spent) / count * 1e6, "rows": count * rows / seconds / 1e6}

    def store(directory: Path) -> dict[str, float]:
        with quiver.open(directory / "store", ROOMY) as store:
            ingest, bundle = store.ingest, quiver.Bundle
            return per_bundle(lambda batch: ingest(bundle({SLOT: batch})), store.seal)

    def bare(directory: Path) -> dict[str, float]:
        log = BareLog(directory, sync_each=False)
        try:
            return per_bundle(log.append, lambda: None)
        finally:
            log.close()

    figures = (
        Figure("cpu", "µs of CPU a bundle", aim, lower_is_better=True, style=",.1f"),
        Figure("rows", "M rows/s", "≥ 30" if rows == 1000 else "", style=",.1f"),
    )
    return Goal("P5", f"synced every 25 ms, {rows:,} rows", {STORE: store, BARE: bare}, figures, BARE)


def producing(
    append: Callable[[pa.RecordBatch], object], source: list[pa.RecordBatch], producers: int, count: int
) -> dict[str, float]:
    took: list[float] = []
    gate = threading.Barrier(producers + 1)

    def produce(number: int) -> None:
        mine = []
        gate.wait()
        for turn in range(count):
            before = perf_counter()
            append(source[(number + turn) & 15])
            mine.append(perf_counter() - before)
        took.extend(mine)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(producers)]
    for thread in threads:
        thread.start()
    gate.wait()
    started = perf_counter()
    for thread in threads:
        thread.join()
    seconds = perf_counter() - started
    return {
        "acks": producers * count / seconds,
        "mb": producers * count * source[0].nbytes / 1e6 / seconds,
        "p99": percentile(took, 0.99) * 1e3,
    }


def group(producers: int, record_bytes: int, count: int, aims: tuple[str, str]) -> Goal:
    source = blobs(1, record_bytes)
    zeroed_bytes = (2 * producers * count * (record_bytes + 1024) // MIB + 2) * MIB

    def store(directory: Path) -> dict[str, float]:
        with quiver.open(directory / "store", ROOMY) as store:
            ingest, bundle = store.ingest, quiver.Bundle
            producing(lambda batch: ingest(bundle({SLOT: batch})), source, producers, count)  # as in `durable_store`
            store.seal()
            warm_memory()
            return producing(lambda batch: ingest(bundle({SLOT: batch}), durable=True), source, producers, count)

    def log(zeros: int) -> Run:
        def run(directory: Path) -> dict[str, float]:
            shared = GroupLog(directory, zeroed_bytes=zeros)
            try:
                producing(shared.append, source, producers, count // 10 + 1)
                warm_memory()
                return producing(shared.append, source, producers, count)
            finally:
                shared.close()

        return run

    figures: tuple[Figure, ...] = (
        Figure("acks", "acks/s", aims[0]), Figure("p99", "p99, ms", aims[1], lower_is_better=True, style=",.2f"),
    )  # fmt: skip
    if record_bytes > 1024:
        figures = (Figure("mb", "MB/s", aims[0]),)
    what = f"{producers} producers × {record_bytes // 1024} KiB"
    return Goal("P6", what, {STORE: store, BARE: log(0), ZEROED: log(zeroed_bytes)}, figures, ZEROED)


def sealing(bundles: int) -> Goal:
    source = sources(1_000)
    size_mb = bundles * source[0].nbytes / 1e6

    def store(directory: Path) -> dict[str, float]:
        with quiver.open(directory / "store", ROOMY) as store:
            ingest, bundle = store.ingest, quiver.Bundle
            timed_each(lambda batch: ingest(bundle({SLOT: batch})), source, bundles)
            store.seal()
            quiet = timed_each(lambda batch: ingest(bundle({SLOT: batch})), source, bundles)
            started = perf_counter()
            store.seal()
            seconds = perf_counter() - started
            timed_each(lambda batch: ingest(bundle({SLOT: batch})), source, bundles)
            thread = threading.Thread(target=store.seal)
            thread.start()
            beside = []
            while thread.is_alive() or not beside:
                before = perf_counter()
                ingest(bundle({SLOT: source[len(beside) & 15]}))
                beside.append(perf_counter() - before)
            thread.join()
            p99 = percentile(beside, 0.99) * 1e6
            return {"ms": seconds * 1e3, "mb": size_mb / seconds, "during": p99 / quiet["p99"]}

    def bare(directory: Path) -> dict[str, float]:
        messages = [source[number & 15].serialize() for number in range(bundles)]
        started = perf_counter()
        with (directory / "file.tmp").open("wb", buffering=0) as file:
            for first in range(0, bundles, 512):
                os.writev(file.fileno(), messages[first : first + 512])
            os.fsync(file.fileno())
        (directory / "file.tmp").rename(directory / "file")
        parent = os.open(directory, os.O_RDONLY)
        os.fsync(parent)
        os.close(parent)
        seconds = perf_counter() - started
        return {"ms": seconds * 1e3, "mb": size_mb / seconds, "during": 1.0}

    figures = (
        Figure("ms", "ms", "≤ 40", lower_is_better=True, style=",.1f"),
        Figure("mb", "MB/s", "≥ 800"),
        Figure("during", "p99 of ingest meanwhile ÷ p99 before", "≤ 2", lower_is_better=True, style=",.1f"),
    )
    return Goal("P7", f"seal {size_mb:.0f} MB", {STORE: store, "bare file": bare}, figures, "bare file")


def goals(scale: int) -> Iterator[Goal]:
    """Return P1 to P7 with their work divided by *scale*."""
    p50 = Figure("p50", "p50, µs", "≤ 125", lower_is_better=True)
    yield durable("P1", "1 KiB, synced", blobs(1, 1024), 5_000 // scale, (Figure("commits", "acks/s", "≥ 8,000"), p50))
    yield durable(
        "P2", "100 × 1 KiB, synced", blobs(100, 1024), 1_500 // scale, (Figure("rows", "records/s", "≥ 450,000"),)
    )
    yield durable("P3", "16 × 64 KiB, synced", blobs(16, 65_536), 200 // scale, (Figure("mb", "MB/s", "≥ 1,900"),))
    for rows, count, aim in ((1_000, 1_500, "≥ 6,500,000"), (8_192, 200, "≥ 25,000,000")):
        yield durable("P4", f"{rows:,} rows, synced", sources(rows), count // scale, (Figure("rows", "rows/s", aim),))
    for rows, count, aim in ((10, 20_000, "≤ 6"), (100, 10_000, "≤ 6"), (1_000, 1_000, ""), (8_192, 120, "≤ 30")):
        yield cpu(rows, max(count // scale, 10), aim)
    yield group(16, 1024, max(1_000 // scale, 4), ("≥ 36,000", "≤ 0.8"))
    yield group(64, 1024, max(400 // scale, 4), ("≥ 40,000", "≤ 3.2"))
    yield group(16, 65_536, max(100 // scale, 4), ("≥ 1,100", ""))
    yield sealing(max(560 // scale, 10))
