"""One disk budget for several stores: each may use what the others leave, and a part is reserved for each."""

import os

import pyarrow as pa
import pytest

import quiver
from quiver.delivery.dead_letters import DeadLetters
from quiver.errors import CapacityError, InvalidBundleError
from quiver.settings import KIB, Settings
from quiver.store.cores.opening import open_path
from quiver.store.limits.disk_budget import LISTED_S, DiskBudget, working_bytes
from quiver.store.limits.tree_bytes import tree_bytes
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

CAP = 2048 * KIB
SMALL = Settings(wal_rotate_bytes=64 * KIB, segment_bytes_max=64 * KIB, delete_grace_s=0.0)
RESERVED = working_bytes(SMALL)
BUFFERS = ("/data/intake", "/data/buffer")


def bundle(nbytes=50 * KIB):
    return quiver.Bundle({30: pa.record_batch({"data": [os.urandom(nbytes)]})})


class Rig:
    """The buffers of a pipeline, open in one process."""

    def __init__(self, settings=SMALL, cap=CAP):
        self.clock = ManualClock()
        self.disk = CrashFileSystem(clock=self.clock)
        self.settings = settings
        self.budget = self.another(cap)
        self.stores = {path: self.opened(path) for path in BUFFERS}
        self.readers = {path: store.register("out", start="earliest") for path, store in self.stores.items()}
        for store in self.stores.values():
            store.activate()

    def another(self, cap=CAP):
        """The budget as another process of the pipeline opens it."""
        return DiskBudget(self.disk, cap, dict.fromkeys(BUFFERS, RESERVED), clock=self.clock)

    def opened(self, path):
        return open_path(
            path, self.settings, fs=self.disk, clock=self.clock, background=False, share=self.budget.buffer(path)
        )

    def fill(self, path):
        """Ingest until the store refuses; return the number of accepted bundles."""
        for number in range(200):
            try:
                self.stores[path].ingest(bundle())
            except CapacityError as full:
                self.refusal = full
                return number
            self.stores[path].maintain()
            self.clock.advance(0.01)
        raise AssertionError("there was no end to it")

    def take_all(self, path):
        while (handle := self.readers[path].next_bundle(timeout=0)) is not None:
            handle.ack()
        self.stores[path].maintain()

    @property
    def on_disk(self):
        return tree_bytes(self.disk, "/data")


def test_a_buffer_may_use_what_the_others_leave():
    """And no more; space that one frees is available to the others."""
    rig = Rig()
    first, second = BUFFERS
    assert rig.fill(first) >= 15
    assert "disk.size_cap" in rig.refusal.what
    assert rig.on_disk <= CAP
    assert 1 <= rig.fill(second) <= 6
    assert rig.on_disk <= CAP
    rig.take_all(first)
    assert rig.fill(second) >= 15
    assert rig.on_disk <= CAP


def test_a_full_buffer_leaves_space_for_the_next_one():
    """Otherwise its bundles could never move to the next one."""
    rig = Rig()
    first, second = BUFFERS
    rig.fill(first)
    for _ in range(20):
        rig.stores[second].ingest(bundle())
        rig.stores[second].seal()
        rig.take_all(second)


def test_the_smaller_of_two_caps_applies():
    """A buffer's own cap, if it is below the rest of the budget."""
    rig = Rig(Settings(wal_rotate_bytes=64 * KIB, segment_bytes_max=64 * KIB, size_cap_bytes=512 * KIB))
    assert rig.fill(BUFFERS[0]) <= 10
    assert "retention.size_cap" in rig.refusal.what
    assert rig.on_disk <= 512 * KIB + 2 * KIB


def test_dead_letters_count_in_the_budget():
    """They reduce the space of buffers, and are limited to what buffers leave."""
    rig = Rig()
    share = rig.budget.dead_letters(BUFFERS[1])
    dead_letters = DeadLetters(
        BUFFERS[1], "out", settings=SMALL, fs=rig.disk, clock=rig.clock, background=False, share=share
    )
    added = 0
    with pytest.raises(CapacityError, match="dead letters in /data/buffer/dead-letter/out: disk.size_cap"):
        for added in range(200):
            dead_letters.add(quiver.BundleRef(0, added), bundle(), reason="no")
            dead_letters._store.maintain()
    assert added >= 10
    assert rig.on_disk <= CAP
    rig.clock.advance(LISTED_S)
    for path in BUFFERS:
        assert 1 <= rig.fill(path) <= 6
    assert rig.on_disk <= CAP


def test_another_process_counts_the_files():
    """It counts the bytes of this process on disk, and uses only the rest."""
    rig = Rig()
    other = rig.another()
    rig.fill(BUFFERS[0])
    rig.clock.advance(LISTED_S)
    assert other.used_bytes() == pytest.approx(rig.on_disk, rel=0.01)
    left = other.dead_letters(BUFFERS[0]).left_bytes("/data/intake/dead-letter/out")
    assert left <= CAP - rig.on_disk
    assert rig.budget.used_bytes() == pytest.approx(rig.on_disk, rel=0.01)


def test_the_files_of_a_closed_store_are_counted():
    """Its own note is out of date."""
    rig = Rig()
    rig.fill(BUFFERS[0])
    rig.stores[BUFFERS[0]].close()
    rig.clock.advance(LISTED_S)
    assert rig.budget.used_bytes() == pytest.approx(rig.on_disk, rel=0.01)


def test_a_bundle_that_can_never_fit_is_refused_at_once():
    """Waiting for the others would not help; it does if they only use too much at the moment."""
    rig = Rig()
    with pytest.raises(InvalidBundleError, match="disk.size_cap leaves"):
        rig.stores[BUFFERS[0]].ingest(bundle(CAP))
    rig.fill(BUFFERS[1])
    with pytest.raises(CapacityError):
        rig.stores[BUFFERS[0]].ingest(bundle(600 * KIB))


def test_the_cores_of_a_buffer_share_its_budget(tmp_path):
    """Each claims what it needs; together they have no more than the other buffer leaves."""
    paths = [str(tmp_path / "intake"), str(tmp_path / "buffer")]
    clock = ManualClock()
    reserved = working_bytes(SMALL, 2)
    fs = CrashFileSystem(clock=clock)
    budget = DiskBudget(fs, 2 * CAP, dict.fromkeys(paths, reserved), clock=clock)
    stores = [
        open_path(path, SMALL, cores=2, fs=fs, clock=clock, background=False, share=budget.buffer(path))
        for path in paths
    ]
    for store in stores:
        store.register("out", start="earliest")
        store.activate()
    for store in stores:
        with pytest.raises(CapacityError):
            for _ in range(500):
                store.ingest(bundle())
                store.maintain()
                clock.advance(0.01)
        assert tree_bytes(fs, str(tmp_path)) <= 2 * CAP
    assert stores[0].stats()["segments"] >= 15
    assert stores[1].stats()["segments"] >= 2
    for store in stores:
        store.close()


def test_files_above_the_core_directories_count_in_the_budget(tmp_path):
    """The request windows of receivers are counted once for all cores."""
    path = str(tmp_path / "buffer")
    clock = ManualClock()
    fs = CrashFileSystem(clock=clock)
    budget = DiskBudget(fs, 2 * CAP, {path: working_bytes(SMALL, 2)}, clock=clock)
    store = open_path(path, SMALL, cores=2, fs=fs, clock=clock, background=False, share=budget.buffer(path))
    store.register("out", start="earliest")
    store.activate()
    before = budget.used_bytes()
    fs.create(f"{path}/quiver.requests").pwrite(bytes(CAP), 0)
    clock.advance(1.0)
    assert budget.used_bytes() == before + CAP
    with pytest.raises(CapacityError):
        for _ in range(500):
            store.ingest(bundle())
            store.maintain()
            clock.advance(0.01)
    assert tree_bytes(fs, str(tmp_path)) <= 2 * CAP
    store.close()
