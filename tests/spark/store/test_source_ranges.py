"""The data source without Spark: bundles that are only in the log, and ranges of event times."""

import json
import pickle
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import quiver
from otlp_requests import log_request, metric_request, otlp_bundle, span_request
from quiver.errors import UsageError
from quiver.spark.log_source import BatchReader, RefusedStream
from quiver.spark.spark_features import to_arrow_schema
from quiver.spark.store import read_partition, source
from quiver.spark.store.source import QuiverDataSource
from quiver.testing.clock import ManualClock

NOON_NS = 1_767_614_400_000_000_000
REQUESTS = {"logs": (60, log_request), "spans": (61, span_request), "metrics": (62, metric_request)}
NAMES = {"logs": "time_unix_nano", "spans": "start_time_unix_nano", "metrics": "time_unix_nano"}


def made(root, **options):
    return QuiverDataSource({"path": str(root), **{key.lower(): str(value) for key, value in options.items()}})


def read(root, **options):
    """Return all rows, through a pickle as Spark sends them."""
    loaded = made(root, **options)
    reader = pickle.loads(pickle.dumps(loaded.reader(schema=loaded.schema())))
    assert isinstance(reader, BatchReader)
    declared = to_arrow_schema(loaded.schema())
    rows = []
    for partition in reader.partitions():
        for batch in reader.read(pickle.loads(pickle.dumps(partition))):
            assert declared.equals(batch.schema)
            rows += batch.to_pylist()
    return rows


@pytest.fixture
def store(tmp_path):
    clock = ManualClock()
    with quiver.open(tmp_path / "store", background=False, clock=clock) as opened:
        opened.advance = clock.advance
        opened.now = lambda: datetime.fromtimestamp(clock.now_ns() / 1e9, UTC)
        yield opened


def ingest(store, *ids, **more):
    store.ingest(quiver.Bundle({"logs": pa.record_batch({"id": list(ids), **more})}))
    store.advance(1)


def test_a_batch_read_returns_what_a_scan_returns(store):
    """Sealed bundles, then those that are only in the log, with a column that only these have."""
    with pytest.raises(UsageError, match="no sealed segment"):
        made(store.path, slot="logs").schema()
    ingest(store, 1, 2)
    assert read(store.path, slot="logs") == [{"id": 1}, {"id": 2}]
    store.seal()
    ingest(store, 3, host=["edge"])
    ingest(store, 4)
    rows = read(store.path, slot="logs")
    assert rows == store.scan("logs").to_table().to_pylist()
    assert [row["host"] for row in rows] == [None, None, "edge", None]
    assert read(store.path, slot="logs", includeUnsealed=False) == [{"id": 1}, {"id": 2}]


def test_references_are_those_of_a_reader(store):
    """The provisional ones of bundles that are only in the log, too; another slot counts."""
    ingest(store, 1)
    store.seal()
    store.ingest(otlp_bundle(log_request(NOON_NS)))
    ingest(store, 2)
    rows = read(store.path, slot="logs", includeMetadata=True)
    expected = [ref for ref, bundle in quiver.read(store.path).bundles() if 30 in bundle.batches]
    assert [(row["_segment"], row["_index"]) for row in rows] == [(ref.segment, ref.index) for ref in expected]
    assert [row["_row"] for row in rows] == [0, 0]
    start = {"seq": expected[1].segment, "idx": expected[1].index}
    assert [row["id"] for row in read(store.path, slot="logs", startingOffsets=json.dumps(start))] == [2]
    end = {"seq": expected[1].segment, "idx": 0}
    assert [row["id"] for row in read(store.path, slot="logs", endingOffsets=json.dumps(end))] == [1]
    assert read(store.path, slot="logs", startingOffsets="latest") == []


def test_ranges_of_ingestion_times(store):
    """With bounds among the sealed bundles, and among the others."""
    begin = store.now()
    for number in range(6):
        ingest(store, number)
        if number == 2:
            store.seal()

    def between(**seconds):
        options = {name: (begin + timedelta(seconds=after)).isoformat() for name, after in seconds.items()}
        return [row["id"] for row in read(store.path, slot="logs", **options)]

    for start in range(7):
        assert between(startingTimestamp=start) == list(range(start, 6))
        assert between(endingTimestamp=start) == list(range(start))
        for end in range(start, 7):
            assert between(startingTimestamp=start, endingTimestamp=end) == list(range(start, end))


def test_a_bundle_that_is_sealed_during_the_plan_is_read_once(store, monkeypatch):
    """Its segment is listed after the log was read, and left out."""
    ingest(store, 1)
    store.seal()
    ingest(store, 2)
    loaded = made(store.path, slot="logs")
    reader = loaded.reader(schema=loaded.schema())
    wrapped = source.read_unsealed

    def seal_after(*arguments, **options):
        found = wrapped(*arguments, **options)
        store.seal()
        return found

    monkeypatch.setattr(source, "read_unsealed", seal_after)
    rows = [row["id"] for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert rows == [1, 2]


@pytest.mark.parametrize("view", REQUESTS)
def test_ranges_of_event_times_open_no_other_segment(store, view, monkeypatch):
    """The rows are exact, with metadata of the rows that the bundle has; the times are not among the columns."""
    slot, request = REQUESTS[view]
    for number in range(4):
        first = NOON_NS + 10 * number
        store.ingest(otlp_bundle(request(first), request(first + 1, first + 2), slot=slot))
        if number < 3:
            store.seal()
    opened = []
    wrapped = read_partition.open_checked
    monkeypatch.setattr(
        read_partition, "open_checked", lambda path, **options: opened.append(path) or wrapped(path, **options)
    )

    def text(after):
        return (datetime(2026, 1, 5, 12, tzinfo=UTC) + timedelta(microseconds=after)).isoformat()

    options = {"view": view, "columns": NAMES[view]}
    assert len(read(store.path, **options)) == 12
    opened.clear()
    assert read(store.path, **options, startingEventTime=text(1)) == []
    assert read(store.path, **options, endingEventTime=text(0)) == []
    assert opened == []
    rows = read(store.path, view=view, columns="attributes", includeMetadata=True, startingEventTime=text(0))
    assert [row["_row"] for row in rows] == [0, 1, 2] * 4
    assert len(opened) == 3


def test_event_times_within_a_segment(store):
    """Rows that are not in the range are filtered; requests of tables and of the log, too."""
    millisecond = 1_000_000
    store.ingest(otlp_bundle(log_request(*(NOON_NS + number * millisecond for number in range(4)))))
    store.seal()
    store.ingest(otlp_bundle(log_request(*(NOON_NS + number * millisecond for number in range(4, 8)))))
    bounds = {"startingEventTime": "2026-01-05T12:00:00.002Z", "endingEventTime": "2026-01-05T12:00:00.006Z"}
    rows = read(store.path, view="logs", columns="time_unix_nano", includeMetadata=True, **bounds)
    assert [(row["time_unix_nano"] - NOON_NS) // millisecond for row in rows] == [2, 3, 4, 5]
    assert [row["_row"] for row in rows] == [2, 3, 0, 1]


def test_wrong_options_are_refused(store):
    """With the reason; a stream reads only sealed bundles."""
    ingest(store, 1)
    with pytest.raises(UsageError, match="startingEventTime belongs to view"):
        read(store.path, slot="logs", startingEventTime="2026-01-05T12:00:00Z")
    with pytest.raises(UsageError, match="endingEventTime: 'noon' is neither"):
        read(store.path, view="logs", endingEventTime="noon")
    with pytest.raises(UsageError, match="includeUnsealed belongs to mode rows"):
        read(store.path, mode="bundles", includeUnsealed=True)
    loaded = made(store.path, slot="logs", subscriber="s", includeUnsealed=True)
    stream = loaded.streamReader(schema=loaded.schema())
    assert isinstance(stream, RefusedStream)
    with pytest.raises(UsageError, match="includeUnsealed is for batch reads"):
        stream.initialOffset()
