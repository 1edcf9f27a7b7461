"""The store against a simple model: a list of numbers, and a set of numbers per subscriber."""

from __future__ import annotations

import logging

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lanes import model_tests
from quiver import Bundle, BundleHandle, Settings
from quiver import open as open_store
from quiver.store.subscribers.queue import BACKFILL_EVERY, Order
from quiver.store.subscribers.runs import BundleRun
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/m"
NAMES = ("a", "b")
ORDERS: dict[str, Order] = {"a": "oldest", "b": "newest"}
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
        self.runs: dict[str, list[tuple[dict[int, int], BundleRun]]] = {name: [] for name in NAMES}
        """Each with the numbers of its undecided bundles, by position."""

    def teardown(self) -> None:
        self.store.close()
        logging.disable(logging.NOTSET)

    @initialize()
    def start(self) -> None:
        self.open()

    def open(self) -> None:
        self.store = open_store(ROOT, SETTINGS, fs=self.fs, clock=self.clock, background=False)
        self.subscribers = {
            name: self.store.register(name, start="earliest", order=order) for name, order in ORDERS.items()
        }
        self.forget_claims()

    def forget_claims(self) -> None:
        self.claimed = {name: [] for name in NAMES}
        self.runs = {name: [] for name in NAMES}

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
            self.claimed[name].append((self.check_delivered(name, handle.bundle), handle))

    def check_delivered(self, name: str, bundle: Bundle) -> int:
        number: int = bundle[30]["n"][0].as_py()
        assert number in self.accepted, "invented"
        assert number not in self.resolved[name], "delivered again though resolved in this run"
        in_runs = [number for numbers, _ in self.runs[name] for number in numbers.values()]
        assert number not in [*in_runs, *(other for other, _ in self.claimed[name])], "delivered twice at once"
        return number

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 6))
    def take_run(self, name: str, count: int) -> None:
        run = self.subscribers[name].next_run(count, timeout=0)
        if run is not None:
            numbers = {position: self.check_delivered(name, bundle) for position, bundle in run}
            assert list(numbers) == list(range(run.first, run.last + 1))
            assert list(numbers.values()) == sorted(numbers.values())
            self.runs[name].append((numbers, run))

    @precondition(lambda self: any(self.runs.values()))
    @rule(
        name=st.sampled_from(NAMES),
        what=st.sampled_from(["ack", "ack through", "reject one", "reject", "nack", "drop"]),
        data=st.data(),
    )
    def settle_run(self, name: str, what: str, data: st.DataObject) -> None:
        if not self.runs[name]:
            return
        numbers, run = self.runs[name].pop(data.draw(st.integers(0, len(self.runs[name]) - 1)))
        position = data.draw(st.sampled_from(sorted(numbers)))
        decided = set(numbers)
        if what == "ack through":
            run.ack(through=position)
            decided = {other for other in numbers if other <= position}
        elif what == "reject one":
            run.reject("odd", position=position)
            decided = {position}
        elif what == "nack":
            run.nack(1.0)
        elif what != "drop":
            getattr(run, what)()
        if what not in {"nack", "drop"}:
            self.resolved[name] |= {numbers.pop(other) for other in decided}
            if numbers:
                assert [other for other, _ in run] == sorted(numbers)
                self.runs[name].append((numbers, run))
        del run

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
            handle.nack(1.0)
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
        self.forget_claims()
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
        self.forget_claims()
        for name in NAMES:
            self.resolved_before[name] |= self.resolved[name]
            self.resolved[name] = set()

    def check_order(self, name: str, order: list[int]) -> None:
        """Oldest first; or each the newest or the oldest of those that are left, at most every fourth the oldest."""
        left = sorted(order)
        if ORDERS[name] == "oldest":
            assert order == left
        from_old_end = 0
        for number in order:
            assert number in {left[0], left[-1]}
            from_old_end += number != left[-1]
            left.remove(number)
        assert ORDERS[name] == "oldest" or from_old_end <= len(order) // BACKFILL_EVERY + 1

    @rule()
    def drain(self) -> None:
        """Everything accepted is resolved, now or before, except for unsynced data that a power loss removed."""
        self.forget_claims()
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
            self.check_order(name, order)
            missing = set(self.accepted) - self.resolved[name] - self.resolved_before[name] - self.lost
            assert not missing, f"{name} never got {sorted(missing)}"
        self.store.maintain()
        assert len(self.store.internals.catalog) == 0


TestStore, TestStoreForLong = model_tests(StoreMachine, examples=25, steps=40)
