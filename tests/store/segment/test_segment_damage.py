"""A segment that is truncated or changed at any byte is reported with path and offset, and never read wrongly."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from segment_samples import Bundles, sample_bundles, write

from disk_files import with_new_crc32
from quiver.errors import CorruptionError
from quiver.store.format.names import segment_name
from quiver.store.format.segment.file import encode_directory
from quiver.store.segment.reader import SegmentReader
from quiver.testing.crashfs import CrashFileSystem

PATH = f"/segments/{segment_name(3)}"
BUNDLES: Bundles = sample_bundles(3)


def segment() -> bytes:
    fs = CrashFileSystem()
    fs.make_dirs("/segments")
    return fs.read_all(write(fs, "/segments", BUNDLES).path, size_max=1 << 20)


def read_all(data: bytes) -> None:
    fs = CrashFileSystem()
    fs.make_dirs("/segments")
    file = fs.create(PATH)
    file.pwrite(data, 0)
    file.close()
    reader = SegmentReader.open(fs, PATH)
    for index in range(reader.bundle_count):
        reader.bundle(index)


def assert_damaged(data: bytes) -> None:
    with pytest.raises(CorruptionError) as caught:
        read_all(data)
    error = caught.value
    assert error.path == PATH
    assert 0 <= error.offset <= len(data)
    assert error.reason


def test_the_unchanged_file_is_valid() -> None:
    read_all(segment())


def test_a_segment_truncated_anywhere_is_damaged() -> None:
    data = segment()
    for length in range(len(data)):
        assert_damaged(data[:length])


def test_any_changed_byte_is_damage() -> None:
    data = bytearray(segment())
    for at in range(len(data)):
        for change in (1 << at % 8, 0xFF) if at % 4 == 0 else (1 << at % 8,):
            data[at] ^= change
            assert_damaged(bytes(data))
            data[at] ^= change


def test_bytes_after_the_end_or_missing_bytes_are_damage() -> None:
    data = segment()
    assert_damaged(data + b"\0")
    assert_damaged(data + b"junk" * 20)
    assert_damaged(data + data)
    assert_damaged(data[:1000] + data[1064:])
    assert_damaged(data[:1000] + bytes(len(data) - 1000))


def test_open_reads_only_the_end_and_verify_detects_other_damage() -> None:
    data = bytearray(segment())
    data[70] ^= 1
    fs = CrashFileSystem()
    fs.make_dirs("/segments")
    file = fs.create(PATH)
    file.pwrite(data, 0)
    file.close()
    reader = SegmentReader.open(fs, PATH)
    assert reader.bundle_count == 3
    for attempt in (reader.verify, lambda: reader.bundle(0), lambda: reader.batch(0, 0)):
        with pytest.raises(CorruptionError, match="checksum"):
            attempt()
    with pytest.raises(CorruptionError, match="checksum"):
        list(reader.stream_batches(0))


def test_invalid_content_with_a_valid_checksum_is_damage() -> None:
    """Caused by a wrong writer instead of a disk: invalid tables, or a stream that is not an Arrow file."""
    data = segment()
    end = data.index(b"ARROW1", 64)
    assert_damaged(with_new_crc32(data[:end] + b"ARROW2" + data[end + 6 :]))
    assert_damaged(with_new_crc32(data[: end - 4] + b"\xff\xff\xff\x7f" + data[end:]))
    # The offset of the first stream in the directory: 64 bytes later there is something else.
    fs = CrashFileSystem()
    fs.make_dirs("/segments")
    first, *others = SegmentReader.open(fs, write(fs, "/segments", BUNDLES).path).streams.values()
    assert (first.byte_offset, first.chunk_count) == (0, 3)
    directory_at = others[-1].byte_offset + others[-1].byte_length
    footer = struct.unpack("<HIIQIQI", data[-50:-16])
    assert footer[3] == directory_at
    for changed in (replace(first, byte_offset=64), replace(first, chunk_count=2), replace(first, slot=63)):
        directory = encode_directory([changed, *others])
        rest = data[footer[5] : -50]
        tail = struct.pack("<HIIQIQI", *footer[:4], len(directory), directory_at + len(directory), footer[6])
        assert_damaged(with_new_crc32(data[:directory_at] + directory + rest + tail + data[-16:]))


def test_a_missing_stream_or_chunk_is_refused() -> None:
    fs = CrashFileSystem()
    fs.make_dirs("/segments")
    reader = SegmentReader.open(fs, write(fs, "/segments", BUNDLES).path)
    for stream_id, chunk_index in ((99, 0), (0, 99), (0, -1)):
        with pytest.raises(CorruptionError):
            reader.batch(stream_id, chunk_index)
    with pytest.raises(CorruptionError, match="no stream 99"):
        list(reader.stream_batches(99))
