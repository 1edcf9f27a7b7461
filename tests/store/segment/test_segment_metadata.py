"""The metadata of a segment: available without reading its data, and never wrong."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import quiver
from quiver.bundle import OTAP, Bundle
from quiver.errors import CorruptionError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.settings import Settings
from quiver.store.format.describe.files import STORE_FILES
from quiver.store.segment import reader as reader_module
from quiver.store.segment.reader import SegmentReader

NS = pa.timestamp("ns", "UTC")
PLAIN = pa.record_batch({"id": [1, 2], "time": pa.array([100, 300], NS)})
MORE = pa.record_batch({"id": [3], "time": pa.array([50], NS), "host": ["a"]})
ATTRS = pa.record_batch({"parent_id": [1, 1, 2], "key": ["a", "b", "a"]})


def written(directory: Path, bundles: list[Bundle], **settings: object) -> Path:
    """The one segment that these bundles make."""
    with quiver.open(directory, Settings(**settings), background=False) as store:
        for bundle in bundles:
            store.ingest(bundle)
        store.seal()
    (path,) = (directory / "segments").glob("*.qseg")
    return path


@pytest.fixture
def path(tmp_path):
    return written(
        tmp_path, [Bundle({30: PLAIN, 31: ATTRS}), Bundle({30: MORE}), Bundle({40: PLAIN}), Bundle({30: PLAIN})]
    )


def test_statistics_need_no_data(path, monkeypatch):
    """Rows, chunks, columns, omitted parts, times, signals and items, without the checksum of the data."""
    monkeypatch.setattr(reader_module, "check_segment_checksum", lambda _: pytest.fail("reads the whole file"))
    (found,) = quiver.read(path.parents[1]).statistics()
    assert [
        (stream.slot, stream.row_count, stream.chunk_count, stream.columns, stream.omitted) for stream in found.streams
    ] == [
        (30, 4, 2, ("id", "time"), ("host",)),
        (31, 3, 1, ("parent_id", "key"), ()),
        (30, 1, 1, ("id", "time", "host"), ()),
        (40, 2, 1, ("id", "time"), ()),
    ]
    assert [(stream.event_column, stream.event_min_ns, stream.event_max_ns) for stream in found.streams] == [
        ("time", 100, 300), (None, None, None), ("time", 50, 50), ("time", 100, 300),
    ]  # fmt: skip
    assert found.event_range_ns == (50, 300)
    assert found.row_counts == {30: 5, 31: 3, 40: 2}
    assert found.signals() == ("logs", "traces")
    assert found.items() == 7
    assert found.info.bundle_count == 4
    assert found.info.ingested_min_ns <= found.info.ingested_max_ns
    assert sum(stream.size_bytes for stream in found.streams) < found.info.size_bytes


@pytest.mark.parametrize(
    ("rows", "items"),
    [({30: 5}, 5), ({30: 5, 31: 9}, 5), ({31: 9}, None), ({30: 5, 60: 1}, None), ({40: 2, 30: 1}, 3), ({}, None)],
    ids=str,
)
def test_items_are_known_where_a_row_is_one(rows, items):
    """Attributes without their records, and whole requests, do not show how many there are."""
    assert OTAP.item_count(rows) == items


def test_items_of_each_bundle_are_written_in_the_otap_profile(tmp_path):
    """Where they are known for all; the `spec` profile has no such column, and they are counted from the rows."""
    known = [Bundle({30: PLAIN, 31: ATTRS}), Bundle({}), Bundle({30: MORE}), Bundle({40: PLAIN, 30: MORE})]
    hidden = [*known, Bundle({60: pa.record_batch({"data": [b""]})})]
    for name, profile, bundles, written_counts, items in (
        ("a", "otap", known, [2, 0, 1, 3], 6), ("b", "spec", known, None, 6), ("c", "otap", hidden, None, None),
    ):  # fmt: skip
        path = written(tmp_path / name, bundles, format_profile=profile)
        counts = SegmentReader.open(REAL_FILES, str(path)).manifest.item_counts
        assert (None if counts is None else list(counts)) == written_counts
        (statistics,) = quiver.read(tmp_path / name).statistics()
        assert statistics.items() == items


def test_a_flipped_bit_in_directory_or_schema_never_gives_a_wrong_schema(path):
    """For each bit, either the correct schema or the damage is reported."""
    data = path.read_bytes()
    reader = SegmentReader.open(REAL_FILES, str(path))
    right = {stream_id: reader.schema(stream_id) for stream_id in reader.streams}
    head = reader.streams[0].byte_offset
    places = [*range(head, head + 700, 9), *range(len(data) - 4000, len(data), 13)]
    for at in places:
        hurt = bytearray(data)
        hurt[at] ^= 4
        path.unlink()  # a file that is mapped must not be cut
        path.write_bytes(hurt)
        try:
            again = SegmentReader.open(REAL_FILES, str(path))
            reported = {stream_id: again.schema(stream_id) for stream_id in again.streams}
        except CorruptionError:
            continue
        assert reported == right, at


def test_a_column_name_that_is_not_utf8_is_damage(path):
    """It is reported like any other damage."""
    data = path.read_bytes()
    path.unlink()  # a file that is mapped must not be cut
    path.write_bytes(data.replace(b"host", b"h\xffst"))
    reader = SegmentReader.open(REAL_FILES, str(path))
    (stream_id,) = [one.stream_id for one in reader.streams.values() if one.row_count == 1]
    for ask in (lambda: reader.schema(stream_id), reader.statistics):
        with pytest.raises(CorruptionError):
            ask()
    assert [damage.path for damage in quiver.read(path.parents[1]).scan(30).problems] == [str(path)]


def test_event_times_are_described(path):
    """For each stream with a column of them."""
    rows = STORE_FILES.describe(path.name, memoryview(path.read_bytes())).tables["event times"]
    assert [(row["stream_id"], row["column"], row["event_min_ns"], row["event_max_ns"]) for row in rows] == [
        (0, 1, 100, 300), (2, 1, 50, 50), (3, 1, 100, 300),
    ]  # fmt: skip


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_columns_of_a_batch(tmp_path, compression):
    """The existing ones of the requested columns, in the order of the batch; rows are counted even without columns."""
    wide = pa.record_batch({"a": list(range(500)), "b": ["x"] * 500, "c": [1.5] * 500})
    path = written(tmp_path, [Bundle({30: wide}), Bundle({30: wide.slice(0, 3)})], segment_compression=compression)
    reader = SegmentReader.open(REAL_FILES, str(path))
    assert reader.batch(0, 0, ["c", "a", "none"]) == wide.select(["a", "c"])
    assert reader.batch(0, 1, ["b"]) == wide.slice(0, 3).select(["b"])
    assert reader.batch(0, 0, ["a", "b", "c"]) == wide
    assert (reader.batch(0, 1, []).num_rows, reader.batch(0, 0, ["none"]).num_columns) == (3, 0)
    assert reader.bundle(1, columns=["a"]) == {30: wide.slice(0, 3).select(["a"])}
    assert [batch.num_rows for batch in reader.stream_batches(0, ["a"])] == [500, 3]
    assert [(index, batch.num_columns) for index, batch in reader.slot_batches(30, ["a"])] == [(0, 1), (1, 1)]
    assert reader.bundle(0, slots=[31]) == {}


def test_chunks_of_chosen_columns_are_not_copied(tmp_path):
    """They point into the mapping, and stay valid after file and reader are closed."""
    wide = pa.record_batch({"a": list(range(50_000)), "b": [1.5] * 50_000})
    path = written(tmp_path, [Bundle({30: wide})])
    reader = SegmentReader.open(REAL_FILES, str(path))
    reader.verify()
    before = pa.total_allocated_bytes()
    one, both = reader.batch(0, 0, ["b"]), reader.bundle(0)
    assert pa.total_allocated_bytes() - before < 10_000
    path.unlink()
    reader.close()
    assert (one, both) == (wide.select(["b"]), {30: wide})
