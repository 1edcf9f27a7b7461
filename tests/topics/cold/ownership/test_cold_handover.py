"""Closing a store hands its topics over: another machine continues where this one stopped, with every message."""

from __future__ import annotations

import json
import logging
import threading

import pytest
from cold_rig import TOPIC, Rig, append, check_tidy, expected, read, settings

from quiver.clock import SYSTEM_CLOCK
from quiver.errors import DirectoryInUseError, StoreClosedError
from quiver.observe import InMemoryObserver
from quiver.primitives.worker import FINISHED, Worker
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.settings import UploaderSettings

pytestmark = pytest.mark.usefixtures("quiet")


class EventRecorder(InMemoryObserver):
    """Records events."""

    def __init__(self):
        super().__init__()
        self.events = []

    def event(self, name, *, level=logging.INFO, **attributes):
        self.events.append((name, level, attributes.get("problem")))


def machine(rig, **changed):
    """Another machine, with its own disk and the same two stores."""
    options = {"disk": CrashFileSystem(), "owner": "two", "chosen": rig.chosen, **changed}
    return Rig(memory=rig.memory, facts=rig.facts, **options)


def state_of(rig):
    return json.loads(rig.facts.get(f"/danube/storage/topics/{TOPIC}/state").value)


def test_another_machine_continues_where_a_clean_close_stopped():
    """Immediately, at the next offset, with every message; nothing is quarantined when the first machine comes back."""
    one = Rig(chosen=settings(keep_minutes=None))
    log = one.open()
    append(log, 1000)
    log.flush()
    assert one.store.close() == []

    two = machine(one)
    with two.opened() as log:
        assert two.clock.monotonic() == 0.0
        assert log._engine.wal.next_offset == 1000
        assert read(log) == expected(1000)
        append(log, 10)
    back = Rig(disk=one.disk, memory=one.memory, facts=one.facts, chosen=one.chosen)
    with back.opened() as log:
        assert log._engine.wal.next_offset == 1010
        assert read(log) == expected(1010)
        assert not back.disk.exists(f"/topics/{TOPIC}/quarantine")
        back.store.maintain()
        check_tidy(back)


def test_unsynced_messages_are_handed_over_too():
    """Closing syncs first; subscriptions move along; an append to the closed log raises."""
    one = Rig()
    log = one.open()
    append(log, 7)
    subscription = one.store.subscribe(TOPIC, "billing", start=0)
    with subscription.consumer("c") as consumer:
        for _ in range(3):
            consumer.receive(0).ack()
    one.store.close()
    assert state_of(one) == {"sealed": True, "last_committed_offset": 6, "broker_id": "one", "timestamp": 1_700_000_000}
    with pytest.raises(StoreClosedError):
        append(log, 1)
    with machine(one).opened() as log:
        assert read(log) == expected(7)
    three = machine(one, owner="three")
    three.open()
    assert three.store.subscribe(TOPIC, "billing").next_offset == 3
    three.close()


def test_a_close_without_new_messages_makes_almost_no_requests():
    """According to the catalog everything is uploaded: no object is listed, read or written."""
    one = Rig()
    with one.opened() as log:
        append(log, 5)
    calls = []
    one.objects.on_call = lambda operation, _key: calls.append(operation)
    with Rig(disk=one.disk, memory=one.memory, facts=one.facts, chosen=one.chosen).opened():
        pass
    one.objects.on_call = lambda _operation, _key: None
    again = Rig(disk=one.disk, memory=one.memory, facts=one.facts, chosen=one.chosen)
    again.open()
    again.objects.on_call = lambda operation, _key: calls.append(operation)
    again.close()
    assert calls == []


def test_an_outage_is_reported_and_loses_no_message():
    """The messages are reported; the directory keeps its topic, and hands it over when it is closed the next time."""
    one = Rig(chosen=settings(keep_minutes=None))
    one.observer = EventRecorder()
    log = one.open()
    append(log, 4)
    log.flush()
    one.store.maintain()
    append(log, 3)
    one.objects.fail_on("put_parts", times=99)
    (left,) = one.store.close()
    assert (left.topic, left.first_offset, left.next_offset, left.is_owner) == (TOPIC, 4, 7, True)
    assert "messages 4 to 6 are only in /topics/default/orders" in str(left)
    assert "this directory still owns the topic: open it again" in str(left)
    (event,) = [event for event in one.observer.events if event[0] == "danube.topic.not_handed_over"]
    assert event[1:] == (logging.ERROR, str(left))

    two = machine(one)
    with pytest.raises(DirectoryInUseError, match="one"):
        two.open()
    two.close()
    one.objects.heal()
    again = Rig(disk=one.disk, memory=one.memory, facts=one.facts, chosen=one.chosen)
    with again.opened() as log:
        assert read(log) == expected(7)
    with machine(one).opened() as log:
        assert read(log) == expected(7)


def test_close_waits_for_an_unresponsive_store_no_longer_than_its_timeout():
    """This also holds when another topic's upload hangs; its later result changes nothing."""
    one = Rig(chosen=settings(keep_minutes=None))
    log = one.open()
    append(log, 3)
    hangs, answered = threading.Event(), threading.Event()
    done = threading.Event()

    def hang(operation, _key):
        if operation == "put_parts":
            hangs.set()
            answered.wait(30)

    def detach(topic, *, sealed):
        try:
            type(one.tier).detach(one.tier, topic, sealed=sealed)
        finally:
            if sealed:
                done.set()

    one.objects.on_call = hang
    one.tier.detach = detach
    (left,) = one.store.close(timeout=0.01)
    assert hangs.wait(30)
    assert "it took more than 0.01 s" in left.reason
    assert (left.first_offset, left.next_offset) == (0, 3)

    again = Rig(disk=one.disk, memory=one.memory, facts=one.facts, chosen=one.chosen)
    with again.opened() as log:
        append(log, 2)
        again.store.maintain()
        before = again.named()
        answered.set()
        assert done.wait(30)
        assert read(log) == expected(5)
        again.tier.catalog(TOPIC).refresh()
        assert again.named() == before


def test_an_interrupted_close_does_not_wait_for_the_object_store(monkeypatch):
    """After Ctrl-C while the object store hung, the process used to end only when the store answered."""
    one = Rig(chosen=settings(keep_minutes=None))
    append(one.open(), 3)
    hangs, answered = threading.Event(), threading.Event()
    waited = []

    def hang():
        hangs.set()
        waited.append(answered.wait(10))
        return FINISHED

    def interrupt(*_arguments):
        raise KeyboardInterrupt

    worker = Worker("hangs", hang, every=0, on_death=print, clock=SYSTEM_CLOCK, observer=one.observer)
    worker.start()
    assert hangs.wait(30)
    one.tier._workers.append(worker)
    monkeypatch.setattr("quiver.topics.cold.tier.do_within", interrupt)
    with pytest.raises(KeyboardInterrupt):
        one.store.close()
    assert worker.is_running
    assert waited == []
    answered.set()
    assert worker.join(10)
    monkeypatch.undo()
    again = Rig(disk=one.disk, memory=one.memory, facts=one.facts, chosen=one.chosen)
    with again.opened() as log:
        assert read(log) == expected(3)


def test_a_topic_with_another_owner_is_not_handed_over():
    """The report states what to do about the messages."""
    one = Rig(chosen=settings(keep_minutes=None))
    log = one.open()
    append(log, 4)
    two = machine(one, patience_s=301.0)
    with two.opened() as theirs:
        append(theirs, 2)
        (left,) = one.store.close()
        assert not left.is_owner
        assert "was fenced by two" in left.reason
        assert "quiver topic reappend" in str(left)
        assert read(theirs) == expected(2)


def test_hand_over_seconds_0_keeps_ownership():
    """For a process that restarts soon; it is also a setting in the broker's file."""
    one = Rig(chosen=settings())
    one.chosen = one.chosen.__class__(
        wal=one.chosen.wal, deleter=one.chosen.deleter, uploader=UploaderSettings(hand_over_seconds=0)
    )
    log = one.open()
    append(log, 4)
    assert one.store.close() == ()
    assert one.keys() == []
    two = machine(one)
    with pytest.raises(DirectoryInUseError):
        two.open()
    two.close()


def test_damage_at_the_end_does_not_prevent_the_handover():
    """Lost messages cannot be uploaded; the topic is handed over after them."""
    one = Rig(chosen=settings(rotate=None, keep_minutes=None))
    with one.opened() as log:
        one.objects.fail_on("put_parts", times=99)
        append(log, 9)
        size = log._engine.wal.files()[-1].size_bytes
    one.objects.heal()
    file = one.disk.open_write(f"/topics/{TOPIC}/wal.log")
    file.pwrite(b"\xff" * 20, size - 20)
    file.sync()
    file.close()
    again = Rig(disk=one.disk, memory=one.memory, facts=one.facts, chosen=one.chosen)
    again.open()
    assert again.store.close() == []
    with machine(one).opened() as log:
        assert log._engine.wal.next_offset == 9
        with log.reader(0, follow=False, on_lost="skip") as reader:
            assert [message.payload for message in reader] == expected(8)
