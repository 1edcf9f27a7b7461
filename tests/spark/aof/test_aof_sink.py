"""`format("quiver-aof")` as a sink: each batch once, nothing before the commit, with the columns of a read."""

import pyarrow as pa
import pytest
from needed import limited
from pyspark.sql import functions as F  # noqa: N812

from quiver.aof import AofManager
from quiver.errors import UsageError
from quiver.spark.aof.sink import records_of
from quiver.spark.aof.sink_options import AofSinkOptions, check_record_columns, parse_aof_sink_options


def read(directory, name="orders"):
    with AofManager.open(str(directory), background=False) as manager:
        return list(manager.log(name).open_reader())


def write(frame, path, mode="append", **options):
    frame.write.format("quiver-aof").mode(mode).options(**options).save(str(path))


@pytest.mark.spark
def test_a_batch_write_appends_all_rows(spark, tmp_path):
    """Two partitions, into a log that does not exist yet."""
    frame = spark.range(40, numPartitions=2).selectExpr("cast(id as string) as payload", "-id as ext_id")
    write(frame, tmp_path / "aof" / "orders")
    first = read(tmp_path / "aof")
    assert sorted(int(one.payload) for one in first) == list(range(40))
    assert all((-int(one.payload)) % (1 << 64) == one.ext_id for one in first)
    assert not list((tmp_path / "aof" / "orders" / "incoming").glob("job-*"))


@pytest.mark.spark
@pytest.mark.slow
def test_the_rows_of_a_read_can_be_written(spark, tmp_path):
    """Payload and ext_id are copied; ids and times are new."""
    with AofManager.open(str(tmp_path / "aof"), background=False) as manager:
        manager.log("orders").append_records([b"a", b"b"], ext_id=[7, 8])
    first = read(tmp_path / "aof")
    again = spark.read.format("quiver-aof").options(path=str(tmp_path / "aof"), log="orders").load()
    write(again, tmp_path / "aof", log="copy")
    assert [one[2:] for one in read(tmp_path / "aof", "copy")] == [one[2:] for one in first]


@pytest.mark.spark
@pytest.mark.slow
def test_a_write_with_a_version_is_not_repeated(spark, tmp_path):
    """As in foreachBatch: the same version changes nothing when it is written again."""
    frame = spark.range(5).selectExpr("cast(id as string) as payload")
    for version in (0, 0, 1, 0, 1):
        write(frame, tmp_path / "orders", txnAppId="etl", txnVersion=version)
    assert len(read(tmp_path)) == 10


@pytest.mark.spark
@pytest.mark.slow
def test_a_failed_task_leaves_nothing(spark, tmp_path):
    """One partition fails: no record of any partition appears, then or later."""
    fail = F.udf(lambda number: 1 / (number - 9))
    frame = spark.range(10).repartition(2).select(fail("id").cast("string").alias("payload"))
    with pytest.raises(Exception, match="ZeroDivisionError"):
        write(frame, tmp_path / "orders")
    assert read(tmp_path) == []
    with pytest.raises(Exception, match="a log only grows"):
        write(spark.range(1).selectExpr("string(id) as payload"), tmp_path / "orders", "overwrite")


@pytest.mark.spark
@pytest.mark.slow
def test_a_stream_copies_one_log_to_another(spark, tmp_path):
    """Another process has the target open, and the query is restarted: each record arrives once, in order."""
    with AofManager.open(str(tmp_path / "b")) as target:
        copy = target.log("copy")
        follower = copy.tail_follower(0)
        seen = []
        for count in (6, 3):
            with AofManager.open(str(tmp_path / "a"), background=False) as source:
                source.log("orders").append_records([str(len(seen) + at).encode() for at in range(count)])
            options = {"path": str(tmp_path / "a" / "orders"), **limited(maxRowsPerTrigger="4")}
            query = (
                spark.readStream.format("quiver-aof").options(**options).load()
                .writeStream.format("quiver-aof").option("path", str(tmp_path / "b" / "copy"))
                .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
            )  # fmt: skip
            query.awaitTermination()
            seen += [bytes(follower.next(timeout=30).payload) for _ in range(count)]
        assert seen == [str(at).encode() for at in range(9)]
        assert copy.snapshot().record_count == 9


# ── without Spark ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ({"payload": "string"}, {"paht": "x"}, "did you mean path"),
        ({"payload": "string"}, {"quite": "x"}, "known are path, log"),
        ({"payload": "string"}, {"path": ""}, "needs the directory of a log"),
        ({"payload": "string"}, {"log": "../x"}, "cannot be named"),
        ({"payload": "string"}, {"path": "/"}, "needs the directory of a log"),
        ({"payload": "bigint"}, {}, "bigint, but must be binary or string"),
        ({"value": "string"}, {}, "column value is not a column of a record"),
        ({"ext_id": "bigint", "timestamp": "timestamp"}, {}, "needs a column payload"),
        ({"payload": "string"}, {"txnAppId": "x"}, "txnAppId and txnVersion"),
        ({"payload": "string"}, {"txnAppId": "job-x", "txnVersion": "1"}, "not start with job-"),
        ({"payload": "string"}, {"maxRecordSize": "2GiB"}, "maxRecordSize"),
    ],
)
def test_invalid_options_and_columns_are_refused(columns, options, says):
    """The error explains what to change."""
    with pytest.raises(UsageError, match=says):
        check_record_columns(columns)
        parse_aof_sink_options({"path": "aof/orders", "checkpointLocation": "c", **options})


def test_options_select_the_log():
    """By the directory of a log, or by the directory of several logs and a name."""
    assert parse_aof_sink_options({"path": "aof", "LOG": "orders"}).path == "aof/orders"
    assert parse_aof_sink_options({"path": "file:///aof/orders/"}).path == "/aof/orders"


@pytest.mark.parametrize(
    ("payload", "says"), [(None, "payload is null"), (b"", "or empty"), (b"x" * 9, "exceeds maxRecordSize")]
)
def test_rows_that_are_not_records_are_refused(payload, says):
    """They fail their task, so nothing of the batch is committed."""
    batch = pa.record_batch({"payload": pa.array([payload], pa.binary())})
    with pytest.raises(UsageError, match=says):
        list(records_of([batch], AofSinkOptions("x", record_bytes_max=8)))


def test_a_null_ext_id_is_the_same_as_none():
    """Negative numbers represent ids that do not fit into Spark's type."""
    batch = pa.record_batch({"payload": [b"a", b"b", b"c"], "ext_id": pa.array([1, None, -1], pa.int64())})
    assert list(records_of([batch], AofSinkOptions("x"))) == [(b"a", 1), (b"b", 0), (b"c", (1 << 64) - 1)]
