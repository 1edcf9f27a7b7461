"""Flush: watermark, interval, limit, shared syncs, and failures that are reported and recovered automatically."""

from __future__ import annotations

import threading

import pytest
from aof_as_log import ROOT, open_manager, payloads, tiny
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from quiver.aof import AofConfig, AofManager, FlushConfig, Retention
from quiver.aof.format.durability import decode_durability
from quiver.errors import NotDurableError, StoreFailedError, WouldBlockError
from quiver.metric import exported_name
from quiver.metrics import LOG_METRICS, observe_logs
from quiver.observe import InMemoryObserver
from quiver.primitives.scan import Frame
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

pytestmark = pytest.mark.usefixtures("quiet")


def only(**flush):
    """Return settings with one reason to flush."""
    return tiny(flush=FlushConfig(**{"flush_interval_ms": 0, "flush_watermark_bytes": 1 << 40, **flush}))


def test_the_watermark_starts_a_flush():
    """Below it no record is synced, at it all are."""
    with open_manager(CrashFileSystem(), only(flush_watermark_bytes=1000)) as manager:
        log = manager.log("orders")
        first = log.append_record(b"x" * 500)
        manager.maintain()
        assert not log.is_durable(first)
        second = log.append_record(b"x" * 500)
        manager.maintain()
        assert log.is_durable(second)
        assert log.snapshot().flush.scheduled_watermark == 1


def test_a_watermark_of_zero_flushes_every_append():
    """Any unsynced record reaches it."""
    with open_manager(CrashFileSystem(), only(flush_watermark_bytes=0)) as manager:
        log = manager.log("orders")
        for _ in range(3):
            record_id = log.append_record(b"x")
            manager.maintain()
            assert log.is_durable(record_id)


def test_the_flush_interval_flushes_an_idle_tail():
    """Without another append."""
    clock = ManualClock()
    config = only(flush_interval_ms=50)
    with open_manager(CrashFileSystem(), config, clock) as manager:
        log = manager.log("orders")
        record_id = log.append_record(b"x")
        clock.advance(0.049)
        manager.maintain()
        assert not log.is_durable(record_id)
        clock.advance(0.001)
        manager.maintain()
        assert log.is_durable(record_id)
        assert log.snapshot().backlog_bytes == 0


def test_the_flush_timer_runs_in_a_thread():
    """The thread wakes when the interval has passed, without any call."""
    clock = ManualClock(waits="hold")
    fs = CrashFileSystem()
    manager = AofManager.open(ROOT, only(flush_interval_ms=50), fs=fs, clock=clock)
    log = manager.log("orders")
    follower = log.tail_follower(0)
    log.append_record(b"x")
    found = []
    thread = threading.Thread(target=lambda: found.append(follower.next()))
    thread.start()
    clock.wait_for_waiters(3)  # flush, maintenance, and the follower
    clock.advance(0.06)
    thread.join(30)
    assert [one.payload for one in found] == [b"x"]
    manager.close()


def test_unsynced_bytes_are_limited():
    """An append that would exceed the limit is blocked before it is written; a flush admits it."""
    with open_manager(CrashFileSystem(), only(max_unflushed_bytes=1000)) as manager:
        log = manager.log("orders")
        log.append_record(b"x" * 800)
        with pytest.raises(WouldBlockError) as blocked:
            log.append_record(b"x" * 200)
        assert blocked.value.kind == "flush"
        assert len(payloads(log)) == 1
        manager.maintain()
        log.append_record(b"x" * 200)
        log.append_record_with_timeout(b"x" * 5000, 5)  # larger than the limit: admitted alone
        assert len(payloads(log)) == 3
        assert log.snapshot().would_block["flush"] >= 1


def test_overlapping_waiters_share_syncs():
    """Any number of threads wait while one sync runs; one more sync completes them all."""
    disk = CrashFileSystem()
    inside, go = threading.Semaphore(0), threading.Semaphore(0)

    def on_step(op, path):
        if op == "sync" and ".s" in path and armed:
            inside.release()
            go.acquire()

    armed = False
    with AofManager.open(ROOT, only(), fs=disk) as manager:
        log = manager.log("orders")
        log.append_record(b"named")
        log.flush()
        disk.on_step, armed = on_step, True
        first = threading.Thread(target=log.flush_until, args=(log.append_record(b"first"),))
        first.start()
        inside.acquire()
        others = [threading.Thread(target=log.flush_until, args=(log.append_record(b"x"),)) for _ in range(8)]
        for thread in others:
            thread.start()
        go.release()
        inside.acquire()
        armed = False
        go.release()
        for thread in (first, *others):
            thread.join(30)
        assert log.snapshot().backlog_bytes == 0
        assert log.snapshot().flush.synchronous_flushes <= 4


def test_failing_flushes_block_appends_until_one_succeeds():
    """After the retries, appends raise `flush`. Retries continue in the background; no written record is lost."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, forever=True)
    clock = ManualClock()
    with open_manager(fs, only(flush_watermark_bytes=0, retries_max=2), clock) as manager:
        log = manager.log("orders")
        fs.fail_on("sync", 1)
        log.append_record(b"kept")
        for _ in range(3):
            assert not log.snapshot().flush_failed
            manager.maintain()
            clock.advance(1)
        assert log.snapshot().flush_failed
        metrics = log.snapshot().flush
        assert (metrics.retry_attempts, metrics.retry_failures, metrics.flush_failures) == (2, 2, 1)
        with pytest.raises(WouldBlockError) as blocked:
            log.append_record(b"refused")
        assert blocked.value.kind == "flush"
        with pytest.raises(WouldBlockError):
            log.append_record_with_timeout(b"refused", 3)
        fs.heal()
        clock.advance(1)
        log.append_record_with_timeout(b"let in", 5)
        log.flush()
        assert not log.snapshot().flush_failed
        lost = disk.clone_after_crash(0)
    with open_manager(lost) as again:
        assert payloads(again.log("orders")) == [b"kept", b"let in"]


def test_a_failed_flush_is_retried_immediately():
    """The caller waits slightly longer without an error, and its record survives a power loss."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk)
    with open_manager(fs, only()) as manager:
        log = manager.log("orders")
        fs.fail_on("sync", 1)
        log.flush_until(log.append_record(b"durable"))
        with open_manager(disk.clone_after_crash(0)) as again:
            assert payloads(again.log("orders")) == [b"durable"]


def test_pages_that_the_kernel_lost_fail_the_log():
    """After a failed sync the kernel returns old pages: the records are not reported as durable."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk)
    with open_manager(fs, only()) as manager:
        log = manager.log("orders")
        log.append_record(b"first")
        log.flush()
        record_id = log.append_record(b"lost")
        fs.fail_on("sync", 1)
        step = disk.on_step

        def lose(op, path):
            pass

        disk.on_step = lose
        segment = log._durability._unsealed(0)
        original = segment._mapping.sync

        def sync_and_lose():
            try:
                original()
            finally:
                segment.view[record_id + 24 : record_id + 28] = b"old!"

        segment._mapping.sync = sync_and_lose
        with pytest.raises(StoreFailedError):
            log.flush_until(record_id)
        with pytest.raises(StoreFailedError):
            log.append_record(b"more")
        disk.on_step = step


def test_the_snapshot_never_exceeds_the_durable_bytes():
    """At no step of the disk does it claim more than a power loss would leave."""
    fs = CrashFileSystem()
    clock = ManualClock()
    with open_manager(fs, only(flush_interval_ms=1), clock) as manager:
        log = manager.log("orders")
        path = f"{ROOT}/orders/warm/durability/{log.stream_id:020}.json"
        for number in range(6):
            log.append_record(b"%d" % number * 100)
            clock.advance(2)
            manager.maintain()
            answer = decode_durability(memoryview(fs.read_all(path, size_max=1 << 20)))
            assert isinstance(answer, Frame)
            for one in answer.value:
                with open_manager(fs.clone_after_crash(0)) as again:
                    assert again.log("orders").segment_snapshot()[-1].current_size >= one.durable_bytes
        assert answer.value[0].durable_bytes == log.segment_snapshot()[0].current_size


def test_close_raises_when_it_cannot_flush():
    """The log is closed nevertheless, and the next open finds the written records."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, forever=True)
    manager = open_manager(fs, only())
    manager.log("orders").append_record(b"x")
    fs.fail_on("sync", 1)
    with pytest.raises(NotDurableError):
        manager.close()
    with open_manager(disk) as again:
        assert payloads(again.log("orders")) == [b"x"]


def test_a_failed_snapshot_is_written_later():
    """The snapshot is a hint: no append is blocked for it, and the failures are counted."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, path_part="warm/durability/", forever=True)
    clock = ManualClock()
    with open_manager(fs, only(), clock) as manager:
        log = manager.log("orders")
        record_id = log.append_record(b"x")
        fs.fail_on("pwrite", 1)
        for _ in range(2):
            clock.advance(2)
            manager.maintain()
        log.flush_until(record_id)
        metrics = log.snapshot().flush
        failures = (metrics.metadata_failures, metrics.metadata_retry_attempts, metrics.metadata_retry_failures)
        assert failures == (2, 1, 1)
        fs.heal()
        clock.advance(2)
        manager.maintain()
        assert disk.exists(f"{ROOT}/orders/warm/durability/{log.stream_id:020}.json")


def test_small_syncs_prepare_the_following_blocks():
    """They write zeros after the records. A large sync prepares none, nor does one during a reservation."""
    config = AofConfig(segment_min_bytes=1 << 23, segment_target_bytes=1 << 23, flush=FlushConfig(0, 0, 0))
    with open_manager(CrashFileSystem(), config) as manager:
        log = manager.log("orders")
        log.append_record(b"x" * 2_000_000)
        log.flush()
        segment = log._tail.segment
        assert segment.zeroed == 0
        with log.append_reserve(1000) as room:
            log.flush()
            room.payload[:] = b"y" * 1000
            room.commit()
            assert segment.zeroed == 0
        for number in range(300):
            log.append_record(b"%d" % number * 1000)
            log.flush()
            assert segment.zeroed >= segment.size
        found = payloads(log)
        assert (len(found), found[1], found[-1]) == (302, b"y" * 1000, b"299" * 1000)


def test_latencies_are_recorded():
    """For an append after each flush, for waits, syncs and opens; also the sizes of segments."""

    class Listener(InMemoryObserver):
        def __init__(self) -> None:
            super().__init__()
            self.values = {}

        def record(self, name, value, **attributes):
            self.values.setdefault((name, *attributes.values()), []).append(value)

    heard = Listener()
    with AofManager.open(
        ROOT, tiny(), fs=CrashFileSystem(), clock=ManualClock(), observer=heard, background=False
    ) as manager:
        log = manager.log("orders")
        for _ in range(3):
            log.append_record_with_timeout(b"x" * 10_000, 5)
            log.append_record_with_timeout(b"x" * 100, 5)
            log.flush()
    assert len(heard.values["aof_append_latency_seconds",]) == 3
    assert len(heard.values["aof_admission_latency_seconds", "admission"]) >= 1
    assert len(heard.values["aof_flush_latency_seconds",]) >= 3
    assert len(heard.values["aof_recovery_duration_seconds",]) == 1
    assert set(heard.values["aof_segment_bytes",]) == {64 + 10_024 + 124}
    assert heard.total("aof_durable_bytes_total") > 30_000


def test_appended_records_are_counted_since_the_log_was_opened():
    """Across full, sealed and retired segments. The bytes are those of payloads and heads."""
    fs = CrashFileSystem()
    config = tiny(retention=Retention("size", max_total_bytes=1, action="expire"))
    total = 0
    for _ in range(3):
        with open_manager(fs, config) as manager:
            log = manager.log("orders")
            assert (log.snapshot().appended_records, log.snapshot().appended_bytes) == (0, 0)
            for number in range(1, 10):
                log.append_record_with_timeout(b"x" * 3000, 5)
                manager.maintain()
                assert (log.snapshot().appended_records, log.snapshot().appended_bytes) == (number, number * 3024)
            total += 9
            assert log.snapshot().record_count == total
            log.force_rollover(timeout=5)
            assert log.snapshot().appended_bytes == 9 * 3024


def test_every_gauge_has_a_value():
    """For each open log; gauges of tiers only for a log with tiers; closed logs have no values."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    clock = ManualClock()

    def collected():
        clock.advance(1)
        points = {}
        reported = reader.get_metrics_data()
        for resource in reported.resource_metrics if reported is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        points[metric.name, *sorted(dict(point.attributes).values())] = point.value
        return points

    with open_manager(CrashFileSystem(), clock=clock) as manager:
        observe_logs(manager, provider.get_meter("test"), clock=clock)
        log = manager.log("orders")
        log.append_records([b"x", b"y"])
        room = log.append_reserve(1)
        with pytest.raises(WouldBlockError):
            log.append_record(b"z")
        room.cancel()
        manager.log("packed", tiny(compression="zstd")).append_record(b"x")
        manager.log("packed").force_rollover(timeout=5)
        found = collected()
        assert found["quiver.aof.records", "orders"] == 2
        assert found["quiver.aof.flush_backlog_bytes", "orders"] == log.snapshot().backlog_bytes
        assert found["quiver.aof.would_block", "orders", "tail"] == 1
        assert found["quiver.aof.tier_segments", "packed", "resident_in_tier0"] == 1
        assert found["quiver.aof.appended_records_total", "orders"] == 2
        assert found["quiver.aof.appended_bytes_total", "orders"] == 2 * 25
        assert found["quiver.aof.appended_bytes_total", "packed"] == 25
        gauges = {
            exported_name(metric.name)
            for metric in LOG_METRICS
            if metric.read is not None and metric.name.startswith("aof_")
        }
        assert {name for name, *_ in found} == gauges
    assert collected() == {}
