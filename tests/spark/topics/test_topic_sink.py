"""`format("quiver-topic")` as a sink: each batch once, nothing before the commit, with the columns of a read."""

import pyarrow as pa
import pytest
from needed import limited
from pyspark.sql import functions as F  # noqa: N812

from quiver.errors import UsageError
from quiver.spark.topics.sink import messages_of
from quiver.spark.topics.sink_options import check_columns, parse_topic_sink_options
from quiver.topics import TopicStore

pytestmark = pytest.mark.spark

ORDERS = "default/orders"


def read(root, topic=ORDERS):
    with TopicStore.open(root, background=False) as store, store.topic(topic).reader("earliest", follow=False) as found:
        return list(found)


def write(frame, root, mode="append", **options):
    frame.write.format("quiver-topic").mode(mode).options(**options).save(str(root))


def stream(frame, tmp_path, root, **options):
    query = (
        frame.writeStream.format("quiver-topic").option("path", str(root)).options(**options)
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()


def test_a_batch_write_appends_all_rows(spark, tmp_path):
    """Of several partitions; missing topics are created, by option or by column."""
    frame = spark.range(100).repartition(3).selectExpr("cast(id as string) as payload")
    write(frame, tmp_path / "t", topic=ORDERS)
    assert sorted(int(one.payload) for one in read(tmp_path / "t")) == list(range(100))
    named = spark.range(4).selectExpr("cast(id as string) as payload", "concat('default/t', id % 2) as topic")
    write(named, tmp_path / "t")
    assert [one.payload for one in read(tmp_path / "t", "default/t1")] == [b"1", b"3"]
    assert not list((tmp_path / "t" / ".incoming").glob("job-*"))


def test_all_fields_of_a_message_round_trip(spark, tmp_path):
    """The rows of a read can be written: time, key and attributes are the same."""
    with TopicStore.open(tmp_path / "a", background=False) as store:
        log = store.topic(ORDERS)
        log.append(b"one", attributes={"k": "v", "empty": ""}, key="me", publish_time_ns=1_700_000_000_123_000_000)
        log.append(b"", publish_time_ns=1_000_000)
    frame = spark.read.format("quiver-topic").options(path=str(tmp_path / "a"), topic=ORDERS).load()
    write(frame, tmp_path / "b")
    before, after = read(tmp_path / "a"), read(tmp_path / "b")
    assert [one._replace(producer_name="") for one in after] == before
    assert after[0].producer_name.endswith(":0:0:0")


@pytest.mark.slow
def test_a_write_with_a_version_is_not_repeated(spark, tmp_path):
    """As in foreachBatch: the same version changes nothing when it is written again."""
    frame = spark.range(5).selectExpr("cast(id as string) as payload")
    for version in (0, 0, 1, 0, 1):
        write(frame, tmp_path, topic=ORDERS, txnAppId="etl", txnVersion=version)
    assert len(read(tmp_path)) == 10


def test_a_failed_task_leaves_nothing(spark, tmp_path):
    """One partition fails: no message of any partition appears, then or later."""
    fail = F.udf(lambda number: 1 / (number - 9))
    frame = spark.range(10).repartition(2).select(fail("id").cast("string").alias("payload"))
    with pytest.raises(Exception, match="ZeroDivisionError"):
        write(frame, tmp_path, topic=ORDERS)
    assert read(tmp_path) == []


@pytest.mark.slow
def test_a_stream_copies_one_topic_to_another(spark, tmp_path):
    """Another process has the target open, and the query is restarted: each message arrives once."""
    with TopicStore.open(tmp_path / "a", background=False) as source, TopicStore.open(tmp_path / "b") as target:
        log = source.topic(ORDERS)
        follower = target.topic("default/copy").reader("earliest")
        options = {"path": source.root, "topic": ORDERS, **limited(maxOffsetsPerTrigger="4")}
        frame = spark.readStream.format("quiver-topic").options(**options).load()
        seen = []
        for count in (6, 3):
            log.append_batch([str(log.current_offset() + at).encode() for at in range(count)])
            stream(frame.select("payload", "timestamp"), tmp_path, target.root, topic="default/copy")
            seen += [next(follower).payload for _ in range(count)]
        assert seen == [str(at).encode() for at in range(9)]
        assert target.topic("default/copy").current_offset() == 9
        follower.close()


def test_overwrite_is_refused(spark, tmp_path):
    with pytest.raises(Exception, match="a topic only grows"):
        write(spark.range(1).selectExpr("string(id) as payload"), tmp_path, "overwrite", topic=ORDERS)


# ── without Spark ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ({"payload": "string"}, {"topik": ORDERS}, "did you mean topic"),
        ({"payload": "string"}, {}, "name the topic"),
        ({"payload": "bigint"}, {"topic": ORDERS}, "bigint, but must be binary or string"),
        ({"value": "string"}, {"topic": ORDERS}, "column value is not a column of a message"),
        ({"key": "string"}, {"topic": ORDERS}, "needs a column payload"),
        ({"payload": "string"}, {"topic": ORDERS, "txnAppId": "x"}, "txnAppId and txnVersion"),
        ({"payload": "string"}, {"topic": ORDERS, "txnAppId": "job-x", "txnVersion": "1"}, "not start with job-"),
        ({"payload": "string"}, {"topic": ORDERS, "maxMessageSize": "80MiB"}, "maxMessageSize"),
    ],
)
def test_invalid_options_and_columns_are_refused(columns, options, says):
    """The error explains what to change."""
    with pytest.raises(UsageError, match=says):
        check_columns(columns, parse_topic_sink_options({"path": "t", **options}))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"payload": None, "topic": ORDERS}, "payload is null"),
        ({"payload": "x", "topic": None}, "topic is null"),
        ({"payload": "x", "topic": "a"}, "'a' is not a topic"),
        ({"payload": "x" * 2000, "topic": ORDERS}, "maxMessageSize"),
        ({"payload": "x", "topic": ORDERS, "attributes": [("k", None)]}, "none of them null"),
    ],
)
def test_rows_that_are_not_messages_are_refused(row, says):
    """They fail their task, so nothing of the batch is committed."""
    options = parse_topic_sink_options({"path": "t", "maxMessageSize": "1KiB"})
    fields = [("payload", pa.string()), ("topic", pa.string()), ("attributes", pa.map_(pa.string(), pa.string()))]
    batch = pa.RecordBatch.from_pylist([row], schema=pa.schema(fields))
    with pytest.raises(UsageError, match=says):
        list(messages_of([batch], options))
