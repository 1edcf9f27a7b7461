"""A compressed segment has the same values in fewer bytes, with the same layout, for any Arrow reader."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from arrow_batches import any_columns, assert_same, random_batch, schemas
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from segment_samples import LOGS, WORDS, assert_holds, opened, sample_bundles, sealed

from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.segment.accumulator import self_contained
from quiver.store.segment.compression import Compression, compressed
from quiver.store.segment.dictionaries import DictionaryRun, encode_runs
from quiver.store.segment.ipc_file import assemble
from quiver.store.segment.reader import SegmentReader
from quiver.store.segment.schemas import check_schema
from quiver.store.segment.writer import write_segment

CODECS: list[Compression] = ["lz4", "zstd"]
LARGE = [
    {
        30: pa.record_batch([pa.array([number] * 2_000), pa.array(["the same words again"] * 2_000)], schema=LOGS),
        31: pa.record_batch([pa.array(["a", "b"] * 900).dictionary_encode().cast(WORDS)], names=["key"]),
    }
    for number in range(3)
]


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_segment_has_the_same_bundles_in_fewer_bytes(tmp_path: Path, codec: Compression) -> None:
    plain = write_segment(REAL_FILES, str(tmp_path), 1, sealed(LARGE), profile="otap")
    small = write_segment(REAL_FILES, str(tmp_path), 2, sealed(LARGE), profile="otap", compression=codec)
    assert small.size_bytes * 4 < plain.size_bytes
    assert Path(small.path).stat().st_size == small.size_bytes
    reader = SegmentReader.open(REAL_FILES, small.path)
    assert_holds(reader, LARGE)
    assert reader.info == small


@pytest.mark.parametrize("codec", CODECS)
def test_any_arrow_reader_opens_compressed_streams(tmp_path: Path, codec: Compression) -> None:
    bundles = [*LARGE, *sample_bundles(6)]
    info = write_segment(REAL_FILES, str(tmp_path), 1, opened(bundles).seal(), profile="spec", compression=codec)
    data = Path(info.path).read_bytes()
    assert struct.unpack("<I8sI", data[-16:]) == (34, b"QUIVER\0S", zlib.crc32(data[:-4]))
    reader = SegmentReader.open(REAL_FILES, info.path)
    assert_holds(reader, bundles)
    end = 0
    for stream in reader.streams.values():
        start = stream.byte_offset
        assert start == end + -end % 64
        assert data[end:start] == bytes(start - end)
        assert data[start : start + 64] == b"ARROW1".ljust(64, b"\0")
        end = start + stream.byte_length
        plain = pa.ipc.open_file(data[start:end])
        assert plain.num_record_batches == stream.chunk_count
        assert sum(plain.get_batch(i).num_rows for i in range(stream.chunk_count)) == stream.row_count
        streamed = pa.ipc.open_stream(data[start + 64 : end])
        for ours, theirs in zip(reader.stream_batches(stream.stream_id), streamed, strict=True):
            assert_same(ours, theirs)


@pytest.mark.parametrize("codec", CODECS)
def test_a_segment_can_be_compressed_twice_to_the_same_bytes(tmp_path: Path, codec: Compression) -> None:
    segment = sealed(LARGE)
    first = write_segment(REAL_FILES, str(tmp_path), 1, segment, profile="spec", compression=codec)
    second = write_segment(REAL_FILES, str(tmp_path), 2, segment, profile="spec", compression=codec)
    assert Path(first.path).read_bytes() == Path(second.path).read_bytes()


def test_a_stream_that_would_grow_is_not_compressed() -> None:
    rng = random.Random(1)
    noise = pa.record_batch([pa.array([rng.randbytes(20)])], names=["noise"])
    file = assemble(noise.schema.serialize().to_pybytes(), (), [noise.serialize()])
    for codec in CODECS:
        assert compressed(file, codec) is file


@pytest.mark.parametrize("codec", CODECS)
def test_unions_are_not_compressed(codec: Compression) -> None:
    """Arrow crashes the process when it compresses an empty union at any depth."""
    union = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array(["x" * 500])])
    nested = pa.ListArray.from_arrays(pa.array([0, 0], pa.int32()), union)
    for array in (union, union.slice(0, 0), nested):
        batch = pa.record_batch([array], names=["u"])
        file = assemble(batch.schema.serialize().to_pybytes(), (), [batch.serialize()])
        assert compressed(file, codec) is file


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(schemas(any_columns), st.integers(0, 2**32), st.integers(1, 4), st.sampled_from(CODECS))
def test_any_schema_survives_compression(schema: pa.Schema, seed: int, count: int, codec: Compression) -> None:
    rng = random.Random(seed)
    batches = [random_batch(schema, rng, rows_max=40) for _ in range(count)]
    if check_schema(schema):
        complete = [pa.ipc.open_stream(self_contained(batch)).read_next_batch() for batch in batches]
        runs = encode_runs(schema, complete)
    else:
        runs = [DictionaryRun((), [batch.serialize() for batch in batches])]
    found = []
    for run in runs:
        file = compressed(assemble(schema.serialize().to_pybytes(), run.dictionaries, run.batches), codec)
        data = b"".join(file.parts())
        assert len(data) == file.nbytes
        reader = pa.ipc.open_file(data)
        found += [reader.get_batch(i) for i in range(reader.num_record_batches)]
    for actual, expected in zip(found, batches, strict=True):
        assert_same(actual, expected)
