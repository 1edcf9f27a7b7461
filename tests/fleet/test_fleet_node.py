"""A node of a fleet: its segments reach a reader in order, and leave its disk when the reader acknowledges them."""

from __future__ import annotations

import pytest
from fleet_rig import LAKE, FleetReader, NodeRig

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
