"""Regressions: records that were never appended, overwritten records, threads that died or spun."""

from __future__ import annotations

import asyncio
import threading
from array import array
from typing import Any

import pytest
from aof_as_log import open_manager, payloads, segment_files, tiny

from quiver.aof import AofManager, FlushConfig
from quiver.aof.format.record import encode_record
from quiver.errors import InvalidRecordError, NotDurableError, StoreClosedError, StoreFailedError, UsageError
from quiver.observe import InMemoryObserver
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("ext_id", [-1, 1 << 64, "7"])
def test_a_failed_append_leaves_nothing_for_recovery(ext_id: Any) -> None:
    """
    1. A payload with the image of a record is stored, and its head is refused. 2. A shorter record replaces it and ends
    where the image begins. 3. After a kill, recovery would find a record that was never appended.
    """
    disk = CrashFileSystem()
    image = encode_record(b"nobody wrote this", timestamp=1)
    with open_manager(disk) as manager:
        log = manager.log("orders")
        with pytest.raises(InvalidRecordError, match="ext_id"):
            log.append_record(b"x" * 10 + image, ext_id=ext_id)
        with pytest.raises(InvalidRecordError, match="ext_id"):
            log.append_records([b"x" * 10 + image], ext_id=ext_id)
        with pytest.raises(InvalidRecordError, match="ext_id"):
            log.set_current_ext_id(ext_id)
        room = log.append_reserve(10 + len(image))
        room.payload[10:] = image
        with pytest.raises(InvalidRecordError, match="ext_id"):
            room.commit(ext_id=ext_id)
        room.cancel()
        log.append_record(b"y" * 10)
        with open_manager(disk.clone_after_kill()) as again:
            assert payloads(again.log("orders")) == [b"y" * 10]


NO_PAYLOADS = ["text", None, 7, [b"x"], memoryview(b"abcd").cast("H"), array("I", [1, 2])]


@pytest.mark.parametrize("payload", NO_PAYLOADS, ids=lambda one: type(one).__name__)
def test_invalid_payloads_are_refused_without_a_trace(payload: Any) -> None:
    """A view of wider numbers has fewer items than bytes: its record would overlap the next one."""
    disk = CrashFileSystem()
    with open_manager(disk) as manager:
        log = manager.log("orders")
        for size in (1, 3000):
            for call in (
                lambda: log.append_record(payload),
                lambda: log.append_record_with_timeout(payload, 1),
                lambda size=size: log.append_records([b"x" * size, payload]),
                lambda size=size: log.append_records([payload, b"x" * size]),
            ):
                with pytest.raises(InvalidRecordError, match="nothing was written"):
                    call()
        with pytest.raises(InvalidRecordError):
            log.append_records(None)  # type: ignore[arg-type]
        log.append_records([b"one", memoryview(b"two"), bytearray(b"three")])
        with open_manager(disk.clone_after_kill()) as again:
            assert payloads(again.log("orders")) == [b"one", b"two", b"three"]


@pytest.mark.parametrize("size", [-1, -24, -1000, "7", 1.5, None, 0])
def test_an_empty_reservation_is_refused(size: Any) -> None:
    """An open reservation of no bytes would block all appends."""
    with open_manager(CrashFileSystem()) as manager:
        log = manager.log("orders")
        with pytest.raises(InvalidRecordError):
            log.append_reserve(size)
        log.append_record(b"x")
        assert payloads(log) == [b"x"]


def test_a_reservation_that_outlives_its_log_does_not_change_the_next_one(tmp_path):
    """The log was closed and reopened meanwhile: a late cancel must not zero later records."""
    with AofManager.open(str(tmp_path), tiny(), background=False) as manager:
        log = manager.log("orders")
        log.append_record(b"one")
        room = log.append_reserve(100)
        log.close()
        again = manager.log("orders")
        again.append_record(b"two")
        again.flush()
        with pytest.raises(StoreClosedError):
            room.commit()
        room.cancel()
        assert payloads(again) == [b"one", b"two"]


def test_a_closed_event_loop_does_not_stop_the_log():
    """A program closed its loop during a waiting append; the threads of the log still signal that loop."""
    with open_manager(CrashFileSystem()) as manager:
        log = manager.log("orders")
        room = log.append_reserve(10)

        async def give_up() -> None:
            log.append_record_async(b"never")

        asyncio.run(give_up())
        room.cancel()
        log.append_record(b"one")
        log.flush()
        assert payloads(log) == [b"one"]


class _Held(ManualClock):
    """Blocks one thread in its wait until the event is set."""

    def __init__(self) -> None:
        super().__init__()
        self.held: threading.Thread | None = None
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def wait(self, condition: threading.Condition, timeout: float | None) -> bool:
        if threading.current_thread() is self.held:
            self.reached.set()
            while not self.go_on.is_set():
                condition.wait(0.01)
            return True
        return super().wait(condition, timeout)


def test_waiters_get_an_error_when_a_log_is_closed_without_a_sync():
    """The disk fails to sync, and another thread closes the log: no sync will follow."""
    fs = FaultFileSystem(CrashFileSystem(), error=5, forever=True)
    clock = _Held()
    manager = open_manager(fs, tiny(flush=FlushConfig(flush_interval_ms=0)), clock)
    log = manager.log("orders")
    record_id = log.append_record(b"one")
    fs.fail_on("sync", 1)
    reports: list[BaseException] = []

    def wait() -> None:
        try:
            log.flush_until(record_id, timeout=1e9)
        except (NotDurableError, StoreClosedError) as error:
            reports.append(error)

    clock.held = threading.Thread(target=wait, daemon=True)
    clock.held.start()
    assert clock.reached.wait(10)
    with pytest.raises(NotDurableError):
        manager.close()
    clock.go_on.set()
    clock.held.join(10)
    clock.advance(2e9)  # a spinning thread would see its timeout now
    clock.held.join(10)
    assert len(reports) == 1
    assert "closed" in str(reports[0])


def test_missing_records_are_not_durable():
    """Neither future ids, nor those of a log that was closed before it could sync."""
    fs = FaultFileSystem(CrashFileSystem(), error=5, forever=True)
    manager = open_manager(fs, tiny(flush=FlushConfig(flush_interval_ms=0)))
    log = manager.log("orders")
    record_id = log.append_record(b"one")
    assert not log.is_durable(record_id)
    assert not log.is_durable(77 << 32 | 64)
    log.flush()
    assert log.is_durable(record_id)
    log.force_rollover(timeout=5)
    assert log.is_durable(record_id)
    later = log.append_record(b"two")
    fs.fail_on("sync", 1)
    with pytest.raises(NotDurableError):
        manager.close()
    assert log.is_durable(record_id)
    assert not log.is_durable(later)
    log.flush_until(record_id)
    with pytest.raises(StoreClosedError):  # the error must not claim that the record is missing: it may exist
        log.flush_until(later)


@pytest.mark.parametrize("size", [200, 4096, 16_300, 16_385, 1 << 20])
def test_a_damaged_size_in_the_header_of_the_tail_loses_no_record(size):
    """The header has no checksum. The file was preallocated, so its length overrides a smaller size in the header."""
    disk = CrashFileSystem()
    records = [b"%04d" % number * 100 for number in range(35)]
    with open_manager(disk) as manager:
        log = manager.log("orders")
        for record in records:
            log.append_record(record)
        log.flush()
        killed = disk.clone_after_crash(0)
    [path] = segment_files(killed)
    file = killed.open_write(path)
    file.pwrite(size.to_bytes(4, "little"), 28)
    file.sync_data()
    file.close()
    with open_manager(killed) as manager:
        log = manager.log("orders")
        assert payloads(log) == records
        log.append_record_with_timeout(b"more", 5)
        log.flush()
        assert payloads(log) == [*records, b"more"]
    with open_manager(killed) as manager:
        assert payloads(manager.log("orders")) == [*records, b"more"]


def test_ids_of_a_segment_in_quarantine_are_not_reused():
    """Its header and first record are damaged, so it is moved to the quarantine; users may still have its ids."""
    disk = CrashFileSystem()
    with open_manager(disk) as manager:
        log = manager.log("orders")
        log.append_record(b"one")
        log.force_rollover(timeout=5)
        lost = log.append_record(b"two")
        log.flush()
    path = segment_files(disk)[-1]
    file = disk.open_write(path)
    file.pwrite(b"rubbish".ljust(100, b"!"), 0)
    file.sync_data()
    file.close()
    for _ in range(3):
        with open_manager(disk) as manager:
            log = manager.log("orders")
            assert payloads(log) == [b"one"]
            assert len(log.snapshot().quarantined) <= 1
            assert log.snapshot().missing
            assert log.snapshot().segments[-1].segment_id == 0
    with open_manager(disk) as manager:
        assert manager.log("orders").append_record(b"three") >> 32 > lost >> 32


class Failing(InMemoryObserver):
    """An observer that fails for one name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def _may_fail(self, name: str) -> None:
        if name == self._name:
            raise ValueError(f"no gauge for {name}")

    def count(self, name: str, *args: Any, **labels: Any) -> None:
        self._may_fail(name)
        super().count(name, *args, **labels)

    def record(self, name: str, *args: Any, **labels: Any) -> None:
        self._may_fail(name)
        super().record(name, *args, **labels)


@pytest.mark.parametrize(
    "name", ["aof_flush_latency_seconds", "aof_durable_bytes_total", "aof_segment_rollovers_total"]
)
def test_an_observer_error_fails_its_log_but_not_the_threads(tmp_path, name: str) -> None:
    """An unexpected error fails its log with a message; the threads continue for the others."""
    with AofManager.open(str(tmp_path), tiny(flush=FlushConfig(0, 1)), observer=Failing(name)) as manager:
        log = manager.log("orders")
        other = manager.log("other")
        with pytest.raises(StoreFailedError, match="no gauge for"):
            for _ in range(100):
                log.append_record_with_timeout(b"x" * 5000, 30)
        with pytest.raises(StoreFailedError, match="no gauge for"):
            for _ in range(100):
                other.append_record_with_timeout(b"x" * 5000, 30)
    with AofManager.open(str(tmp_path), tiny(), background=False) as manager:
        assert set(payloads(manager.log("orders"))) == {b"x" * 5000}


@pytest.mark.parametrize("timeout_s", [float("nan"), "5", b"", [1]])
def test_invalid_timeouts_are_refused(timeout_s: Any) -> None:
    """A timeout that is not a number never passes: the wait would never end, or would spin."""
    with open_manager(CrashFileSystem(), tiny(flush=FlushConfig(flush_interval_ms=0))) as manager:
        log = manager.log("orders")
        record_id = log.append_record(b"x")
        with log.append_reserve(10):
            for call in (
                lambda: log.append_record_with_timeout(b"y", timeout_s),
                lambda: log.append_records_with_timeout([b"y"], timeout_s),
                lambda: log.wait_for_writable_segment(timeout_s),
                lambda: log.flush_until(record_id, timeout=timeout_s),
                lambda: log.flush(timeout=timeout_s),
                lambda: log.force_rollover(timeout=timeout_s),
                lambda: log.tail_follower().next(timeout_s),
            ):
                with pytest.raises(UsageError, match="a timeout is a number of seconds"):
                    call()
