"""Everything that can go wrong around a node: no data are lost silently, none are read twice, other nodes continue."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from fleet_rig import BUCKET, LAKE, FleetReader, NodeRig

import store_rig
from quiver.errors import CapacityError, DirectoryInUseError, SettingsError
from quiver.objects.directory import DirectoryObjects
from quiver.store.format.fleet.acks import AckedNode, encode_acks
from quiver.store.format.fleet.chain import Fork, Hole
from quiver.store.format.fleet.names import acks_key, key_of, node_key
from quiver.store.format.fleet.node_record import encode_node_record
from quiver.testing.crashfs import CrashFileSystem

pytestmark = pytest.mark.usefixtures("quiet")


def write_acks(rig, position, segment=None, *, epoch=1, name=LAKE):
    """Write one position of the rig's node."""
    shard = rig.identity[:2]
    rig.tier.put(acks_key(name, shard), encode_acks(shard, epoch, [AckedNode(rig.identity, position, segment)]))


def counted(rig, name):
    return rig.observer.total(name)


# ── the node ─────────────────────────────────────────────────────────────────────────────────────────


def test_node_dies_after_an_upload():
    """The reader may have read the object already. The node finds it, and continues after it."""
    rig = NodeRig()
    store = rig.open()
    rig.fill(store, 2)
    rig.tier.fail_on("head", 2 + rig.tier.calls["head"], how="fail")  # the object is there, its proof is not
    rig.turn(store)
    reader = FleetReader(rig.tier)
    reader.read()
    reader.acknowledge()
    assert isinstance(rig.fs, CrashFileSystem)
    again = NodeRig(rig.fs.clone_after_kill())
    with again.open() as store:
        later = FleetReader(again.tier)
        later.resume()
        for _ in range(3):
            again.turn(store)
            later.read()
        later.acknowledge()
        again.turn(store)
        assert reader.numbers[rig.identity] + later.numbers[rig.identity] == [0, 1, 2, 3]
        assert store.stats()["segments"] == 0
        assert later.listed() == {}


def test_node_is_offline_for_weeks():
    """No timer has an effect: it continues where it was, and the reader reads everything."""
    rig = NodeRig()
    reader = FleetReader(rig.tier)
    with rig.open() as store:
        rig.fill(store, 2)
        rig.turn(store)
    reader.read()
    reader.acknowledge()
    rig.clock.advance(40 * 86_400)
    with rig.open() as store:
        rig.fill(store, 2)
        rig.turn(store)
        reader.read()
        assert reader.numbers[rig.identity] == list(range(8))


@pytest.mark.parametrize("is_uploaded", [False, True])
def test_policy_drops_what_was_not_read(is_uploaded):
    """The reader learns which segments it lost, why, and how many bundles it lost, and continues."""
    rig = NodeRig(max_age_s=5000.0, cold_max_age_s=5000.0)
    reader = FleetReader(rig.tier)
    with rig.open() as store:
        if not is_uploaded:
            rig.go_away()
        rig.fill(store, 2)
        store.maintain()
        rig.clock.advance(6000)
        store.maintain()
        assert store.stats()["segments"] == 0
        rig.tier.heal()
        rig.fill(store, 1)
        rig.turn(store)
        reader.read()
        (gone,) = reader.gone[rig.identity]
        assert (gone.first, gone.last, gone.reason, gone.bundles_from(0)) == (0, 1, "age", 4)
        assert reader.numbers[rig.identity] == [4, 5]
        assert reader.problems == {}
        assert counted(rig, "quiver.fleet.gone_segments_total") == 2
        reader.acknowledge()
        rig.turn(store)
        assert store.stats()["segments"] == 0
        assert not rig.fs.exists(f"{rig.root}/quiver.drops")


def test_drops_are_remembered_until_the_bucket_has_them():
    """The object store is away for longer than the node runs: the reason is in the drop ledger."""
    rig = NodeRig(max_age_s=1000.0)
    rig.go_away()
    for _ in range(2):
        with rig.open() as store:
            rig.fill(store, 2)
            rig.clock.advance(2000)
            store.maintain()
            store.maintain()
            assert store.stats()["segments"] == 0
    rig.tier.heal()
    with rig.open() as store:
        rig.fill(store, 1)
        rig.turn(store)
    reader = FleetReader(rig.tier)
    reader.read()
    assert sum(gone.bundles_from(0) for gone in reader.gone[rig.identity]) == 8
    assert {gone.reason for gone in reader.gone[rig.identity]} == {"age"}
    assert reader.numbers[rig.identity] == [8, 9]


def test_a_segment_is_damaged_before_it_is_uploaded():
    """It is quarantined on the node, and lost for the reader."""
    rig = NodeRig()
    with rig.open() as store:
        rig.fill(store, 3)
        path = f"{rig.root}/segments/{1:016d}.qseg"
        rig.fs.remove(path)
        file = rig.fs.create(path)
        file.pwrite(b"x" * 500, 0)
        file.close()
        for _ in range(3):
            rig.turn(store)
        reader = FleetReader(rig.tier)
        reader.read()
        assert reader.numbers[rig.identity] == [0, 1, 4, 5]
        assert [(gone.first, gone.last, gone.reason) for gone in reader.gone[rig.identity]] == [(1, 1, "damaged")]
        assert reader.problems == {}


def test_node_is_installed_again():
    """The same name, another identity: both are read, and the old chain drains."""
    old = NodeRig()
    bucket = DirectoryObjects(old.fs, BUCKET)
    with old.open() as store:
        old.fill(store, 2)
        old.turn(store)
    new = NodeRig(bucket=bucket)
    with new.open() as store:
        new.taken = 100
        new.fill(store, 1)
        new.turn(store)
        reader = FleetReader(bucket)
        reader.read()
        assert dict(reader.numbers) == {old.identity: [0, 1, 2, 3], new.identity: [100, 101]}
        assert old.record().name == new.record().name == "edge-17"


def test_a_store_becomes_a_node():
    """Segments that it finished before were never part of the fleet: the reader loses nothing."""
    rig = NodeRig()
    plain = dataclasses.replace(rig.settings, fleet_name=None, fleet_subscribers=(), fleet_labels=(), cold_objects=None)
    with store_rig.open_manual(rig.fs, settings=plain, clock=rig.clock, root=rig.root) as store:
        rig.fill(store, 2)
        assert store_rig.drain(store, "local") == [0, 1, 2, 3]
        store.maintain()
        rig.fill(store, 1)
        store.unregister("local")
    with rig.open() as store:
        rig.turn(store)
        reader = FleetReader(rig.tier)
        reader.read()
        assert reader.numbers[rig.identity] == [4, 5]
        assert [(gone.first, gone.last, gone.reason) for gone in reader.gone[rig.identity]] == [(0, 1, "unused")]


def test_objects_of_an_earlier_tier_are_not_left_alone():
    """The store says which location still has objects, instead of beginning a chain without them."""
    rig = NodeRig()
    with rig.open(fleet_name=None, fleet_subscribers=(), fleet_labels=()) as store:
        store.register("local", start="earliest")
        rig.fill(store, 1)
        store.maintain()
    with pytest.raises(SettingsError, match="use that location until they are removed"):
        rig.open()


# ── two stores with one identity ─────────────────────────────────────────────────────────────────────


def cloned(rig):
    """The node on a copy of its disk, with the same bucket."""
    assert isinstance(rig.fs, CrashFileSystem)
    copy = NodeRig(rig.fs.clone_after_kill(), bucket=rig.tier)
    copy.taken = 1000
    return copy


def test_disk_is_cloned_while_the_node_runs():
    """Both stop uploading and say how to continue; their data stay on their disks, and other nodes are read."""
    rig = NodeRig()
    other = NodeRig(bucket=rig.tier)
    with rig.open() as store, other.open() as third:
        rig.turn(store)
        copy = cloned(rig)
        with copy.open() as second:
            copy.turn(second)
            rig.turn(store)
            copy.turn(second)
            for one, opened in ((rig, store), (copy, second)):
                problem = opened.stats()["cold"]["problem"]
                assert "is in use by node edge-17" in problem
                assert "remove quiver.id" in problem
                assert counted(one, "quiver.fleet.conflicts_total") == 1
                one.fill(opened, 2)
                one.turn(opened)
                assert opened.lag(LAKE).pending_bundles == 4
            other.fill(third, 1)
            other.turn(third)
            reader = FleetReader(rig.tier)
            reader.read()
            assert dict(reader.numbers) == {other.identity: [0, 1]}
            assert rig.record().state == "conflict"
    with rig.open() as store:
        rig.turn(store)
        reader.read()
        assert reader.numbers[rig.identity] == [0, 1, 2, 3]


def test_disk_is_an_old_copy():
    """There are segments in the bucket that it did not upload, so it uploads nothing. The node continues."""
    rig = NodeRig()
    with rig.open() as store:
        rig.fill(store, 1)
        rig.turn(store)
        copy = cloned(rig)
        rig.fill(store, 3)
        rig.turn(store)
        with copy.open() as second:
            copy.fill(second, 2)
            copy.turn(second)
            assert "another store, which uploaded inbox/" in second.stats()["cold"]["problem"]
        rig.turn(store)
        assert store.stats()["cold"]["problem"] is None
        reader = FleetReader(rig.tier)
        reader.read()
        assert reader.numbers[rig.identity] == list(range(8))


def test_a_clone_does_not_accept_positions_of_the_original():
    """Its segments have the same numbers and other checksums, so the reader has not read them."""
    rig = NodeRig()
    with rig.open() as store:
        rig.fill(store, 2)
        rig.turn(store)
        info = store.internals.catalog.segments()[1]
        crc32 = int.from_bytes(rig.fs.read_all(info.path, size_max=1 << 20)[-4:], "little")
        write_acks(rig, 2, (1, crc32 ^ 1))
        rig.turn(store)
        assert store.lag(LAKE).pending_bundles == 4
        assert "was read with checksum" in store.stats()["cold"]["problem"]
        assert rig.record().state == "conflict"
        assert counted(rig, "quiver.fleet.refused_acks_total") == 1


def test_two_clones_upload_before_they_notice():
    """The reader finds a fork: it reads what both have in common, and nothing after it."""
    rig = NodeRig()
    with rig.open() as store:
        rig.fill(store, 1)
        rig.turn(store)
        copy = cloned(rig)
        with copy.open() as second:
            copy.turn(second)
            for one, opened in ((rig, store), (copy, second)):
                one.fill(opened, 2)
                opened.maintain()
        reader = FleetReader(rig.tier)
        reader.read()
        assert reader.numbers[rig.identity] == [0, 1, 2, 3]
        problem = reader.problems[rig.identity]
        assert isinstance(problem, Fork)
        assert problem.number == 2  # a number that a crash made unusable is not used again, so the copy has no 1


def test_a_clone_becomes_a_node_of_its_own():
    """As the message says: without identity and list it begins a new chain, with what is on its disk."""
    rig = NodeRig()
    with rig.open() as store:
        rig.fill(store, 2)
        rig.turn(store)
        copy = cloned(rig)
        for name in ("quiver.id", "quiver.tier", "segments/quiver.cold"):
            copy.fs.remove(f"{copy.root}/{name}")
        with copy.open() as second:
            copy.fill(second, 1)
            copy.turn(second)
        rig.turn(store)
        assert store.stats()["cold"]["problem"] is None
        assert copy.identity != rig.identity
        reader = FleetReader(rig.tier)
        reader.read()
        assert dict(reader.numbers) == {rig.identity: [0, 1, 2, 3], copy.identity: [0, 1, 2, 3, 1000, 1001]}


# ── acknowledgements ─────────────────────────────────────────────────────────────────────────────────


def test_positions_are_lost_or_stale():
    """A node keeps more than it needs, and its position never moves back."""
    rig = NodeRig()
    with rig.open() as store:
        rig.fill(store, 3)
        rig.turn(store)
        reader = FleetReader(rig.tier)
        reader.read()
        write_acks(rig, 2)
        rig.turn(store)
        assert store.lag(LAKE).pending_bundles == 2
        write_acks(rig, 1)
        rig.turn(store)
        rig.tier.delete([acks_key(LAKE, rig.identity[:2])])
        rig.turn(store)
        assert store.lag(LAKE).pending_bundles == 2
    with rig.open() as store:
        rig.turn(store)
        assert store.lag(LAKE).pending_bundles == 2
        reader.acknowledge()
        rig.turn(store)
        assert store.lag(LAKE).pending_bundles == 0
        rig.fill(store, 1)
        rig.turn(store)
        reader.read()
    assert reader.numbers[rig.identity] == list(range(8))


def test_a_replaced_reader_is_ignored():
    """A lower epoch than the node has seen is that of an earlier owner."""
    rig = NodeRig()
    with rig.open() as store:
        rig.fill(store, 3)
        rig.turn(store)
        write_acks(rig, 1, epoch=5)
        rig.turn(store)
        write_acks(rig, 3, epoch=4)
        rig.turn(store)
        assert store.lag(LAKE).pending_bundles == 4
        assert store.stats()["cold"]["problem"] is None
        write_acks(rig, 3, epoch=6)
        rig.turn(store)
        assert store.lag(LAKE).pending_bundles == 0


def test_the_slowest_of_several_readers_counts():
    rig = NodeRig(fleet_subscribers=(LAKE, "audit"))
    with rig.open() as store:
        rig.fill(store, 2)
        rig.turn(store)
        write_acks(rig, 2)
        rig.turn(store)
        assert store.stats()["segments"] == 2
        write_acks(rig, 1, name="audit")
        rig.turn(store)
        assert store.stats()["segments"] == 1
        assert [one.last for one in FleetReader(rig.tier).listed()[rig.identity]] == [1]


HOSTILE = {
    "nothing": b"", "junk": b"\0" * 1000, "json": b"{}", "cut": encode_acks("00", 1, [])[:-1],
    "flipped": encode_acks("00", 1, [])[:-1] + b"\0",
}  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_positions_that_are_damaged_are_reported(data):
    """Nothing is deleted because of them, and uploads continue."""
    rig = NodeRig()
    with rig.open() as store:
        rig.tier.put(acks_key(LAKE, rig.identity[:2]), data)
        rig.fill(store, 2)
        rig.turn(store)
        assert store.lag(LAKE).pending_bundles == 4
        assert store.stats()["cold"]["problem"] is None
        assert store.stats()["cold"]["waiting"] == 0
        assert counted(rig, "quiver.fleet.refused_acks_total") >= 1


def test_a_position_beyond_the_store_is_refused():
    """It acknowledges segments that this store does not have: nothing may be deleted because of it."""
    rig = NodeRig()
    with rig.open() as store:
        rig.fill(store, 2)
        rig.turn(store)
        write_acks(rig, 1000)
        rig.turn(store)
        assert store.lag(LAKE).pending_bundles == 4
        assert "position 1000 is acknowledged, and the next segment here is 2" in store.stats()["cold"]["problem"]


def test_a_position_before_the_upload_waits():
    """Only segments whose objects were verified are deleted because of a position."""
    rig = NodeRig()
    with rig.open() as store:
        rig.fill(store, 1)
        write_acks(rig, 1)
        rig.tier.fail_on("put_parts", 1, how="fail")
        rig.turn(store)
        assert store.lag(LAKE).pending_bundles == 2
        rig.clock.advance(100)
        rig.turn(store)
        rig.turn(store)
        assert store.lag(LAKE).pending_bundles == 0


# ── the bucket ───────────────────────────────────────────────────────────────────────────────────────


def test_an_object_is_missing_in_the_middle():
    """The reader sees the hole, with the number, and reads the other nodes."""
    rig = NodeRig()
    other = NodeRig(bucket=rig.tier)
    with rig.open() as store, other.open() as second:
        rig.fill(store, 3)
        rig.turn(store)
        other.fill(second, 1)
        other.turn(second)
        reader = FleetReader(rig.tier)
        objects = reader.listed()[rig.identity]
        rig.tier.delete([key_of(rig.identity, one) for one in objects if one.last == 1])
        reader.read()
        assert reader.problems == {rig.identity: Hole(1, 1)}
        assert dict(reader.numbers) == {rig.identity: [0, 1], other.identity: [0, 1]}


def test_the_object_store_is_away():
    """The node buffers up to its cap, and then its policy decides. Nothing is lost when the store is back."""
    rig = NodeRig(size_cap_bytes=60_000, segment_bytes_max=2_000)
    with rig.open() as store:
        rig.go_away()
        with pytest.raises(CapacityError):
            for _ in range(2_000):
                store.ingest(store_rig.numbered(rig.taken))
                rig.taken += 1
                store.maintain()
        rig.tier.heal()
        reader = FleetReader(rig.tier)
        for _ in range(5):
            store.seal()
            rig.turn(store)
            reader.read()
            reader.acknowledge()
        assert reader.numbers[rig.identity] == list(range(rig.taken))
        assert store.stats()["segments"] == 0


def test_clocks_are_not_compared():
    """A node whose clock is years behind is read and acknowledged as any other."""
    rig = NodeRig()
    rig.clock.step_wall(-5 * 365 * 86_400)
    with rig.open() as store:
        rig.fill(store, 1)
        rig.turn(store)
        reader = FleetReader(rig.tier)
        reader.read()
        reader.acknowledge()
        rig.turn(store)
        assert store.stats()["segments"] == 0


def test_the_record_of_a_node_is_damaged():
    """The node replaces it."""
    rig = NodeRig()
    with rig.open() as store:
        rig.tier.put(node_key(rig.identity), b"junk")
        rig.fill(store, 1)
        rig.turn(store)
        rig.turn(store)
        record = rig.record()
    assert (record.name, record.state, record.next_segment, dict(record.labels)) == (
        "edge-17", "running", 1, {"site": "Graz"},
    )  # fmt: skip
    assert rig.record() == dataclasses.replace(record, state="stopped", written_at_ns=rig.record().written_at_ns)
    assert encode_node_record(record)


def test_a_fleet_subscriber_belongs_to_the_node():
    """It exists when the store is open, and another process cannot take it."""
    rig = NodeRig()
    with rig.open() as store:
        (status,) = store.subscribers()
        assert (status.id, status.is_owned, status.is_orphan) == (LAKE, True, False)
        assert rig.fs.try_lock(f"{rig.root}/quiver.sub.{LAKE}.lock", note="test") is None
    rig.fs.try_lock(f"{rig.root}/quiver.sub.{LAKE}.lock", note="test")
    with pytest.raises(DirectoryInUseError):
        rig.open()


FAILURES = {
    "the process or the machine dies": "test_node_dies_after_an_upload test_a_crash_at_any_step "
    "test_confirmed_bundles_reach_the_reader_once",
    "the object store is away": "test_the_object_store_is_away test_object_store_is_away",
    "the node is offline for weeks": "test_node_is_offline_for_weeks test_node_offline_for_weeks_with_a_backlog",
    "policy drops segments that were not read": "test_policy_drops_what_was_not_read "
    "test_drops_are_remembered_until_the_bucket_has_them test_policy_dropped_data",
    "a segment is damaged before it is uploaded": "test_a_segment_is_damaged_before_it_is_uploaded",
    "acknowledgements are lost, damaged or old": "test_positions_are_lost_or_stale "
    "test_positions_that_are_damaged_are_reported test_acknowledgements_are_lost_damaged_or_old",
    "the machine is installed again": "test_node_is_installed_again",
    "the disk is cloned, or restored from a backup": "test_disk_is_cloned_while_the_node_runs "
    "test_two_clones_upload_before_they_notice test_a_disk_is_restored_from_an_old_backup test_cloned_disk",
    "the query, its driver or its tasks die": "test_driver_dies_at_any_request test_kills_lose_and_duplicate_nothing",
    "two queries run as one subscriber": "test_a_second_driver_replaces_the_first test_a_replaced_reader_is_ignored",
    "an object is damaged, missing, or from a hostile node": "test_object_damaged_or_missing_in_a_batch "
    "test_an_object_is_missing_in_the_middle test_hostile_node test_a_node_cannot_use_objects_of_others",
    "clocks differ": "test_clocks_are_not_compared test_clocks_of_nodes_have_no_effect",
}
"""The tests of each row of the table of failures in docs/howto/fleet.md."""


def test_each_failure_of_the_page_has_tests():
    """With the names above."""
    root = Path(__file__).parents[2]
    table = (root / "docs/howto/fleet.md").read_text().partition("## Failures")[2].partition("\n\nEach row")[0]
    rows = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
    assert rows[0] == "event"
    assert set(rows[1:]) == set(FAILURES)
    folders = (root / "tests/fleet", root / "tests/spark/fleet", root / "tests/objects")
    known = {name for folder in folders for one in folder.glob("test_*.py")
             for name in re.findall(r"^def (test_\w+)", one.read_text(), re.MULTILINE)}  # fmt: skip
    assert {name for names in FAILURES.values() for name in names.split()} <= known
