"""A log behaves like a list: any operations in any order, with crashes in between."""

from __future__ import annotations

import logging

from aof_as_log import open_manager, payloads, tiny
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lanes import model_tests
from quiver.aof import FlushConfig, TierConfig
from quiver.errors import InvalidRecordError, WouldBlockError
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

SIZES = st.one_of(st.integers(1, 40), st.sampled_from([4_000, 8_000, 16 * 1024 - 64 - 96 - 24]))


class LogMachine(RuleBasedStateMachine):
    """Ids only increase; durable records survive any crash, in order, and none is invented."""

    tiers: TierConfig | None = None

    @initialize(spares=st.integers(0, 2), limit=st.sampled_from([0, 20_000]))
    def open(self, spares, limit):
        logging.disable(logging.CRITICAL)
        self.config = tiny(
            preallocate_segments=spares,
            tiers=self.tiers,
            flush=FlushConfig(flush_interval_ms=10, flush_watermark_bytes=5_000, max_unflushed_bytes=limit),
        )
        self.clock = ManualClock()
        self.fs = CrashFileSystem()
        self.written: list[tuple[int, bytes]] = []
        self.durable = 0
        self.number = 0
        self.room = None
        self._open()

    def _open(self):
        self.manager = open_manager(self.fs, self.config, self.clock)
        self.log = self.manager.log("orders")

    def _record(self, size):
        self.number += 1
        return (b"%d." % self.number * size)[:size]

    def _wrote(self, record_id, record):
        assert record_id > max((one for one, _ in self.written), default=-1)
        self.written.append((record_id, record))

    @rule(size=SIZES)
    def append(self, size):
        record = self._record(size)
        try:
            self._wrote(self.log.append_record(record), record)
        except WouldBlockError as blocked:
            assert (blocked.kind == "tail") == (self.room is not None)

    @precondition(lambda self: self.room is None)
    @rule(size=SIZES)
    def append_and_wait(self, size):
        record = self._record(size)
        self._wrote(self.log.append_record_with_timeout(record, 5), record)

    @precondition(lambda self: self.room is None)
    @rule(sizes=st.lists(SIZES, max_size=5))
    def append_batch(self, sizes):
        records = [self._record(size) for size in sizes]
        try:
            ids = self.log.append_records_with_timeout(records, 5)
        except InvalidRecordError:
            assert sum(sizes) + 24 * len(sizes) > 16 * 1024 - 160
            return
        for record_id, record in zip(ids, records, strict=True):
            self._wrote(record_id, record)

    @precondition(lambda self: self.room is None)
    @rule(size=st.integers(1, 3000), fill=st.booleans())
    def reserve(self, size, fill):
        try:
            self.room = self.log.append_reserve(size)
        except WouldBlockError:
            return
        self.record = self._record(size)
        if fill:
            self.room.payload[:] = self.record

    @precondition(lambda self: self.room is not None)
    @rule(keep=st.booleans(), part=st.floats(0, 1))
    def settle(self, keep, part):
        if keep:
            size = max(1, int(len(self.record) * part))
            self.room.payload[:] = self.record
            self._wrote(self.room.commit(size), self.record[:size])
        else:
            self.room.cancel()
        self.room = None

    @rule()
    def flush(self):
        self.log.flush()
        self.durable = len(self.written)

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def flush_until(self, data):
        index = data.draw(st.integers(0, len(self.written) - 1))
        self.log.flush_until(self.written[index][0])
        self.durable = max(self.durable, index + 1)

    @rule(seconds=st.sampled_from([0, 0.02, 2]))
    def maintain(self, seconds):
        self.clock.advance(seconds)
        self.manager.maintain()

    @precondition(lambda self: self.room is None)
    @rule()
    def roll_over(self):
        self.log.force_rollover(timeout=5)

    @rule()
    def close_and_open(self):
        self.room = None
        self.manager.close()
        self.durable = len(self.written)
        self._open()

    @rule(seed=st.integers(0, 20), kill=st.booleans())
    def crash(self, seed, kill):
        self.room = None
        self.fs = self.fs.clone_after_kill() if kill else self.fs.clone_after_crash(seed)
        self._open()
        found = payloads(self.log)
        assert found == [record for _, record in self.written][: len(found)]
        assert len(found) >= (len(self.written) if kill else self.durable)
        del self.written[len(found) :]
        self.durable = len(found)

    @invariant()
    def what_is_read_is_what_was_written(self):
        if hasattr(self, "log"):
            assert [(one.record_id, one.payload) for one in self.log.open_reader()] == self.written

    @invariant()
    def limits_hold(self):
        if hasattr(self, "log"):
            snapshot = self.log.snapshot()
            unsealed = [one for one in snapshot.segments if one.state != "sealed"]
            assert len(unsealed) <= 2
            limit = self.config.flush.max_unflushed_bytes
            assert not limit or snapshot.backlog_bytes <= limit + 64
            durable = [self.log.is_durable(record_id) for record_id, _ in self.written]
            assert durable == sorted(durable, reverse=True)
            assert all(durable[: self.durable])

    def teardown(self):
        logging.disable(logging.NOTSET)
        if hasattr(self, "manager"):
            self.manager.close()


TestLog, TestLogForLong = model_tests(LogMachine, examples=25, steps=30)


class TieredLogMachine(LogMachine):
    """The same, with sealed segments that are packed, uploaded and evicted by maintenance."""

    tiers = TierConfig(tier0_max_bytes=20_000, warm_max_bytes=200, objects="/cold")


TestTieredLog, TestTieredLogForLong = model_tests(TieredLogMachine, examples=12, steps=30)
