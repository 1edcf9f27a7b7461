"""The scan of AOF2 records in the compiled kernel has the results of its twin, for valid and for broken bytes."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.aof.format import record
from quiver.aof.format.record import RecordScan, encode_record

# Recorded from the original's own code.
GOLDEN = bytes.fromhex(
    "0500000027c7253522110000000000002a0000000000000068656c6c6f"
    "07000000d165a7a133110000000000002a000000000000007061796c6f6164"
)
payloads = st.lists(st.binary(min_size=1, max_size=300), max_size=12)


def scanned(step, data, offset, limit, crc64=0):
    found = RecordScan(offset, offset, crc64=crc64)
    while step(found, memoryview(data), limit):
        pass
    return found


def assert_same(data, offset, limit, crc64=0):
    in_kernel = scanned(record._scan_batch_in_kernel, data, offset, limit, crc64)
    assert in_kernel == scanned(record._scan_batch_in_python, data, offset, limit, crc64)
    return in_kernel


def encoded(contents):
    return b"".join(encode_record(payload, timestamp=at, ext_id=at * 3) for at, payload in enumerate(contents, 1))


def test_recorded_records(kernel):
    """Both records of the original are found, followed by nothing, zeros, or other bytes."""
    for tail in (b"", bytes(64), b"\xff" * 64):
        found = assert_same(GOLDEN + tail, 0, len(GOLDEN + tail))
        assert (found.end, found.record_count, found.last_offset) == (len(GOLDEN), 2, 29)


def test_every_limit_and_every_flipped_bit(kernel):
    """Truncated anywhere, and with any bit flipped, both scans end at the same record."""
    for limit in range(len(GOLDEN) + 1):
        assert_same(GOLDEN, 0, limit)
    for bit in range(len(GOLDEN) * 8):
        flipped = bytearray(GOLDEN)
        flipped[bit // 8] ^= 1 << bit % 8
        assert_same(flipped, 0, len(flipped))


@given(contents=payloads, tail=st.binary(max_size=80), cut=st.integers(0, 100), crc64=st.integers(0, 2**64 - 1))
def test_records_with_any_tail(kernel, contents, tail, cut, crc64):
    """Any records with any bytes after them, continued from any checksum, up to any limit."""
    data = encoded(contents) + tail
    assert_same(data, 0, max(0, len(data) - cut), crc64)


@given(data=st.binary(max_size=200), offset=st.integers(0, 40))
def test_any_bytes(kernel, data, offset):
    """Bytes that are no records."""
    assert_same(data, offset, len(data))


@given(contents=payloads, at=st.integers(0, 4000), length=st.integers(0, 2**32 - 1))
def test_any_length_in_a_head(kernel, contents, at, length):
    """A length that was overwritten reaches no byte after the limit."""
    data = bytearray(encoded(contents))
    at = min(at, max(len(data) - 4, 0))
    data[at : at + 4] = struct.pack("<I", length)
    assert_same(data, 0, len(data))


def test_batches_and_records_larger_than_one(kernel):
    """A scan in many batches, and a record that is larger than a batch, end where a scan in one batch does."""
    data = encoded([bytes([number]) * (1 + number * 397) for number in range(1, 100)] + [b"same length" * 999] * 100)
    complete = assert_same(data, 0, len(data))
    assert complete.record_count == 199
    for batch_bytes in (1, 100, 70_000):
        found = (0, 0, 0, 0, 0)
        count = 0
        while True:
            found = kernel.scan_records(data, found[0], len(data), batch_bytes, found[4])
            if not found[1]:
                break
            count += found[1]
        assert (found[0], count, found[4]) == (complete.end, complete.record_count, complete.crc64)


@pytest.mark.parametrize(("offset", "limit", "batch"), [(-1, 10, 10), (0, 61, 10), (0, 10, -1), (0, 2**62, 2**62)])
def test_ranges_outside_of_the_view_are_refused(kernel, offset, limit, batch):
    """The kernel reads nothing outside of the view."""
    with pytest.raises(ValueError, match="outside of the view"):
        kernel.scan_records(GOLDEN, offset, limit, batch, 0)


def test_an_offset_after_the_limit_has_no_records(kernel):
    """Neither scan reads after the limit."""
    for offset, limit in ((10, 5), (60, 60), (2**40, 60), (0, -5)):
        assert assert_same(GOLDEN, offset, limit).record_count == 0
