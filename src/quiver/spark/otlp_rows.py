"""
Rows of a view → an OTLP export request again, as protobuf or as JSON. Pure.

Everything that a view shows is restored; `docs/formats/views.md` lists the little that a view does not show. Rows may
come in any order: those of one resource, scope and metric are grouped, in the order in which each first appears.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from quiver.errors import UsageError
from quiver.otap import VIEW_SLOTS, view_schema
from quiver.store.segment.cast import cast_to_schema

__all__ = ["is_view", "json_of_rows", "request_of_rows"]

_Row = Mapping[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNSHOWN = 2**63
"""A null count in a list represents this value or more."""

_IDS = ("traceId", "spanId", "parentSpanId")


def is_view(schema: pa.Schema, view: str) -> bool:
    """Return whether *schema* has only columns of *view*. It may have fewer."""
    return view in VIEW_SLOTS and bool(schema.names) and set(schema.names) <= set(view_schema(view).names)


def request_of_rows(batch: pa.RecordBatch, view: str) -> Any:
    """
    Return the rows of *batch* as one export request message of *view*: logs, spans or metrics.

    Raises:
        UsageError: a column is not in the view, or OTLP does not allow a value.
    """
    if not is_view(batch.schema, view):
        strange = sorted(set(batch.schema.names) - set(view_schema(view).names))
        raise UsageError(f"these rows are not {view}: the view has no column {', '.join(strange) or 'at all'}")
    rows = cast_to_schema(batch, view_schema(view)).to_pylist()
    try:
        return _MAKERS[view](rows)
    except (ValueError, TypeError) as error:
        raise UsageError(f"these rows are not {view}: {error}") from error


def json_of_rows(batch: pa.RecordBatch, view: str) -> bytes:
    """
    Return the rows of *batch* as one export request in OTLP/JSON, on one line, like OpenTelemetry's file exporter.

    Raises:
        UsageError: a column is not in the view, or OTLP does not allow a value.
    """
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - heavy

    value = MessageToDict(request_of_rows(batch, view), use_integers_for_enums=True)
    _hex_ids(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _hex_ids(value: Any) -> None:
    """Write ids in hex, as in OTLP/JSON; protobuf's JSON has base64."""
    if isinstance(value, list):
        for one in value:
            _hex_ids(one)
    elif isinstance(value, dict):
        for name, one in value.items():
            if name in _IDS and isinstance(one, str):
                value[name] = b64decode(one).hex()
            else:
                _hex_ids(one)


# ── common to all signals ───────────────────────────────────────────────────────────────────────────


class _Tree:
    """Finds or creates the parent message of a row."""

    def __init__(self, request: Any, resources: str, scopes: str) -> None:
        self._resources = getattr(request, resources)
        self._scopes = scopes
        self._known: dict[str, Any] = {}

    def scope_of(self, row: _Row) -> tuple[str, Any]:
        """Return the scope of *row*, and a string that identifies it."""
        of_resource = [row[f"resource_{name}"] for name in ("attributes", "dropped_attributes_count", "schema_url")]
        resource_key = repr(of_resource)
        resource = self._known.get(resource_key)
        if resource is None:
            resource = self._known[resource_key] = self._resources.add()
            _set_attributes(resource.resource.attributes, row["resource_attributes"])
            _set(resource.resource, "dropped_attributes_count", row["resource_dropped_attributes_count"])
            _set(resource, "schema_url", row["resource_schema_url"])
        names = ("name", "version", "attributes", "dropped_attributes_count", "schema_url")
        scope_key = repr([resource_key, [row[f"scope_{name}"] for name in names]])
        scope = self._known.get(scope_key)
        if scope is None:
            scope = self._known[scope_key] = getattr(resource, self._scopes).add()
            _set(scope.scope, "name", row["scope_name"])
            _set(scope.scope, "version", row["scope_version"])
            _set_attributes(scope.scope.attributes, row["scope_attributes"])
            _set(scope.scope, "dropped_attributes_count", row["scope_dropped_attributes_count"])
            _set(scope, "schema_url", row["scope_schema_url"])
        return scope_key, scope


def _set(message: Any, name: str, value: Any) -> None:
    if value is not None:
        setattr(message, name, value)


def _set_attributes(target: Any, attributes: list[tuple[str, _Row | None]] | None) -> None:
    for key, value in attributes or ():
        added = target.add()
        added.key = key
        if value is not None:
            _set_value(added.value, value)


def _set_value(target: Any, value: _Row) -> None:
    for name in ("string_value", "bool_value", "int_value", "double_value", "bytes_value"):
        if value[name] is not None:
            setattr(target, name, value[name])
            return
    if value["json_value"] is not None:
        _set_nested(target, json.loads(value["json_value"]))


def _set_nested(target: Any, value: Any) -> None:
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, int) and -(2**63) <= value < 2**63:
        target.int_value = value
    elif isinstance(value, int | float):
        target.double_value = value
    elif isinstance(value, list):
        target.array_value.SetInParent()
        for one in value:
            _set_nested(target.array_value.values.add(), one)
    elif isinstance(value, dict):
        target.kvlist_value.SetInParent()
        for key, one in value.items():
            added = target.kvlist_value.values.add()
            added.key = key
            added.value.SetInParent()
            _set_nested(added.value, one)


def _time(row: _Row, name: str) -> int:
    """Return the exact nanoseconds, or those of the timestamp if they do not fit into 64 signed bits."""
    exact, shown = row[f"{name}_unix_nano"], row[name]
    if exact is not None:
        return int(exact)
    if shown is None:
        return 0
    passed = shown - _EPOCH
    shown_ns = (passed.days * 86_400 + passed.seconds) * 1_000_000_000 + passed.microseconds * 1000
    # Truncated to microseconds it may seem to fit; the exact number is missing because it does not.
    return min(max(shown_ns, 2**63), 2**64 - 1) if shown_ns > 2**63 - 1_000_000 else shown_ns


def _id(text: str | None) -> bytes:
    return bytes.fromhex(text or "")


def _word(enumeration: Any, prefix: str, word: str | None) -> int:
    if word is None:
        return 0
    return int(word) if word.lstrip("-").isdecimal() else int(enumeration.Value(f"{prefix}_{word}"))


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────────


def _logs(rows: list[_Row]) -> Any:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest  # noqa: PLC0415

    request = ExportLogsServiceRequest()
    tree = _Tree(request, "resource_logs", "scope_logs")
    for row in rows:
        record = tree.scope_of(row)[1].log_records.add()
        record.time_unix_nano = _time(row, "time")
        record.observed_time_unix_nano = _time(row, "observed_time")
        if row["body"] is not None:
            _set_value(record.body, row["body"])
        record.trace_id, record.span_id = _id(row["trace_id"]), _id(row["span_id"])
        _set_attributes(record.attributes, row["attributes"])
        for name in ("severity_number", "severity_text", "flags", "event_name", "dropped_attributes_count"):
            _set(record, name, row[name])
    return request


# ── spans ────────────────────────────────────────────────────────────────────────────────────────────


def _spans(rows: list[_Row]) -> Any:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest  # noqa: PLC0415
    from opentelemetry.proto.trace.v1 import trace_pb2  # noqa: PLC0415

    request = ExportTraceServiceRequest()
    tree = _Tree(request, "resource_spans", "scope_spans")
    plain = (
        "name", "trace_state", "flags", "dropped_attributes_count", "dropped_events_count", "dropped_links_count",
    )  # fmt: skip
    for row in rows:
        span = tree.scope_of(row)[1].spans.add()
        span.trace_id, span.span_id = _id(row["trace_id"]), _id(row["span_id"])
        span.parent_span_id = _id(row["parent_span_id"])
        span.kind = _word(trace_pb2.Span.SpanKind, "SPAN_KIND", row["kind"])
        span.start_time_unix_nano, span.end_time_unix_nano = _time(row, "start_time"), _time(row, "end_time")
        if row["status_code"] is not None or row["status_message"] is not None:
            span.status.SetInParent()
            span.status.code = _word(trace_pb2.Status.StatusCode, "STATUS_CODE", row["status_code"])
            _set(span.status, "message", row["status_message"])
        _set_attributes(span.attributes, row["attributes"])
        for name in plain:
            _set(span, name, row[name])
        for event in row["events"] or ():
            added = span.events.add(time_unix_nano=_time(event, "time"))
            _set(added, "name", event["name"])
            _set_attributes(added.attributes, event["attributes"])
            _set(added, "dropped_attributes_count", event["dropped_attributes_count"])
        for link in row["links"] or ():
            added = span.links.add(trace_id=_id(link["trace_id"]), span_id=_id(link["span_id"]))
            _set_attributes(added.attributes, link["attributes"])
            for name in ("trace_state", "flags", "dropped_attributes_count"):
                _set(added, name, link[name])
    return request


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────────

_KINDS = {
    "GAUGE": "gauge",
    "SUM": "sum",
    "HISTOGRAM": "histogram",
    "EXPONENTIAL_HISTOGRAM": "exponential_histogram",
    "SUMMARY": "summary",
}
_OF_METRIC = ("name", "description", "unit", "metadata", "type", "temporality", "is_monotonic")


def _metrics(rows: list[_Row]) -> Any:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (  # noqa: PLC0415
        ExportMetricsServiceRequest,
    )

    request = ExportMetricsServiceRequest()
    tree = _Tree(request, "resource_metrics", "scope_metrics")
    known: dict[str, Any] = {}
    for row in rows:
        scope_key, scope = tree.scope_of(row)
        key = repr([scope_key, [row[name] for name in _OF_METRIC]])
        data = known.get(key)
        if data is None:
            data = known[key] = _metric(scope.metrics.add(), row)
        _point(data.data_points.add(), row)
    return request


def _metric(metric: Any, row: _Row) -> Any:
    """Set the fields that a metric's points share, and return the message that contains the points."""
    from opentelemetry.proto.metrics.v1 import metrics_pb2  # noqa: PLC0415

    if row["type"] not in _KINDS:
        raise ValueError(f"a data point of type {row['type']!r}")
    for name in ("name", "description", "unit"):
        _set(metric, name, row[name])
    _set_attributes(metric.metadata, row["metadata"])
    data = getattr(metric, _KINDS[row["type"]])
    data.SetInParent()
    if row["temporality"] is not None:
        words = metrics_pb2.AggregationTemporality
        data.aggregation_temporality = _word(words, "AGGREGATION_TEMPORALITY", row["temporality"])
    if row["is_monotonic"] is not None:
        data.is_monotonic = row["is_monotonic"]
    return data


def _point(point: Any, row: _Row) -> None:
    kind = row["type"]
    point.start_time_unix_nano, point.time_unix_nano = _time(row, "start_time"), _time(row, "time")
    _set_attributes(point.attributes, row["attributes"])
    _set(point, "flags", row["flags"])
    if kind in {"GAUGE", "SUM"}:
        _set(point, "as_int", row["int_value"])
        _set(point, "as_double", row["double_value"])
    else:
        _set(point, "count", row["count"])
        _set(point, "sum", row["sum"])
    if kind == "SUMMARY":
        for one in row["quantile_values"] or ():
            point.quantile_values.add(quantile=one["quantile"] or 0.0, value=one["value"] or 0.0)
        return
    if kind in {"HISTOGRAM", "EXPONENTIAL_HISTOGRAM"}:
        _set(point, "min", row["min"])
        _set(point, "max", row["max"])
    if kind == "HISTOGRAM":
        point.bucket_counts.extend(_counts(row["bucket_counts"]))
        point.explicit_bounds.extend(row["explicit_bounds"] or ())
    if kind == "EXPONENTIAL_HISTOGRAM":
        for name in ("scale", "zero_count", "zero_threshold"):
            _set(point, name, row[name])
        for name in ("positive", "negative"):
            offset, counts = row[f"{name}_offset"], row[f"{name}_bucket_counts"]
            if offset is not None or counts:
                buckets = getattr(point, name)
                buckets.SetInParent()
                buckets.offset = offset or 0
                buckets.bucket_counts.extend(_counts(counts))
    for one in row["exemplars"] or ():
        added = point.exemplars.add(time_unix_nano=_time(one, "time"))
        added.trace_id, added.span_id = _id(one["trace_id"]), _id(one["span_id"])
        _set(added, "as_int", one["int_value"])
        _set(added, "as_double", one["double_value"])
        _set_attributes(added.filtered_attributes, one["filtered_attributes"])


def _counts(counts: list[int | None] | None) -> list[int]:
    return [_UNSHOWN if count is None else count for count in counts or ()]


_MAKERS: dict[str, Callable[[list[_Row]], Any]] = {"logs": _logs, "spans": _spans, "metrics": _metrics}
