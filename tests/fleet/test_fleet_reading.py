"""Reading a fleet from its bucket: listings, records, positions and single objects; also broken ones."""

from __future__ import annotations

import pytest
from fleet_rig import BUCKET, LAKE, FleetReader, NodeRig

from quiver.errors import CorruptionError, DataLossError, FencedError
from quiver.objects.directory import DirectoryObjects
from quiver.objects.memory import MemoryObjects
from quiver.primitives.checksum import crc32
from quiver.store.format.fleet.acks import AckedNode, encode_acks
from quiver.store.format.fleet.gone import GONE_BYTES_MAX, GoneSegments, encode_gone
from quiver.store.format.fleet.names import InboxObject, acks_key, gone_key, key_of, segment_key
from quiver.store.reading.fleet.inbox import list_inbox, list_node
from quiver.store.reading.fleet.positions import PositionsWriter, read_positions
from quiver.store.reading.fleet.segments import decoding, open_segment, read_gone, validated
from quiver.testing.crashfs import CrashFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

ONE = "3e0b6f0a-5d3c-4f63-9a43-0c9d6c0c5a11"
OTHER = "ff0b6f0a-5d3c-4f63-9a43-0c9d6c0c5a12"


def identity(number):
    """The identity of a generated node."""
    return f"{number * 2_654_435_761 % 2**32:08x}-0000-4000-8000-{number:012x}"


@pytest.fixture
def two():
    """Two nodes that share a bucket, with two segments each."""
    first = NodeRig()
    second = NodeRig(CrashFileSystem(), bucket=DirectoryObjects(first.fs, BUCKET), fleet_name="edge-18")
    for rig in (first, second):
        with rig.open() as store:
            rig.fill(store, 2)
            rig.turn(store)
    return first, second


@pytest.mark.parametrize("is_small", [True, False])
def test_objects_of_all_nodes(two, is_small):
    """Ascending by number, without other objects, and without those below a position."""
    first, second = two
    first.tier.put(f"inbox/{first.identity[:2]}/{first.identity}/quarantine/x", b"")
    first.tier.put("inbox/zz/other", b"")
    found = list_inbox(first.tier, is_small=is_small)
    assert {node: [one.last for one in objects] for node, objects in found.items()} == {
        first.identity: [0, 1],
        second.identity: [0, 1],
    }
    assert found == FleetReader(first.tier).listed()
    positions = {first.identity: 1, second.identity: 2}
    rest = list_inbox(first.tier, positions=positions, is_small=is_small)
    assert {node: [one.last for one in objects] for node, objects in rest.items()} == {first.identity: [1]}
    assert list_node(first.tier, first.identity, position=1) == rest[first.identity]


def test_more_than_a_thousand_nodes():
    """No number of nodes is a limit, and a node with too many objects does not take the memory of the others."""
    tier = MemoryObjects()
    for number in range(1500):
        tier.put(segment_key(identity(number), 0, 7), b"")
    for number in range(1, 40):
        tier.put(segment_key(identity(0), number, 7), b"")
    found = list_inbox(tier, objects_max=10)
    assert len(found) == 1500
    assert [one.last for one in found[identity(0)]] == list(range(10))


def test_positions_are_written_where_they_changed():
    """One object for each shard; another epoch writes all of them again."""
    tier = MemoryObjects()
    writer = PositionsWriter(tier, LAKE, 4, read_positions(tier, LAKE))
    assert writer.write([AckedNode(ONE, 1), AckedNode(OTHER, 1)]) == 2
    assert writer.write([AckedNode(ONE, 2), AckedNode(OTHER, 1)]) == 1
    found = read_positions(tier, LAKE)
    assert (found.epoch, found.problems) == (4, {})
    assert {node.identity: node.position for node in found.nodes.values()} == {ONE: 2, OTHER: 1}
    assert PositionsWriter(tier, LAKE, 5, found).write(found.nodes.values()) == 2
    assert read_positions(tier, LAKE).epoch == 5


def test_an_older_owner_writes_no_position():
    """Its objects were replaced since. A newer owner replaces those of an older one, also damaged ones."""
    tier = MemoryObjects()
    old = PositionsWriter(tier, LAKE, 1, read_positions(tier, LAKE))
    new = PositionsWriter(tier, LAKE, 2, read_positions(tier, LAKE))
    old.write([AckedNode(ONE, 1)])
    new.write([AckedNode(ONE, 3)])
    with pytest.raises(FencedError, match="epoch 1 was fenced by another query of lake, which has epoch 2"):
        old.write([AckedNode(ONE, 2)])
    assert read_positions(tier, LAKE).nodes[ONE].position == 3
    tier.put(acks_key(LAKE, ONE[:2]), b"junk")
    new.write([AckedNode(ONE, 4)])
    assert read_positions(tier, LAKE).nodes[ONE].position == 4


def test_damaged_positions_are_reported():
    """The others are read."""
    tier = MemoryObjects()
    PositionsWriter(tier, LAKE, 4, read_positions(tier, LAKE)).write([AckedNode(ONE, 1), AckedNode(OTHER, 1)])
    tier.put(acks_key(LAKE, "ff"), encode_acks("3e", 1, [AckedNode(ONE, 9)]))
    tier.put(acks_key(LAKE, "00"), b"QUIVER")
    found = read_positions(tier, LAKE)
    assert (set(found.nodes), set(found.problems)) == ({ONE}, {"00", "ff"})


def test_a_segment_is_verified_completely(two):
    """Its bundles can be read; a changed byte, another length, or a missing object is reported with its key."""
    rig = two[0]
    one = list_node(rig.tier, rig.identity)[0]
    key = key_of(rig.identity, one)
    reader = open_segment(rig.tier, rig.identity, one)
    assert reader.bundle_count == 2
    assert all(validated(batch, key).num_rows for batch in reader.bundle(0).values())

    data = rig.tier.get(key, size_max=1 << 20)
    with pytest.raises(CorruptionError, match=f"{key}.*more than 10"):
        open_segment(rig.tier, rig.identity, one, size_bytes_max=10)
    for damaged in (data[:50] + bytes([data[50] ^ 1]) + data[51:], data[:-1], data + b"x", b""):
        rig.tier.put(key, damaged)
        with pytest.raises(CorruptionError, match=key):
            open_segment(rig.tier, rig.identity, one)
    rig.tier.delete([key])
    with pytest.raises(DataLossError, match="removed before"):
        open_segment(rig.tier, rig.identity, one)


def test_a_segment_with_a_matching_key_can_still_be_rejected():
    """A hostile node computes the checksum of any bytes."""
    tier = MemoryObjects()
    body = b"QUIVER\0S" + b"\xff" * 200
    data = body + crc32(body).to_bytes(4, "little")
    one = InboxObject(0, 0, crc32(body), len(data))
    tier.put(key_of(ONE, one), data)
    with pytest.raises(CorruptionError, match=key_of(ONE, one)):
        open_segment(tier, ONE, one)


def test_records_of_gone_segments_are_checked():
    """Against their key."""
    tier = MemoryObjects()
    gone = GoneSegments(3, 9, "age", 0, ((3, 12), (4, 7)))
    tier.put(gone_key(ONE, 3, 9), encode_gone(gone))
    tier.put(gone_key(ONE, 10, 11), encode_gone(gone))
    tier.put(gone_key(ONE, 12, 12), b"[]")
    found = {one.first: one for one in list_node(tier, ONE)}
    assert read_gone(tier, ONE, found[3]) == gone
    for first in (10, 12):
        with pytest.raises(CorruptionError, match=gone_key(ONE, first, found[first].last)):
            read_gone(tier, ONE, found[first])
    with pytest.raises(DataLossError):
        read_gone(tier, ONE, InboxObject(50, 51, None, 10))
    tier.put(gone_key(ONE, 3, 9), b"x" * (GONE_BYTES_MAX + 1))  # replaced since it was listed
    with pytest.raises(CorruptionError, match=gone_key(ONE, 3, 9)):
        read_gone(tier, ONE, found[3])


def test_errors_of_the_disk_are_not_damage(two):
    """A segment must not be rejected because this machine has no descriptors left."""
    rig = two[0]
    one = list_node(rig.tier, rig.identity)[0]

    def fail(_operation, _key):
        raise OSError(24, "Too many open files")

    rig.tier.on_call = fail
    with pytest.raises(OSError, match="Too many"):
        open_segment(rig.tier, rig.identity, one)
    with pytest.raises(CorruptionError, match="path at byte 0: it cannot be decoded: IndexError"), decoding("path"):
        raise IndexError
