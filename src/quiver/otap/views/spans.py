"""The columns of the `spans` view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from quiver.otap.views.columns import (
    Flat,
    attribute_maps,
    codes,
    hex_ids,
    list_column,
    nanoseconds,
    texts,
    times,
)
from quiver.otap.views.schemas import view_schema

__all__ = ["SPAN_KINDS", "STATUS_CODES", "span_columns"]

SPAN_KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
STATUS_CODES = ("UNSET", "OK", "ERROR")

_SCHEMA = view_schema("spans")


def span_columns(flat: Flat) -> dict[str, Callable[[], pa.Array]]:
    """Return the makers of the columns of spans, by name."""
    spans = flat.items
    return {
        "trace_id": lambda: hex_ids(s.trace_id for s in spans),
        "span_id": lambda: hex_ids(s.span_id for s in spans),
        "parent_span_id": lambda: hex_ids(s.parent_span_id for s in spans),
        "trace_state": lambda: texts(s.trace_state for s in spans),
        "flags": lambda: pa.array([s.flags for s in spans], pa.int64()),
        "name": lambda: texts(s.name for s in spans),
        "kind": lambda: codes((s.kind for s in spans), SPAN_KINDS),
        "start_time": lambda: times([s.start_time_unix_nano for s in spans]),
        "start_time_unix_nano": lambda: nanoseconds([s.start_time_unix_nano for s in spans]),
        "end_time": lambda: times([s.end_time_unix_nano for s in spans]),
        "end_time_unix_nano": lambda: nanoseconds([s.end_time_unix_nano for s in spans]),
        "duration_nano": lambda: _durations(spans),
        "status_code": lambda: codes((s.status.code for s in spans), STATUS_CODES),
        "status_message": lambda: texts(s.status.message for s in spans),
        "attributes": lambda: attribute_maps(s.attributes for s in spans),
        "dropped_attributes_count": lambda: pa.array([s.dropped_attributes_count for s in spans], pa.int64()),
        "events": lambda: _events(spans),
        "dropped_events_count": lambda: pa.array([s.dropped_events_count for s in spans], pa.int64()),
        "links": lambda: _links(spans),
        "dropped_links_count": lambda: pa.array([s.dropped_links_count for s in spans], pa.int64()),
    }


def _durations(spans: Sequence[Any]) -> pa.Array:
    """Return end minus start, negative after a clock step; null if either is unknown or does not fit."""
    start = nanoseconds([s.start_time_unix_nano for s in spans])
    end = nanoseconds([s.end_time_unix_nano for s in spans])
    known = pc.and_(pc.not_equal(start, 0), pc.not_equal(end, 0))
    return pc.if_else(known, pc.subtract(end, start), pa.scalar(None, pa.int64()))


def _events(spans: Sequence[Any]) -> pa.Array:
    kind = _SCHEMA.field("events").type
    events = [event for span in spans for event in span.events]
    values = pa.StructArray.from_arrays(
        [
            times([e.time_unix_nano for e in events]),
            nanoseconds([e.time_unix_nano for e in events]),
            texts(e.name for e in events),
            attribute_maps(e.attributes for e in events),
            pa.array([e.dropped_attributes_count for e in events], pa.int64()),
        ],
        fields=list(kind.value_type),
    )
    return list_column((len(span.events) for span in spans), values, kind)


def _links(spans: Sequence[Any]) -> pa.Array:
    kind = _SCHEMA.field("links").type
    links = [link for span in spans for link in span.links]
    values = pa.StructArray.from_arrays(
        [
            hex_ids(link.trace_id for link in links),
            hex_ids(link.span_id for link in links),
            texts(link.trace_state for link in links),
            pa.array([link.flags for link in links], pa.int64()),
            attribute_maps(link.attributes for link in links),
            pa.array([link.dropped_attributes_count for link in links], pa.int64()),
        ],
        fields=list(kind.value_type),
    )
    return list_column((len(span.links) for span in spans), values, kind)
