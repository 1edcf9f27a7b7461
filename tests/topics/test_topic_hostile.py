"""Unexpected callers, files and names."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from topic_disks import DIRECTORY, TOPIC, offsets, open_topics, payloads

from disk_files import read_file
from quiver.errors import SettingsError, StoreClosedError, UsageError
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.format.names import DEAD_LETTER_SUFFIX, check_topic
from quiver.topics.reading.check import check_topic_directory
from quiver.topics.reading.read import TopicFiles
from quiver.topics.settings import SubscriptionSettings

pytestmark = pytest.mark.usefixtures("quiet")


# ── arguments ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("time_ns", [-1, 1 << 63, 1 << 90, 1.5e18, "now"])
def test_an_invalid_publish_time_is_a_usage_error(time_ns: Any):
    """It would not fit into a message; nothing was stored."""
    with open_topics(CrashFileSystem()) as store:
        log = store.topic(TOPIC)
        with pytest.raises(UsageError, match="publish time"):
            log.append(b"x", publish_time_ns=time_ns)
        assert log.append(b"x", publish_time_ns=(1 << 63) - 1) == 0


@pytest.mark.parametrize("attributes", ["ab", ["abc"], 7, [("a", "b")]])
def test_attributes_that_are_not_a_mapping_are_a_usage_error(attributes: Any):
    with open_topics(CrashFileSystem()) as store, pytest.raises(UsageError, match="texts by name"):
        store.topic(TOPIC).append(b"x", attributes=attributes)


@pytest.mark.parametrize("message", [(b"x",), (), (b"x", {}, 3)])
def test_a_message_of_a_batch_is_a_payload_or_a_pair(message: Any):
    """If one of them is not, none is stored."""
    with open_topics(CrashFileSystem()) as store:
        log = store.topic(TOPIC)
        with pytest.raises(UsageError):
            log.append_batch([b"good", message])
        assert log.current_offset() == 0


def test_a_subscription_window_that_does_not_fit_into_its_file_is_refused():
    """It could be saved, and never be read again."""
    SubscriptionSettings(max_unacked_messages=100_000)
    with pytest.raises(SettingsError, match="at most"):
        SubscriptionSettings(max_unacked_messages=100_001)


@pytest.mark.parametrize("length", [1, 117, 128])
def test_the_dead_letter_topic_of_every_topic_has_a_valid_name(length):
    topic = check_topic(f"default/{'n' * length}")
    assert check_topic(topic + DEAD_LETTER_SUFFIX).endswith(DEAD_LETTER_SUFFIX)
    with pytest.raises(UsageError):
        check_topic(f"default/{'n' * 129}{DEAD_LETTER_SUFFIX}")


# ── renamed and copied files ─────────────────────────────────────────────────────────────────────────────


def filled(fs: CrashFileSystem) -> list[bytes]:
    """Several small files; the newest one has messages, too."""
    with open_topics(fs, rotate_max_bytes=200) as store:
        log = store.topic(TOPIC)
        for number in range(20):
            log.append(b"%d" % number)
        return payloads(log)


def names(fs: CrashFileSystem) -> list[str]:
    return [name for name in fs.list_dir(DIRECTORY) if name.endswith(".log")]


def test_a_renamed_file_is_read_at_the_position_of_its_messages():
    """Any file, with any new number: no message is lost, and the offsets continue."""
    for which in range(4):
        fs = CrashFileSystem()
        wanted = filled(fs)
        fs.rename(f"{DIRECTORY}/{names(fs)[which]}", f"{DIRECTORY}/wal.99.log")
        for _ in range(2):
            with open_topics(fs, rotate_max_bytes=200) as store:
                log = store.topic(TOPIC)
                assert log.append(b"more") == len(wanted)
                wanted.append(b"more")
                assert payloads(log) == wanted
                assert offsets(log) == list(range(len(wanted)))


def test_a_copied_file_repeats_and_hides_nothing():
    """The copy is complete or truncated: the longer file is read."""
    for which, cut in itertools.product(range(4), (0, 30)):
        fs = CrashFileSystem()
        wanted = filled(fs)
        data = read_file(fs, f"{DIRECTORY}/{names(fs)[which]}")
        copy = fs.create(f"{DIRECTORY}/wal.99.log")
        copy.pwrite(data[: len(data) - cut], 0)
        copy.close()
        with open_topics(fs, rotate_max_bytes=200) as store:
            log = store.topic(TOPIC)
            assert log.append(b"more") == len(wanted)
            assert payloads(log) == [*wanted, b"more"]


# ── opening and closing concurrently ─────────────────────────────────────────────────────────────────────


def test_a_topic_opened_during_close_is_closed_too():
    """Another process may have the directory as soon as the store is closed."""
    fs = CrashFileSystem()
    store = open_topics(fs)
    opened: list[Any] = []
    original = store._open_log

    def slow(topic: str) -> Any:
        log = original(topic)
        opened.append(log)
        store.close()
        return log

    store._open_log = slow  # type: ignore[method-assign]
    with pytest.raises(StoreClosedError):
        store.topic(TOPIC)
    assert opened[0].wal.closed


def test_an_unloaded_topic_is_not_opened_before_its_files_are_closed():
    """Its last checkpoint would replace a newer one."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        log = store.topic(TOPIC)
        log.append(b"0")
        begun, opened = threading.Event(), threading.Event()
        found: list[Any] = []
        original = log._engine.close

        def close() -> None:
            def reopen() -> None:
                begun.set()
                found.append(store.topic(TOPIC))
                opened.set()

            threading.Thread(target=reopen).start()
            begun.wait()
            assert not opened.wait(0.05)
            original()

        log._engine.close = close
        assert store.unload(TOPIC) == 1
        opened.wait()
        assert found[0] is not log
        assert found[0].append(b"1") == 1


def test_a_topic_in_memory_is_unloaded_too():
    with open_topics(CrashFileSystem()) as store:
        store.topic(TOPIC, reliable=False).append(b"x")
        assert store.unload(TOPIC) == 1
        assert store.topic(TOPIC).current_offset() == 0


# ── settings that would hide existing files ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("before", "after"), [("wal.log", "log.dat"), ("log.dat", "wal.log")])
@pytest.mark.parametrize("rotate", [None, 200])
def test_other_file_names_than_the_topic_has_are_rejected(before, after, rotate):
    """The topic would start again next to its files; readers find the existing files by themselves."""
    fs = CrashFileSystem()
    with open_topics(fs, file_name=before, rotate_max_bytes=rotate) as store:
        store.topic(TOPIC).append_batch([b"x"] * 20)
        store.topic(TOPIC).append(b"x")
    with open_topics(fs, file_name=after) as store:
        assert store.topics() == [TOPIC]
        with pytest.raises(SettingsError, match=f"are called {before}"):
            store.topic(TOPIC)
    checked = check_topic_directory(fs, DIRECTORY)
    assert (checked.next_offset, checked.is_intact, sum(one.messages for one in checked.files)) == (21, True, 21)
    assert len(list(TopicFiles("/topics", TOPIC, fs=fs).read())) == 21


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("key", ["progress_flush_interval_seconds", "redelivery_delay_seconds", "ack_timeout_seconds"])
def test_invalid_durations_are_rejected(key, value):
    """With them nothing would be saved or redelivered, ever."""
    with pytest.raises(SettingsError, match=key):
        SubscriptionSettings(**{key: value})


def test_a_delay_of_centuries_is_accepted():
    """A waiting consumer gets messages that arrive during the delay."""
    with open_topics(CrashFileSystem()) as store:
        store.topic(TOPIC).append(b"0")
        with store.subscribe(TOPIC, "s", start="earliest").consumer("a") as consumer:
            consumer.receive(0).nack(delay=float("inf"))
            assert consumer.receive(10_000.0) is None
            store.topic(TOPIC).append(b"1")
            assert consumer.receive(0).offset == 1
