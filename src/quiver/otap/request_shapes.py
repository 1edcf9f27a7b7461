"""The nesting of OTLP export requests, by view."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["SHAPES", "RequestShape"]


@dataclass(frozen=True, slots=True)
class RequestShape:
    """
    The nesting of a signal's request.

    Attributes:
        request: the protobuf class.
        resources: the name of its repeated field of resources.
        scopes: the name of a resource's repeated field of scopes.
        items: the name of a scope's repeated field of records, spans or metrics.
    """

    request: Any
    resources: str
    scopes: str
    items: str


SHAPES = MappingProxyType(
    {
        "logs": RequestShape(ExportLogsServiceRequest, "resource_logs", "scope_logs", "log_records"),
        "spans": RequestShape(ExportTraceServiceRequest, "resource_spans", "scope_spans", "spans"),
        "metrics": RequestShape(ExportMetricsServiceRequest, "resource_metrics", "scope_metrics", "metrics"),
    }
)
"""View → the nesting of its requests."""
