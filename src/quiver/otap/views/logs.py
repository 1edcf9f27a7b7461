"""The columns of the `logs` view."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from quiver.otap.views.columns import Flat, attribute_maps, hex_ids, nanoseconds, texts, times, typed_values

__all__ = ["log_columns"]


def log_columns(flat: Flat) -> dict[str, Callable[[], pa.Array]]:
    """Return the makers of the columns of log records, by name."""
    records = flat.items
    return {
        "time": lambda: times([r.time_unix_nano for r in records]),
        "time_unix_nano": lambda: nanoseconds([r.time_unix_nano for r in records]),
        "observed_time": lambda: times([r.observed_time_unix_nano for r in records]),
        "observed_time_unix_nano": lambda: nanoseconds([r.observed_time_unix_nano for r in records]),
        "severity_number": lambda: pa.array([r.severity_number for r in records], pa.int32()),
        "severity_text": lambda: texts(r.severity_text for r in records),
        "body": lambda: typed_values(r.body for r in records),
        "trace_id": lambda: hex_ids(r.trace_id for r in records),
        "span_id": lambda: hex_ids(r.span_id for r in records),
        "flags": lambda: pa.array([r.flags for r in records], pa.int64()),
        "event_name": lambda: texts(r.event_name for r in records),
        "attributes": lambda: attribute_maps(r.attributes for r in records),
        "dropped_attributes_count": lambda: pa.array([r.dropped_attributes_count for r in records], pa.int64()),
    }
