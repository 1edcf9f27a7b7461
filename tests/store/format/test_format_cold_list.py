"""The cold list: exact bytes, every way to mistreat them, room for later versions, and the names of objects."""

import dataclasses
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import format_feeding as feeding
from disk_files import with_crc32
from quiver.errors import UsageError
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.store.format.cold_list import (
    COLD_ENTRIES_MAX,
    COLD_LOCATION_BYTES_MAX,
    ColdChange,
    ColdList,
    ColdSegment,
    decode_cold_list,
    encode_cold_changes,
    encode_cold_list,
    object_name,
)
from quiver.store.format.describe.files import STORE_FILES

NEW = ColdSegment(
    7, 33_554_000, 0xA1B2C3D4, 120, (500, 900), (40, 159), (1_700_000_000_000_000_000, 1_700_000_005_000_000_000),
    "verified",
)  # fmt: skip
BARE = ColdSegment(9, 4096, 1, 3, None, None, None, "sent")
WHERE = {"backend": "fs", "prefix": "/cold"}
LIST = ColdList(WHERE, (NEW, BARE))
GOLDEN = bytes.fromhex(
    "515549564552004f 0200 1800 5000 2100 02000000 00000000"
    "7b226261636b656e64223a226673222c22707265666978223a222f636f6c64227d"
    "0700000000000000 50feff0100000000 f401000000000000 8403000000000000 2800000000000000 9f00000000000000"
    "00002a36fe9c9717 00f22f60ff9c9717 78000000 d4c3b2a1 01 07 000000000000"
    "0900000000000000 0010000000000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000"
    "0000000000000000 0000000000000000 03000000 01000000 00 00 000000000000"
)


def test_golden():
    """Entries are written in the order of their numbers, regardless of the input order."""
    data = encode_cold_list(ColdList(WHERE, (BARE, NEW)))
    assert data == with_crc32(GOLDEN)
    assert decode_cold_list(memoryview(data)) == Frame(LIST, len(data))


def test_version_1_is_read():
    """It has no changes; whatever is after it is ignored."""
    data = with_crc32(GOLDEN[:8] + b"\x01" + GOLDEN[9:])
    appended = encode_cold_changes([ColdChange(NEW, is_removal=True)], number=1, list_crc32=_crc_of(data))
    assert decode_cold_list(memoryview(data + appended)) == Frame(LIST, len(data))


def _crc_of(data):
    return int.from_bytes(data[-4:], "little")


VERIFIED = dataclasses.replace(BARE, state="verified")
CHANGES = (ColdChange(VERIFIED), ColdChange(NEW, is_removal=True), ColdChange(dataclasses.replace(BARE, seq=8)))
CHANGED = ColdList(WHERE, (CHANGES[2].entry, VERIFIED))
GOLDEN_CHANGE = bytes.fromhex(
    "0900000000000000 0010000000000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000"
    "0000000000000000 0000000000000000 03000000 01000000 01 00 000000000000"
    "00 000000 01000000"
)


def test_golden_changes():
    """Each change is there twice; entries are added, replaced and removed in order."""
    data = with_crc32(GOLDEN)
    first = with_crc32(GOLDEN_CHANGE + data[-4:])
    appended = encode_cold_changes(CHANGES, number=1, list_crc32=_crc_of(data))
    assert appended[:192] == first * 2
    assert len(appended) == 3 * 192
    assert decode_cold_list(memoryview(data + appended)) == Frame(CHANGED, len(data) + len(appended))


def test_a_torn_change_is_ignored():
    """At every length, the complete changes count: the first copy alone is complete."""
    data = with_crc32(GOLDEN)
    whole = data + encode_cold_changes(CHANGES, number=1, list_crc32=_crc_of(data))
    lists = [LIST, ColdList(WHERE, (NEW, VERIFIED)), ColdList(WHERE, (VERIFIED,)), CHANGED]
    for size in range(len(data), len(whole) + 1):
        complete = (size - len(data) + 96) // 192
        for tail in (b"", bytes(300), b"\xff" * 300):
            answer = decode_cold_list(memoryview(whole[:size] + tail))
            assert isinstance(answer, Frame)
            assert answer.value == lists[complete]


def test_one_flipped_bit_in_changes_changes_nothing():
    """The other copy is used, also for the last change, so a change that was durable is not taken for a torn one."""
    data = with_crc32(GOLDEN)
    whole = bytearray(data + encode_cold_changes(CHANGES, number=1, list_crc32=_crc_of(data)))
    for bit in range(8 * len(data), 8 * len(whole)):
        whole[bit // 8] ^= 1 << bit % 8
        answer = decode_cold_list(memoryview(bytes(whole)))
        assert isinstance(answer, Frame)
        assert answer.value == CHANGED
        whole[bit // 8] ^= 1 << bit % 8


def test_a_damaged_change_before_a_complete_one_is_damage():
    """Only the last change can be incomplete after a crash."""
    data = with_crc32(GOLDEN)
    whole = bytearray(data + encode_cold_changes(CHANGES, number=1, list_crc32=_crc_of(data)))
    whole[len(data) + 192 + 5] ^= 1
    whole[len(data) + 192 + 96 + 5] ^= 1
    answer = decode_cold_list(memoryview(bytes(whole)))
    assert isinstance(answer, Damage)
    assert answer.offset == len(data) + 192
    assert "change 2" in answer.reason


def test_changes_of_another_list_are_ignored():
    """They are bound to their list by its checksum."""
    data = with_crc32(GOLDEN)
    other = encode_cold_changes(CHANGES, number=1, list_crc32=_crc_of(data) ^ 1)
    assert decode_cold_list(memoryview(data + other)) == Frame(LIST, len(data))


@pytest.mark.parametrize(
    ("at", "value", "said"), [(72, b"\x03", "unsupported state 3"), (80, b"\x02", "unsupported kind 2")]
)
def test_a_change_of_a_later_version_is_damage(at, value, said):
    """It was written completely, so it cannot be ignored."""
    data = with_crc32(GOLDEN)
    change = bytearray(GOLDEN_CHANGE + data[-4:])
    change[at : at + 1] = value
    answer = decode_cold_list(memoryview(data + with_crc32(bytes(change)) * 2))
    assert isinstance(answer, Damage)
    assert said in answer.reason


NUMBER = st.integers(0, 2**64 - 1)
TIME = st.integers(-(2**63), 2**63 - 1)
ENTRIES = st.builds(
    ColdSegment,
    st.integers(0, 2**63),
    NUMBER,
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.none() | st.tuples(NUMBER, NUMBER),
    st.none() | st.tuples(NUMBER, NUMBER),
    st.none() | st.tuples(TIME, TIME),
    st.sampled_from(["sent", "verified", "damaged"]),
)


@given(st.lists(ENTRIES, unique_by=lambda entry: entry.seq, max_size=10))
def test_round_trip(entries):
    data = encode_cold_list(ColdList(WHERE, tuple(entries)))
    expected = ColdList(WHERE, tuple(sorted(entries, key=lambda one: one.seq)))
    assert decode_cold_list(memoryview(data)) == Frame(expected, len(data))


def test_mistreated():
    """Every prefix needs more, junk after the end is ignored, and every flipped bit is detected."""
    data = with_crc32(GOLDEN)
    feeding.assert_prefixes_want_more(data, decode_cold_list)
    feeding.assert_junk_is_left(data, decode_cold_list, LIST)
    feeding.assert_flips_are_seen(data, decode_cold_list)


@given(st.lists(ENTRIES, unique_by=lambda entry: entry.seq, max_size=5), st.lists(st.tuples(ENTRIES, st.booleans())))
def test_changes_round_trip(entries, changes):
    """The result is that of a dictionary."""
    data = encode_cold_list(ColdList(WHERE, tuple(entries)))
    made = [ColdChange(entry, is_removal) for entry, is_removal in changes]
    whole = data + encode_cold_changes(made, number=1, list_crc32=_crc_of(data))
    model = {entry.seq: entry for entry in entries}
    for change in made:
        model.pop(change.entry.seq, None)
        if not change.is_removal:
            model[change.entry.seq] = change.entry
    expected = ColdList(WHERE, tuple(model[seq] for seq in sorted(model)))
    assert decode_cold_list(memoryview(whole)) == Frame(expected, len(whole))


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(data):
    assert isinstance(decode_cold_list(memoryview(data)), (Frame, NeedMore, Damage))


def test_a_later_version_may_add_fields():
    """Fields added after the known ones are skipped, in the header and in each entry."""
    body = struct.pack("<8sHHHHI4x", b"QUIVER\0O", 1, 32, 88, 2, 1) + bytes(8) + b"{}" + GOLDEN[-80:] + b"\xff" * 8
    assert decode_cold_list(memoryview(with_crc32(body))) == Frame(ColdList({}, (BARE,)), len(body) + 4)


@pytest.mark.parametrize(
    ("at", "value", "offset", "said"),
    [
        (8, b"\x03\x00", 8, "unsupported version 3"),
        (8, b"\x00\x00", 8, "unsupported version 0"),
        (10, b"\x17\x00", 10, "header_size 23"),
        (12, b"\x4f\x00", 12, "entry_size 79"),
        (12, b"\x01\x02", 12, "entry_size 513"),
        (14, b"\x01\x40", 14, "location_size 16385"),
        (16, b"\x41\x42\x0f\x00", 16, "entry_count 1000001"),
        (24, b"[", 24, "not a JSON object"),
        (24 + 33 + 72, b"\x03", 24 + 33, "unsupported state 3"),
        (24 + 33 + 80, b"\x07", 24 + 33 + 80, "segment 7 comes after 7"),
        (24 + 33 + 80, b"\xff" * 8, 24 + 33 + 80, "above the highest possible"),
    ],
)
def test_what_cannot_be_read_says_why_and_where(at, value, offset, said):
    """Also with a right checksum; and no count makes it ask for more bytes than a lawful file has."""
    hurt = bytearray(GOLDEN)
    hurt[at : at + len(value)] = value
    answer = decode_cold_list(memoryview(with_crc32(bytes(hurt))))
    assert isinstance(answer, Damage)
    assert answer.offset == offset
    assert said in answer.reason


def test_what_could_not_be_read_again_is_not_written():
    with pytest.raises(UsageError, match="each once"):
        encode_cold_list(ColdList(WHERE, (NEW, NEW)))
    with pytest.raises(UsageError, match=f"{COLD_LOCATION_BYTES_MAX} fit"):
        encode_cold_list(ColdList({"prefix": "x" * COLD_LOCATION_BYTES_MAX}, ()))
    with pytest.raises(UsageError, match=f"at most {COLD_ENTRIES_MAX}"):
        encode_cold_list(ColdList(WHERE, (NEW,) * (COLD_ENTRIES_MAX + 1)))


def test_names_of_objects():
    """Sorted as numbers are, and another name for other contents."""
    assert object_name(7, 0xA1B2C3D4) == "0000000000000007-a1b2c3d4.qseg"
    assert object_name(12, 1) == "0000000000000012-00000001.qseg"


def test_told_to_a_person():
    """Counts cover the whole list, the table only as many rows as asked for."""
    description = STORE_FILES.describe("quiver.cold", memoryview(with_crc32(GOLDEN)), rows_max=1)
    assert (description.kind, description.is_intact, description.version) == ("cold list", True, 2)
    assert description.fields == {"location": WHERE, "segments": 2, "verified": 1, "verified_bytes": 33_554_000}
    assert description.tables["cold"] == [
        {"segment": 7, "state": "verified", "bundles": 120, "size_bytes": 33_554_000, "crc32": "a1b2c3d4"}
    ]
