"""Exporters on Spark count what they delivered, and each failure has one of a few types."""

import json

import pyarrow as pa
import pytest
from needed import needs
from stores import logs_request, seal_requests

import quiver
from quiver.delivery.exporter_stats import ExporterStats, load_report
from quiver.delivery.policy import RetryPolicy
from quiver.observe import InMemoryObserver
from quiver.pipeline import export
from quiver.pipeline.counts import CountsRead, CountsWritten
from quiver.pipeline.processes.child import read_pipeline
from quiver.pipeline.queries import plan_queries
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.receivers.qwp.receiver import QwpReceiver
from quiver.receivers.qwp.settings import QwpSettings
from quiver.spark.exporters import tables as exporters
from quiver.spark.exporters.exported import ExportedAmount, Observed, failure_type
from quiver.spark.exporters.parquet import ParquetExporter
from quiver.spark.exporters.query import TableBatches
from quiver.spark.exporters.settings import ConsoleSettings, FileSettings, QuiverSinkSettings, SparkSinkSettings
from quiver.spark.exporters.tables import ParquetTables, exporter_of
from quiver.spark.processors.bad_bundle_filter import BadBundleFilter
from quiver.spark.processors.settings import SqlSettings
from quiver.spark.questdb.export_settings import QuestdbSinkSettings
from quiver.spark.spark_features import EXPORTERS
from quiver.spark.table_formats.settings import DeltaSettings, IcebergSettings
from quiver.spark.topics.export_settings import TopicSinkSettings

pytestmark = pytest.mark.spark

QUERY = "c5026f74-7f8b-4a17-8beb-a452f78be02a"
NUMBERS = (1, 2, 3, 4, 5)


def settings_of(kind, root):
    if kind is QuestdbSinkSettings:
        return QuestdbSinkSettings(f"ws::addr=127.0.0.1:9;sf_dir={root}/sf;close_flush_timeout_millis=0;")
    return {
        ConsoleSettings: ConsoleSettings(),
        SparkSinkSettings: SparkSinkSettings("json", path=f"{root}/json-{{table}}"),
        QuiverSinkSettings: QuiverSinkSettings(f"{root}/second"),
        TopicSinkSettings: TopicSinkSettings(f"{root}/topics", "a/b"),
        FileSettings: FileSettings(f"{root}/files"),
        ParquetTables: ParquetTables(f"{root}/lake"),
        DeltaSettings: DeltaSettings(path=f"{root}/delta"),
        IcebergSettings: IcebergSettings(path=f"{root}/iceberg"),
    }[kind]


def bundles_of(spark, store):
    return spark.read.format("quiver").option("mode", "bundles").load(store.root)


def totals(observer, name="out"):
    counts = {
        kind: observer.total(f"quiver.exporter.{kind}_total") for kind in ("batches", "rows", "bytes", "failures")
    }
    assert {dict(attributes)["exporter"] for _, attributes in observer.counts} == {name}
    return counts


@pytest.mark.parametrize("kind", sorted(exporters._MAKERS, key=lambda kind: kind.__name__))
def test_each_kind_of_exporter_counts_rows_and_bytes(spark, store, tmp_path, kind):
    """The counts of an exporter include the rows as they were written."""
    seal_requests(store, logs_request(NUMBERS[:2]), logs_request(NUMBERS[2:]))
    observer = InMemoryObserver()
    stats = ExporterStats("out", observer, roots=[store.root])
    exporter = exporter_of(settings_of(kind, tmp_path), subscriber="out")
    TableBatches(store.root, exporter, stats=stats).export(bundles_of(spark, store), 0, query=QUERY)
    found = totals(observer)
    assert (found["batches"], found["rows"], found["failures"]) == (1, len(NUMBERS), 0)
    assert found["bytes"] > 0
    assert stats.report.last_success_at_ns is not None


def test_parquet_of_complete_bundles_is_counted(spark, store, tmp_path):
    """Without processors, another writer is used; a batch that was committed before is not counted again."""
    seal_requests(store, logs_request(NUMBERS))
    observer = InMemoryObserver()
    for _ in range(2):
        exporter = ParquetExporter(
            store.root, "out", str(tmp_path / "lake"), stats=ExporterStats("out", observer, roots=[store.root])
        )
        exporter.export(bundles_of(spark, store), 0, query_id=QUERY)
    size = sum(file.stat().st_size for file in (tmp_path / "lake" / "logs").iterdir())
    assert totals(observer) == {"batches": 1, "rows": len(NUMBERS), "bytes": size, "failures": 0}


def test_rows_are_counted_after_the_processors(spark, store, tmp_path):
    """An aggregate is one row."""
    seal_requests(store, logs_request(NUMBERS))
    observer = InMemoryObserver()
    exporter = exporter_of(TopicSinkSettings(str(tmp_path), "a/b", "json"), subscriber="out")
    batches = TableBatches(
        store.root,
        exporter,
        chain=[SqlSettings("SELECT count(*) AS n FROM logs")],
        stats=ExporterStats("out", observer),
    )
    batches.export(bundles_of(spark, store), 0, query=QUERY)
    assert totals(observer) == {
        "batches": 1,
        "rows": 1,
        "bytes": len(json.dumps({"n": 5}, separators=(",", ":"))),
        "failures": 0,
    }


def test_rows_delivered_to_a_server_are_counted(spark, store, tmp_path):
    """For QuestDB, the rows that the server received."""
    seal_requests(store, logs_request(NUMBERS))
    observer = InMemoryObserver()
    with (
        quiver.open(tmp_path / "far") as far,
        QwpReceiver(far, QwpSettings(listening_addr="127.0.0.1:0")) as receiver,
    ):
        conf = f"ws::addr=127.0.0.1:{receiver.port};sf_dir={tmp_path}/sf;close_flush_timeout_millis=20000;"
        exporter = exporter_of(QuestdbSinkSettings(conf), subscriber="out")
        batches = TableBatches(store.root, exporter, stats=ExporterStats("out", observer))
        batches.export(bundles_of(spark, store), 0, query=QUERY)
    got = sum(
        batch.num_rows for _, bundle in quiver.read(tmp_path / "far").bundles() for batch in bundle.batches.values()
    )
    assert totals(observer)["rows"] == got == len(NUMBERS)


def test_any_column_has_a_size(spark):
    """Numbers count their width, strings and bytes their length, nested values the sum; null counts nothing."""
    frame = spark.range(1).selectExpr(
        "1 AS i",
        "'äö' AS s",
        "cast('abc' AS binary) AS b",
        "array('x', null) AS l",
        "1.5D AS `n.m`",
        "cast(1 AS decimal(9, 2)) AS d",
        "map('k', named_struct('t', 'vv', 'n', cast(null AS bigint)), 'e', null) AS m",
        "cast(null AS array<string>) AS z",
    )
    observed = Observed(frame)
    assert observed.frame.columns == frame.columns
    observed.frame.write.format("noop").mode("overwrite").save()
    assert observed.exported() == ExportedAmount(1, 4 + 4 + 3 + 1 + 8 + 8 + (1 + 2 + 1))


def test_bytes_are_estimated_from_a_sample(spark):
    """Of the rows in each partition, beginning with the first; rows are counted exactly."""
    observed = Observed(spark.range(0, 1000, 1, 3).selectExpr("cast(id AS string) AS s", "'abcd' AS t"))
    observed.frame.write.format("noop").mode("overwrite").save()
    found = observed.exported()
    assert found.rows == 1000
    assert found.size_bytes == pytest.approx(1000 * 4 + 10 + 2 * 90 + 3 * 900, rel=0.05)


def test_a_frame_without_rows_or_columns_has_size_zero(spark):
    """A sum of no rows is null in Spark."""
    for frame in (spark.range(0), spark.range(1).select()):
        observed = Observed(frame)
        observed.frame.write.format("noop").mode("overwrite").save()
        assert observed.exported().size_bytes == 0


def test_a_sink_that_reads_nothing_is_not_waited_for(spark, monkeypatch):
    """Spark never has figures for it."""
    monkeypatch.setattr("quiver.spark.exporters.exported.OBSERVED_S", 0.01)
    assert Observed(spark.range(3)).exported() == ExportedAmount()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("OSError: [Errno 28] No space left on device", "storage"),
        ("SparkException: Task failed: java.io.IOException: No space left on device", "storage"),
        ("NotADirectoryError: [Errno 20] Not a directory: '/lake/logs'", "storage"),
        ("org.apache.hadoop.fs.FileAlreadyExistsException: out", "storage"),
        ("quiver.errors.CorruptionError: buffer/segments/0.qseg: byte 3", "data"),
        ("quiver.errors.DataLossError: gone", "data"),
        ("quiver.errors.CapacityError: the store is full", "unavailable"),
        ("ConnectionRefusedError: [Errno 111] Connection refused", "unavailable"),
        ("java.net.SocketTimeoutException: Read timed out", "unavailable"),
        ("AccessControlException: Permission denied: user=x", "denied"),
        ("quiver.errors.UsageError: table x has other columns", "other"),
        ("StreamingQueryException: Python worker failed to connect back.", "other"),
        ("", "other"),
        ("\u00e9t\u00e9", "other"),
    ],
)
def test_errors_are_classified_by_name(text, kind):
    """Whether the exception is from Python, Java or Quiver."""
    assert failure_type(text) == kind


def test_a_bad_bundle_is_a_failure_of_its_exporter(spark, store, tmp_path):
    """With its type and message; good bundles are delivered after it, and then the failure is over."""
    seal_requests(store, logs_request([1]), b"\xff", logs_request([0]))
    observer = InMemoryObserver()
    stats = ExporterStats("out", observer, roots=[store.root])
    batches = TableBatches(
        store.root,
        exporter_of(ParquetTables(str(tmp_path / "lake")), subscriber="out"),
        chain=[SqlSettings("SELECT 6 / time_unix_nano AS share FROM logs")],
        stats=stats,
    )

    class Batches:
        """Adds the query's id, which a batch of a test does not have."""

        probe, export_one, exported_individually = batches.probe, batches.export_one, batches.exported_individually

        def __call__(self, batch, number):
            batches.export(batch, number, query=QUERY)

    policy = RetryPolicy(on_exhausted="drop")
    with BadBundleFilter(
        Batches(), "out", policy, store_path=store.root, spark=spark, stats=stats, background=False
    ) as bad_bundles:
        bad_bundles(bundles_of(spark, store), 0)
    by_type = {dict(attributes).get("type"): count for (name, attributes), count in observer.counts.items() if count}
    assert (by_type["data"], by_type["processor"]) == (1, 1)
    assert totals(observer)["rows"] == 1
    assert not stats.report.is_failing
    assert "bundle 0:" in stats.report.last_failure.message


PIPELINE = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {{o: {{destinations: [buffer]}}}}
    config: {{listening_addr: "127.0.0.1:4317"}}
  buffer:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {{o: {{destinations: [lake]}}}}
    config: {{path: "{root}"}}
  lake:
    kind: exporter
    plugin_urn: "urn:quiver:parquet:exporter"
    config: {{path: "{out}", trigger: 50ms, retry: {{initial_interval: 50ms, max_interval: 50ms}}}}
"""


@needs(EXPORTERS)
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_query_that_fails_and_then_succeeds_reports_both(spark, tmp_path):
    """Its error stays in the report until something is delivered; the ingest process publishes its counts."""
    root, out, run_dir = tmp_path / "buffer", tmp_path / "lake", tmp_path / "run"
    run_dir.mkdir()
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE.format(root=root, out=out))
    with quiver.open(root, background=False) as store:
        store.register("lake", start="earliest").release()
        store.activate()
        store.ingest(quiver.Bundle({60: pa.record_batch({"data": [logs_request(NUMBERS)]})}))
        store.seal()
    out.mkdir()
    (out / "logs").write_text("a file in the place of a directory")

    (plan,) = plan_queries(read_pipeline(file, [], {}), run_dir)
    counts = CountsWritten(run_dir, 1)
    observer = InMemoryObserver()
    reading = CountsRead(run_dir, observer)

    def look_until(one, is_reached):
        while not is_reached():
            one.look()
            one.save_report()
            spark.sparkContext.statusTracker().getActiveJobsIds()
        counts.write()
        reading.look()

    one = export._Export(spark, plan, counts.observer)
    try:
        look_until(one, lambda: one.stats.report.is_failing)
        one.save_report()
        report = load_report(REAL_FILES, str(root), "lake")
        assert (report.is_failing, report.last_success_at_ns, report.last_failure.type) == (True, None, "storage")
        assert "Directory" in report.last_failure.message or "directory" in report.last_failure.message
        assert observer.total("quiver.exporter.failures_total") >= 1
        assert observer.total("quiver.exporter.rows_total") == 0
    finally:
        one.stop()

    again = export._Export(spark, plan, counts.observer)
    assert again.stats.report == one.stats.report, "a restart continues the report"
    (out / "logs").unlink()
    try:
        look_until(again, lambda: not again.stats.report.is_failing)
    finally:
        again.stop()
    again.save_report(is_last=True)
    report = load_report(REAL_FILES, str(root), "lake")
    assert (report.is_failing, report.last_failure.type) == (False, "storage")
    assert observer.total("quiver.exporter.rows_total") == len(NUMBERS)
