"""The frame of a segment file: footer, trailer, stream directory."""

import struct
import zlib

import format_segments as segments
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import format_feeding as feeding
from disk_files import with_new_crc32
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.store.format.segment.file import (
    CHUNKS_MAX,
    DIRECTORY_SCHEMA,
    SegmentFooter,
    StreamEntry,
    check_directory,
    check_segment_checksum,
    decode_directory,
    decode_segment_footer,
    encode_directory,
    encode_segment_footer,
    encode_segment_trailer,
)

FOOTER = bytes.fromhex("01000200000003000000001000000000000000020000001200000000000000030000")
FOOTER_VALUE = SegmentFooter(2, 3, 0x1000, 0x200, 0x1200, 0x300)
SEGMENT = segments.build_segment()
TRAILER_AT = len(SEGMENT) - 16
FOOTER_AT = TRAILER_AT - 34

streams = st.builds(
    StreamEntry,
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
    st.binary(min_size=32, max_size=32),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
)


def with_tail(footer: bytes, *, size: int | None = None, before: bytes = bytes(0x1500)) -> bytes:
    """A file of zeros, *footer*, and a right trailer; its footer_size is *size* when given."""
    body = before + footer
    return body + encode_segment_trailer(zlib.crc32(body), footer_size=len(footer) if size is None else size)


def changed(at: int, code: str, value: int) -> bytes:
    """The good segment with one field of its footer changed, and the checksum made right."""
    data = bytearray(SEGMENT)
    struct.pack_into(code, data, FOOTER_AT + at, value)
    return with_new_crc32(bytes(data))


def test_golden_footer():
    """The footer of the reference's sample, byte by byte."""
    assert encode_segment_footer(FOOTER_VALUE) == FOOTER
    data = with_tail(FOOTER)
    assert decode_segment_footer(memoryview(data)) == Frame(FOOTER_VALUE, len(data))


def test_trailer_by_hand():
    """Footer size, magic, and zlib's checksum of everything before it."""
    assert struct.unpack_from("<I8s", SEGMENT, TRAILER_AT) == (34, b"QUIVER\0S")
    assert struct.unpack_from("<I", SEGMENT, len(SEGMENT) - 4) == (zlib.crc32(SEGMENT[:-4]),)
    assert check_segment_checksum(memoryview(SEGMENT)) is None


def test_a_segment_comes_back():
    """Footer, directory and streams of a manually built file are found in their places."""
    answer = decode_segment_footer(memoryview(SEGMENT))
    assert isinstance(answer, Frame)
    footer = answer.value
    at = footer.directory_offset
    directory = decode_directory(memoryview(SEGMENT)[at : at + footer.directory_length], at=at)
    assert check_directory(directory, footer) is None
    assert [(stream.stream_id, stream.slot, stream.chunk_count) for stream in directory] == [
        (0, 30, 2), (1, 31, 2), (2, 30, 1),
    ]  # fmt: skip
    for stream in directory:
        data = SEGMENT[stream.byte_offset : stream.byte_offset + stream.byte_length]
        assert pa.ipc.open_file(data).read_all().num_rows == stream.row_count
        assert stream.byte_offset % 64 == 0


@pytest.mark.parametrize("version", [0, 2, 65535])
@pytest.mark.parametrize("size", [2, 33, 34, 60])
def test_other_versions_are_refused(version, size):
    """A future footer is reported by its version, with any size."""
    data = with_tail(struct.pack("<H", version).ljust(size, b"\0"))
    answer = decode_segment_footer(memoryview(data))
    assert isinstance(answer, Damage)
    assert f"unsupported version {version}" in answer.reason
    assert answer.offset == len(data) - 16 - size


def test_a_larger_footer_is_read():
    """Fields that a later writer adds to a version 1 footer are skipped."""
    data = segments.build_segment(footer_extra=b"later")
    plain = decode_segment_footer(memoryview(SEGMENT)).value
    assert decode_segment_footer(memoryview(data)) == Frame(plain, len(data))
    assert check_segment_checksum(memoryview(data)) is None


def test_short_files_and_short_footers():
    """A trailer needs 16 bytes, a footer of version 1 has 34, and neither is larger than the file."""
    for size in range(16):
        assert decode_segment_footer(memoryview(SEGMENT)[:size]) == NeedMore(16 - size)
        assert isinstance(check_segment_checksum(memoryview(SEGMENT)[:size]), Damage)
    assert isinstance(decode_segment_footer(memoryview(with_tail(FOOTER[:33]))), Damage)
    assert isinstance(decode_segment_footer(memoryview(with_tail(b""))), Damage)
    assert isinstance(decode_segment_footer(memoryview(with_tail(FOOTER[:1]))), Damage)
    assert isinstance(decode_segment_footer(memoryview(with_tail(FOOTER, size=2**32 - 1))), Damage)
    assert isinstance(decode_segment_footer(memoryview(with_tail(FOOTER, size=0x1500 + 35))), Damage)


@pytest.mark.parametrize(
    ("at", "code", "value"),
    [
        (2, "<I", 100_001), (6, "<I", 10_000_001), (10, "<Q", 2**64 - 1), (10, "<Q", FOOTER_AT),
        (18, "<I", 2**32 - 1), (22, "<Q", FOOTER_AT + 1), (22, "<Q", 2**63), (30, "<I", FOOTER_AT),
    ],
)  # fmt: skip
def test_footers_are_bounded(at, code, value):
    """Counts beyond the limits and regions beyond the file are damage at the field, under a good checksum."""
    answer = decode_segment_footer(memoryview(changed(at, code, value)))
    assert isinstance(answer, Damage)
    assert FOOTER_AT <= answer.offset < TRAILER_AT


def test_a_segment_truncated_anywhere_is_damaged():
    """No prefix of a segment is a whole segment."""
    for size in range(len(SEGMENT)):
        view = memoryview(SEGMENT)[:size]
        decoded = isinstance(decode_segment_footer(view), Frame)
        assert not (decoded and check_segment_checksum(view) is None), size


def test_junk_behind():
    """Junk after the trailer is not the end of a segment."""
    for junk in (b"\0", b"junk", bytes(64)):
        assert not isinstance(decode_segment_footer(memoryview(SEGMENT + junk)), Frame)


def test_flipped_anywhere():
    """The checksum sees every flipped bit; the footer's decoder never raises on one."""
    for at, hurt in feeding.flips(SEGMENT):
        assert check_segment_checksum(memoryview(hurt)) is not None, at
        if at >= FOOTER_AT:
            decode_segment_footer(memoryview(hurt))


@given(st.lists(streams, max_size=6))
def test_directory_round_trip(rows):
    """Every row comes back, none included."""
    assert decode_directory(encode_directory(rows)) == tuple(rows)


def test_directory_columns():
    """The names, types and order that the document lists, none nullable, in one batch."""
    reader = pa.ipc.open_file(encode_directory([]))
    assert reader.num_record_batches == 1
    assert [(field.name, str(field.type), field.nullable) for field in reader.schema] == [
        ("stream_id", "uint32", False), ("slot_id", "uint16", False),
        ("schema_fingerprint", "fixed_size_binary[32]", False), ("byte_offset", "uint64", False),
        ("byte_length", "uint64", False), ("row_count", "uint64", False), ("chunk_count", "uint32", False),
    ]  # fmt: skip


def table(schema: pa.Schema, *columns: list[object], batches: int = 1) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for _ in range(batches):
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    return sink.getvalue().to_pybytes()


def test_other_directories():
    """Columns are found by name, others are ignored; a missing, mistyped or null one is damage at *at*."""
    row = [[7], [30], [b"f" * 32], [0], [1], [2], [3]]
    wide = pa.schema([pa.field("new", pa.string()), *reversed(list(DIRECTORY_SCHEMA))], metadata={"a": "b"})
    expected = (StreamEntry(7, 30, b"f" * 32, 0, 1, 2, 3),)
    assert decode_directory(table(wide, ["x"], *reversed(row))) == expected
    assert decode_directory(table(DIRECTORY_SCHEMA, *row, batches=2)) == expected
    missing = DIRECTORY_SCHEMA.remove(3)
    mistyped = DIRECTORY_SCHEMA.set(1, pa.field("slot_id", pa.uint32()))
    nullable = DIRECTORY_SCHEMA.set(1, pa.field("slot_id", pa.uint16()))
    for data in (
        table(missing, *row[:3], *row[4:]),
        table(mistyped, *row),
        table(nullable, row[0], [None], *row[2:]),
        table(DIRECTORY_SCHEMA, *row, batches=0),
        table(pa.schema([]), batches=0),
        b"",
        b"ARROW1\0\0",
    ):
        answer = decode_directory(data, at=99)
        assert isinstance(answer, Damage)
        assert answer.offset == 99


def test_mistreated_directory():
    """Every prefix is refused; a flipped bit never raises, although it has no separate checksum."""
    data = encode_directory([StreamEntry(7, 30, b"f" * 32, 0, 1, 2, 3)])
    for size in range(len(data)):
        assert isinstance(decode_directory(data[:size]), Damage), size
    for _, hurt in feeding.flips(data):
        decode_directory(hurt)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [StreamEntry(0, 1, b"", 0, 10, 1, 1)] * 2,
        [StreamEntry(0, 64, b"", 0, 10, 1, 1), StreamEntry(1, 1, b"", 0, 10, 1, 1)],
        [StreamEntry(0, 1, b"", 0, 101, 1, 1), StreamEntry(1, 1, b"", 0, 10, 1, 1)],
        [StreamEntry(0, 1, b"", 2**64 - 1, 1, 1, 1), StreamEntry(1, 1, b"", 0, 10, 1, 1)],
        [StreamEntry(0, 1, b"", 0, 10, 1, CHUNKS_MAX + 1), StreamEntry(1, 1, b"", 0, 10, 1, 1)],
    ],
)
def test_contradictory_directories(rows):
    """Another count than the footer's, a stream twice, a slot or a chunk count out of range, a region too far."""
    assert isinstance(check_directory(rows, SegmentFooter(2, 0, 100, 0, 100, 0)), Damage)


@given(st.binary(max_size=80))
def test_any_bytes(data):
    """No bytes make anything here raise."""
    decode_segment_footer(memoryview(data))
    check_segment_checksum(memoryview(data))
    decode_directory(data)
    decode_segment_footer(memoryview(data + b"\x22\0\0\0QUIVER\0S" + bytes(4)))
