"""A crash at every step and an error at every call: no partial object, no reference to a missing one, no remains."""

from __future__ import annotations

import contextlib
import errno

import pytest
from store_cold_rig import COLD, LIST, ROOT, Rig, bundle_of, drain, listed, seen

from lanes import every, with_stride
from quiver.errors import ObjectsUnavailableError
from quiver.objects.directory import DirectoryObjects
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.store import Store
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from quiver.testing.faultobjects import OBJECT_OPERATIONS, ObjectFault

pytestmark = pytest.mark.usefixtures("quiet")

USED = sorted(OBJECT_OPERATIONS - {"put", "get_ranges", "list", "copy"})
HOWS: tuple[ObjectFault, ...] = ("fail", "lose_answer", "slow", "truncate", "repeat")


def whole_objects(fs: FileSystem) -> set[str]:
    """The names of the objects, after checking that each one matches its name."""
    tier = DirectoryObjects(fs, COLD)
    names = set()
    for info in tier.list_below("stores"):
        data = tier.get(info.key, size_max=1 << 20)
        name = info.key.rpartition("/")[2]
        assert int(name[17:25], 16) == crc32(data[:-4]) == int.from_bytes(data[-4:], "little"), f"half: {info.key}"
        names.add(name)
    return names


def check_list(fs: FileSystem, label: str) -> None:
    """Check that every verified entry of the list has a valid object."""
    there = {int(name[:16]) for name in whole_objects(fs)}
    verified = {seq for seq, state in listed(fs).items() if state == "verified"}
    assert verified <= there, f"{label}: listed {verified}, there {there}"


class Run:
    """One life of a store with a tier, and its promises at each moment."""

    def __init__(self) -> None:
        self.rig = Rig(cold_local_bytes=0)
        self.durable = 0
        self.acked: set[int] = set()

    def fill(self, store: Store, segments: int) -> None:
        for _ in range(segments):
            self.rig.fill(store, 1)
            self.durable = self.rig.taken

    def drain(self, store: Store, most: int) -> None:
        subscriber = store.register("one", start="earliest")
        for _ in range(most):
            handle = subscriber.next_bundle(timeout=0)
            if handle is None:
                break
            number = handle.bundle[30]["n"][0].as_py()
            handle.ack()
            self.acked.add(number)
        store.maintain()

    def run(self) -> None:
        with self.rig.open() as store:
            store.register("one", start="earliest")
            self.fill(store, 2)
            for _ in range(2):
                store.maintain()
            self.fill(store, 1)
            self.drain(store, 4)
            store.maintain()
        with self.rig.open() as store:
            self.drain(store, 3)
            self.fill(store, 1)
            store.maintain()
            self.drain(store, 4)
            store.maintain()


def finish(fs: FileSystem, label: str, promised: int, acked: set[int], attempted: int, *, sends_first: bool) -> None:
    """Check that the next open keeps all promises, and that a finished store leaves no files or objects."""
    rig = Rig(fs, cold_local_bytes=0)
    check_list(fs, label)
    survivors = seen(fs) if fs.exists(f"{ROOT}/wal") else []
    assert survivors == sorted(set(survivors)), f"{label}: a reader sees {survivors}"
    assert set(survivors) <= set(range(attempted))
    with rig.open() as store:
        store.seal()
        if (
            sends_first
        ):  # otherwise segments from before the crash would be finished before they could be uploaded again
            store.maintain()
        check_list(fs, label)
        got = drain(store, "one")
        assert got == sorted(set(got)), f"{label}: got {got}"
        missing = set(range(promised)) - set(got) - acked
        assert not missing, f"{label}: misses {sorted(missing)}"
        assert set(got) <= set(survivors), f"{label}: got {got}, a reader saw {survivors}"
        for _ in range(3):
            store.maintain()
        assert (rig.local(), whole_objects(fs), fs.exists(LIST)) == ([], set(), False), f"{label}: left over"
        store.ingest(bundle_of(1000))
        store.seal()
        assert drain(store, "one") == [1000], f"{label}: what comes after recovery is not delivered"


@pytest.mark.parametrize(("stride", "seeds"), [(3, 1), pytest.param(1, 3, marks=pytest.mark.slow)])
def test_a_crash_at_any_step_loses_and_leaves_nothing(stride: int, seeds: int) -> None:
    """A power loss or a kill at each step of disk and objects, which are on the same disk."""
    run = Run()
    fs = run.rig.fs
    assert isinstance(fs, CrashFileSystem)
    states: list[tuple[str, list[CrashFileSystem], int, set[int], int]] = []

    def before(operation: str, path: str) -> None:
        number = len(states)
        clones = [fs.clone_after_crash((number + seed) % 4) for seed in range(seeds)]
        if number % 3 == 0 or seeds > 1:
            clones.append(fs.clone_after_kill())
        label = f"step {number} ({operation} {path})"
        states.append((label, clones, run.durable, set(run.acked), run.rig.taken + 1))

    fs.on_step = before
    run.run()
    fs.on_step = None
    assert len(states) > 200
    assert any("/cold/stores/" in label for label, *_ in states)
    for number, (label, clones, durable, acked, attempted) in every(stride, list(enumerate(states))):
        for clone in clones:
            finish(clone, label, durable, acked, attempted, sends_first=number % 4 == 0)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("path", ["quiver.cold", ".floor"])
def test_a_disk_error_for_the_list_or_the_floor_only_delays(path: str, error: int) -> None:
    """Each call on the two files fails once; the next passes complete the work."""
    for operation in ("create", "pwrite", "sync", "rename"):
        for call in range(1, 100):
            disk = CrashFileSystem()
            fs = FaultFileSystem(disk, {operation: call}, error=error, path_part=path)
            rig = Rig(fs, cold_local_bytes=0)
            got: list[int] = []
            with rig.open() as store:
                subscriber = store.register("one", start="earliest")
                rig.fill(store, 3)
                for _ in range(12):
                    with contextlib.suppress(OSError):
                        store.maintain()
                    rig.clock.advance(120)
                    handle = subscriber.next_bundle(timeout=0)
                    if handle is not None:
                        got.append(handle.bundle[30]["n"][0].as_py())
                        handle.ack()
                check_list(fs, f"{operation} {call}")
            assert got == list(range(9)), f"{operation} {call}"
            assert (rig.local(), rig.names(), listed(fs)) == ([], [], {}), f"{operation} {call}"
            if fs.calls[operation] < call:
                break
        else:
            pytest.fail(f"{operation} never ended")
        assert call > 1, f"{operation} is never called on {path}"


@with_stride(3)
@pytest.mark.parametrize("operation", USED)
def test_an_error_at_any_call_only_delays(operation: str, stride: int) -> None:
    """Each call fails, loses its response, is slow, is cut short, or is repeated; later passes complete the work."""
    clean = Run()
    clean.run()
    calls = clean.rig.tier.calls[operation]
    assert calls, operation
    for how in HOWS:
        for call in every(stride, range(1, calls + 1)):
            rig = Rig(cold_local_bytes=0)
            rig.tier.fail_on(operation, call, how=how)
            label = f"{operation} {call} {how}"
            got: list[int] = []
            with rig.open() as store:
                subscriber = store.register("one", start="earliest")
                rig.fill(store, 3)
                for _ in range(30):
                    store.maintain()
                    rig.clock.advance(120)
                    check_list(rig.fs, label)
                    try:
                        handle = subscriber.next_bundle(timeout=0)
                        if handle is not None:
                            got.append(handle.bundle[30]["n"][0].as_py())
                            handle.ack()
                    except ObjectsUnavailableError:
                        continue  # it was requested again
                for _ in range(3):
                    store.maintain()
                    rig.clock.advance(120)
                assert sorted(got) == list(range(9)), label
                assert (rig.local(), rig.names(), listed(rig.fs)) == ([], [], {}), label
