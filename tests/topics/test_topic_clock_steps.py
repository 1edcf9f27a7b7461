"""The wall clock is set back or forward: retention and delivery timeouts stay correct."""

from __future__ import annotations

import pytest
from topic_disks import ROOT, TOPIC, offsets

from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.settings import TopicSettings
from quiver.topics.store import TopicStore

pytestmark = pytest.mark.usefixtures("quiet")

DAYS_S = 2 * 86_400
STEPS_S = pytest.mark.parametrize("step_s", [-DAYS_S, DAYS_S])
HOUR = {"deleter": {"retention_time_minutes": 60, "check_interval_minutes": 1}}


def opened(clock: ManualClock, fs: CrashFileSystem, chosen: dict[str, object]) -> TopicStore:
    settings = TopicSettings.from_mapping(chosen)
    return TopicStore.open(ROOT, settings=settings, fs=fs, clock=clock, background=False)


@STEPS_S
@pytest.mark.parametrize("looks", [False, True])
def test_files_are_deleted_by_their_real_age(step_s: int, looks: bool) -> None:
    """Files younger than `retention_time_minutes` are kept, and older ones are deleted."""
    clock = ManualClock()
    with opened(clock, CrashFileSystem(clock=clock), HOUR) as store:
        log = store.topic(TOPIC)
        log.append(b"0")
        log._engine.wal.rotate()
        if looks:
            store.maintain()
        clock.step_wall(step_s)
        clock.advance(30 * 60)
        store.maintain()
        assert offsets(log) == [0]
        log.append(b"1")
        log._engine.wal.rotate()
        clock.advance(61 * 60)
        store.maintain()
        assert offsets(log) == []
        assert log.append(b"2") == 2


def test_after_a_step_back_files_from_the_future_age_with_the_process() -> None:
    """They are deleted in time, and do not prevent the deletion of others."""
    clock = ManualClock()
    fs = CrashFileSystem(clock=clock)
    with opened(clock, fs, HOUR) as store:
        store.topic(TOPIC).append(b"0")
        store.topic(TOPIC)._engine.wal.rotate()
        store.topic(TOPIC).append(b"1")
    clock.step_wall(-DAYS_S)
    with opened(clock, fs, HOUR) as store:
        log = store.topic(TOPIC)
        store.maintain()
        assert offsets(log) == [0, 1]
        log._engine.wal.rotate()
        clock.advance(62 * 60)
        store.maintain()
        assert offsets(log) == []


def test_after_a_step_forward_unneeded_files_are_deleted() -> None:
    """A step cannot be distinguished from passed time: old files are deleted, unless a subscription needs them."""
    clock = ManualClock()
    fs = CrashFileSystem(clock=clock)
    kept = {"deleter": {**HOUR["deleter"], "wait_for_subscriptions": True}}
    with opened(clock, fs, kept) as store:
        for number in range(2):
            store.topic(TOPIC).append(b"%d" % number)
            store.topic(TOPIC)._engine.wal.rotate()
        store.subscribe(TOPIC, "billing", start=0)
    clock.step_wall(DAYS_S)
    with opened(clock, fs, kept) as store:
        store.maintain()
        assert offsets(store.topic(TOPIC)) == [0, 1]
    with opened(clock, fs, HOUR) as store:
        store.topic(TOPIC)
        store.maintain()
        assert offsets(store.topic(TOPIC)) == []
        assert store.topic(TOPIC).append(b"2") == 2


@STEPS_S
def test_delivery_timeouts_ignore_clock_steps(step_s: int) -> None:
    """A delivery is repeated after `ack_timeout_seconds`, a refused one after its delay."""
    clock = ManualClock()
    chosen = {"subscriptions": {"ack_timeout_seconds": 30, "redelivery_delay_seconds": 5}}
    with opened(clock, CrashFileSystem(clock=clock), chosen) as store:
        for number in range(2):
            store.topic(TOPIC).append(b"%d" % number)
        with store.subscribe(TOPIC, "billing", start=0).consumer("c") as consumer:
            slow, refused = consumer.receive(0), consumer.receive(0)
            refused.nack()
            clock.step_wall(step_s)
            assert consumer.receive(0) is None
            clock.advance(5)
            again = consumer.receive(0)
            assert again.offset == refused.offset
            again.ack()
            assert consumer.receive(0) is None
            clock.advance(25)
            once_more = consumer.receive(0)
            assert once_more.offset == slow.offset
            once_more.ack()
            clock.advance(DAYS_S)
            assert consumer.receive(0) is None


@STEPS_S
def test_a_reader_by_time_skips_no_later_message(step_s: int) -> None:
    """It skips no message published at or after the given time, up to the first step."""
    clock = ManualClock()
    with opened(clock, CrashFileSystem(clock=clock), {}) as store:
        log = store.topic(TOPIC)
        log.append(b"0")
        clock.step_wall(step_s)
        log.append(b"1")
        assert offsets(log) == [0, 1]
        assert log.append(b"2") == 2
