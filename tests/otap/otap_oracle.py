"""A slow reference implementation of the views in plain Python over protobuf objects, without the library's code."""

import base64
import json
import math
from datetime import UTC, datetime, timedelta

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

REQUESTS = {
    "logs": ExportLogsServiceRequest,
    "spans": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
}
ARMS = ("string_value", "bool_value", "int_value", "double_value", "bytes_value")


def rows(data: bytes, view: str) -> list[dict]:
    request = REQUESTS[view].FromString(data)
    make = {"logs": _logs, "spans": _spans, "metrics": _metrics}[view]
    return list(make(request))


def nano(value: int) -> int | None:
    return value if value < 2**63 else None


def hexed(value: bytes) -> str | None:
    return value.hex() if any(value) else None


def time(value: int) -> datetime | None:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value // 1000) if value else None


def typed(value) -> dict:
    row = dict.fromkeys((*ARMS, "json_value"))
    kind = value.WhichOneof("value")
    if kind in ARMS:
        row[kind] = getattr(value, kind)
    elif kind in {"array_value", "kvlist_value"}:
        row["json_value"] = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))
    return row


def _plain(value):
    kind = value.WhichOneof("value")
    match kind:
        case "array_value":
            return [_plain(item) for item in value.array_value.values]
        case "kvlist_value":
            return {item.key: _plain(item.value) for item in value.kvlist_value.values}
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case "double_value" if math.isnan(value.double_value):
            return "NaN"
        case "double_value" if math.isinf(value.double_value):
            return "Infinity" if value.double_value > 0 else "-Infinity"
        case None | "string_value_strindex":
            return None
    return getattr(value, kind)


def pairs(attributes) -> list[tuple[str, dict]]:
    return list({item.key: typed(item.value) for item in attributes}.items())


def _origin(resource, scope) -> dict:
    return {
        "scope_name": scope.scope.name or None,
        "scope_version": scope.scope.version or None,
        "scope_attributes": pairs(scope.scope.attributes),
        "scope_dropped_attributes_count": scope.scope.dropped_attributes_count,
        "scope_schema_url": scope.schema_url or None,
        "resource_attributes": pairs(resource.resource.attributes),
        "resource_dropped_attributes_count": resource.resource.dropped_attributes_count,
        "resource_schema_url": resource.schema_url or None,
    }


def _logs(request):
    for resource in request.resource_logs:
        for scope in resource.scope_logs:
            for record in scope.log_records:
                yield {
                    "time": time(record.time_unix_nano),
                    "time_unix_nano": nano(record.time_unix_nano),
                    "observed_time": time(record.observed_time_unix_nano),
                    "observed_time_unix_nano": nano(record.observed_time_unix_nano),
                    "severity_number": record.severity_number,
                    "severity_text": record.severity_text or None,
                    "body": typed(record.body),
                    "trace_id": hexed(record.trace_id),
                    "span_id": hexed(record.span_id),
                    "flags": record.flags,
                    "event_name": record.event_name or None,
                    "attributes": pairs(record.attributes),
                    "dropped_attributes_count": record.dropped_attributes_count,
                    **_origin(resource, scope),
                }


KINDS = {0: "UNSPECIFIED", 1: "INTERNAL", 2: "SERVER", 3: "CLIENT", 4: "PRODUCER", 5: "CONSUMER"}


def _spans(request):
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                start, end = nano(span.start_time_unix_nano), nano(span.end_time_unix_nano)
                yield {
                    "trace_id": hexed(span.trace_id),
                    "span_id": hexed(span.span_id),
                    "parent_span_id": hexed(span.parent_span_id),
                    "trace_state": span.trace_state or None,
                    "flags": span.flags,
                    "name": span.name or None,
                    "kind": KINDS.get(span.kind, str(span.kind)),
                    "start_time": time(span.start_time_unix_nano),
                    "start_time_unix_nano": start,
                    "end_time": time(span.end_time_unix_nano),
                    "end_time_unix_nano": end,
                    "duration_nano": end - start if end and start else None,
                    "status_code": {0: "UNSET", 1: "OK", 2: "ERROR"}.get(span.status.code, str(span.status.code)),
                    "status_message": span.status.message or None,
                    "attributes": pairs(span.attributes),
                    "dropped_attributes_count": span.dropped_attributes_count,
                    "events": [
                        {
                            "time": time(event.time_unix_nano),
                            "time_unix_nano": nano(event.time_unix_nano),
                            "name": event.name or None,
                            "attributes": pairs(event.attributes),
                            "dropped_attributes_count": event.dropped_attributes_count,
                        }
                        for event in span.events
                    ],
                    "dropped_events_count": span.dropped_events_count,
                    "links": [
                        {
                            "trace_id": hexed(link.trace_id),
                            "span_id": hexed(link.span_id),
                            "trace_state": link.trace_state or None,
                            "flags": link.flags,
                            "attributes": pairs(link.attributes),
                            "dropped_attributes_count": link.dropped_attributes_count,
                        }
                        for link in span.links
                    ],
                    "dropped_links_count": span.dropped_links_count,
                    **_origin(resource, scope),
                }


POINT_COLUMNS = (
    "int_value", "double_value", "count", "sum", "min", "max", "bucket_counts", "explicit_bounds", "scale",
    "zero_count", "zero_threshold", "positive_offset", "positive_bucket_counts", "negative_offset",
    "negative_bucket_counts", "quantile_values",
)  # fmt: skip


def _given(point, *names):
    return {name: getattr(point, name) if point.HasField(name) else None for name in names}


def _point(kind: str, point) -> dict:
    row = dict.fromkeys(POINT_COLUMNS)
    if kind in {"gauge", "sum"}:
        arm = point.WhichOneof("value")
        if arm:
            row[{"as_int": "int_value", "as_double": "double_value"}[arm]] = getattr(point, arm)
        return row
    row["count"] = nano(point.count)
    if kind == "summary":
        row["sum"] = point.sum
        row["quantile_values"] = [{"quantile": q.quantile, "value": q.value} for q in point.quantile_values]
        return row
    row |= _given(point, "sum", "min", "max")
    if kind == "histogram":
        row["bucket_counts"] = [nano(value) for value in point.bucket_counts]
        row["explicit_bounds"] = list(point.explicit_bounds)
        return row
    row |= {"scale": point.scale, "zero_count": nano(point.zero_count), "zero_threshold": point.zero_threshold}
    for side in ("positive", "negative"):
        buckets = getattr(point, side)
        row[f"{side}_offset"] = buckets.offset if point.HasField(side) else None
        row[f"{side}_bucket_counts"] = [nano(value) for value in buckets.bucket_counts]
    return row


def _exemplar(exemplar) -> dict:
    arm = exemplar.WhichOneof("value")
    return {
        "time": time(exemplar.time_unix_nano),
        "time_unix_nano": nano(exemplar.time_unix_nano),
        "int_value": exemplar.as_int if arm == "as_int" else None,
        "double_value": exemplar.as_double if arm == "as_double" else None,
        "trace_id": hexed(exemplar.trace_id),
        "span_id": hexed(exemplar.span_id),
        "filtered_attributes": pairs(exemplar.filtered_attributes),
    }


def _metrics(request):
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                data = getattr(metric, kind) if kind else None
                for point in data.data_points if kind else ():
                    temporality = getattr(data, "aggregation_temporality", None)
                    names = {None: None, 0: "UNSPECIFIED", 1: "DELTA", 2: "CUMULATIVE"}
                    yield {
                        "name": metric.name or None,
                        "description": metric.description or None,
                        "unit": metric.unit or None,
                        "metadata": pairs(metric.metadata),
                        "type": kind.upper(),
                        "temporality": names.get(temporality, str(temporality)),
                        "is_monotonic": getattr(data, "is_monotonic", None),
                        "start_time": time(point.start_time_unix_nano),
                        "start_time_unix_nano": nano(point.start_time_unix_nano),
                        "time": time(point.time_unix_nano),
                        "time_unix_nano": nano(point.time_unix_nano),
                        "attributes": pairs(point.attributes),
                        "flags": point.flags,
                        **_point(kind, point),
                        "exemplars": [_exemplar(item) for item in getattr(point, "exemplars", ())],
                        **_origin(resource, scope),
                    }
