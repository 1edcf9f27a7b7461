"""
A stored batch → the same rows under another schema: order, types, missing columns. Pure.

Columns that have the right type already are used without copying. The others are converted level by level, since
Arrow's own casts do not undo every encoding, and get some wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from quiver.errors import UsageError
from quiver.store.segment.type_promotion import is_any_list

__all__ = ["cast_to_schema", "coalesce"]

_COALESCE_ROWS = 8192
"""Smaller batches are combined: each batch that is passed to another engine has a fixed cost."""

_COALESCE_BYTES = 16 * 1024 * 1024
"""Large enough on its own, even with few rows: a row may be a request of megabytes."""


def cast_to_schema(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """
    Return *batch* with exactly the schema *target*: order, types, nullability.

    Columns missing in *batch* are null, columns missing in *target* are omitted. Times may lose precision and an
    integer may become the nearest float; no other value that does not fit is ever changed to one that does.

    Raises:
        UsageError: a value does not fit the declared type.
    """
    if batch.schema.equals(target, check_metadata=True) and all(field.nullable for field in target):
        return batch
    positions = {name: i for i, name in reversed(list(enumerate(batch.schema.names)))}
    columns = []
    for field in target:
        position = positions.get(field.name)
        column = pa.nulls(batch.num_rows, field.type) if position is None else _column(batch.column(position), field)
        if not field.nullable and column.null_count:
            raise UsageError(f"column {field.name} is declared not null, but {column.null_count} values are missing")
        columns.append(column)
    if not columns:
        # Arrow would lose the number of rows.
        return batch.select([])
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _column(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return _array(array, field.type)
    except pa.ArrowException as error:
        raise UsageError(f"column {field.name} is {array.type} and does not fit {field.type}: {error}") from error


def _array(array: pa.Array, target: pa.DataType) -> pa.Array:
    kind = array.type
    types = pa.types
    if kind.equals(target):
        return array
    if types.is_null(kind):
        return pa.nulls(len(array), target)
    if isinstance(kind, pa.BaseExtensionType):
        return _array(array.storage, target)
    if types.is_run_end_encoded(kind):
        return _array(_decoded_runs(array), target)
    if types.is_dictionary(kind) and not types.is_dictionary(target):
        return _array(array.dictionary.take(array.indices), target)
    if types.is_struct(kind) and types.is_struct(target):
        return _struct(array, target)
    if types.is_map(kind) and types.is_map(target):
        return _map(array, target)
    if is_any_list(kind) and (types.is_list(target) or types.is_large_list(target)):
        return _list(array, target)
    rounds = types.is_floating(target) and (types.is_integer(kind) or types.is_decimal(kind))
    return array.cast(options=pc.CastOptions(target_type=target, allow_time_truncate=True, allow_float_truncate=rounds))


def _decoded_runs(array: pa.Array) -> pa.Array:
    # Arrow decodes runs of few types, but it can always compute the run of each row.
    runs = pa.array(range(len(array.run_ends)), pa.int64())
    rows = pa.RunEndEncodedArray.from_arrays(array.run_ends, runs).slice(array.offset, len(array))
    return array.values.take(pc.run_end_decode(rows))


def _struct(array: pa.Array, target: pa.DataType) -> pa.Array:
    kind = array.type
    children = []
    for field in target:
        position = kind.get_field_index(field.name)
        missing = position < 0
        children.append(pa.nulls(len(array), field.type) if missing else _array(array.field(position), field.type))
    return pa.StructArray.from_arrays(children, fields=list(target), mask=array.is_null())


def _list(array: pa.Array, target: pa.DataType) -> pa.Array:
    # Only what the rows reference: a slice has more values, a null may have some, and a view may have any order.
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    large = pa.types.is_large_list(target)
    values = _array(array.flatten(), target.value_type)
    maker = pa.LargeListArray if large else pa.ListArray
    return maker.from_arrays(_offsets(lengths, large), values, type=target, mask=array.is_null())


def _map(array: pa.Array, target: pa.DataType) -> pa.Array:
    first, last = (array.offsets[at].as_py() for at in (0, len(array)))
    keys = _array(array.keys.slice(first, last - first), target.key_type)
    items = _array(array.items.slice(first, last - first), target.item_type)
    offsets = pc.subtract(array.offsets, pa.scalar(first, pa.int32()))
    return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=array.is_null())


def _offsets(lengths: Any, large: bool) -> pa.Array:  # noqa: FBT001
    kind = pa.int64() if large else pa.int32()
    ends = pc.cumulative_sum_checked(lengths.cast(kind))
    return pa.concat_arrays([pa.array([0], kind), ends])


def coalesce(batches: Iterable[tuple[object, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """
    Combine adjacent small batches; larger ones pass unchanged. The order of rows stays.

    Each batch comes with a group: only batches of the same group are combined.
    """
    waiting: list[pa.RecordBatch] = []
    of: object = None
    rows = size = 0
    for group, batch in batches:
        is_whole = batch.num_rows >= _COALESCE_ROWS or batch.num_columns == 0
        nbytes = 0 if is_whole else batch.get_total_buffer_size()
        is_whole = is_whole or nbytes >= _COALESCE_BYTES
        full = rows + batch.num_rows > _COALESCE_ROWS or size + nbytes > _COALESCE_BYTES
        if waiting and (is_whole or full or group != of):
            yield from _together(waiting)
            waiting, rows, size = [], 0, 0
        if is_whole:
            yield batch
        else:
            of = group
            waiting.append(batch)
            rows += batch.num_rows
            size += nbytes
    if waiting:
        yield from _together(waiting)


def _together(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) == 1:
        return batches
    try:
        return [pa.concat_batches(batches)]
    except pa.ArrowNotImplementedError:
        return batches  # types that Arrow cannot concatenate, such as run ends
