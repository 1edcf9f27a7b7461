"""The unmodified OpenTelemetry SDK and its exporters, over gRPC and HTTP: recorded data are in the views."""

import grpc
import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode

from quiver.errors import CapacityError
from quiver.otap import decode_requests
from quiver.receivers.otlp.grpc_receiver import OtlpGrpcReceiver
from quiver.receivers.otlp.http_receiver import OtlpHttpReceiver
from quiver.receivers.settings import OtlpSettings

SETTINGS = OtlpSettings(listening_addr="127.0.0.1:0", workers=2, dedupe_window_s=60)
RESOURCE = Resource({"service.name": "shop", "replica": 3})


def _grpc(exporter, receiver, path, *, packed):
    compression = grpc.Compression.Gzip if packed else None
    return exporter(endpoint=f"127.0.0.1:{receiver.port}", insecure=True, compression=compression, timeout=30)


def _http(exporter, receiver, path, *, packed):
    compression = Compression.Gzip if packed else Compression.NoCompression
    return exporter(endpoint=f"http://127.0.0.1:{receiver.port}{path}", compression=compression, timeout=30)


PROTOCOLS = {
    "grpc": (OtlpGrpcReceiver, _grpc, GrpcLogs, GrpcSpans, GrpcMetrics),
    "http": (OtlpHttpReceiver, _http, HttpLogs, HttpSpans, HttpMetrics),
}


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request, store):
    receiver_class, connect, logs, spans, metrics = PROTOCOLS[request.param]
    with receiver_class(store, SETTINGS) as receiver:
        yield receiver, connect, logs, spans, metrics


def rows(store, signal) -> list[dict]:
    slot = {"logs": 60, "spans": 61, "metrics": 62}[signal]
    decoded = decode_requests([data for kept, data in store.kept if kept == slot], signal)
    assert decoded.bad == ()
    return decoded.batch.to_pylist()


def value(attributes, key):
    found = [item for item in dict(attributes)[key].values() if item is not None]
    return found[0] if found else None


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_log_records_arrive(protocol, store, packed):
    receiver, connect, exporter, _, _ = protocol
    provider = LoggerProvider(resource=RESOURCE)
    provider.add_log_record_processor(
        BatchLogRecordProcessor(connect(exporter, receiver, "/v1/logs", packed=packed), max_export_batch_size=50)
    )
    logger = provider.get_logger("checkout", "1.2")
    for number in range(120):
        logger.emit(
            LogRecord(
                timestamp=1_700_000_000_000_000_000 + number,
                severity_number=SeverityNumber.WARN,
                severity_text="WARN",
                body=f"order {number}",
                attributes={"number": number, "ratio": 0.5, "tags": ["a", "b"], "vip": number % 2 == 0},
            )
        )
    provider.shutdown()
    found = rows(store, "logs")
    assert [row["body"]["string_value"] for row in found] == [f"order {number}" for number in range(120)]
    assert [row["time_unix_nano"] - 1_700_000_000_000_000_000 for row in found] == list(range(120))
    assert [value(row["attributes"], "number") for row in found] == list(range(120))
    first = found[0]
    assert (first["severity_number"], first["severity_text"], first["scope_name"]) == (13, "WARN", "checkout")
    assert value(first["attributes"], "tags") == '["a","b"]'
    assert value(first["attributes"], "vip") is True
    assert value(first["resource_attributes"], "service.name") == "shop"
    assert value(first["resource_attributes"], "replica") == 3


def test_spans_arrive(protocol, store):
    receiver, connect, _, exporter, _ = protocol
    provider = TracerProvider(resource=RESOURCE)
    provider.add_span_processor(BatchSpanProcessor(connect(exporter, receiver, "/v1/traces", packed=False)))
    tracer = provider.get_tracer("checkout")
    with (
        tracer.start_as_current_span("parent", kind=SpanKind.SERVER) as parent,
        tracer.start_as_current_span("child", attributes={"k": "v"}) as child,
    ):
        child.add_event("event", {"n": 1}, timestamp=5_000)
        child.set_status(Status(StatusCode.ERROR, "no"))
    provider.shutdown()
    by_name = {row["name"]: row for row in rows(store, "spans")}
    context = child.get_span_context()
    row = by_name["child"]
    assert row["trace_id"] == format(context.trace_id, "032x")
    assert row["span_id"] == format(context.span_id, "016x")
    assert row["parent_span_id"] == format(parent.get_span_context().span_id, "016x")
    assert by_name["parent"]["parent_span_id"] is None
    assert (by_name["parent"]["kind"], row["kind"]) == ("SERVER", "INTERNAL")
    assert (row["status_code"], row["status_message"]) == ("ERROR", "no")
    assert row["duration_nano"] == child.end_time - child.start_time
    (event,) = row["events"]
    assert (event["name"], event["time_unix_nano"], value(event["attributes"], "n")) == ("event", 5_000, 1)


def test_data_points_arrive(protocol, store):
    receiver, connect, _, _, exporter = protocol
    exporter = connect(exporter, receiver, "/v1/metrics", packed=False)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=float("inf"))
    provider = MeterProvider([reader], resource=RESOURCE)
    meter = provider.get_meter("checkout")
    meter.create_counter("orders", unit="1", description="all orders").add(7, {"shop": "a"})
    meter.create_gauge("load").set(0.25)
    histogram = meter.create_histogram("latency", explicit_bucket_boundaries_advisory=[1.0, 10.0])
    for seconds in (0.5, 5.0, 50.0):
        histogram.record(seconds)
    assert provider.force_flush()
    provider.shutdown()
    by_name = {row["name"]: row for row in rows(store, "metrics")}
    orders, load, latency = by_name["orders"], by_name["load"], by_name["latency"]
    assert (orders["type"], orders["is_monotonic"], orders["temporality"]) == ("SUM", True, "CUMULATIVE")
    assert (orders["int_value"], orders["double_value"], value(orders["attributes"], "shop")) == (7, None, "a")
    assert (load["type"], load["int_value"], load["double_value"]) == ("GAUGE", None, 0.25)
    assert (latency["count"], latency["sum"], latency["min"], latency["max"]) == (3, 55.5, 0.5, 50.0)
    assert (latency["bucket_counts"], latency["explicit_bounds"]) == ([1, 1, 1], [1.0, 10.0])


@pytest.mark.filterwarnings("ignore")
def test_an_exporter_retries_when_the_store_is_full_without_loss_or_repetition(protocol, store):
    receiver, connect, exporter, _, _ = protocol
    provider = LoggerProvider(resource=RESOURCE)
    processor = BatchLogRecordProcessor(connect(exporter, receiver, "/v1/logs", packed=False))
    provider.add_log_record_processor(processor)
    store.failures.extend(CapacityError("wal.max_size", retry_after_s=0.0) for _ in range(2))
    provider.get_logger("x").emit(LogRecord(body="once"))
    provider.shutdown()
    assert [row["body"]["string_value"] for row in rows(store, "logs")] == ["once"]
    assert not store.failures


def test_one_intake_may_serve_both_protocols(store):
    with (
        OtlpGrpcReceiver(store, SETTINGS) as first,
        OtlpHttpReceiver(store, SETTINGS, intake=first.intake) as second,
    ):
        exporters = [_grpc(GrpcLogs, first, "", packed=False), _http(HttpLogs, second, "/v1/logs", packed=True)]
        provider = LoggerProvider(resource=RESOURCE, shutdown_on_exit=False)
        for exporter in exporters:
            provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
        provider.get_logger("x").emit(LogRecord(body="twice", observed_timestamp=1, timestamp=1))
        provider.shutdown()
    # Both send the same bytes, and the shared window recognizes it.
    assert len(store.kept) == 1
    assert [row["body"]["string_value"] for row in rows(store, "logs")] == ["twice"]
