"""Names are built and parsed in one place, and foreign names are ignored. Also the durability snapshot."""

import json

import pytest

from quiver.aof.format.durability import ScanMark, SegmentDurability, decode_durability, encode_durability
from quiver.aof.format.names import (
    SegmentName,
    archive_name,
    chunk_name,
    is_stream_name,
    parse_archive_name,
    parse_chunk_name,
    parse_segment_name,
    parse_spare_name,
    spare_name,
)
from quiver.primitives.scan import Damage, Frame


@pytest.mark.parametrize(
    "name",
    [
        SegmentName(0, 0, 0),
        SegmentName(7, 4096, 123),
        SegmentName(2**64 - 1, 2**64 - 1, 2**63 - 1),
        SegmentName(1, 2, -5),
    ],
)
def test_segment_names_round_trip(name):
    """Three numbers of twenty digits; lexical order is numerical order."""
    assert parse_segment_name(str(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "", "a.seg", "current.sealed", "00000000000000000007_00000000000000004096.seg",
        "7_4096_123.seg", "00000000000000000007_00000000000000004096_00000000000000000123.SEG",
        "00000000000000000007_00000000000000004096_00000000000000000123_1.seg",
        "99999999999999999999_00000000000000000000_00000000000000000000.seg",
        "00000000000000000007_00000000000000004096_99999999999999999999.seg",
        "\u0660" * 20 + "_00000000000000000000_00000000000000000000.seg",
    ],
)  # fmt: skip
def test_foreign_names_are_ignored(name):
    """Too few parts, other digits, numbers out of range."""
    assert parse_segment_name(name) is None


def test_names_of_archives_spares_and_chunks_round_trip():
    """Building and parsing are inverse."""
    assert parse_archive_name(archive_name(7, 456)) == (7, 456)
    assert parse_spare_name(spare_name(3)) == 3
    assert parse_chunk_name(chunk_name(9)) == 9
    for parse in (parse_archive_name, parse_spare_name, parse_chunk_name):
        assert parse("x") is None


@pytest.mark.parametrize("name", ["orders", "a.b-c_D9", "a" * 64])
def test_valid_stream_names_become_directories(name):
    """Each has its own directory."""
    assert is_stream_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a" * 65, "\u00e4", "a b", "a\n"])
def test_invalid_stream_names_are_refused(name):
    """A name must not leave the directory, be hidden, or be written differently on another system."""
    assert not is_stream_name(name)


def test_the_durability_snapshot_round_trips():
    """The text is compact and stays readable for the original."""
    mark = ScanMark(record_count=3, last_offset=900, last_timestamp=7, crc64=2**64 - 1, bytes_crc64=0)
    rows = (SegmentDurability(0, 1024, 1000), SegmentDurability(1, 64, 0), SegmentDurability(2, 1024, 1000, mark))
    data = encode_durability(rows)
    assert data.startswith(b'[{"segment_id":0,"requested_bytes":1024,"durable_bytes":1000},')
    assert decode_durability(memoryview(data)) == Frame(rows, len(data))


@pytest.mark.parametrize(
    "changed",
    [{"record_count": 0}, {"record_count": True}, {"crc64": 2**64}, {"last_offset": -1}, {"bytes_crc64": "1"}],
)
def test_a_durability_snapshot_with_an_invalid_mark_is_read_without_it(changed):
    """Without its mark, the segment is scanned from its first record."""
    mark = {"record_count": 3, "last_offset": 900, "last_timestamp": 7, "crc64": 1, "bytes_crc64": 2} | changed
    row = {"segment_id": 0, "requested_bytes": 1024, "durable_bytes": 1000} | mark
    answer = decode_durability(memoryview(json.dumps([row]).encode()))
    assert answer.value == (SegmentDurability(0, 1024, 1000),)


@pytest.mark.parametrize(
    "text",
    ["", "[", "{}", "[1]", "[{}]", '[{"segment_id":-1,"requested_bytes":1,"durable_bytes":1}]', "\xff",
     '[{"segment_id":true,"requested_bytes":1,"durable_bytes":1}]', "[" * 100_000,
     '[{"segment_id":0,"requested_bytes":1,"durable_bytes":2}]'],
)  # fmt: skip
def test_invalid_durability_texts_are_damage(text):
    """No text makes the decoder raise."""
    assert isinstance(decode_durability(memoryview(text.encode("latin-1"))), Damage)
