"""Replaced objects of a store: only the bundles of those segments are unavailable, and only while they are replaced."""

from __future__ import annotations

import pytest
from store_cold_rig import ROOT, WHERE, Rig, bundle_of, drain, number_of

from hostile_objects import CHANGES, TEBIBYTE, HostileObjects, Made, little_memory
from quiver.errors import CorruptionError
from quiver.store.cold.restore import restore_from_tier, stores_in_tier
from quiver.store.reading.check import check_store
from quiver.store.reading.read import read

pytestmark = pytest.mark.usefixtures("quiet")

VICTIM = 1


def huge_with_our_end(own, _other):
    """A tebibyte with the segment's checksum at its end, so that it matches the name."""
    return Made(TEBIBYTE, begin=own[:100], end=own[-4:])


def other_middle(own, _other):
    """The size, the beginning and the end of the segment."""
    return own[:500] + bytes(len(own) - 1000) + own[-500:]


EVERY = CHANGES | {"a tebibyte with our checksum": huge_with_our_end, "another middle": other_middle}


@pytest.fixture(params=EVERY, ids=str)
def hostile(request):
    """A store whose three segments are only in the tier, where the second one was replaced."""
    rig = Rig(cold_local_bytes=0, cold_keep_finished_s=1e9)
    with rig.open() as store:
        store.register("one", start="earliest")
        rig.fill(store, 3)
        for _ in range(2):
            store.maintain()
    keys = rig.names()
    tier = HostileObjects(rig.tier)
    tier.replace(keys[VICTIM], keys[VICTIM + 1], EVERY[request.param])
    rig.tier = tier
    return rig, tier, keys[VICTIM], request.param


def test_every_other_bundle_is_delivered(hostile):
    """The three of the damaged segment are reported with the object's key; ingest and delivery continue."""
    rig, _, key, _ = hostile
    got, damaged = [], []
    with little_memory(), rig.open() as store:
        subscriber = store.register("one", start="earliest")
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            try:
                got.append(number_of(handle.bundle))
            except CorruptionError as error:
                damaged.append(error.path)
            handle.ack()
        store.ingest(bundle_of(rig.taken), durable=True)
        store.seal()
        store.maintain()
        assert drain(store, "one") == [9]
    assert got == [0, 1, 2, 6, 7, 8]
    assert set(damaged) <= {key}


def test_readers_continue(hostile):
    """The unreadable segment is reported with its key; the others are read, and all after it is restored."""
    rig, tier, key, _ = hostile
    with little_memory():
        reader = read(ROOT, fs=rig.fs, objects=tier)
        assert [number_of(bundle) for _, bundle in reader.bundles()] == [0, 1, 2, 6, 7, 8]
    assert [problem.path for problem in reader.problems] == [key]
    tier.heal()
    reader = read(ROOT, fs=rig.fs, objects=tier)
    assert [number_of(bundle) for _, bundle in reader.bundles()] == list(range(9))


def test_verify_reports_a_replaced_object(hostile):
    """As damage, with its key; nothing is changed."""
    rig, tier, key, _ = hostile
    before = rig.names()
    with little_memory():
        report = check_store(rig.fs, ROOT, objects=tier)
    assert [(one.kind, one.path) for one in report.findings if one.kind != "left over"] == [("damaged", key)]
    assert rig.names() == before


@pytest.mark.parametrize("name", [name for name in EVERY if "tebibyte" not in name])
def test_restore_skips_a_replaced_object(name):
    """All other segments are restored. A huge object is read only as far as its end matches."""
    rig = Rig(cold_local_bytes=0, cold_keep_finished_s=1e9)
    with rig.open() as store:
        rig.fill(store, 3)
        for _ in range(2):
            store.maintain()
    keys = rig.names()
    tier = HostileObjects(rig.tier)
    tier.replace(keys[VICTIM], keys[VICTIM + 1], EVERY[name])
    (identity,) = stores_in_tier(tier)
    with little_memory():
        (one,) = restore_from_tier(rig.fs, "/new", tier, WHERE, [identity], clock=rig.clock)
    assert one.damaged == [keys[VICTIM]]
    assert [entry.seq for entry in one.segments] == [0, 2]


def test_a_huge_object_with_another_end_is_hardly_read():
    """Less than one piece of a tebibyte."""
    rig = Rig(cold_local_bytes=0, cold_keep_finished_s=1e9)
    with rig.open() as store:
        rig.fill(store, 2)
        for _ in range(2):
            store.maintain()
    keys = rig.names()
    tier = HostileObjects(rig.tier)
    tier.made[keys[0]] = Made(TEBIBYTE, begin=b"junk")
    (identity,) = stores_in_tier(tier)
    (one,) = restore_from_tier(rig.fs, "/new", tier, WHERE, [identity], clock=rig.clock)
    assert one.damaged == [keys[0]]
