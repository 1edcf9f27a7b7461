"""The lines of the audit trail: exact bytes, and anything else is passed over."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.store.format.audit import (
    AUDIT_RANGES_MAX,
    AUDIT_WHY_LENGTH_MAX,
    AuditRecord,
    decode_audit,
    encode_audit_record,
    ranges_of,
)

ACKED = AuditRecord(1_769_860_800_000_000_007, "exporter", 5, ((3, 3),), "acked")
DROPPED = AuditRecord(0, "a", 0, ((0, 3), (7, 7)), "dropped", "size")

GOLDEN = (
    b'{"at":"2026-01-31T12:00:00.000000007Z","subscriber":"exporter","segment":5,"bundles":[[3,3]],"outcome":"acked"}\n'
    b'{"at":"1970-01-01T00:00:00.000000000Z","subscriber":"a","segment":0,"bundles":[[0,3],[7,7]],"outcome":"dropped",'
    b'"why":"size"}\n'
)


def test_golden_lines():
    assert encode_audit_record(ACKED) + encode_audit_record(DROPPED) == GOLDEN
    assert list(decode_audit(GOLDEN)) == [ACKED, DROPPED]


def test_every_prefix_gives_the_lines_that_are_whole():
    """A power cut may leave any of them."""
    first = GOLDEN.index(b"\n")
    for length in range(len(GOLDEN)):
        assert len(list(decode_audit(GOLDEN[:length]))) == (length >= first) + (length == len(GOLDEN) - 1)


def test_no_flipped_byte_raises():
    """The line may be another valid line, or none; lines have no checksum."""
    for at in range(len(GOLDEN)):
        damaged = bytearray(GOLDEN)
        damaged[at] ^= 0x20
        assert len(list(decode_audit(bytes(damaged)))) <= 2


@given(st.binary(max_size=200))
def test_what_is_no_line_is_passed_over(junk):
    found = list(decode_audit(junk + b"\n" + GOLDEN + junk))
    assert [record for record in found if record in (ACKED, DROPPED)] == [ACKED, DROPPED]


@pytest.mark.parametrize(
    "change",
    [{"at": 7}, {"at": "2026-13-31T12:00:00.000000007Z"}, {"outcome": "lost"}, {"bundles": [[1]]}, {"segment": None}],
)
def test_a_line_that_says_something_impossible_is_passed_over(change):
    fields = json.loads(GOLDEN.splitlines()[0]) | change
    assert list(decode_audit(json.dumps(fields).encode())) == []
    assert list(decode_audit(b"[" * 100_000)) == []


@given(st.sets(st.integers(0, 300)))
def test_ranges_say_which_bits_are_set(indices):
    ranges = ranges_of(sum(1 << index for index in indices))
    assert {index for first, last in ranges for index in range(first, last + 1)} == indices
    assert all(left[1] + 1 < right[0] for left, right in itertools.pairwise(ranges))


def test_the_longest_line_is_bounded():
    """For every reason that a consumer may give."""
    ranges = tuple((65_000 + 2 * n, 65_001 + 2 * n) for n in range(AUDIT_RANGES_MAX))
    longest = AuditRecord(2**62, "x" * 64, 2**63 - 1, ranges, "rejected", "\U0001f4a5" * 5_000)
    line = encode_audit_record(longest)
    assert len(line) <= 2048
    assert len(next(decode_audit(line)).why) == AUDIT_WHY_LENGTH_MAX
