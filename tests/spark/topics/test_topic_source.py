"""
`format("quiver-topic")` as a source: each message once, from files and objects, over restarts, beside a live
writer.
"""

import itertools
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from quiver.clock import SystemClock
from quiver.errors import DataLossError, DirectoryInUseError, UsageError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.topics.options import parse_topic_options
from quiver.spark.topics.rows import TOPIC_SCHEMA
from quiver.spark.topics.source import TopicDataSource
from quiver.topics import TopicSettings, TopicStore
from quiver.topics.dispatch.saved import SubscriptionFiles
from quiver.topics.format.message import decode_message
from quiver.topics.reading.place import TopicPlace
from quiver.topics.reading.progress import TopicProgress
from quiver.topics.reading.view import LostRange, Piece, TopicView

pytestmark = pytest.mark.spark

ORDERS = "default/orders"


@pytest.fixture
def topics(tmp_path):
    """Topics whose files are small, beside which Spark reads; nothing runs in the background."""
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
    """One available-now run into a table in memory; its rows."""
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


def test_a_batch_read(spark, topics):
    """All columns; ends as they were asked for; several tasks."""
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


def test_several_topics(spark, topics):
    """By name and by pattern; one that is no topic is refused."""
    fill(topics, 3)
    fill(topics, 2, "default/returns")
    fill(topics, 2, "other/orders")
    both = [(ORDERS, at) for at in range(3)] + [("default/returns", at) for at in range(2)]
    assert offsets(batch(spark, topics, f"{ORDERS},default/returns")) == both
    assert offsets(batch(spark, topics, "default/*")) == both
    with pytest.raises(Exception, match="holds no topic"):
        batch(spark, topics, "default/nothing").collect()


def test_a_stream_goes_on_where_it_stopped(spark, topics, tmp_path):
    """Every message in one batch, over restarts, within the limit; the subscription is what was committed."""
    fill(topics, 25)
    options = {"subscription": "spark", "maxOffsetsPerTrigger": "10"}
    first = run(spark, topics, tmp_path, **options)
    assert [len(rows) for rows in first] == [10, 10, 5]
    fill(topics, 30)
    second = run(spark, topics, tmp_path, **options)
    assert [row for rows in first + second for row in rows] == [(ORDERS, at) for at in range(55)]
    kept = SubscriptionFiles(REAL_FILES, f"{topics.root}/{ORDERS}")
    assert kept.load("spark").next_offset == 55
    assert topics.confirmed_offset(ORDERS) == 55


@pytest.mark.slow
def test_a_new_topic_joins_a_stream(spark, topics, tmp_path):
    """Where a pattern was given, from its beginning."""
    fill(topics, 2)
    assert run(spark, topics, tmp_path, "default/*") == [[(ORDERS, 0), (ORDERS, 1)]]
    fill(topics, 1, "default/returns")
    assert run(spark, topics, tmp_path, "default/*") == [[("default/returns", 0)]]


@pytest.mark.slow
def test_latest_needs_a_subscription(spark, topics, tmp_path):
    """Which then keeps where that was, also when the first batch comes much later."""
    fill(topics, 5)
    with pytest.raises(Exception, match="needs a subscription"):
        run(spark, topics, tmp_path, startingOffsets="latest")
    assert run(spark, topics, tmp_path, startingOffsets="latest", subscription="new") in ([], [[]])
    fill(topics, 2)
    seen = run(spark, topics, tmp_path, startingOffsets="latest", subscription="new")
    assert [row for rows in seen for row in rows] == [(ORDERS, 5), (ORDERS, 6)]


@pytest.mark.slow
def test_objects_are_read_where_files_are_gone(spark, tmp_path):
    """In parallel by the index, then the files, without a gap; a stream that waits holds the files back."""
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
        held = TopicView(TopicPlace(str(root)), ORDERS).start_offset()
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
    return TopicView(TopicPlace(store.root), topic)


def read_offsets(view, start, stop, mark=None):
    found = []
    for one in view.read(start, stop, mark):
        assert isinstance(one, Piece), one
        found += [decode_message(body).offset for body in one.bodies]
        assert found[-len(one.bodies)] == one.first
    return found


def test_any_range_from_any_stretch(topics):
    """What is read is what was asked for, wherever the mark points and whatever was read before."""
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


def test_the_end_is_looked_at_again(topics):
    """Only what is new is read, also when the log began another file."""
    log = fill(topics, 10)
    view = view_of(topics)
    for count in (10, 11, 60, 61):
        fill(topics, count - log.current_offset())
        assert view.next_offset(durable=True) == count
        assert list(view.stretches(0, count))[-1].stop == count


def test_where_a_time_is(tmp_path):
    """In objects, in any file, behind the end; the same whoever has the messages by now."""
    mapping = {"wal": {"rotate_max_bytes": 600}, "deleter": {"retention_time_minutes": 0}}
    with TopicStore.open(tmp_path / "t", settings=mapping, objects=str(tmp_path / "cold"), background=False) as store:
        log = store.topic(ORDERS)
        here = TopicPlace(store.root)
        for number in range(40):
            log.append(b"x", publish_time_ns=(1000 + 10 * (number // 2)) * 1_000_000)  # two in each moment
        for place in (here, TopicPlace(store.root, objects=str(tmp_path / "cold"))):
            view = TopicView(place, ORDERS)
            for number in range(40):
                at_ns = (1000 + 10 * (number // 2)) * 1_000_000
                first = number // 2 * 2
                assert [view.offset_at(at_ns + more) for more in (-1, 0, 1)] == [first, first, first + 2]
            assert view.offset_at(0) == 0
            log.flush()
            store.maintain()
        assert TopicView(here, ORDERS).start_offset() > 0


def test_a_time_to_start_at(topics):
    """A new subscription stands there; without one the answer is the same however often Spark asks."""
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
    """What runs in a query's own process."""
    source = TopicDataSource({"path": store.root, "topic": ORDERS, **options})
    return source.streamReader(from_arrow_schema(TOPIC_SCHEMA))


def at(offset):
    return {"v": 1, "topics": {ORDERS: offset}}


def test_what_a_subscription_confirmed_only_grows(topics):
    """Whatever a query asks for again; a checkpoint that is lost does not move it."""
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


def test_a_first_batch_that_is_planned_again(topics):
    """Without a subscription the beginning has one name, whatever is there by then."""
    fill(topics, 10)
    reader = stream_of(topics)
    assert reader.initialOffset() == at(-1)
    assert reader.latestOffset(at(-1), ReadAllAvailable()) == at(10)
    [part] = reader.partitions(at(-1), at(10))
    assert (part.spans[0].start, part.spans[0].stop) == (0, 10)
    assert reader.partitions(at(10), at(10)) == []


def test_a_checkpoint_of_another_topic(topics):
    """One that ends before what the checkpoint knows is said to be another; or waited for, where that is wanted."""
    fill(topics, 3)
    with pytest.raises(DataLossError, match="asks for message 99, but the topic ends before 3"):
        stream_of(topics).latestOffset(at(99), ReadAllAvailable())
    assert stream_of(topics, failOnDataLoss="false").latestOffset(at(99), ReadAllAvailable()) == at(99)


class ImpatientClock(SystemClock):
    """For which waiting takes no time and yet passes."""

    passed_s = 0.0

    def monotonic(self):
        return self.passed_s

    def wait(self, _, timeout):
        self.passed_s += timeout
        return False


def test_one_query_a_subscription(topics):
    """The second waits for a while, in case the first is dying, and is refused."""
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


def test_a_query_and_a_consumer_are_not_one_subscription(tmp_path):
    """Whoever comes second, in whichever process, is refused until the first has let go; so is forgetting it."""
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


def test_what_ack_checkpoint_keeps_is_no_query(topics):
    """A query would move it without being asked."""
    with pytest.raises(UsageError, match="ack_checkpoint"):
        stream_of(topics, subscription="_checkpoint").initialOffset()


class CountingSyncs(type(REAL_FILES)):
    """The real disk, and what was synced of it."""

    def __init__(self):
        super().__init__()
        self.synced = []

    def open_read(self, path):
        file = super().open_read(path)
        return SimpleNamespace(
            pread=file.pread, size=file.size, close=file.close, sync=lambda: (self.synced.append(path), file.sync())
        )


def test_what_is_handed_to_a_checkpoint_is_synced(topics):
    """Not only written: its offsets are never given to other messages after a power loss."""
    log = fill(topics, 5)
    fs = CountingSyncs()
    synced = fs.synced
    view = TopicView(TopicPlace(topics.root), ORDERS, fs=fs)
    assert view.next_offset() == 5
    assert synced == []
    assert view.next_offset(durable=True) == 5
    assert view.next_offset(durable=True) == 5
    assert synced == [f"{topics.root}/{ORDERS}/wal.log"]
    log.append(b"x")
    assert view.next_offset(durable=True) == 6
    assert len(synced) == 2


def test_damage_is_named(topics):
    """Its offsets exactly, and what is around it is read."""
    log = fill(topics, 60)
    log.flush()
    path = log._engine.wal.files()[0].path
    data = bytearray(REAL_FILES.read_all(path, size_max=1 << 20))
    data[data.index(b"." * 90 + b"10") - 3] ^= 1
    with open(path, "r+b") as file:
        file.write(data)
    found = list(view_of(topics).read(0, 60))
    [lost] = [one for one in found if isinstance(one, LostRange)]
    assert (lost.first, lost.after) == (10, 11)
    assert isinstance(lost.error(), DataLossError)
    assert sum(len(one.bodies) for one in found if isinstance(one, Piece)) == 59


def test_a_topic_of_another_file_name(tmp_path):
    """Says what to look at, rather than nothing is there."""
    settings = TopicSettings.from_mapping({"wal": {"file_name": "queue.log"}})
    with TopicStore.open(tmp_path, settings=settings, background=False) as store:
        fill(store, 3)
        with pytest.raises(UsageError, match="not called wal.log"):
            view_of(store).next_offset()
        options = parse_topic_options({"path": store.root, "topic": ORDERS, "fileName": "queue.log"})
        assert TopicView(options.place, ORDERS).next_offset() == 3
