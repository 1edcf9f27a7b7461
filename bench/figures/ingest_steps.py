"""
Where the processor time of `ingest` is spent: each of its steps alone, then all of it, then the seal.

A step alone finds its data in the processor's caches, and writes over the same bytes of a file, so the steps together
take less than `ingest`. Run it again with QUIVER_PURE=1 for the twins in Python.

    PYTHONPATH=bench .venv/bin/python bench/figures/ingest_steps.py [--rounds N] [--rows N …]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import thread_time

import quiver
from engine import HOUR_S, ROOMY, SLOT, sources
from quiver.primitives.arena import Arena, BlockPool
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.kernel import describe_kernel
from quiver.store.encode import SlotEncoder, keep_messages
from quiver.store.entries import ENTRY_OVERHEAD, _write_entry
from quiver.store.segment.accumulator import OpenSegment

BUNDLES = {10: 20_000, 100: 8_000, 1_000: 1_000, 8_192: 200}
SEGMENT_ONLY = quiver.Settings(
    segment_open_s_max=HOUR_S, segment_bytes_max=ROOMY.segment_bytes_max, durability="segment_only"
)
Step = Callable[[], object]


def repeated(count: int, one: Callable[[int], object]) -> Step:
    """Return a function that calls *one* for each bundle, and keeps no result: memory is reused, as in `ingest`."""

    def run() -> None:
        for number in range(count):
            one(number & 15)

    return run


def steps(rows: int, count: int, directory: Path) -> Iterator[tuple[str, Step]]:
    """Yield the steps of one bundle, each as a function that does it *count* times."""
    source = sources(rows)
    bundles = [quiver.Bundle({SLOT: batch}) for batch in source]
    encode = SlotEncoder().encode
    encoded = [encode({SLOT: batch}) for batch in source]
    messages = [bundle.slots[0].message for bundle in encoded]
    nbytes = encoded[0].nbytes + ENTRY_OVERHEAD
    arena = Arena(BlockPool(keep_bytes_max=1 << 30))
    region = arena.take(nbytes)
    file = REAL_FILES.create_or_truncate(f"{directory}/entries")

    def lay_out() -> None:
        for number in range(count):
            bundle = encoded[number & 15]
            bundle.slots[0].message = messages[number & 15]
            _write_entry(arena.take(nbytes), 1, number, bundle.bitmap, bundle.slots)
        arena.release()

    def keep() -> None:
        for number in range(count):
            bundle = encoded[number & 15]
            bundle.slots[0].message = messages[number & 15]
            keep_messages(bundle.slots, arena)
        arena.release()

    def collect() -> None:
        segment = OpenSegment(streams_max=64)
        for number in range(count):
            segment.append(encoded[number & 15].slots, 1, number, 1, 1, nbytes)

    def write() -> None:
        for number in range(count):
            file.pwritev((region,), number * nbytes, nbytes)

    yield "make the bundle", repeated(count, lambda number: quiver.Bundle({SLOT: source[number]}))
    yield "serialize the batch (Arrow)", repeated(count, lambda number: source[number].serialize())
    yield "encode the bundle, with that", repeated(count, lambda number: encode(bundles[number]._slots))  # noqa: SLF001
    yield "lay out the log entry", lay_out
    yield "write the log entry", write
    yield "keep the message, without a log", keep
    yield "add it to the open segment", collect
    file.close()


def ingests(rows: int, count: int, directory: Path, settings: quiver.Settings) -> tuple[float, float]:
    """Return the seconds of *count* calls of `ingest`, and of the seal, in this thread."""
    bundles = [quiver.Bundle({SLOT: batch}) for batch in sources(rows)]
    with quiver.open(directory, settings, background=False) as store:
        for _ in range(2):  # the second segment reuses the memory of the first
            started = thread_time()
            for number in range(count):
                store.ingest(bundles[number & 15])
            ingested = thread_time()
            store.seal()
        return ingested - started, thread_time() - ingested


def main() -> None:
    parser = argparse.ArgumentParser(description="Show where the processor time of ingest is spent.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", nargs="*", type=int, default=[10, 100])
    options = parser.parse_args()
    print(describe_kernel())
    for rows in options.rows:
        count = BUNDLES[rows]
        found: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(prefix="bench-ingest-", dir=Path.cwd()) as scratch:
                gc.collect()
                for name, step in steps(rows, count, Path(scratch)):
                    started = thread_time()
                    step()
                    found.setdefault(name, []).append(thread_time() - started)
                for words, settings in (("log", ROOMY), ("segment only", SEGMENT_ONLY)):
                    both = ingests(rows, count, Path(scratch) / words, settings)
                    for name, seconds in zip((f"ingest, {words}", f"seal, {words}"), both, strict=True):
                        found.setdefault(name, []).append(seconds)
        for name, seconds in found.items():
            low, middle, high = (
                each / count * 1e6 for each in (min(seconds), statistics.median(seconds), max(seconds))
            )
            print(f"{rows} rows, {name}: {middle:.2f} µs per bundle ({low:.2f}-{high:.2f})")


if __name__ == "__main__":
    main()
