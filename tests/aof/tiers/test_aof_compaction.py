"""Trimming the head of a log, and packing segments into the archive."""

from __future__ import annotations

import pytest
from aof_as_log import ROOT, open_manager, payloads, segment_files, tiny

from quiver.aof import AofConfig, AofManager, Retention, TierConfig
from quiver.aof.format.record import scan_records
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.aof.tiers.packed import PackedSegment
from quiver.errors import SettingsError, UsageError
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

ARCHIVE = f"{ROOT}/orders/archive"
EXPIRE = Retention(action="expire")
SMALL = Retention("size", max_total_bytes=16 * 1024, action="package")


def fill(fs, config=None, count=4):
    """Write *count* sealed segments of one record, and one more record."""
    with open_manager(fs, config) as manager:
        log = manager.log("orders")
        for number in range(count):
            log.append_record(b"record %d" % number)
            log.force_rollover(timeout=5)
        log.append_record(b"last")


def packaged(fs) -> list[bytes]:
    """Return the records of the packed files in the archive, each verified."""
    found = []
    for name in sorted(fs.list_dir(ARCHIVE)):
        if name.endswith(".zst"):
            data = fs.read_all(f"{ARCHIVE}/{name}", size_max=1 << 20)
            packed = PackedSegment(name, len(data), lambda start, size, data=data: data[start : start + size])
            plain = b"".join(packed.plain())
            scan = scan_records(memoryview(plain), HEADER_BYTES, len(plain))
            assert (scan.damage, scan.checksum) == (None, packed.footer.checksum)
            found.append(plain[HEADER_BYTES + 24 :])
    return found


# ── trimming the head ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("tiers", [None, TierConfig()], ids=["files", "tiers"])
def test_segments_before_the_trimmed_id_are_removed(tiers):
    """Only complete segments, and never the newest; the id never decreases."""
    fs = CrashFileSystem()
    config = tiny(compaction="head_trim", retention=EXPIRE, tiers=tiers)
    fill(fs, config)
    with open_manager(fs, config) as manager:
        log = manager.log("orders")
        ids = [record.record_id for record in log.open_reader()]
        for before, left in ((ids[0], 5), (ids[2], 3), (ids[1], 3), (ids[4] + 1, 2)):
            log.trim_before(before)
            manager.maintain()
            assert len(payloads(log)) == left
        assert log.snapshot().record_count == 5
    with open_manager(fs.clone_after_crash(0)) as manager:
        assert payloads(manager.log("orders")) == [b"record 3", b"last"]


def test_trimmed_segments_are_archived():
    """As configured by the action of the retention."""
    fs = CrashFileSystem()
    config = tiny(compaction="head_trim")
    fill(fs, config)
    with open_manager(fs, config) as manager:
        manager.log("orders").trim_before(2 << 32)
        manager.maintain()
    assert [name[:20] for name in fs.list_dir(ARCHIVE)] == [f"{0:020}", f"{1:020}"]


def test_the_hook_decides_about_cold_segments():
    """It is called from the oldest on; the first needed segment keeps all later ones, so the log has no holes."""
    fs = CrashFileSystem()
    config = tiny(compaction="head_trim", retention=EXPIRE)
    fill(fs, config)
    asked = []
    unneeded = {0, 2, 3}

    def hook(cold):
        asked.append(cold)
        return cold.segment_id in unneeded

    with AofManager.open(ROOT, config, fs=fs, clock=ManualClock(), background=False, compaction=hook) as manager:
        log = manager.log("orders")
        manager.maintain()
        assert [one.segment_id for one in asked] == [0, 1]
        assert (asked[0].log, asked[0].record_count, asked[0].first_record_id) == ("orders", 1, HEADER_BYTES)
        assert payloads(log)[0] == b"record 1"
        unneeded.add(1)
        manager.maintain()
        assert payloads(log) == [b"record 3", b"last"]


def test_a_failing_hook_keeps_every_segment():
    """The hook is user code: the log continues."""
    fs = CrashFileSystem()
    config = tiny(compaction="head_trim", retention=EXPIRE)
    fill(fs, config)
    with AofManager.open(
        ROOT, config, fs=fs, clock=ManualClock(), background=False, compaction=lambda cold: cold.nothing
    ) as manager:
        for _ in range(2):
            manager.maintain()
        assert len(payloads(manager.log("orders"))) == 5


def test_without_compaction_nothing_is_trimmed():
    """The hook is not called either; invalid settings are refused with a reason."""
    fs = CrashFileSystem()
    fill(fs)
    with AofManager.open(
        ROOT, tiny(), fs=fs, clock=ManualClock(), background=False, compaction=lambda _cold: True
    ) as manager:
        manager.maintain()
        assert len(payloads(manager.log("orders"))) == 5
        with pytest.raises(UsageError, match='compaction="head_trim"'):
            manager.log("orders").trim_before(1)
    with pytest.raises(SettingsError, match="records never move"):
        AofConfig(compaction="merge_seekable_zstd")
    with pytest.raises(SettingsError, match='needs action="expire"'):
        AofConfig(compaction="head_trim", compression="zstd")
    with pytest.raises(SettingsError, match="'burn' is none of archive, expire, package"):
        Retention(action="burn")
    with pytest.raises(SettingsError, match="'lru' is none of keep_all, time, size"):
        Retention("lru")


# ── packaging ────────────────────────────────────────────────────────────────────────────────────────


def test_cold_segments_are_packaged():
    """They are packed into the archive and compared, then their files are removed."""
    fs = CrashFileSystem()
    fill(fs)
    with open_manager(fs, tiny(retention=SMALL)) as manager:
        log = manager.log("orders")
        manager.maintain()
        assert payloads(log) == [b"record 3", b"last"]
        assert len(segment_files(fs)) == 2
    assert packaged(fs) == [b"record 0", b"record 1", b"record 2"]


@pytest.mark.parametrize("operation", ["create", "pwrite", "sync", "rename", "sync_dir", "remove"])
def test_failed_packaging_is_retried(operation):
    """For every failing call, every record is in the log or in the archive."""
    for nth in range(1, 5):
        disk = CrashFileSystem()
        fs = FaultFileSystem(disk)
        fill(disk)
        with open_manager(fs, tiny(retention=SMALL)) as manager:
            log = manager.log("orders")
            fs.fail_on(operation, nth)
            manager.maintain()
            fs.heal()
            manager.maintain()
            assert payloads(log) == [b"record 3", b"last"]
        assert packaged(disk) == [b"record 0", b"record 1", b"record 2"]


def test_a_crash_at_any_step_of_packaging_loses_no_record():
    """Segments that were removed from the log are in the archive, and the log continues."""
    fs = CrashFileSystem()
    fill(fs)
    disks = []
    with open_manager(fs, tiny(retention=SMALL)) as manager:
        manager.log("orders")
        fs.on_step = lambda *_: disks.append((fs.clone_after_crash(len(disks)), fs.clone_after_kill()))
        manager.maintain()
        fs.on_step = None
    assert len(disks) > 10
    everything = {b"record 0", b"record 1", b"record 2", b"record 3", b"last"}
    for disk in (one for pair in disks for one in pair):
        with open_manager(disk, tiny(retention=SMALL)) as manager:
            log = manager.log("orders")
            manager.maintain()
            found = payloads(log)
            assert found[0] == b"record 3"
            assert {*found, *packaged(disk)} == everything
