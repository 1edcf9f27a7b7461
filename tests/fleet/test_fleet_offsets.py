"""One batch: exact bytes, every way to mistreat them, and what may not be written."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

import format_feeding as feeding
from disk_files import with_crc32
from quiver.errors import UsageError
from quiver.primitives.scan import Damage, Frame
from quiver.store.format.fleet.acks import AckedNode
from quiver.store.format.fleet.names import InboxObject
from quiver.store.format.fleet.offsets import BatchNode, FleetOffsets, advanced, decode_offsets, encode_offsets

ONE = "3e0b6f0a-5d3c-4f63-9a43-0c9d6c0c5a11"
TWO = "3effffff-0000-4000-8000-000000000001"
SEGMENTS = (InboxObject(6, 6, 1, 4096), InboxObject(7, 7, 0xA1B2C3D4, 5000))
READ = BatchNode(AckedNode(ONE, 8, (7, 0xA1B2C3D4)), SEGMENTS)
GONE = BatchNode(AckedNode(TWO, 4), (InboxObject(0, 3, None, 200),))
BATCH = FleetOffsets(5, 2, (READ, GONE))
GOLDEN = bytes.fromhex(
    "5155495645520047 0100 2800 3000 2000 0500000000000000 0200000000000000 02000000 03000000"
    "3e0b6f0a5d3c4f639a430c9d6c0c5a11 0800000000000000 0700000000000000 d4c3b2a1 01 000000 02000000 00000000"
    "3effffff000040008000000000000001 0400000000000000 0000000000000000 00000000 00 000000 01000000 00000000"
    "0600000000000000 0600000000000000 0010000000000000 01000000 00 000000"
    "0700000000000000 0700000000000000 8813000000000000 d4c3b2a1 00 000000"
    "0000000000000000 0300000000000000 c800000000000000 00000000 01 000000"
)


def test_golden():
    """Nodes are written in the order of their identities, regardless of the input order."""
    data = encode_offsets(5, 2, [GONE, READ])
    assert data == with_crc32(GOLDEN)
    assert decode_offsets(memoryview(data)) == Frame(BATCH, len(data))


def test_advanced():
    """The position after some objects: its segment is the last one that could be read."""
    assert advanced(AckedNode(ONE, 6, (5, 9)), SEGMENTS) == READ
    assert advanced(AckedNode(TWO, 1), GONE.objects) == GONE
    assert advanced(READ.after, ()) == BatchNode(READ.after)
    lost = InboxObject(8, 9, None, 1)
    assert advanced(AckedNode(ONE, 6), (*SEGMENTS, lost)).after == AckedNode(ONE, 10, (7, 0xA1B2C3D4))
    assert advanced(READ.after, (lost,)).after == AckedNode(ONE, 10, (7, 0xA1B2C3D4))


@given(
    st.lists(
        st.tuples(st.uuids().map(str), st.integers(0, 2**63), st.lists(st.none() | st.integers(0, 2**32 - 1))),
        unique_by=lambda node: node[0],
        max_size=5,
    )
)
def test_round_trip(found):
    nodes = [
        advanced(
            AckedNode(identity, start), [InboxObject(start + at, start + at, crc, at) for at, crc in enumerate(crcs)]
        )
        for identity, start, crcs in found
    ]
    data = encode_offsets(1, 7, nodes)
    expected = tuple(sorted(nodes, key=lambda node: node.after.identity))
    assert decode_offsets(memoryview(data)) == Frame(FleetOffsets(1, 7, expected), len(data))


def test_mistreated():
    """Every prefix needs more, junk after the end is ignored, and every flipped bit is detected."""
    data = with_crc32(GOLDEN)
    feeding.assert_prefixes_want_more(data, decode_offsets)
    feeding.assert_junk_is_left(data, decode_offsets, BATCH)
    feeding.assert_flips_are_seen(data, decode_offsets)


def test_later_version_with_more_fields():
    """Header, nodes and objects that are longer are read, and the new fields skipped."""
    data = bytearray(GOLDEN[:40] + b"new!")
    for at in (40, 88):
        data += GOLDEN[at : at + 48] + b"more"
    for at in (136, 168, 200):
        data += GOLDEN[at : at + 32] + b"more"
    data[10], data[12], data[14] = 44, 52, 36
    whole = with_crc32(bytes(data))
    assert decode_offsets(memoryview(whole)) == Frame(BATCH, len(whole))


@pytest.mark.parametrize(("at", "value", "offset", "said"), [
    (8, b"\2", 8, "unsupported version 2"), (10, b"\x27", 10, "header_size 39"), (12, b"\x2f", 12, "node_size 47"),
    (14, b"\x1f", 14, "object_size 31"), (32, b"\1\0\4\0", 32, "node_count 262145"),
    (36, b"\1\0\x10\0", 36, "object_count 1048577"), (80, b"\4", 80, "4 objects, more than are left"),
    (128, b"\0", 88, ""), (136, b"\5", 40, "cannot have segments 5 to 6"),
    (168, b"\x09" + bytes(7) + b"\x09", 40, "do not follow 7"),
    (56, b"\x09", 40, "end at 8, not at 9"), (160 + 4, b"\2", 136, "unsupported value 2"),
    (88, b"\x3e\0", 88, "comes after"),
])  # fmt: skip
def test_damage_with_a_valid_checksum(at, value, offset, said):
    """Bounds, order and continuity are checked although a writer computed the checksum."""
    hurt = GOLDEN[:at] + value + GOLDEN[at + len(value) :]
    answer = decode_offsets(memoryview(with_crc32(hurt)))
    assert isinstance(answer, Damage)
    assert said in answer.reason
    if said:
        assert answer.offset == offset


@pytest.mark.parametrize("nodes", [
    [READ, READ], [dataclasses.replace(READ, objects=SEGMENTS[:1])],
    [dataclasses.replace(READ, objects=SEGMENTS[::-1])],
    [dataclasses.replace(READ, objects=(InboxObject(6, 7, 5, 1),))],
    [BatchNode(AckedNode(ONE, 9), (InboxObject(5, 5, None, 1), InboxObject(7, 8, None, 1)))],
])  # fmt: skip
def test_what_could_not_be_read_is_not_written(nodes):
    with pytest.raises(UsageError):
        encode_offsets(5, 2, nodes)
    with pytest.raises(UsageError):
        encode_offsets(5, -1, [READ])
