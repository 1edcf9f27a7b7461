"""Observability of a slot: the size and age of its backlog, and the reason."""

from __future__ import annotations

import logging
from random import Random
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from qwp_server import Close, QwpServer

from quiver.metrics import observe_senders
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.qwp import Sender, SenderSettings
from quiver.qwp.connection.failover import HostTracker
from quiver.qwp.connection.wire_loop import Counters, WireLoop
from quiver.qwp.slots.append_times import AppendTimes
from quiver.qwp.slots.ring import Ring, RingSettings
from quiver.qwp.slots.segment_files import MemorySegments
from quiver.qwp.slots.slot import memory_slot, open_slot
from quiver.testing.clock import ManualClock

pytestmark = pytest.mark.usefixtures("quiet")

OFFLINE = "ws::addr=127.0.0.1:1;initial_connect_retry=async;close_flush_timeout_millis=0;"


def ring(clock: ManualClock, **more: Any) -> Ring:
    settings = RingSettings(512, 8192, 0.0)
    return Ring(settings, MemorySegments(), clock=clock, observer=InMemoryObserver(), **more)


def test_gauges_have_the_bytes_and_age_of_unconfirmed_frames():
    """The size of frames without their heads; nothing if all are confirmed."""
    clock = ManualClock()
    one = ring(clock)
    assert (one.backlog_bytes, one.oldest_us) == (0, None)
    start_us = clock.now_ns() // 1000
    for number in range(30):
        one.append(b"x" * (10 + number))
        clock.advance(2.0)
    assert one.backlog_bytes == sum(range(10, 40))
    assert one.oldest_us == start_us
    for fsn in (0, 7, 20, 28):
        one.acknowledge(fsn)
        one.maintain(force=True)
        assert one.backlog_bytes == sum(range(11 + fsn, 40))
        assert one.oldest_us == start_us + (fsn + 1) * 2_000_000
    one.acknowledge(29)
    assert (one.backlog_bytes, one.oldest_us) == (0, None)
    one.append(b"x")
    assert one.oldest_us == clock.now_ns() // 1000
    one.close()


def test_times_are_kept_in_bounded_memory():
    """Longer spans are less precise, and times are never later than the real ones."""
    times = AppendTimes()
    for fsn in range(100_000):
        times.add(fsn, fsn * 2_000_000, is_oldest=fsn == 0)
    assert len(times._marks) <= 4096
    for fsn in (0, 1, 50_000, 99_999):
        known = times.time_of(fsn)
        assert known is not None
        assert fsn * 2_000_000 - 400_000_000 <= known <= fsn * 2_000_000
    assert times.time_of(0) == 0
    times.forget(99_999)
    assert len(times._marks) == 1
    assert AppendTimes().time_of(3) is None


def test_gauges_cover_all_slots_of_a_sender(tmp_path):
    """Its own slot and orphans that it drains, by name; also after a restart."""
    for name in ("left", "own"):
        with Sender.from_conf(f"{OFFLINE}sf_dir={tmp_path};sender_id={name};") as sender:
            sender.row("t", columns={"v": 1}, at=1)
            sender.flush()
            own = sender.backlog_bytes
            assert own > 20
            assert 0 <= sender.oldest_unconfirmed_s < 3600
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    try:
        sender = Sender.from_conf(f"{OFFLINE}sf_dir={tmp_path};sender_id=own;drain_orphans=on;")
        observe_senders([sender], provider.get_meter("test"), clock=ManualClock())
        found = collect(reader)
        assert found["quiver.qwp.backlog_bytes"]["own"] == own
        assert found["quiver.qwp.backlog_frames"] == dict.fromkeys(found["quiver.qwp.backlog_frames"], 1)
        assert found["quiver.qwp.connected"]["own"] == 0
        assert 0 <= found["quiver.qwp.oldest_unconfirmed_seconds"]["own"] < 3600
        assert found["quiver.qwp.slot_bytes"]["own"] == 4 << 20
        sender.close()
    finally:
        provider.shutdown()


def collect(reader: InMemoryMetricReader) -> dict[str, dict[Any, Any]]:
    data = reader.get_metrics_data()
    return {
        metric.name: {point.attributes["slot"]: point.value for point in metric.data.data_points}
        for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
    }  # fmt: skip


def test_a_sender_reports_its_connection(tmp_path):
    """And has no backlog."""
    with QwpServer() as server, Sender.from_conf(f"ws::addr={server.address};") as sender:
        sender.row("t", columns={"v": 1})
        assert sender.wait_until_confirmed(sender.flush(), 20)
        (figures,) = sender.stats()["slots"].values()
        assert figures["connected"]
        assert (figures["backlog_frames"], figures["backlog_bytes"], figures["oldest_unconfirmed_s"]) == (0, 0, 0.0)


class EventRecorder(InMemoryObserver):
    """Records the reasons of events."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Any) -> None:
        if name == "qwp.no_server":
            self.reasons.append(str(attributes["reason"]))


def loop_on(slot: Any, keys: str, tracker: HostTracker, observer: EventRecorder) -> WireLoop:
    return WireLoop(
        slot,
        SenderSettings.from_conf(f"ws::addr=127.0.0.1:1;reconnect_max_duration_millis=100;{keys}"),
        tracker,
        counters=Counters(),
        on_error=lambda _: None,
        clock=ManualClock(),
        observer=observer,
        random=Random(1),
        until_drained=True,
    )


def test_a_loop_without_an_untried_host_reports_the_reason_of_others(tmp_path):
    """A drainer shares the host states with its sender."""
    tracker, recorder = HostTracker(1), EventRecorder()
    first = memory_slot(RingSettings(512, 1024, 0.0), clock=ManualClock(), observer=recorder)
    first.ring.append(b"QWP1")
    one = loop_on(first, "", tracker, recorder)
    one.run()
    assert one.halted is not None
    assert "127.0.0.1:1: " in one.halted.message
    recorder.reasons.clear()
    tracker.record_transport_error(0)  # by the other loop, in the current round
    second = open_slot(
        REAL_FILES, str(tmp_path), "b", RingSettings(512, 1024, 0.0), observer=recorder, clock=ManualClock()
    )
    second.ring.append(b"QWP1")
    two = loop_on(second, "", tracker, recorder)
    two.run()
    assert "127.0.0.1:1: " in recorder.reasons[0]
    assert "refused" in recorder.reasons[0]
    for loop, slot in ((one, first), (two, second)):
        loop.release()
        slot.close()


def test_a_lost_connection_is_the_reason_until_a_host_is_tried(tmp_path):
    """There are two hosts, both already tried in this round."""
    recorder = EventRecorder()
    with QwpServer(lambda *_: Close(1011, "restarting")) as server:
        keys = (
            f"ws::addr=127.0.0.1:1,{server.address};initial_connect_retry=on;reconnect_initial_backoff_millis=1;"
            "reconnect_max_backoff_millis=5;close_flush_timeout_millis=0;max_frame_rejections=100;"
        )
        with Sender.from_conf(keys, observer=recorder, on_error=lambda _: None) as sender:
            sender.row("t", columns={"v": 1})
            sender.flush()
            server.wait_for(lambda: len(server.lives) > 3)
    assert recorder.reasons
    assert all(reason.startswith("127.0.0.1:") for reason in recorder.reasons)
    assert any("restarting" in reason for reason in recorder.reasons)
