"""OTLP requests with chosen times, and bundles of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from quiver.bundle import OTLP_SCHEMA, Bundle

LOGS, TRACES, METRICS = 60, 61, 62


def log_request(*times: int, observed: Sequence[int] = ()) -> bytes:
    """A request with a record for each of *times*; the body is its number."""
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for number, time in enumerate(times):
        record = records.add(time_unix_nano=time, severity_text="INFO")
        record.observed_time_unix_nano = observed[number] if number < len(observed) else 0
        record.body.string_value = f"record {time}"
    return request.SerializeToString()


def span_request(*times: int) -> bytes:
    """A request with a span that starts at each of *times* and takes 5 ns."""
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for time in times:
        spans.add(name=f"span {time}", start_time_unix_nano=time, end_time_unix_nano=time + 5)
    return request.SerializeToString()


def metric_request(*times: int) -> bytes:
    """A request with a point of another kind at each of *times*."""
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    kinds: tuple[Any, ...] = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
    for number, time in enumerate(times):
        metric = metrics.add(name=f"metric {time}")
        getattr(metric, kinds[number % len(kinds)]).data_points.add(time_unix_nano=time, start_time_unix_nano=1)
    return request.SerializeToString()


def otlp_bundle(*requests: bytes, slot: int = LOGS) -> Bundle:
    return Bundle({slot: pa.RecordBatch.from_arrays([pa.array(requests, pa.binary())], schema=OTLP_SCHEMA)})
