"""One WAL entry: framing, checksum, slot blocks, and finding the next one after damage."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import format_feeding as feeding
from quiver.errors import InvalidBundleError
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.store.format.wal_entry import (
    ENTRY_BYTES_MAX,
    WalEntry,
    WalSlot,
    decode_entry,
    encode_entry,
    find_entry,
    looks_like_entry,
)

EMPTY = bytes.fromhex("190000000000002a36fe9c971707000000000000000000000000000000ce4fdfa3")
EMPTY_VALUE = WalEntry(0, 1_700_000_000_000_000_000, 7, ())
TWO = WalEntry(
    0,
    1_700_000_000_000_000_001,
    8,
    (
        WalSlot(30, bytes(range(32)), 3, memoryview(b"\xff\xff\xff\xffthirty")),
        WalSlot(63, b"\xee" * 32, 2**32 - 1, memoryview(b"")),
    ),
)

slots = st.builds(
    WalSlot,
    st.integers(0, 63),
    st.binary(min_size=32, max_size=32),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=100).map(memoryview),
)
entries = st.builds(
    WalEntry,
    st.just(0),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**64 - 1),
    st.lists(slots, max_size=5, unique_by=lambda slot: slot.slot).map(
        lambda made: tuple(sorted(made, key=lambda slot: slot.slot))
    ),
)


def decode(view: memoryview):
    return decode_entry(view, 0)


def framed(body: bytes, *, crc: int | None = None) -> bytes:
    """The bytes of an entry whose body is made by hand."""
    return struct.pack("<I", len(body)) + body + struct.pack("<I", zlib.crc32(body) if crc is None else crc)


def body_of(*blocks: bytes, bitmap: int, entry_type: int = 0) -> bytes:
    return struct.pack("<BqQQ", entry_type, 1, 2, bitmap) + b"".join(blocks)


def block(slot: int, payload: bytes = b"", *, payload_bytes: int | None = None) -> bytes:
    size = len(payload) if payload_bytes is None else payload_bytes
    return struct.pack("<H32sII", slot, b"f" * 32, 1, size) + payload


def test_golden_empty():
    """The entry without slots, as the released engine writes it."""
    assert encode_entry(EMPTY_VALUE) == EMPTY
    assert decode(memoryview(EMPTY)) == Frame(EMPTY_VALUE, 33)


def test_layout_by_hand():
    """Every field of an entry with two slots is where the document puts it, and the checksum is zlib's."""
    data = encode_entry(TWO)
    length, kind, time_ns, sequence, bitmap = struct.unpack_from("<IBqQQ", data)
    assert (length, kind, time_ns, sequence) == (len(data) - 8, 0, TWO.ingested_at_ns, 8)
    assert bitmap == 1 << 30 | 1 << 63
    assert struct.unpack_from("<H32sII", data, 29) == (30, bytes(range(32)), 3, 10)
    assert data[71:81] == b"\xff\xff\xff\xffthirty"
    assert struct.unpack_from("<H32sII", data, 81) == (63, b"\xee" * 32, 2**32 - 1, 0)
    assert struct.unpack_from("<I", data, 123) == (zlib.crc32(data[4:123]),)
    assert len(data) == 127


@given(entries, st.binary(max_size=40))
def test_round_trip_at_any_offset(entry, before):
    """Entries come back from the middle of a file too; `end` is where the next one starts."""
    data = before + encode_entry(entry)
    assert decode_entry(memoryview(data + EMPTY), len(before)) == Frame(entry, len(data))
    assert decode_entry(memoryview(data + EMPTY), len(data)) == Frame(EMPTY_VALUE, len(data) + 33)


def test_slots_are_written_ascending_and_read_in_any_order():
    """We write ascending; the engine writes as described, and the id in the block counts."""
    turned = WalEntry(0, TWO.ingested_at_ns, 8, TWO.slots[::-1])
    assert encode_entry(turned) == encode_entry(TWO)
    data = framed(body_of(block(9, b"nine"), block(2, b"two"), bitmap=1 << 9 | 1 << 2))
    answer = decode(memoryview(data))
    assert [(slot.slot, bytes(slot.payload)) for slot in answer.value.slots] == [(9, b"nine"), (2, b"two")]


@pytest.mark.parametrize("data", [EMPTY, encode_entry(TWO)], ids=["empty", "two"])
def test_mistreated(data):
    """Cut anywhere it wants more, junk is left, and no flipped bit comes through: not even in the length."""
    feeding.assert_prefixes_want_more(data, decode)
    feeding.assert_junk_is_left(data, decode, decode(memoryview(data)).value)
    feeding.assert_flips_are_seen(data, decode)
    feeding.assert_flips_are_seen(data + bytes(300), decode, unprotected=range(len(data), len(data) + 300))


def test_zeros_are_not_an_entry():
    """A zero length ends the log: files are zeroed ahead of the writer."""
    assert decode(memoryview(bytes(4))) == NeedMore(1)
    assert decode(memoryview(bytes(4096))) == NeedMore(1)


@pytest.mark.parametrize(("body", "entry_type"), [(b"\x01", 1), (b"\x02" + b"x" * 100, 2), (b"\xff" * 25, 255)])
def test_unknown_entry_types_are_skipped_by_their_length(body, entry_type):
    """Of a type from the future only the length is understood, however short or long it is."""
    data = framed(body)
    assert decode(memoryview(data)) == Frame(WalEntry(entry_type, 0, 0, ()), len(data))
    assert isinstance(decode(memoryview(framed(body, crc=1))), Damage)


def test_lengths_are_bounded():
    """256 MiB is believed, one byte more is not; neither is what has no room for the fields of a bundle."""
    assert decode(memoryview(struct.pack("<I", ENTRY_BYTES_MAX))) == NeedMore(ENTRY_BYTES_MAX + 4)
    assert isinstance(decode(memoryview(struct.pack("<I", ENTRY_BYTES_MAX + 1))), Damage)
    assert isinstance(decode(memoryview(framed(b"\0" * 24))), Damage)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (body_of(bitmap=1), "slot block starts"),
        (body_of(block(3), bitmap=1 << 4), "not in the bitmap"),
        (body_of(block(64), bitmap=1), "not in the bitmap"),
        (body_of(block(3), block(3), bitmap=1 << 3 | 1 << 4), "appears twice"),
        (body_of(block(3, b"ab", payload_bytes=3), bitmap=1 << 3), "payload_len 3"),
        (body_of(block(3, b"ab", payload_bytes=2**32 - 1), bitmap=1 << 3), "payload_len"),
        (body_of(block(3, b"ab", payload_bytes=1), bitmap=1 << 3), "after the last slot"),
        (body_of(block(3), bitmap=2**64 - 1), "slot block starts"),
        (body_of(b"junk", bitmap=0), "after the last slot"),
    ],
)
def test_contradictions_under_a_good_checksum(body, reason):
    """A checksum proves that the bytes are those written, not that they make sense."""
    answer = decode(memoryview(framed(body)))
    assert isinstance(answer, Damage)
    assert reason in answer.reason


@pytest.mark.parametrize(
    "wrong",
    [
        (WalSlot(64, b"f" * 32, 1, memoryview(b"")),),
        (WalSlot(-1, b"f" * 32, 1, memoryview(b"")),),
        (WalSlot(1, b"f" * 32, 1, memoryview(b"")), WalSlot(1, b"f" * 32, 1, memoryview(b""))),
        (WalSlot(1, b"f" * 31, 1, memoryview(b"")),),
        (WalSlot(1, b"f" * 32, 1, memoryview(bytes(ENTRY_BYTES_MAX - 66))),),
    ],
)
def test_what_cannot_be_read_is_not_written(wrong):
    """An entry that a reader would refuse is refused by the writer."""
    with pytest.raises(InvalidBundleError):
        encode_entry(WalEntry(0, 1, 2, wrong))


@given(entries, st.binary(max_size=60), st.binary(max_size=60))
def test_an_entry_is_found_behind_junk(entry, before, behind):
    """The first complete entry is found at its very start, after any bytes."""
    data = memoryview(before + encode_entry(entry) + behind)
    if entry.sequence < 2**48:
        found = find_entry(data, 0, 0)
        assert found is not None
        assert isinstance(decode_entry(data, found), Frame)
        assert found <= len(before)
    assert looks_like_entry(data, len(before), entry.sequence)
    assert not looks_like_entry(data, len(before), entry.sequence + 1)


def test_cut_entries_do_not_look_like_entries():
    """The structural check wants the whole entry, and every length to add up."""
    data = encode_entry(TWO)
    for size in range(len(data)):
        assert not looks_like_entry(memoryview(data)[:size], 0, 0)
        assert find_entry(memoryview(data)[:size], 0, 0) is None
    for at, hurt in feeding.flips(data):
        found = find_entry(memoryview(hurt), 0, 0)
        assert found is None, at
        looks_like_entry(memoryview(hurt), 0, 0)
    assert find_entry(memoryview(bytes(1 << 16)), 0, 0) is None


@given(st.binary(max_size=200), st.integers(0, 50))
def test_any_bytes(data, offset):
    """No bytes make any of the three raise."""
    decode_entry(memoryview(data), offset)
    looks_like_entry(memoryview(data), offset, 0)
    find_entry(memoryview(data), offset, 0)
