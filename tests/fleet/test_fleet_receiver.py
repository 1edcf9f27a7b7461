"""A fleet as the input of a pipeline: each bundle is stored once, wherever the process dies."""

from __future__ import annotations

from itertools import chain

import pytest
import yaml
from fleet_query import damage
from fleet_rig import BUCKET, LAKE, Fleet, dying_at

import quiver
import store_rig
from quiver.errors import PipelineError, UsageError
from quiver.observe import InMemoryObserver
from quiver.pipeline.config.store import FleetReceiverConfig
from quiver.pipeline.explain import describe
from quiver.pipeline.graph import load_pipeline
from quiver.receivers.fleet_receiver import FleetReceiver
from quiver.store.reading.fleet.inbox import list_inbox, list_node
from quiver.store.reading.fleet.rejected import list_rejected
from quiver.testing.clock import ManualClock

pytestmark = pytest.mark.usefixtures("quiet")


SECOND = 10_000
"""The first number of the second node."""


class Rig(Fleet):
    """Two nodes, and the store of a pipeline on a real disk."""

    def __init__(self, root):
        super().__init__(2, spacing=SECOND)
        self.root = str(root)
        self.store = quiver.open(root, background=False)
        self.clock = ManualClock()

    def receiver(self, **config):
        """One process of the receiver."""
        given = {"objects": BUCKET, "subscriber": LAKE, **config}
        settings = FleetReceiverConfig.model_validate(given).settings()
        return FleetReceiver(
            self.root, settings, on_death=lambda _: None, observer=InMemoryObserver(), clock=self.clock, tier=self.tier
        )

    def numbers(self):
        """The numbers that the store has."""
        self.store.seal()
        return sorted(store_rig.numbers_of(quiver.read(self.root).bundles()))


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path / "ours")
    yield made
    made.store.close()


def run(rig, receiver, batches=20):
    """Take this many times, with the maintenance of the store and the time in between."""
    for _ in range(batches):
        rig.clock.advance(60)
        rig.store.maintain()  # imports the batch of a receiver that died
        receiver.take()
    rig.store.maintain()


def test_the_bundles_of_all_nodes_are_stored_once(rig):
    """In several batches; then the nodes delete them."""
    rig.fill(3)
    run(rig, rig.receiver(max_batch_size="8KB"))
    assert rig.numbers() == [*chain.from_iterable(rig.expected.values())]
    assert rig.free() == 0
    assert list_inbox(rig.tier) == {}


def test_a_receiver_that_dies_at_any_request_stores_nothing_twice(rig):
    """Between the commit of a batch in the store and its acknowledgement, too."""
    request = 0
    while True:
        rig.fill(1)
        request += 1
        with dying_at(rig.tier, request) as life:
            run(rig, rig.receiver(), 2)
        if not life.has_died:
            break
        run(rig, rig.receiver(), 2)
    run(rig, rig.receiver(), 4)
    assert request > 8
    assert rig.numbers() == [*chain.from_iterable(rig.expected.values())]
    assert rig.free() == 0


def test_a_damaged_segment_stops_its_node_only(rig):
    """The record has node and number. Accepting the loss continues after it."""
    rig.fill(2)
    node = rig.nodes[1].identity
    damage(rig.tier, node, list_node(rig.tier, node)[0])
    run(rig, rig.receiver())
    assert rig.numbers() == [0, 1, 2, 3, SECOND + 2, SECOND + 3]
    ((_, rejected),) = list_rejected(rig.tier, LAKE)
    assert (rejected.identity, rejected.segment, rejected.cause) == (node, 0, "damaged")
    assert rig.free() == 2
    run(rig, rig.receiver(accept_data_loss_of=(node,)))
    assert rig.free() == 0
    assert rig.numbers() == [0, 1, 2, 3, SECOND + 2, SECOND + 3]


def test_a_bucket_that_was_emptied_is_not_mistaken_for_the_old_one(rig):
    """The numbers of its batches begin again, and nothing may be skipped because of that."""
    rig.fill(1)
    receiver = rig.receiver()
    run(rig, receiver)
    for _ in range(2):
        run(rig, rig.receiver(), 1)
    rig.fill(1)
    run(rig, rig.receiver())
    for info in list(rig.tier.list_below("")):
        if not info.key.startswith(("inbox", "nodes")):
            rig.tier.delete([info.key])
    rig.fill(1)
    with pytest.raises(UsageError, match="was the bucket emptied"):
        run(rig, rig.receiver())


def test_a_turn_waits_after_an_error(rig):
    """For the interval, and continues then. With data, the next turn is due immediately."""
    rig.fill(1)
    receiver = rig.receiver()
    rig.tier.fail_on("head", times=1000)
    assert [receiver._turn(), receiver._turn()] == [10.0, 10.0]
    assert "head" in receiver._reported
    rig.tier.heal()
    assert (receiver._turn(), receiver._reported) == (0.0, "")
    assert receiver._turn() is None
    receiver.stop(0)


def pipeline(**config):
    nodes = {
        "in": {"type": "urn:quiver:fleet:receiver", "config": {"objects": "s3://bucket/fleet", **config}},
        "store": {"type": "processor:persistence", "config": {"path": "ours"}},
        "out": {"type": "exporter:parquet", "config": {"path": "lake"}},
    }
    inside = {"nodes": nodes, "connections": [{"from": "in", "to": "store"}, {"from": "store", "to": "out"}]}
    return yaml.safe_dump({"version": "otel_dataflow/v1", "groups": {"a": {"pipelines": {"b": inside}}}})


def test_a_pipeline_describes_its_fleet():
    """Before it runs."""
    loaded, _ = load_pipeline(pipeline(subscriber="lake"), source="p.yaml", values={})
    text = str(describe(loaded))
    assert "fleet s3://bucket/fleet" in text
    assert "lake" in text


@pytest.mark.parametrize(("config", "problem"), [
    ({}, "subscriber is missing"),
    ({"subscriber": "a b"}, "subscriber"),
    ({"subscriber": "a", "objects": "ftp://x"}, "no backend for ftp"),
    ({"subscriber": "a", "accept_data_loss_of": ["edge-17"]}, "not the identity"),
    ({"subscriber": "a", "list_interval": 0}, "list_interval"),
])  # fmt: skip
def test_wrong_keys_are_refused(config, problem):
    with pytest.raises(PipelineError, match=problem):
        load_pipeline(pipeline(**config), source="p.yaml", values={})
