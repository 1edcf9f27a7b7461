"""Uploading, truncating and deleting topics with objects."""

from __future__ import annotations

import pytest
from cold_rig import TOPIC, Rig, append, check_tidy, expected, read, settings

from quiver.errors import DirectoryInUseError, FencedError, ObjectsUnavailableError, UsageError
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.format.request import TopicRequest
from quiver.topics.requests import perform
from quiver.topics.settings import TopicSettings, UploaderSettings

pytestmark = pytest.mark.usefixtures("quiet")


def opened(**changed):
    rig = Rig(chosen=settings(keep_minutes=None), **changed)
    rig.open()
    return rig, rig.store.topic(TOPIC)


def test_upload_syncs_first():
    """Messages appended just now are in objects on return; an outage is reported."""
    rig, log = opened()
    append(log, 5)
    assert rig.store.upload(TOPIC) == 5
    assert rig.tier.catalog(TOPIC).next_offset == 5
    rig.objects.fail_on("put_parts", times=9)
    append(log, 1)
    with pytest.raises(ObjectsUnavailableError):
        rig.store.upload(TOPIC)
    rig.objects.heal()
    rig.close()
    off = Rig(chosen=TopicSettings(uploader=UploaderSettings(enabled=False)))
    off.open()
    with pytest.raises(UsageError, match="uploader.enabled is false"):
        off.store.upload(TOPIC)
    off.close()


@pytest.mark.parametrize("before", [7, "latest"])
def test_truncate_deletes_objects_too(before):
    """
    Complete objects are deleted, the rest is not uploaded again, and a machine without files continues at the right
    offset.
    """
    rig, log = opened()
    append(log, 20)
    rig.store.upload(TOPIC)
    start = rig.store.truncate(TOPIC, before)
    assert start == 20 if before == "latest" else 0 < start <= 7
    assert read(log, start) == expected(20, start)
    rig.store.maintain()
    assert rig.named() == rig.keys() if before == "latest" else rig.named()
    assert (rig.keys() == []) is (before == "latest")
    check_tidy(rig)
    rig.close()
    two = Rig(memory=rig.memory, facts=rig.facts, owner="two", chosen=rig.chosen)
    with two.opened() as log:
        assert log._engine.wal.next_offset == 20
        assert log.start_offset() == start
        append(log, 3)


def test_delete_leaves_nothing_in_either_store():
    """Only the owner and the next offset remain: another machine continues after it and restores no message."""
    rig, log = opened()
    append(log, 20)
    rig.store.subscribe(TOPIC, "billing", start=0)
    rig.store.maintain()
    other = rig.store.topic("default/other")
    append(other, 3)
    rig.store.flush()
    rig.store.maintain()
    rig.store.delete(TOPIC)
    keys = [entry.key for entry in rig.facts.range("/") if "/other" not in entry.key]
    assert keys == [f"/danube/storage/topics/{TOPIC}/{name}" for name in ("owner", "state")]
    assert rig.keys() == []
    assert rig.store.topics() == ["default/other"]
    assert read(other) == expected(3)
    rig.close()
    with Rig(memory=rig.memory, facts=rig.facts, owner="two", chosen=rig.chosen).opened() as log:
        assert log._engine.wal.next_offset == 20
        assert read(log, 20) == []


@pytest.mark.parametrize("rotate", [None, 400])
@pytest.mark.parametrize("what", ["truncate", "delete"])
def test_a_former_owner_does_not_restore_deleted_messages(what, rotate):
    """Its older files are deleted when it owns the topic again, even if it had all messages."""
    one = Rig(chosen=settings(keep_minutes=None, rotate=rotate))
    with one.opened() as log:
        append(log, 20)
    two = Rig(memory=one.memory, facts=one.facts, owner="two", chosen=one.chosen)
    two.open()
    if what == "truncate":
        assert two.store.truncate(TOPIC, "latest") == 20
    else:
        two.store.delete(TOPIC)
    two.close()
    for _ in range(2):
        with one.opened() as log:
            assert log.start_offset() >= 20
            assert read(log, log.start_offset()) == expected(log._engine.wal.next_offset, 20)
            append(log, 3)


@pytest.mark.parametrize("step", ["list", "delete", "commit"])
def test_a_topic_whose_deletion_failed_can_be_used_and_deleted_again(step):
    """The object store or the metadata store becomes unavailable during the deletion."""
    rig, log = opened()
    append(log, 20)
    rig.store.upload(TOPIC)
    if step == "commit":
        rig.objects.on_call = lambda _op, _key: setattr(rig.metadata, "is_away", True)
    else:
        rig.objects.fail_on(step, times=99)
    with pytest.raises(Exception, match="objects|metadata"):
        rig.store.delete(TOPIC)
    rig.objects.on_call = lambda _op, _key: None
    rig.metadata.is_away = False
    rig.objects.heal()
    again = rig.store.topic(TOPIC)
    assert again is not log
    assert read(again) == expected(20)
    append(again, 1)
    rig.store.delete(TOPIC)
    assert rig.keys() == []
    rig.close()


def test_a_topic_owned_by_another_process_is_not_deleted():
    """Nothing of it changes, locally or remotely."""
    rig, log = opened()
    append(log, 5)
    rig.store.upload(TOPIC)
    two = Rig(memory=rig.memory, facts=rig.facts, owner="two", patience_s=301.0, chosen=rig.chosen)
    with two.opened() as theirs:
        append(theirs, 2)
        with pytest.raises(FencedError):
            rig.store.delete(TOPIC)
        with pytest.raises(DirectoryInUseError, match="owner two"):
            rig.store.truncate(TOPIC, 5)
        assert read(theirs) == expected(7)
    assert isinstance(rig.disk, CrashFileSystem)
    assert rig.disk.exists(f"/topics/{TOPIC}/wal.log")
    rig.close()


def test_administration_does_not_create_missing_topics():
    """A misspelt name used to be opened, owned and uploaded; a topic that another machine created exists."""
    rig, log = opened()
    append(log, 5)
    rig.close()
    two = Rig(memory=rig.memory, facts=rig.facts, owner="two", chosen=rig.chosen)
    two.open()
    before = [entry.key for entry in rig.facts.range("/")]
    for do in (
        two.store.upload, two.store.unload, two.store.delete, two.store.reappend,
        lambda name: two.store.truncate(name, 0), lambda name: two.store.seek(name, "billing", 0),
        lambda name: two.store.unsubscribe(name, "billing"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="there is no topic default/ordres below /topics, nor in the metadata"):
            do("default/ordres")
    assert [entry.key for entry in rig.facts.range("/")] == before
    assert two.store.topics() == [TOPIC]
    two.close()
    with Rig(memory=rig.memory, facts=rig.facts, owner="three", chosen=rig.chosen).opened():
        pass
    four = Rig(memory=rig.memory, facts=rig.facts, owner="four", chosen=rig.chosen)
    four.open()
    assert four.store.unload(TOPIC) == 5
    assert four.store.upload(TOPIC) == 5
    four.close()


@pytest.mark.parametrize("topic", [TOPIC, None], ids=["one", "all"])
def test_commands_wait_for_owners_that_may_be_dead(topic):
    """For one topic or for all topics of the directory; it used to wait for one only."""
    first, log = opened()
    append(log, 5)
    append(first.store.topic("a/b"), 5)
    first.close()
    dead = Rig(memory=first.memory, facts=first.facts, owner="two", chosen=first.chosen)
    dead.open()
    dead.store.topic("a/b")
    first.open_store()
    request = TopicRequest("unload", {"topic": topic})
    began = first.clock.monotonic()
    found = perform(first.store, request, wait_s=301, clock=first.clock)["topics"]
    assert {row["topic"]: row["next_offset"] for row in found} == ({TOPIC: 5} if topic else {"a/b": 5, TOPIC: 5})
    assert first.clock.monotonic() - began < 302
    first.close()
    dead.store.close(timeout=0)
