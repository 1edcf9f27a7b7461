"""`format("quiver-topic")` as a source: each message once, from files and objects, over restarts, during appends."""

import itertools
from types import SimpleNamespace

import pytest
from needed import batch_end, limited, needs
from pyspark.sql import functions as F  # noqa: N812

from quiver.clock import SystemClock
from quiver.errors import DataLossError, DirectoryInUseError, UsageError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.spark_features import STREAM_LIMITS, ReadAllAvailable, from_arrow_schema
from quiver.spark.topics.options import parse_topic_options
from quiver.spark.topics.source import TopicDataSource
from quiver.topics import TopicSettings, TopicStore
from quiver.topics.dispatch.saved import SubscriptionFiles
from quiver.topics.format.message import decode_message
from quiver.topics.reading.file_reader import LostRange, MessageRun, TopicFileReader
from quiver.topics.reading.message_rows import TOPIC_SCHEMA
from quiver.topics.reading.place import TopicPlace
from quiver.topics.reading.progress import TopicProgress

pytestmark = pytest.mark.spark

ORDERS = "default/orders"


@pytest.fixture
def topics(tmp_path):
    """Yield topics with small files, without background threads."""
    settings = TopicSettings.from_mapping({"wal": {"rotate_max_bytes": 4096}})
    with TopicStore.open(tmp_path / "topics", settings=settings, background=False) as store:
        yield store


def fill(store, count, topic=ORDERS, size=100):
    log = store.topic(topic)
    first = log.current_offset()
    for at in range(first, first + count):
        log.append(str(at).encode().rjust(size, b"."))
    return log


def batch(spark, store, topic=ORDERS, **options):
    return spark.read.format("quiver-topic").options(path=store.root, topic=topic, **options).load()


def offsets(frame):
    return sorted((row.topic, row.offset) for row in frame.select("topic", "offset").toLocalIterator())


def run(spark, store, tmp_path, topic=ORDERS, name="s", **options):
    """Run a query with `availableNow` into a table in memory, and return its batches."""
    frame = spark.readStream.format("quiver-topic").options(path=store.root, topic=topic, **options).load()
    seen = []

    def note(rows, number):
        seen.append([(row.topic, row.offset) for row in rows.select("topic", "offset").collect()])

    query = (
        frame.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / f"checkpoint-{name}"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    return seen


def test_a_batch_read_has_all_columns_and_rows(spark, topics):
    """Within the given offsets, in several tasks."""
    log = topics.topic(ORDERS)
    log.append(b"one", attributes={"k": "v"}, key="customer", publish_time_ns=1_700_000_000_123_000_000)
    fill(topics, 99)
    frame = batch(spark, topics, endingOffsets="1", includeMetadata="true")
    [first] = frame.withColumn("timestamp", F.unix_millis("timestamp")).collect()
    assert first.asDict() == {
        "offset": 0, "timestamp": 1_700_000_000_123, "key": "customer", "payload": b"one",
        "attributes": {"k": "v", "routing_key": "customer"}, "topic": ORDERS, "_producer": "", "_producer_id": 0,
        "_request_id": 0, "_broker": "",
    }  # fmt: skip
    frame = batch(spark, topics, startingOffsets="7", endingOffsets='{"default/orders": 93}', minPartitions="4")
    assert frame.rdd.getNumPartitions() == 4
    assert offsets(frame) == [(ORDERS, at) for at in range(7, 93)]
    times = {"startingTimestamp": "1700000000123", "endingTimestamp": "1700000000124"}
    [row] = batch(spark, topics, columns="payload,offset", **times).collect()
    assert row.asDict() == {"payload": b"one", "offset": 0}
    assert list(row.asDict()) == ["payload", "offset"]
    assert batch(spark, topics, startingOffsets="latest").count() == 0


def test_several_topics_are_read_by_name_or_pattern(spark, topics):
    """An invalid name is refused."""
    fill(topics, 3)
    fill(topics, 2, "default/returns")
    fill(topics, 2, "other/orders")
    both = [(ORDERS, at) for at in range(3)] + [("default/returns", at) for at in range(2)]
    assert offsets(batch(spark, topics, f"{ORDERS},default/returns")) == both
    assert offsets(batch(spark, topics, "default/*")) == both
    with pytest.raises(Exception, match="holds no topic"):
        batch(spark, topics, "default/nothing").collect()


def test_a_stream_continues_where_it_stopped(spark, topics, tmp_path):
    """Every message is in one batch, over restarts, within the limit; the subscription has the committed position."""
    fill(topics, 25)
    options = {"subscription": "spark", **limited(maxOffsetsPerTrigger="10")}
    first = run(spark, topics, tmp_path, **options)
    assert [len(rows) for rows in first] == ([10, 10, 5] if STREAM_LIMITS.is_available else [25])
    fill(topics, 30)
    second = run(spark, topics, tmp_path, **options)
    assert [row for rows in first + second for row in rows] == [(ORDERS, at) for at in range(55)]
    kept = SubscriptionFiles(REAL_FILES, f"{topics.root}/{ORDERS}")
    confirmed = 55 if STREAM_LIMITS.is_available else 25  # without limits, the last batch waits for the next run
    assert kept.load("spark").next_offset == confirmed
    assert topics.confirmed_offset(ORDERS) == confirmed


@pytest.mark.slow
def test_a_new_topic_is_added_to_a_stream(spark, topics, tmp_path):
    """If a pattern was given; it is read from its beginning."""
    fill(topics, 2)
    assert run(spark, topics, tmp_path, "default/*") == [[(ORDERS, 0), (ORDERS, 1)]]
    fill(topics, 1, "default/returns")
    assert run(spark, topics, tmp_path, "default/*") == [[("default/returns", 0)]]


@pytest.mark.slow
def test_latest_needs_a_subscription(spark, topics, tmp_path):
    """It keeps the position, even if the first batch runs much later."""
    fill(topics, 5)
    with pytest.raises(Exception, match="needs a subscription"):
        run(spark, topics, tmp_path, startingOffsets="latest")
    assert run(spark, topics, tmp_path, startingOffsets="latest", subscription="new") in ([], [[]])
    fill(topics, 2)
    seen = run(spark, topics, tmp_path, startingOffsets="latest", subscription="new")
    assert [row for rows in seen for row in rows] == [(ORDERS, 5), (ORDERS, 6)]


@needs(STREAM_LIMITS)
@pytest.mark.slow
def test_objects_are_read_for_deleted_files(spark, tmp_path):
    """In parallel by the index, then the files, without a gap; a waiting stream prevents the deletion of files."""
    root = tmp_path / "topics"
    mapping = {
        "wal": {"rotate_max_bytes": 4096},
        "deleter": {"retention_time_minutes": 0, "wait_for_subscriptions": True},
    }
    objects = f"file://{tmp_path}/cold"
    with TopicStore.open(root, settings=mapping, objects=objects, background=False) as store:
        fill(store, 100)
        assert [len(one) for one in run(spark, store, tmp_path, subscription="spark", maxOffsetsPerTrigger="50")] == [
            50, 50,
        ]  # fmt: skip
        fill(store, 100)
        store.maintain()
        store.maintain()
        held = TopicFileReader(TopicPlace(str(root)), ORDERS).start_offset()
        assert 0 < held <= 100
        store.subscribe(ORDERS, "spark", kind="exclusive").close()
        fill(store, 50)
        frame = batch(spark, store, objects=objects, minPartitions="3")
        assert offsets(frame) == [(ORDERS, at) for at in range(250)]
        with pytest.raises(Exception, match=f"messages 0 to {held - 1} are lost.*say where: objects"):
            batch(spark, store, startingOffsets="0").collect()
        kept = batch(spark, store, startingOffsets="0", failOnDataLoss="false")
        assert offsets(kept) == [(ORDERS, at) for at in range(held, 250)]
    only = spark.read.format("quiver-topic").options(
        topic=ORDERS, objects=objects, metadata=f"sqlite://{root}/metadata.db"
    )
    assert offsets(only.load())[0] == (ORDERS, 0)


# ── without Spark ────────────────────────────────────────────────────────────────────────────────────


def view_of(store, topic=ORDERS):
    return TopicFileReader(TopicPlace(store.root), topic)


def read_offsets(view, start, stop, mark=None):
    found = []
    for one in view.read(start, stop, mark):
        assert isinstance(one, MessageRun), one
        found += [decode_message(body).offset for body in one.bodies]
        assert found[-len(one.bodies)] == one.first
    return found


def test_any_range_can_be_read_from_any_stretch(topics):
    """The result does not depend on the mark or on earlier reads."""
    fill(topics, 300)
    view = view_of(topics)
    assert (view.start_offset(), view.next_offset()) == (0, 300)
    stretches = list(view.stretches(0, 300))
    assert (stretches[0].start, stretches[-1].stop) == (0, 300)
    assert all(a.stop == b.start for a, b in itertools.pairwise(stretches))
    for one in stretches:
        assert read_offsets(view_of(topics), one.start, one.stop, one.mark) == list(range(one.start, one.stop))
    for start, stop in ((0, 300), (13, 14), (299, 300), (120, 177), (5, 5)):
        assert read_offsets(view, start, stop) == list(range(start, stop))


def test_the_end_of_the_topic_is_updated(topics):
    """Only new messages are read, also after a rotation of the log."""
    log = fill(topics, 10)
    view = view_of(topics)
    for count in (10, 11, 60, 61):
        fill(topics, count - log.current_offset())
        assert view.next_offset(durable=True) == count
        assert list(view.stretches(0, count))[-1].stop == count


def test_the_offset_of_a_time_is_found(tmp_path):
    """In objects, in any file, after the end; the answer does not depend on where the messages are stored."""
    mapping = {"wal": {"rotate_max_bytes": 600}, "deleter": {"retention_time_minutes": 0}}
    with TopicStore.open(tmp_path / "t", settings=mapping, objects=str(tmp_path / "cold"), background=False) as store:
        log = store.topic(ORDERS)
        here = TopicPlace(store.root)
        for number in range(40):
            log.append(b"x", publish_time_ns=(1000 + 10 * (number // 2)) * 1_000_000)  # two messages at each time
        for place in (here, TopicPlace(store.root, objects=str(tmp_path / "cold"))):
            view = TopicFileReader(place, ORDERS)
            for number in range(40):
                at_ns = (1000 + 10 * (number // 2)) * 1_000_000
                first = number // 2 * 2
                assert [view.offset_at(at_ns + more) for more in (-1, 0, 1)] == [first, first, first + 2]
            assert view.offset_at(0) == 0
            log.flush()
            store.maintain()
        assert TopicFileReader(here, ORDERS).start_offset() > 0


def test_a_stream_starts_at_a_time(topics):
    """A new subscription stores that position; without one, the answer is the same however often Spark asks."""
    log = topics.topic(ORDERS)
    for number in range(10):
        log.append(b"x", publish_time_ns=(1_700_000_000 + number) * 1_000_000_000)
    options = {"startingTimestamp": "2023-11-14T22:13:24Z"}
    assert stream_of(topics, **options).initialOffset() == at(4)
    asked = stream_of(topics, subscription="s", **options)
    assert asked.initialOffset() == at(4)
    asked.stop()
    assert SubscriptionFiles(REAL_FILES, f"{topics.root}/{ORDERS}").load("s").next_offset == 4


def stream_of(store, **options):
    """Return the part of the source that runs in the driver."""
    source = TopicDataSource({"path": store.root, "topic": ORDERS, **options})
    return source.streamReader(from_arrow_schema(TOPIC_SCHEMA))


def at(offset):
    return {"v": 1, "topics": {ORDERS: offset}}


@needs(STREAM_LIMITS)
def test_the_position_of_a_subscription_only_increases(topics):
    """For any offsets that a query requests again; the loss of a checkpoint does not change it."""
    fill(topics, 10)
    kept = SubscriptionFiles(REAL_FILES, f"{topics.root}/{ORDERS}")
    reader = stream_of(topics, subscription="s", startingOffsets="4")
    assert reader.initialOffset() == reader.initialOffset() == at(4)
    assert kept.load("s").next_offset == 4
    assert reader.latestOffset(at(4), ReadAllAvailable()) == at(10)
    assert kept.load("s").next_offset == 4
    reader.commit(at(7))
    assert reader.latestOffset(at(5), ReadAllAvailable()) == at(10)
    assert kept.load("s").next_offset == 7
    reader.stop()
    again = stream_of(topics, subscription="s", startingOffsets="0")
    assert again.initialOffset() == at(7)
    again.stop()


def test_a_first_batch_can_be_planned_again(topics):
    """Without a subscription, the first offset is a constant, even if messages were appended since."""
    fill(topics, 10)
    reader = stream_of(topics)
    assert reader.initialOffset() == at(-1)
    assert batch_end(reader, at(-1)) == at(10)
    [part] = reader.partitions(at(-1), at(10))
    assert (part.spans[0].start, part.spans[0].stop) == (0, 10)
    assert reader.partitions(at(10), at(10)) == []


@needs(STREAM_LIMITS)
def test_a_checkpoint_of_another_topic_is_refused(topics):
    """
    A topic that ends before the offset of the checkpoint is another one; with `failOnDataLoss` off, the stream
    waits.
    """
    fill(topics, 3)
    with pytest.raises(DataLossError, match="asks for message 99, but the topic ends before 3"):
        stream_of(topics).latestOffset(at(99), ReadAllAvailable())
    assert stream_of(topics, failOnDataLoss="false").latestOffset(at(99), ReadAllAvailable()) == at(99)


class ImpatientClock(SystemClock):
    """A clock whose waits return immediately and advance the time."""

    passed_s = 0.0

    def monotonic(self):
        return self.passed_s

    def wait(self, _, timeout):
        self.passed_s += timeout
        return False


def test_a_subscription_has_one_query(topics):
    """The second one waits for a while, in case the first is about to end, and is refused."""
    fill(topics, 1)
    directory = f"{topics.root}/{ORDERS}"
    first = TopicProgress(REAL_FILES, directory, "s")
    assert first.start_at(0) == 0
    second = TopicProgress(REAL_FILES, directory, "s", clock=ImpatientClock())
    with pytest.raises(DirectoryInUseError, match="a streaming query, subscription s"):
        second.start_at(0)
    first.release()
    assert second.position() == 0
    second.release()


def test_a_query_and_a_consumer_cannot_share_a_subscription(tmp_path):
    """In any process, the second is refused until the first closes; so is deleting the subscription."""
    with TopicStore.open(tmp_path / "topics", clock=ImpatientClock(), background=False) as topics:
        one_at_a_time(topics)


def one_at_a_time(topics):
    fill(topics, 2)
    query = TopicProgress(REAL_FILES, f"{topics.root}/{ORDERS}", "s")
    assert query.start_at(0) == 0
    with pytest.raises(DirectoryInUseError, match="a streaming query, subscription s"):
        topics.subscribe(ORDERS, "s")
    with pytest.raises(DirectoryInUseError, match="a streaming query, subscription s"):
        topics.unsubscribe(ORDERS, "s")
    query.confirm(1)
    query.release()

    ours = topics.subscribe(ORDERS, "s")
    assert ours.next_offset == 1
    late = TopicProgress(REAL_FILES, f"{topics.root}/{ORDERS}", "s", clock=ImpatientClock())
    with pytest.raises(DirectoryInUseError, match="topics"):
        late.position()
    ours.close()
    assert late.position() == 1
    late.release()
    topics.unsubscribe(ORDERS, "s")


def test_a_subscription_of_ack_checkpoint_is_refused(topics):
    """A query would move its position unexpectedly."""
    with pytest.raises(UsageError, match="ack_checkpoint"):
        stream_of(topics, subscription="_checkpoint").initialOffset()


class CountingSyncs(type(REAL_FILES)):
    """The real disk; it records which files are synced."""

    def __init__(self):
        super().__init__()
        self.synced = []

    def open_read(self, path):
        file = super().open_read(path)
        return SimpleNamespace(
            pread=file.pread, size=file.size, close=file.close, sync=lambda: (self.synced.append(path), file.sync())
        )


def test_offsets_in_a_checkpoint_are_synced(topics):
    """After a power loss, they must not be used for other messages."""
    log = fill(topics, 5)
    fs = CountingSyncs()
    synced = fs.synced
    view = TopicFileReader(TopicPlace(topics.root), ORDERS, fs=fs)
    assert view.next_offset() == 5
    assert synced == []
    assert view.next_offset(durable=True) == 5
    assert view.next_offset(durable=True) == 5
    assert synced == [f"{topics.root}/{ORDERS}/wal.log"]
    log.append(b"x")
    assert view.next_offset(durable=True) == 6
    assert len(synced) == 2


def test_damage_is_reported_with_its_offsets(topics):
    """Exactly; the messages around it are read."""
    log = fill(topics, 60)
    log.flush()
    path = log._engine.wal.files()[0].path
    data = bytearray(REAL_FILES.read_all(path, size_max=1 << 20))
    ninth = data.index(b"." * 90 + b"9")  # the bytes after a "1" may by chance begin with "0"
    data[data.index(b"." * 90 + b"10", ninth) - 3] ^= 1
    with open(path, "r+b") as file:
        file.write(data)
    found = list(view_of(topics).read(0, 60))
    [lost] = [one for one in found if isinstance(one, LostRange)]
    assert (lost.first, lost.after) == (10, 11)
    assert isinstance(lost.error(), DataLossError)
    assert sum(len(one.bodies) for one in found if isinstance(one, MessageRun)) == 59


def test_a_topic_with_another_file_name_is_reported(tmp_path):
    """Instead of an empty result, the error has the option to set."""
    settings = TopicSettings.from_mapping({"wal": {"file_name": "queue.log"}})
    with TopicStore.open(tmp_path, settings=settings, background=False) as store:
        fill(store, 3)
        with pytest.raises(UsageError, match="not called wal.log"):
            view_of(store).next_offset()
        options = parse_topic_options({"path": store.root, "topic": ORDERS, "fileName": "queue.log"})
        assert TopicFileReader(options.place, ORDERS).next_offset() == 3
