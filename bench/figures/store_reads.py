"""
The goals of the way out: reading, replay, acknowledging, draining a backlog, what the buffer costs,
bytes on disk.
"""

from __future__ import annotations

import mmap
import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from isal.isal_zlib import crc32

import quiver
from engine import MODES, ROOMY, SLOT, sources
from figures.goal import STORE, Figure, Goal, Run
from rivals.stores import BareLog, replay_bare_log

IPC, RAW = "mapped Arrow file and its checksum", "files read with readinto"


def filled(directory: Path, rows: int, bundles: int, settings: quiver.Settings = MODES["wal"]) -> list[pa.RecordBatch]:
    """Make a store with so many bundles in sealed segments."""
    source = sources(rows)
    with quiver.open(directory, settings) as store:
        for number in range(bundles):
            store.ingest(quiver.Bundle({SLOT: source[number & 15]}))
        store.seal()
    return source


def drain(directory: Path, take: Callable[[pa.RecordBatch], object]) -> tuple[int, float]:
    """Deliver and acknowledge everything: rows and seconds, opening not counted."""
    rows = 0
    with quiver.open(directory, MODES["wal"]) as store:
        subscriber = store.register("drain", start="earliest")
        started = perf_counter()
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            batch = handle.bundle[SLOT]
            take(batch)
            rows += batch.num_rows
            handle.ack()
        return rows, perf_counter() - started


def reading(rows: int, bundles: int, aim: str) -> Goal:
    def store(directory: Path) -> dict[str, float]:
        filled(directory / "store", rows, bundles)
        started = perf_counter()
        seen = sum(bundle[SLOT].num_rows for _, bundle in quiver.read(directory / "store").bundles())
        return {"rows": seen / (perf_counter() - started) / 1e6}

    def delivered(directory: Path) -> dict[str, float]:
        filled(directory / "store", rows, bundles)
        seen, seconds = drain(directory / "store", lambda _: None)
        return {"rows": seen / seconds / 1e6}

    def floor(directory: Path) -> dict[str, float]:
        source = sources(rows)
        path = directory / "file.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, source[0].schema) as writer:
            for number in range(bundles):
                writer.write_batch(source[number & 15])
        started = perf_counter()
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        crc32(mapped)
        reader = pa.ipc.open_file(pa.py_buffer(mapped))
        seen = sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))
        return {"rows": seen / (perf_counter() - started) / 1e6}

    contenders: dict[str, Run] = {STORE: store, "Quiver, delivered and acknowledged": delivered, IPC: floor}
    return Goal("P8", f"read {rows:,}-row bundles", contenders, (Figure("rows", "M rows/s", aim, style=",.1f"),), IPC)


def replaying(rows: int, bundles: int) -> Goal:
    def fill(directory: Path) -> int:
        store = quiver.open(directory, ROOMY, background=False)
        source = sources(rows)
        for number in range(bundles):
            store.ingest(quiver.Bundle({SLOT: source[number & 15]}))
        store.sync()
        # As a crash leaves it: the files as they are, the lock with whoever held it.
        (directory.parent / "left" / "wal").mkdir(parents=True)
        (directory / "wal" / "quiver.wal").rename(directory.parent / "left" / "wal" / "quiver.wal")
        return (directory.parent / "left" / "wal" / "quiver.wal").stat().st_size

    def store(directory: Path) -> dict[str, float]:
        size = fill(directory / "store")
        started = perf_counter()
        opened = quiver.open(directory / "left", ROOMY, background=False)
        seconds = perf_counter() - started
        found = opened.stats()["open_bundles"]
        if found != bundles:
            raise ValueError(f"{found} of {bundles} bundles came back")
        return {"mb": size / 1e6 / seconds}

    def floor(directory: Path) -> dict[str, float]:
        size = fill(directory / "store")
        started = perf_counter()
        found = replay_bare_log(directory / "left" / "wal" / "quiver.wal", 38)
        seconds = perf_counter() - started
        if found != bundles:
            raise ValueError(f"{found} of {bundles} entries were read")
        return {"mb": size / 1e6 / seconds}

    name = "every checksum and batch, kept nowhere"
    return Goal(
        "P9", f"replay {rows:,}-row bundles", {STORE: store, name: floor}, (Figure("mb", "MB/s", "≥ 1,000"),), name
    )


def acknowledging(bundles: int) -> Goal:
    def store(directory: Path) -> dict[str, float]:
        filled(directory / "store", 10, bundles, ROOMY)
        with quiver.open(directory / "store", ROOMY, background=False) as store:
            subscriber = store.register("acks", start="earliest")
            handles = [subscriber.next_bundle(timeout=0) for _ in range(bundles)]
            started = perf_counter()
            for handle in handles:
                handle.ack()
            seconds = perf_counter() - started
            started = perf_counter()
            written = store.maintain()
            return {
                "acks": bundles / seconds, "tick": (perf_counter() - started) * 1e6, "files": written.progress_written,
            }  # fmt: skip

    def floor(directory: Path) -> dict[str, float]:
        bits, lock = bytearray(bundles // 8 + 1), threading.Lock()
        started = perf_counter()
        for number in range(bundles):
            with lock:
                bits[number >> 3] |= 1 << (number & 7)
        seconds = perf_counter() - started
        started = perf_counter()
        with (directory / "progress.tmp").open("wb", buffering=0) as file:
            file.write(bits)
            os.fsync(file.fileno())
        (directory / "progress.tmp").rename(directory / "progress")
        parent = os.open(directory, os.O_RDONLY)
        os.fsync(parent)
        os.close(parent)
        return {"acks": bundles / seconds, "tick": (perf_counter() - started) * 1e6, "files": 1}

    figures = (
        Figure("acks", "acks/s", "≥ 500,000"),
        Figure("tick", "µs for the tick that writes them", "≤ 365", lower_is_better=True),
        Figure("files", "progress files written", "1", lower_is_better=True),
    )
    return Goal("P10", "acknowledge", {STORE: store, "a bitmap and its file": floor}, figures, "a bitmap and its file")


def forget_pages(directory: Path) -> list[Path]:
    """Write the files of *directory* back and drop them from the page cache."""
    files = sorted(path for path in directory.rglob("*.qseg"))
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    return files


def backlog(size_bytes: int) -> Goal:
    rows = 8_192
    bundles = max(2, size_bytes // (rows * 63))

    def store(directory: Path) -> dict[str, float]:
        filled(directory / "store", rows, bundles)
        size = sum(path.stat().st_size for path in forget_pages(directory / "store"))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        _, seconds = drain(directory / "store", lambda batch: pc.sum(batch.column(1)))
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        return {"mb": size / 1e6 / seconds, "memory": grown / 1024 + 1}

    def floor(directory: Path) -> dict[str, float]:
        filled(directory / "store", rows, bundles)
        files = forget_pages(directory / "store")
        block = bytearray(1 << 20)
        size, started = 0, perf_counter()
        for path in files:
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(block):
                    size += count
        return {"mb": size / 1e6 / (perf_counter() - started), "memory": 1}

    figures = (
        Figure("mb", "MB/s", "≥ 0.80 of the floor"),
        Figure("memory", "MiB that the process grew by", style=",.0f", lower_is_better=True),
    )
    return Goal("P11", f"drain {size_bytes >> 20:,} MiB not in memory", {STORE: store, RAW: floor}, figures, RAW)


def pipeline(batches: int) -> Goal:
    source = sources(8_192)

    def write(directory: Path, number: int, batch: pa.RecordBatch) -> None:
        pq.write_table(pa.Table.from_batches([batch]), directory / f"{number}.parquet", compression="zstd")

    def direct(directory: Path) -> dict[str, float]:
        started = perf_counter()
        for number in range(batches):
            write(directory, number, source[number & 15])
        return {"rows": batches * 8_192 / (perf_counter() - started)}

    def buffered(directory: Path) -> dict[str, float]:
        with quiver.open(directory / "store", MODES["wal"]) as store:
            subscriber = store.register("exporter", start="earliest")
            started = perf_counter()
            written = 0
            for number in range(batches):
                store.ingest(quiver.Bundle({SLOT: source[number & 15]}))
                while (handle := subscriber.next_bundle(timeout=0)) is not None:
                    write(directory, written, handle.bundle[SLOT])
                    handle.ack()
                    written += 1
            store.seal()
            while (handle := subscriber.next_bundle(timeout=0)) is not None:
                write(directory, written, handle.bundle[SLOT])
                handle.ack()
                written += 1
            return {"rows": written * 8_192 / (perf_counter() - started)}

    contenders: dict[str, Run] = {STORE: buffered, "no buffer": direct}
    return Goal(
        "P12", "batches to Parquet", contenders, (Figure("rows", "rows/s", "≥ 0.95 of the floor"),), "no buffer"
    )


def written_bytes() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    raise ValueError("the kernel does not say how many bytes were written")


def amplification(rows: int, bundles: int, mode: str) -> Goal:
    source = sources(rows)
    raw = bundles * rows * 63

    def store(directory: Path) -> dict[str, float]:
        with quiver.open(directory / "store", MODES[mode]) as store:
            before = written_bytes()
            start = store.stats()["wal_position"]
            for number in range(bundles):
                store.ingest(quiver.Bundle({SLOT: source[number & 15]}))
            logged = store.stats()["wal_position"] - start
            store.seal()
            total = written_bytes() - before
        sealed = sum(path.stat().st_size for path in (directory / "store" / "segments").iterdir())
        return {"log": logged / raw, "segment": sealed / raw, "total": total / raw}

    def floor(directory: Path) -> dict[str, float]:
        log = BareLog(directory, sync_each=mode == "synced")
        for number in range(bundles):
            log.append(source[number & 15])
        share = log.offset / raw
        log.close()
        return {"log": share, "segment": share, "total": 2 * share}

    figures = (
        Figure("log", "log ÷ raw bytes", "≤ 1.05", lower_is_better=True, style=".3f"),
        Figure("segment", "segments ÷ raw bytes", "≤ 1.05", lower_is_better=True, style=".3f"),
        Figure("total", "all bytes written ÷ raw bytes", "≤ 2.1", lower_is_better=True, style=".3f"),
    )
    what = f"{rows:,} rows, {'synced each' if mode == 'synced' else '25 ms'}"
    return Goal("P14", what, {STORE: store, "bare log": floor}, figures, "bare log")


def goals(scale: int) -> Iterator[Goal]:
    """Return P8 to P12 and P14 with their work divided by *scale*."""
    yield reading(1_000, 4_000 // scale, "≥ 55")
    yield reading(8_192, 500 // scale, "≥ 160")
    yield replaying(1_000, 2_000 // scale)
    yield replaying(8_192, 300 // scale)
    yield acknowledging(50_000 // scale)
    yield backlog((1 << 30) // scale)
    yield pipeline(max(400 // scale, 16))
    for mode in ("wal", "synced"):
        yield amplification(1_000, 3_000 // scale, mode)
