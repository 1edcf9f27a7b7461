"""The real SDK, through a store, to our own receivers: recorded data arrive, also after an outage."""

import logging
import os
import socket
import subprocess
import sys

import pytest
from destination import destination, rows, value
from opentelemetry._logs import LogRecord
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExportResult
from opentelemetry.sdk.metrics import Counter, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    MetricExportResult,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, LastValueAggregation
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

import quiver
from clean_process import in_a_clean_process
from quiver import otap
from quiver.clock import SYSTEM_CLOCK
from quiver.errors import DirectoryInUseError, SettingsError, StoreFailedError, UsageError
from quiver.otel import (
    ExporterSettings,
    Forwarder,
    QuiverLogExporter,
    QuiverMetricExporter,
    QuiverSpanExporter,
    exporters,
    shared_store,
)
from quiver.primitives.backoff import Backoff
from quiver.settings import MIB, Settings

RESOURCE = Resource({"service.name": "shop"})
QUICK = Backoff(first_s=0.05, cap_s=0.2)
TINY = Settings(
    segment_bytes_max=1 * MIB, wal_bytes_max=2 * MIB, wal_rotate_bytes=1 * MIB, size_cap_bytes=8 * MIB,
    segment_open_s_max=1.0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_left_open():
    """Check that every lease was released."""
    yield
    left = dict(shared_store._open_stores.stores)
    for shared in left.values():
        shared.store.close()
    shared_store._open_stores.stores.clear()
    assert left == {}


def spans_of(count, *, size=0, first=0):
    """Return finished spans, as a processor passes them to an exporter."""
    made = []
    provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)

    class Keep:
        def on_start(self, span, parent_context=None): ...

        def on_end(self, span):
            made.append(span)

        def shutdown(self): ...

        def force_flush(self, timeout_millis=0):
            return True

        def _on_ending(self, span): ...

    provider.add_span_processor(Keep())
    tracer = provider.get_tracer("test")
    for number in range(first, first + count):
        tracer.start_span("work", attributes={"id": number, "padding": "x" * size}).end()
    return made


def ids(found):
    return [value(row["attributes"], "id") for row in found]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_all_three_signals_arrive(tmp_path, protocol):
    """Through one store shared by three exporters and the forwarder."""
    path = tmp_path / "local"
    with destination(tmp_path / "far", protocol=protocol) as receiver:
        endpoint = ExporterSettings(f"http://127.0.0.1:{receiver.port}", protocol=protocol, compression_method="gzip")
        with Forwarder(path, endpoint) as forwarder:
            traces = TracerProvider(resource=RESOURCE)
            traces.add_span_processor(BatchSpanProcessor(QuiverSpanExporter(path)))
            logs = LoggerProvider(resource=RESOURCE)
            logs.add_log_record_processor(BatchLogRecordProcessor(QuiverLogExporter(path)))
            reader = PeriodicExportingMetricReader(QuiverMetricExporter(path), export_interval_millis=float("inf"))
            metrics = MeterProvider([reader], resource=RESOURCE)
            with traces.get_tracer("t").start_as_current_span("order", attributes={"id": 1}) as span:
                logs.get_logger("l").emit(LogRecord(body="ordered", attributes={"id": 2}))
            metrics.get_meter("m").create_counter("orders").add(7, {"id": 3})
            for provider in (traces, logs, metrics):
                assert provider.force_flush()
            assert forwarder.drain(30.0)
            assert forwarder.state().confirmed == 3
            for provider in (traces, logs, metrics):
                provider.shutdown()

    (row,) = rows(tmp_path / "far", "spans")
    assert (row["name"], row["trace_id"]) == ("order", format(span.get_span_context().trace_id, "032x"))
    assert value(row["resource_attributes"], "service.name") == "shop"
    (row,) = rows(tmp_path / "far", "logs")
    assert (row["body"]["string_value"], value(row["attributes"], "id")) == ("ordered", 2)
    (row,) = rows(tmp_path / "far", "metrics")
    assert (row["name"], row["int_value"], value(row["attributes"], "id")) == ("orders", 7, 3)


def test_exports_succeed_during_an_outage_and_arrive_afterwards(tmp_path):
    """Also across a restart of the application."""
    path = tmp_path / "local"
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    to = ExporterSettings(f"http://127.0.0.1:{port}", retry=QUICK)
    spans = spans_of(60)
    with Forwarder(path, to) as forwarder:
        exporter = QuiverSpanExporter(path)
        for at in range(0, 30, 3):
            assert exporter.export(spans[at : at + 3]) is SpanExportResult.SUCCESS
            forwarder._lease.store.seal()
        assert not forwarder.drain(0.3)
        assert forwarder.state().problem.startswith("UNAVAILABLE")
        exporter.shutdown()
        assert forwarder.stop(5.0) == 10

    with Forwarder(path, to) as forwarder:
        exporter = QuiverSpanExporter(path)
        assert exporter.export(spans[30:]) is SpanExportResult.SUCCESS
        with destination(tmp_path / "far", port=port):
            assert forwarder.drain(30.0)
            exporter.shutdown()
            assert forwarder.stop() == 0

    assert sorted(ids(rows(tmp_path / "far", "spans"))) == list(range(60))


def test_a_full_store_fails_exports_within_the_timeout(tmp_path, caplog):
    """The dropped items are counted and logged once; with space again, exports succeed."""
    path = tmp_path / "local"
    exporter = QuiverSpanExporter(path, settings=TINY, timeout=0.2)
    exporter._writer._lease.store.register("forwarder", start="earliest")
    batch = spans_of(50, size=10_000)
    results = []
    while len(results) < 100 and SpanExportResult.FAILURE not in results:
        results.append(exporter.export(batch))
    started = SYSTEM_CLOCK.monotonic()
    assert exporter.export(batch) is SpanExportResult.FAILURE
    took_s = SYSTEM_CLOCK.monotonic() - started

    lost = results.count(SpanExportResult.FAILURE) + 1
    assert results[0] is SpanExportResult.SUCCESS
    assert exporter.dropped_items == {"full": 50 * lost}
    assert took_s < 5
    assert [record.message for record in caplog.records if record.name == "quiver.otel"] == [
        message for message in [caplog.records[0].message] if "traces are being dropped: at capacity" in message
    ]
    with destination(tmp_path / "far") as receiver, Forwarder(path, f"http://127.0.0.1:{receiver.port}") as forwarder:
        assert forwarder.drain(60.0)
        assert exporter.export(spans_of(1, first=99)) is SpanExportResult.SUCCESS
        assert forwarder.drain(60.0)
    exporter.shutdown()
    found = rows(tmp_path / "far", "spans")
    assert len(found) == 50 * (len(results) + 1 - lost) + 1
    assert ids(found)[-1] == 99


def test_a_large_batch_is_several_requests(tmp_path, monkeypatch):
    """No request exceeds the limit of receivers, and the batch is stored as one bundle or not at all."""
    monkeypatch.setattr(exporters, "REQUEST_BYTES_MAX", 20_000)
    exporter = QuiverSpanExporter(tmp_path)
    assert exporter.export(spans_of(30, size=2_000)) is SpanExportResult.SUCCESS
    assert exporter.export(spans_of(1, size=50_000, first=30)) is SpanExportResult.SUCCESS
    exporter.shutdown()
    with quiver.read(tmp_path) as reader:
        sizes = [[len(data) for data in bundle[61].column(0).to_pylist()] for _, bundle in sorted(reader.bundles())]

    assert [len(requests) for requests in sizes] == [4, 1]
    assert max(sizes[0]) <= 20_000
    assert ids(rows(tmp_path, "spans")) == list(range(31))


def metrics_of(points, *, size):
    """
    Return the data that the SDK passes to a metric exporter: a gauge of one point, a counter and a histogram of
    *points* each.
    """
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], resource=RESOURCE, shutdown_on_exit=False)
    provider.get_meter("one", "1").create_gauge("level").set(7)
    meter = provider.get_meter("two", "2")
    counter, histogram = meter.create_counter("calls", "1", "how often"), meter.create_histogram("took", "s")
    for number in range(points):
        counter.add(number + 1, {"padding": f"{number}".rjust(size, "x")})
        histogram.record(number, {"padding": f"{number}".rjust(size, "x")})
    data = reader.get_metrics_data()
    provider.shutdown()
    return data


def test_a_large_collection_of_metrics_is_several_requests(tmp_path, monkeypatch):
    """No request exceeds the limit of receivers, and each point has its metric, scope and resource."""
    data = metrics_of(20, size=1_000)
    for path, bytes_max in (("whole", 10_000_000), ("split", 10_000)):
        monkeypatch.setattr(exporters, "REQUEST_BYTES_MAX", bytes_max)
        exporter = QuiverMetricExporter(tmp_path / path)
        assert exporter.export(data) is MetricExportResult.SUCCESS
        exporter.shutdown()
    with quiver.read(tmp_path / "split") as reader:
        ((_, bundle),) = list(reader.bundles())
    sizes = [len(request) for request in bundle[62].column(0).to_pylist()]

    assert len(sizes) > 4
    assert max(sizes) <= 10_000
    assert len(rows(tmp_path / "whole", "metrics")) == 41
    assert rows(tmp_path / "split", "metrics") == rows(tmp_path / "whole", "metrics")


def test_all_exporters_of_a_process_share_one_store(tmp_path):
    """Under any path of the directory; the last one closes it."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "local")
    first, second = QuiverSpanExporter(tmp_path / "local"), QuiverLogExporter(link)
    assert first._writer._lease.store is second._writer._lease.store
    with pytest.raises(UsageError, match="other settings"):
        QuiverMetricExporter(tmp_path / "local", settings=TINY)
    first.shutdown()
    first.shutdown()
    assert first.export(spans_of(2)) is SpanExportResult.FAILURE
    assert first.dropped_items == {"shutdown": 2}
    with pytest.raises(DirectoryInUseError):
        quiver.open(tmp_path / "local")
    second.shutdown()
    quiver.open(tmp_path / "local").close()


def test_an_unencodable_item_does_not_affect_others(tmp_path):
    """A file name that is not UTF-8, in the text of two records, the name of a span, the description of a metric."""
    odd = "caf\udce9"
    spans, logs = QuiverSpanExporter(tmp_path), QuiverLogExporter(tmp_path)
    reader = PeriodicExportingMetricReader(metrics := QuiverMetricExporter(tmp_path), export_interval_millis=600_000)
    meters, tracers, loggers = MeterProvider([reader]), TracerProvider(), LoggerProvider()
    tracers.add_span_processor(BatchSpanProcessor(spans))
    loggers.add_log_record_processor(BatchLogRecordProcessor(logs))
    for number in range(20):
        tracers.get_tracer("t").start_span(odd if number == 7 else f"n{number}").end()
        loggers.get_logger("l").emit(LogRecord(body=odd if number in {0, 19} else f"n{number}"))
        meters.get_meter("m").create_counter(f"n{number}", description=odd if number == 7 else "").add(1)
    for provider in (tracers, loggers, meters):
        provider.shutdown()
    assert [exporter.dropped_items for exporter in (spans, logs, metrics)] == [
        {"unencodable": 1}, {"unencodable": 2}, {"unencodable": 1},
    ]  # fmt: skip
    bundles = [bundle for _, bundle in quiver.read(tmp_path).bundles()]
    kept = [sum(otap.view(bundle, view).num_rows for bundle in bundles) for view in ("spans", "logs", "metrics")]
    assert kept == [19, 18, 19]


def test_export_failures_do_not_raise(tmp_path, monkeypatch):
    """A failed store, and data that the SDK's encoder fails on; each is counted under its reason."""
    exporter = QuiverLogExporter(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(exporter._writer._lease.store, "ingest", _failing(StoreFailedError("sync failed")))
        assert exporter.export([object()]) is LogRecordExportResult.FAILURE
        assert exporter.dropped_items == {"unencodable": 1}
        patch.setattr(exporters, "encode_logs", lambda _: exporters.encode_spans([]))
        assert exporter.export([object()] * 3) is LogRecordExportResult.FAILURE
        assert exporter.dropped_items == {"unencodable": 1, "failed": 3}
    exporter.shutdown()
    with pytest.raises(SettingsError):
        QuiverLogExporter(tmp_path, timeout=-1)


def test_the_former_keyword_of_the_timeout_works_with_a_warning(tmp_path):
    """The warning names the class that the caller made, and its line."""
    with pytest.warns(DeprecationWarning, match=r"QuiverLogExporter\(timeout_s=\) is now timeout=") as warned:
        exporter = QuiverLogExporter(tmp_path, timeout_s=0.25)
    assert warned[0].filename == __file__
    assert exporter._writer.timeout == 0.25
    exporter.shutdown()


def _failing(error):
    def fail(*_, **__):
        raise error

    return fail


def test_an_empty_export_is_a_success(tmp_path):
    """It stores no bundle."""
    spans, logs, metrics = QuiverSpanExporter(tmp_path), QuiverLogExporter(tmp_path), QuiverMetricExporter(tmp_path)
    assert spans.export([]) is SpanExportResult.SUCCESS
    assert logs.export([]) is LogRecordExportResult.SUCCESS
    empty = type("Empty", (), {"resource_metrics": []})()
    assert metrics.export(empty) is MetricExportResult.SUCCESS
    assert spans._writer._lease.store.stats()["next_sequence"] == 0
    for exporter in (spans, logs, metrics):
        assert exporter.force_flush()
        exporter.shutdown()


def test_metric_preferences_reach_the_sdk(tmp_path):
    """Temporality and aggregation."""
    exporter = QuiverMetricExporter(
        tmp_path,
        preferred_temporality={Counter: AggregationTemporality.DELTA},
        preferred_aggregation={Counter: LastValueAggregation()},
    )
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=float("inf"))
    provider = MeterProvider([reader])
    counter = provider.get_meter("m").create_counter("c")
    counter.add(3)
    counter.add(5)
    assert provider.force_flush()
    provider.shutdown()
    (row,) = rows(tmp_path, "metrics")
    assert (row["type"], row["int_value"]) == ("GAUGE", 5)
    assert ExponentialBucketHistogramAggregation is not LastValueAggregation


def test_delta_temporality_exports_differences(tmp_path):
    exporter = QuiverMetricExporter(tmp_path, preferred_temporality={Counter: AggregationTemporality.DELTA})
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=float("inf"))
    provider = MeterProvider([reader])
    counter = provider.get_meter("m").create_counter("c")
    for amount in (3, 5):
        counter.add(amount)
        assert provider.force_flush()
    provider.shutdown()
    assert [(row["temporality"], row["int_value"]) for row in rows(tmp_path, "metrics")] == [("DELTA", 3), ("DELTA", 5)]


def test_force_flush_syncs_exports_that_are_not_durable(tmp_path):
    exporter = QuiverSpanExporter(tmp_path, durable=False, settings=Settings(wal_flush_interval_s=3600.0))
    store = exporter._writer._lease.store
    assert exporter.export(spans_of(1)) is SpanExportResult.SUCCESS
    figures = store.stats()
    assert figures["wal_synced_position"] < figures["wal_position"]
    assert exporter.force_flush()
    figures = store.stats()
    assert figures["wal_synced_position"] == figures["wal_position"]
    exporter.shutdown()


def test_exporting_the_application_log_does_not_loop(tmp_path):
    """The store logs no event below a warning."""
    provider = LoggerProvider(shutdown_on_exit=False)
    exporter = QuiverLogExporter(tmp_path)
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    logger = provider.get_logger("log")
    handler = logging.Handler()
    handler.emit = lambda record: logger.emit(LogRecord(body=record.getMessage()))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        logging.getLogger("shop").info("one")
        for _ in range(3):
            provider.force_flush()
            exporter._writer._lease.store.seal()
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        provider.shutdown()
    assert [row["body"]["string_value"] for row in rows(tmp_path, "logs")] == ["one"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # later Pythons warn of threads
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@in_a_clean_process
def test_a_forked_child_gets_a_failure(tmp_path):
    """It does not touch the store; it may create exporters for another directory."""
    exporter = QuiverSpanExporter(tmp_path / "parent")
    forwarder = Forwarder(tmp_path / "parent", "http://127.0.0.1:1")
    spans = spans_of(2)
    assert exporter.export(spans[:1]) is SpanExportResult.SUCCESS
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        text = "exception"
        try:
            result = exporter.export(spans[1:])
            other = QuiverSpanExporter(tmp_path / "child")
            own = other.export(spans[1:])
            other.shutdown()
            exporter.shutdown()
            left = forwarder.stop()
            text = f"{result.name} {dict(exporter.dropped_items)} {own.name} {left} {exporter.force_flush()}"
        finally:
            os.write(write_end, text.encode())
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as text:
        assert text.read() == "FAILURE {'forked': 1} SUCCESS 0 True"
    os.waitpid(child, 0)
    assert exporter.export(spans[1:]) is SpanExportResult.SUCCESS
    exporter.shutdown()
    assert forwarder.stop(0.0) == 2
    assert ids(rows(tmp_path / "parent", "spans")) == [0, 1]
    assert ids(rows(tmp_path / "child", "spans")) == [1]


def test_a_failed_forwarder_leaves_nothing_open(tmp_path):
    """With an invalid endpoint, an invalid name, or a directory of another process."""
    with pytest.raises(SettingsError):
        Forwarder(tmp_path / "a", "nonsense://x")
    with pytest.raises(UsageError):
        Forwarder(tmp_path / "b", "http://127.0.0.1:1", subscriber="no/name")
    with quiver.open(tmp_path / "c"), pytest.raises(DirectoryInUseError):
        Forwarder(tmp_path / "c", "http://127.0.0.1:1")
    with quiver.open(tmp_path / "c"), pytest.raises(DirectoryInUseError):
        QuiverSpanExporter(tmp_path / "c")


def test_an_empty_path_is_refused(tmp_path, monkeypatch):
    """It does not mean the working directory."""
    monkeypatch.chdir(tmp_path)
    for path in ("", 5, None):
        with pytest.raises(UsageError):
            QuiverLogExporter(path)
        with pytest.raises(UsageError):
            Forwarder(path, "http://127.0.0.1:1")
    with pytest.raises(SettingsError, match="give a URL"):
        Forwarder("here", None)
    assert list(tmp_path.iterdir()) == []


NOT_NEEDED = ("aiohttp", "pandas", "pydantic", "pyspark", "rich", "typer", "yaml")


def test_import_loads_no_server_and_no_spark():
    """An application only loads the SDK, gRPC and Arrow."""
    script = f"import sys, quiver.otel; print([name for name in {NOT_NEEDED} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


AT_THE_END = """
import sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from quiver.otel import Forwarder, QuiverSpanExporter
Forwarder(sys.argv[1], sys.argv[2])
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(QuiverSpanExporter(sys.argv[1])))
with provider.get_tracer("shop").start_as_current_span("order", attributes={"id": 7}):
    pass
"""


@pytest.mark.parametrize("module", ["opentelemetry.sdk", "grpc"])
def test_a_missing_extra_is_named_in_the_error(module):
    """In a separate process: here everything is imported already."""
    program = f"import sys; sys.modules[{module!r}] = None; from quiver.otel import Forwarder, QuiverSpanExporter"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert 'pip install "arrow-quiver[otel]"' in done.stderr


def test_a_program_that_exits_sends_everything(tmp_path):
    """Without shutdown or stop: the forwarder sends the SDK's last flush."""
    with destination(tmp_path / "far") as receiver:
        argv = [
            sys.executable,
            "-W",
            "error",
            "-c",
            AT_THE_END,
            str(tmp_path / "local"),
            f"http://127.0.0.1:{receiver.port}",
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert ids(rows(tmp_path / "far", "spans")) == [7]
    with quiver.open(tmp_path / "local") as store:
        assert store.register("forwarder").lag().pending_bundles == 0
