"""Packed segments: the table at the end, every prefix, every flipped bit; and how ordinary zstd unpacks one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiver.aof.format.names import object_key, parse_object_key, parse_warm_name, warm_name
from quiver.aof.format.record import encode_record, entries
from quiver.aof.format.segment_file import SegmentFooter, SegmentHeader, encode_footer, encode_header
from quiver.aof.format.warm_file import (
    FRAME_BYTES,
    FRAMES_MAX,
    PackedFrame,
    decode_seek_table,
    encode_seek_table,
    seek_table_bytes,
)
from quiver.aof.tiers.packed import PackedSegment, pack, records_problem
from quiver.errors import CorruptionError
from quiver.primitives.checksum import crc64_nvme, fold64to32
from quiver.primitives.scan import Damage, Frame, NeedMore

TABLE = bytes.fromhex("5e2a4d1819000000" + "5000000064000000" + "3c00000060000000" + "02000000" + "00" + "b1ea928f")


def segment(*payloads: bytes) -> tuple[memoryview, int, SegmentFooter]:
    """Return a sealed segment without its empty space, its end, and its footer."""
    header = SegmentHeader(3, 10, 1000, 4 << 20, 5, 6, 7)
    body = encode_header(header) + b"".join(encode_record(one, timestamp=9, ext_id=7) for one in payloads)
    crc = 0
    for one in payloads:
        crc = crc64_nvme(one, crc)
    last = len(body) - len(payloads[-1]) - 24
    footer = SegmentFooter(3, 10, len(payloads), 1000 + len(body), 3 << 32 | last, 9, 8, fold64to32(crc), 7)
    return memoryview(body + bytes(100) + encode_footer(footer)), len(body), footer


def records(data) -> list:
    return list(entries(memoryview(data), 64, len(data)))


def opened(data: bytes) -> PackedSegment:
    return PackedSegment("x.zst", len(data), lambda start, length: data[start : start + length])


def test_a_recorded_table_round_trips():
    """The seekable format of zstd, byte by byte."""
    assert encode_seek_table([(80, 100), (60, 96)]) == TABLE
    frames = (PackedFrame(0, 80, 0, 100), PackedFrame(80, 60, 100, 96))
    assert decode_seek_table(memoryview(TABLE), 140 + len(TABLE)) == Frame(frames, len(TABLE))
    assert decode_seek_table(memoryview(b"junk" * 9 + TABLE), 140 + len(TABLE)) == Frame(frames, len(TABLE))
    assert seek_table_bytes(memoryview(TABLE)) == Frame(len(TABLE), 9)


def test_truncated_and_flipped_tables_are_detected():
    """A partial table needs more bytes; a flipped bit is damage, or gives sizes that contradict the file."""
    size = 140 + len(TABLE)
    for start in range(1, len(TABLE)):
        assert isinstance(decode_seek_table(memoryview(TABLE[start:]), size), NeedMore)
    for at in range(len(TABLE)):
        for bit in range(8):
            wound = bytearray(TABLE)
            wound[at] ^= 1 << bit
            found = decode_seek_table(memoryview(bytes(wound)), size)
            assert isinstance(found, (Damage, NeedMore)) or (at in range(12, 16) and found.value[0].size_bytes != 100)
    assert isinstance(decode_seek_table(memoryview(TABLE), size + 1), Damage)
    count = (FRAMES_MAX + 1).to_bytes(4, "little")
    assert isinstance(seek_table_bytes(memoryview(TABLE[:-9] + count + TABLE[-5:])), Damage)


@pytest.mark.parametrize("sizes", [(1,), (5, 100, 3), (FRAME_BYTES - 88,), (FRAME_BYTES, 7, 3 * FRAME_BYTES + 1)])
def test_a_packed_segment_round_trips(sizes):
    """Completely, and any part of it; any zstd unpacks it."""
    view, end, footer = segment(*(bytes([65 + number]) * size for number, size in enumerate(sizes)))
    data = b"".join(pack(view, end, footer, level=3))
    found = opened(data)
    complete = b"".join(found.plain())
    assert (complete, found.end, found.footer) == (bytes(view[:end]), end, footer)
    assert records_problem(memoryview(complete), found.header, footer) is None
    for start, stop in ((64, end), (end - 1, end), (end, end + 5), (FRAME_BYTES - 3, FRAME_BYTES + 3), (0, 1)):
        assert found.read(start, stop) == complete[start:stop]
    plain = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
    assert plain == complete + encode_footer(footer)


def test_damage_is_never_accepted_as_a_segment():
    """
    Any flipped bit and any length is refused by open, unpack or the checksums of records. Times and cohorts have no
    checksum in their records; the checksum of the complete segment covers them.
    """
    view, end, footer = segment(*(b"%d" % number * 30 for number in range(20)))
    data = b"".join(pack(view, end, footer, level=3))
    wounds = [data[:size] for size in range(0, len(data), 5)] + [data + b"x"]
    wounds += [data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(len(data))]
    for wound in wounds:
        try:
            found = opened(wound)
            complete = b"".join(found.plain())
        except CorruptionError:
            continue
        same = (complete, found.footer) == (bytes(view[:end]), footer)
        problem = records_problem(memoryview(complete), found.header, footer)
        assert (
            same
            or problem is not None
            or [one.payload for one in records(complete)] == [one.payload for one in records(view[:end])]
        )
        assert found.checksum() != crc64_nvme(data)


def test_foreign_names_are_not_parsed():
    """Only names that the code builds are parsed."""
    assert parse_warm_name(warm_name(1, 2, 3)) == (1, 2, 3)
    assert parse_object_key("prefix/" + object_key(2**64 - 1, 2, 3)) == (2**64 - 1, 2, 3)
    for wrong in ("", "1_2_3.zst", "segment-2-3.zst", warm_name(1, 2, 3) + ".tmp"):
        assert parse_warm_name(wrong) is None
        assert parse_object_key(wrong) is None
