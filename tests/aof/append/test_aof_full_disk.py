"""On a full disk smaller segments use the rest, errors name the cause, and small records never wait for large ones."""

from __future__ import annotations

import errno
import os
import random
import subprocess
from pathlib import Path

import pytest
from aof_as_log import ROOT, SEGMENTS, open_manager, payloads, segment_files, tiny

from quiver.aof import AofConfig, AofManager, TierConfig
from quiver.errors import WouldBlockError
from quiver.observe import InMemoryObserver
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

KIB = 1024
DISK_BYTES = 4 << 20


def sizes(fs) -> list[int]:
    """Return the sizes of the segments, oldest first."""
    return [fs.stat(path).size_bytes for path in segment_files(fs)]


def growing(**changes) -> AofConfig:
    """Segments of 16 KiB to 1 MiB, which grow by a factor of four while they fill quickly."""
    return tiny(segment_target_bytes=16 * KIB, segment_max_bytes=1 << 20, **changes)


def fill_until_refused(log, record: bytes) -> tuple[int, WouldBlockError]:
    """Append until an append is refused; return the number of appended records, and the error."""
    for count in range(100_000):
        try:
            log.append_record_with_timeout(record, 1)
        except WouldBlockError as blocked:
            return count, blocked
    raise AssertionError("the disk never filled up")


@pytest.fixture
def small_disk(tmp_path: Path):
    """A real file system of four megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True, timeout=60)


def test_a_log_uses_a_small_disk_to_its_end(small_disk: Path):
    """Segments grow fourfold, so the next one would not fit at a third of the disk; smaller ones fit."""
    config = AofConfig(segment_max_bytes=64 << 20)
    record = b"x" * 4_000
    with AofManager.open(str(small_disk), config, clock=ManualClock(), background=False) as manager:
        log = manager.log("orders")
        count, blocked = fill_until_refused(log, record)
        assert blocked.kind == "admission"
        assert "disk full" in str(blocked)
        assert count * len(record) > 0.85 * DISK_BYTES
        assert [one.state for one in log.segment_snapshot()].count("pending") == 0
        assert log.snapshot().disk_full
    with AofManager.open(str(small_disk), config, clock=ManualClock(), background=False) as manager:
        log = manager.log("orders")
        assert sum(1 for _ in log.open_reader()) == count
        with pytest.raises(WouldBlockError, match="disk full"):
            log.append_record_with_timeout(record, 1)


def test_segments_leave_space_for_packing(small_disk: Path):
    """Without objects a segment is packed before its file can be deleted: new segments never use that space."""
    config = AofConfig(segment_max_bytes=64 << 20, tiers=TierConfig(tier0_max_bytes=0))
    chance = random.Random(1)
    clock = ManualClock()
    with AofManager.open(str(small_disk), config, clock=clock, background=False) as manager:
        log = manager.log("orders")
        written = refused = 0
        while refused < 5:
            try:
                log.append_record_with_timeout(chance.randbytes(1_000) + bytes(3_000), 1)
            except WouldBlockError as blocked:
                assert "disk full" in str(blocked) or not refused
                refused += 1
                manager.maintain()
                clock.advance(10)
            else:
                written += 4_000
                refused = 0
        assert written > 2.5 * DISK_BYTES
        assert list(log.tiers.snapshot().residency.values()).count("resident_in_tier0") <= 2
        assert sum(len(one.payload) for one in log.open_reader()) == written


def test_segment_sizes_are_halved_until_one_fits():
    """For a file system that does not report its free space, the allocation of blocks determines the size."""
    disk = CrashFileSystem()
    disk.free = 0
    fs = FaultFileSystem(disk, error=errno.ENOSPC, path_part=".spare")
    with open_manager(fs, growing()) as manager:
        log = manager.log("orders")
        log.append_record(b"x" * 15_000)
        manager.maintain()  # a spare of 16 KiB already exists
        log.append_record_with_timeout(b"y" * 15_000, 1)
        fs.fail_on("reserve", 1)  # of 64 KiB
        log.append_record_with_timeout(b"z" * 15_000, 1)
        fs.heal()
        for _ in range(3):
            log.append_record_with_timeout(b"z" * 15_000, 1)
        log.flush()
        assert sizes(disk) == [16 * KIB, 16 * KIB, 32 * KIB, 128 * KIB]


class EventRecorder(InMemoryObserver):
    """Records events by name."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def event(self, name, **_):
        self.events.append(name)


def test_small_files_keep_their_space():
    """The last blocks are not for segments: no segment can be sealed without the pointer."""
    disk = CrashFileSystem()
    observer = EventRecorder()
    disk.free = 64 * KIB + 16 * KIB - 1
    with AofManager.open(ROOT, tiny(), fs=disk, clock=ManualClock(), background=False, observer=observer) as manager:
        log = manager.log("orders")
        with pytest.raises(WouldBlockError, match="disk full"):
            log.append_record_with_timeout(b"x", 1)
        assert log.snapshot().disk_full
        disk.free += 1
        log.append_record_with_timeout(b"y", 5)
        assert not log.snapshot().disk_full
    assert [name for name in observer.events if "disk" in name] == ["aof.disk_full", "aof.disk_has_room"]


def test_small_records_never_wait_for_a_large_one():
    """The large record does not fit: it is refused, uses no segments, and is accepted once there is space."""
    disk = CrashFileSystem()
    with open_manager(disk, growing(preallocate_segments=0)) as manager:
        log = manager.log("orders")
        log.append_record(b"one")
        disk.free = 300 * KIB
        for number in range(5):
            with pytest.raises(WouldBlockError, match="disk full"):
                log.append_record_with_timeout(b"x" * 500_000, 1)
            log.append_record_with_timeout(b"%d" % number, 1)
        assert len(log.segment_snapshot()) == 2
        disk.free = 1 << 30
        log.append_record_with_timeout(b"x" * 500_000, 5)
        assert [len(one) for one in payloads(log)] == [3, 1, 1, 1, 1, 1, 500_000]
    assert not [name for name in disk.list_dir(SEGMENTS) if "spare" in name]
