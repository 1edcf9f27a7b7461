"""
Several cores with an object tier: each has its own objects under one cap, and an eviction by another core loses
nothing.
"""

from __future__ import annotations

import pytest
from core_rig import ROOT, Rig, fill, numbered

from quiver import CapacityError
from quiver.objects.directory import DirectoryObjects
from quiver.objects.location import ObjectLocation
from quiver.store.cores.removal import remove_drained
from quiver.store.cores.store import MultiCoreStore
from quiver.store.reading.read import read
from quiver.testing.crashfs import CrashFileSystem
from store_rig import drain, number_of

pytestmark = pytest.mark.usefixtures("quiet")

COLD = "/cold"
LIST = "segments/quiver.cold"


def cold_rig(fs: CrashFileSystem | None = None, **changes: object) -> Rig:
    return Rig(fs, **{"cold_objects": ObjectLocation.from_url(COLD), **changes})


def objects(rig: Rig) -> list[str]:
    tier = DirectoryObjects(rig.fs, COLD, clock=rig.clock)
    return [info.key for info in tier.list_below("stores")]


def test_each_core_has_its_own_objects() -> None:
    """No segment is on the disk, and readers and subscribers get all of them, also after a restart."""
    rig = cold_rig(cold_local_age_s=0.0)
    with rig.open(cores=2) as store:
        store.register("one", start="earliest")
        numbers = fill(store, 0, 20) + fill(store, 1, 20, first=100)
        for _ in range(3):
            rig.tick(store)
        assert rig.segments(0) == rig.segments(1) == []
        assert len({key.split("/")[1] for key in objects(rig)}) == 2
        figures = store.stats()["cold"]
        assert figures["only_there"] == len(objects(rig)) == figures["segments"]
        reader = read(ROOT, fs=rig.fs)
        assert sorted(number_of(bundle) for _, bundle in reader.bundles()) == numbers
    with rig.open(cores=2) as store:
        assert sorted(drain(store, "one")) == numbers
        for _ in range(3):
            rig.clock.advance(61.0)
            rig.tick(store)
        assert objects(rig) == []
        assert not rig.fs.exists(f"{ROOT}/core_0/{LIST}")


def crowded(rig: Rig) -> tuple[MultiCoreStore, list[int]]:
    """Core 0 uses nearly all of the cap, and a subscriber has not resolved any of it."""
    store = rig.open(cores=2)
    store.register("one", start="earliest")
    numbers: list[int] = []
    while store.stats()["cores"][0]["segment_bytes"] < 150_000:
        numbers += fill(store, 0, 20, first=len(numbers))
        store.core(0)
        rig.clock.advance(0.1)
    return store, numbers


def test_files_of_segments_in_the_tier_are_removed_to_free_space() -> None:
    """A full core removes files of the other core, which then reads them from the tier; nothing is dropped."""
    rig = cold_rig()
    store, numbers = crowded(rig)
    with store:
        for _ in range(3):
            rig.tick(store)
        before = rig.segments(0)
        for number in range(10_000, 10_040):
            store.ingest(numbered(number), core=1)
            numbers.append(number)
        left = rig.segments(0)
        assert len(left) < len(before)
        assert max(left) == max(before)  # its name reserves the numbers
        rig.tick(store)
        figures = store.stats()["cores"][0]
        assert figures["segments"] == len(before)
        assert rig.observer.total("quiver.subscriber.dropped_bundles_total") == 0
        store.seal()
        assert sorted(drain(store, "one")) == numbers
        assert rig.observer.total("quiver.segment.damaged_bundles_total") == 0


def test_files_without_a_verified_object_are_not_removed() -> None:
    """The full core waits, as without a tier."""
    rig = cold_rig()
    store, _ = crowded(rig)
    before = rig.segments(0)
    with store:
        with pytest.raises(CapacityError):
            for number in range(10_000, 10_500):
                store.ingest(numbered(number), core=1)
        assert rig.segments(0) == before


def test_the_next_start_of_a_core_finds_its_removed_files_in_the_tier() -> None:
    """Its cold list has their locations."""
    rig = cold_rig()
    store, numbers = crowded(rig)
    for _ in range(3):
        rig.tick(store)
    before = rig.segments(0)
    rig.fs = rig.fs.clone_after_kill()
    with rig.open(cores=2, core=1) as other:
        for number in range(10_000, 10_040):
            other.ingest(numbered(number))
            numbers.append(number)
        assert len(rig.segments(0)) < len(before)
    store.close()
    with rig.open(cores=2) as store:
        store.seal()
        assert sorted(drain(store, "one")) == numbers
        assert rig.observer.total("quiver.subscriber.dropped_bundles_total") == 0


def test_with_a_damaged_cold_list_only_finished_segments_are_removed() -> None:
    """The list no longer shows which segments have objects."""
    rig = cold_rig()
    store, _ = crowded(rig)
    with store:
        for _ in range(3):
            rig.tick(store)
        path = f"{ROOT}/core_0/{LIST}"
        file = rig.fs.open_write(path)
        file.pwrite(b"?", 0)
        file.close()
        before = rig.segments(0)
        with pytest.raises(CapacityError):
            for number in range(10_000, 10_500):
                store.ingest(numbered(number), core=1)
        assert rig.segments(0) == before


def test_a_removed_core_is_drained_from_the_tier() -> None:
    """Its directory is deleted after its last object, and not before."""
    rig = cold_rig(cold_local_age_s=0.0)
    with rig.open(cores=2) as store:
        numbers = fill(store, 0, 10) + fill(store, 1, 10, first=100)
        for _ in range(3):
            rig.tick(store)
    assert rig.segments(1) == []
    assert not remove_drained(rig.fs, f"{ROOT}/core_1")  # only its list has their keys
    with rig.open(cores=1) as store:
        assert sorted(drain(store, "one")) == numbers
        for _ in range(5):
            rig.clock.advance(61.0)
            rig.tick(store)
        assert not rig.fs.exists(f"{ROOT}/core_1")
        assert objects(rig) == []
