"""The format `quiver-fleet`: all nodes of a fleet in one Spark query."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from needed import needs
from nodes import LAKE, Node
from stores import logs_request

import quiver
from quiver.bundle import OTLP_SCHEMA
from quiver.errors import UsageError
from quiver.objects.location import ObjectLocation
from quiver.objects.memory import MemoryObjects
from quiver.objects.opening import open_objects
from quiver.objects.retrying import RetryingObjects
from quiver.observe import InMemoryObserver
from quiver.spark.fleet.segment_rows import OBJECT_TRIES_MAX, FleetRows
from quiver.spark.fleet.source import FleetDataSource
from quiver.spark.spark_features import STREAM_LIMITS
from quiver.store.format.fleet.names import key_of, segment_key
from quiver.store.reading.fleet.inbox import list_node
from quiver.store.reading.fleet.options import parse_fleet_options
from quiver.store.reading.fleet.rejected import list_rejected
from quiver.testing.clock import ManualClock
from quiver.testing.faultobjects import FaultObjects

pytestmark = pytest.mark.spark


def stream(spark, path, **options):
    reader = spark.readStream.format("quiver-fleet").option("path", path).option("subscriber", LAKE)
    return reader.option("includeMetadata", "true").options(**options)


def run(frame, tmp_path):
    """Process what there is, into Parquet files."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "check"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


@needs(STREAM_LIMITS)
@pytest.mark.xdist_group("s3_server")
def test_a_query_over_a_bucket_reads_all_nodes_once_and_frees_them(spark, s3_server, tmp_path):
    """In several batches and two runs; a damaged object delays no other node."""
    url, options = s3_server.url(), s3_server.options()
    path = json.dumps({"backend": "s3", "root": url, "options": options})
    nodes = [Node(tmp_path / f"node{k}", f"edge-{k}", url, options) for k in range(3)]
    for k, node in enumerate(nodes):
        node.send([k * 100, k * 100 + 1], [k * 100 + 2])
    tier = open_objects(ObjectLocation.from_url(url, options))
    found = list_node(tier, nodes[2].identity)[0]
    data = bytearray(tier.get(key_of(nodes[2].identity, found), size_max=1 << 20))
    data[100] ^= 1
    tier.put(key_of(nodes[2].identity, found), bytes(data))

    query = run(stream(spark, path, view="logs", maxBytesPerTrigger="4000").load(), tmp_path)
    assert query.lastProgress["batchId"] > 0
    nodes[0].send([3, 4])
    run(stream(spark, path, view="logs").load(), tmp_path)

    rows = spark.read.parquet(str(tmp_path / "out")).select("_node", "_segment", "body", "time_unix_nano").collect()
    by_node = {node.identity: sorted(row[3] for row in rows if row[0] == node.identity) for node in nodes}
    assert list(by_node.values()) == [[0, 1, 2, 3, 4], [100, 101, 102], []]
    assert {row[1] for row in rows} == {0, 1, 2}
    ((_, rejected),) = list_rejected(tier, LAKE)
    assert (rejected.identity, rejected.segment, rejected.cause) == (nodes[2].identity, 0, "damaged")
    assert [node.left() for node in nodes] == [0, 0, 2], "the node with the rejected segment keeps it"


def test_a_slot_is_read_in_a_batch(spark, tmp_path):
    """With the columns of several nodes, in their widest types."""
    bucket = str(tmp_path / "bucket")
    first, second = (Node(tmp_path / name, name, bucket) for name in ("a", "b"))
    first.send_slot(pa.record_batch({"n": pa.array([1, 2], pa.int32())}))
    second.send_slot(pa.record_batch({"n": pa.array([3], pa.int64()), "text": ["x"]}))
    frame = spark.read.format("quiver-fleet").option("slot", "30").option("includeMetadata", "true").load(bucket)
    rows = {(row["_node"], row["n"], row["text"]) for row in frame.collect()}
    assert rows == {(first.identity, 1, None), (first.identity, 2, None), (second.identity, 3, "x")}


def test_columns_that_do_not_fit_are_rejected_with_their_node(tmp_path):
    """In a task: the other nodes are read, and the record has the reason."""
    bucket = str(tmp_path / "bucket")
    good, bad = (Node(tmp_path / name, name, bucket) for name in ("a", "b"))
    good.send_slot(pa.record_batch({"n": pa.array([1], pa.int64())}))
    bad.send_slot(pa.record_batch({"n": ["text"]}))
    log = FleetDataSource.log({"path": bucket, "slot": "30", "subscriber": LAKE})
    start = log.initial()
    tasks = log.plan(start, log.latest(start, unlimited=True))
    target = pa.schema([("n", pa.int64())])
    rows = [row["n"] for task in tasks for batch in log.read(task, target) for row in batch.to_pylist()]
    assert rows == [1]
    ((_, rejected),) = list_rejected(open_objects(bucket), LAKE)
    assert (rejected.identity, rejected.cause) == (bad.identity, "schema")
    assert "column n" in rejected.reason


def test_requests_that_cannot_be_decoded_are_recorded(tmp_path):
    """The other rows of their segment are returned."""
    bucket = str(tmp_path / "bucket")
    node = Node(tmp_path / "a", "a", bucket)
    with quiver.open(node.root, node.settings, background=False) as store:
        for request in (logs_request([1]), b"\xff junk", logs_request([2])):
            store.ingest(quiver.Bundle({60: pa.record_batch({"data": [request]}, schema=OTLP_SCHEMA)}))
        store.seal()
        store.maintain()
    log = FleetDataSource.log({"path": bucket, "view": "logs", "subscriber": LAKE})
    start = log.initial()
    (task,) = log.plan(start, log.latest(start, unlimited=True))
    target = pa.schema([("time_unix_nano", pa.int64())])
    assert [row["time_unix_nano"] for batch in log.read(task, target) for row in batch.to_pylist()] == [1, 2]
    ((_, rejected),) = list_rejected(open_objects(bucket), LAKE)
    assert (rejected.cause, "1 cannot be decoded" in rejected.reason) == ("requests", True)


def test_a_batch_read_stops_on_data_loss(tmp_path):
    """Or skips it, with a warning."""
    bucket = str(tmp_path / "bucket")
    node = Node(tmp_path / "a", "a", bucket)
    node.send([1], [2])
    tier = open_objects(bucket)
    tier.put(segment_key("ffffffff-0000-4000-8000-000000000001", 0, 1), b"junk")
    target = pa.schema([("time_unix_nano", pa.int64())])

    def read(**options):
        log = FleetDataSource.log({"path": bucket, "view": "logs", **options})
        return sorted(
            row["time_unix_nano"] for task in log.plan_all() for batch in log.read(task, target)
            for row in batch.to_pylist()
        )  # fmt: skip

    with pytest.raises(Exception, match="ffffffff-0000-4000-8000-000000000001.*checksum"):
        read()
    assert read(failOnDataLoss="false") == [1, 2]
    assert read(acceptDataLossOf="ffffffff-0000-4000-8000-000000000001") == [1, 2]


@pytest.mark.parametrize(("given", "problem"), [
    ({"view": "logs"}, "bucket of the fleet"),
    ({"path": "/x"}, "view .* or slot"),
    ({"path": "/x", "view": "logs", "slot": "1"}, "view .* or slot"),
    ({"path": "/x", "view": "log"}, "not one of logs"),
    ({"path": "/x", "view": "logs", "maxBytesPerTriger": "1"}, "did you mean maxBytesPerTrigger"),
    ({"path": "/x", "view": "logs", "startingOffsets": "7"}, "earliest, latest"),
    ({"path": "/x", "view": "logs", "acceptDataLossOf": "edge-17"}, "not the identity"),
    ({"path": "/x", "view": "logs", "subscriber": "a b"}, "a b"),
])  # fmt: skip
def test_wrong_options_are_refused(given, problem):
    """Before anything is read."""
    with pytest.raises(UsageError, match=problem):
        parse_fleet_options(given)


def test_a_fleet_is_not_written_to():
    """Only its nodes write."""
    with pytest.raises(UsageError, match="cold.fleet"):
        FleetDataSource.sink({}, None)


def test_tasks_fetch_within_a_limit(tmp_path):
    """However many segments a task has."""
    bucket = str(tmp_path / "bucket")
    node = Node(tmp_path / "a", "a", bucket)
    node.send(*([number] for number in range(30)))
    log = FleetDataSource.log({"path": bucket, "view": "logs"})
    rows = FleetRows(parse_fleet_options({"path": bucket, "view": "logs"}), pa.schema([("time_unix_nano", pa.int64())]))
    (task,) = log.plan_all()
    assert [batch.column(0).to_pylist() for batch in rows.read(task)] == [[number] for number in range(30)]


def test_an_outage_of_the_object_store_does_not_end_a_query(quiet):
    """As long as a server needs to start again; a task that fails would end it."""
    clock, inner = ManualClock(), FaultObjects(MemoryObjects())
    tier = RetryingObjects(inner, clock=clock, observer=InMemoryObserver(), tries_max=OBJECT_TRIES_MAX)
    inner.put("key", b"value")
    inner.fail_on("get", times=OBJECT_TRIES_MAX - 1)
    assert tier.get("key", size_max=100) == b"value"
    assert clock.monotonic() > 15
