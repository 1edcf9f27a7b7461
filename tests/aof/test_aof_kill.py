"""
A real process on a real directory, killed at any moment: every record whose id it was told is there.
"""

from __future__ import annotations

import mmap
import os
import random
import select
import signal
import struct
import traceback
from pathlib import Path

import pytest
from aof_as_log import tiny

from quiver.aof import Aof, AofManager, FlushConfig
from quiver.aof.reservation import Reservation
from quiver.errors import WouldBlock

COUNT = struct.Struct("<Q")
OPENED = COUNT.size
"""Where the child says that it has opened the log."""

CONFIG = tiny(flush=FlushConfig(flush_interval_ms=1, flush_watermark_bytes=2000), preallocate_segments=2)


def record(number: int) -> bytes:
    return b"<%d:" % number + bytes((number * 31 + index) & 0xFF for index in range(number * 37 % 1500)) + b">"


def work(directory: str, told: mmap.mmap, first: int, chance: random.Random) -> None:
    """Append until killed; `told` says how many records were confirmed, and outlives us."""
    with AofManager.open(directory, CONFIG) as manager:
        log = manager.log("orders")
        told[OPENED] = 1
        number = first
        while True:
            kind = chance.randrange(6)
            if kind == 0:
                batch = [record(number + index) for index in range(chance.randrange(1, 6))]
                log.append_records_with_timeout(batch, 30)
                number += len(batch)
            elif kind == 1:
                data = record(number)
                with reserved(log, len(data)) as room:
                    room.payload[:] = data
                number += 1
            else:
                record_id = log.append_record_with_timeout(record(number), 30)
                number += 1
                if kind == 2:
                    log.flush_until(record_id)
                elif kind == 3 and number % 50 == 0:
                    log.force_rollover(timeout_s=30)
            COUNT.pack_into(told, 0, number)


def reserved(log: Aof, size: int) -> Reservation:
    """Return room for *size* bytes: not in every writable segment there is as much, and the next may take a moment."""
    while True:
        log.wait_for_writable_segment(30)
        try:
            return log.append_reserve(size)
        except WouldBlock:
            continue


def killed_after(seconds: float, directory: str, first: int, chance: random.Random) -> int:
    """Return how many records the child was told of before it died."""
    told = mmap.mmap(-1, mmap.PAGESIZE)
    COUNT.pack_into(told, 0, first)
    pid = os.fork()
    if not pid:
        try:
            work(directory, told, first, chance)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    in_recovery = chance.random() < 0.25
    for _ in range(20_000):
        if told[OPENED] or in_recovery:
            break
        select.select([], [], [], 0.001)
    select.select([], [], [], seconds)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "the child ended by itself"
    return COUNT.unpack_from(told)[0]


@pytest.mark.kill
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.timeout(0)
def test_a_killed_process_keeps_every_record_it_was_told_of(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Whenever it dies, in recovery, too: all of them, in order, and at most those that were on their way."""
    chance = random.Random(7)
    directory = str(tmp_path / "aof")
    there = grown = 0
    for cycle in range(max(1, request.config.getoption("--kill-cycles") // 10)):
        told = killed_after(chance.random() ** 2 * 0.06, directory, there, chance)
        with AofManager.open(directory, CONFIG, background=False) as manager:
            found = [one.payload for one in manager.log("orders").open_reader()]
            assert manager.log("orders").snapshot().quarantined == ()
        assert len(found) >= told, f"cycle {cycle}"
        assert found == [record(number) for number in range(len(found))], f"cycle {cycle}"
        grown += len(found) > there
        there = len(found)
        if there > 20_000:
            directory, there = str(tmp_path / f"aof{cycle}"), 0
    assert grown, "no child lived long enough to append"
