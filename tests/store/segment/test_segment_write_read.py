"""Segment files byte by byte, read by our reader and by plain Arrow, and written by others."""

from __future__ import annotations

import gc
import io
import stat
import struct
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from arrow_batches import assert_same
from segment_samples import (
    ATTRIBUTES,
    LOGS,
    assert_holds,
    opened,
    sample_bundles,
    sealed,
    stream_schema,
    write,
)

from quiver.errors import BundleUnavailableError, CorruptionError, StoreClosedError, UnsupportedFormatError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.settings import Profile
from quiver.store.segment.accumulator import EncodedSlot, OpenSegment
from quiver.store.segment.reader import SegmentReader
from quiver.store.segment.writer import write_segment


def bare_bundle(number: int) -> dict[int, pa.RecordBatch]:
    return {30: pa.record_batch([pa.array([number]), pa.array([str(number)])], schema=LOGS)}


@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_a_segment_returns_its_bundles(tmp_path: Path, profile: Profile) -> None:
    bundles = sample_bundles(12)
    info = write(REAL_FILES, str(tmp_path), bundles, profile=profile)
    reader = SegmentReader.open(REAL_FILES, info.path)
    assert_holds(reader, bundles)
    assert reader.info == info
    assert [path.name for path in tmp_path.iterdir()] == ["0000000000000003.qseg"]
    assert stat.S_IMODE(Path(info.path).stat().st_mode) == 0o440
    assert info.size_bytes == Path(info.path).stat().st_size
    assert (info.seq, info.bundle_count) == (3, 12)
    assert (info.wal_position_start, info.wal_position_end) == (5_000, 6_200)
    assert (info.sequence_first, info.sequence_last) == (7, 18)
    assert (info.ingested_min_ns, info.ingested_max_ns) == (1_000, 1_011)
    assert [reader.ingested_at_ns(index) for index in range(12)] == list(range(1_000, 1_012))


def test_the_layout_matches_the_format(tmp_path: Path) -> None:
    info = write(REAL_FILES, str(tmp_path), sample_bundles(12))
    data = Path(info.path).read_bytes()
    footer_size, magic, crc = struct.unpack("<I8sI", data[-16:])
    assert (footer_size, magic, crc) == (34, b"QUIVER\0S", zlib.crc32(data[:-4]))
    version, streams, bundles, at, length, manifest_at, manifest_length = struct.unpack("<HIIQIQI", data[-50:-16])
    assert (version, bundles) == (1, 12)
    assert at + length == manifest_at
    assert manifest_at + manifest_length == len(data) - 50
    directory = pa.ipc.open_file(data[at:manifest_at]).read_all().to_pylist()
    assert [row["stream_id"] for row in directory] == list(range(streams))
    end = 0
    for row in directory:
        start = row["byte_offset"]
        assert start == end + -end % 64
        assert data[end:start] == bytes(start - end)
        assert data[start : start + 64] == b"ARROW1".ljust(64, b"\0")
        end = start + row["byte_length"]
        assert data[end - 6 : end] == b"ARROW1"
    assert end == at


def test_every_stream_is_an_arrow_file_for_any_reader(tmp_path: Path) -> None:
    bundles = sample_bundles(12)
    info = write(REAL_FILES, str(tmp_path), bundles)
    data = Path(info.path).read_bytes()
    reader = SegmentReader.open(REAL_FILES, info.path)
    seen = 0
    for stream in reader.streams.values():
        region = data[stream.byte_offset : stream.byte_offset + stream.byte_length]
        plain = pa.ipc.open_file(region)
        batches = [plain.get_batch(i) for i in range(plain.num_record_batches)]
        assert len(batches) == stream.chunk_count
        assert sum(batch.num_rows for batch in batches) == stream.row_count
        for ours, theirs in zip(reader.stream_batches(stream.stream_id), batches, strict=True):
            assert_same(ours, theirs)
        # The same bytes without the padded magic are a stream, up to the end-of-stream mark.
        for ours, theirs in zip(pa.ipc.open_stream(region[64:]), batches, strict=True):
            assert_same(ours, theirs)
        with pa.memory_map(info.path) as complete:
            complete.seek(stream.byte_offset)
            assert pa.ipc.open_file(io.BytesIO(complete.read(stream.byte_length))).num_record_batches == len(batches)
        seen += len(batches)
    assert seen == sum(map(len, bundles))


def test_a_dictionary_too_large_for_its_keys_needs_several_streams(tmp_path: Path) -> None:
    def bundle(number: int) -> dict[int, pa.RecordBatch]:
        key = pa.array([f"{number}-{i}" for i in range(100)]).dictionary_encode().cast(ATTRIBUTES.field("key").type)
        return {31: pa.record_batch([key, pa.nulls(100, ATTRIBUTES.field("values").type)], schema=ATTRIBUTES)}

    bundles = [{**bundle(number // 2), **bare_bundle(number)} for number in range(6)]
    segment = opened(bundles)
    assert segment.stream_count == 2
    info = write_segment(REAL_FILES, str(tmp_path), 0, segment.seal(), profile="spec")
    reader = SegmentReader.open(REAL_FILES, info.path)
    assert_holds(reader, bundles)
    # Numbered in the order in which they first appear.
    assert [(s.slot, s.chunk_count) for s in reader.streams.values()] == [(31, 2), (30, 6), (31, 2), (31, 2)]
    assert len({s.fingerprint for s in reader.streams.values() if s.slot == 31}) == 1


def test_two_schemas_with_one_fingerprint_make_two_streams(tmp_path: Path) -> None:
    one = pa.record_batch([pa.array([1])], schema=pa.schema([pa.field("a", pa.int64(), nullable=False)]))
    other = pa.record_batch([pa.array([2])], schema=pa.schema([pa.field("a", pa.int64(), nullable=True)]))
    bundles = [{30: one}, {30: other}, {30: one}]
    info = write(REAL_FILES, str(tmp_path), bundles)
    reader = SegmentReader.open(REAL_FILES, info.path)
    assert_holds(reader, bundles)
    assert [stream.chunk_count for stream in reader.streams.values()] == [2, 1]


def test_counts_of_an_open_segment() -> None:
    segment = opened([], streams_max=2)
    assert segment.is_empty
    assert (segment.bundle_count, segment.stream_count, segment.nbytes, segment.is_full) == (0, 0, 0, False)
    segment = opened([bare_bundle(0), bare_bundle(1)], streams_max=2)
    assert not segment.is_empty
    assert (segment.bundle_count, segment.stream_count, segment.nbytes, segment.is_full) == (2, 1, 128, False)
    assert opened(sample_bundles(3), streams_max=2).is_full
    full = OpenSegment(streams_max=2)
    for index in range(65_536):
        assert not full.is_full
        full.append([], ingested_at_ns=index, sequence=index, wal_start=index, wal_end=index + 1, nbytes=0)
    assert full.is_full


def test_a_message_is_copied_from_log_to_file_without_encoding(tmp_path: Path) -> None:
    known = stream_schema(LOGS)
    batch = pa.record_batch([pa.array([1, 2]), pa.array(["a", None])], schema=LOGS)
    message = batch.serialize()
    segment = OpenSegment(streams_max=1)
    for index in range(3):
        segment.append(
            [EncodedSlot(30, known, batch.num_rows, message)],
            ingested_at_ns=0, sequence=index, wal_start=0, wal_end=1, nbytes=1,
        )  # fmt: skip
    (stream,) = segment.seal().streams()
    assert all(part is message for part in stream.file.messages)
    info = write_segment(REAL_FILES, str(tmp_path), 0, opened([{30: batch}]).seal(), profile="spec")
    assert Path(info.path).read_bytes().count(message.to_pybytes()) == 1


def test_a_segment_can_be_written_twice_to_the_same_bytes(tmp_path: Path) -> None:
    segment = sealed(sample_bundles(12))
    first = write_segment(REAL_FILES, str(tmp_path), 1, segment, profile="spec")
    second = write_segment(REAL_FILES, str(tmp_path), 2, segment, profile="spec")
    assert Path(first.path).read_bytes() == Path(second.path).read_bytes()


def test_parts_larger_than_the_write_buffer_are_written(tmp_path: Path) -> None:
    large = pa.record_batch([pa.array(range(700_000)), pa.nulls(700_000, pa.utf8())], schema=LOGS)
    bundles = [bare_bundle(0), {30: large}, *[{30: large.slice(0, 40_000)}] * 9, bare_bundle(1)]
    info = write(REAL_FILES, str(tmp_path), bundles)
    reader = SegmentReader.open(REAL_FILES, info.path)
    for index, bundle in enumerate(bundles):
        assert reader.bundle(index)[30].equals(bundle[30])


def test_a_segment_of_bundles_without_slots(tmp_path: Path) -> None:
    info = write(REAL_FILES, str(tmp_path), [{}, {}])
    reader = SegmentReader.open(REAL_FILES, info.path)
    assert_holds(reader, [{}, {}])
    assert dict(reader.streams) == {}


def test_only_requested_slots_are_read(tmp_path: Path) -> None:
    bundles = sample_bundles(6)
    reader = SegmentReader.open(REAL_FILES, write(REAL_FILES, str(tmp_path), bundles).path)
    assert list(reader.bundle(3, slots={30, 99})) == [30]
    assert list(reader.bundle(3, slots=())) == []
    for index in (-1, 6):
        with pytest.raises(BundleUnavailableError):
            reader.bundle(index)


def test_batches_outlive_reader_and_file(tmp_path: Path) -> None:
    bundles = sample_bundles(12)
    info = write(REAL_FILES, str(tmp_path), bundles)
    reader = SegmentReader.open(REAL_FILES, info.path)
    held = [reader.bundle(index) for index in range(12)]
    reader.close()
    reader.close()
    Path(info.path).unlink()
    with pytest.raises(StoreClosedError):
        reader.bundle(0)
    del reader
    gc.collect()
    for found, expected in zip(held, bundles, strict=True):
        for slot, batch in expected.items():
            assert_same(found[slot], batch)


def test_batches_point_into_the_mapped_file(tmp_path: Path) -> None:
    info = write(REAL_FILES, str(tmp_path), [bare_bundle(1)])
    before = pa.total_allocated_bytes()
    reader = SegmentReader.open(REAL_FILES, info.path)
    batch = reader.bundle(0)[30]
    addresses = [buffer.address for column in batch.columns for buffer in column.buffers() if buffer is not None]
    assert max(addresses) - min(addresses) < info.size_bytes
    assert pa.total_allocated_bytes() - before < 4096


def test_several_threads_share_a_reader(tmp_path: Path) -> None:
    bundles = sample_bundles(12)
    reader = SegmentReader.open(REAL_FILES, write(REAL_FILES, str(tmp_path), bundles).path)
    start = threading.Barrier(4)

    def read() -> None:
        start.wait()
        assert_holds(reader, bundles)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(read) for _ in range(4)]:
            done.result()


def _foreign_segment(*, version: int = 1) -> bytes:
    """Two streams and two bundles, written only with Arrow's own writer."""

    def ipc(batch: pa.RecordBatch, *more: pa.RecordBatch) -> bytes:
        sink = io.BytesIO()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            for one in (batch, *more):
                writer.write_batch(one)
        return sink.getvalue()

    logs = ipc(bare_bundle(0)[30], bare_bundle(1)[30])
    words = ipc(pa.record_batch([pa.array(["x", "y", "x"]).dictionary_encode()], names=["w"]))
    data = logs + bytes(-len(logs) % 64)
    words_at = len(data)
    data += words
    directory_at = len(data)
    data += ipc(pa.record_batch({
        "stream_id": pa.array([0, 1], pa.uint32()),
        "slot_id": pa.array([30, 31], pa.uint16()),
        "schema_fingerprint": pa.array([bytes(32), b"\1" * 32], pa.binary(32)),
        "byte_offset": pa.array([0, words_at], pa.uint64()),
        "byte_length": pa.array([len(logs), len(words)], pa.uint64()),
        "row_count": pa.array([2, 3], pa.uint64()),
        "chunk_count": pa.array([2, 1], pa.uint32()),
        "added_later": pa.array(["ignored", None]),
    }))  # fmt: skip
    manifest_at = len(data)
    ref = pa.struct([("slot_id", pa.uint16()), ("stream_id", pa.uint32()), ("chunk_index", pa.uint32())])
    data += ipc(pa.record_batch({
        "bundle_index": pa.array([0, 1], pa.uint32()),
        "item_count": pa.array([1, 2], pa.uint64()),
        "slot_refs": pa.array([
            [{"slot_id": 31, "stream_id": 1, "chunk_index": 0}, {"slot_id": 30, "stream_id": 0, "chunk_index": 0}],
            [{"slot_id": 30, "stream_id": 0, "chunk_index": 1}],
        ], pa.list_(ref)),
    }))  # fmt: skip
    footer_at = len(data)
    data += struct.pack(
        "<HIIQIQI", version, 2, 2, directory_at, manifest_at - directory_at, manifest_at, footer_at - manifest_at
    )
    data += b"added later"
    data += struct.pack("<I", 34 + len(b"added later")) + b"QUIVER\0S"
    return data + struct.pack("<I", zlib.crc32(data))


def test_a_segment_of_another_engine_is_read(tmp_path: Path) -> None:
    path = tmp_path / "0000000000000042.qseg"
    path.write_bytes(_foreign_segment())
    reader = SegmentReader.open(REAL_FILES, str(path))
    assert reader.info.seq == 42
    assert (reader.info.wal_position_end, reader.info.ingested_min_ns) == (None, None)
    assert reader.ingested_at_ns(0) is None
    first = reader.bundle(0)
    assert list(first) == [30, 31]
    assert first[30] == bare_bundle(0)[30]
    assert first[31].to_pydict() == {"w": ["x", "y", "x"]}
    assert reader.bundle(1) == bare_bundle(1)


def test_a_newer_version_is_not_reported_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "0000000000000042.qseg"
    path.write_bytes(_foreign_segment(version=2))
    with pytest.raises(UnsupportedFormatError, match="version 2"):
        SegmentReader.open(REAL_FILES, str(path))
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError) as caught:
        SegmentReader.open(REAL_FILES, str(path))
    assert not isinstance(caught.value, UnsupportedFormatError)


def test_a_file_of_another_name_can_be_inspected(tmp_path: Path) -> None:
    path = tmp_path / "copy-of-a-segment"
    path.write_bytes(_foreign_segment())
    assert SegmentReader.open(REAL_FILES, str(path)).info.seq == -1
    with pytest.raises(FileNotFoundError):
        SegmentReader.open(REAL_FILES, str(tmp_path / "absent"))
