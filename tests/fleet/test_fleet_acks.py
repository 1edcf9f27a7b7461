"""The positions of a subscriber: exact bytes, every way to mistreat them, and what may not be written."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

import format_feeding as feeding
from disk_files import with_crc32
from quiver.errors import UsageError
from quiver.primitives.scan import Damage, Frame
from quiver.store.format.fleet.acks import ACKS_ENTRIES_MAX, AckedNode, Acks, decode_acks, encode_acks

READ = AckedNode("3e0b6f0a-5d3c-4f63-9a43-0c9d6c0c5a11", 8, (7, 0xA1B2C3D4))
GONE = AckedNode("3effffff-0000-4000-8000-000000000001", 4)
GOLDEN = bytes.fromhex(
    "515549564552004b 0100 2000 2800 3e 00 0500000000000000 02000000 00000000"
    "3e0b6f0a5d3c4f639a430c9d6c0c5a11 0800000000000000 0700000000000000 d4c3b2a1 01 000000"
    "3effffff000040008000000000000001 0400000000000000 0000000000000000 00000000 00 000000"
)
IDENTITIES = st.uuids().map(lambda found: f"3e{str(found)[2:]}")
NODES = st.builds(
    lambda identity, position, back, crc32: AckedNode(
        identity, position, None if back is None or back > position else (position - back, crc32)
    ),
    IDENTITIES,
    st.integers(0, 2**64 - 1),
    st.none() | st.integers(1, 9),
    st.integers(0, 2**32 - 1),
)


def test_golden():
    """Nodes are written in the order of their identities, regardless of the input order."""
    data = encode_acks("3e", 5, [GONE, READ])
    assert data == with_crc32(GOLDEN)
    assert decode_acks(memoryview(data)) == Frame(Acks("3e", 5, (READ, GONE)), len(data))


def test_find():
    acks = Acks("3e", 5, (READ, GONE))
    assert acks.find(GONE.identity) == GONE
    assert acks.find("3e000000-0000-4000-8000-000000000001") is None


@given(st.lists(NODES, unique_by=lambda node: node.identity, max_size=9), st.integers(0, 2**64 - 1))
def test_round_trip(nodes, epoch):
    data = encode_acks("3e", epoch, nodes)
    expected = Acks("3e", epoch, tuple(sorted(nodes, key=lambda node: node.identity)))
    assert decode_acks(memoryview(data)) == Frame(expected, len(data))


def test_mistreated():
    """Every prefix needs more, junk after the end is ignored, and every flipped bit is detected."""
    data = with_crc32(GOLDEN)
    feeding.assert_prefixes_want_more(data, decode_acks)
    feeding.assert_junk_is_left(data, decode_acks, Acks("3e", 5, (READ, GONE)))
    feeding.assert_flips_are_seen(data, decode_acks)


def test_later_version_with_more_fields():
    """Header and entries that are longer are read, and the new fields skipped."""
    data = bytearray(GOLDEN[:32] + b"new!" + GOLDEN[32:72] + b"more" + GOLDEN[72:] + b"more")
    data[10], data[12] = 36, 44
    whole = with_crc32(bytes(data))
    assert decode_acks(memoryview(whole)) == Frame(Acks("3e", 5, (READ, GONE)), len(whole))


@pytest.mark.parametrize(("at", "value", "offset", "said"), [
    (8, b"\2", 8, "unsupported version 2"), (10, b"\x1f", 10, "header_size 31"), (12, b"\x27", 12, "entry_size 39"),
    (12, b"\xff\xff", 12, "entry_size 65535"), (24, b"\1\0\1\0", 24, "entry_count 65537"),
    (14, b"\x3f", 32, "does not belong to shard 3f"), (48, b"\7", 32, "segment 7 is not below position 7"),
    (68, b"\2", 32, "unsupported value 2"), (72, b"\x3e\0", 72, "comes after"),
])  # fmt: skip
def test_damage_with_a_valid_checksum(at, value, offset, said):
    """Bounds and order are checked although a writer computed the checksum."""
    hurt = GOLDEN[:at] + value + GOLDEN[at + len(value) :]
    answer = decode_acks(memoryview(with_crc32(hurt)))
    assert isinstance(answer, Damage)
    assert answer.offset == offset
    assert said in answer.reason


@pytest.mark.parametrize("nodes", [
    [READ, READ], [dataclasses.replace(READ, identity="4e0b6f0a-5d3c-4f63-9a43-0c9d6c0c5a11")],
    [dataclasses.replace(READ, position=7)], [dataclasses.replace(READ, position=2**64)],
    [dataclasses.replace(READ, position=-1)], [dataclasses.replace(READ, segment=(7, 2**32))],
    [dataclasses.replace(READ, identity="3e")],
    [AckedNode(f"3e{number:06x}-0000-4000-8000-000000000001", 0) for number in range(ACKS_ENTRIES_MAX + 1)],
])  # fmt: skip
def test_what_could_not_be_read_is_not_written(nodes):
    with pytest.raises(UsageError):
        encode_acks("3e", 5, nodes)
    with pytest.raises(UsageError):
        encode_acks("3e", -1, [READ])
