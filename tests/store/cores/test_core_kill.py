"""One process per core, killed at random at the size cap: no accepted bundle is lost."""

from __future__ import annotations

import itertools
import os
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from core_processes import CAP_BYTES, SEGMENT_BYTES, disk_bytes, settings
from core_rig import numbered

import quiver
from clean_process import PROCESSES
from quiver import CapacityError
from store_rig import number_of

CORES = 3


def _work(root: Path, core: int, first: int, ready: Connection) -> None:
    """Ingest and acknowledge forever. Files record accepted bundles, and those about to be acknowledged."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    accepted, taken = (os.open(root.parent / name, flags) for name in ("accepted", "taken"))
    with quiver.open(root, settings(), cores=CORES, core=core) as store:
        subscriber = store.register("one", start="earliest")
        ready.send(None)
        for number in itertools.count(first):
            try:
                store.ingest(numbered(number, size=4_000), timeout=0.01)
                os.write(accepted, b"%d\n" % number)
            except CapacityError:
                store.seal()
            # It lags for a while so that the cap applies, and catches up.
            while number % 40 < 20 and (handle := subscriber.next_bundle(timeout=0)) is not None:
                os.write(taken, b"%d\n" % number_of(handle.bundle))
                handle.ack()


def _noted(path: Path) -> list[int]:
    return [int(line) for line in path.read_bytes().split(b"\n")[:-1]]


@pytest.mark.kill
def test_random_kills_of_cores_lose_no_accepted_bundle(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Disk use exceeds the cap by at most one segment for each core."""
    cycles = max(10, pytestconfig.getoption("--kill-cycles") // 50)
    chance = random.Random(18)
    root = tmp_path / "buffer"
    processes: dict[int, Any] = {}
    ready: dict[int, Connection] = {}
    numbers = itertools.count()

    def start(core: int) -> None:
        ours, theirs = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=_work, args=(root, core, next(numbers) * 1_000_000, theirs), daemon=True)
        process.start()
        theirs.close()
        processes[core], ready[core] = process, ours

    for core in range(CORES):
        start(core)
    most = 0
    try:
        for _ in range(cycles):
            core = chance.randrange(CORES)
            if chance.random() < 0.7:  # the others are killed during or shortly after their start
                ready[core].recv()
            time.sleep(chance.uniform(0.0, 0.2))  # at any moment, which is the purpose of this test
            processes[core].kill()
            processes[core].join()
            ready[core].close()
            assert processes[core].exitcode == -9, "it ended by itself"
            most = max(most, disk_bytes(root))
            start(core)
    finally:
        for process in processes.values():
            process.kill()
            process.join()
        for pipe in ready.values():
            pipe.close()
    # A killed process leaves its log unsealed, and the next one seals it: the bundles briefly exist twice.
    assert most <= CAP_BYTES + CORES * 3 * SEGMENT_BYTES
    late = []
    with quiver.open(root, settings(), cores=CORES, background=False) as store:
        subscriber = store.register("one", start="earliest")
        store.seal()
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            late.append(number_of(handle.bundle))
            handle.ack()
    accepted = set(_noted(tmp_path / "accepted"))
    assert len(accepted) > cycles
    assert accepted <= set(_noted(tmp_path / "taken")) | set(late)
