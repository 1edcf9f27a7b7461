"""A store with a tier, compared with a simple model: a list of the promised bundles and the acknowledged ones."""

from __future__ import annotations

import contextlib
import logging

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store_cold_rig import LIST, Rig, drain, listed, number_of, seen

from lanes import model_tests
from quiver.errors import ObjectsUnavailableError
from quiver.testing.crashfs import CrashFileSystem

DOWN = ("put_parts", "get", "get_range", "head", "delete")


class ColdStore(RuleBasedStateMachine):
    """Filling, maintenance, reading, outages, crashes and other windows, in any order."""

    @initialize(window=st.sampled_from([None, 0, 12_000]))
    def begin(self, window: int | None) -> None:
        logging.disable(logging.CRITICAL)
        self.rig = Rig(cold_local_bytes=window)
        self.store = self.rig.open()
        self.store.register("one", start="earliest")
        self.store.maintain()
        self.acked: set[int] = set()
        self.is_down = False

    @rule(segments=st.integers(1, 2))
    def fill(self, segments: int) -> None:
        self.rig.fill(self.store, segments)

    @rule()
    def maintain(self) -> None:
        self.store.maintain()

    @rule(seconds=st.sampled_from([1, 200]))
    def wait(self, seconds: int) -> None:
        self.rig.clock.advance(seconds)

    @rule(most=st.integers(1, 5))
    def consume(self, most: int) -> None:
        subscriber = self.store.register("one", start="earliest")
        for _ in range(most):
            handle = subscriber.next_bundle(timeout=0)
            if handle is None:
                return
            with contextlib.suppress(ObjectsUnavailableError):
                self.acked.add(number_of(handle.bundle))
                handle.ack()
                continue
            assert self.is_down, "the tier is up and says it is not"
            return

    @rule()
    @precondition(lambda self: not self.is_down)
    def go_down(self) -> None:
        self.is_down = True
        for operation in DOWN:
            self.rig.tier.fail_on(operation, times=10_000)

    @rule()
    @precondition(lambda self: self.is_down)
    def come_up(self) -> None:
        self.is_down = False
        self.rig.tier.heal()

    @rule(how=st.sampled_from(["close", "kill", "power loss"]), seed=st.integers(0, 3))
    def begin_again(self, how: str, seed: int) -> None:
        taken, clock, chosen = self.rig.taken, self.rig.clock, self.rig.settings
        fs = self.rig.fs
        assert isinstance(fs, CrashFileSystem)
        if how == "close":
            self.store.close()
        else:
            fs = fs.clone_after_kill() if how == "kill" else fs.clone_after_crash(seed)
        self.rig = Rig(fs)
        self.rig.taken, self.rig.clock, self.rig.settings = taken, clock, chosen
        self.is_down = False
        self.store = self.rig.open()

    @invariant()
    def nothing_referenced_is_missing(self) -> None:
        if not hasattr(self, "rig") or self.is_down:
            return
        verified = {seq for seq, state in listed(self.rig.fs).items() if state == "verified"}
        assert verified <= set(self.rig.objects())
        known = {info.seq for info in self.store.internals.catalog.segments()}
        assert known <= verified | set(self.rig.local())

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.tier.heal()
        owed = set(range(self.rig.taken)) - self.acked
        assert owed <= set(seen(self.rig.fs))
        got = drain(self.store, "one")
        assert got == sorted(set(got))
        assert owed <= set(got), f"misses {sorted(owed - set(got))}"
        for _ in range(4):
            self.store.maintain()
            self.rig.clock.advance(200)
        assert (self.rig.local(), self.rig.names(), self.rig.fs.exists(LIST)) == ([], [], False)
        self.store.close()
        logging.disable(logging.NOTSET)


TestColdStore, TestColdStoreForLong = model_tests(ColdStore, examples=12, steps=15)
