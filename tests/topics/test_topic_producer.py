"""Producers number their messages: a repeated message is appended once, despite crashes."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from topic_disks import DIRECTORY, TOPIC, open_topics, payloads

from disk_files import overwrite
from quiver.errors import CapacityError, DataLossError, UsageError
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem


def text(number: int) -> bytes:
    return b"message %d" % number


def test_a_repeated_message_is_appended_once():
    """In the same process, by another producer of the same name, and after a restart."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        log = store.topic(TOPIC)
        edge = log.producer("edge-1")
        assert edge.last_sequence is None
        assert [edge.append(text(n), sequence=n) for n in (0, 1, 1, 0, 2)] == [0, 1, None, None, 2]
        assert log.producer("edge-1").append(text(2), sequence=2) is None
        assert log.producer("edge-2").append(b"other", sequence=1) == 3
        log.append(b"without")
    with open_topics(fs) as store:
        log = store.topic(TOPIC)
        edge = log.producer("edge-1")
        assert edge.last_sequence == 2
        assert edge.append(text(2), sequence=2) is None
        assert edge.append(text(7), sequence=7, attributes={"a": "b"}, key="k") == 5
        assert payloads(log) == [text(0), text(1), text(2), b"other", b"without", text(7)]
        with log.reader(5, follow=False) as reader:
            (last,) = reader
        assert (last.producer_name, last.request_id, last.key) == ("edge-1", 7, "k")
        assert last.attributes["a"] == "b"


def test_the_new_part_of_a_repeated_batch_is_appended():
    """The new messages at its end are appended in one write, each with its attributes and key."""
    with open_topics(CrashFileSystem()) as store:
        edge = store.topic(TOPIC).producer("edge")
        assert edge.append_batch([text(0), text(1)], first_sequence=0) == range(2)
        batch: list[Any] = [text(1), (text(2), {"n": "2"}), (text(3), None, "k")]
        assert edge.append_batch(batch, first_sequence=1) == range(2, 4)
        assert len(edge.append_batch(batch, first_sequence=1)) == 0
        with store.topic(TOPIC).reader(0, follow=False) as reader:
            found = [(one.request_id, one.payload, one.attributes.get("n"), one.key) for one in reader]
        assert found == [
            (0, text(0), None, None),
            (1, text(1), None, None),
            (2, text(2), "2", None),
            (3, text(3), None, "k"),
        ]


@pytest.mark.parametrize("sync_every", [1, 3, 100])
def test_repetition_after_a_crash_appends_each_message_once(sync_every):
    """Repeated from any message on, each message exists exactly once and in order, for a crash at every step."""
    fs = CrashFileSystem()
    disks = []
    store = open_topics(fs, rotate_max_bytes=300)
    edge = store.topic(TOPIC).producer("edge")
    fs.on_step = lambda *_: disks.append(fs.clone_after_crash(len(disks)))
    for number in range(8):
        edge.append(text(number), sequence=number, durable=not number % sync_every)
    fs.on_step = lambda *_: None
    store.close()
    assert len(disks) > 8
    for disk in disks:
        with open_topics(disk, rotate_max_bytes=300) as again:
            edge = again.topic(TOPIC).producer("edge")
            after = 0 if edge.last_sequence is None else edge.last_sequence
            for number in range(max(0, after - 2), 8):
                edge.append(text(number), sequence=number)
            assert payloads(again.topic(TOPIC)) == [text(number) for number in range(8)]


def test_a_repeated_durable_append_is_durable():
    """The first attempt may not have been durable: the second one gives the same promise."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        edge = store.topic(TOPIC).producer("edge")
        assert edge.append(text(0), sequence=0) == 0
        assert edge.append(text(0), sequence=0, durable=True) is None
        with open_topics(fs.clone_after_crash(1)) as other:
            assert payloads(other.topic(TOPIC)) == [text(0)]


def test_a_failed_append_can_be_repeated():
    """A full disk stored nothing: the same number is appended when there is space again."""
    disk = FaultFileSystem(CrashFileSystem(), {"pwrite": 1}, path_part="wal.log", error=errno.ENOSPC)
    with open_topics(disk) as store:
        edge = store.topic(TOPIC).producer("edge")
        with pytest.raises(CapacityError):
            edge.append(text(0), sequence=0)
        assert edge.append(text(0), sequence=0) == 0


def test_repetitions_before_the_search_window_are_not_recognized():
    """Damage within the window is not skipped."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        log = store.topic(TOPIC)
        log.producer("edge").append(text(0), sequence=9)
        log.append_batch([b"x"] * 5)
    with open_topics(fs) as store:
        assert store.topic(TOPIC).producer("edge", window_messages=5).last_sequence is None
        assert store.topic(TOPIC).producer("edge", window_messages=6).last_sequence == 9
    overwrite(fs, f"{DIRECTORY}/wal.log", 60, b"\xff")
    with open_topics(fs) as store:
        with pytest.raises(DataLossError):
            store.topic(TOPIC).producer("edge")
        assert store.topic(TOPIC).producer("edge", window_messages=5).last_sequence is None


def test_invalid_producer_names_and_numbers_are_refused():
    """Names must not contain colons, which Spark sinks use; numbers have 64 bits."""
    with open_topics(CrashFileSystem()) as store:
        log = store.topic(TOPIC)
        for name in ("", "a:b", "a/b", "x" * 129):
            with pytest.raises(UsageError, match="not a producer name"):
                log.producer(name)
        for number in (-1, 1 << 64, "1"):
            with pytest.raises(UsageError, match="sequence"):
                log.producer("edge").append(b"x", sequence=number)
        with pytest.raises(UsageError, match="max_message_size"):
            log.producer("edge").append(bytes(11 << 20), sequence=0)
        assert log.producer("edge").last_sequence is None
