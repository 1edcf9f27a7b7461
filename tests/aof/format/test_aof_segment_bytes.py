"""Headers, records, footers and pointers: recorded bytes, every prefix, every flipped bit, later versions."""

import dataclasses
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.aof.format.record import (
    RECORD_HEAD_BYTES,
    checksum_of,
    decode_record,
    encode_record,
    entries,
    join_record_id,
    scan_records,
    split_record_id,
)
from quiver.aof.format.sealed_pointer import SealedPointer, decode_pointer, encode_pointer
from quiver.aof.format.segment_file import (
    FOOTER_BYTES,
    HEADER_BYTES,
    SegmentFooter,
    SegmentHeader,
    agrees_with,
    decode_footer,
    decode_header,
    encode_footer,
    encode_header,
)
from quiver.primitives.checksum import crc64_nvme, fold64to32
from quiver.primitives.scan import Damage, Frame, NeedMore

# Recorded from the original's own code.
HEADER = bytes.fromhex(
    "32464f41020040000700000009000000000000000010000000000000000001007b0000000000000022110000000000002a0000000000000000"
    "00000000000000"
)
RECORDS = [
    bytes.fromhex("0500000027c7253522110000000000002a0000000000000068656c6c6f"),
    bytes.fromhex("07000000d165a7a133110000000000002a000000000000007061796c6f6164"),
]
FOOTER = bytes.fromhex(
    "544f4f460200000007000000090000000000000002000000000000007c100000000000005d000000070000003311000000000000c80100000000"
    "0000f0e693c42a000000000000004d0000000000000001000000000000000000000000000000"
)
POINTER = bytes.fromhex("325350430100000007000000000000004d000000000000007c10000000000000")

HEADER_VALUE = SegmentHeader(7, 9, 4096, 65536, 123, 0x1122, 42)
FOOTER_VALUE = SegmentFooter(7, 9, 2, 4096 + 124, join_record_id(7, 93), 0x1133, 456, 0xC493E6F0, 42, 77, True)
POINTER_VALUE = SealedPointer(7, 77, 4096 + 124)

WHOLE = [
    (encode_header, decode_header, HEADER_VALUE, HEADER),
    (encode_footer, decode_footer, FOOTER_VALUE, FOOTER),
    (encode_pointer, decode_pointer, POINTER_VALUE, POINTER),
]


@pytest.mark.parametrize(("encode", "decode", "value", "data"), WHOLE)
def test_recorded_bytes_round_trip(encode, decode, value, data):
    """Bytes of the original are decoded and encoded; bytes after them are ignored."""
    assert encode(value) == data
    assert decode(memoryview(data)) == Frame(value, len(data))
    assert decode(memoryview(data + b"junk")) == Frame(value, len(data))


@pytest.mark.parametrize(("encode", "decode", "value", "data"), WHOLE)
def test_every_prefix_needs_more(encode, decode, value, data):
    """Truncated anywhere, the decoder requests exactly the missing bytes."""
    for size in range(len(data)):
        assert decode(memoryview(data[:size])) == NeedMore(len(data) - size)


@pytest.mark.parametrize(("encode", "decode", "value", "data"), WHOLE)
def test_every_flipped_bit_is_damage_or_another_value(encode, decode, value, data):
    """No flipped bit makes the decoder raise, and none is ignored."""
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        answer = decode(memoryview(flipped))
        assert isinstance(answer, Damage) or (isinstance(answer, Frame) and answer.value != value), bit


@pytest.mark.parametrize(
    ("decode", "data", "at", "size"),
    [(decode_header, HEADER, 4, 2), (decode_footer, FOOTER, 4, 4), (decode_pointer, POINTER, 4, 2)],
)
def test_the_error_for_a_later_version_has_the_version(decode, data, at, size):
    """The version is checked before all fields that a later version may have moved."""
    later = bytearray(data)
    later[at : at + size] = (9).to_bytes(size, "little")
    later[at + size :] = b"\xff" * (len(data) - at - size)
    answer = decode(memoryview(later))
    assert isinstance(answer, Damage)
    assert "unsupported version 9" in answer.reason


@pytest.mark.parametrize("at", range(56, 64))
def test_reserved_bytes_of_a_header_must_be_zero(at):
    """A set bit is reported with its offset."""
    data = bytearray(HEADER)
    data[at] = 1
    answer = decode_header(memoryview(data))
    assert isinstance(answer, Damage)
    assert answer.offset == 56


def test_a_segment_without_space_for_records_is_damage():
    """A size that leaves no byte for records is refused."""
    for size, good in ((0, False), (160, False), (161, True)):
        answer = decode_header(memoryview(encode_header(dataclasses.replace(HEADER_VALUE, max_size=size))))
        assert isinstance(answer, Frame) is good


def test_recorded_records_are_decoded():
    """Two consecutive records without padding: the second starts at byte 93."""
    assert encode_record(b"hello", timestamp=0x1122, ext_id=42) == RECORDS[0]
    assert encode_record(b"payload", timestamp=0x1133, ext_id=42) == RECORDS[1]
    segment = memoryview(HEADER + b"".join(RECORDS) + bytes(100))
    found = list(entries(segment, HEADER_BYTES, len(segment)))
    assert [(one.offset, bytes(one.payload), one.timestamp, one.ext_id) for one in found] == [
        (64, b"hello", 0x1122, 42),
        (93, b"payload", 0x1133, 42),
    ]
    scan = scan_records(segment, HEADER_BYTES, len(segment))
    assert (scan.end, scan.record_count, scan.last_offset, scan.last_timestamp) == (124, 2, 93, 0x1133)
    assert scan.checksum == 0xC493E6F0
    assert scan.damage is None


@pytest.mark.parametrize(
    ("data", "checksum"),
    [
        (b"123456789", 0xA4F28C0E), (b"hello", 0x3525C727), (b"payload", 0xA1A765D1), (b"abc", 0x3A243050),
        (bytes(32), 0x827ABC78), (bytes(4096), 0x8FA06529),
    ],
)  # fmt: skip
def test_folded_checksums_have_known_values(data, checksum):
    """Known values of CRC-64/NVME folded to 32 bits."""
    assert checksum_of(data) == checksum
    assert checksum_of(memoryview(data)) == checksum


def test_the_payload_checksum_covers_all_payloads():
    """The payloads count as one concatenated payload."""
    assert fold64to32(crc64_nvme(b"payload", crc64_nvme(b"hello"))) == checksum_of(b"hellopayload") == 0xC493E6F0


def test_record_ids_are_ordered_as_records():
    """The segment is in the upper half, the offset in the lower."""
    assert join_record_id(7, 93) == 0x0000_0007_0000_005D
    assert split_record_id(join_record_id(2**32 - 1, 2**32 - 1)) == (2**32 - 1, 2**32 - 1)
    assert join_record_id(1, 2**32 - 1) < join_record_id(2, 64)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.binary(max_size=30))
@settings(max_examples=60)
def test_records_of_any_length_are_scanned(payloads, junk):
    """Aligned or not, each record starts at the end of the previous one."""
    data = b"".join(encode_record(payload, timestamp=1) for payload in payloads)
    scan = scan_records(memoryview(data + bytes(24)), 0, len(data) + 24)
    assert (scan.record_count, scan.end, scan.damage) == (len(payloads), len(data), None)
    assert scan.checksum == (checksum_of(b"".join(payloads)) if payloads else 0)
    after = scan_records(memoryview(data + junk), 0, len(data) + len(junk))
    assert after.record_count >= len(payloads)


@settings(max_examples=200)
@given(
    st.lists(st.binary(min_size=1, max_size=9).map(lambda piece: piece * 3000) | st.binary(min_size=1, max_size=40)),
    st.binary(max_size=60),
    st.none() | st.integers(0, 2**20),
    st.integers(0, 80),
)
def test_a_scan_in_batches_finds_what_a_scan_of_each_record_finds(payloads, junk, flipped, cut):
    """Records of several batches, with junk at the end, a flipped bit, and a limit inside the last record."""
    data = bytearray(b"".join(encode_record(one, timestamp=number) for number, one in enumerate(payloads)) + junk)
    if flipped is not None and data:
        data[flipped // 8 % len(data)] ^= 1 << flipped % 8
    view, limit = memoryview(data), max(0, len(data) - cut)
    intact = [one for one in entries(view, 0, limit) if not isinstance(one, Damage)]
    damage = next((one for one in entries(view, 0, limit) if isinstance(one, Damage)), None)
    scan = scan_records(view, 0, limit)
    assert (scan.record_count, scan.damage) == (len(intact), damage)
    assert scan.crc64 == crc64_nvme(b"".join(one.payload for one in intact))
    if intact:
        last = intact[-1]
        assert (scan.last_offset, scan.last_timestamp) == (last.offset, last.timestamp)
        assert scan.end == last.offset + RECORD_HEAD_BYTES + len(last.payload)


def test_a_record_truncated_anywhere_is_detected():
    """Truncation in the payload is damage, in the head it ends the records; the limit counts, not the buffer."""
    record = encode_record(b"payload", timestamp=5)
    for size in range(len(record)):
        answer = decode_record(memoryview(record), 0, size)
        assert isinstance(answer, NeedMore if size < RECORD_HEAD_BYTES else Damage)
    assert decode_record(memoryview(record), 0, len(record)).end == len(record)


def test_every_flipped_bit_of_length_checksum_and_payload_is_detected():
    """Timestamp and ext_id have no checksum; all other fields have one."""
    record = encode_record(b"payload", timestamp=5)
    for bit in range(len(record) * 8):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        answer = decode_record(memoryview(bytes(flipped)), 0, len(record))
        assert isinstance(answer, Frame) is (8 <= bit // 8 < 24), bit


def test_a_footer_of_another_segment_is_refused():
    """Another index or count, and bytes or a last record outside the file, are reported."""
    assert agrees_with(FOOTER_VALUE, HEADER_VALUE) is None
    for changes in (
        {"segment_index": 8},
        {"base_record_count": 1},
        {"durable_bytes": 4096 + 63},
        {"durable_bytes": 4096 + 65536 - 95},
        {"durable_bytes": 0},
        {"last_record_id": join_record_id(6, 93)},
        {"last_record_id": join_record_id(7, 63)},
        {"last_record_id": join_record_id(7, 125)},
    ):
        assert agrees_with(dataclasses.replace(FOOTER_VALUE, **changes), HEADER_VALUE) is not None, changes


def test_structs_have_the_same_sizes_on_every_machine():
    """64, 24, 96 and 32 bytes."""
    assert (HEADER_BYTES, RECORD_HEAD_BYTES, FOOTER_BYTES, len(POINTER)) == (64, 24, 96, struct.calcsize("<4Q"))
