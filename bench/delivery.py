"""
Processor time of delivery, a bundle: one by one, many at once, in runs; beside a bare pyarrow stream of the same file.

The contenders take turns in one process, each as a new subscriber of one sealed store whose file is verified. The time
is that of the process, so other programs on the machine matter little.

    .venv/bin/python bench/delivery.py [--rows 10 100] [--bundles N] [--rounds N]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

import pyarrow as pa

import engine
import quiver
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.segment.reader import SegmentReader

SLOT = engine.SLOT
COUNT = 256


def one_by_one(subscriber: quiver.Subscriber) -> None:
    while (handle := subscriber.next_bundle(timeout=0)) is not None:
        handle.bundle[SLOT].num_rows  # noqa: B018 - the batch is made
        handle.ack()


def many_at_once(subscriber: quiver.Subscriber) -> None:
    while handles := subscriber.next_bundles(COUNT, timeout=0):
        for handle in handles:
            handle.bundle[SLOT].num_rows  # noqa: B018
        subscriber.ack_all(handles)


def in_runs(subscriber: quiver.Subscriber) -> None:
    while (run := subscriber.next_run(COUNT, timeout=0)) is not None:
        for _, bundle in run:
            bundle[SLOT].num_rows  # noqa: B018
        run.ack()


WAYS: dict[str, Callable[[quiver.Subscriber], None]] = {
    "next_bundle, ack": one_by_one,
    f"next_bundles({COUNT}), ack_all": many_at_once,
    f"next_run({COUNT}), ack": in_runs,
}
BARE = "bare pyarrow stream"


def bare(data: list[memoryview]) -> None:
    for of_stream in data:
        for batch in pa.ipc.open_stream(pa.py_buffer(of_stream)):
            batch.num_rows  # noqa: B018


def streams(reader: SegmentReader) -> list[memoryview]:
    """Return each stream of a segment, from its schema message on."""
    file = memoryview(Path(reader.path).read_bytes())
    regions = [file[one.byte_offset :][: one.byte_length] for one in reader.streams.values()]
    return [region[bytes(region[:128]).index(b"\xff\xff\xff\xff") :] for region in regions]


def measure(rows: int, bundles: int, rounds: int, directory: Path) -> dict[str, list[float]]:
    source = engine.sources(rows)
    found: dict[str, list[float]] = {name: [] for name in (*WAYS, BARE)}
    with quiver.open(directory, engine.MODES["segment_only"]) as store:
        for number in range(bundles):
            store.ingest(quiver.Bundle({SLOT: source[number & 15]}))
        store.seal()
        one_by_one(store.register("first", start="earliest"))
        readers = [SegmentReader.open(REAL_FILES, info.path) for info in store.internals.catalog.segments()]
        data = [one for reader in readers for one in streams(reader)]
        for turn in range(rounds):
            for number, (name, way) in enumerate(WAYS.items()):
                subscriber = store.register(f"way-{turn}-{number}", start="earliest")
                started = process_time()
                way(subscriber)
                found[name].append((process_time() - started) / bundles * 1e6)
            started = process_time()
            bare(data)
            found[BARE].append((process_time() - started) / bundles * 1e6)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", type=int, default=[10, 100])
    parser.add_argument("--bundles", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| rows | way | µs a bundle (median) | lowest to highest |\n|---|---|---|---|")
    for rows in options.rows:
        with tempfile.TemporaryDirectory(prefix="bench-delivery-") as scratch:
            for name, spent in measure(rows, options.bundles, options.rounds, Path(scratch) / "store").items():
                print(f"| {rows} | {name} | {median(spent):.2f} | {min(spent):.2f} to {max(spent):.2f} |", flush=True)


if __name__ == "__main__":
    main()
