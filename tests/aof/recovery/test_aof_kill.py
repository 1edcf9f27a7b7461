"""A real process on a real directory is killed at any time: every confirmed record exists."""

from __future__ import annotations

import mmap
import os
import random
import select
import signal
import struct
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from aof_as_log import tiny

from quiver.aof import Aof, AofConfig, AofManager, FlushConfig, TierConfig
from quiver.aof.append.reservation import Reservation
from quiver.aof.format.record import scan_records
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.aof.tiers.packed import PackedSegment
from quiver.clock import SYSTEM_CLOCK
from quiver.errors import WouldBlockError
from quiver.objects.directory import DirectoryObjects
from quiver.primitives.disk.real_files import REAL_FILES

assert pa.Codec.is_available("zstd")  # loaded before any fork: the import takes longer than most children live

COUNT = struct.Struct("<Q")
OPENED = COUNT.size
"""Where the child records that it has opened the log."""
UPLOADED = 2 * COUNT.size
"""Where it records how many uploads were confirmed."""

CONFIG = tiny(flush=FlushConfig(flush_interval_ms=1, flush_watermark_bytes=2000), preallocate_segments=2)


def record(number: int) -> bytes:
    return b"<%d:" % number + bytes((number * 31 + index) & 0xFF for index in range(number * 37 % 1500)) + b">"


def config_of(directory: str, uploads: bool) -> AofConfig:
    """With *uploads*, every segment becomes an object, by age, too."""
    if not uploads:
        return CONFIG
    return replace(CONFIG, tiers=TierConfig(objects=f"{directory}.cold"), max_segment_age_s=0.02)


def work(directory: str, told: mmap.mmap, first: int, chance: random.Random, uploads: bool) -> None:
    """Append until killed; `told` counts the confirmed records and survives the process."""
    with AofManager.open(directory, config_of(directory, uploads)) as manager:
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
                    room.commit()
                number += 1
            elif uploads and kind == 4 and number % 10 == 0:
                log.append_record_with_timeout(record(number), 30, durable="object")
                number += 1
                COUNT.pack_into(told, UPLOADED, number)
            else:
                record_id = log.append_record_with_timeout(record(number), 30)
                number += 1
                if kind == 2:
                    log.flush_until(record_id)
                elif kind == 3 and number % 50 == 0:
                    log.force_rollover(timeout=30)
            COUNT.pack_into(told, 0, number)


def reserved(log: Aof, size: int) -> Reservation:
    """Reserve *size* bytes. Not every writable segment has that space, and the next one may take a moment."""
    while True:
        log.wait_for_writable_segment(30)
        try:
            return log.append_reserve(size)
        except WouldBlockError:
            continue


def killed_after(seconds: float, directory: str, first: int, chance: random.Random, uploads: bool) -> tuple[int, int]:
    """Return the numbers of records and of uploads that the child confirmed before it died."""
    reported = mmap.mmap(-1, mmap.PAGESIZE)
    COUNT.pack_into(reported, 0, first)
    pid = os.fork()
    if not pid:
        try:
            work(directory, reported, first, chance, uploads)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    in_recovery = chance.random() < 0.25
    for _ in range(20_000):
        if reported[OPENED] or in_recovery:
            break
        select.select([], [], [], 0.001)
    select.select([], [], [], seconds)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "the child ended by itself"
    return COUNT.unpack_from(reported)[0], COUNT.unpack_from(reported, UPLOADED)[0]


def uploaded(directory: str, known: dict[str, tuple[int, int]]) -> int:
    """Return how many records the objects contain, from the first one on; *known* avoids reading an object twice."""
    cold = DirectoryObjects(REAL_FILES, f"{directory}.cold", clock=SYSTEM_CLOCK)
    for info in cold.list_below(""):
        if info.key not in known and info.key.endswith(".zst"):
            packed = PackedSegment(info.key, info.size_bytes, partial(cold.get_range, info.key))
            body = b"".join(packed.plain())
            found = scan_records(memoryview(body), HEADER_BYTES, len(body))
            known[info.key] = (packed.header.base_record_count, found.record_count)
    end = 0
    for base, count in sorted(known.values()):
        if base > end:
            break
        end = max(end, base + count)
    return end


@pytest.mark.kill
@pytest.mark.parametrize("uploads", [False, True])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.timeout(0)
def test_a_killed_process_keeps_every_confirmed_record(
    tmp_path: Path, request: pytest.FixtureRequest, uploads: bool
) -> None:
    """Also when it dies during recovery: all records are in order, and at most those in progress are added."""
    chance = random.Random(7)
    directory = str(tmp_path / "aof")
    known: dict[str, tuple[int, int]] = {}
    there = grown = waited = 0
    for cycle in range(max(1, request.config.getoption("--kill-cycles") // (50 if uploads else 10))):
        seconds = chance.random() ** 2 * (0.4 if uploads else 0.06)
        reported, sent = killed_after(seconds, directory, there, chance, uploads)
        waited += sent > 0
        if sent:
            assert uploaded(directory, known) >= sent, f"cycle {cycle}"
        with AofManager.open(directory, config_of(directory, uploads), background=False) as manager:
            found = [one.payload for one in manager.log("orders").open_reader()]
            assert manager.log("orders").snapshot().quarantined == ()
        assert len(found) >= reported, f"cycle {cycle}"
        assert found == [record(number) for number in range(len(found))], f"cycle {cycle}"
        grown += len(found) > there
        there = len(found)
        if there > 20_000:
            directory, there, known = str(tmp_path / f"aof{cycle}"), 0, {}
    assert grown, "no child lived long enough to append"
    assert waited or not uploads, "no child lived long enough to upload"
