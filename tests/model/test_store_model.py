"""The store against a simple model: a list of numbers, and a set of numbers per subscriber."""

from __future__ import annotations

import logging

import pyarrow as pa
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from quiver import Bundle, BundleHandle, Settings
from quiver import open as open_store
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/m"
NAMES = ("a", "b")
SETTINGS = Settings(segment_bytes_max=1_500, wal_rotate_bytes=1_200, wal_bytes_max=60_000, delete_grace_s=0.0)


class StoreMachine(RuleBasedStateMachine):
    """Ingest, deliver, resolve, seal, delete; close, kill and lose power at any moment in between."""

    def __init__(self) -> None:
        super().__init__()
        logging.disable(logging.CRITICAL)
        self.fs = CrashFileSystem()
        self.clock = ManualClock()
        self.accepted: list[int] = []
        self.durable = 0
        self.lost: set[int] = set()
        self.resolved: dict[str, set[int]] = {name: set() for name in NAMES}
        self.resolved_before: dict[str, set[int]] = {name: set() for name in NAMES}
        """Resolved in a run that a crash ended: they may be delivered again."""
        self.claimed: dict[str, list[tuple[int, BundleHandle]]] = {name: [] for name in NAMES}

    def teardown(self) -> None:
        self.store.close()
        logging.disable(logging.NOTSET)

    @initialize()
    def start(self) -> None:
        self.open()

    def open(self) -> None:
        self.store = open_store(ROOT, SETTINGS, fs=self.fs, clock=self.clock, background=False)
        self.subscribers = {name: self.store.register(name, start="earliest") for name in NAMES}
        self.claimed = {name: [] for name in NAMES}

    @rule(durable=st.booleans(), pad=st.integers(0, 300))
    def ingest(self, durable: bool, pad: int) -> None:
        number = len(self.accepted)
        columns = {"n": pa.array([number]), "pad": pa.array(["p" * pad])}
        self.store.ingest(Bundle({30: pa.record_batch(columns)}), durable=durable)
        self.accepted.append(number)
        if durable:
            self.durable = len(self.accepted)

    @rule(name=st.sampled_from(NAMES))
    def take(self, name: str) -> None:
        handle = self.subscribers[name].next_bundle(timeout=0)
        if handle is not None:
            number = handle.bundle[30]["n"][0].as_py()
            assert number in self.accepted, "invented"
            assert number not in self.resolved[name], "delivered again though resolved in this run"
            assert number not in [other for other, _ in self.claimed[name]], "delivered twice at once"
            self.claimed[name].append((number, handle))

    @precondition(lambda self: any(self.claimed.values()))
    @rule(name=st.sampled_from(NAMES), what=st.sampled_from(["ack", "reject", "defer", "drop"]), data=st.data())
    def settle(self, name: str, what: str, data: st.DataObject) -> None:
        if not self.claimed[name]:
            return
        number, handle = self.claimed[name].pop(data.draw(st.integers(0, len(self.claimed[name]) - 1)))
        if what in {"ack", "reject"}:
            getattr(handle, what)()
            self.resolved[name].add(number)
        elif what == "defer":
            handle.defer(1.0)
        del handle

    @rule()
    def flush(self) -> None:
        self.store.seal()
        self.durable = len(self.accepted)

    @rule(seconds=st.sampled_from([0.0, 0.5, 6.0]))
    def maintain(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.store.maintain()
        self.durable = len(self.accepted)

    @rule()
    def reopen(self) -> None:
        self.claimed = {name: [] for name in NAMES}
        self.store.close()
        self.durable = len(self.accepted)
        self.open()

    @rule()
    def kill(self) -> None:
        self.forget_what_was_not_durable()
        self.fs = self.fs.clone_after_kill()
        self.open()

    @rule(seed=st.integers(0, 5))
    def cut_the_power(self, seed: int) -> None:
        self.forget_what_was_not_durable()
        self.fs = self.fs.clone_after_crash(seed)
        self.lost |= set(self.accepted[self.durable :])
        self.open()

    def forget_what_was_not_durable(self) -> None:
        """An acknowledgement may or may not have reached the disk: redelivery is allowed, loss is not."""
        self.claimed = {name: [] for name in NAMES}
        for name in NAMES:
            self.resolved_before[name] |= self.resolved[name]
            self.resolved[name] = set()

    @rule()
    def drain(self) -> None:
        """Everything accepted is resolved, now or before, except for unsynced data that a power loss removed."""
        self.claimed = {name: [] for name in NAMES}
        self.store.seal()
        self.durable = len(self.accepted)
        self.clock.advance(10)
        for name in NAMES:
            order = []
            while (handle := self.subscribers[name].next_bundle(timeout=0)) is not None:
                number = handle.bundle[30]["n"][0].as_py()
                assert number not in self.resolved[name]
                order.append(number)
                self.resolved[name].add(number)
                handle.ack()
            assert order == sorted(order)
            missing = set(self.accepted) - self.resolved[name] - self.resolved_before[name] - self.lost
            assert not missing, f"{name} never got {sorted(missing)}"
        self.store.maintain()
        assert len(self.store.catalog) == 0


TestStore = StoreMachine.TestCase
TestStore.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
