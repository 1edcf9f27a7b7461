"""
One engine's turn, in a process of its own: what `bench/rivals/rust_engine` does with the Rust engine, done with the
store, with the same words, the same data and the same line of JSON.

    .venv/bin/python bench/engine.py bench MODE ROWS BUNDLES DIRECTORY     MODE is wal, synced or segment_only
    .venv/bin/python bench/engine.py runs MODE ROWS BUNDLES DIRECTORY      the same, delivered in runs
    .venv/bin/python bench/engine.py received MODE ROWS BUNDLES DIRECTORY  the same as bench, with batches from messages
    .venv/bin/python bench/engine.py fill ROWS BUNDLES DIRECTORY           log so many bundles, seal nothing, die
    .venv/bin/python bench/engine.py reopen DIRECTORY                      time the replay, then the sealing
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import pyarrow as pa

import quiver

SLOT = 30
SOURCES = 16
HOUR_S = 3600.0
GIB = 1 << 30
RUN = 256

MODES = {
    "wal": quiver.Settings(segment_open_s_max=HOUR_S),
    "synced": quiver.Settings(segment_open_s_max=HOUR_S, wal_flush_interval_s=0.0),
    "segment_only": quiver.Settings(segment_open_s_max=HOUR_S, durability="segment_only"),
}
ROOMY = quiver.Settings(segment_open_s_max=HOUR_S, segment_bytes_max=GIB, wal_bytes_max=2 * GIB, wal_rotate_bytes=GIB)
"""Everything stays in one log file and one open segment."""


def sources(rows: int) -> list[pa.RecordBatch]:
    """Sixteen different batches: int64, int64 and 43 bytes of text a row, 63 raw bytes."""
    return [
        pa.record_batch(
            {
                "timestamp": pa.array(range(1_700_000_000_000 + seed, 1_700_000_000_000 + seed + rows)),
                "value": pa.array([row * 100 + seed for row in range(rows)]),
                "message": pa.array([f"Log message number {row:06d} with content {seed:04d}" for row in range(rows)]),
            }
        )
        for seed in range(SOURCES)
    ]


def received(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return *batches* as a receiver has them: their buffers are views of an immutable message."""
    messages = [bytes(batch.serialize()) for batch in batches]
    return [pa.ipc.read_record_batch(pa.py_buffer(message), batches[0].schema) for message in messages]


def deliver_and_ack(store: quiver.Store) -> dict[str, float]:
    subscriber = store.register("bench", start="earliest")
    delivered = rows = 0
    started, spent = perf_counter(), process_time()
    while (handle := subscriber.next_bundle(timeout=0)) is not None:
        delivered += 1
        rows += handle.bundle[SLOT].num_rows
        handle.ack()
    return {
        "delivered": delivered,
        "rows": rows,
        "deliver_s": perf_counter() - started,
        "deliver_processor_s": process_time() - spent,
    }


def deliver_in_runs(store: quiver.Store) -> dict[str, float]:
    subscriber = store.register("bench", start="earliest")
    delivered = rows = 0
    started, spent = perf_counter(), process_time()
    while (run := subscriber.next_run(RUN, timeout=0)) is not None:
        delivered += len(run)
        for _, bundle in run:
            rows += bundle[SLOT].num_rows
        run.ack()
    return {
        "delivered": delivered,
        "rows": rows,
        "deliver_s": perf_counter() - started,
        "deliver_processor_s": process_time() - spent,
    }


def bench(
    mode: str,
    source: list[pa.RecordBatch],
    bundles: int,
    directory: Path,
    deliver: Callable[[quiver.Store], dict[str, float]],
) -> dict[str, float]:
    bundle = quiver.Bundle
    with quiver.open(directory, MODES[mode]) as store:
        ingest = store.ingest
        # A running store, not one in its first second: its memory was used for segments before.
        for number in range(bundles):
            ingest(bundle({SLOT: source[number & 15]}))
        store.seal()
        started, spent = perf_counter(), process_time()
        for number in range(bundles):
            ingest(bundle({SLOT: source[number & 15]}))
        ingest_s = perf_counter() - started
        store.seal()
        total_s, total_processor_s = perf_counter() - started, process_time() - spent
        times = {"ingest_s": ingest_s, "total_s": total_s, "total_processor_s": total_processor_s}
        return {"bundles": bundles, **times, **deliver(store)}


def fill(rows: int, bundles: int, directory: Path) -> dict[str, float]:
    source = sources(rows)
    store = quiver.open(directory, ROOMY)
    for number in range(bundles):
        store.ingest(quiver.Bundle({SLOT: source[number & 15]}))
    store.sync()
    return {"bundles": bundles}


def import_all() -> None:
    """Import the modules that opening a store needs, which a process does once."""
    with tempfile.TemporaryDirectory() as scratch, quiver.open(Path(scratch) / "store", ROOMY):
        pass


def reopen(directory: Path) -> dict[str, float]:
    import_all()
    started, spent = perf_counter(), process_time()
    store = quiver.open(directory, ROOMY)
    opened, spent_at_open = perf_counter(), process_time()
    store.seal()
    flushed, spent_at_seal = perf_counter(), process_time()
    size = sum(path.stat().st_size for path in (directory / "segments").iterdir())
    return {
        "open_s": opened - started,
        "open_processor_s": spent_at_open - spent,
        "finalize_s": flushed - opened,
        "finalize_processor_s": spent_at_seal - spent_at_open,
        "segment_bytes": size,
        "delivered": deliver_and_ack(store)["delivered"],
    }


def main(words: list[str]) -> None:
    match words:
        case ["bench", mode, rows, bundles, directory]:
            found = bench(mode, sources(int(rows)), int(bundles), Path(directory), deliver_and_ack)
        case ["runs", mode, rows, bundles, directory]:
            found = bench(mode, sources(int(rows)), int(bundles), Path(directory), deliver_in_runs)
        case ["received", mode, rows, bundles, directory]:
            found = bench(mode, received(sources(int(rows))), int(bundles), Path(directory), deliver_and_ack)
        case ["fill", rows, bundles, directory]:
            found = fill(int(rows), int(bundles), Path(directory))
        case ["reopen", directory]:
            found = reopen(Path(directory))
        case _:
            sys.exit(__doc__)
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # `fill` must die without closing; the others have nothing left to lose


if __name__ == "__main__":
    main(sys.argv[1:])
