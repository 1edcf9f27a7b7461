"""Subscriptions while something that they depend on is slow, full, unavailable or wrong."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from topic_disks import ROOT, TOPIC, offsets, open_topics

from quiver.errors import StoreFailedError, UsageError
from quiver.observe import InMemoryObserver
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from quiver.topics.settings import SubscriptionSettings, TopicSettings, WalSettings
from quiver.topics.store import TopicStore

pytestmark = pytest.mark.usefixtures("quiet")


def open_store(fs: Any = None, clock: Any = None, observer: Any = None, **subscriptions: Any) -> TopicStore:
    settings = TopicSettings(wal=WalSettings(cache_capacity=4), subscriptions=SubscriptionSettings(**subscriptions))
    return TopicStore.open(
        ROOT, settings=settings, fs=fs or CrashFileSystem(), clock=clock or ManualClock(), observer=observer,
        background=False,
    )  # fmt: skip


# ── positions ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("start", [6, 5000, 1 << 64])
def test_a_subscription_cannot_be_saved_beyond_the_end_of_the_topic(start):
    """Saved offsets count as used: the topic would continue there, and readers would miss everything before."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        store.topic(TOPIC).append_batch([b"x"] * 5)
        with pytest.raises(UsageError, match="nothing at"):
            store.subscribe(TOPIC, "s", start=start)
        subscription = store.subscribe(TOPIC, "s", start=5)
        with pytest.raises(UsageError, match="nothing at"):
            subscription.seek(start)
        assert subscription.next_offset == 5
    with open_topics(fs) as store:
        assert store.topic(TOPIC).append(b"x") == 5
        assert offsets(store.topic(TOPIC)) == list(range(6))


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────


class Counting(ManualClock):
    """Counts waits."""

    waits = 0

    def wait(self, condition: threading.Condition, timeout: float | None) -> bool:
        self.waits += 1
        return super().wait(condition, timeout)


@pytest.mark.parametrize("kind", ["shared", "failover", "key_shared"])
def test_a_consumer_without_deliverable_messages_waits_and_does_not_spin(kind):
    """The log has more messages than were read ahead, but none may be delivered: only an answer can change that."""
    clock = Counting()
    with open_store(clock=clock, max_unacked_messages=3, ack_timeout_seconds=None) as store:
        log = store.topic(TOPIC)
        for _ in range(3):
            log.append_batch([(b"x" * 1024, {"routing_key": "k"})] * 1000)
        subscription = store.subscribe(TOPIC, "s", kind=kind, start="earliest")
        first, second = subscription.consumer("a"), subscription.consumer("b")
        found = [one for _ in range(3) for consumer in (first, second) if (one := consumer.receive(0)) is not None]
        assert [one.offset for one in found] == [0, 1, 2]
        log.append(b"new")
        before = clock.waits
        for consumer in (first, second):
            assert consumer.receive(10.0) is None
        assert clock.waits == before + 2

        found[0].ack()
        again = [one for consumer in (first, second) if (one := consumer.receive(0)) is not None]
        assert [one.offset for one in again] == [3]


def test_a_consumer_of_a_sealed_topic_waits_for_answers_of_other_consumers():
    clock = Counting()
    with open_store(clock=clock, ack_timeout_seconds=None) as store:
        log = store.topic(TOPIC)
        log.append(b"x")
        subscription = store.subscribe(TOPIC, "s", start="earliest")
        first, second = subscription.consumer("a"), subscription.consumer("b")
        delivery = first.receive(0)
        log.seal()
        assert second.receive(10.0) is None
        assert clock.waits <= 2
        delivery.nack(0)
        assert second.receive(0).offset == 0


def test_a_waiting_consumer_is_woken_when_another_frees_space():
    """All prefetched messages have one key; once its consumer takes some, messages of the other key are read."""
    with TopicStore.open(ROOT, fs=CrashFileSystem(), background=False) as store:
        log = store.topic(TOPIC)
        settings = SubscriptionSettings(max_unacked_messages=4, ack_timeout_seconds=None)
        subscription = store.subscribe(TOPIC, "s", kind="key_shared", start="earliest", settings=settings)
        first, second = subscription.consumer("a"), subscription.consumer("b")
        log.append(b"x", key="k")
        holder, other = (first, second) if (one := first.receive(0)) is not None else (second, first)
        one = one or second.receive(0)
        keys = (str(number) for number in range(1000))
        theirs = next(key for key in keys if _is_of(subscription, other, key))
        log.append_batch([(b"x", {"routing_key": "k"})] * 4)
        log.append(b"y", key=theirs)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(other.receive(30.0)))
        thread.start()
        while not log._engine.wal.append_signal.waiters and not subscription._ready:
            pass
        assert holder.receive(0).offset == 1
        thread.join(20.0)
        assert [delivery.message.payload for delivery in found] == [b"y"]
        one.ack()


def _is_of(subscription: Any, consumer: Any, key: str) -> bool:
    message = type("Keyed", (), {"key": key, "offset": 0})()
    return bool(subscription._may_have(consumer, message))


# ── slow readers ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_subscription_that_reads_for_minutes_does_not_delay_syncs():
    """The thread that syncs all topics also maintains subscriptions, and never waits for one."""
    clock = ManualClock()
    with open_store(clock=clock) as store:
        log = store.topic(TOPIC)
        subscription = store.subscribe(TOPIC, "s", start="earliest")
        inside, leave = threading.Event(), threading.Event()

        def poll(_count: int) -> list[Any]:
            inside.set()
            leave.wait()
            return []

        subscription._reader.poll = poll
        consumer = subscription.consumer("a")
        thread = threading.Thread(target=lambda: consumer.receive(0))
        thread.start()
        inside.wait()
        try:
            log.append(b"x")
            clock.advance(6.0)
            store.maintain()
            assert log.durable_offset() == 1
        finally:
            leave.set()
            thread.join()


def test_creating_a_subscription_for_minutes_does_not_delay_syncs():
    """Finding its start may take reading many objects."""
    clock = ManualClock()
    with open_store(clock=clock) as store:
        log = store.topic(TOPIC)
        inside, leave = threading.Event(), threading.Event()

        def resolve(_start: Any, *, stored: bool = False) -> int:
            if stored:
                inside.set()
                leave.wait()
            return 0

        log._engine.resolve = resolve
        thread = threading.Thread(target=lambda: store.subscribe(TOPIC, "s", start="earliest"))
        thread.start()
        inside.wait()
        try:
            log.append(b"x")
            clock.advance(6.0)
            store.maintain()
            assert log.durable_offset() == 1
        finally:
            leave.set()
            thread.join()


def test_progress_is_saved_in_time_even_if_maintenance_never_gets_the_lock():
    clock = ManualClock()
    fs = CrashFileSystem()
    with open_store(fs, clock) as store:
        store.topic(TOPIC).append_batch([b"x"] * 3)
        with store.subscribe(TOPIC, "s", start="earliest").consumer("a") as consumer:
            first, second, _ = (consumer.receive(0) for _ in range(3))
            first.ack()
            clock.advance(5.0)
            second.ack()
            crashed = fs.clone_after_crash(seed=1)
    with open_store(crashed) as store, store.subscribe(TOPIC, "s").consumer("a") as consumer:
        assert consumer.receive(0).offset == 2


# ── dead letters that cannot be stored ───────────────────────────────────────────────────────────────────


def test_a_dead_letter_that_cannot_be_stored_does_not_stop_other_messages():
    """Its message is redelivered, and stored as soon as that is possible; the others are delivered meanwhile."""
    observer = InMemoryObserver()
    with open_store(observer=observer, max_redelivery_count=0, redelivery_delay_seconds=0) as store:
        store.topic(TOPIC).append_batch([b"bad", b"good"])
        subscription = store.subscribe(TOPIC, "s", start="earliest")
        working = subscription._dead_letter
        subscription._dead_letter = _refuse
        with subscription.consumer("a") as consumer:
            consumer.receive(0).nack()
            again = consumer.receive(0)
            assert (again.offset, again.attempt) == (0, 2)
            consumer.receive(0).ack()
            assert subscription.next_offset == 0
            subscription._dead_letter = working
            again.nack()
            assert subscription.next_offset == 2
        assert offsets(store.topic(f"{TOPIC}-dead-letter")) == [0]


def test_a_rejected_message_is_a_dead_letter_with_its_reason():
    """At the first delivery, although refused messages are redelivered without limit."""
    with open_store(max_redelivery_count=None) as store:
        store.topic(TOPIC).append_batch([b"bad", b"good"])
        subscription = store.subscribe(TOPIC, "s", start="earliest")
        with subscription.consumer("a") as consumer:
            consumer.receive(0).reject("not JSON" + "!" * 2000)
            assert subscription.next_offset == 1
            consumer.receive(0).reject()
            assert consumer.receive(0) is None
        (first, second) = store.topic(f"{TOPIC}-dead-letter").reader(0, stop=2)
        assert (first.payload, second.payload) == (b"bad", b"good")
        assert first.attributes["x-rejection-reason"] == "not JSON" + "!" * 992
        assert "x-rejection-reason" not in second.attributes


def test_a_rejected_message_is_redelivered_until_its_dead_letter_can_be_stored():
    with open_store(redelivery_delay_seconds=0) as store:
        store.topic(TOPIC).append(b"bad")
        subscription = store.subscribe(TOPIC, "s", start="earliest")
        working = subscription._dead_letter
        subscription._dead_letter = _refuse
        with subscription.consumer("a") as consumer:
            consumer.receive(0).reject("not JSON")
            again = consumer.receive(0)
            assert (again.offset, again.attempt) == (0, 2)
            subscription._dead_letter = working
            again.reject("not JSON")
            assert subscription.next_offset == 1
        assert offsets(store.topic(f"{TOPIC}-dead-letter")) == [0]


def test_rejecting_after_the_timeout_does_not_affect_the_next_delivery():
    clock = ManualClock()
    with open_store(clock=clock, ack_timeout_seconds=1) as store:
        store.topic(TOPIC).append(b"slow")
        subscription = store.subscribe(TOPIC, "s", kind="shared", start="earliest")
        with subscription.consumer("a") as late, subscription.consumer("b") as other:
            first = late.receive(0)
            clock.advance(2)
            assert other.receive(0).attempt == 2
            first.reject("too late")
            assert subscription.next_offset == 0


def test_a_reason_that_is_not_text_is_refused():
    with open_store() as store:
        store.topic(TOPIC).append(b"bad")
        with store.subscribe(TOPIC, "s", start="earliest").consumer("a") as consumer:
            delivery = consumer.receive(0)
            with pytest.raises(UsageError, match="reason must be a string"):
                delivery.reject(ValueError("bad"))
            delivery.ack()


def _refuse(*_: object, **__: object) -> None:
    raise StoreFailedError("the disk of dead letters is gone")


def test_an_acknowledgement_frees_space_even_when_progress_cannot_be_saved():
    """The acknowledging consumer gets the error; the others get the next message immediately."""
    fs = FaultFileSystem(CrashFileSystem())
    with open_store(fs, progress_min_offset_delta=1, max_unacked_messages=1) as store:
        store.topic(TOPIC).append_batch([b"0", b"1"], durable=True)
        subscription = store.subscribe(TOPIC, "s", start="earliest")
        delivery = subscription.consumer("a").receive(0)
        before = subscription._wakeups
        fs.fail_on("rename")
        with pytest.raises(OSError, match="s.sub"):
            delivery.ack()
        assert subscription._wakeups > before
        fs.heal()
        store.maintain()
        assert subscription.next_offset == 1


# ── copied files ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_copied_subscription_is_a_separate_one():
    """It continues at the position of the first one, and never writes to its file."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        store.topic(TOPIC).append_batch([b"x"] * 5)
        with store.subscribe(TOPIC, "first", start="earliest").consumer("a") as consumer:
            consumer.receive(0).ack()
    directory = f"{ROOT}/{TOPIC}/subscriptions"
    copy = fs.create(f"{directory}/second.sub")
    copy.pwrite(fs.read_all(f"{directory}/first.sub", size_max=1 << 20), 0)
    copy.close()
    with open_topics(fs) as store:
        with store.subscribe(TOPIC, "second").consumer("a") as consumer:
            for _ in range(4):
                consumer.receive(0).ack()
        store.maintain()
    with open_topics(fs) as store:
        assert store.subscribe(TOPIC, "first").next_offset == 1
        assert store.subscribe(TOPIC, "second").next_offset == 5


def test_the_offset_of_ack_checkpoint_is_not_a_subscription():
    with open_topics(CrashFileSystem()) as store, pytest.raises(UsageError, match="ack_checkpoint"):
        store.subscribe(TOPIC, "_checkpoint")
