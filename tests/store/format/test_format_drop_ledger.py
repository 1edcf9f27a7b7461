"""The drop ledger: exact bytes, every way to mistreat them, and room for later versions."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import format_feeding as feeding
from disk_files import with_crc32
from quiver.errors import InvariantError
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.store.format.drop_ledger import (
    DROP_ENTRIES_MAX,
    DROP_LEDGER_BYTES_MAX,
    DroppedSegment,
    decode_drop_ledger,
    encode_drop_ledger,
)

SIZE = DroppedSegment(7, 120, 33_554_000, "size", 1_700_000_000_000_000_000)
AGE = DroppedSegment(9, 3, 4096, "age", 1_700_000_001_000_000_000)
GOLDEN = bytes.fromhex(
    "5155495645520044 0100 1800 2800 0000 02000000 00000000"
    "0700000000000000 50feff0100000000 00002a36fe9c9717 78000000 01 000000 0000000000000000"
    "0900000000000000 0010000000000000 00cac471fe9c9717 03000000 02 000000 0000000000000000"
    "023815da"
)


def test_golden():
    """Entries are written in the order of their numbers, regardless of the input order."""
    assert encode_drop_ledger([AGE, SIZE]) == GOLDEN
    assert decode_drop_ledger(memoryview(GOLDEN)) == Frame((SIZE, AGE), len(GOLDEN))
    assert decode_drop_ledger(memoryview(encode_drop_ledger([]))) == Frame((), 28)


ENTRIES = st.builds(
    DroppedSegment,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.sampled_from(["size", "age"]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)


@given(st.lists(ENTRIES, unique_by=lambda entry: entry.seq, max_size=20))
def test_round_trip(entries):
    data = encode_drop_ledger(entries)
    assert decode_drop_ledger(memoryview(data)) == Frame(tuple(sorted(entries, key=lambda one: one.seq)), len(data))


def test_mistreated():
    """Every prefix needs more, junk after the end is ignored, and every flipped bit is detected."""
    feeding.assert_prefixes_want_more(GOLDEN, decode_drop_ledger)
    feeding.assert_junk_is_left(GOLDEN, decode_drop_ledger, (SIZE, AGE))
    feeding.assert_flips_are_seen(GOLDEN, decode_drop_ledger)


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(data):
    assert isinstance(decode_drop_ledger(memoryview(data)), (Frame, NeedMore, Damage))


def test_a_later_version_may_add_fields():
    """Fields added after the known ones are skipped, in the header and in each entry."""
    entry = GOLDEN[24:64]
    body = struct.pack("<8sHHH2xI4x", b"QUIVER\0D", 1, 32, 48, 1) + bytes(8) + entry + b"\xff" * 8
    assert decode_drop_ledger(memoryview(with_crc32(body))) == Frame((SIZE,), len(body) + 4)


@pytest.mark.parametrize(
    ("at", "value", "offset", "said"),
    [
        (8, b"\x02\x00", 8, "unsupported version 2"),
        (10, b"\x17\x00", 10, "header_size 23"),
        (12, b"\x27\x00", 12, "entry_size 39"),
        (12, b"\x01\x02", 12, "entry_size 513"),
        (16, b"\x01\x00\x01\x00", 16, "entry_count 65537"),
        (24 + 28, b"\x03", 24, "unsupported reason 3"),
        (64, b"\x07", 64, "segment 7 comes after 7"),
    ],
)
def test_what_cannot_be_read_says_why_and_where(at, value, offset, said):
    """Also with a right checksum; and no count makes it ask for more bytes than a lawful file has."""
    hurt = bytearray(GOLDEN[:-4])
    hurt[at : at + len(value)] = value
    answer = decode_drop_ledger(memoryview(with_crc32(bytes(hurt))))
    assert isinstance(answer, Damage)
    assert answer.offset == offset
    assert said in answer.reason


def test_what_could_not_be_read_again_is_not_written():
    entries = [DroppedSegment(seq, 1, 1, "size", 0) for seq in range(DROP_ENTRIES_MAX + 1)]
    assert len(encode_drop_ledger(entries[1:])) <= DROP_LEDGER_BYTES_MAX
    for wrong in (entries, [SIZE, SIZE]):
        with pytest.raises(InvariantError, match="a drop ledger has at most 65536 segments, each once"):
            encode_drop_ledger(wrong)


def test_what_was_skipped_has_a_code_of_its_own():
    """Apart from those of policies; it comes back."""
    entry = DroppedSegment(7, 3, 4096, "skipped", 1_700_000_000_000_000_000)
    data = encode_drop_ledger([entry])
    assert data[24 + 28] == 16
    assert decode_drop_ledger(memoryview(data)) == Frame((entry,), len(data))
