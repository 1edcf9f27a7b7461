"""Readers that do not wait for hydration: they get an error, the segment is hydrated, and they continue."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest
from aof_as_log import open_manager, payloads, tiny

from quiver.aof import AofManager, TierConfig
from quiver.errors import CapacityError, CorruptionError, WouldBlockError
from quiver.objects import open_objects
from quiver.objects.directory import DirectoryObjects
from quiver.observe import InMemoryObserver
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from quiver.testing.faultobjects import FaultObjects

pytestmark = pytest.mark.usefixtures("quiet")


def with_cold_segments(fs, *, count=3):
    """A log of *count* packed segments of a record each, and the tail."""
    manager = open_manager(fs, tiny(tiers=TierConfig()))
    log = manager.log("orders")
    for number in range(count + 1):
        log.append_record(b"%d" % number)
        log.force_rollover(timeout=5)
    log.append_record(b"last")
    for number in range(count):
        log.tiers.evict(number)
    return manager, log


def test_a_reader_gets_an_error_and_continues():
    """For each segment without a file; no record is read twice or skipped."""
    manager, log = with_cold_segments(CrashFileSystem())
    with manager:
        reader = log.open_reader(wait=False)
        found = []
        for number in range(3):
            with pytest.raises(WouldBlockError) as blocked:
                for record in reader:
                    found.append(bytes(record.payload))
            assert (blocked.value.kind, len(found)) == ("hydration", number)
            manager.maintain()
        found += [bytes(record.payload) for record in reader]
        assert found == [b"0", b"1", b"2", b"3", b"last"]
        assert log.tiers.snapshot().residency[0] == "resident_in_tier0"


def test_a_reader_that_waits_gets_no_error():
    manager, log = with_cold_segments(CrashFileSystem())
    with manager:
        assert len(payloads(log)) == 5


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failed_hydration_is_raised_and_retried(number):
    """The next read raises the reason; the one after it tries again."""
    fs = FaultFileSystem(CrashFileSystem(), path_part=".seg.tmp", error=number, forever=True)
    manager, log = with_cold_segments(fs)
    with manager:
        reader = log.open_reader(wait=False)
        fs.fail_on("pwrite")
        with pytest.raises(WouldBlockError):
            next(iter(reader))
        manager.maintain()
        with pytest.raises(CapacityError if number == errno.ENOSPC else OSError):
            next(iter(reader))
        fs.heal()
        with pytest.raises(WouldBlockError):
            next(iter(reader))
        manager.maintain()
        assert next(iter(reader)).payload == b"0"


def test_damage_is_raised_without_waiting():
    """A damaged copy must not block the reader."""
    fs = CrashFileSystem()
    manager, log = with_cold_segments(fs)
    with manager:
        (name, *_) = sorted(one for one in fs.list_dir("/aof/orders/warm") if one.endswith(".zst"))
        fs.create_or_truncate(f"/aof/orders/warm/{name}").close()
        reader = log.open_reader(wait=False)
        with pytest.raises(WouldBlockError):
            next(iter(reader))
        manager.maintain()
        with pytest.raises(CorruptionError):
            next(iter(reader))


@pytest.mark.parametrize(("error", "told"), [(errno.EIO, "failed"), (None, "unavailable")])
def test_failed_hydrations_are_reported(error, told):
    """With the documented event names: queued, and failed or unavailable."""
    events: list[str] = []

    class Listener(InMemoryObserver):
        def event(self, name, *, level=logging.INFO, **attributes):
            events.append(name)

    disk = CrashFileSystem()
    disk.make_dirs("/cold")
    fs = FaultFileSystem(disk, error=error or errno.EIO, path_part=".seg.tmp")
    objects = FaultObjects(DirectoryObjects(disk, "/cold", clock=ManualClock()))
    tiers = TierConfig(tier0_max_bytes=0, warm_max_bytes=0 if error is None else None, objects="/cold")
    with AofManager.open(
        "/aof", tiny(tiers=tiers), fs=fs, clock=ManualClock(), observer=Listener(), background=False,
        objects=lambda: objects,
    ) as manager:  # fmt: skip
        log = manager.log("orders")
        for number in range(2):
            log.append_record(b"%d" % number)
            log.force_rollover(timeout=5)
        manager.maintain()
        manager.maintain()
        if error is None:
            objects.fail_on("get_range", 1, times=99)
        else:
            fs.fail_on("pwrite", 1)
        with pytest.raises(WouldBlockError):
            next(iter(log.open_reader(wait=False)))
        assert log.tiers.snapshot().as_dict()["queues"]["hydration"] == 1
        manager.maintain()
        assert log.tiers.snapshot().hydration_queue_depth == 0
    assert "aof.tier1_hydration_retry_queued" in events
    assert f"aof.tier1_hydration_retry_{told}" in events


def test_an_async_reader_waits_for_hydration():
    """It is ready immediately if the segment is local, otherwise when the thread has hydrated it."""
    fs = CrashFileSystem()
    manager, _ = with_cold_segments(fs)
    manager.close()

    async def read() -> bytes:
        with AofManager.open("/aof", tiny(tiers=TierConfig()), fs=fs) as manager:
            log = manager.log("orders")
            last = await asyncio.wait_for(log.open_reader_async(4 << 32), 30)
            assert next(iter(last)).payload == b"last"
            reader = await asyncio.wait_for(log.open_reader_async(1 << 32), 30)
            return bytes(next(iter(reader)).payload)

    assert asyncio.run(read()) == b"1"


def test_events_have_the_documented_names(tmp_path):
    """Successes and failures of each step between tiers."""

    class Listener(InMemoryObserver):
        def __init__(self) -> None:
            super().__init__()
            self.events: list[str] = []

        def event(self, name, *, level=logging.INFO, **attributes):
            self.events.append(name)

    heard = Listener()
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, {"pwrite": 1}, path_part=".zst.tmp")
    tiers = TierConfig(tier0_max_bytes=0, warm_max_bytes=0, objects=str(tmp_path / "cold"))
    with AofManager.open(
        "/aof", tiny(tiers=tiers), fs=fs, clock=ManualClock(), observer=heard, background=False,
        objects=lambda: open_objects(str(tmp_path / "cold")),
    ) as manager:  # fmt: skip
        log = manager.log("orders")
        for number in range(2):
            log.append_record(b"%d" % number)
            log.force_rollover(timeout=5)
        for _ in range(2):
            manager.maintain()
        assert payloads(log) == [b"0", b"1"]
        for one in (tmp_path / "cold").rglob("*.zst"):
            one.unlink()
        log.tiers.evict(0)
        disk.remove("/aof/orders/warm/" + next(n for n in disk.list_dir("/aof/orders/warm") if n.endswith(".zst")))
        with pytest.raises(CorruptionError):
            payloads(log)
    names = [name for name in heard.events if "tier" in name]
    assert names[0] == "aof.tiered_admit_segment"
    assert set(names) == {
        "aof.tiered_admit_segment", "aof.tier2_upload_failed", "aof.tier1_compression_success",
        "aof.tier0_eviction_scheduled", "aof.tier2_upload_success",
        "aof.tier0_segment_dropped", "aof.tier2_fetch_success", "aof.tier1_hydration_success",
        "aof.tier1_hydration_failed", "aof.tier2_fetch_failed",
    }  # fmt: skip
