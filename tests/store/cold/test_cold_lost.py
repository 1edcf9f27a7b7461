"""A missing cold list: the store had one, so it must not be opened as if it never had objects."""

from __future__ import annotations

import pytest
from store_cold_rig import COLD, LIST, ROOT, Rig, drain, listed, number_of

from quiver.errors import CorruptionError, ObjectsUnavailableError
from quiver.store.reading.check import check_store
from quiver.store.reading.read import read
from quiver.testing.crashfs import CrashFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

MARK = f"{ROOT}/quiver.tier"


def with_lost_list() -> Rig:
    """Segments 0 and 1 are only in the tier, 2 is on the disk, and the cold list was removed."""
    rig = Rig(cold_local_bytes=0)
    with rig.open() as store:
        store.register("one", start="earliest")
        rig.fill(store, 2)
        for _ in range(2):
            store.maintain()
        rig.fill(store, 1)
    rig.fs.remove(LIST)
    rig.fs.sync_dir(f"{ROOT}/segments")
    return rig


def test_a_missing_list_prevents_opening_without_a_tier_and_is_reported_by_readers() -> None:
    """The mark in the root shows that there was a list."""
    rig = with_lost_list()
    with pytest.raises(CorruptionError, match="the list is missing; it lists the segments"):
        rig.open(cold_objects=None, cold_local_bytes=None)
    reader = read(ROOT, fs=rig.fs)
    assert [number_of(bundle) for _, bundle in reader.bundles()] == [6, 7, 8]
    assert [(problem.path, problem.reason[:19]) for problem in reader.problems] == [(LIST, "the list is missing")]
    assert [found.path for found in check_store(rig.fs, ROOT).findings if found.damaged] == [LIST]
    rig.fs.remove(MARK)
    with rig.open(cold_objects=None, cold_local_bytes=None) as store:
        assert drain(store, "one") == [6, 7, 8]


def test_a_missing_list_is_rebuilt_from_the_objects() -> None:
    """All segments are listed again, and no object counts as finished."""
    rig = with_lost_list()
    rig.tier.fail_on("list")
    with pytest.raises(ObjectsUnavailableError):
        rig.open()
    with rig.open() as store:
        assert listed(rig.fs) == {0: "verified", 1: "verified"}
        assert drain(store, "one") == list(range(9))
    assert rig.observer.total("quiver.recovery.damaged_files_total") == 1


def test_an_open_store_survives_the_loss_of_its_list() -> None:
    """It has the list in memory, and writes it again with the next segment."""
    rig = Rig(cold_local_bytes=0)
    with rig.open() as store:
        store.register("one", start="earliest")
        rig.fill(store, 2)
        for _ in range(2):
            store.maintain()
        rig.fs.remove(LIST)
        assert drain(store, "one", most=4) == [0, 1, 2, 3]
        rig.fill(store, 1)
        store.maintain()
        assert {1, 2} <= listed(rig.fs).keys()
        assert drain(store, "one") == [4, 5, 6, 7, 8]
        assert not rig.fs.exists(f"{ROOT}/quarantine")


def test_the_mark_exists_as_long_as_the_list() -> None:
    """At every step, after any crash: the mark is never without the list, and no object is without the mark."""
    rig = Rig(cold_local_bytes=0)
    disks: list[CrashFileSystem] = []
    assert isinstance(rig.fs, CrashFileSystem)
    rig.fs.on_step = lambda *_: disks.append(rig.fs.clone_after_crash(len(disks)))
    with rig.open() as store:
        store.register("one", start="earliest")
        rig.fill(store, 2)
        for _ in range(2):
            store.maintain()
        drain(store, "one")
        for _ in range(3):
            store.maintain()
    rig.fs.on_step = lambda *_: None
    assert not rig.fs.exists(MARK)
    marks = [disk.exists(MARK) for disk in disks]
    assert any(marks)
    for disk, marked in zip(disks, marks, strict=True):
        if marked:
            assert disk.exists(LIST)
        elif disk.exists(f"{COLD}/stores"):
            assert not Rig(disk).objects()


def test_a_list_without_a_mark_gets_one_when_opened() -> None:
    """A disk that refuses does not prevent opening. Without a list, no mark is made."""
    rig = Rig(cold_local_bytes=0)
    with rig.open() as store:
        store.register("one", start="earliest")
        assert not rig.fs.exists(MARK)
        rig.fill(store, 2)
        for _ in range(2):
            store.maintain()
    with rig.open():
        pass
    rig.fs.remove(MARK)
    rig.fs.sync_dir(ROOT)

    rename = rig.fs.rename
    rig.fs.rename = lambda old, new: rename(old, new if new != MARK else f"{ROOT}/no/such/place")
    with rig.open():
        assert not rig.fs.exists(MARK)
    del rig.fs.rename
    with rig.open():
        assert rig.fs.exists(MARK)
    assert rig.fs.clone_after_crash(0).exists(MARK)
