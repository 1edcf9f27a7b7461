"""
The event time of each row of a view. Pure.

=========  ===========================================================
view       event time
=========  ===========================================================
`logs`     `time`, or `observed_time` if the sender did not set `time`
`spans`    `start_time`
`metrics`  `time`
=========  ===========================================================

A row that has none of them has no event time.
"""

from __future__ import annotations

from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["event_time_columns", "event_times"]

_TIMES = MappingProxyType({"logs": ("time", "observed_time"), "spans": ("start_time",), "metrics": ("time",)})
_LATEST = 2**63 - 1


def event_time_columns(view: str) -> tuple[str, ...]:
    """Return the columns of *view* that `event_times` needs."""
    return tuple(column for name in _TIMES[view] for column in (f"{name}_unix_nano", name))


def event_times(batch: pa.RecordBatch, view: str) -> pa.Array:
    """
    Return the event time of each row in nanoseconds since the epoch; null if it has none.

    A time after 2^63 - 1 is that number.

    Args:
        batch: rows of *view*, at least with `event_time_columns`.
        view: logs, spans or metrics.
    """
    # Not at import: the first conversion of a Python value imports pandas, which takes longer than all other imports.
    latest, unknown = pa.scalar(_LATEST, pa.int64()), pa.scalar(None, pa.int64())
    found = []
    for name in _TIMES[view]:
        exact, shown = batch.column(f"{name}_unix_nano"), batch.column(name)
        # OTLP writes 0 for an unknown time. An exact time that does not fit is null, and the timestamp is not.
        found.append(pc.if_else(pc.equal(exact, 0), unknown, exact))
        found.append(pc.if_else(pc.and_(pc.is_null(exact), pc.is_valid(shown)), latest, unknown))
    return pc.coalesce(*found)
