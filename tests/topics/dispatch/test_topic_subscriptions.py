"""Subscriptions: which consumer gets which message, until it is acknowledged, despite crashes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from topic_disks import ROOT, TOPIC, open_topics, payloads

from disk_files import overwrite
from quiver.errors import CorruptionError, DirectoryInUseError, StoreClosedError, UsageError
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.dispatch.state import Confirmed
from quiver.topics.settings import SubscriptionSettings, TopicSettings
from quiver.topics.store import TopicStore

pytestmark = pytest.mark.usefixtures("quiet")


class Rig:
    """A store on a disk in memory, with a manual clock."""

    def __init__(self, fs: CrashFileSystem | None = None, **settings: Any) -> None:
        self.fs = fs or CrashFileSystem()
        self.clock = ManualClock()
        self.settings = settings
        self.store = self._open()

    def _open(self) -> TopicStore:
        settings = TopicSettings(subscriptions=SubscriptionSettings(**self.settings))
        return TopicStore.open(ROOT, settings=settings, fs=self.fs, clock=self.clock, background=False)

    def reopen(self, fs: CrashFileSystem | None = None) -> None:
        if fs is None:
            self.store.close()
        else:
            self.fs = fs
        self.store = self._open()

    def fill(self, count: int, *, keys: int = 0) -> None:
        log = self.store.topic(TOPIC)
        for number in range(count):
            log.append(b"%d" % number, key=str(number % keys) if keys else None)

    def subscribe(self, kind: Any = "shared", start: Any = "earliest") -> Any:
        return self.store.subscribe(TOPIC, "billing", kind=kind, start=start)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.store.close()


def drain(consumer: Any, *, ack: bool = True) -> list[int]:
    found = []
    while (delivery := consumer.receive(0)) is not None:
        found.append(delivery.offset)
        if ack:
            delivery.ack()
    return found


# ── kinds ────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_exclusive_subscription_has_one_consumer(rig):
    """A second one is refused until the first one has left."""
    rig.fill(3)
    subscription = rig.subscribe("exclusive")
    with subscription.consumer("a") as consumer:
        with pytest.raises(DirectoryInUseError, match="a"):
            subscription.consumer("b")
        assert drain(consumer) == [0, 1, 2]
    with subscription.consumer("b") as consumer:
        assert drain(consumer) == []


def test_a_shared_subscription_gives_each_message_to_one_consumer(rig):
    """The next consumer that asks gets it; all consumers may have unacknowledged messages at the same time."""
    rig.fill(6)
    subscription = rig.subscribe()
    with subscription.consumer("a") as a, subscription.consumer("b") as b:
        found = [(consumer.receive(0) or pytest.fail("nothing")).offset for consumer in (a, b, a, b, b, b)]
        assert sorted(found) == list(range(6))
        assert a.receive(0) is None
        with pytest.raises(UsageError):
            subscription.consumer("a")


def test_a_failover_subscription_promotes_the_next_consumer(rig):
    """Standbys get no messages until the consumers before them leave; then they get the unacknowledged ones."""
    rig.fill(4)
    subscription = rig.subscribe("failover")
    first, second, third = (subscription.consumer(name) for name in "abc")
    assert (first.active, second.active) == (True, False)
    assert second.receive(0) is None
    first.receive(0).ack()
    assert first.receive(0).offset == 1
    first.close()
    assert (second.active, third.active) == (True, False)
    assert third.receive(0) is None
    assert drain(second) == [1, 2, 3]
    with pytest.raises(StoreClosedError):
        first.receive(0)


def test_a_key_shared_subscription_keeps_each_key_in_order_with_one_consumer(rig):
    """Even when consumers join or leave: unacknowledged messages are redelivered before later ones of their key."""
    rig.fill(40, keys=8)
    subscription = rig.subscribe("key_shared")
    a, b = subscription.consumer("a"), subscription.consumer("b")
    held = [a.receive(0) for _ in range(4)]
    keys_of_a = {delivery.message.key for delivery in held}
    c = subscription.consumer("c")
    got_by_c = drain(c)
    got_by_b = drain(b)
    assert not {offset % 8 for offset in got_by_c} & {int(key) for key in keys_of_a}
    assert not {offset % 8 for offset in got_by_b} & {offset % 8 for offset in got_by_c}
    left = sorted(delivery.offset for delivery in held)
    a.close()
    rest = [consumer_offsets for consumer in (b, c) for consumer_offsets in [drain(consumer)]]
    for key in range(8):
        for offsets in (got_by_b + rest[0], got_by_c + rest[1]):
            of_key = [offset for offset in offsets if offset % 8 == key]
            assert of_key == sorted(of_key)
    assert sorted(got_by_b + got_by_c + rest[0] + rest[1]) == list(range(40))
    assert set(left) <= set(rest[0] + rest[1])


def test_a_refused_message_holds_back_later_messages_of_its_key(rig):
    """Order within a key is kept while the first of them waits for redelivery."""
    rig.fill(4, keys=2)
    with rig.subscribe("key_shared").consumer("a") as consumer:
        consumer.receive(0).nack(5)
        assert drain(consumer) == [1, 3]
        rig.clock.advance(6)
        assert drain(consumer) == [0, 2]


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_refused_message_is_redelivered_after_its_delay(rig):
    """The given delay, or that of the settings; the attempts are counted."""
    rig.fill(1)
    with rig.subscribe().consumer("a") as consumer:
        first = consumer.receive(0)
        first.nack(10)
        assert consumer.receive(0) is None
        rig.clock.advance(10.1)
        second = consumer.receive(0)
        assert (first.attempt, second.attempt, second.offset) == (1, 2, 0)
        second.nack()
        rig.clock.advance(0.9)
        assert consumer.receive(0) is None
        rig.clock.advance(0.2)
        assert consumer.receive(0).attempt == 3


def test_waiting_ends_when_a_message_is_due_for_redelivery(rig):
    """A waiting consumer gets it without another message being appended."""
    rig.fill(1)
    with rig.subscribe().consumer("a") as consumer:
        consumer.receive(0).nack(3)
        assert consumer.receive(60).offset == 0


def test_a_delivery_without_an_answer_is_repeated(rig):
    """After `ack_timeout_seconds`; a late acknowledgement still counts."""
    rig.fill(2)
    subscription = rig.subscribe()
    with subscription.consumer("a") as a, subscription.consumer("b") as b:
        late = a.receive(0)
        rig.clock.advance(31)
        again = b.receive(0)
        assert (again.offset, again.attempt) == (late.offset, 2)
        late.ack()
        again.ack()
        again.nack(0)
        assert drain(b) == [1]
        assert subscription.next_offset == 2


def test_the_number_of_unacknowledged_messages_is_limited():
    """By `max_unacked_messages`; refused messages count until they are acknowledged."""
    rig = Rig(max_unacked_messages=3)
    rig.fill(10)
    subscription = rig.subscribe()
    with subscription.consumer("a") as consumer:
        held = [consumer.receive(0) for _ in range(3)]
        assert consumer.receive(0) is None
        held[1].nack(100)
        assert consumer.receive(0) is None
        held[0].ack()
        assert consumer.receive(0).offset == 3
        assert subscription.stats()["in_flight"] == 2
    rig.store.close()


def test_one_unacknowledged_message_does_not_fill_memory():
    """Reading ahead of it is limited, and continues when it is acknowledged."""
    rig = Rig(max_unacked_messages=2, ack_timeout_seconds=None)
    rig.fill(3000)
    subscription = rig.subscribe()
    with subscription.consumer("a") as consumer:
        stuck = consumer.receive(0)
        found = drain(consumer)
        assert 1000 < len(found) < 2000
        stuck.ack()
        found += drain(consumer)
        while found[-1] < 2999:
            found += drain(consumer)
        assert found == list(range(1, 3000))
        assert subscription.next_offset == 3000
    rig.store.close()


def test_a_message_refused_too_often_becomes_a_dead_letter():
    """It is stored durably in the topic's dead letters, with its origin."""
    rig = Rig(max_redelivery_count=2, redelivery_delay_seconds=0)
    rig.fill(3)
    subscription = rig.subscribe()
    with subscription.consumer("a") as consumer:
        for attempt in (1, 2, 3):
            delivery = consumer.receive(0)
            assert (delivery.offset, delivery.attempt) == (0, attempt)
            delivery.nack()
        assert drain(consumer) == [1, 2]
    rig.reopen(rig.fs.clone_after_crash(0))
    dead = rig.store.topic(f"{TOPIC}-dead-letter")
    (letter,) = dead.reader(0, follow=False)
    assert letter.payload == b"0"
    assert letter.attributes == {
        "x-original-topic": f"/{TOPIC}", "x-original-subscription": "billing", "x-original-topic-offset": "0",
        "x-delivery-attempt": "3",
    }  # fmt: skip
    rig.store.close()


# ── progress ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_start_of_a_subscription_is_durable_from_its_creation():
    """A crash before the first acknowledgement does not move it to the then latest offset."""
    rig = Rig()
    rig.fill(3)
    rig.subscribe(start="latest")
    rig.fill(4)
    rig.store.topic(TOPIC).flush()
    rig.reopen(rig.fs.clone_after_crash(0))
    with rig.subscribe(start="latest").consumer("a") as consumer:
        assert drain(consumer) == [3, 4, 5, 6]
    rig.store.close()


def test_out_of_order_acknowledgements_survive_restarts(rig):
    """They are not redelivered; unacknowledged messages are, with their attempts."""
    rig.fill(8)
    with rig.subscribe().consumer("a") as consumer:
        held = [consumer.receive(0) for _ in range(8)]
        for number in (0, 1, 3, 4, 7):
            held[number].ack()
        held[2].nack(0)
        assert consumer.receive(0).attempt == 2
    rig.reopen()
    with rig.subscribe().consumer("a") as consumer:
        found = [consumer.receive(0) for _ in range(3)]
        assert [(delivery.offset, delivery.attempt) for delivery in found] == [(2, 3), (5, 2), (6, 2)]
        assert consumer.receive(0) is None


@pytest.mark.parametrize("kill", [True, False])
def test_messages_are_delivered_at_least_once_across_crashes(kill):
    """At any step of saving, after a kill and after a power loss: unacknowledged messages are redelivered in order."""
    rig = Rig(progress_flush_interval_seconds=0, progress_min_offset_delta=2)
    rig.fill(9)
    rig.store.topic(TOPIC).flush()
    disks: list[tuple[int, CrashFileSystem]] = []
    acked = 0

    def crash(_op: str, _path: str) -> None:
        disks.append((acked, rig.fs.clone_after_kill() if kill else rig.fs.clone_after_crash(len(disks))))

    subscription = rig.subscribe()
    rig.fs.on_step = crash
    with subscription.consumer("a") as consumer:
        for _ in range(9):
            delivery = consumer.receive(0)
            acked += 1
            delivery.ack()
            subscription.maintain()
    rig.fs.on_step = None
    assert len(disks) > 10
    for confirmed, disk in disks:
        other = Rig(disk)
        with other.subscribe().consumer("a") as consumer:
            found = drain(consumer)
            assert found == list(range(9 - len(found), 9))
            assert len(found) >= 9 - confirmed
        other.store.close()
    rig.store.close()


def test_progress_flush_interval_bounds_the_age_of_unsaved_progress():
    """`progress_flush_interval_seconds`: the last acknowledgement is saved in time, even if no other follows."""
    rig = Rig(progress_flush_interval_seconds=5)
    rig.fill(3)
    with rig.subscribe().consumer("a") as consumer:
        drain(consumer)
        rig.clock.advance(4)
        rig.store.maintain()
        assert rig.store.confirmed_offset(TOPIC) == 0
        rig.clock.advance(2)
        rig.store.maintain()
        assert rig.store.confirmed_offset(TOPIC) == 3
    rig.store.close()


def test_progress_min_offset_delta_bounds_lost_acknowledgements():
    """`progress_min_offset_delta`: a crash never loses that many acknowledgements."""
    rig = Rig(progress_min_offset_delta=4)
    rig.fill(10)
    with rig.subscribe().consumer("a") as consumer:
        saved = []
        for _ in range(10):
            consumer.receive(0).ack()
            saved.append(rig.store.confirmed_offset(TOPIC))
    assert saved == [0, 0, 0, 4, 4, 4, 4, 8, 8, 8]
    rig.store.close()


def test_progress_is_never_ahead_of_synced_messages():
    """A power loss undoes an acknowledged message; the message that gets its offset is delivered."""
    rig = Rig(progress_flush_interval_seconds=0)
    rig.fill(2)
    subscription = rig.subscribe()
    with subscription.consumer("a") as consumer:
        drain(consumer)
        subscription.maintain()
    rig.reopen(rig.fs.clone_after_crash(0))
    assert rig.store.topic(TOPIC).append(b"new") == 2
    with rig.subscribe().consumer("a") as consumer:
        assert drain(consumer) == [2]
    rig.store.close()


def test_seek_moves_a_subscription_in_both_directions(rig):
    """It is durable, and answers to earlier deliveries are ignored."""
    rig.fill(6)
    subscription = rig.subscribe()
    with subscription.consumer("a") as consumer:
        assert drain(consumer) == list(range(6))
        assert subscription.seek(2) == 2
        old = consumer.receive(0)
        assert old.offset == 2
        assert subscription.seek("earliest") == 0
        old.ack()
        assert subscription.next_offset == 0
        assert drain(consumer) == list(range(6))
        assert subscription.seek(4) == 4
        rig.reopen(rig.fs.clone_after_crash(0))
    with rig.subscribe().consumer("a") as consumer:
        assert drain(consumer) == [4, 5]
        assert rig.subscribe().seek("latest") == 6
        assert consumer.receive(0) is None


def test_the_store_moves_a_subscription_that_is_not_open(rig):
    """By name and durably, without a consumer; it moves an open subscription, too."""
    rig.fill(6)
    with pytest.raises(UsageError, match="default/orders has no subscription billing; it has none"):
        rig.store.seek(TOPIC, "billing", 0)
    rig.subscribe().close()
    assert rig.store.seek(TOPIC, "billing", 4) == 4
    rig.reopen(rig.fs.clone_after_crash(0))
    subscription = rig.subscribe()
    with subscription.consumer("c") as consumer:
        assert consumer.receive(0).message.payload == b"4"
        assert rig.store.seek(TOPIC, "billing", "earliest") == 0
        assert consumer.receive(0).message.payload == b"0"
    with pytest.raises(UsageError, match="its end, .* is the furthest"):
        rig.store.seek(TOPIC, "billing", 7)


def test_two_subscriptions_are_independent(rig):
    """Each has its own position; removing a third one removes only its position."""
    rig.fill(3)
    first = rig.store.subscribe(TOPIC, "first", start="earliest")
    second = rig.store.subscribe(TOPIC, "second", start=1)
    with first.consumer("a") as a, second.consumer("a") as b:
        assert drain(a) == [0, 1, 2]
        assert drain(b) == [1, 2]
    assert rig.store.subscriptions(TOPIC) == ["first", "second"]
    rig.store.unsubscribe(TOPIC, "first")
    assert rig.store.subscriptions(TOPIC) == ["second"]
    with pytest.raises(StoreClosedError):
        first.consumer("b")
    with rig.store.subscribe(TOPIC, "first", start="earliest").consumer("a") as again:
        assert drain(again) == [0, 1, 2]


def test_a_damaged_subscription_is_an_error(rig):
    """Its position is never guessed, and it does not start at the latest message."""
    rig.fill(3)
    rig.subscribe()
    rig.store.close()
    overwrite(rig.fs, f"{ROOT}/{TOPIC}/subscriptions/billing.sub", 5, b"XX")
    rig.reopen(rig.fs)
    with pytest.raises(CorruptionError, match="checksum"):
        rig.subscribe()
    assert rig.store.topic(TOPIC).append(b"goes on") == 3


def test_lost_messages_do_not_stop_a_subscription(rig):
    """They are counted and skipped; later messages are delivered."""
    rig.fill(6)
    rig.subscribe()
    rig.store.close()
    overwrite(rig.fs, f"{ROOT}/{TOPIC}/wal.log", 240, b"\xff" * 10)
    rig.reopen(rig.fs)
    subscription = rig.subscribe()
    with subscription.consumer("a") as consumer:
        assert drain(consumer) == [0, 1, 3, 4, 5]
        assert subscription.next_offset == 6


def test_ack_checkpoint_records_the_processed_offset(rig):
    """It is durable, for retention; it never moves back, and never beyond the end of the topic."""
    rig.fill(5)
    assert rig.store.confirmed_offset(TOPIC) is None
    rig.store.ack_checkpoint(TOPIC, 2)
    rig.store.ack_checkpoint(TOPIC, 1)
    assert rig.store.confirmed_offset(TOPIC) == 3
    with pytest.raises(UsageError):
        rig.store.ack_checkpoint(TOPIC, 5)
    rig.subscribe(start=1)
    assert rig.store.confirmed_offset(TOPIC) == 1
    rig.reopen(rig.fs.clone_after_crash(0))
    assert rig.store.confirmed_offset(TOPIC) == 1


def test_subscription_kinds_cannot_be_mixed(rig):
    """Neither for an open subscription nor for a topic."""
    rig.fill(1)
    rig.subscribe("shared")
    with pytest.raises(UsageError, match="open as shared"):
        rig.subscribe("exclusive")
    with pytest.raises(UsageError, match="that is reliable"):
        rig.store.topic(TOPIC, reliable=False)


def test_topics_that_are_not_reliable_deliver_to_current_listeners(rig):
    """They write no files; current listeners get each message once, others miss it."""
    steps = rig.fs.steps
    log = rig.store.topic("default/news", reliable=False)
    subscription = rig.store.subscribe("default/news", "ticker")
    log.append(b"1")
    with subscription.consumer("a") as consumer:
        assert drain(consumer, ack=False) == [0]
        log.append_batch([b"x"] * 3000)
        found = drain(consumer, ack=False)
        assert found == list(range(3001 - len(found), 3001))
        assert 900 < len(found) <= 1024
    assert rig.fs.steps == steps
    assert rig.store.confirmed_offset("default/news") is None
    with pytest.raises(UsageError, match="that is not reliable"):
        rig.store.topic("default/news")


def test_threads_receive_while_others_append(tmp_path):
    """Three consumers wait; each message is processed by one of them, and none is left."""
    with TopicStore.open(tmp_path / "topics") as store:
        log = store.topic(TOPIC)
        subscription = store.subscribe(TOPIC, "billing")
        handled: list[int] = []

        def work(name: str) -> None:
            with subscription.consumer(name) as consumer:
                while (delivery := consumer.receive(10)) is not None and delivery.message.payload:
                    handled.append(delivery.offset)
                    delivery.ack()
                delivery.ack()

        threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for number in range(300):
            log.append(b"%d" % number)
        log.append_batch([b""] * 3)
        for thread in threads:
            thread.join(30)
        assert sorted(handled) == list(range(300))
        assert subscription.next_offset == 303


# ── confirmed offsets ────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.one_of(st.integers(0, 30), st.tuples(st.integers(0, 30), st.integers(0, 10))), max_size=30))
def test_confirmed_offsets_equal_a_set(steps):
    """They are added in any order, individually and in ranges."""
    confirmed, model = Confirmed(0), set()
    for step in steps:
        if isinstance(step, int):
            confirmed.ack(step)
            model.add(step)
        else:
            first, count = step
            confirmed.skip(first, first + count)
            model.update(range(first, first + count))
        at = next(offset for offset in range(100) if offset not in model)
        assert confirmed.next_offset == at
        assert [offset for offset in range(50) if offset in confirmed] == sorted(model)
        above = {offset for first, after in confirmed.ranges() for offset in range(first, after)}
        assert above == {offset for offset in model if offset > at}
        again = Confirmed(confirmed.next_offset, confirmed.ranges())
        assert (again.next_offset, again.ranges()) == (confirmed.next_offset, confirmed.ranges())


def test_the_rig_reads_its_payloads(rig):
    """The tests above rely on this."""
    rig.fill(3)
    assert payloads(rig.store.topic(TOPIC)) == [b"0", b"1", b"2"]
    with open_topics(CrashFileSystem()) as store:
        assert payloads(store.topic(TOPIC)) == []


# ── deprecated names ─────────────────────────────────────────────────────────────────────────────────────


def test_former_argument_names_still_work_and_warn(rig):
    rig.fill(1)
    consumer = rig.subscribe().consumer("c")
    with pytest.warns(DeprecationWarning, match="timeout_s is now Consumer.receive.timeout"):
        delivery = consumer.receive(timeout_s=0)
    with pytest.warns(DeprecationWarning, match="delay_s is now ReceivedMessage.nack.delay"):
        delivery.nack(delay_s=5)
    assert consumer.receive(0) is None
    rig.clock.advance(5)
    assert consumer.receive(0).attempt == 2
    former = pytest.warns(DeprecationWarning, match="timeout_s is now TopicReader.wait.timeout")
    with rig.store.topic(TOPIC).reader("latest") as reader, former:
        assert not reader.wait(timeout_s=0)
    with pytest.warns(DeprecationWarning, match="adopt is now TopicStore.import_staged"):
        assert rig.store.adopt() == 0
