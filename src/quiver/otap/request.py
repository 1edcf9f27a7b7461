"""
An OTLP export request as it came over the wire: is it one, and how large do its rows get?

The parser refuses what the protobuf library refuses: truncation, invalid UTF-8, groups that do not balance,
messages nested deeper than about 100. Unknown fields are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from quiver.otap.view_schema import view_name
from quiver.primitives.scan import Damage

__all__ = ["ROWS_BYTES_MAX", "SHAPES", "Request", "RequestShape", "parse_request"]

ROWS_BYTES_MAX = 256 * 1024 * 1024
"""
A request whose rows would take more is refused: a resource is repeated on every row, so that a few megabytes
on the wire (one resource of 2 MB, a million empty records) could otherwise become terabytes.
"""

_ROW_BYTES = 300
"""What a row takes in Arrow when nothing in it is set."""


@dataclass(frozen=True, slots=True)
class RequestShape:
    """
    How a signal's request nests.

    Attributes:
        request: the protobuf class.
        resources: its repeated field of resources.
        scopes: a resource's repeated field of scopes.
        items: a scope's repeated field of records, spans or metrics.
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
"""View → how its requests nest."""


@dataclass(frozen=True, slots=True)
class Request:
    """
    A parsed request.

    Attributes:
        message: the protobuf object.
        rows: log records, spans or data points in it.
        rows_bytes: about what its rows take as Arrow.
    """

    message: Message
    rows: int
    rows_bytes: int


def parse_request(data: bytes | memoryview, signal: str) -> Request | Damage:
    """
    Return the parsed request, or why these bytes are none or are refused. Empty bytes are a request without rows.

    Raises:
        WrongUse: no such signal.
    """
    view = view_name(signal)
    kind = SHAPES[view].request
    try:
        message: Message = kind.FromString(data)
    except DecodeError as error:
        reason = str(error).rpartition(": ")[2] or "cannot be parsed"
        return Damage(0, f"not an {kind.DESCRIPTOR.name}: {reason}")
    rows, repeated_bytes = _measure(message, view)
    rows_bytes = len(data) + repeated_bytes + rows * _ROW_BYTES
    if rows_bytes > ROWS_BYTES_MAX:
        return Damage(
            0,
            f"its {rows} rows, with resource and scope on each, take {rows_bytes} bytes; the most is {ROWS_BYTES_MAX}",
        )
    return Request(message, rows, rows_bytes)


def _measure(message: Any, view: str) -> tuple[int, int]:
    """
    Return how many rows a request has, and the bytes of what is repeated on them.
    """
    shape = SHAPES[view]
    rows = 0
    repeated = 0
    for resource_items in getattr(message, shape.resources):
        resource_rows = 0
        for scope_items in getattr(resource_items, shape.scopes):
            scope_rows, heads = _count(getattr(scope_items, shape.items), view)
            resource_rows += scope_rows
            repeated += heads + scope_rows * (scope_items.scope.ByteSize() + len(scope_items.schema_url))
        repeated += resource_rows * (resource_items.resource.ByteSize() + len(resource_items.schema_url))
        rows += resource_rows
    return rows, repeated


def _count(items: Any, view: str) -> tuple[int, int]:
    if view != "metrics":
        return len(items), 0
    rows = 0
    repeated = 0
    for metric in items:
        kind = metric.WhichOneof("data")
        points = len(getattr(metric, kind).data_points) if kind else 0
        rows += points
        repeated += points * (len(metric.name) + len(metric.description) + len(metric.unit))
        repeated += points * sum(entry.ByteSize() for entry in metric.metadata)
    return rows, repeated
