"""The 38 bytes at the start of a WAL file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import format_feeding as feeding
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.store.format.wal_file import WAL_HEADER_BYTES, WalHeader, decode_wal_header, encode_wal_header

CONSTANT_HASH = b"QUIVER_SEGCFG\0\0\0"
AT_0 = bytes.fromhex("5155495645520057414c010026005155495645525f5345474346470000000000000000000000")
AT_1234567 = bytes.fromhex("5155495645520057414c010026005155495645525f53454743464700000087d6120000000000")


@pytest.mark.parametrize(("golden", "position"), [(AT_0, 0), (AT_1234567, 1234567)])
def test_golden(golden, position):
    """The bytes that the released engine writes."""
    assert encode_wal_header(CONSTANT_HASH, position) == golden
    header = WalHeader(1, WAL_HEADER_BYTES, CONSTANT_HASH, position)
    assert decode_wal_header(memoryview(golden)) == Frame(header, 38)


@given(st.binary(min_size=16, max_size=16), st.integers(0, 2**64 - 1))
def test_round_trip(config_hash, position):
    """Any hash and any position come back."""
    answer = decode_wal_header(memoryview(encode_wal_header(config_hash, position)))
    assert answer == Frame(WalHeader(1, 38, config_hash, position), 38)


@pytest.mark.parametrize("version", [0, 2, 3, 65535])
def test_other_versions_are_refused(version):
    """A future version is reported, with any other contents; so is version 0."""
    data = AT_0[:10] + version.to_bytes(2, "little") + AT_0[12:]
    answer = decode_wal_header(memoryview(data + b"future"))
    assert isinstance(answer, Damage)
    assert (answer.offset, f"unsupported version {version}" in answer.reason) == (10, True)


def test_a_larger_head_is_read_and_its_own_size_counts():
    """Fields added at the end are skipped, and positions are counted from there."""
    data = AT_1234567[:12] + (40).to_bytes(2, "little") + AT_1234567[14:] + b"\xab\xcd"
    answer = decode_wal_header(memoryview(data + b"entries"))
    assert answer == Frame(WalHeader(1, 40, CONSTANT_HASH, 1234567), 40)
    assert (answer.value.position(40), answer.value.position(45)) == (1234567, 1234572)
    assert decode_wal_header(memoryview(data[:39])) == NeedMore(1)


@pytest.mark.parametrize("size", [0, 13, 14, 37])
def test_a_smaller_head_is_refused(size):
    """Version 1 has 38 bytes at least."""
    answer = decode_wal_header(memoryview(AT_0[:12] + size.to_bytes(2, "little") + AT_0[14:]))
    assert answer == Damage(12, f"header_size {size} is below 38")


def test_mistreated():
    """Every prefix needs more; junk after the end is ignored; flips never raise (it has no checksum)."""
    feeding.assert_prefixes_want_more(AT_1234567, decode_wal_header)
    feeding.assert_junk_is_left(AT_1234567, decode_wal_header, WalHeader(1, 38, CONSTANT_HASH, 1234567))
    feeding.assert_flips_are_seen(AT_1234567, decode_wal_header, unprotected=range(14, 38))


@given(st.binary(max_size=64))
def test_any_bytes(data):
    """No bytes make it raise; other files are refused at the first byte that differs."""
    answer = decode_wal_header(memoryview(data))
    assert isinstance(answer, Damage) or b"QUIVER\0WAL".startswith(data[:10])
