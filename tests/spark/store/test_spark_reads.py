"""Batch and streaming reads in a real Spark session."""

import pathlib
import shutil
from unittest import mock

import pyarrow as pa
import pytest
from needed import needs

from quiver.errors import UsageError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark import create_table, map_bundles, register, save_as_table
from quiver.spark.spark_features import STREAM_LIMITS, DataSourceReader
from quiver.spark.store.source import QuiverDataSource
from quiver.store.subscribers.progress_store import load_progress

pytestmark = pytest.mark.spark


class Sink:
    """A foreachBatch target that keeps the ids of each batch, and fails on request."""

    def __init__(self, column="id"):
        self.batches = {}
        self.fail_at = None
        self.column = column

    def __call__(self, frame, batch_id):
        ids = [row[0] for row in frame.select(self.column).collect()]
        if batch_id == self.fail_at:
            raise ValueError("the sink fails here")
        self.batches[batch_id] = ids

    @property
    def ids(self):
        return [i for batch in sorted(self.batches) for i in self.batches[batch]]


def stream(spark, store, **options):
    reader = spark.readStream.format("quiver").option("path", store.root)
    return reader.options(**{"subscriber": "exp", "slot": "30", **options}).load()


def run(frame, sink, checkpoint):
    """Process all data that exist now, or raise the error of the query."""
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination(60)
    finally:
        query.stop()


def test_rows_and_views_are_read_like_tables(spark, store):
    """Counts, SQL with the original types, and a temporary view with options."""
    store.rows(3)
    store.otlp(6, rows=4)
    frame = spark.read.format("quiver").option("slot", "logs").load(store.root)
    assert frame.count() == 30
    assert frame.agg({"id": "sum"}).first()[0] == sum(range(30))
    spark.sql(f"CREATE OR REPLACE TEMP VIEW records USING quiver OPTIONS (path '{store.root}', view 'logs')")
    rows = spark.sql("SELECT body.int_value AS body, time FROM records ORDER BY body").collect()
    assert [row.body for row in rows] == [*range(30, 34), *range(42, 46)]
    register(spark)


def test_filtered_frames_of_one_source_are_independent(spark, store):
    """No filter is pushed down, so a union of a frame and a part of it has the rows of both."""
    store.rows(1)
    frame = spark.read.format("quiver").option("slot", "30").load(store.root)
    assert frame.union(frame.where("id = 3")).count() == 11
    assert frame.where("id = 3").union(frame.where("id = 4")).count() == 2


def test_a_deletion_during_a_batch_read_is_reported(spark, store):
    """The frame listed its bundles before; the error explains cause and remedy. PySpark 4.0 lists them again."""
    store.rows(1)
    path = store.rows(1)
    frame = spark.read.format("quiver").option("slot", "30").load(store.root)
    assert frame.count() == 20
    pathlib.Path(path).unlink()
    if hasattr(DataSourceReader, "pushFilters"):  # since then, a frame keeps its plan
        with pytest.raises(Exception, match=r"deleted before it was read.*delete_grace"):
            frame.count()
    else:
        assert frame.count() == 10
    lenient = spark.read.format("quiver").option("slot", "30").option("failOnDataLoss", "false").load(store.root)
    assert lenient.count() == 10


def test_an_invalid_option_is_reported_in_one_sentence(spark, store):
    """Also through the JVM."""
    with pytest.raises(Exception, match="did you mean failOnDataLoss"):
        spark.read.format("quiver").option("slot", "30").option("failOnDataLos", "false").load(store.root)
    store.rows(1)
    frame = spark.readStream.format("quiver").option("slot", "30").option("path", store.root).load()
    with pytest.raises(Exception, match="needs a unique name"):
        frame.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination(60)


def test_complete_bundles_are_read_in_tasks(spark, store):
    """With unchanged types, and several slots of one bundle together."""
    typed = pa.record_batch({"a": pa.array(["x", "y"]).dictionary_encode(), "u": pa.array([1, 2], pa.uint8())})
    store.seal([{30: typed, 31: typed}, {30: typed}])
    bundles = spark.read.format("quiver").option("mode", "bundles").load(store.root)

    def describe(ref, bundle):
        kind = str(bundle["logs"].schema.field("u").type)
        return pa.record_batch({"at": [str(ref)], "slots": [len(bundle)], "kind": [kind]})

    rows = map_bundles(bundles, describe, "at string, slots int, kind string").collect()
    assert [tuple(row) for row in rows] == [("0:0", 2, "uint8"), ("0:1", 1, "uint8")]


@needs(STREAM_LIMITS)
def test_a_stream_reads_each_bundle_once_across_restarts(spark, store, tmp_path):
    """Limits end batches; later data are in the next run; each run acknowledges the bundles that it committed."""
    store.rows(3)
    sink, frame = Sink(), stream(spark, store, maxBundlesPerTrigger="2")
    run(frame, sink, tmp_path / "ck")
    assert [len(ids) for ids in sink.batches.values()] == [20, 10]
    store.rows(2)
    run(frame, sink, tmp_path / "ck")
    run(frame, sink, tmp_path / "ck")
    assert sink.ids == list(range(50))
    assert load_progress(REAL_FILES, store.root, "exp").oldest_incomplete == 2


@needs(STREAM_LIMITS)
def test_a_failed_batch_is_repeated_unchanged(spark, store, tmp_path):
    """The same bundles with the same number, even if there are more; uncommitted bundles are not acknowledged."""
    store.rows(4)
    sink, frame = Sink(), stream(spark, store, maxBundlesPerTrigger="2")
    sink.fail_at = 1
    with pytest.raises(Exception, match="the sink fails here"):
        run(frame, sink, tmp_path / "ck")
    progress = load_progress(REAL_FILES, store.root, "exp")
    assert progress.entries[0].bitmap == 0b11
    store.rows(1)
    sink.fail_at = None
    run(frame, sink, tmp_path / "ck")
    assert sink.batches[1] == list(range(20, 40))
    assert sink.ids == list(range(50))


@needs(STREAM_LIMITS)
def test_a_lost_checkpoint_continues_at_the_acknowledged_position(spark, store, tmp_path):
    """`startingOffsets` applies only to new subscribers."""
    store.rows(2)
    sink = Sink()
    run(stream(spark, store), sink, tmp_path / "ck")
    shutil.rmtree(tmp_path / "ck")
    store.rows(1)
    again = Sink()
    run(stream(spark, store, startingOffsets="earliest"), again, tmp_path / "ck")
    assert again.ids == list(range(20, 30))


@needs(STREAM_LIMITS)
@pytest.mark.slow
def test_an_old_checkpoint_is_refused_with_positions(spark, store, tmp_path):
    """Its next bundles were acknowledged and may be deleted."""
    store.rows(2)
    frame = stream(spark, store)
    run(frame, Sink(), tmp_path / "ck")
    shutil.copytree(tmp_path / "ck", tmp_path / "old")
    store.rows(2)
    run(frame, Sink(), tmp_path / "ck")
    with pytest.raises(Exception, match=r"is at 1:0, but exp has confirmed everything before 2:0"):
        run(frame, Sink(), tmp_path / "old")


@pytest.mark.slow
def test_two_queries_cannot_share_a_subscriber(spark, store, tmp_path):
    """The second is refused with the name of the holder; the first continues."""
    store.rows(1)
    frame = stream(spark, store)
    sink = Sink()
    first = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "a")).start()
    try:
        first.processAllAvailable()
        with pytest.raises(Exception, match=r"is in use by .*subscriber exp"):
            run(frame, Sink(), tmp_path / "b")
        store.rows(1)
        first.processAllAvailable()
        assert sink.ids == list(range(20))
    finally:
        first.stop()


def test_an_idle_stream_runs_no_batches(spark, store, tmp_path):
    """Without new data, the text of the offset does not change, so Spark does nothing."""
    store.otlp(3)
    sink = Sink("time_unix_nano")
    reader = spark.readStream.format("quiver").option("path", store.root).option("subscriber", "exp")
    frame = reader.option("view", "logs").load()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "ck"))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
        query.processAllAvailable()
        assert list(sink.batches) == [0]
    finally:
        query.stop()


def test_a_catalog_table_reads_the_store(spark, store):
    """Spark passes no options for such a table: they come from its schema."""
    store.rows(3)
    spark.sql(f"CREATE TABLE made_by_sql USING quiver OPTIONS (path '{store.root}', slot 'logs')")
    try:
        assert spark.sql("SELECT sum(id) FROM made_by_sql").first()[0] == sum(range(30))
        assert "quiver.options" not in str(spark.read.format("quiver").load(store.root, slot="logs").schema.json())
        with pytest.raises(Exception, match="repeat those of the table"):
            spark.sql("INSERT INTO made_by_sql SELECT * FROM made_by_sql")
    finally:
        spark.sql("DROP TABLE made_by_sql")


def test_a_table_of_create_table_accepts_appends(spark, tmp_path):
    """And reads them; for a table of `saveAsTable` alone, the error explains what to do."""
    options = {"path": str(tmp_path / "numbers"), "slot": "30"}
    numbers = spark.range(3)
    create_table(spark, "numbers", options, schema=numbers.schema)
    try:
        numbers.write.format("quiver").options(**options).mode("append").saveAsTable("numbers")
        spark.sql(f"INSERT INTO numbers WITH (`path` = '{options['path']}', `slot` = '30') VALUES (3)")
        assert sorted(row.id for row in spark.table("numbers").collect()) == [0, 1, 2, 3]
        numbers.write.format("quiver").options(**options).mode("append").saveAsTable("unnoted")
        with pytest.raises(Exception, match="save_as_table or create_table"):
            spark.table("unnoted").count()
        assert spark.read.options(**options).table("unnoted").count() == 7
    finally:
        spark.sql("DROP TABLE numbers")
        spark.sql("DROP TABLE IF EXISTS unnoted")


def test_save_as_table_creates_a_readable_table(spark, tmp_path):
    """In one call, by `spark.table` and SQL, and with appends; other metadata of the column are kept."""
    options = {"path": str(tmp_path / "numbers"), "slot": "30"}
    numbers = spark.range(3).withMetadata("id", {"unit": "apples"})
    save_as_table(numbers, "saved", options)
    try:
        assert sorted(row.id for row in spark.table("saved").collect()) == [0, 1, 2]
        assert spark.sql("SELECT sum(id) FROM saved").first()[0] == 3
        assert spark.table("saved").schema["id"].metadata["unit"] == "apples"
        save_as_table(numbers, "saved", options, mode="append")
        assert spark.table("saved").count() == 6
        with pytest.raises(Exception, match="already exists"):
            save_as_table(numbers, "saved", options)
    finally:
        spark.sql("DROP TABLE saved")
    with pytest.raises(UsageError, match="directory of the log"):
        save_as_table(numbers, "saved", {"slot": "30"})


def test_register_adds_every_format():
    """One call is enough for a session that the user created."""
    session = mock.Mock()
    register(session)
    registered = [call.args[0].name() for call in session.dataSource.register.call_args_list]
    assert sorted(registered) == ["questdb", "quiver", "quiver-aof", "quiver-fleet", "quiver-topic"]


@pytest.mark.parametrize("option", ["subscriber", "maxBundlesPerTrigger", "maxRowsPerTrigger", "maxBytesPerTrigger"])
def test_a_batch_read_refuses_the_options_of_a_stream(store, option):
    store.rows(1)
    given = {"path": store.root, "slot": "30"}
    schema = QuiverDataSource(given).schema()
    with pytest.raises(UsageError, match=f"{option} has no effect in a batch read"):
        QuiverDataSource({**given, option: "5"}).reader(schema)


def test_a_checkpoint_from_a_backup_is_refused(spark, store, tmp_path):
    """The bundles after its position are acknowledged, and may be deleted."""
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"
    store.rows(1)
    run(stream(spark, store), Sink(), checkpoint)
    shutil.copytree(checkpoint, backup)
    for _ in range(2):
        store.rows(1)
        run(stream(spark, store), Sink(), checkpoint)
    store.rows(1)
    with pytest.raises(Exception, match="the checkpoint is older than the progress"):
        run(stream(spark, store), Sink(), backup)
    sink = Sink()
    run(stream(spark, store, failOnDataLoss="false"), sink, backup)
    # Without limits, the last batch before the backup is not acknowledged, and read again.
    assert sink.ids == list(range(30 if STREAM_LIMITS.is_available else 20, 40))
