"""
Real processes, real disk, real kill -9: what was confirmed through a pipe is there afterwards.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pyarrow as pa
import pytest

import quiver

SETTINGS = quiver.Settings(
    segment_bytes_max=6_000,
    wal_rotate_bytes=9_000,
    wal_bytes_max=100_000,
    delete_grace_s=0.0,
    segment_open_s_max=0.02,
    maintain_interval_s=0.005,
)


def numbered(number: int) -> quiver.Bundle:
    return quiver.Bundle({30: pa.record_batch({"n": pa.array([number]), "pad": pa.array(["x" * (number % 97)])})})


def work(directory: Path, first: int, confirm: int) -> None:
    """The child: ingest, confirm each number, consume some of it, until killed."""
    store = quiver.open(directory, SETTINGS)
    subscriber = store.register("s", start="earliest")
    number = first
    while True:
        store.ingest(numbered(number), durable=number % 5 == 0)
        os.write(confirm, b"i%d\n" % number)
        number += 1
        handle = subscriber.next_bundle(timeout=0) if number % 3 == 0 else None
        if handle is not None:
            os.write(confirm, b"a%d\n" % handle.bundle[30]["n"][0].as_py())
            handle.ack()


def run_and_kill(directory: Path, first: int, after_lines: int) -> tuple[list[int], list[int]]:
    """Fork a child, kill it after so many confirmations, and return what it confirmed: ingested, delivered."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            work(directory, first, write_end)
        finally:
            os._exit(1)
    os.close(write_end)
    lines: list[bytes] = []
    rest = b""
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        while len(lines) < after_lines and (piece := pipe.read(4096)):
            *whole, rest = (rest + piece).split(b"\n")
            lines += whole
        os.kill(child, signal.SIGKILL)
        while piece := pipe.read(4096):
            *whole, rest = (rest + piece).split(b"\n")
            lines += whole
    os.waitpid(child, 0)
    ingested = [int(line[1:]) for line in lines if line[:1] == b"i"]
    delivered = [int(line[1:]) for line in lines if line[:1] == b"a"]
    return ingested, delivered


def cycles(directory: Path, count: int, seed: int) -> None:
    chance = random.Random(seed)
    accepted: set[int] = set()
    delivered: set[int] = set()
    first = 0
    for _ in range(count):
        ingested, acked = run_and_kill(directory, first, chance.randint(1, 150))
        accepted |= set(ingested)
        delivered |= set(acked)
        # The one that was being ingested when the kill came may be there or not; its number is not used again.
        first = max([first, *(number + 1 for number in ingested)]) + 1
    with quiver.open(directory, SETTINGS) as store:
        store.flush()
        subscriber = store.register("s", start="earliest")
        got = []
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            got.append(handle.bundle[30]["n"][0].as_py())
            handle.ack()
    assert got == sorted(set(got)), f"seed {seed}"
    missing = accepted - delivered - set(got)
    assert not missing, f"seed {seed}: {sorted(missing)}"


def test_kill_9_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    """A few cycles in every run of the tests."""
    cycles(tmp_path / "store", 8, seed=random.Random().randrange(10**6))


@pytest.mark.kill
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(20))
def test_kill_9_many_times(tmp_path: Path, seed: int) -> None:
    """Fifty cycles on one directory, twenty times."""
    cycles(tmp_path / "store", 50, seed=seed)
