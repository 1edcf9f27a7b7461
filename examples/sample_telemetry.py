"""A small buffer of OpenTelemetry data for the examples: three services, a few traces, some errors."""

from __future__ import annotations

import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import quiver

NOON_NS = 1_767_614_400_000_000_000
OTLP = pa.schema([pa.field("data", pa.binary(), nullable=False)])
SERVICES = ("shop", "cart", "mail")


def logs_of(service: str, number: int) -> bytes:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.attributes.add(key="service.name").value.string_value = service
    scope = resource.scope_logs.add()
    for i in range(4):
        record = scope.log_records.add()
        record.time_unix_nano = NOON_NS + number * 1_000_000_000 + i
        record.severity_number, record.severity_text = (17, "ERROR") if i == number % 5 else (9, "INFO")
        record.body.string_value = f"order {number} of user{i}@example.org"
        record.attributes.add(key="user.id").value.string_value = f"user-{i}"
        record.trace_id = number.to_bytes(16, "big")
    return request.SerializeToString()


def spans_of(service: str, number: int) -> bytes:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = service
    span = resource.scope_spans.add().spans.add()
    span.name = f"{service} order"
    span.trace_id, span.span_id = number.to_bytes(16, "big"), number.to_bytes(8, "big")
    span.start_time_unix_nano = NOON_NS
    span.end_time_unix_nano = NOON_NS + (number + 1) * 7_000_000
    return request.SerializeToString()


def fill(directory: str, orders: int = 12) -> None:
    """Create a buffer in *directory*, with all bundles sealed."""
    with quiver.open(directory) as store:
        for number in range(1, orders + 1):
            service = SERVICES[number % len(SERVICES)]
            for slot, data in (("otlp_logs", logs_of(service, number)), ("otlp_traces", spans_of(service, number))):
                store.ingest(quiver.Bundle({slot: pa.record_batch({"data": [data]}, schema=OTLP)}))
        store.seal()
