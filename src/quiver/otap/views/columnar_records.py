"""The columns of the views `logs` and `spans` from nested Arrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quiver.otap.arrays import codes, hex_ids, nanoseconds, relist, texts, times, widened
from quiver.otap.views.schemas import view_schema
from quiver.otap.views.spans import SPAN_KINDS, STATUS_CODES
from quiver.otap.views.typed_arrays import maps, typed_values

__all__ = ["log_arrays", "span_arrays"]

_SPANS = view_schema("spans")


def log_arrays(records: Any) -> dict[str, Callable[[], pa.Array]]:
    """Return the makers of the columns of log records, by name."""
    field = records.field
    return {
        "time": lambda: times(field("time_unix_nano")),
        "time_unix_nano": lambda: nanoseconds(field("time_unix_nano")),
        "observed_time": lambda: times(field("observed_time_unix_nano")),
        "observed_time_unix_nano": lambda: nanoseconds(field("observed_time_unix_nano")),
        "severity_number": lambda: field("severity_number"),
        "severity_text": lambda: texts(field("severity_text")),
        "body": lambda: typed_values(field("body")),
        "trace_id": lambda: hex_ids(field("trace_id")),
        "span_id": lambda: hex_ids(field("span_id")),
        "flags": lambda: widened(field("flags")),
        "event_name": lambda: texts(field("event_name")),
        "attributes": lambda: maps(field("attributes")),
        "dropped_attributes_count": lambda: widened(field("dropped_attributes_count")),
    }


def span_arrays(spans: Any) -> dict[str, Callable[[], pa.Array]]:
    """Return the makers of the columns of spans, by name."""
    field = spans.field
    return {
        "trace_id": lambda: hex_ids(field("trace_id")),
        "span_id": lambda: hex_ids(field("span_id")),
        "parent_span_id": lambda: hex_ids(field("parent_span_id")),
        "trace_state": lambda: texts(field("trace_state")),
        "flags": lambda: widened(field("flags")),
        "name": lambda: texts(field("name")),
        "kind": lambda: codes(field("kind"), SPAN_KINDS),
        "start_time": lambda: times(field("start_time_unix_nano")),
        "start_time_unix_nano": lambda: nanoseconds(field("start_time_unix_nano")),
        "end_time": lambda: times(field("end_time_unix_nano")),
        "end_time_unix_nano": lambda: nanoseconds(field("end_time_unix_nano")),
        "duration_nano": lambda: _durations(field("start_time_unix_nano"), field("end_time_unix_nano")),
        "status_code": lambda: codes(field("status").field("code"), STATUS_CODES),
        "status_message": lambda: texts(field("status").field("message")),
        "attributes": lambda: maps(field("attributes")),
        "dropped_attributes_count": lambda: widened(field("dropped_attributes_count")),
        "events": lambda: _events(field("events")),
        "dropped_events_count": lambda: widened(field("dropped_events_count")),
        "links": lambda: _links(field("links")),
        "dropped_links_count": lambda: widened(field("dropped_links_count")),
    }


def _durations(starts: pa.Array, ends: pa.Array) -> pa.Array:
    """Return end minus start, negative after a clock step; null if either is unknown or does not fit."""
    unknown = (np.asarray(starts) == 0) | (np.asarray(ends) == 0)
    return pc.if_else(pa.array(unknown), None, pc.subtract(nanoseconds(ends), nanoseconds(starts)))


def _events(lists: pa.Array) -> pa.Array:
    kind = _SPANS.field("events").type
    events: Any = lists.values
    made = [
        times(events.field("time_unix_nano")),
        nanoseconds(events.field("time_unix_nano")),
        texts(events.field("name")),
        maps(events.field("attributes")),
        widened(events.field("dropped_attributes_count")),
    ]
    return relist(lists, pa.StructArray.from_arrays(made, fields=list(kind.value_type)), kind)


def _links(lists: pa.Array) -> pa.Array:
    kind = _SPANS.field("links").type
    links: Any = lists.values
    made = [
        hex_ids(links.field("trace_id")),
        hex_ids(links.field("span_id")),
        texts(links.field("trace_state")),
        widened(links.field("flags")),
        maps(links.field("attributes")),
        widened(links.field("dropped_attributes_count")),
    ]
    return relist(lists, pa.StructArray.from_arrays(made, fields=list(kind.value_type)), kind)
