"""The data source without Spark: the methods that Spark calls, called directly."""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from needed import batch_end
from stores import INGESTED_NS, logs_request

import quiver.spark
from quiver.bundle import OTLP_SCHEMA
from quiver.errors import CorruptionError, DataLossError, UsageError
from quiver.otap import view_schema
from quiver.spark.log_source import BatchReader
from quiver.spark.spark_features import InputPartition, from_arrow_schema, to_arrow_schema
from quiver.spark.store.source import QuiverDataSource
from quiver.store.segment.reader import SegmentReader


def source(store, **options):
    return QuiverDataSource({"path": store.root, **{key.lower(): str(value) for key, value in options.items()}})


def read(made, schema=None):
    """Return all rows, with Spark's check of every batch, through a pickle as Spark sends it."""
    schema = schema if schema is not None else made.schema()
    reader = pickle.loads(pickle.dumps(made.reader(schema=schema)))
    declared = to_arrow_schema(schema)
    rows = []
    for partition in reader.partitions():
        for batch in reader.read(pickle.loads(pickle.dumps(partition))):
            assert declared.equals(batch.schema)
            rows += batch.to_pylist()
    return rows


def test_a_slot_is_read_row_by_row(store):
    """In order, over segments and bundles."""
    store.rows(3, rows=4)
    store.rows(2, rows=4)
    assert [row["id"] for row in read(source(store, slot="30"))] == list(range(20))
    assert read(source(store, slot="logs", columns="text,id"))[3] == {"text": "row 3", "id": 3}


@pytest.mark.parametrize(
    ("view", "column"), [("logs", "time_unix_nano"), ("spans", "start_time_unix_nano"), ("metrics", "int_value")]
)
def test_views_decode_requests(store, view, column):
    """Each view has its documented schema and reads only its own slot."""
    store.otlp(7, rows=3)
    store.rows(1)
    made = source(store, view=view)
    assert to_arrow_schema(made.schema()).equals(view_schema(view))
    offset = ["logs", "spans", "metrics"].index(view)
    expected = [i for bundle in range(offset, 7, 3) for i in range(bundle * 3, bundle * 3 + 3)]
    assert [row[column] for row in read(made)] == expected
    assert [row[column] for row in read(source(store, view=view, columns=column))] == expected


def test_metadata_has_the_position_of_a_row(store):
    """
    Segment, bundle, row within the bundle, and the time of ingest; rows are counted across the requests of a
    bundle.
    """
    store.rows(1)
    requests = [logs_request(store.ids(2)), logs_request([]), logs_request(store.ids(1))]
    two = pa.record_batch({"data": requests}, schema=OTLP_SCHEMA)
    other = pa.record_batch({"data": [logs_request(store.ids(1))]}, schema=OTLP_SCHEMA)
    store.seal([{60: two}, {61: other}, {60: other}])
    rows = read(source(store, view="logs", columns="time_unix_nano", includeMetadata=True))
    where = [(row["_segment"], row["_index"], row["_row"]) for row in rows]
    assert where == [(1, 0, 0), (1, 0, 1), (1, 0, 2), (1, 2, 0)]
    first = INGESTED_NS // 1000
    assert [row["_ingested_at"].timestamp() * 1e6 for row in rows] == [first] * 3 + [first + 2]
    rows = read(source(store, slot="30", includeMetadata=True))
    assert [(row["_segment"], row["_index"], row["_row"]) for row in rows] == [(0, 0, i) for i in range(10)]


def test_different_segments_share_a_schema(store):
    """The union of the columns, each wide enough; missing columns are null; encodings are decoded."""
    store.seal([{30: pa.record_batch({"a": pa.array([1], pa.uint8()), "t": pa.array(["x"]).dictionary_encode()})}])
    store.seal([{30: pa.record_batch({"b": pa.array([2.5]), "a": pa.array([70_000])})}])
    made = source(store, slot="30")
    assert made.schema().simpleString() == "struct<a:bigint,t:string,b:double>"
    assert read(made) == [{"a": 1, "t": "x", "b": None}, {"a": 70_000, "t": None, "b": 2.5}]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_segments_are_read_in_the_workers(store, codec):
    """Together with uncompressed ones, in every mode, with some columns and with all."""
    batches = [
        pa.record_batch({"id": store.ids(500), "text": pa.array(["the same"] * 500).dictionary_encode()})
        for _ in range(2)
    ]
    small = Path(store.seal([{30: batches[0]}], codec)).stat().st_size
    assert small < Path(store.seal([{30: batches[1]}])).stat().st_size
    rows = [{"id": number, "text": "the same"} for number in range(1000)]
    assert read(source(store, slot="30")) == rows
    assert read(source(store, slot="30", columns="text")) == [{"text": "the same"}] * 1000
    blobs = [pa.ipc.open_stream(row["ipc"]).read_all() for row in read(source(store, mode="ipc"))]
    assert blobs == [pa.Table.from_batches([batch]) for batch in batches]


def test_a_conflict_between_segments_can_be_avoided(store):
    """The error names the column; without it, or with a declared schema, the rest can be read."""
    store.seal([{30: pa.record_batch({"a": pa.array([1]), "b": pa.array(["1"])})}])
    store.seal([{30: pa.record_batch({"a": pa.array([2]), "b": pa.array([2])})}])
    with pytest.raises(UsageError, match="column b is string in some bundles and int64 in others"):
        source(store, slot="30").schema()
    assert read(source(store, slot="30", columns="a")) == [{"a": 1}, {"a": 2}]
    declared = from_arrow_schema(pa.schema([("b", pa.string())]))
    assert read(source(store, slot="30"), declared) == [{"b": "1"}, {"b": "2"}]


def test_nanoseconds_are_exact_on_request(store):
    """As bigint; otherwise as timestamps with microseconds."""
    store.seal([{30: pa.record_batch({"t": pa.array([1_234_567], pa.timestamp("ns", "UTC"))})}])
    assert read(source(store, slot="30", timestampsAs="bigint")) == [{"t": 1_234_567}]
    assert read(source(store, slot="30"))[0]["t"].microsecond == 1234


def test_positions_limit_a_batch_read(store):
    """The start is inclusive, the end exclusive."""
    store.rows(3, rows=1)
    store.rows(3, rows=1)

    def ids(**options):
        return [row["id"] for row in read(source(store, slot="30", **options))]

    assert ids(startingOffsets='{"seq":0,"idx":2}', endingOffsets='{"seq":1,"idx":1}') == [2, 3]
    assert ids(startingOffsets='{"seq":1}') == [3, 4, 5]
    assert ids(startingOffsets="latest") == []
    assert ids(endingOffsets="earliest") == []


def test_bundles_are_described_and_ipc_is_complete(store):
    """Descriptors name file and index; an IPC row contains the batch of a slot with unchanged types."""
    typed = pa.record_batch({"a": pa.array(["x"]).dictionary_encode(), "u": pa.array([1], pa.uint8())})
    path = store.seal([{30: typed, 31: typed}, {30: typed}])
    rows = read(source(store, mode="bundles"))
    assert [(row["path"], row["segment"], row["index"], row["slots"]) for row in rows] == [
        (path, 0, 0, [30, 31]),
        (path, 0, 1, [30]),
    ]
    rows = read(source(store, mode="ipc"))
    assert [(row["index"], row["slot"]) for row in rows] == [(0, 30), (0, 31), (1, 30)]
    assert all(pa.ipc.open_stream(row["ipc"]).read_next_batch().equals(typed) for row in rows)
    assert [row["index"] for row in read(source(store, mode="ipc", slot="31"))] == [0]


def test_an_empty_store_has_no_rows(store):
    """Spark then passes an empty partition."""
    reader = source(store, view="logs").reader(source(store, view="logs").schema())
    assert isinstance(reader, BatchReader)
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []
    with pytest.raises(UsageError, match="no sealed segment of .* holds slot 30 logs"):
        source(store, slot="30").schema()


def test_an_unknown_column_is_refused_with_a_suggestion(store):
    """For views and slots."""
    store.rows(1)
    with pytest.raises(UsageError, match="did you mean severity_text"):
        source(store, view="logs", columns="severity_txt").schema()
    with pytest.raises(UsageError, match="there are id, text"):
        source(store, slot="30", columns="zzz").schema()


def test_a_deleted_segment_is_data_loss_or_skipped(store):
    """A batch read lists the segments once; a later deletion is an error, or is skipped if configured."""
    paths = [store.rows(1, rows=1) for _ in range(3)]
    for lenient in (False, True):
        made = source(store, slot="30", failOnDataLoss=not lenient)
        reader = made.reader(made.schema())
        partitions = reader.partitions()
        if not lenient:
            Path(paths[1]).unlink()
            with pytest.raises(DataLossError, match=r"deleted before it was read.*delete_grace"):
                list(reader.read(partitions[0]))
    ids = [row["id"] for row in read(source(store, slot="30", failOnDataLoss=False))]
    assert ids == [0, 2]


def test_a_flipped_byte_is_damage_or_skipped(store):
    """No byte of a segment is used before its checksum is checked."""
    paths = [store.rows(1, rows=1) for _ in range(2)]
    made = source(store, slot="30")
    reader = made.reader(made.schema())
    partitions = reader.partitions()
    Path(paths[0]).chmod(0o600)
    with Path(paths[0]).open("r+b") as file:
        file.seek(100)
        byte = file.read(1)
        file.seek(100)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(CorruptionError, match="checksum"):
        list(reader.read(partitions[0]))
    assert [row["id"] for row in read(source(store, slot="30", failOnDataLoss=False))] == [1]


def test_an_invalid_request_is_damage_or_skipped(store):
    """The error names the bundle; the others are read if configured."""
    bad = pa.record_batch({"data": [b"\xff\xff", logs_request([7])]}, schema=OTLP_SCHEMA)
    store.seal([{60: bad}])
    with pytest.raises(CorruptionError, match="bundle 0:0 cannot be decoded"):
        read(source(store, view="logs"))
    rows = read(source(store, view="logs", failOnDataLoss=False, includeMetadata=True))
    assert [(row["time_unix_nano"], row["_row"]) for row in rows] == [(7, 0)]


def test_many_small_bundles_are_combined_into_few_batches(store):
    """Each batch that is sent to the JVM has a fixed cost."""
    store.rows(300, rows=10)
    made = source(store, slot="30")
    reader = made.reader(made.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert len(batches) == 1
    assert batches[0].column("id").to_pylist() == list(range(3000))


def test_large_rows_are_not_combined(store):
    """Together, few rows of many bytes would need unbounded memory."""
    request = pa.record_batch({"data": [b"x" * 9_000_000]}, schema=OTLP_SCHEMA)
    store.seal([{60: request}, {60: request}, {60: request}])
    made = source(store, slot="60")
    reader = made.reader(made.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert [batch.num_rows for batch in batches] == [1, 1, 1]


def test_descriptors_have_the_number_of_rows_on_request(store):
    """Enough to count rows without reading a value."""
    store.rows(2, rows=7)
    store.seal([{30: pa.record_batch({"id": [1]}), 31: pa.record_batch({"id": [1, 2]})}])
    rows = [dict(row["rows"]) for row in read(source(store, mode="bundles", includeMetadata="true"))]
    assert rows == [{30: 7}, {30: 7}, {30: 1, 31: 2}]
    assert "rows" not in read(source(store, mode="bundles"))[0]


def test_the_schema_needs_each_different_segment_once(store, monkeypatch):
    """Segments with a known schema are not opened, and no data are read: tasks check them before use."""
    paths = [store.rows(1), store.rows(1), store.seal([{30: pa.record_batch({"id": [1], "more": [2]})}])]
    asked = []
    original = SegmentReader.schema

    def watch(reader, stream_id):
        asked.append(reader.path)
        return original(reader, stream_id)

    monkeypatch.setattr(SegmentReader, "schema", watch)
    monkeypatch.setattr(SegmentReader, "verify", None)
    assert source(store, slot="30").schema().names == ["id", "text", "more"]
    assert asked == [paths[0], paths[2]]


def test_times_limit_a_batch_read(store):
    """`startingTimestamp` is inclusive, `endingTimestamp` exclusive; both refer to the times of ingest."""
    store.rows(3, rows=1)
    store.rows(3, rows=1)

    def ids(**options):
        return [row["id"] for row in read(source(store, slot="30", **options))]

    # The bundles of a segment are ingested a microsecond apart, from the same time on in both segments.
    instant = "2023-11-14T22:13:20.00000{}+00:00"
    assert ids(startingTimestamp=instant.format(1)) == [1, 2, 3, 4, 5]
    assert ids(startingTimestamp=instant.format(3)) == []
    assert ids(startingTimestamp="1700000000000") == [0, 1, 2, 3, 4, 5]
    assert ids(startingTimestamp="1700000000001") == []
    assert ids(endingTimestamp=instant.format(2)) == [0, 1]
    assert ids(startingOffsets='{"seq":0,"idx":1}', endingTimestamp=instant.format(2)) == [1]


def test_a_stream_starts_at_a_time(store):
    """For a new subscriber only; an existing one continues at its position."""
    store.rows(3, rows=1)
    for instant in ("2023-11-14T22:13:20.000002Z", "1700000000000"):
        made = source(store, slot="30", subscriber="exp", startingTimestamp=instant)
        reader = made.streamReader(schema=made.schema())
        assert (reader.initialOffset()["seq"], reader.initialOffset()["idx"]) == (0, 2)
        reader.stop()
    made = source(store, slot="30", subscriber="later", startingTimestamp="1700000000001")
    reader = made.streamReader(schema=made.schema())
    assert (reader.initialOffset()["seq"], reader.initialOffset()["idx"]) == (1, 0)
    reader.stop()


def test_deleted_files_are_closed(store):
    """A reader that is kept for the next task would otherwise occupy the disk space of a deleted file."""
    path = store.rows(1)
    read(source(store, slot="30"))
    Path(path).unlink()
    store.rows(1)
    read(source(store, slot="30"))
    assert path not in {known[0] for known in quiver.spark.store.read_partition._readers}


def test_only_one_segment_is_in_memory(store, monkeypatch):
    """Segments are kept open for the next task, but only the one that is being read has pages in memory."""
    let_go = []
    monkeypatch.setattr(
        "quiver.spark.store.read_partition.SegmentReader.release_pages", lambda self: let_go.append(self.path)
    )
    paths = [store.rows(1) for _ in range(3)]
    read(source(store, slot="30"))
    assert [path for path in let_go if path in paths] == paths[:-1]
    assert set(paths) <= {known[0] for known in quiver.spark.store.read_partition._readers}


def test_min_partitions_divides_a_batch(store):
    """Between bundles."""
    store.rows(4, rows=1)
    made = source(store, slot="30", minPartitions=3)
    reader = made.reader(made.schema())
    assert len(reader.partitions()) == 3
    assert [row["id"] for row in read(made)] == [0, 1, 2, 3]


def test_a_stream_reader_is_pickled_without_its_lock(store):
    """Tasks receive the part that reads, without the part that acknowledges."""
    store.rows(2, rows=1)
    made = source(store, slot="30", subscriber="exp")
    reader = made.streamReader(schema=made.schema())
    start = reader.initialOffset()
    end = batch_end(reader, start)
    twin = pickle.loads(pickle.dumps(reader))
    ids = [
        row["id"] for part in reader.partitions(start, end) for batch in twin.read(part) for row in batch.to_pylist()
    ]
    assert ids == [0, 1]
    reader.commit(end)
    reader.stop()
    twin.stop()


def test_relative_paths_refer_to_the_directory_of_the_driver(store, monkeypatch):
    """Tasks may run in another one."""
    store.rows(1, rows=1)
    monkeypatch.chdir(Path(store.root).parent)
    made = QuiverDataSource({"path": Path(store.root).name, "slot": "30"})
    reader = made.reader(made.schema())
    partitions = reader.partitions()
    monkeypatch.chdir("/")
    assert sum(batch.num_rows for batch in reader.read(partitions[0])) == 1
