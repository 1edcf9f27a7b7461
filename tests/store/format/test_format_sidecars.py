"""The cursor, the segment floor and the notes of room: 24 bytes each."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import format_feeding as feeding
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.store.format.cursor import decode_cursor, encode_cursor
from quiver.store.format.floor import Floor, decode_floor, decode_floor_file, encode_floor
from quiver.store.format.room import decode_cap_note, decode_room_wanted, encode_cap_note, encode_room_wanted

CURSOR_0 = bytes.fromhex("5155495645520054010018000000000000000000b77c3664")
CURSOR_1234567 = bytes.fromhex("51554956455200540100180087d61200000000009b65c5bb")
FLOOR_42 = bytes.fromhex("5155495645520046010018002a00000000000000b811dbd8")
FLOOR_RESTORED = bytes.fromhex("51554956455200460200280000401e18240a06002a0000000000000000401e18240a0600673d7991")
CAP_123456789 = bytes.fromhex("515549564552004c0100180015cd5b070000000020eccac7")
WANTED_33554432 = bytes.fromhex("515549564552005701001800000000020000000019433ca3")
KINDS = [
    (encode_cursor, decode_cursor, b"QUIVER\0T"),
    (encode_floor, decode_floor, b"QUIVER\0F"),
    (encode_cap_note, decode_cap_note, b"QUIVER\0L"),
    (encode_room_wanted, decode_room_wanted, b"QUIVER\0W"),
]


def test_golden():
    """Two cursors as the released engine writes them, and a floor as Quiver writes it."""
    assert [encode_cursor(0), encode_cursor(1234567), encode_floor(42)] == [CURSOR_0, CURSOR_1234567, FLOOR_42]
    assert decode_cursor(memoryview(CURSOR_0)) == Frame(0, 24)
    assert decode_cursor(memoryview(CURSOR_1234567)) == Frame(1234567, 24)
    assert decode_floor(memoryview(FLOOR_42)) == Frame(42, 24)
    assert [encode_cap_note(123456789), encode_room_wanted(33554432)] == [CAP_123456789, WANTED_33554432]


@pytest.mark.parametrize(("encode", "decode", "magic"), KINDS)
@given(value=st.integers(0, 2**64 - 1))
def test_round_trip(encode, decode, magic, value):
    """Every 64-bit number comes back."""
    assert decode(memoryview(encode(value))) == Frame(value, 24)


@pytest.mark.parametrize(("encode", "decode", "magic"), KINDS)
def test_mistreated(encode, decode, magic):
    """Every prefix needs more, junk after the end is ignored, and every flipped bit is detected."""
    data = encode(1234567)
    feeding.assert_prefixes_want_more(data, decode)
    feeding.assert_junk_is_left(data, decode, 1234567)
    feeding.assert_flips_are_seen(data, decode)


def test_one_is_not_the_other():
    """A cursor is not read as a floor, and a floor not as a cursor."""
    assert isinstance(decode_floor(memoryview(CURSOR_0)), Damage)
    assert isinstance(decode_cursor(memoryview(FLOOR_42)), Damage)


def grown(magic: bytes, version: int, *, crc_at_end: bool) -> bytes:
    """A file of 32 bytes by a later writer: fields added before the checksum, or after it."""
    if crc_at_end:
        body = struct.pack("<8sHHQQ", magic, version, 32, 77, 0xABCD)
        return body + struct.pack("<I", zlib.crc32(body))
    body = struct.pack("<8sHHQ", magic, version, 32, 77)
    return body + struct.pack("<I", zlib.crc32(body)) + bytes(8)


@pytest.mark.parametrize(("encode", "decode", "magic"), KINDS)
@pytest.mark.parametrize("version", [1, 2, 65535])
@pytest.mark.parametrize("crc_at_end", [True, False])
def test_a_later_version_is_read(encode, decode, magic, version, crc_at_end):
    """Fields of a later version are skipped in both places of the checksum, which must still match."""
    data = grown(magic, version, crc_at_end=crc_at_end)
    assert decode(memoryview(data)) == Frame(77, 32)
    for size in range(24, 32):
        assert isinstance(decode(memoryview(data)[:size]), NeedMore)
    hurt = bytearray(data)
    hurt[12] ^= 1
    assert isinstance(decode(memoryview(hurt)), Damage)


@pytest.mark.parametrize(("encode", "decode", "magic"), KINDS)
def test_version_0_and_short_sizes_are_refused(encode, decode, magic):
    """There never was a version 0, and 24 bytes are the least."""
    body = struct.pack("<8sHHQ", magic, 0, 24, 77)
    answer = decode(memoryview(body + struct.pack("<I", zlib.crc32(body))))
    assert isinstance(answer, Damage)
    assert "unsupported version 0" in answer.reason
    body = struct.pack("<8sHHQ", magic, 1, 23, 77)
    assert decode(memoryview(body + struct.pack("<I", zlib.crc32(body)))) == Damage(10, "size 23 is below 24")


@given(st.binary(max_size=64), st.integers(0, 12))
def test_any_bytes(data, size):
    """No bytes make either raise."""
    for _, decode, magic in KINDS:
        decode(memoryview(data))
        assert not isinstance(decode(memoryview(magic[:size] + data)), Frame)


def test_golden_of_a_restored_store():
    """The numbers that were skipped come back; who asks for the floor alone gets that."""
    assert encode_floor(1_700_000_000_000_000, skipped=range(42, 1_700_000_000_000_000)) == FLOOR_RESTORED
    view = memoryview(FLOOR_RESTORED)
    assert decode_floor_file(view) == Frame(Floor(1_700_000_000_000_000, range(42, 1_700_000_000_000_000)), 40)
    assert decode_floor(view) == Frame(1_700_000_000_000_000, 40)
    assert decode_floor_file(memoryview(FLOOR_42)) == Frame(Floor(42), 24)


def test_a_restored_floor_mistreated():
    """Every prefix needs more, junk after the end is ignored, and every flipped bit is detected."""
    feeding.assert_prefixes_want_more(FLOOR_RESTORED, decode_floor_file)
    feeding.assert_junk_is_left(
        FLOOR_RESTORED, decode_floor_file, Floor(1_700_000_000_000_000, range(42, 1_700_000_000_000_000))
    )
    feeding.assert_flips_are_seen(FLOOR_RESTORED, decode_floor_file)


@pytest.mark.parametrize("skipped", [range(9, 7), range(3, 11)])
def test_skipped_numbers_lie_below_the_floor(skipped):
    """And they end where they begin, or later."""
    answer = decode_floor_file(memoryview(encode_floor(10, skipped=skipped)))
    assert isinstance(answer, Damage)
    assert answer.offset == 20
