"""A query over a fleet: one test for each row of the failure table that concerns the reader, and crashes."""

from __future__ import annotations

import pytest
from fleet_query import Checkpoint, FleetQuery, damage
from fleet_rig import BUCKET, LAKE, Fleet, NodeRig, dying_at

from lanes import every, with_stride
from quiver.errors import DataLossError, FencedError, ObjectsUnavailableError, UsageError
from quiver.objects.directory import DirectoryObjects
from quiver.objects.memory import MemoryObjects
from quiver.store.format.fleet.gone import GoneSegments, encode_gone
from quiver.store.format.fleet.names import acks_key, gone_key, key_of, offsets_key, owner_key, segment_key
from quiver.store.reading.fleet.batches import Batches
from quiver.store.reading.fleet.inbox import list_inbox, list_node
from quiver.store.reading.fleet.owner import read_owner
from quiver.store.reading.fleet.planning import OBJECT_COST_BYTES_MIN
from quiver.store.reading.fleet.positions import read_positions
from quiver.store.reading.fleet.rejected import list_rejected
from quiver.store.reading.fleet.retirement import retire_node
from quiver.testing.crashfs import CrashFileSystem

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def fleet():
    return Fleet()


def delivered(fleet, checkpoint):
    return {node.identity: checkpoint.rows(node.identity) for node in fleet.nodes}


def test_everything_is_read_once_and_freed(fleet):
    """All nodes in one query, over several batches and restarts; then the nodes delete everything."""
    fleet.fill(3)
    query = FleetQuery(fleet.tier, batch_bytes_max=8_000)
    query.run()
    assert len(query.checkpoint.offsets) > 2
    fleet.fill(2)
    FleetQuery(fleet.tier, query.checkpoint).run()
    assert delivered(fleet, query.checkpoint) == fleet.expected
    assert fleet.free() == 0
    assert list_inbox(fleet.tier) == {}


def test_nothing_is_acknowledged_before_its_batch_is_committed(fleet):
    """The nodes keep a batch that is only planned, and one that is only written."""
    fleet.fill(1)
    query = FleetQuery(fleet.tier)
    start = query.subscriber.initial()
    end = query.subscriber.latest(start, unlimited=False)
    query.subscriber.plan(start, end)
    assert read_positions(fleet.tier, LAKE).nodes == {}
    assert fleet.free() == 3
    query.subscriber.commit(end)
    assert fleet.free() == 0


@pytest.mark.parametrize("frozen", [True, False])
def test_a_bucket_is_listed_rarely(fleet, frozen):
    """However often Spark asks; and not at all after the run's end was fixed."""
    fleet.fill(2)
    query = FleetQuery(fleet.tier, batch_bytes_max=1)
    start = query.subscriber.initial()
    if frozen:
        query.subscriber.available_now()
    start = query.subscriber.latest(start, unlimited=False)
    lists = fleet.tier.calls["list"]
    for _ in range(4):
        start = query.subscriber.latest(start, unlimited=False)
    inbox_lists = fleet.tier.calls["list"] - lists
    assert inbox_lists == 4, "only those of the rejected segments of each batch"
    fleet.fill(1)
    for _ in range(3):
        query.clock.advance(11)
        start = query.subscriber.latest(start, unlimited=True)
    query.subscriber.plan(query.subscriber.latest(start, unlimited=True), start)
    assert (list_node(fleet.tier, fleet.nodes[0].identity) == []) is False
    rest = [len(list_node(fleet.tier, node, position=position.position))
            for node, position in read_positions(fleet.tier, LAKE).nodes.items()]  # fmt: skip
    assert (sum(rest) > 0) is frozen


# ── the failure table ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["lost", "damaged", "old"])
def test_acknowledgements_are_lost_damaged_or_old(fleet, kind):
    """The positions only move forward, and the next start of the query writes all of them again."""
    fleet.fill(2)
    query = FleetQuery(fleet.tier, batch_bytes_max=8_000)
    query.run(1)
    old = {key: fleet.tier.get(key, size_max=1 << 20) for key in _acks(fleet)}
    query.run()
    expected = read_positions(fleet.tier, LAKE).nodes
    for key in _acks(fleet):
        if kind == "lost":
            fleet.tier.delete([key])
        else:
            fleet.tier.put(key, b"junk" if kind == "damaged" else old.get(key, b"junk"))
    FleetQuery(fleet.tier, query.checkpoint).run()
    assert read_positions(fleet.tier, LAKE).nodes == expected
    assert delivered(fleet, query.checkpoint) == fleet.expected
    assert fleet.free() == 0


def _acks(fleet):
    return [info.key for info in fleet.tier.list_below(f"acks/{LAKE}")]


@with_stride(3)
def test_driver_dies_at_any_request(stride):
    """Each row is in the sink once, and everything is freed, wherever the query dies, and however often."""
    for request in every(stride, range(1, 1000)):
        fleet = Fleet()
        fleet.fill(2)
        checkpoint = Checkpoint()
        with dying_at(fleet.tier, request) as life:
            FleetQuery(fleet.tier, checkpoint, batch_bytes_max=12_000).run()
        FleetQuery(fleet.tier, checkpoint, batch_bytes_max=12_000).run()
        assert delivered(fleet, checkpoint) == fleet.expected, request
        assert fleet.free() == 0, request
        if not life.has_died:
            break
    assert request > 8


def test_a_second_driver_replaces_the_first(fleet):
    """The first one is refused before its next batch or acknowledgement. Nothing is lost, and nothing is read twice."""
    fleet.fill(2)
    checkpoint = Checkpoint()
    first = FleetQuery(fleet.tier, checkpoint, batch_bytes_max=8_000)
    first.run(1)
    second = FleetQuery(fleet.tier, checkpoint, batch_bytes_max=8_000)
    second.run(1)
    with pytest.raises(
        FencedError, match="owner/lake: epoch 1 was fenced by test, which has epoch 2; each query needs"
    ):
        first.run()
    with pytest.raises(FencedError):
        first.subscriber.commit(checkpoint.offsets[-1])
    with pytest.raises(FencedError):
        first.subscriber.plan(checkpoint.offsets[-1], checkpoint.offsets[-1])
    second.run()
    assert delivered(fleet, checkpoint) == fleet.expected


def test_the_record_of_the_owner_is_lost(fleet):
    """The next owner starts above all epochs that nodes have seen; the one that runs is refused."""
    fleet.fill(1)
    query = FleetQuery(fleet.tier)
    query.run()
    FleetQuery(fleet.tier, query.checkpoint).run()
    third = FleetQuery(fleet.tier, query.checkpoint)
    third.run()
    fleet.tier.delete([owner_key(LAKE)])
    fleet.fill(1)
    with pytest.raises(FencedError, match="it was removed from the bucket"):
        third.run()
    FleetQuery(fleet.tier, query.checkpoint).run()
    assert read_owner(fleet.tier, LAKE)[1].epoch == 4
    assert delivered(fleet, query.checkpoint) == fleet.expected
    assert fleet.free() == 0


def test_node_offline_for_weeks_with_a_backlog(fleet):
    """It delays no other node: each batch has segments of all of them."""
    fleet.fill(12, fleet.nodes[0])
    fleet.fill(2, *fleet.nodes[1:])
    query = FleetQuery(fleet.tier, batch_bytes_max=4 * OBJECT_COST_BYTES_MIN)
    query.run(1)
    assert {node for node, _ in query.checkpoint.sink[0]} == {node.identity for node in fleet.nodes}
    query.run()
    assert delivered(fleet, query.checkpoint) == fleet.expected


@pytest.mark.parametrize("strict", [True, False])
def test_policy_dropped_data(fleet, strict):
    """The loss is counted with its bundles, or stops its own node until it is accepted."""
    lossy = fleet.nodes[0]
    fleet.fill(1)
    with lossy.open(max_age_s=3000.0, cold_max_age_s=3000.0) as store:
        lossy.fill(store, 2)
        lossy.turn(store)
        lossy.clock.advance(5000)
        lossy.turn(store)
    fleet.fill(1)
    lost = fleet.expected
    lost[lossy.identity] = lost[lossy.identity][-2:]
    query = FleetQuery(fleet.tier, fail_on_data_loss=strict)
    query.run()
    if strict:
        assert list(query.stops) == [lossy.identity]
        assert "age" in query.stops[lossy.identity]
        stopped = delivered(fleet, query.checkpoint)
        assert stopped[lossy.identity] == []
        assert stopped[fleet.nodes[1].identity] == lost[fleet.nodes[1].identity]
        query = FleetQuery(fleet.tier, query.checkpoint, tolerated=frozenset({lossy.identity}))
        query.run()
    assert delivered(fleet, query.checkpoint) == lost
    assert query.observer.total("quiver.fleet.lost_bundles_total") == 6
    assert fleet.free() == 0


@pytest.mark.parametrize("how", ["damaged", "missing"])
@pytest.mark.parametrize("strict", [True, False])
def test_object_damaged_or_missing_in_a_batch(fleet, strict, how):
    """It is recorded with node and number, delays no other node, and its node keeps the segment if it stops."""
    broken = fleet.nodes[1]
    fleet.fill(3)
    middle = list_node(fleet.tier, broken.identity)[1]
    query = FleetQuery(fleet.tier, fail_on_data_loss=strict)
    query.start = query.subscriber.initial()
    end = query.subscriber.latest(query.start, unlimited=False)
    if how == "damaged":
        damage(fleet.tier, broken.identity, middle)
    else:
        fleet.tier.delete([key_of(broken.identity, middle)])
    query.checkpoint.offsets.append(end)
    query.run()
    fleet.fill(1)
    query.run()
    ((_, rejected),) = list_rejected(fleet.tier, LAKE)
    assert (rejected.identity, rejected.segment, rejected.cause) == (broken.identity, 1, how)
    kept = [info.key for info in fleet.tier.list_below(f"inbox/{broken.identity[:2]}/{broken.identity}/quarantine")]
    assert len(kept) == (how == "damaged")
    rows = delivered(fleet, query.checkpoint)
    assert rows[fleet.nodes[0].identity] == fleet.expected[fleet.nodes[0].identity]
    position = read_positions(fleet.tier, LAKE).nodes[broken.identity].position
    if strict:
        assert (position, rows[broken.identity]) == (1, [100, 101, 104, 105])
        assert "rejected" in query.stops[broken.identity]
        again = FleetQuery(fleet.tier, query.checkpoint)
        again.run()
        assert "rejected" in again.stops[broken.identity], "also after a restart"
        query = FleetQuery(fleet.tier, query.checkpoint, fail_on_data_loss=False)
        query.run()
        rows = delivered(fleet, query.checkpoint)
    assert rows[broken.identity] == [100, 101, 104, 105, 106, 107]
    assert fleet.free() == 0


@pytest.mark.parametrize("strict", [True, False])
def test_hole_in_a_chain(fleet, strict):
    """A missing segment without a record is a loss of unknown size, of its own node only."""
    fleet.fill(3)
    node = fleet.nodes[2].identity
    middle = list_node(fleet.tier, node)[1]
    fleet.tier.delete([key_of(node, middle)])
    query = FleetQuery(fleet.tier, fail_on_data_loss=strict)
    query.run()
    rows = delivered(fleet, query.checkpoint)
    assert rows[node] == ([200, 201] if strict else [200, 201, 204, 205])
    assert rows[fleet.nodes[0].identity] == fleet.expected[fleet.nodes[0].identity]
    assert query.observer.total("quiver.fleet.lost_segments_total") == (0 if strict else 1)
    assert ("missing" in query.stops.get(node, "")) is strict


def test_an_object_that_one_listing_missed_is_no_hole(fleet):
    """A listing is not a snapshot, so the folder is listed again."""
    fleet.fill(3)
    node = fleet.nodes[0].identity
    query = FleetQuery(fleet.tier)
    query.subscriber.initial()
    found = list_node(fleet.tier, node)
    chain = query.subscriber._chains.read(node, [found[0], found[2]], 0)
    assert (chain.objects, chain.stop) == (tuple(found), None)
    assert query.subscriber._chains.start(node, found[1:]) == 0


def test_node_is_installed_again(fleet):
    """The new identity has a chain of its own; the old one is read to its end."""
    fleet.fill(2, fleet.nodes[0])
    again = NodeRig(CrashFileSystem(), bucket=DirectoryObjects(fleet.nodes[0].fs, BUCKET))
    again.taken = 1000
    with again.open() as store:
        again.fill(store, 1)
        again.turn(store)
    checkpoint = FleetQuery(fleet.tier).run()
    assert checkpoint.rows(fleet.nodes[0].identity) == [0, 1, 2, 3]
    assert checkpoint.rows(again.identity) == [1000, 1001]


@pytest.mark.parametrize("strict", [True, False])
def test_cloned_disk(fleet, strict):
    """Two different segments with one number: the identity is stopped there, and all others are read."""
    fleet.fill(2)
    node = fleet.nodes[0].identity
    fleet.tier.put(segment_key(node, 1, 77), b"other")
    query = FleetQuery(fleet.tier, fail_on_data_loss=strict)
    query.run()
    assert query.checkpoint.rows(node) == [0, 1]
    assert "two stores with this identity" in query.stops[node]
    assert query.checkpoint.rows(fleet.nodes[1].identity) == [100, 101, 102, 103]


def test_clocks_of_nodes_have_no_effect(fleet):
    """A clock that is years off changes nothing."""
    fleet.nodes[1].clock.advance(-20 * 365 * 86_400)
    fleet.fill(1)
    checkpoint = FleetQuery(fleet.tier).run()
    assert delivered(fleet, checkpoint) == fleet.expected


def test_object_store_is_away(fleet):
    """The query ends with that error, and continues when it is restarted."""
    fleet.fill(2)
    query = FleetQuery(fleet.tier)
    query.subscriber.initial()
    fleet.tier.fail_on("list")
    with pytest.raises(ObjectsUnavailableError):
        query.run()
    query.run()
    assert delivered(fleet, query.checkpoint) == fleet.expected


def test_hostile_node(fleet):
    """Junk, wrong sizes, wrong records and strange names stop or skip that node; all others are read."""
    fleet.fill(2)
    hostile = "ffffffff-0000-4000-8000-000000000001"
    fleet.tier.put(segment_key(hostile, 0, 1), b"x" * 100)
    fleet.tier.put(segment_key(hostile, 1, 2), b"")
    fleet.tier.put(gone_key(hostile, 2, 2**63), b"{" * 100)
    fleet.tier.put(f"inbox/ff/{hostile}/segments/other", b"x")
    fleet.tier.put(f"inbox/00/{hostile}/segments/{0:016d}-00000000.qseg", b"x")
    query = FleetQuery(fleet.tier, fail_on_data_loss=False)
    query.run()
    assert delivered(fleet, query.checkpoint) == fleet.expected
    assert [one.segment for _, one in list_rejected(fleet.tier, LAKE)] == [0, 1]
    assert fleet.free() == 0


# ── checkpoints and positions ────────────────────────────────────────────────────────────────────────


def test_several_subscribers_have_their_own_positions():
    """A node deletes what all of them have acknowledged."""
    fleet = Fleet(fleet_subscribers=(LAKE, "alerts"))
    fleet.fill(2)
    lake = FleetQuery(fleet.tier).run()
    assert fleet.free() == 6
    alerts = FleetQuery(fleet.tier, subscriber="alerts").run()
    assert delivered(fleet, lake) == delivered(fleet, alerts) == fleet.expected
    assert fleet.free() == 0


def test_a_new_checkpoint_continues_at_the_positions(fleet):
    """`startingOffsets` is for new subscribers."""
    fleet.fill(1)
    first = FleetQuery(fleet.tier).run()
    fleet.fill(1)
    second = FleetQuery(fleet.tier, starting="latest").run()
    both = {node: rows + second.rows(node) for node, rows in delivered(fleet, first).items()}
    assert both == fleet.expected


def test_a_new_subscriber_can_start_at_the_end(fleet):
    """Everything in the bucket counts as read; a node that is added later is read from its beginning."""
    fleet.fill(1, *fleet.nodes[:2])
    query = FleetQuery(fleet.tier, starting="latest")
    query.run()
    fleet.fill(1)
    query.run()
    assert list(delivered(fleet, query.checkpoint).values()) == [[2, 3], [102, 103], [200, 201]]
    assert fleet.free() == 0


def test_an_old_checkpoint_is_refused(fleet):
    """Its data may be deleted. It can continue at the positions if that is accepted."""
    fleet.fill(1)
    query = FleetQuery(fleet.tier)
    query.run()
    old = Checkpoint(list(query.checkpoint.offsets), query.checkpoint.committed)
    fleet.fill(1)
    query.run()
    with pytest.raises(DataLossError, match="older than the positions"):
        FleetQuery(fleet.tier, old).run()
    fleet.fill(1)
    later = FleetQuery(fleet.tier, old, fail_on_data_loss=False).run()
    assert later.rows(fleet.nodes[0].identity) == [4, 5]


def test_a_checkpoint_of_another_fleet_is_refused(fleet):
    """By the checksum of the batch, and by the subscriber."""
    fleet.fill(1)
    query = FleetQuery(fleet.tier)
    query.run()
    other = FleetQuery(MemoryObjects())
    end = {**query.checkpoint.offsets[-1], "g": 0}
    with pytest.raises(DataLossError, match="another batch with this number"):
        other.subscriber.latest(end, unlimited=False)
    with pytest.raises(DataLossError, match="does not exist"):
        other.subscriber.latest(query.checkpoint.offsets[-1], unlimited=False)
    with pytest.raises(UsageError, match="subscriber lake"):
        FleetQuery(MemoryObjects(), subscriber="alerts").subscriber.latest(end, unlimited=False)
    with pytest.raises(UsageError, match="not an offset"):
        other.subscriber.latest({"v": 1, "store": "x", "seq": 0, "idx": 0}, unlimited=False)


def test_old_batches_are_removed(fleet):
    """All but those that a checkpoint may refer to."""
    tier = MemoryObjects()
    node = "3e0b6f0a-5d3c-4f63-9a43-0c9d6c0c5a11"
    for number in range(160):
        tier.put(gone_key(node, number, number), encode_gone(GoneSegments(number, number, "unused", 0)))
    FleetQuery(tier, batch_bytes_max=1).run()
    kept = sorted(info.key for info in tier.list_below(f"offsets/{LAKE}"))
    assert kept[-1] == offsets_key(LAKE, 160)
    assert 128 <= len(kept) <= 146
    assert acks_key(LAKE, "3e") in {info.key for info in tier.list_below("acks")}


def test_a_retired_node_leaves_the_batches_and_can_come_back(fleet):
    """Its position stays in the bucket: it continues there, also if the driver dies before that is committed."""
    fleet.fill(2)
    checkpoint = FleetQuery(fleet.tier).run()
    assert fleet.free() == 0
    retired = fleet.nodes[1]
    position = read_positions(fleet.tier, LAKE).nodes[retired.identity]
    retire_node(fleet.tier, retired.identity, now_ns=retired.clock.now_ns(), silent_s=3600.0, dry_run=False)
    fleet.fill(1, fleet.nodes[0])
    FleetQuery(fleet.tier, checkpoint).run()
    assert in_last_batch(fleet) == {fleet.nodes[0].identity, fleet.nodes[2].identity}
    assert read_positions(fleet.tier, LAKE).nodes[retired.identity] == position

    fleet.fill(2, retired)
    planned = FleetQuery(fleet.tier, checkpoint).subscriber.latest(checkpoint.offsets[-1], unlimited=False)
    checkpoint.offsets.append(planned)
    FleetQuery(fleet.tier, checkpoint).run()
    assert delivered(fleet, checkpoint) == fleet.expected
    assert in_last_batch(fleet) == {node.identity for node in fleet.nodes}
    assert fleet.free() == 0


def test_a_node_without_objects_stays_in_the_batches(fleet):
    """However long it is silent: only one that was retired has no record."""
    fleet.fill(1)
    checkpoint = FleetQuery(fleet.tier).run()
    assert fleet.free() == 0
    for _ in range(3):
        fleet.fill(1, fleet.nodes[0])
        FleetQuery(fleet.tier, checkpoint).run()
        assert in_last_batch(fleet) == {node.identity for node in fleet.nodes}


def in_last_batch(fleet):
    """The nodes that have a position in the last batch."""
    batches = Batches(fleet.tier, LAKE)
    return set(batches.find(batches.last).positions)
