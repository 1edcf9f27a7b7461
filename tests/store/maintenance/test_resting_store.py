"""A store in which nothing happens rests: when its background thread runs the next pass, and what ends the rest."""

from __future__ import annotations

import errno
import math
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import quiver
import store_rig
from quiver.errors import StoreFailedError
from quiver.observe import InMemoryObserver
from quiver.primitives.worker import Finished
from quiver.settings import Settings
from quiver.store.background import Background
from quiver.store.format.sink_commit import INCOMING_DIR
from quiver.store.maintenance import REST_S_MAX
from quiver.store.store import Store
from quiver.store.subscribers.progress_store import SubscriberFile, create_if_missing
from quiver.store.subscribers.state import Segments
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from store_rig import ROOT, numbered, open_small, small_settings
from waiting import wait_until

INTERVAL_S = 0.1
GRACE_S = 0.5


class MaintenanceThread:
    """The background thread of a store without a thread: `pass_time` runs its turns. `passes` counts them."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.passes = 0
        self._store = store
        self._clock = clock
        self._background = Background(
            name="test",
            flush=None,
            fill=lambda: None,
            maintain=store.maintain,
            rest_s=store._maintenance_pass.rest_s,
            flush_interval_s=1.0,
            maintain_interval_s=INTERVAL_S,
            on_death=store.internals.poison,
            clock=clock,
            observer=InMemoryObserver(),
        )
        store._sealing.on_begin = store._subscribers.table.on_change = self._background.end_rest
        self._worker = self._background._maintainer
        self._worker._schedule(INTERVAL_S)

    def pass_time(self, intervals: int = 1) -> int:
        """Let time pass; return how many passes were run."""
        before = self.passes
        for _ in range(intervals):
            self._clock.advance(INTERVAL_S)
            if self._worker._due_s <= self._clock.monotonic() + INTERVAL_S / 100:
                self.passes += 1
                self._worker._due_s = math.inf
                delay_s = self._worker.run_once()
                assert not isinstance(delay_s, Finished)
                self._worker._schedule(INTERVAL_S if delay_s is None else delay_s)
        return self.passes - before

    def rest(self) -> None:
        """Let time pass until the store rests."""
        for _ in range(5):
            if not self.pass_time():
                return
        raise AssertionError("the store does not rest")


def other_process(fs: CrashFileSystem, name: str = "other", *, through: int | None = None) -> None:
    """Create a subscriber as another process does; let it acknowledge the segments up to *through*."""
    create_if_missing(fs, ROOT, name, start="earliest", segments=Segments(), profile="spec")
    if through is not None:
        with SubscriberFile(fs, ROOT, name) as file:
            file.know(())
            file.ack_through(through + 1, 0)
            file.save()


def test_an_idle_store_runs_a_pass_each_second(fs: CrashFileSystem, clock: ManualClock) -> None:
    """It finds what other processes did."""
    with open_small(fs, clock) as store:
        thread = MaintenanceThread(store, clock)
        thread.rest()
        assert thread.pass_time(100) == 100 * INTERVAL_S / REST_S_MAX


def ingest(store: Store, _fs: CrashFileSystem) -> None:
    store.ingest(numbered(1))


def register(store: Store, _fs: CrashFileSystem) -> None:
    store.register("later", start="latest")


def acknowledge(store: Store, _fs: CrashFileSystem) -> None:
    handle = store.register("mine").next_bundle(timeout=0)
    assert handle is not None
    handle.ack()


def unregister(store: Store, _fs: CrashFileSystem) -> None:
    store.unregister("mine")
    store.register("later", start="latest")


@pytest.mark.parametrize("happen", [ingest, register, acknowledge, unregister])
def test_a_change_in_this_process_ends_the_rest(
    fs: CrashFileSystem, clock: ManualClock, happen: Callable[[Store, CrashFileSystem], None]
) -> None:
    """The next pass runs after one interval."""
    with open_small(fs, clock, deliver_unsealed=happen is not acknowledge) as store:
        subscriber = store.register("mine", start="earliest")
        store.ingest(numbered(0))
        store.seal()
        assert subscriber.next_bundle(timeout=0) is not None  # claimed: this process owns the subscriber
        thread = MaintenanceThread(store, clock)
        thread.rest()
        happen(store, fs)
        assert thread.pass_time() == 1


def test_a_store_with_staged_batches_does_not_rest(fs: CrashFileSystem, clock: ManualClock) -> None:
    """A sink that staged once will probably do so again."""
    with open_small(fs, clock) as store:
        thread = MaintenanceThread(store, clock)
        thread.rest()
        fs.make_dirs(f"{ROOT}/{INCOMING_DIR}")
        thread.pass_time(10)
        assert thread.pass_time(10) == 10


def test_a_subscriber_of_another_process_prevents_rest_while_there_are_segments(
    fs: CrashFileSystem, clock: ManualClock
) -> None:
    """A segment that it finished is deleted by the next pass."""
    with open_small(fs, clock) as store:
        thread = MaintenanceThread(store, clock)
        other_process(fs)
        store.ingest(numbered(0))
        store.seal()
        assert thread.pass_time(10) == 10
        other_process(fs, through=0)
        thread.pass_time()
        assert len(store.internals.catalog) == 0
        thread.rest()


def test_a_segment_that_waits_for_its_grace_period_prevents_rest(fs: CrashFileSystem, clock: ManualClock) -> None:
    """It is deleted in time; so is one that reaches its age."""
    with open_small(fs, clock, delete_grace_s=1.0) as store:
        store.ingest(numbered(0))
        store.seal()
        assert store_rig.acknowledge(store.register("mine", start="earliest")) == [0]
        thread = MaintenanceThread(store, clock)
        waited = 0
        while len(store.internals.catalog):
            waited += thread.pass_time()
        assert waited in {11, 12}
    with open_small(CrashFileSystem(), clock, max_age_s=100.0) as store:
        store.ingest(numbered(1))
        store.seal()
        thread = MaintenanceThread(store, clock)
        assert thread.pass_time(10) == 10
        clock.advance(100.0)
        thread.pass_time()
        assert len(store.internals.catalog) == 0


def test_a_step_that_failed_is_tried_again_after_one_interval(
    fs: CrashFileSystem, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the pass found nothing to do."""
    with open_small(fs, clock) as store:
        thread = MaintenanceThread(store, clock)
        thread.rest()
        clock.advance(REST_S_MAX)

        def full() -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(store._cleanup, "continue_drops", full)
        assert thread.pass_time(3) == 3
        monkeypatch.undo()
        thread.rest()


def test_a_resting_store_finds_that_its_directory_was_moved(tmp_path: Path) -> None:
    """By itself, with its real thread; nothing is written."""
    store = quiver.open(tmp_path / "store")
    (tmp_path / "store").rename(tmp_path / "moved")
    wait_until(lambda: store._wal.failure is not None)
    with pytest.raises(StoreFailedError, match="moved or removed"):
        store.ingest(numbered(0))
    store.close()


class Pair:
    """Two stores with the same calls. One has a thread that rests, the other runs a pass at each interval."""

    def __init__(self, seed: int, settings: Settings) -> None:
        self.chance = random.Random(seed)
        self.clocks = [ManualClock(), ManualClock()]
        self.disks = [CrashFileSystem(), CrashFileSystem()]
        self.stores = [
            store_rig.open_manual(fs, clock=clock, settings=settings)
            for fs, clock in zip(self.disks, self.clocks, strict=True)
        ]
        self.thread = MaintenanceThread(self.stores[0], self.clocks[0])
        self.number = 0

    def step(self) -> None:
        """Do something, and let some intervals pass."""
        call = self.chance.choice([self.ingest, self.consume, self.register, self.unregister, self.other, self.wait])
        call()
        for _ in range(self.chance.choice([1, 2, 30])):
            self.pass_time()
            assert self.files(0) == self.files(1)

    def pass_time(self) -> None:
        self.thread.pass_time()
        self.clocks[1].advance(INTERVAL_S)
        self.stores[1].maintain()

    def ingest(self) -> None:
        for _ in range(self.chance.choice([1, 5, 40])):
            for store in self.stores:
                store.ingest(numbered(self.number))
            self.number += 1
        if self.chance.random() < 0.5:
            for store in self.stores:
                store.seal()

    def names(self) -> list[str]:
        return [one.id for one in self.stores[0].subscribers() if one.is_registered]

    def consume(self) -> None:
        if self.names():
            name, most = self.chance.choice(self.names()), self.chance.choice([1, 10, 1000])
            taken = [store_rig.acknowledge(store.register(name), most) for store in self.stores]
            assert taken[0] == taken[1]

    def register(self) -> None:
        name = self.chance.choice("ab")
        for store in self.stores:
            store.register(name, start="earliest")

    def unregister(self) -> None:
        if self.names():
            name = self.chance.choice(self.names())
            for store in self.stores:
                store.unregister(name)

    def other(self) -> None:
        newest = max((info.seq for info in self.stores[0].internals.catalog.segments()), default=-1)
        through = self.chance.choice([None, newest])
        for fs in self.disks:
            other_process(fs, through=through)
        for _ in range(round((REST_S_MAX + GRACE_S) / INTERVAL_S) + 1):  # until it is noticed
            self.pass_time()

    def wait(self) -> None:
        for _ in range(100):
            self.pass_time()

    def files(self, which: int) -> dict[str, bytes]:
        """The segments by name, and the small files with their contents."""
        fs = self.disks[which]
        others = ("quiver.id", "quiver.reserve", "lock")  # the size of the reserve is measured once a second
        names = [name for name in fs.list_dir(ROOT) if name.startswith("quiver.") and not name.endswith(others)]
        found = {name: fs.read_all(f"{ROOT}/{name}", size_max=1 << 20) for name in names}
        return found | dict.fromkeys(fs.list_dir(f"{ROOT}/segments"), b"")


@pytest.mark.parametrize("seed", range(20))
def test_a_store_that_rests_does_the_same_as_one_that_does_not(seed: int) -> None:
    """After every interval, both directories have the same files: nothing happens later."""
    settings = small_settings(
        segment_open_s_max=1.0, delete_grace_s=GRACE_S, max_age_s=60.0 if seed % 3 == 0 else None,
        deliver_unsealed=seed % 2 == 0,
    )  # fmt: skip
    pair = Pair(seed, settings)
    steps = 30
    for _ in range(steps):
        pair.step()
    intervals = round(pair.clocks[0].monotonic() / INTERVAL_S)
    assert pair.thread.passes < intervals, "it never rested"
    for store in pair.stores:
        store.close()
