"""
The column of event times of a schema, and the time range of each chunk of a stream. Pure.

The column is the first of these that exists: ``time_unix_nano``, ``start_time_unix_nano``, ``event_time``,
``timestamp``, ``@timestamp``, ``time``, ``ts``; otherwise the first timestamp of the schema. It must be a timestamp of
any unit, or, if its name ends in ``_unix_nano``, a 64-bit integer. A timestamp without a zone is read as UTC.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from quiver.store.format.segment.event_times import NO_EVENTS
from quiver.store.format.segment.ipc_table import fixed_width

__all__ = ["chunk_columns", "chunk_ranges", "event_column", "event_field", "is_event_type", "rows_between", "unit_ns"]

_NAMES = ("time_unix_nano", "start_time_unix_nano", "event_time", "timestamp", "@timestamp", "time", "ts")
_UNIT_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_INT64 = (-(2**63), 2**63 - 1)
_SMALL_MESSAGE_BYTES = 16 * 1024
"""Messages whose average size is below this are read together by Arrow; larger ones one by one and without a copy."""


def is_event_type(name: str, kind: pa.DataType) -> bool:
    """Return whether a column of this name and type can hold event times."""
    return bool(pa.types.is_timestamp(kind) or (name.endswith("_unix_nano") and pa.types.is_int64(kind)))


def event_column(schema: pa.Schema) -> int | None:
    """Return the index of the column of event times; None if there is none."""
    name = event_field(schema)
    return None if name is None else schema.names.index(name)


def event_field(schema: pa.Schema) -> str | None:
    """Return the name of the column of event times; None if there is none."""
    # The first of two columns with the same name counts, here and in every lookup by name.
    kinds = {field.name: field.type for field in reversed(list(schema))}
    for name in (*_NAMES, *schema.names):
        if name in kinds and is_event_type(name, kinds[name]):
            return name
    return None


def unit_ns(kind: pa.DataType) -> int:
    """Return the length of one step of this time type in nanoseconds."""
    return _UNIT_NS[kind.unit] if pa.types.is_timestamp(kind) else 1


def chunk_ranges(schema: pa.Schema, column: int, chunks: Sequence[Any]) -> array[int] | None:
    """
    Return the earliest and the latest time of each chunk, one after the other, in nanoseconds since the epoch.

    None if a time is too far away to be expressed in nanoseconds.

    Args:
        schema: of the stream.
        column: index of the column of event times.
        chunks: record batches; or, for a schema without dictionaries, their messages.
    """
    times = chunk_columns(schema, column, chunks)
    step = unit_ns(schema.field(column).type)
    ranges = array("q", NO_EVENTS * len(times))
    rows = sum(map(len, times))
    if rows == 0:
        return ranges
    ends = fixed_width(array("q", [end for end in _ends(times) if end]), pa.int64())
    numbers = fixed_width(array("i", [number for number, chunk in enumerate(times) if len(chunk)]), pa.int32())
    chunk_of_row = pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(pc.unique(ends), numbers))
    values = pa.concat_arrays(times).cast(pa.int64())
    # One pass over all chunks: for small chunks, a call for each would cost more than the computation.
    grouped = pa.table({"chunk": chunk_of_row, "time": values}).group_by("chunk", use_threads=False)
    found = grouped.aggregate([("time", "min"), ("time", "max")])
    columns = [found.column(name).to_pylist() for name in ("chunk", "time_min", "time_max")]
    for number, low, high in zip(*columns, strict=True):
        if low is None:
            continue
        if low * step < _INT64[0] or high * step > _INT64[1]:
            return None
        ranges[2 * number], ranges[2 * number + 1] = low * step, high * step
    return ranges


def _ends(chunks: Sequence[pa.Array]) -> list[int]:
    ends = []
    end = 0
    for chunk in chunks:
        end += len(chunk)
        ends.append(end)
    return ends


def chunk_columns(schema: pa.Schema, column: int, chunks: Sequence[Any]) -> list[pa.Array]:
    """Return one column of each chunk; *chunks* are as in `chunk_ranges`."""
    if not chunks or isinstance(chunks[0], pa.RecordBatch):
        return [batch.column(column) for batch in chunks]
    if sum(map(len, chunks)) >= _SMALL_MESSAGE_BYTES * len(chunks):
        return [pa.ipc.read_record_batch(pa.py_buffer(chunk), schema).column(column) for chunk in chunks]
    options = pa.ipc.IpcReadOptions(included_fields=[column], use_threads=False)
    stream = pa.py_buffer(b"".join((bytes(schema.serialize()), *chunks)))
    with pa.ipc.open_stream(stream, options=options) as reader:
        # Batch by batch in Arrow, not in Python. Chunks without rows stay chunks.
        chunked: list[pa.Array] = reader.read_all().column(0).chunks
    return chunked


def rows_between(times: pa.Array, start_ns: int | None, end_ns: int | None) -> pa.Array:
    """Return for each row whether its time is at or after *start_ns* and before *end_ns*; false for null times."""
    step = unit_ns(times.type)
    values = times.cast(pa.int64())
    keep = values.is_valid()
    # Bounds are rounded up, since a step that starts before a bound is before it. No time is beyond int64.
    if start_ns is not None:
        low = max(-(-start_ns // step), _INT64[0])
        keep = pc.and_kleene(keep, low <= _INT64[1] and pc.greater_equal(values, pa.scalar(low, pa.int64())))
    if end_ns is not None and -(-end_ns // step) <= _INT64[1]:
        high = max(-(-end_ns // step), _INT64[0])
        keep = pc.and_kleene(keep, pc.less(values, pa.scalar(high, pa.int64())))
    return pc.fill_null(keep, False)
