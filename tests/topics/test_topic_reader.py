"""Readers return messages in order, without gaps or repetitions, while memory and files change."""

from __future__ import annotations

import asyncio
import gc
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from topic_disks import DIRECTORY, TOPIC, offsets, open_topics, payloads

from quiver.clock import SYSTEM_CLOCK
from quiver.errors import CapacityError, DataLossError, StoreClosedError, UsageError
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.cold.pieces import ColdLost, ColdPiece
from quiver.topics.format.message import MessageCodec
from quiver.topics.store import TopicStore
from quiver.topics.wal.files import FileMarks

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("wal", [
    {}, {"cache_capacity": 3}, {"rotate_max_bytes": 400}, {"rotate_max_bytes": 100, "cache_capacity": 1},
], ids=["memory", "file", "files", "file a message"])  # fmt: skip
def test_a_reader_starts_at_any_offset(wal):
    """It returns all messages from there on, in memory or in files."""
    with open_topics(CrashFileSystem(), **wal) as store:
        log = store.topic(TOPIC)
        for number in range(40):
            assert log.append(b"%d" % number) == number
        for start in range(42):
            assert payloads(log, start) == [b"%d" % number for number in range(start, 40)]
        assert payloads(log, "earliest") == payloads(log, 0)
        assert payloads(log, "latest") == []
        with log.reader(5, stop=9, follow=False) as reader:
            assert [message.offset for message in reader] == [5, 6, 7, 8]


def test_a_reader_that_does_not_follow_ends():
    """After the messages that existed when it was created, even if more are appended."""
    with open_topics(CrashFileSystem()) as store:
        log = store.topic(TOPIC)
        log.append_batch([b"1", b"2"])
        reader = log.reader(0, follow=False)
        log.append(b"3")
        assert [message.payload for message in reader] == [b"1", b"2"]


def test_every_field_of_a_message_is_read():
    """The fields are the same from memory and from the file."""
    clock = ManualClock(now_ns=1_700_000_000_123_456_789)
    fs = CrashFileSystem()
    with open_topics(fs, clock=clock) as store:
        log = store.topic(TOPIC)
        log.append(bytearray(b"p"), attributes={"ä": "ö", "": ""}, key="k")
        log.append(memoryview(b"xpx")[1:2], publish_time_ns=5_999_999)
        log.append_batch([b"", (b"z", {"a": "b"}), (b"y", None)])
        from_memory = list(log.reader(0, follow=False))
    with open_topics(fs) as store:
        from_file = list(store.topic(TOPIC).reader(0, follow=False))
    assert from_file == from_memory
    first, second, empty, third, fourth = from_file
    assert (first.payload, first.attributes, first.key) == (b"p", {"ä": "ö", "": "", "routing_key": "k"}, "k")
    assert (first.publish_time_ns, first.topic) == (1_700_000_000_123_000_000, f"/{TOPIC}")
    assert (second.payload, second.publish_time_ns, second.key) == (b"p", 5_000_000, None)
    assert (empty.payload, third.attributes, fourth.attributes) == (b"", {"a": "b"}, {})


def test_invalid_messages_are_rejected():
    """Before anything is written."""
    fs = CrashFileSystem()
    with open_topics(fs, max_message_size=10) as store:
        log = store.topic(TOPIC)
        for wrong in (
            lambda: log.append(b"x" * 11), lambda: log.append("text"), lambda: log.append(5),
            lambda: log.append(b"", attributes={"a": 1}), lambda: log.append(b"", attributes={"a": "\ud800"}),
            lambda: log.append(b"", attributes={"a": "x" * (1 << 20)}), lambda: log.append_batch([b"1", b"x" * 11]),
            lambda: log.append_batch([b"1", "text"]), lambda: log.reader("newest"), lambda: log.reader(-1),
            lambda: log.reader(True),
        ):  # fmt: skip
            with pytest.raises(UsageError):
                wrong()
        assert log.current_offset() == 0
        assert log.append_batch([]) == range(0)


def test_a_topic_in_memory_reports_evicted_messages_as_lost():
    """Once, with the range; the reader continues after it."""
    with TopicStore.open(settings={"wal": {"cache_capacity": 4}}, clock=ManualClock(), background=False) as store:
        log = store.topic(TOPIC)
        log.append_batch([b"x"] * 10)
        with log.reader(0, follow=False) as reader:
            with pytest.raises(DataLossError, match="messages 0 to 5 are lost"):
                next(reader)
            assert [message.offset for message in reader] == [6, 7, 8, 9]
        assert log.reader("earliest").offset == 6


def test_a_reader_by_time_starts_at_the_first_later_message():
    """The first message published then or later, in any file."""
    clock = ManualClock(now_ns=0)
    fs = CrashFileSystem()
    with open_topics(fs, clock=clock, rotate_max_bytes=300, cache_capacity=2) as store:
        log = store.topic(TOPIC)
        for _ in range(20):
            log.append(b"x")
            clock.advance(10)
        for seconds in range(0, 200, 5):
            when = datetime.fromtimestamp(seconds, tz=UTC)
            assert log.reader(when).offset == (seconds + 9) // 10
        assert log.reader(datetime.fromtimestamp(1000, tz=UTC)).offset == 20


def test_a_start_beyond_the_tip_waits_for_that_message():
    """Earlier messages are not delivered, and none is lost."""
    with open_topics(CrashFileSystem()) as store:
        log = store.topic(TOPIC)
        reader = log.reader(2)
        log.append_batch([b"0", b"1"])
        assert reader.poll() == []
        log.append(b"2")
        assert [message.payload for message in reader.poll()] == [b"2"]


def test_a_slow_follower_reads_each_message_once():
    """A slow reader still sees each message once, in order."""
    with open_topics(CrashFileSystem(), rotate_max_bytes=500, cache_capacity=3) as store:
        log = store.topic(TOPIC)
        reader = log.reader(0)
        seen: list[int] = []
        for number in range(200):
            log.append(b"%d" % number)
            if number % 7 == 0:
                seen += [message.offset for message in reader.poll(2)]
            if number % 31 == 0:
                log._engine.wal.release_below(reader.offset)
        while found := reader.poll():
            seen += [message.offset for message in found]
        assert seen == list(range(200))
        reader.close()


def test_a_file_that_is_being_read_is_not_deleted():
    """Releasing it meanwhile reports that it still exists."""
    with open_topics(CrashFileSystem(), rotate_max_bytes=300, cache_capacity=1) as store:
        log = store.topic(TOPIC)
        log.append_batch([b"x"] * 20)
        log._engine.wal.rotate()
        log.append(b"y")
        reader = log.reader(0)
        assert [message.offset for message in reader.poll(1)] == [0]
        assert log._engine.wal.release_below(20) == ()
        assert [message.offset for message in reader.poll(100)] == list(range(1, 20))
        assert [message.offset for message in reader.poll(100)] == [20]
        assert len(log._engine.wal.release_below(20)) == 1
        assert log._engine.wal.start_offset == 20
        with log.reader(0, follow=False) as late, pytest.raises(DataLossError, match="0 to 19"):
            next(late)
        path = log._engine.wal.files()[-1].path
        log._engine.wal.take_hold(path, log)
        log._engine.wal.rotate()
        assert log._engine.wal.release_below(21) == ()
        log._engine.wal.drop_hold(path, log)
        assert len(log._engine.wal.release_below(21)) == 1
        reader.close()


def test_an_abandoned_reader_keeps_no_file():
    """Readers need not be closed for files to be deleted."""
    with open_topics(CrashFileSystem(), rotate_max_bytes=300, cache_capacity=1) as store:
        log = store.topic(TOPIC)
        log.append_batch([b"x"] * 20)
        log._engine.wal.rotate()
        for message in log.reader(0):
            assert message.offset == 0
            break
        gc.collect()
        assert len(log._engine.wal.release_below(20)) == 1


def test_a_closed_reader_raises():
    """Closing twice is allowed."""
    with open_topics(CrashFileSystem()) as store:
        log = store.topic(TOPIC)
        log.append(b"1")
        reader = log.reader(0)
        reader.close()
        reader.close()
        with pytest.raises(StoreClosedError):
            next(reader)


def test_threads_follow_while_others_append(tmp_path):
    """Four readers, three writers, small memory, many files: each reader sees everything once, in order."""
    settings = {"wal": {"rotate_max_bytes": 20_000, "cache_capacity": 50}}
    with TopicStore.open(tmp_path / "topics", settings=settings) as store:
        log = store.topic(TOPIC)
        total, seen = 1500, [[] for _ in range(4)]

        def follow(mine: list[int]) -> None:
            with log.reader(0, stop=total) as reader:
                mine.extend(message.offset for message in reader)

        def append(number: int) -> None:
            for turn in range(100):
                log.append(b"%d %d" % (number, turn), durable=turn % 50 == 0)
                log.append_batch([b"batch"] * 4)

        threads = [threading.Thread(target=follow, args=(mine,)) for mine in seen]
        threads += [threading.Thread(target=append, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert all(mine == list(range(total)) for mine in seen)


def test_async_for_reads_existing_and_new_messages(tmp_path):
    """The iterator works on an event loop, and ends when the topic is unloaded."""
    with TopicStore.open(tmp_path / "topics", settings={"wal": {"cache_capacity": 2}}) as store:
        log = store.topic(TOPIC)
        log.append_batch([b"x"] * 10)

        async def follow() -> list[int]:
            found = []
            async for message in log.reader(0):
                found.append(message.offset)
                if message.offset == 9:
                    asyncio.get_running_loop().run_in_executor(None, lambda: (log.append(b"y"), store.unload(TOPIC)))
            return found

        assert asyncio.run(asyncio.wait_for(follow(), 30)) == list(range(11))

        async def two() -> list[int]:
            reader = store.topic(TOPIC).reader(0, follow=False)
            first = [(await anext(reader)).offset for _ in range(3)]
            return first + [message.offset async for message in reader]

        assert asyncio.run(two()) == list(range(11))


def test_wait_ends_with_its_timeout(tmp_path):
    """It returns False when no message arrived."""
    with TopicStore.open(tmp_path / "topics", clock=SYSTEM_CLOCK) as store:
        log = store.topic(TOPIC)
        reader = log.reader()
        assert not reader.wait(0.01)
        log.append(b"1")
        assert reader.wait(0.01)
        assert [message.payload for message in reader.poll()] == [b"1"]


class Objects:
    """A tier with some ranges of a topic, some of them damaged."""

    def __init__(self, *ranges: tuple[int, int], damaged: tuple[int, int] | None = None) -> None:
        self.ranges = ranges
        self.damaged = damaged
        self.codec = MessageCodec(TOPIC)
        self.attached: list[str] = []
        self.refusing = False

    def next_offset_min(self, topic: str, directory: str | None) -> int:
        return max((end for _, end in self.ranges), default=0)

    def attach(self, topic: str, wal: Any, confirmed: Any) -> None:
        self.attached.append(topic)

    def reader(self, topic: str) -> Objects:
        return self

    def take(self, offset: int, end: int) -> ColdPiece | ColdLost | None:
        for first, after in self.ranges:
            if first <= offset < after:
                stop = min(after, end, offset + 3)
                if self.damaged is not None and self.damaged[0] < stop and offset < self.damaged[1]:
                    if offset >= self.damaged[0]:
                        return ColdLost(offset, self.damaged[1], "data-0-9.dnb1", 77, "its checksum differs")
                    stop = self.damaged[0]
                tail = self.codec.tail_of(None)
                bodies = [self.codec.encode(at, b"cold %d" % at, at, tail) for at in range(offset, stop)]
                return ColdPiece(offset, bodies)
        return None

    def next_offset(self, offset: int) -> int | None:
        return min((max(first, offset) for first, after in self.ranges if after > offset), default=None)

    def offset_at(self, time_ms: int) -> int | None:
        return next((at for first, after in self.ranges for at in range(first, after) if at >= time_ms), None)

    def maintain(self) -> None: ...

    def detach(self, topic: str, *, sealed: bool) -> None:
        if self.refusing:
            raise CapacityError("the object store is away")
        self.attached.remove(topic)

    def hand_over(self, topics: list[str], *, timeout: float) -> list[Any]:
        for topic in topics:
            self.detach(topic, sealed=True)
        return []

    def close(self) -> None: ...


def test_a_reader_moves_from_objects_to_files_to_memory():
    """One sequence; the next offset is after those of the objects."""
    with open_topics(CrashFileSystem(), cold=Objects((0, 10)), cache_capacity=2) as store:
        log = store.topic(TOPIC)
        assert log.append_batch([b"hot"] * 8) == range(10, 18)
        assert offsets(log) == list(range(18))
        assert payloads(log, 8) == [b"cold 8", b"cold 9", *[b"hot"] * 8]
        assert log.start_offset() == 0
        assert log.reader(datetime.fromtimestamp(0.004, tz=UTC)).offset == 4


def test_unload_is_retried_when_the_tier_could_not_finish():
    """The topic accepts nothing meanwhile, existing messages are read, and the second attempt finishes."""
    objects = Objects()
    with open_topics(CrashFileSystem(), cold=objects) as store:
        log = store.topic(TOPIC)
        log.append(b"0")
        objects.refusing = True
        with pytest.raises(CapacityError):
            store.unload(TOPIC)
        with pytest.raises(StoreClosedError):
            store.topic(TOPIC).append(b"1")
        assert payloads(log) == [b"0"]
        objects.refusing = False
        assert store.unload(TOPIC) == 1
        assert store.topic(TOPIC).append(b"1") == 1


def test_a_hole_between_objects_is_a_lost_range():
    """The range is reported, and the rest is read."""
    with open_topics(CrashFileSystem(), cold=Objects((0, 4), (6, 10), damaged=(7, 9))) as store:
        log = store.topic(TOPIC)
        log.append(b"hot")
        with log.reader(0, follow=False) as reader:
            found = []
            for words in ("messages 4 to 5", "data-0-9.dnb1 at byte 77: messages 7 to 8"):
                with pytest.raises(DataLossError, match=words):
                    found.extend(message.offset for message in iter(lambda: next(reader), None))
            found.extend(message.offset for message in reader)
        assert found == [0, 1, 2, 3, 6, 9, 10]


def test_an_object_replaces_a_damaged_part_of_a_file():
    """The file was uploaded before it was damaged; no message is lost."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        store.topic(TOPIC).append_batch([b"x"] * 9)
    file = fs.open_write(f"{DIRECTORY}/wal.log")
    file.pwrite(b"\xff" * 200, 300)
    file.close()
    with open_topics(fs, cold=Objects((0, 9))) as store:
        log = store.topic(TOPIC)
        assert offsets(log) == list(range(9))
        assert b"cold 4" in payloads(log)
        assert payloads(log)[0] == b"x"


def test_marks_are_found_whatever_the_order_of_adding():
    """The last mark at or before an offset; the start of the file without one."""
    marks = FileMarks()
    for offset, byte in ((5200, 500), (2100, 200), (2200, 210), (9999, 900)):
        marks.add(offset, byte)
    expected = {50: (40, 0), 2099: (40, 0), 2100: (2100, 200), 5199: (2100, 200), 5200: (5200, 500), 9998: (5200, 500)}
    assert {offset: marks.before(offset, 40) for offset in expected} == expected
    assert marks.before(10_500, 40) == (9999, 900)
