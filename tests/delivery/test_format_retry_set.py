"""
The bytes of a retry set: golden, complete, truncated anywhere, flipped anywhere, with trailing junk, of a later
version.
"""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disk_files import with_crc32
from quiver.bundle import BundleRef
from quiver.errors import InvariantError
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.store.format.describe.files import STORE_FILES
from quiver.store.format.retry_set import (
    REASON_BYTES_MAX,
    RETRY_ENTRIES_MAX,
    RETRY_ENTRY,
    RETRY_HEADER,
    RETRY_MAGIC,
    RetryEntry,
    decode_retry_set,
    encode_retry_set,
)

ENTRIES = (
    RetryEntry(BundleRef(7, 3), 2, 1_700_000_000_000_000_000, 1_700_000_004_000_000_000, "UNAVAILABLE"),
    RetryEntry(BundleRef(7, 4), 1, 5, 6, "", is_halted=True),
)
GOLDEN = bytes.fromhex(
    "5155495645520052 0100 1800 2800 0000 02000000 00000000"
    "0700000000000000 03000000 02000000 00002a36fe9c9717 00289524ff9c9717 0b00 000000000000"
    "554e415641494c41424c45"
    "0700000000000000 04000000 01000000 0500000000000000 0600000000000000 0000 010000000000"
    "7ca35cbc"
)
ENTRY = st.builds(
    RetryEntry,
    st.builds(BundleRef, st.integers(0, 2**64 - 1), st.integers(0, 65_535)),
    st.integers(1, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.text(max_size=40),
    st.booleans(),
)


def decode(data):
    return decode_retry_set(memoryview(data))


def test_a_retry_set_has_golden_bytes():
    """Independent of the order of the entries."""
    assert encode_retry_set(reversed(ENTRIES)) == GOLDEN
    assert decode(GOLDEN) == Frame(ENTRIES, len(GOLDEN))
    assert decode(GOLDEN + b"junk") == Frame(ENTRIES, len(GOLDEN))
    assert decode(encode_retry_set([])) == Frame((), 28)


def test_truncated_and_flipped_bytes_are_found():
    """Every prefix needs more bytes; every flipped byte is found."""
    for size in range(len(GOLDEN)):
        answer = decode(GOLDEN[:size])
        assert isinstance(answer, NeedMore)
        assert 1 <= answer.missing <= len(GOLDEN) - size
    for at in range(len(GOLDEN)):
        flipped = bytearray(GOLDEN)
        flipped[at] ^= 0xC1
        assert not isinstance(decode(bytes(flipped)), Frame), at


def test_unknown_fields_and_flags_are_skipped():
    """A later version may have more of them."""
    head = struct.pack("<8sHHH2xI4x", RETRY_MAGIC, 1, 28, 44, 1) + b"more"
    entry = RETRY_ENTRY.pack(7, 3, 2, 5, 6, 2, 0xFE) + b"more" + b"no"
    assert decode(with_crc32(head + entry)) == Frame((RetryEntry(BundleRef(7, 3), 2, 5, 6, "no"),), 28 + 46 + 4)


@pytest.mark.parametrize(
    ("head", "entries", "offset", "reason"),
    [
        ((b"QUIVER\0D", 1, 24, 40, 0), [], 0, "magic"),
        ((RETRY_MAGIC, 2, 24, 40, 0), [], 8, "unsupported version 2"),
        ((RETRY_MAGIC, 1, 23, 40, 0), [], 10, "header_size"),
        ((RETRY_MAGIC, 1, 24, 39, 0), [], 12, "entry_size"),
        ((RETRY_MAGIC, 1, 24, 513, 0), [], 12, "entry_size"),
        ((RETRY_MAGIC, 1, 24, 40, RETRY_ENTRIES_MAX + 1), [], 16, "entry_count"),
        ((RETRY_MAGIC, 1, 24, 40, 1), [(1, 65_536, 1, 0, 0, 0, 0)], 24, "bundle_index"),
        ((RETRY_MAGIC, 1, 24, 40, 1), [(1, 1, 1, 0, 0, REASON_BYTES_MAX + 1, 0)], 24, "reason_size"),
        ((RETRY_MAGIC, 1, 24, 40, 2), [(1, 1, 1, 0, 0, 0, 0), (1, 1, 1, 0, 0, 0, 0)], 64, "comes after"),
    ],
)
def test_damage_has_an_offset(head, entries, offset, reason):
    """Every length is checked before it is used."""
    answer = decode(with_crc32(RETRY_HEADER.pack(*head) + b"".join(RETRY_ENTRY.pack(*one) for one in entries)))
    assert isinstance(answer, Damage)
    assert answer.offset == offset
    assert reason in answer.reason


@given(st.lists(ENTRY, max_size=6, unique_by=lambda entry: entry.ref))
def test_entries_round_trip(entries):
    """In order of position; text is read back as text."""
    answer = decode(encode_retry_set(entries))
    assert isinstance(answer, Frame)
    assert answer.value == tuple(sorted(entries, key=lambda entry: entry.ref))


@given(st.binary(max_size=200))
def test_decoding_any_bytes_does_not_raise(data):
    """With or without the magic."""
    decode(data)
    decode(RETRY_MAGIC + data)


def test_long_reasons_are_cut_between_characters():
    (entry,) = decode(encode_retry_set([RetryEntry(BundleRef(0, 0), 1, 0, 0, "é" * 300 + "x")])).value
    assert entry.reason == "é" * 256


def test_an_invalid_set_is_not_encoded():
    """One with the same bundle twice."""
    with pytest.raises(InvariantError, match="a retry set has at most 65536 bundles, each once, not 2"):
        encode_retry_set([ENTRIES[0], ENTRIES[0]])


def test_inspect_describes_a_retry_set():
    """By its name, or by its magic under any other name."""
    for name in ("quiver.retry.otlp", "copy.bin"):
        description = STORE_FILES.describe(name, memoryview(GOLDEN))
        assert (description.kind, description.is_intact, description.fields) == ("retry set", True, {"bundles": 2})
        assert description.tables["waiting"][0] == {
            "bundle": "7:3",
            "attempts": 2,
            "first_failed_at_ns": 1_700_000_000_000_000_000,
            "next_try_at_ns": 1_700_000_004_000_000_000,
            "halted": False,
            "reason": "UNAVAILABLE",
        }
    assert STORE_FILES.describe("quiver.retry.otlp", memoryview(GOLDEN[:-1])).is_intact is False
    assert STORE_FILES.describe("quiver.retry.otlp.lock", memoryview(b"1 it\n")).kind == "lock"
