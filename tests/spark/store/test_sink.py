"""`format("quiver")` as a sink: each batch once, nothing before the commit, with unchanged types."""

import threading

import pyarrow as pa
import pytest
from needed import limited
from pyspark.sql import functions as F  # noqa: N812

import quiver
from quiver.settings import Settings
from quiver.spark.bundles import unpacked

pytestmark = pytest.mark.spark


def ids(path, slot=30):
    return sorted(i for _, bundle in quiver.read(path).bundles() for i in bundle[slot].column("id").to_pylist())


def stream(frame, tmp_path, target, **options):
    query = (
        frame.writeStream.format("quiver").option("path", str(target)).options(**options)
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()


def source(spark, store, **options):
    given = {"path": store.root, "subscriber": "sink", "slot": "30"} | options
    return spark.readStream.format("quiver").options(**given).load()


def test_a_batch_write_adds_all_rows(spark, tmp_path):
    """Of several partitions, in bundles of the requested size; a missing store is created."""
    target = tmp_path / "new"
    frame = spark.range(100).repartition(3)
    frame.write.format("quiver").mode("append").option("slot", "30").option("maxBundleRows", "10").save(str(target))
    assert ids(target) == list(range(100))
    assert max(bundle[30].num_rows for _, bundle in quiver.read(target).bundles()) == 10
    frame.write.format("quiver").mode("append").option("slot", "logs").save(str(target))
    assert ids(target) == sorted([*range(100)] * 2)
    with quiver.open(target, background=False) as store:
        assert store.stats()["segments"] == 6


def test_a_write_with_a_version_is_not_repeated(spark, tmp_path):
    """As in foreachBatch: the same version changes nothing when it is written again."""
    frame = spark.range(5)

    def write(version):
        writer = frame.write.format("quiver").mode("append").option("slot", "30")
        writer.options(txnAppId="etl", txnVersion=version).save(str(tmp_path))

    for version in (0, 0, 1, 0, 1):
        write(version)
    assert ids(tmp_path) == sorted([*range(5)] * 2)


def test_a_failed_task_leaves_nothing(spark, tmp_path):
    """One partition fails: no row of any partition is added."""

    @F.udf("long")
    def fail(number):
        if number == 9:
            raise ValueError("this row is bad")
        return number

    frame = spark.range(10).repartition(2).select(fail("id").alias("id"))
    with pytest.raises(Exception, match="this row is bad"):
        frame.write.format("quiver").mode("append").option("slot", "30").save(str(tmp_path))
    assert not list(tmp_path.glob("segments/*.qseg"))


def test_a_stream_continues_where_it_stopped(spark, store, tmp_path):
    """Batch by batch, over restarts; Spark's types round-trip."""
    target = tmp_path / "target"
    store.rows(3)
    stream(source(spark, store, **limited(maxBundlesPerTrigger="1")), tmp_path, target, slot="30")
    store.rows(2)
    stream(source(spark, store), tmp_path, target, slot="30")
    assert ids(target) == list(range(50))
    [schema] = {bundle[30].schema for _, bundle in quiver.read(target).bundles()}
    assert schema == pa.schema([("id", pa.int64()), ("text", pa.string())])


@pytest.mark.slow
def test_a_stream_writes_to_an_open_store(spark, store, tmp_path):
    """The store imports the rows for its subscribers."""
    target = tmp_path / "target"
    store.rows(2)
    with quiver.open(target, Settings(segment_open_s_max=3600), background=False) as opened:
        subscriber = opened.register("reader", start="earliest")
        opened.activate()
        opened.ingest(quiver.Bundle({30: pa.record_batch({"id": [1000], "text": ["own"]})}))
        stream(source(spark, store), tmp_path, target, slot="30")
        assert opened.stats()["segments"] == 0
        opened.maintain()
        opened.seal()
        seen = []
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            seen += handle.bundle[30].column("id").to_pylist()
            handle.ack()
        assert seen == [*range(20), 1000]


def test_views_are_converted_to_requests(spark, store, tmp_path):
    """Processed rows of a view are OTLP again."""
    store.otlp(3)
    frame = spark.readStream.format("quiver").options(path=store.root, subscriber="v", view="spans").load()
    stream(frame.where("start_time_unix_nano > 6"), tmp_path, tmp_path / "target", view="spans")
    again = spark.read.format("quiver").option("view", "spans").load(str(tmp_path / "target"))
    assert sorted(row["name"] for row in again.collect()) == ["span 7", "span 8", "span 9"]


def test_complete_bundles_are_copied(spark, store, tmp_path):
    """In mode ipc, with unchanged types: dictionaries, unsigned integers."""
    typed = pa.record_batch({"a": pa.array(["x", "y"]).dictionary_encode(), "u": pa.array([1, 2], pa.uint8())})
    store.seal([{30: typed, 31: typed}, {30: typed}])
    frame = spark.read.format("quiver").option("mode", "ipc").load(store.root)
    frame.write.format("quiver").mode("append").option("mode", "ipc").save(str(tmp_path / "target"))
    bundles = [bundle for _, bundle in quiver.read(tmp_path / "target").bundles()]
    assert sorted(tuple(bundle.slots) for bundle in bundles) == [(30,), (30, 31)]
    assert all(batch.equals(typed) for bundle in bundles for batch in bundle.batches.values())


def test_bundles_of_two_cores_remain_separate():
    """They may have the same position, and be adjacent."""
    row = pa.record_batch({"a": [1]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write(row)
    time = pa.array([1, 1, 2], pa.timestamp("us", "UTC"))
    rows = {"segment": [0, 0, 0], "index": [0, 0, 0], "slot": [60, 61, 62], "ingested_at": time}
    batch = pa.record_batch(rows | {"ipc": [sink.getvalue().to_pybytes()] * 3})
    assert [(at_ns, tuple(slots)) for _, at_ns, slots in unpacked([batch])] == [(1000, (60, 61)), (2000, (62,))]


@pytest.mark.parametrize(
    ("mode", "options", "says"),
    [
        ("overwrite", {"slot": "30"}, "a store only grows"),
        ("append", {"slott": "30"}, "did you mean slot"),
        ("append", {"slot": "30", "txnAppId": "x"}, "txnAppId and txnVersion"),
    ],
)
def test_invalid_options_and_columns_are_refused(spark, tmp_path, mode, options, says):
    """The error explains what to change."""
    with pytest.raises(Exception, match=says):
        spark.range(1).write.format("quiver").mode(mode).options(**options).save(str(tmp_path / "x"))


@pytest.mark.slow
def test_a_stream_into_a_store_at_its_cap_waits_or_fails(spark, store, tmp_path):
    """It fails while no subscriber resolves bundles, and the cap holds; with one, it waits, and all rows arrive."""
    target = tmp_path / "target"
    settings = Settings.from_mapping(
        {"retention.size_cap": "400KB", "wal.rotation_target": "50KB", "segment.target_size": "50KB"}
    )
    store.rows(200, rows=100)
    rows = source(spark, store, **limited(maxBundlesPerTrigger="20")).select(
        "id", F.expr("repeat(uuid(), 2)").alias("text")
    )
    seen = []
    with quiver.open(target, settings) as other:
        reader = other.register("reader", start="earliest")
        other.activate()
        for _ in range(3):
            with pytest.raises(Exception, match="has no space for"):
                stream(rows, tmp_path, target, slot="30", timeout="1s")
            assert sum(path.stat().st_size for path in target.rglob("*") if path.is_file()) <= 410_000
        done = threading.Event()

        def take():
            while not done.is_set() or other.lag("reader").pending_bundles:
                handle = reader.next_bundle(timeout=0.1)
                if handle is not None:
                    seen.extend(handle.bundle[30].column("id").to_pylist())
                    handle.ack()

        thread = threading.Thread(target=take)
        thread.start()
        stream(rows, tmp_path, target, slot="30")
        other.maintain()
        done.set()
        thread.join()
    assert sorted(seen) == list(range(20_000))
