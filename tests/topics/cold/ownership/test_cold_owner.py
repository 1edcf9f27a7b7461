"""Two processes never write a topic at the same time; moving a topic loses and repeats no message."""

from __future__ import annotations

import json

import pytest
from cold_rig import DESCRIPTORS, PREFIX, TOPIC, Rig, append, check_tidy, expected, read, settings

from quiver.errors import (
    DirectoryInUseError,
    FencedError,
    MetadataUnavailableError,
    ObjectsUnavailableError,
    QuiverError,
)
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics import engine as topic_engine
from quiver.topics.dispatch.saved import SubscriptionFiles


def other(rig, **changed):
    """Another process, with its own disk and clock, and the same two stores."""
    options = {"disk": CrashFileSystem(), "clock": ManualClock(), "owner": "two", **changed}
    return Rig(memory=rig.memory, facts=rig.facts, chosen=rig.chosen, **options)


def test_a_second_process_is_refused_while_the_first_one_is_alive():
    """The error contains the name of the first process."""
    one = Rig()
    with one.opened() as log:
        append(log, 3)
        two = other(one)
        with pytest.raises(DirectoryInUseError, match="one"):
            two.open()
        two.close()
        append(log, 1)


def test_moving_a_topic_loses_and_repeats_no_message():
    """Sealed here, opened there: the sequence is the same, and the next offset follows."""
    one = Rig()
    log = one.open()
    append(log, 10)
    assert one.store.unload(TOPIC) == 10
    one.close()

    two = other(one)
    with two.opened() as log:
        assert log._engine.wal.next_offset == 10
        assert read(log) == expected(10)
        append(log, 5)
        log.flush()
        two.store.maintain()
        assert read(log) == expected(15)
        check_tidy(two)
        assert two.store.unload(TOPIC) == 15

    three = Rig(disk=one.disk, memory=one.memory, facts=one.facts)  # and back to the first
    with three.opened() as log:
        assert read(log) == expected(15)
        append(log, 1)
        assert log._engine.wal.next_offset == 16


def test_the_state_record_has_the_documented_key_and_json():
    """The next owner clears the sealed flag and keeps the offset."""
    one = Rig()
    log = one.open()
    append(log, 4)
    one.store.unload(TOPIC)
    key = f"/danube/storage/topics/{TOPIC}/state"

    state = json.loads(one.facts.get(key).value)
    assert state == {"sealed": True, "last_committed_offset": 3, "broker_id": "one", "timestamp": 1_700_000_000}
    one.close()
    two = other(one)
    with two.opened():
        assert json.loads(one.facts.get(key).value)["sealed"] is False
        assert json.loads(one.facts.get(key).value)["last_committed_offset"] == 3


def test_an_empty_topic_moves_and_starts_at_offset_zero():
    """It starts at 0 on the other machine, not at 1."""
    one = Rig()
    one.open()
    one.store.unload(TOPIC)
    one.close()

    two = other(one)
    with two.opened() as log:
        assert log._engine.wal.next_offset == 0


def test_a_topic_whose_upload_fails_keeps_its_owner():
    """It is sealed and still owned here; unloading it again succeeds when the store is available."""
    one = Rig()
    with one.opened() as log:
        append(log, 4)
        one.objects.fail_on("put_parts", times=99)
        with pytest.raises(ObjectsUnavailableError):
            one.store.unload(TOPIC)
        assert one.facts.get(f"/danube/storage/topics/{TOPIC}/state") is None
        two = other(one)
        with pytest.raises(DirectoryInUseError):
            two.open()
        two.close()
        one.objects.heal()
        assert one.store.unload(TOPIC) == 4
    with other(one).opened() as log:
        assert read(log) == expected(4)


def test_a_fenced_owner_gets_an_error_with_the_new_epoch():
    """Another process took over meanwhile: the former owner appends, publishes and deletes nothing."""
    one = Rig(chosen=settings(keep_minutes=None))
    log = one.open()
    append(log, 5)
    log.flush()
    one.tier.maintain()
    append(log, 2)  # on its own disk only
    log.flush()
    two = other(one, patience_s=301.0)
    with two.opened() as theirs:
        assert theirs._engine.wal.next_offset == 5
        append(theirs, 4)
        theirs.flush()
        two.tier.maintain()
        before = one.keys()

        with pytest.raises(FencedError, match="two"):
            one.tier.maintain()
        with pytest.raises(FencedError, match="epoch 1 was fenced by two, which has epoch 2"):
            append(log, 1)

        assert one.keys() == before
        assert read(theirs) == expected(9)
        check_tidy(two)


def test_an_owner_that_cannot_renew_stops_before_another_begins():
    """It stops by its own clock; until another process takes over, it continues as soon as it can renew."""
    one = Rig()
    with one.opened() as log:
        append(log, 1)
        one.metadata.is_away = True
        one.clock.advance(269.0)
        append(log, 1)
        one.clock.advance(2.0)
        with pytest.raises(MetadataUnavailableError, match="could not be renewed"):
            append(log, 1)
        with pytest.raises(MetadataUnavailableError):
            log.append_batch([b"x"])

        one.metadata.is_away = False
        one.store.maintain()
        append(log, 1)
        assert read(log) == expected(3)


@pytest.mark.parametrize("step", ["put_parts", "copy", "head", "get_range", "commit"])
def test_an_upload_fenced_in_the_middle_changes_nothing(step):
    """Another process takes over at any step: the former owner's descriptor is not published."""
    one = Rig(chosen=settings(keep_minutes=None))
    log = one.open()
    append(log, 3)
    log.flush()
    two = other(one, patience_s=301.0)

    def take_over(operation, key=""):
        if operation == step and two.store is None:
            theirs = two.open()
            append(theirs, 5)
            theirs.flush()
            two.tier.maintain()

    one.tier._renew = lambda owned: None
    one.objects.on_call = one.metadata.on_call = take_over
    with pytest.raises(QuiverError):
        one.tier.maintain()
    one.objects.on_call = one.metadata.on_call = lambda *_: None
    del one.tier._renew
    with pytest.raises(FencedError):
        one.tier.maintain()

    two.store.maintain()
    assert read(two.store.topic(TOPIC)) == expected(5)
    two.store.unload(TOPIC)
    two.close()
    three = other(one, owner="three")
    with three.opened() as theirs:
        assert read(theirs) == expected(5)
        three.store.maintain()
        check_tidy(three)


def test_a_restart_after_a_kill_does_not_wait():
    """The same directory is the same owner: its lock proves that the former process has ended."""
    one = Rig()
    log = one.open()
    append(log, 5)
    log.flush()
    one.tier.maintain()

    again = Rig(disk=one.disk.clone_after_kill(), memory=one.memory, facts=one.facts, clock=one.clock)
    with again.opened() as log:
        assert log._engine.wal.next_offset == 5
        assert one.clock.monotonic() == 0.0
        append(log, 1)


@pytest.mark.parametrize("step", ["subscriptions", "files", "attach"])
def test_a_machine_that_cannot_open_a_topic_does_not_block_others(monkeypatch, step):
    """A machine with a damaged disk took over, could not open the topic, and renewed its ownership forever."""
    one = Rig()
    with one.opened() as log:
        append(log, 5)
    two = other(one)
    store = two.open_store()

    def fail(*_arguments, **_options):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        target = {
            "subscriptions": (SubscriptionFiles, "highest"), "files": (topic_engine, "recover"),
            "attach": (two.tier, "attach"),
        }[step]  # fmt: skip
        patched.setattr(*target, fail)
        with pytest.raises(OSError, match="Input/output"):
            store.topic(TOPIC)
    two.tier.maintain()
    with other(one, owner="three").opened() as theirs:
        assert read(theirs) == expected(5)
    assert read(store.topic(TOPIC)) == expected(5)
    two.close()


def test_others_wait_one_lease_for_the_previous_owner(monkeypatch):
    """Unuploaded messages may exist only on its disk: the topic is free after one lease, not earlier."""
    one = Rig()
    append(one.open(), 5)
    one.store.close(timeout=0)

    def fail(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(topic_engine, "recover", fail)
        with pytest.raises(OSError, match="No space"):
            one.open()
    two = other(one)
    with pytest.raises(DirectoryInUseError, match="owner one"):
        two.open()
    two.clock.advance(200)
    one.tier.maintain()
    two.clock.advance(101)
    assert two.store.topic(TOPIC)._engine.wal.next_offset == 0
    two.close()
    one.close()


def test_offsets_never_decrease():
    """Local files are lost, the metadata is intact: the next offset is higher than every offset in objects."""
    one = Rig()
    with one.opened() as log:
        append(log, 6)
        log.flush()
        one.tier.maintain()

    again = Rig(memory=one.memory, facts=one.facts)
    with again.opened() as log:
        assert log._engine.wal.next_offset == 6
        assert read(log) == expected(6)


def test_a_topic_is_not_opened_without_its_metadata_store():
    """The metadata store does not answer during open: without it, offsets could be reused."""
    one = Rig()
    with one.opened() as log:
        append(log, 1)
    again = Rig(disk=one.disk, memory=one.memory, facts=one.facts)
    again.metadata.is_away = True
    with pytest.raises(MetadataUnavailableError):
        again.open()
    again.close()


def test_descriptor_keys_have_the_documented_form():
    """Descriptors have twenty digits, and a pointer names the newest one."""
    one = Rig()
    with one.opened() as log:
        append(log, 9)
        log.flush()
        one.tier.maintain()
    keys = [entry.key for entry in one.facts.range(DESCRIPTORS)]

    assert keys[0] == f"{DESCRIPTORS}00000000000000000000"
    assert keys[-1] == f"{DESCRIPTORS}cur"
    newest = one.facts.get(keys[-2])
    assert json.loads(one.facts.get(keys[-1]).value) == {"start": keys[-2].removeprefix(DESCRIPTORS)}
    fields = json.loads(newest.value)
    assert list(fields) == [
        "object_id", "start_offset", "end_offset", "size", "etag", "created_at", "completed", "offset_index",
    ]  # fmt: skip
    assert one.memory.head(PREFIX + fields["object_id"]).size_bytes == fields["size"]


def test_a_producer_continues_after_its_topic_moved():
    """Messages sent before the move exist only in objects, and are not appended again."""
    one = Rig()
    log = one.open()
    for number in range(5):
        log.producer("edge").append(b"%d" % number, sequence=number)
    one.store.unload("default/orders")
    one.close()

    two = Rig(memory=one.memory, facts=one.facts, owner="two")
    with two.opened() as log:
        edge = log.producer("edge")
        assert [edge.append(b"%d" % number, sequence=number) for number in (3, 4, 5)] == [None, None, 5]
        assert read(log) == [b"%d" % number for number in range(6)]
