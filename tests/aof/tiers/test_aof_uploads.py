"""
Objects only: every segment is uploaded when it is sealed, by size, by age or for a waiting caller. This needs no disk
space, and nothing is lost while the object store is down.
"""

from __future__ import annotations

import threading

import pytest
from aof_as_log import ROOT, SEGMENTS, payloads, segment_files, tiny
from tier_samples import COLD, cold_disk

from quiver.aof import AofManager, Reader, Retention, TierConfig
from quiver.aof.append.workers import Workers
from quiver.aof.reading.check import check_log_directory
from quiver.aof.reading.files import LogFiles
from quiver.errors import CorruptionError, NotDurableError, StoreClosedError, UnknownRecordError, UsageError
from quiver.objects.directory import DirectoryObjects
from quiver.observe import InMemoryObserver
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultobjects import FaultObjects

pytestmark = pytest.mark.usefixtures("quiet")

WARM = f"{ROOT}/orders/warm"
UPLOADING = TierConfig(objects=COLD)


class EventRecorder(InMemoryObserver):
    """Records events by name."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def event(self, name, **_):
        self.events.append(name)


def objects_in(fs) -> list[str]:
    return [info.key for info in DirectoryObjects(fs, COLD, clock=ManualClock()).list_below("")]


def store_of(fs) -> FaultObjects:
    return FaultObjects(DirectoryObjects(fs, COLD, clock=ManualClock()))


def opened(fs, config=None, objects=None, clock=None, **more) -> AofManager:
    return AofManager.open(
        ROOT, config or tiny(tiers=UPLOADING), fs=fs, clock=clock or ManualClock(),
        objects=None if objects is None else lambda: objects, **{"background": False, **more},
    )  # fmt: skip


def fill(log, count) -> list[bytes]:
    """Write *count* sealed segments of two records each."""
    written = []
    for number in range(count):
        records = [b"%d.%d." % (number, part) * 100 for part in range(2)]
        log.append_records_with_timeout(records, 5)
        log.force_rollover(timeout=5)
        written += records
    return written


def test_every_sealed_segment_is_uploaded():
    """Once, from its own file: no packed file uses space, and every file stays in its place."""
    fs = cold_disk()
    objects = store_of(fs)
    with opened(fs, objects=objects) as manager:
        log = manager.log("orders")
        written = fill(log, 7)
        manager.maintain()
        assert len(objects_in(fs)) == 7
        snapshot = log.tiers.snapshot()
        assert set(snapshot.residency.values()) == {"resident_in_tier0"}
        assert (snapshot.upload_queue_depth, snapshot.upload_lag_bytes, snapshot.upload_lag_seconds) == (0, 0, 0)
    with opened(fs, objects=objects) as manager:
        log = manager.log("orders")
        manager.maintain()
        assert objects.calls["put_parts"] == 7
        assert payloads(log) == written
        assert log.tiers.snapshot().upload_queue_depth == 0
    assert [name for name in fs.list_dir(WARM) if ".zst" in name] == []
    assert [one.payload for one in Reader(LogFiles(f"{ROOT}/orders", fs=fs), 0)] == written
    checked = check_log_directory(fs, "orders", f"{ROOT}/orders", read_records=True)
    assert checked.is_intact
    assert checked.as_dict()["queues"]["upload"] == 0


def test_a_log_that_gets_objects_uploads_existing_segments():
    """Also those that were sealed before."""
    fs = cold_disk()
    with opened(fs, tiny()) as manager:
        written = fill(manager.log("orders"), 3)
    with opened(fs) as manager:
        log = manager.log("orders")
        manager.maintain()
        assert len(objects_in(fs)) == 3
        assert payloads(log) == written


def test_a_store_that_is_down_delays_nothing():
    """The lag shows it, the disk has no more files than without objects, and later all is uploaded, oldest first."""
    fs = cold_disk()
    clock = ManualClock()
    objects = store_of(fs)
    keys: list[str] = []
    objects.on_call = lambda operation, key: keys.append(key) if operation == "put_parts" else None
    observer = EventRecorder()
    with opened(fs, objects=objects, clock=clock, observer=observer) as manager:
        log = manager.log("orders")
        objects.fail_on("put_parts", 1, times=10_000)
        written = fill(log, 2)
        clock.advance(60)
        written += fill(log, 3)
        manager.maintain()
        snapshot = log.tiers.snapshot()
        assert snapshot.upload_queue_depth == 5
        assert 60 <= snapshot.upload_lag_seconds < 120
        assert snapshot.upload_lag_bytes == sum(map(len, written)) + 24 * len(written)
        assert log.snapshot().figures()["upload_lag_bytes"] == snapshot.upload_lag_bytes
        assert "aof.tier2_upload_failed" in observer.events
        assert [name for name in fs.list_dir(WARM) if ".zst" in name] == objects_in(fs) == []
        assert len(set(keys)) == 1  # the next one would wait as long
        objects.heal()
        keys.clear()
        clock.advance(10)
        manager.maintain()
        assert keys == sorted(keys)
        assert len(objects_in(fs)) == 5
        assert log.tiers.snapshot().upload_lag_seconds == 0


def test_close_finishes_uploads(tmp_path):
    """A program that ends immediately leaves no sealed segment without an object, unless the object store is down."""
    with AofManager.open(tmp_path / "aof", tiny(tiers=TierConfig(objects=str(tmp_path / "cold")))) as manager:
        written = fill(manager.log("orders"), 7)
    assert len(list((tmp_path / "cold").rglob("*.zst"))) == 7
    observer, objects = EventRecorder(), store_of(cold_disk())
    objects.fail_on("put_parts", 1, times=10_000)
    manager = AofManager.open(
        tmp_path / "aof", tiny(tiers=UPLOADING), objects=lambda: objects, observer=observer, clock=ManualClock()
    )
    with manager:
        assert payloads(manager.log("orders")) == written
        manager.log("orders").append_record(b"last")
        manager.log("orders").force_rollover()
    assert "aof.uploads_left" in observer.events


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_crash_at_any_step_of_an_upload_loses_nothing(power_cut):
    """After reopening every record exists, and every sealed segment has one object."""
    fs = cold_disk()
    moments: list[CrashFileSystem] = []
    clone = (lambda: fs.clone_after_crash(1)) if power_cut else fs.clone_after_kill
    with opened(fs) as manager:
        log = manager.log("orders")
        written = fill(log, 2)
        fs.on_step = lambda _op, _path: moments.append(clone())
        log.append_record(b"x", durable="object")
        fs.on_step = None
    assert len(moments) > 20
    for one in moments:
        with opened(one) as manager:
            log = manager.log("orders")
            assert payloads(log) in (written, [*written, b"x"])
            log.force_rollover(timeout=5)
            manager.maintain()
            assert len(objects_in(one)) == 2 + (len(payloads(log)) > 4) == len(segment_files(one))
            assert log.tiers.snapshot().upload_queue_depth == 0


def test_an_object_is_verified_before_its_file_is_deleted():
    """It was uploaded at the seal, and is damaged since: the file stays, and the object is uploaded again."""
    fs = cold_disk()
    with opened(fs) as manager:
        log = manager.log("orders")
        written = fill(log, 3)
        manager.maintain()
        log.tiers.evict(1)
        assert log.tiers.snapshot().residency[1] == "uploaded_to_tier2"
        path = f"{COLD}/{objects_in(fs)[0]}"
        file = fs.open_write(path)
        file.pwrite(b"\x00\x01", 20)
        file.close()
        log.tiers.evict(0)
        manager.maintain()
        assert payloads(log) == written
        assert len(objects_in(fs)) == 3


def test_a_damaged_segment_is_not_uploaded():
    """Others are, callers that wait for it get the reason, and it is not read repeatedly."""
    fs = cold_disk()
    with opened(fs, tiny()) as manager:
        log = manager.log("orders")
        first = log.append_record(b"first")
        fill(log, 3)
    file = fs.open_write(segment_files(fs)[0])
    file.pwrite(b"\xff", 64 + 26)
    file.close()
    with opened(fs) as manager:
        log = manager.log("orders")
        with pytest.raises(CorruptionError):
            log.wait_until_uploaded(first, 60)
        manager.maintain()
        assert len(objects_in(fs)) == 2
        assert log.tiers.snapshot().upload_queue_depth == 1
        failures = log.tiers.snapshot().counts.failures
        manager.maintain()
        assert log.tiers.snapshot().counts.failures == failures
        assert log.append_record(b"later", durable="object") > first


# ---- sealing by age


@pytest.mark.parametrize("reopened", [False, True])
def test_an_idle_log_is_sealed_uploaded_and_expired(reopened):
    """Without any call. In the end no record is left, and the log continues at its position."""
    fs = cold_disk()
    clock = ManualClock()
    config = tiny(
        tiers=UPLOADING, max_segment_age_s=60, retention=Retention("time", ttl_s=600, action="expire"),
    )  # fmt: skip
    manager = opened(fs, config, clock=clock)
    log = manager.log("orders")
    record_id = log.append_record(b"x" * 100)
    manager.maintain()
    clock.advance(59)
    manager._workers.run_pending()
    assert objects_in(fs) == []
    if reopened:  # the age counts from the first record, also while the log was closed
        manager.close()
        manager = opened(fs, config, clock=clock)
        log = manager.log("orders")
    clock.advance(1)
    manager._workers.run_pending()
    assert [one.state for one in log.segment_snapshot()] == ["sealed"]
    assert len(objects_in(fs)) == 1
    clock.advance(601)
    for _ in range(3):
        manager._workers.run_pending()
        clock.advance(5)
    assert payloads(log) == []
    with pytest.raises(UnknownRecordError):
        log.read_record(record_id)
    (left,) = segment_files(fs)
    assert not any(b"x" * 100 in fs.read_all(path, size_max=1 << 20) for path in [left])
    (key,) = objects_in(fs)
    assert "segment-00000000000000000001-" in key  # it has no records; it stores where the log continues
    assert check_log_directory(fs, "orders", f"{ROOT}/orders", read_records=True).is_intact
    manager.close()
    for turn in range(3):
        with opened(fs, config, clock=clock) as manager:
            log = manager.log("orders")
            follower = log.tail_follower(0)
            new = log.append_record(b"%d" % turn)
            assert new > record_id
            log.flush()
            assert follower.next(timeout=1).payload == b"0"
            assert log.snapshot().record_count == 2 + turn
            assert log.find_record_number(1 + turn) == new
    assert len(segment_files(fs)) == 2


def test_a_clock_step_does_not_delay_a_seal_by_age():
    """A wall clock that is set back does not keep a segment open."""
    fs = cold_disk()
    clock = ManualClock()
    with opened(fs, tiny(max_segment_age_s=60), clock=clock) as manager:
        log = manager.log("orders")
        log.append_record(b"x")
        manager.maintain()
        clock.set_wall_ns(clock.now_ns() - 10**15)
        clock.advance(61)
        manager._workers.run_pending()
        assert [one.state for one in log.segment_snapshot()] == ["sealed"]


def test_a_segment_with_an_open_reservation_is_not_sealed():
    """It is sealed as soon as the record is committed."""
    fs = cold_disk()
    clock = ManualClock()
    with opened(fs, tiny(max_segment_age_s=60), clock=clock) as manager:
        log = manager.log("orders")
        log.append_record(b"x")
        room = log.append_reserve(5)
        clock.advance(100)
        manager.maintain()
        room.payload[:] = b"hello"
        room.commit()
        clock.advance(2)
        manager._workers.run_pending()
        assert [one.state for one in log.segment_snapshot()] == ["sealed"]
        assert payloads(log) == [b"x", b"hello"]


def test_an_empty_segment_survives_a_crash_at_any_step():
    """It is created when the last records expire; ids and counts continue in any case."""
    fs = CrashFileSystem()
    clock = ManualClock()
    config = tiny(retention=Retention("time", ttl_s=60, action="expire"))
    moments: list[CrashFileSystem] = []
    with opened(fs, config, clock=clock) as manager:
        log = manager.log("orders")
        last = log.append_records([b"one", b"two"])[-1]
        log.force_rollover(timeout=5)
        clock.advance(61)
        fs.on_step = lambda _op, _path: moments.extend([fs.clone_after_kill(), fs.clone_after_crash(2)])
        manager.maintain()
        manager.maintain()
        fs.on_step = None
        assert payloads(log) == []
    for one in moments:
        with opened(one, config, clock=clock) as manager:
            log = manager.log("orders")
            assert payloads(log) in ([], [b"one", b"two"])
            record_id = log.append_record(b"three")
            assert record_id > last
            assert log.find_record_number(2) == record_id
        with opened(one, config, clock=clock) as manager:
            assert payloads(manager.log("orders"))[-1] == b"three"


# ---- durable in the object store


def test_a_durable_append_returns_when_its_segment_is_an_object():
    """A log without objects refuses the call before it writes anything."""
    fs = cold_disk()
    with opened(fs) as manager:
        log = manager.log("orders")
        record_id = log.append_record(b"one", durable="object")
        assert len(objects_in(fs)) == 1
        log.append_records([b"two", b"three"], durable="object")
        log.append_record_with_timeout(b"four", 5, durable="object")
        log.append_records_with_timeout([b"five"], 5, durable="object")
        assert len(objects_in(fs)) == 4
        log.wait_until_uploaded(record_id, timeout=0)
        synced = log.append_record(b"six", durable=True)
        assert log.is_durable(synced)
        later = log.append_record(b"seven")
        log.wait_until_uploaded(later)
        assert len(objects_in(fs)) == 5
        assert log.append_records([], durable="object") == []
        for wrong in (later + 1000, 1 << 40, -1):
            with pytest.raises(UnknownRecordError):
                log.wait_until_uploaded(wrong, 1)
        with pytest.raises(UsageError, match="durable"):
            log.append_record(b"no", durable="objects")
    with pytest.raises(StoreClosedError):
        log.append_record(b"no", durable="object")
    with opened(fs, tiny()) as manager, pytest.raises(UsageError, match="object store"):
        manager.log("other").append_record(b"no", durable="object")
    with opened(fs, tiny()) as manager, pytest.raises(UsageError, match="object store"):
        manager.log("other").wait_until_uploaded(record_id)
    assert fs.list_dir(f"{ROOT}/other/segments") == []


def test_the_error_of_a_wait_that_times_out_has_the_reason():
    """The record is written and its upload continues; the next wait succeeds."""
    fs = cold_disk()
    clock = ManualClock()
    objects = store_of(fs)
    with opened(fs, objects=objects, clock=clock) as manager:
        log = manager.log("orders")
        objects.fail_on("put_parts", 1, times=10_000)
        with pytest.raises(NotDurableError, match="injected failure") as refusal:
            log.append_record_with_timeout(b"one", 30, durable="object")
        assert payloads(log) == [b"one"]
        for number in range(5):
            with pytest.raises(NotDurableError):
                log.append_record_with_timeout(b"%d" % number, 30, durable="object")
        assert len(log.segment_snapshot()) == 2  # while the object store is down, no segment is sealed needlessly
        objects.heal()
        log.wait_until_uploaded(refusal.value.record_id, 60)
        assert len(objects_in(fs)) == 1


def test_waiting_producers_share_uploads(tmp_path):
    """Callers that arrive during an upload share the next segment."""
    config = tiny(tiers=TierConfig(objects=str(tmp_path / "cold")))
    with AofManager.open(tmp_path / "aof", config) as manager:
        log = manager.log("orders")

        def produce(name: int) -> None:
            for number in range(10):
                log.append_record_with_timeout(b"%d.%d" % (name, number), 60, durable="object")

        threads = [threading.Thread(target=produce, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert len(payloads(log)) == 80
        assert len(log.segment_snapshot()) < 80
        assert log.tiers.snapshot().upload_queue_depth == 0
    assert not list((tmp_path / "aof" / "orders" / "warm").rglob("*.zst"))


def test_close_ends_waits_for_uploads():
    """The record is uploaded when the log is opened again."""
    fs = cold_disk()
    objects = store_of(fs)
    objects.fail_on("put_parts", 1, times=10_000)
    clock = ManualClock(waits="hold")
    ended: list[BaseException] = []
    manager = opened(fs, objects=objects, clock=clock, background=True)
    log = manager.log("orders")
    record_id = log.append_record(b"one")

    def wait() -> None:
        try:
            log.wait_until_uploaded(record_id)
        except StoreClosedError as closed:
            ended.append(closed)

    thread = threading.Thread(target=wait)
    thread.start()
    for _ in range(1000):
        if log.tiers.snapshot().counts.upload_failures:
            break
        clock.advance(1)
    manager.close()
    thread.join(60)
    assert len(ended) == 1
    with opened(fs) as manager:
        manager.log("orders").wait_until_uploaded(record_id, 5)


def test_a_forced_seal_does_not_enlarge_segments():
    """A partly filled segment does not measure the rate of the log, and the unused space would be lost."""
    fs = cold_disk()
    config = tiny(segment_target_bytes=64 * 1024, segment_max_bytes=1 << 24, tiers=UPLOADING)
    with opened(fs, config) as manager:
        log = manager.log("orders")
        for _ in range(6):
            log.append_record(b"x" * 100, durable="object")
    assert max(fs.stat(f"{SEGMENTS}/{name}").size_bytes for name in fs.list_dir(SEGMENTS)) <= 64 * 1024


class Surprised:
    """A log whose tiers meet an unexpected error."""

    name = "orders"
    run_flush = run_maintenance = run_sinks = run_status = None

    def __init__(self):
        self.turns = 0

    def run_tiers(self):
        self.turns += 1
        raise ZeroDivisionError

    def fail(self, reason):
        raise AssertionError(reason)


def test_uploads_continue_after_an_unexpected_error():
    """Without a retry, nothing was uploaded before the next seal, and callers waited forever."""
    clock, log = ManualClock(), Surprised()
    workers = Workers("aof", clock=clock, observer=InMemoryObserver(), flush_threads=1)
    workers.schedule_tiers(log)
    for turns in (1, 2, 3):
        workers.run_pending()
        assert log.turns == turns
        clock.advance(5)
