"""
The schemas of the views: one row per log record, span or data point, in types that every Arrow reader supports.

`docs/formats/views.md` describes the columns for users. There are no dictionaries, unsigned integers, nanosecond
timestamps, fixed-size or large types; every field except map keys is nullable; times are UTC. So Spark's Python data
sources accept the batches unchanged.
"""

from __future__ import annotations

from types import MappingProxyType

import pyarrow as pa

from quiver.errors import UsageError

__all__ = ["TIME", "TYPED_VALUE", "VIEWS", "VIEW_SLOTS", "projected_schema", "view_name", "view_schema"]

TIME = pa.timestamp("us", "UTC")
"""Times in a type that every reader supports; another column has the exact nanoseconds."""

TYPED_VALUE = pa.struct(
    [
        pa.field("string_value", pa.string()),
        pa.field("bool_value", pa.bool_()),
        pa.field("int_value", pa.int64()),
        pa.field("double_value", pa.float64()),
        pa.field("bytes_value", pa.binary()),
        pa.field("json_value", pa.string()),
    ]
)
"""OTLP's AnyValue: one field is not null, or none if the value is unset. Arrays and maps are JSON."""

_ATTRIBUTES = pa.map_(pa.string(), TYPED_VALUE)


def _list_of(element: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", element))


_EVENT = pa.struct(
    [
        pa.field("time", TIME),
        pa.field("time_unix_nano", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("attributes", _ATTRIBUTES),
        pa.field("dropped_attributes_count", pa.int64()),
    ]
)
_LINK = pa.struct(
    [
        pa.field("trace_id", pa.string()),
        pa.field("span_id", pa.string()),
        pa.field("trace_state", pa.string()),
        pa.field("flags", pa.int64()),
        pa.field("attributes", _ATTRIBUTES),
        pa.field("dropped_attributes_count", pa.int64()),
    ]
)
_EXEMPLAR = pa.struct(
    [
        pa.field("time", TIME),
        pa.field("time_unix_nano", pa.int64()),
        pa.field("int_value", pa.int64()),
        pa.field("double_value", pa.float64()),
        pa.field("trace_id", pa.string()),
        pa.field("span_id", pa.string()),
        pa.field("filtered_attributes", _ATTRIBUTES),
    ]
)
_QUANTILE = pa.struct([pa.field("quantile", pa.float64()), pa.field("value", pa.float64())])

_ORIGIN = (
    pa.field("scope_name", pa.string()),
    pa.field("scope_version", pa.string()),
    pa.field("scope_attributes", _ATTRIBUTES),
    pa.field("scope_dropped_attributes_count", pa.int64()),
    pa.field("scope_schema_url", pa.string()),
    pa.field("resource_attributes", _ATTRIBUTES),
    pa.field("resource_dropped_attributes_count", pa.int64()),
    pa.field("resource_schema_url", pa.string()),
)

_LOGS = pa.schema(
    [
        pa.field("time", TIME),
        pa.field("time_unix_nano", pa.int64()),
        pa.field("observed_time", TIME),
        pa.field("observed_time_unix_nano", pa.int64()),
        pa.field("severity_number", pa.int32()),
        pa.field("severity_text", pa.string()),
        pa.field("body", TYPED_VALUE),
        pa.field("trace_id", pa.string()),
        pa.field("span_id", pa.string()),
        pa.field("flags", pa.int64()),
        pa.field("event_name", pa.string()),
        pa.field("attributes", _ATTRIBUTES),
        pa.field("dropped_attributes_count", pa.int64()),
        *_ORIGIN,
    ]
)

_SPANS = pa.schema(
    [
        pa.field("trace_id", pa.string()),
        pa.field("span_id", pa.string()),
        pa.field("parent_span_id", pa.string()),
        pa.field("trace_state", pa.string()),
        pa.field("flags", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("start_time", TIME),
        pa.field("start_time_unix_nano", pa.int64()),
        pa.field("end_time", TIME),
        pa.field("end_time_unix_nano", pa.int64()),
        pa.field("duration_nano", pa.int64()),
        pa.field("status_code", pa.string()),
        pa.field("status_message", pa.string()),
        pa.field("attributes", _ATTRIBUTES),
        pa.field("dropped_attributes_count", pa.int64()),
        pa.field("events", _list_of(_EVENT)),
        pa.field("dropped_events_count", pa.int64()),
        pa.field("links", _list_of(_LINK)),
        pa.field("dropped_links_count", pa.int64()),
        *_ORIGIN,
    ]
)

_METRICS = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("description", pa.string()),
        pa.field("unit", pa.string()),
        pa.field("metadata", _ATTRIBUTES),
        pa.field("type", pa.string()),
        pa.field("temporality", pa.string()),
        pa.field("is_monotonic", pa.bool_()),
        pa.field("start_time", TIME),
        pa.field("start_time_unix_nano", pa.int64()),
        pa.field("time", TIME),
        pa.field("time_unix_nano", pa.int64()),
        pa.field("attributes", _ATTRIBUTES),
        pa.field("flags", pa.int64()),
        pa.field("int_value", pa.int64()),
        pa.field("double_value", pa.float64()),
        pa.field("count", pa.int64()),
        pa.field("sum", pa.float64()),
        pa.field("min", pa.float64()),
        pa.field("max", pa.float64()),
        pa.field("bucket_counts", _list_of(pa.int64())),
        pa.field("explicit_bounds", _list_of(pa.float64())),
        pa.field("scale", pa.int32()),
        pa.field("zero_count", pa.int64()),
        pa.field("zero_threshold", pa.float64()),
        pa.field("positive_offset", pa.int32()),
        pa.field("positive_bucket_counts", _list_of(pa.int64())),
        pa.field("negative_offset", pa.int32()),
        pa.field("negative_bucket_counts", _list_of(pa.int64())),
        pa.field("quantile_values", _list_of(_QUANTILE)),
        pa.field("exemplars", _list_of(_EXEMPLAR)),
        *_ORIGIN,
    ]
)

_SCHEMAS = MappingProxyType({"logs": _LOGS, "spans": _SPANS, "metrics": _METRICS})

VIEWS = tuple(_SCHEMAS)
"""The names of the views."""

VIEW_SLOTS = MappingProxyType({"logs": 60, "spans": 61, "metrics": 62})
"""View → the slot with its OTLP requests."""


def view_name(signal: str) -> str:
    """
    Return the view for the name of a view or a signal; the view of `traces` is `spans`.

    Raises:
        UsageError: no such view.
    """
    name = "spans" if signal == "traces" else signal
    if name not in _SCHEMAS:
        raise UsageError(f"unknown view {signal!r}; use one of {', '.join(VIEWS)}")
    return name


def view_schema(signal: str) -> pa.Schema:
    """
    Return the schema of a view.

    Raises:
        UsageError: no such view.
    """
    return _SCHEMAS[view_name(signal)]


def projected_schema(signal: str, columns: tuple[str, ...] | list[str] | None) -> pa.Schema:
    """
    Return the schema of the view with only *columns*, in the given order; None means all.

    Raises:
        UsageError: no such view, no such column, or a duplicate column.
    """
    schema = view_schema(signal)
    if columns is None:
        return schema
    unknown = [name for name in columns if name not in schema.names]
    if unknown:
        raise UsageError(f"view {view_name(signal)} has no column {unknown[0]!r}; it has {', '.join(schema.names)}")
    if len(set(columns)) != len(columns):
        raise UsageError(f"a column of view {view_name(signal)} is requested twice")
    return pa.schema([schema.field(name) for name in columns])
