"""Truncating and deleting topics, also with a crash at any step."""

from __future__ import annotations

import pytest
from topic_disks import DIRECTORY, ROOT, TOPIC, offsets, open_topics, payloads

from quiver.errors import DirectoryInUseError, StoreClosedError, UsageError
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.dispatch.saved import SubscriptionFiles

pytestmark = pytest.mark.usefixtures("quiet")


def fill(log, count):
    for _ in range(count):
        log.append(b"%d" % log.current_offset())


def test_truncate_deletes_complete_files_below_the_offset():
    """Never above it, and durably; later messages keep their offsets."""
    fs = CrashFileSystem()
    with open_topics(fs, rotate_max_bytes=300) as store:
        log = store.topic(TOPIC)
        fill(log, 20)
        start = store.truncate(TOPIC, 11)
        assert 0 < start <= 11
        assert offsets(log) == list(range(start, 20))
        assert store.truncate(TOPIC, 3) == start
        log.flush()
    with open_topics(fs.clone_after_crash(1), rotate_max_bytes=300) as store:
        assert offsets(store.topic(TOPIC)) == list(range(start, 20))
        assert store.truncate(TOPIC, "latest") == 20
        assert offsets(store.topic(TOPIC)) == []
        assert store.topic(TOPIC).append(b"x") == 20
        with pytest.raises(UsageError, match="nothing at 22 yet: its end, 21, is the furthest"):
            store.truncate(TOPIC, 22)
        with pytest.raises(UsageError, match="there is no topic default/none below /topics"):
            store.truncate("default/none", 1)
        with pytest.raises(UsageError, match="there is no topic default/none below /topics"):
            store.unload("default/none")
        assert store.topics() == [TOPIC]


def test_truncate_keeps_a_file_that_is_being_read():
    """The reader continues; the next call deletes the file."""
    with open_topics(CrashFileSystem(), rotate_max_bytes=300, cache_capacity=1) as store:
        log = store.topic(TOPIC)
        fill(log, 20)
        with log.reader(0, follow=False) as reader:
            assert next(reader).payload == b"0"
            assert store.truncate(TOPIC, "latest") == 0
            assert [one.payload for one in reader] == [b"%d" % number for number in range(1, 20)]
        assert store.truncate(TOPIC, "latest") == 20


def test_a_subscription_skips_truncated_messages():
    """They are counted as lost, and delivery continues after them."""
    with open_topics(CrashFileSystem(), rotate_max_bytes=300, cache_capacity=1) as store:
        fill(store.topic(TOPIC), 20)
        subscription = store.subscribe(TOPIC, "billing", start=0)
        start = store.truncate(TOPIC, 11)
        with subscription.consumer("c") as consumer:
            assert consumer.receive(0).offset == start


def test_delete_removes_everything_of_the_topic():
    """Its files, subscriptions and quarantine are removed, those of other topics are kept; a new topic starts at 0."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        log = store.topic(TOPIC)
        fill(log, 5)
        fill(store.topic("default/other"), 3)
        fs.make_dirs(f"{DIRECTORY}/quarantine")
        fs.create(f"{DIRECTORY}/quarantine/x").close()
        subscription = store.subscribe(TOPIC, "billing", start=0)
        store.delete(TOPIC)
        assert subscription.closed
        with pytest.raises(StoreClosedError):
            log.append(b"x")
        assert store.topics() == ["default/other"]
        assert fs.list_dir(f"{ROOT}/default") == ["other"]
        with pytest.raises(UsageError, match="there is no topic"):
            store.delete(TOPIC)
        assert store.topic(TOPIC).append(b"x") == 0
        assert store.subscriptions(TOPIC) == []


def test_a_topic_that_another_process_reads_is_not_deleted():
    """A streaming query locks its subscription: it has to be stopped first."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        fill(store.topic(TOPIC), 5)
        store.subscribe(TOPIC, "query", start=0).close()
        lock = SubscriptionFiles(fs, DIRECTORY).hold("query", owner="spark", clock=ManualClock())
        with pytest.raises(DirectoryInUseError, match="spark"):
            store.delete(TOPIC)
        assert payloads(store.topic(TOPIC)) == [b"%d" % number for number in range(5)]
        lock.release()
        store.delete(TOPIC)
        assert store.topics() == []


def test_a_crash_during_delete_keeps_the_topic_or_removes_it_completely():
    """The topic exists, or it is deleted permanently; the next open removes leftovers from the disk."""
    fs = CrashFileSystem()
    found = set()
    with open_topics(fs) as store:
        fill(store.topic(TOPIC), 5)
        store.subscribe(TOPIC, "billing", start=0)
        store.flush()
        disks = []

        def snap(*_):
            disks.extend((fs.clone_after_kill(), fs.clone_after_crash(seed=len(disks))))

        fs.on_step = snap
        store.delete(TOPIC)
        fs.on_step = lambda _op, _path: None
    for disk in disks:
        with open_topics(disk) as store:
            if store.topics():
                assert payloads(store.topic(TOPIC)) == [b"%d" % number for number in range(5)]
            else:
                assert disk.list_dir(f"{ROOT}/default") == []
            found.add(bool(store.topics()))
    assert found == {True, False}


def test_topics_in_memory_are_deleted_and_truncated():
    """As far as they have messages."""
    from quiver.topics.store import TopicStore

    with TopicStore.open(clock=ManualClock(), background=False) as store:
        log = store.topic(TOPIC)
        fill(log, 3)
        store.delete(TOPIC)
        assert store.topics() == []
        with pytest.raises(UsageError, match="no topic default/orders in memory"):
            store.truncate(TOPIC, 0)
        assert store.reappend(store.topic(TOPIC).topic) == []
        with pytest.raises(UsageError, match="open its directory with objects"):
            store.upload(TOPIC)
