"""A topic with its tier behaves like a list, in any order of operations.

Messages are appended, synced, uploaded, deleted and read; calls of both stores fail or lose their answers; the process
is killed, loses power, or moves to another directory.
"""

from __future__ import annotations

import contextlib

from cold_rig import TOPIC, Rig, append, check_tidy, expected, read, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lanes import model_tests
from quiver.errors import QuiverError
from quiver.testing.crashfs import CrashFileSystem


class ColdTopic(RuleBasedStateMachine):
    """The model has two numbers: how many messages there are, and how many of them are promised to survive."""

    @initialize(
        compression=st.sampled_from(["none", "zstd", "lz4"]),
        rotate=st.sampled_from([200, 400, 2000]),
        batch=st.sampled_from([None, 150]),
    )
    def begin(self, compression, rotate, batch):
        self.rig = Rig(chosen=settings(rotate=rotate, batch=batch, compression=compression))
        self.log = self.rig.open()
        self.count = self.synced = 0
        self.owners = 1
        self.faulty = False

    @rule(count=st.integers(1, 8))
    def append(self, count):
        append(self.log, count)
        self.count += count

    @rule()
    def sync(self):
        self.log.flush()
        self.synced = self.count

    @rule()
    def work(self):
        self.log.flush()
        self.synced = self.count
        with contextlib.suppress(QuiverError):
            self.rig.store.maintain()

    @rule()
    def rotate(self):
        self.log._engine.wal.rotate()
        self.synced = self.count

    @rule(
        operation=st.sampled_from(["put_parts", "copy", "head", "get_range", "list", "delete"]),
        how=st.sampled_from(["fail", "lose_answer", "truncate", "repeat"]),
        nth=st.integers(1, 4),
    )
    def break_objects(self, operation, how, nth):
        self.rig.objects.fail_on(operation, nth, how=how)
        self.faulty = True

    @rule(nth=st.integers(1, 4), how=st.sampled_from(["fail", "lose_answer"]))
    def break_metadata(self, nth, how):
        if how == "fail":
            self.rig.metadata.fail_on("commit", nth)
        else:
            self.rig.metadata.lose_answer(nth)
        self.faulty = True

    def heal(self):
        self.rig.objects.heal()
        self.rig.metadata.heal()
        self.faulty = False

    def again(self, disk, owner):
        old = self.rig
        self.heal()
        self.rig = Rig(disk=disk, memory=old.memory, facts=old.facts, chosen=old.chosen, owner=owner, clock=old.clock)
        self.log = self.rig.open()

    @rule(seed=st.integers(0, 1000), power=st.booleans())
    def crash(self, seed, power):
        disk = self.rig.disk
        self.again(disk.clone_after_crash(seed=seed) if power else disk.clone_after_kill(), self.rig.owner)
        found = self.log._engine.wal.next_offset
        assert (self.synced if power else self.count) <= found <= self.count
        self.count = self.synced = found

    @rule()
    def restart(self):
        self.rig.close()
        self.again(self.rig.disk, self.rig.owner)
        assert self.log._engine.wal.next_offset == self.count
        self.synced = self.count

    @precondition(lambda self: not self.faulty)
    @rule()
    def move(self):
        self.rig.store.unload(TOPIC)
        self.rig.close()
        self.owners += 1
        self.again(CrashFileSystem(), f"owner {self.owners}")
        assert self.log._engine.wal.next_offset == self.count
        self.synced = self.count

    @precondition(lambda self: not self.faulty)
    @rule(start=st.integers(0, 40))
    def read_from(self, start):
        start = min(start, self.count)
        assert read(self.log, start) == expected(self.count, start)

    @invariant()
    def offsets_are_dense(self):
        if hasattr(self, "log"):
            assert self.log._engine.wal.next_offset == self.count

    def teardown(self):
        if not hasattr(self, "log"):
            return
        self.heal()
        self.log.flush()
        self.rig.store.maintain()
        self.rig.store.maintain()
        check_tidy(self.rig)
        assert self.rig.tier.catalog(TOPIC).next_offset == self.count
        assert read(self.log) == expected(self.count)
        self.rig.close()


TestColdTopic, TestColdTopicForLong = model_tests(ColdTopic, examples=12, steps=25)
