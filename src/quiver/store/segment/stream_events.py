"""
The event times and items of one stream, for the manifest of its segment. Pure.

A stream of OTLP requests has no column of times: its range is that of the records in the requests. A request that
cannot be read makes the range of its stream unknown, and the stream is then always read. It never fails a seal.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from quiver.bundle import OTLP_SCHEMA
from quiver.otap.request_times import request_times
from quiver.otap.views.schemas import VIEW_SLOTS
from quiver.primitives.yielding import yielding
from quiver.store.segment.event_time import chunk_columns, chunk_ranges, event_column
from quiver.store.segment.log_backed import LogBackedMessage, loaded
from quiver.store.segment.pieced import PiecedMessage

__all__ = ["StreamEvents", "is_of_requests", "stream_events"]

_VIEWS = {slot: view for view, slot in VIEW_SLOTS.items()}


class StreamEvents(NamedTuple):
    """
    The event times of one stream.

    Attributes:
        column: index of the column that has them.
        ranges: earliest and latest time of each chunk, one after the other.
        item_count: how many records its requests have; None if its rows are not requests.
    """

    column: int
    ranges: Sequence[int]
    item_count: int | None = None


def is_of_requests(slot: int, schema: pa.Schema) -> bool:
    """Return whether a stream of *slot* with this schema has OTLP requests."""
    return slot in _VIEWS and schema.equals(OTLP_SCHEMA)


def stream_events(slot: int, schema: pa.Schema, chunks: Sequence[Any]) -> StreamEvents | None:
    """
    Return the event times of a stream; None if it has none, or if they cannot be recorded.

    Args:
        slot: of the stream.
        schema: of the stream.
        chunks: record batches; or, for a schema without dictionaries, their messages.
    """
    column = 0 if is_of_requests(slot, schema) else event_column(schema)
    if column is None:
        return None
    if not any(isinstance(chunk, LogBackedMessage | PiecedMessage) for chunk in chunks):
        parts: Iterable[Sequence[Any]] = (chunks,)
    else:  # large, so only one of them is in memory at a time
        parts = ([chunk.batch if isinstance(chunk, PiecedMessage) else loaded(chunk)] for chunk in chunks)
    if is_of_requests(slot, schema):
        return _events_of_requests(_VIEWS[slot], (one for part in parts for one in chunk_columns(schema, 0, part)))
    ranges = array("q")
    for part in parts:
        found = chunk_ranges(schema, column, part)
        if found is None:
            return None
        ranges.extend(found)
    return StreamEvents(column, ranges)


def _events_of_requests(view: str, chunks: Iterator[pa.Array]) -> StreamEvents | None:
    ranges = array("q")
    items = 0
    for requests in yielding(chunks):
        found = request_times(requests, view)
        if found is None:
            return None
        ranges.append(found.min_ns)
        ranges.append(found.max_ns)
        items += found.items
    return StreamEvents(0, ranges, items)
