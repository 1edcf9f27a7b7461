"""An exporter on Spark with `signals` writes these tables; its query passes over the bundles of other signals."""

import pyarrow as pa
import pytest
from stores import logs_request, spans_request
from test_table_export import QUERY, lines

from quiver.bundle import OTLP_SCHEMA
from quiver.observe import InMemoryObserver
from quiver.spark.exporters.parquet import ParquetExporter
from quiver.spark.exporters.query import TableBatches
from quiver.spark.exporters.settings import FileSettings
from quiver.spark.exporters.signal_batches import SignalBatches, views_of_signals
from quiver.spark.exporters.tables import exporter_of

pytestmark = pytest.mark.spark


def frame_of(spark, store):
    return spark.read.format("quiver").option("mode", "bundles").load(store.root)


@pytest.mark.parametrize("kind", ["file", "parquet"])
def test_only_these_signals_are_written(spark, store, tmp_path, kind):
    """Bundles of others are counted. A bundle with several signals is written in part."""
    store.otlp(7)
    requests = {60: logs_request([90]), 61: spans_request([91, 92])}
    store.seal([{slot: pa.record_batch({"data": [data]}, schema=OTLP_SCHEMA) for slot, data in requests.items()}])
    signals = ("traces", "metrics")
    views = views_of_signals(signals)
    observer = InMemoryObserver()
    seen = []
    if kind == "file":
        batches = TableBatches(
            store.root, exporter_of(FileSettings(str(tmp_path / "out")), subscriber="exp"), views=views
        )
        each = lambda batch, number: batches.export(batch, number, query=QUERY)
    else:
        parquet = ParquetExporter(store.root, "exp", str(tmp_path / "out"), views=views)
        each = lambda batch, number: parquet.export(batch, number, query_id=QUERY)

    def counted(batch, number):
        seen.append(batch.count())
        each(batch, number)

    frame = frame_of(spark, store)
    SignalBatches(counted, signals, "exp", observer)(frame, 0)

    skipped = observer.counts["quiver.exporter.skipped_bundles_total", (("exporter", "exp"), ("signal", "logs"))]
    assert {path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith("_")} == views
    assert (seen, skipped) == ([5], 4)
    if kind == "file":
        assert len(lines(tmp_path / "out" / "spans")) == 10 + 2


def test_a_batch_without_these_signals_writes_nothing(spark, store, tmp_path):
    """It still succeeds, so the position moves on."""
    store.otlp(1)
    batches = TableBatches(
        store.root,
        exporter_of(FileSettings(str(tmp_path / "out")), subscriber="exp"),
        views=views_of_signals(["metrics"]),
    )
    SignalBatches(lambda batch, number: batches.export(batch, number, query=QUERY), ["metrics"], "exp")(
        frame_of(spark, store), 0
    )

    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("[!._]*"))
