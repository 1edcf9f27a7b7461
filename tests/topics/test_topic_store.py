"""A `TopicStore`: its topics, its metrics, its close, and a process that is killed while it appends."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys

import pytest
from topic_disks import DIRECTORY, ROOT, TOPIC, offsets, open_topics

from disk_files import overwrite
from quiver.errors import DataLossError, StoreClosedError, UsageError
from quiver.observe import InMemoryObserver
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.reading.read import TopicFiles
from quiver.topics.store import TopicStore


def test_the_same_name_gives_the_same_log():
    """With and without a slash; topics are independent."""
    with open_topics(CrashFileSystem()) as store:
        first, second = store.topic("a/b"), store.topic("/a/c")
        assert store.topic("/a/b") is first
        first.append(b"1")
        assert (first.current_offset(), second.current_offset()) == (1, 0)
        assert store.topics() == ["a/b", "a/c"]


def test_topics_with_files_are_found_again():
    """Next to unrelated files."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        store.topic("a/b").append(b"1")
    fs.make_dirs(f"{ROOT}/a/not a topic")
    fs.make_dirs(f"{ROOT}/a/empty")
    with open_topics(fs) as store:
        assert store.topics() == ["a/b"]


def test_a_closed_store_refuses_calls():
    """So do its topics; closing twice is allowed."""
    store = open_topics(CrashFileSystem())
    log = store.topic(TOPIC)
    log.append(b"1")
    reader = log.reader()
    store.shutdown()
    store.close()
    for attempt in (lambda: store.topic(TOPIC), lambda: log.append(b"2"), lambda: log.append_batch([b"2"])):
        with pytest.raises(StoreClosedError):
            attempt()
    log.flush()
    assert list(reader) == []


def test_metrics_have_the_documented_names():
    """Bytes are counted once; rotations and damage are counted, too."""
    observer = InMemoryObserver()
    fs = CrashFileSystem()
    with TopicStore.open(
        ROOT, settings={"wal": {"rotate_max_bytes": 500}}, fs=fs, clock=ManualClock(), observer=observer,
        background=False,
    ) as store:  # fmt: skip
        log = store.topic(TOPIC)
        for _ in range(20):
            log.append(b"x" * 50)
        rotations = len(log._engine.wal.sealed_ranges())
        size = log.stats()["disk_bytes"]
    assert observer.total("danube_wal_rotation_total") == rotations > 1
    assert observer.total("danube_wal_bytes_written_total") == size


def test_files_are_readable_next_to_a_live_writer():
    """Another process sees the appended messages, and damage and gaps are reported."""
    fs = CrashFileSystem()
    with open_topics(fs, rotate_max_bytes=400) as store:
        log = store.topic(TOPIC)
        for number in range(12):
            log.append(b"%d" % number)
        source = TopicFiles(ROOT, TOPIC, fs=fs)
        assert (source.start_offset(), source.next_offset()) == (0, 12)
        assert [message.payload for message in source.read(3, 6)] == [b"3", b"4", b"5"]
        log.append(b"live")
        assert [message.offset for message in source.read(10)] == [10, 11, 12]
    overwrite(fs, f"{DIRECTORY}/wal.1.log", 130, b"\xff\xff\xff")
    with pytest.raises(DataLossError, match="message"):
        list(source.read())
    kept = [message.offset for message in source.read(on_lost="skip")]
    assert len(kept) == 12
    fs.remove(f"{DIRECTORY}/wal.1.log")
    assert [message.offset for message in source.read(on_lost="skip")] == [at for at in range(13) if not 4 <= at < 8]
    with pytest.raises(DataLossError, match="4 to 7"):
        list(source.read(2))
    with pytest.raises(UsageError):
        TopicFiles(ROOT, "a/none", fs=fs).next_offset()
    assert pickle.loads(pickle.dumps(TopicFiles("/x", TOPIC))).topic == TOPIC


def test_unload_ends_readers_and_subscriptions():
    """Their state is saved; the topic opens again where it ended."""
    with open_topics(CrashFileSystem()) as store:
        log = store.topic(TOPIC)
        log.append_batch([b"x"] * 3)
        reader = log.reader(1)
        subscription = store.subscribe(TOPIC, "s", start="earliest")
        consumer = subscription.consumer("a")
        consumer.receive(0).ack()
        assert store.unload(TOPIC) == 3
        assert [message.offset for message in reader] == [1, 2]
        with pytest.raises(StoreClosedError):
            consumer.receive(0)
        again = store.topic(TOPIC)
        assert again is not log
        assert again.append(b"y") == 3
        assert store.subscribe(TOPIC, "s").next_offset == 1
        assert offsets(again) == [0, 1, 2, 3]


CHILD = """
import sys
from quiver.topics import TopicStore
store = TopicStore.open(sys.argv[1], settings={"wal": {"rotate_max_bytes": 5000, "fsync_interval_ms": 20}})
log = store.topic("default/orders")
number = log.current_offset()
while True:
    log.append(b"%d" % number, durable=number % 50 == 0)
    print(number, flush=True)
    number += 1
"""


@pytest.mark.kill
def test_a_killed_process_loses_no_confirmed_message(tmp_path):
    """Repeatedly: all confirmed messages exist, in order, and offsets continue."""
    root = str(tmp_path / "topics")
    confirmed = -1
    for turn in range(6):
        child = subprocess.Popen([sys.executable, "-c", CHILD, root], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for _ in range(150 + 40 * turn):
            confirmed = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read().split("\n")
        child.stdout.close()
        child.wait()
        confirmed = max([confirmed, *(int(line) for line in rest[:-1])])
        found = [message.payload for message in TopicFiles(root, TOPIC).read()]
        assert found == [b"%d" % number for number in range(len(found))]
        assert len(found) > confirmed


def test_invalid_arguments_are_refused_with_a_reason():
    """No directory, kind or attribute is guessed."""
    with pytest.raises(UsageError, match="path of the topics is empty"):
        TopicStore.open("", fs=CrashFileSystem(), background=False)
    with open_topics(CrashFileSystem()) as store:
        log = store.topic(TOPIC)
        with pytest.raises(UsageError, match="exclusive, shared, failover, key_shared"):
            store.subscribe(TOPIC, "billing", kind="many")
        assert store.subscriptions(TOPIC) == []
        for key, attributes, words in ((b"k", None, "key .* not bytes"), (None, {"a": 1}, "'a' .* not int")):
            with pytest.raises(UsageError, match=words):
                log.append(b"x", key=key, attributes=attributes)
