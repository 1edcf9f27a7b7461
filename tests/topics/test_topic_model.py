"""A topic behaves like a list: appends, reads, rotation, release, kills, power losses and reopening in any order."""

from __future__ import annotations

import logging

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from topic_disks import TOPIC, open_topics, payloads

from lanes import model_tests
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

logging.getLogger("quiver").addHandler(logging.NullHandler())


class TopicModel(RuleBasedStateMachine):
    """`messages` is the topic from `start` on; `durable` how many of them a power loss cannot undo."""

    @initialize(rotate=st.sampled_from([None, 150, 600]), cache=st.sampled_from([1, 4, 1024]))
    def begin(self, rotate: int | None, cache: int) -> None:
        self.fs = CrashFileSystem()
        self.clock = ManualClock()
        self.wal = {"cache_capacity": cache} | ({"rotate_max_bytes": rotate} if rotate else {})
        self.messages: list[bytes] = []
        self.start = self.durable = 0
        self.open()

    def open(self) -> None:
        self.store = open_topics(self.fs, clock=self.clock, **self.wal)
        self.log = self.store.topic(TOPIC)
        self.reader = self.log.reader(self.start)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.reader.close()
            self.store.close()

    @rule(payload=st.binary(max_size=80), durable=st.booleans())
    def append(self, payload: bytes, durable: bool) -> None:
        assert self.log.append(payload, durable=durable) == len(self.messages)
        self.messages.append(payload)
        if durable:
            self.durable = len(self.messages)

    @rule(batch=st.lists(st.binary(max_size=40), max_size=6))
    def append_batch(self, batch: list[bytes]) -> None:
        first = len(self.messages)
        assert self.log.append_batch(batch) == range(first, first + len(batch))
        self.messages += batch

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.durable = len(self.messages)

    @rule()
    def rotate(self) -> None:
        self.log._engine.wal.rotate()
        self.durable = len(self.messages) if self.log.durable_offset() == len(self.messages) else self.durable

    @rule(seconds=st.sampled_from([1, 6]))
    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.store.maintain()

    @rule(start=st.integers(0, 200))
    def read(self, start: int) -> None:
        start = max(self.start, min(start, len(self.messages)))
        assert payloads(self.log, start) == self.messages[start:]

    @rule(count=st.integers(1, 5))
    def follow(self, count: int) -> None:
        at = self.reader.offset
        found = self.reader.poll(count)
        assert [message.payload for message in found] == self.messages[at : at + len(found)]
        assert found or at == len(self.messages)

    @precondition(lambda self: self.reader.offset > self.start)
    @rule()
    def release(self) -> None:
        self.log._engine.wal.release_below(self.reader.offset)
        self.start = self.log._engine.wal.start_offset

    @rule()
    def reopen(self) -> None:
        self.reader.close()
        self.store.close()
        self.durable = len(self.messages)
        self.open()

    @rule()
    def kill(self) -> None:
        self.fs = self.fs.clone_after_kill()
        self.open()

    @rule(seed=st.integers(0, 5))
    def lose_power(self, seed: int) -> None:
        # Every message found follows the synced ones, and was appended there, perhaps with a gap.
        self.fs = self.fs.clone_after_crash(seed)
        self.open()
        kept = {
            message.offset: message.payload for message in self.log.reader(self.start, follow=False, on_lost="skip")
        }
        assert set(range(self.start, self.durable)) <= set(kept)
        assert all(self.messages[offset] == payload for offset, payload in kept.items())
        if list(kept) != list(range(self.start, self.start + len(kept))):
            # A gap: continue after it, as a consumer would.
            self.start = max(offset for offset in kept if offset - 1 not in kept)
            self.reader.close()
            self.reader = self.log.reader(self.start)
        self.messages = self.messages[: max(kept, default=self.log.current_offset() - 1) + 1]
        assert self.log.current_offset() == len(self.messages)
        self.durable = len(self.messages)

    @invariant()
    def the_tip_is_the_lists(self) -> None:
        if hasattr(self, "log"):
            assert self.log.current_offset() == len(self.messages)
            assert self.log.durable_offset() >= self.durable


TestTopicModel, TestTopicModelForLong = model_tests(TopicModel, examples=25, steps=30)
