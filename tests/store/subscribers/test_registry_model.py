"""All subscribers of a store, compared with a simple model: for each, the set of resolved bundles."""

from __future__ import annotations

import logging

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from registry_rig import ROOT, Bench, dropped

from lanes import model_tests
from quiver.bundle import BundleRef
from quiver.store.format.drop_ledger import DroppedSegment
from quiver.store.subscribers.claims import BundleHandle
from quiver.store.subscribers.runs import BundleRun
from quiver.store.subscribers.state import SegmentRef

NAMES = ("a", "b", "c")
ORDERS = ("oldest", "newest", "round_robin")


class _RegistryMachine(RuleBasedStateMachine):
    """
    Seal, claim, resolve, rewind, drop by policy, delete, damage; close, kill and lose power in between. Bundles in
    `resolved` must not be delivered again in this process, and those in `durable` never again. All others must be
    delivered.
    """

    def __init__(self) -> None:
        super().__init__()
        logging.disable(logging.CRITICAL)
        self.sealed: dict[int, int] = {}
        self.next_seq = 0
        self.resolved: dict[str, set[BundleRef]] = {name: set() for name in NAMES}
        self.durable: dict[str, set[BundleRef]] = {name: set() for name in NAMES}
        self.out: dict[str, dict[BundleRef, BundleHandle | BundleRun]] = {name: {} for name in NAMES}
        self.waiting: dict[str, dict[BundleRef, float]] = {name: {} for name in NAMES}
        self.ledger: list[DroppedSegment] = []

    def teardown(self) -> None:
        logging.disable(logging.NOTSET)

    @initialize(profile=st.sampled_from(["spec", "otap"]), policy=st.sampled_from(["restart_earliest", "backup"]))
    def begin(self, profile: str, policy: str) -> None:
        self.options = {"profile": profile, "progress_damage": policy}
        self.open(None)

    def open(self, disk: object, *, without: str = "") -> None:
        self.out = {name: {} for name in NAMES}
        self.waiting = {name: {} for name in NAMES}
        segments = [SegmentRef(seq, count) for seq, count in sorted(self.sealed.items())]
        self.bench = Bench(disk, segments=segments, next_seq=self.next_seq, **self.options)
        self.registry = self.bench.registry
        # As the store does at open: the ledger outlives the crash.
        self.registry.drops.apply(self.ledger)
        self.subscribers = {
            name: self.registry.register(name, "earliest", order=order)
            for name, order in zip(NAMES, ORDERS, strict=True)
            if name != without
        }

    def existing(self) -> set[BundleRef]:
        return {BundleRef(seq, index) for seq, count in self.sealed.items() for index in range(count)}

    def pending(self, name: str) -> set[BundleRef]:
        return self.existing() - self.resolved[name]

    def free(self, name: str) -> set[BundleRef]:
        now = self.bench.clock.monotonic()
        late = {ref for ref, due in self.waiting[name].items() if due > now}
        return self.pending(name) - set(self.out[name]) - late

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────

    @rule(count=st.integers(1, 9), burnt=st.integers(0, 1))
    def seal(self, count: int, burnt: int) -> None:
        seq = self.next_seq + burnt
        self.next_seq = seq + 1
        self.sealed[seq] = count
        self.bench.seal(seq, count)

    @rule(name=st.sampled_from(NAMES), times=st.integers(1, 5))
    def take(self, name: str, times: int) -> None:
        for _ in range(times):
            free = self.free(name)
            handle = self.subscribers[name].next_bundle(timeout=0)
            assert (handle is None) == (not free)
            if handle is not None:
                assert handle.ref in free
                if name == "a":
                    assert handle.ref == min(free)
                self.out[name][handle.ref] = handle
                self.waiting[name].pop(handle.ref, None)

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 12))
    def take_many(self, name: str, count: int) -> None:
        free = self.free(name)
        handles = self.subscribers[name].next_bundles(count, timeout=0)
        assert len(handles) == min(count, len(free))
        assert {handle.ref for handle in handles} <= free
        if name == "a":
            assert [handle.ref for handle in handles] == sorted(free)[:count]
        for handle in handles:
            self.out[name][handle.ref] = handle
            self.waiting[name].pop(handle.ref, None)

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 12))
    def take_run(self, name: str, count: int) -> None:
        free = self.free(name)
        run = self.subscribers[name].next_run(count, timeout=0)
        assert (run is None) == (not free)
        if run is None:
            return
        refs = [BundleRef(run.segment, position) for position in range(run.first, run.last + 1)]
        assert len(refs) == len(run) <= count
        assert set(refs) <= free
        before, after = BundleRef(run.segment, run.first - 1), BundleRef(run.segment, run.last + 1)
        assert len(run) == count or after not in free or (name == "b" and before not in free)
        if name == "a":
            assert refs[0] == min(free)
        for ref in refs:
            self.out[name][ref] = run
            self.waiting[name].pop(ref, None)

    def runs(self, name: str) -> list[BundleRun]:
        found = {id(held): held for held in self.out[name].values() if isinstance(held, BundleRun)}
        return sorted(found.values(), key=lambda run: (run.segment, run.first))

    @precondition(lambda self: any(map(self.runs, NAMES)))
    @rule(
        data=st.data(), what=st.sampled_from(["ack", "ack through", "reject", "nack", "nack later", "leave", "forget"])
    )
    def decide_run(self, data: st.DataObject, what: str) -> None:
        name = data.draw(st.sampled_from([name for name in NAMES if self.runs(name)]))
        # By number: a strategy that has the runs themselves may keep one alive, and a forgotten one claimed.
        number = data.draw(st.integers(0, len(self.runs(name)) - 1))
        run = self.runs(name)[number]
        left = {ref for ref, held in self.out[name].items() if held is run}
        if what == "ack through":
            through = data.draw(st.integers(run.first, run.last))
            left = {ref for ref in left if ref.index <= through}
            run.ack(through=through)
        elif what == "leave":
            with run:
                pass
        elif what in {"ack", "reject", "nack"}:
            getattr(run, what)()
        elif what == "nack later":
            run.nack(5.0)
            self.waiting[name].update(dict.fromkeys(left, self.bench.clock.monotonic() + 5.0))
        for ref in left:
            del self.out[name][ref]
        if what in {"ack", "ack through", "reject"}:
            self.resolved[name] |= left

    def pop_handle(self, name: str, ref: BundleRef) -> BundleHandle:
        held = self.out[name].pop(ref)
        return held.split(ref.index) if isinstance(held, BundleRun) else held

    @precondition(lambda self: any(self.out.values()))
    @rule(data=st.data())
    def ack_all(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([name for name in NAMES if self.out[name]]))
        refs = data.draw(st.lists(st.sampled_from(sorted(self.out[name])), unique=True))
        self.subscribers[name].ack_all([self.pop_handle(name, ref) for ref in refs])
        self.resolved[name].update(refs)

    @precondition(lambda self: any(self.out.values()))
    @rule(data=st.data(), what=st.sampled_from(["ack", "ack", "reject", "defer", "leave"]))
    def decide(self, data: st.DataObject, what: str) -> None:
        name = data.draw(st.sampled_from([name for name in NAMES if self.out[name]]))
        ref = data.draw(st.sampled_from(sorted(self.out[name])))
        handle = self.pop_handle(name, ref)
        if what in {"ack", "reject"}:
            getattr(handle, what)()
            self.resolved[name].add(ref)
        elif what == "defer":
            handle.nack(5.0)
            self.waiting[name][ref] = self.bench.clock.monotonic() + 5.0
        else:
            with handle:
                pass

    @precondition(lambda self: self.sealed)
    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def rewind(self, data: st.DataObject, name: str) -> None:
        to = data.draw(st.sampled_from(sorted(self.existing())))
        given_up = {entry.seq for entry in self.ledger}
        back = {ref for ref in self.resolved[name] if ref >= to and ref.segment not in given_up}
        done = self.subscribers[name].rewind(to)
        assert done.bundles >= len(back & self.existing())
        removed = [seq for seq in range(to.segment, self.next_seq) if seq not in self.sealed]
        assert [seq for numbers in done.missing for seq in numbers] == removed
        self.resolved[name] -= back
        # Durable on return, as are the earlier acknowledgements.
        self.durable[name] = set(self.resolved[name])

    @precondition(lambda self: self.sealed)
    @rule(data=st.data(), finish=st.booleans())
    def drop_by_policy(self, data: st.DataObject, finish: bool) -> None:
        seq = data.draw(st.sampled_from(sorted(self.sealed)))
        entry = dropped(seq, self.sealed[seq])
        refs = {BundleRef(seq, index) for index in range(entry.bundle_count)}
        expected = {name: len(refs - self.resolved[name]) for name in NAMES if refs - self.resolved[name]}
        if entry not in self.ledger:
            self.ledger.append(entry)
        assert self.registry.drops.apply(self.ledger) == expected
        for name in NAMES:
            self.resolved[name] |= refs
            self.durable[name] |= refs
        assert self.registry.drops.apply(self.ledger) == {}
        assert self.registry.drops.is_settled(entry)
        if finish:
            self.remove([seq])
            self.ledger.remove(entry)

    @rule()
    def delete_what_all_have_finished(self) -> None:
        self.flush()
        finished = [
            seq
            for seq, count in sorted(self.sealed.items())
            if all(BundleRef(seq, index) in self.resolved[name] for name in NAMES for index in range(count))
        ]
        assert self.registry.complete_segments() == finished
        self.remove(finished)

    def remove(self, seqs: list[int]) -> None:
        self.registry.removed(seqs)
        for seq in seqs:
            del self.sealed[seq]

    @rule()
    def flush(self) -> None:
        self.registry.save()
        self.durable = {name: set(refs) for name, refs in self.resolved.items()}

    @rule()
    def wait(self) -> None:
        self.bench.clock.advance(3.0)

    # ── how it ends ──────────────────────────────────────────────────────────────────────────────────

    @rule()
    def reopen(self) -> None:
        self.registry.close()
        self.durable = {name: set(refs) for name, refs in self.resolved.items()}
        self.come_back(self.bench.disk)

    @rule(name=st.sampled_from(NAMES), drop=st.booleans())
    def leave_one_out(self, name: str, drop: bool) -> None:
        """It is not registered: it keeps its segments until it is dropped, and then starts without progress."""
        self.registry.close()
        self.durable = {name: set(refs) for name, refs in self.resolved.items()}
        self.open(self.bench.disk, without=name)
        assert self.registry.orphans() == []
        self.registry.activate()
        pending = self.pending(name)
        assert [(orphan.id, orphan.pending_bundles) for orphan in self.registry.orphans()] == [(name, len(pending))]
        self.delete_what_all_have_finished()
        if drop:
            assert self.registry.drop_orphan(name) == len(pending)
            self.resolved[name] = {
                BundleRef(entry.seq, index) for entry in self.ledger for index in range(entry.bundle_count)
            }
        order = ORDERS[NAMES.index(name)]
        self.subscribers[name] = self.registry.register(name, "earliest", order=order)
        self.registry.drops.apply(self.ledger)
        self.durable[name] = set(self.resolved[name])
        assert self.registry.orphans() == []

    @rule(seed=st.integers(0, 5), cut=st.booleans())
    def crash(self, seed: int, cut: bool) -> None:
        disk = self.bench.disk
        self.come_back(disk.clone_after_crash(seed) if cut else disk.clone_after_kill())

    @rule(name=st.sampled_from(NAMES))
    def damage(self, name: str) -> None:
        """Resolved bundles may be delivered again; all others must be, rewound bundles above all."""
        self.registry.close()
        self.bench.flip(f"quiver.sub.{name}")
        # The ledger resolves dropped bundles again as long as it has their entry.
        given_up = {entry.seq for entry in self.ledger}
        self.durable[name] = {ref for ref in self.durable[name] if ref.segment in given_up}
        self.come_back(self.bench.disk)

    def come_back(self, disk: object) -> None:
        self.open(disk)
        for name in NAMES:
            found = self.existing() - set(self.registry.pending_bundles_in_range(name, 0, self.next_seq))
            assert self.durable[name] & self.existing() <= found <= self.resolved[name]
            self.resolved[name] = (self.resolved[name] - self.existing()) | found
            self.durable[name] = set(self.resolved[name])

    # ── what always holds ────────────────────────────────────────────────────────────────────────────

    @invariant()
    def everybody_is_told_the_truth(self) -> None:
        if not hasattr(self, "registry"):
            return
        for name in NAMES:
            pending = self.pending(name)
            status = self.registry.status(name)
            assert status.pending_bundles == len(pending) == self.registry.lag(name).pending_bundles
            segments = sorted({ref.segment for ref in pending})
            assert list(self.registry.lag(name).segments) == segments
            assert self.registry.lag(name).oldest_incomplete_segment == (segments[0] if segments else None)
            in_range = self.registry.pending_bundles_in_range(name, 1, self.next_seq)
            assert in_range == sorted(ref for ref in pending - set(self.out[name]) if ref.segment >= 1)
        assert self.registry.all_subscribers_drained() == (not any(map(self.pending, NAMES)))
        assert self.registry.segment_sequences() == sorted(self.sealed)

    @invariant()
    def no_name_is_given_twice(self) -> None:
        assert not hasattr(self, "bench") or self.bench.disk.exists(ROOT)
        assert not hasattr(self, "registry") or self.registry.floor() < self.next_seq


TestRegistryAgainstModel, TestRegistryAgainstModelForLong = model_tests(_RegistryMachine, examples=25, steps=35)
