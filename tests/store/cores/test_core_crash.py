"""Cores and power loss: at every step of creating, opening and claiming, and at random while several processes run."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from core_rig import CAP_BYTES, ROOT, SEGMENT_BYTES, Rig, numbered
from hypothesis import given, settings
from hypothesis import strategies as st

import quiver
from quiver import CapacityError
from quiver.store.cores.capacity import directory_bytes
from quiver.store.cores.instances import find_cores
from quiver.store.cores.store import MultiCoreStore
from quiver.store.format.cores import CORE_CLAIM, EVICTED, core_directory
from quiver.testing.crashfs import CrashFileSystem
from store_rig import drain, number_of


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_a_crash_at_any_step_of_the_first_use_loses_nothing_synced(cores: int) -> None:
    """
    Created with two cores, crashed at any step, opened with one, two or three: every synced bundle is delivered
    once.
    """
    rig = Rig()
    rig.fs.make_dirs("/")
    clones: list[tuple[CrashFileSystem, set[int]]] = []
    synced: set[int] = set()

    def on_step(_op: str, _path: str) -> None:
        clones.extend((rig.fs.clone_after_crash(seed), set(synced)) for seed in (len(clones), len(clones) + 1))

    rig.fs.on_step = on_step
    with rig.open(cores=2) as store:
        store.register("one", start="earliest")
        for number in range(4):
            store.ingest(numbered(number), durable=True)
            synced.add(number)
        store.seal()
        rig.tick(store)
    rig.fs.on_step = None
    assert len(clones) > 150
    for clone, expected in clones[cores::10]:
        again = Rig(clone, rig.clock)
        with again.open(cores=cores) as store:
            store.register("one", start="earliest")
            again.tick(store)
            store.seal()
            got = drain(store, "one")
            assert len(got) == len(set(got))
            assert expected <= set(got) <= set(range(4))


def test_a_crash_at_any_step_of_a_claim_does_not_affect_the_next_start() -> None:
    """Claims are never synced, so the disk may have any part of one; the next start counts the files."""
    rig = Rig()
    with rig.open(cores=2) as store:
        store.register("one", start="earliest")
        clones: list[CrashFileSystem] = []

        def on_step(_op: str, path: str) -> None:
            if path.endswith(CORE_CLAIM):
                clones.extend(rig.fs.clone_after_crash(seed) for seed in (len(clones), len(clones) + 1))

        rig.fs.on_step = on_step
        for number in range(40):
            store.ingest(numbered(number), durable=True, core=0)
        rig.tick(store)
        rig.fs.on_step = None
    assert len(clones) > 20
    for clone in clones:
        again = Rig(clone, rig.clock)
        with again.open(cores=2, core=1) as store:
            again.tick(store)
            figures = store.stats()["cores"][1]
            # No process renews the claim of core 0, so its files count.
            assert figures["others_bytes"] == directory_bytes(clone, f"{ROOT}/core_0")


# ---- several processes, at random


@dataclass
class Life:
    """Processes with one core each on one disk, and the promises that they made."""

    rig: Rig
    cores: int = 3
    stores: dict[int, MultiCoreStore] = field(default_factory=dict)
    synced: set[int] = field(default_factory=set)
    offered: int = 0
    out: set[int] = field(default_factory=set)
    """Delivered and acknowledged."""
    settled: set[int] = field(default_factory=set)
    """Acknowledged durably."""
    unsettled: dict[int, set[int]] = field(default_factory=dict)
    """The other acknowledgements, by process."""

    def open(self, core: int) -> None:
        store = self.rig.open(cores=self.cores, core=core)
        store.register("one", start="earliest")
        self.stores[core] = store

    def put(self, store: MultiCoreStore, bundles: int) -> None:
        for _ in range(bundles):
            self.offered += 1
            try:
                store.ingest(numbered(self.offered, size=1_500), durable=True)
            except CapacityError:
                return
            self.synced.add(self.offered)

    def take(self, core: int, bundles: int) -> None:
        store = self.stores[core]
        subscriber = store.register("one", start="earliest")
        for _ in range(bundles):
            handle = subscriber.next_bundle(timeout=0)
            if handle is None:
                return
            number = number_of(handle.bundle)
            assert number not in self.settled, "delivered once more"
            handle.ack()
            self.out.add(number)
            self.unsettled.setdefault(core, set()).add(number)

    def tick(self) -> None:
        self.rig.tick(*self.stores.values())
        for core in self.stores:
            self.settled |= self.unsettled.pop(core, set())

    def crash(self, chance: random.Random, *, power: bool) -> None:
        fs = self.rig.fs
        self.rig.fs = fs.clone_after_crash(chance.randrange(1000)) if power else fs.clone_after_kill()
        self.stores.clear()
        self.unsettled.clear()

    def close(self, core: int) -> None:
        store = self.stores.pop(core, None)
        if store is not None:
            store.close()
            self.settled |= self.unsettled.pop(core, set())

    def check(self) -> None:
        fs = self.rig.fs
        total = sum(directory_bytes(fs, f"{ROOT}/{core_directory(core)}") for core in find_cores(fs, ROOT))
        # A segment for each core; files of such small segments are nearly twice as large as their bundles.
        assert total <= CAP_BYTES + 2 * SEGMENT_BYTES * len(find_cores(fs, ROOT))


STEPS = ["put", "put", "put", "take", "take", "tick", "tick", "close", "open", "kill", "power", "cores"]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32), st.integers(15, 40))
def test_random_lives_lose_nothing(seed: int, steps: int) -> None:
    """With `backpressure` every synced bundle is delivered, for any actions and ends of the processes."""
    chance = random.Random(seed)
    life = Life(Rig())
    life.rig.fs.make_dirs(ROOT)
    for _ in range(steps):
        step = chance.choice(STEPS)
        core = chance.randrange(life.cores)
        if core not in life.stores and step in {"put", "take", "open"}:
            try:
                life.open(core)
            except quiver.DirectoryInUseError:
                continue  # a process of fewer cores drains it
        store = life.stores.get(core)
        if step == "put" and store is not None:
            life.put(store, chance.choice([1, 5, 40]))
        elif step == "take" and store is not None:
            life.take(core, chance.choice([1, 10, 100]))
        elif step == "tick":
            life.tick()
        elif step == "close":
            life.close(core)
        elif step in {"kill", "power"}:
            life.crash(chance, power=step == "power")
        elif step == "cores":
            for one in list(life.stores):
                life.close(one)
            life.cores = chance.randint(1, 4)
        life.check()
    for one in list(life.stores):
        life.close(one)
    with life.rig.open(cores=1) as store:
        # Acknowledgements that were not durable are repeated; nothing else is missing.
        store.seal()
        late = drain(store, "one")
        assert len(late) == len(set(late))
        assert not life.settled & set(late)
        assert life.synced <= life.out | set(late)
        life.rig.tick(store)
        life.rig.clock.advance(1_000)
        life.rig.tick(store)
        life.rig.tick(store)
        assert store.stats()["subscribers"]["one"]["pending_bundles"] == 0
        assert find_cores(life.rig.fs, ROOT) == [0]
        assert not life.rig.fs.exists(f"{ROOT}/core_0/{EVICTED}")
