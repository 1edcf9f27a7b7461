"""A node of a fleet: its segments reach a reader in order, and leave its disk when the reader acknowledges them."""

from __future__ import annotations

import threading

import pytest
from fleet_rig import LAKE, FleetReader, NodeRig

import store_rig
from quiver.objects.port import ObjectInfo, Parts
from quiver.store.cold import tier
from quiver.store.maintenance import REST_S_MAX

pytestmark = pytest.mark.usefixtures("quiet")


def test_acknowledged_segments_leave_the_node_and_the_bucket():
    """Everything is read once, and nothing is left."""
    rig = NodeRig()
    reader = FleetReader(rig.tier)
    with rig.open() as store:
        rig.fill(store, 3)
        rig.turn(store)
        assert [one.last for one in reader.listed()[rig.identity]] == [0, 1, 2]
        reader.read()
        assert reader.numbers[rig.identity] == list(range(6))
        assert store.lag(LAKE).pending_bundles == 6
        reader.acknowledge()
        rig.turn(store)
        assert store.lag(LAKE).pending_bundles == 0
        assert store.stats()["segments"] == 0
        assert reader.listed() == {}
        rig.fill(store, 1)
        rig.turn(store)
        reader.read()
    assert reader.numbers[rig.identity] == list(range(8))
    assert reader.gone == {}
    assert reader.problems == {}


def test_local_subscribers_do_not_wait_for_the_seal():
    """The age and the size of uploaded segments are set for uploads alone."""
    rig = NodeRig(fleet_seal_s=3600.0, segment_bytes_max=1 << 20)
    with rig.open() as store:
        local = store.register("local", start="earliest")
        for number in range(3):
            store.ingest(store_rig.numbered(number), durable=True)
            handle = local.next_bundle(timeout=0)
            assert handle is not None
            assert store_rig.number_of(handle.bundle) == number
            handle.ack()
            rig.clock.advance(600)
            store.maintain()
        assert FleetReader(rig.tier).listed() == {}
        rig.clock.advance(3600)
        store.maintain()
        (objects,) = FleetReader(rig.tier).listed().values()
        assert len(objects) == 1, "one segment with all bundles"


def test_a_node_rests_until_something_is_due():
    """A look at the acknowledgements, while segments wait for them, and its record. It does not rest before uploads."""
    rig = NodeRig(fleet_ack_poll_s=0.5)
    reader = FleetReader(rig.tier)
    with rig.open() as store:
        rest_s = store._maintenance_pass.rest_s
        rig.fill(store, 1)
        assert rest_s() is None
        rig.turn(store)
        store.maintain()
        assert 0.4 < rest_s() <= 0.5
        reader.read()
        reader.acknowledge()
        rig.clock.advance(0.5)
        store.maintain()
        assert rest_s() is None, "its segment is to be deleted"
        store.maintain()
        store.maintain()
        assert store.stats()["segments"] == 0
        assert rest_s() == REST_S_MAX
        rig.clock.advance(599.5)
        assert rest_s() < REST_S_MAX


def test_a_node_without_a_connection_rests_between_its_attempts():
    """For weeks, perhaps; its segments wait."""
    rig = NodeRig()
    with rig.open() as store:
        rig.turn(store)
        rig.go_away()
        rig.fill(store, 1)
        store.maintain()
        rests = []
        for _ in range(200):
            rests.append(store._maintenance_pass.rest_s() or 0.0)
            rig.clock.advance(max(0.1, rests[-1]))
            store.maintain()
        assert max(rests) == REST_S_MAX
        assert rests.count(0.0) < 20, "only when it tries"
        rig.tier.heal()
        rig.turn(store)
        assert len(FleetReader(rig.tier).listed()[rig.identity]) == 1


@pytest.mark.parametrize("cause", ["size", "close"])
def test_segments_are_uploaded_earlier(cause):
    """A full segment, and the rest when the node is closed."""
    rig = NodeRig(fleet_seal_s=3600.0)
    with rig.open() as store:
        for number in range(40 if cause == "size" else 1):
            store.ingest(store_rig.numbered(number), durable=True)
            store.maintain()
        assert bool(FleetReader(rig.tier).listed()) == (cause == "size")
    with rig.open() as store:
        rig.turn(store)
        reader = FleetReader(rig.tier)
        reader.read()
    assert reader.numbers[rig.identity] == list(range(40 if cause == "size" else 1))


def test_closing_ends_an_upload(monkeypatch):
    """It does not wait for the rest of a large segment; the next start uploads it."""
    monkeypatch.setattr(tier, "_PIECE_BYTES", 100)
    rig = NodeRig()
    put_parts = rig.tier.put_parts
    store = rig.open()
    rig.fill(store, 1)
    closer = threading.Thread(target=store.close)

    def slow(key: str, parts: Parts, **how: int) -> ObjectInfo:
        closer.start()
        for _ in range(100_000):
            for _ in parts():
                pass
        return put_parts(key, parts, **how)

    monkeypatch.setattr(rig.tier, "put_parts", slow)
    store.maintain()
    closer.join()
    assert FleetReader(rig.tier).listed() == {}
    monkeypatch.setattr(rig.tier, "put_parts", put_parts)
    with rig.open() as store:
        rig.turn(store)
    assert [one.last for one in FleetReader(rig.tier).listed()[rig.identity]] == [0]
