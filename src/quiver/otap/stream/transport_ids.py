"""
Transport-encoded ids ↔ plain ids.

In transport, an `id` is the difference to the previous one (*delta*). A `parent_id` is the difference to the previous
one if the previous row has an equal key, and the id itself otherwise (*quasi-delta*). A field's metadata may state its
encoding; otherwise the column's default applies. All arithmetic is modulo the width of the id.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quiver.otap.arrays import truths, validity
from quiver.otap.conversion_errors import ConversionError
from quiver.otap.tables.payload_arrays import PLAIN, Flat, flat_columns, plain_values
from quiver.otap.tables.payload_schema import ENCODING, TABLES, Column, Table

__all__ = ["equal_to_previous", "plain_columns", "plain_ids"]

_ARMS = {1: "str", 2: "int", 3: "double", 4: "bool", 7: "bytes"}
_ZEROS = {"str": "", "int": 0, "double": 0.0, "bool": False, "bytes": b""}


def plain_columns(payload: int, batch: pa.RecordBatch, decoded: Flat | None = None) -> Flat:
    """
    Return the columns of a table with plain ids, without dictionaries: `flat_columns` of `plain_ids`.

    Args:
        payload: the payload type of the table.
        batch: its rows.
        decoded: the columns that `plain_ids` decoded for *batch*.

    Raises:
        ConversionError: a column has the wrong type or is duplicated; or as for `plain_ids`.
    """
    known: Flat = dict(decoded or {})
    return flat_columns(TABLES[payload], plain_ids(payload, batch, known), known)


def plain_ids(payload: int, batch: pa.RecordBatch, decoded: Flat | None = None) -> pa.RecordBatch:
    """
    Return the table with plain ids, marked as such in the fields' metadata.

    Columns that are decoded from dictionaries (ids and keys) are added to *decoded*.

    Raises:
        ConversionError: an encoding is unknown, or an id column has the wrong type.
    """
    table = TABLES[payload]
    known: Flat = {} if decoded is None else decoded
    arrays = list(batch.columns)
    fields = list(batch.schema)
    as_it_was = batch.schema.metadata is None
    for column in table.columns:
        if not column.default:
            continue
        at = batch.schema.get_field_index(column.struct or column.name)
        if at < 0:
            continue
        array = arrays[at]
        if column.struct:
            arrays[at], fields[at] = _in_struct(table, column, array, fields[at], known)
        else:
            arrays[at], fields[at] = _decoded(table, column, array, fields[at], batch, known)
        as_it_was = as_it_was and arrays[at] is array
    return batch if as_it_was else pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _in_struct(
    table: Table, column: Column, array: pa.Array, field: pa.Field, known: Flat
) -> tuple[pa.Array, pa.Field]:
    if not pa.types.is_struct(array.type):
        raise ConversionError(f"{table.name}: column {column.struct} is {array.type}, not a struct")
    inner = array.type.get_field_index(column.leaf)
    if inner < 0:
        return array, field
    children = array.flatten()
    fields = [array.type.field(at) for at in range(array.type.num_fields)]
    child = children[inner]
    children[inner], fields[inner] = _decoded(table, column, child, fields[inner], None, known)
    if children[inner] is child:
        return array, field
    # A null struct has null children, even if their field is not nullable.
    fields = [child.with_nullable(child.nullable or array.null_count > 0) for child in fields]
    mask = array.is_null() if array.null_count else None
    made = pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    return made, pa.field(field.name, made.type, nullable=field.nullable, metadata=field.metadata)


def _decoded(
    table: Table, column: Column, array: pa.Array, field: pa.Field, batch: pa.RecordBatch | None, known: Flat
) -> tuple[pa.Array, pa.Field]:
    encoding = (field.metadata or {}).get(ENCODING, column.default.encode())
    values = plain_values(table, column, array)
    if encoding == b"delta":
        values = _running_sum(values)
    elif encoding == b"quasidelta" and batch is not None and column.name == "parent_id":
        values = _quasi_decoded(values, equal_to_previous(table, batch, known))
    elif encoding != b"plain":
        raise ConversionError(f"{table.name}: column {column.name} has the unknown encoding {encoding[:40]!r}")
    known[column.name] = values
    if values is array:
        return array, field
    metadata = {**(field.metadata or {}), **PLAIN}
    return values, pa.field(field.name, values.type, nullable=field.nullable, metadata=metadata)


def _numbers(values: pa.Array) -> Any:
    filled = pc.fill_null(values, 0) if values.null_count else values
    return np.asarray(filled).astype(np.uint32, copy=False)  # no id has more bits


def _narrowed(numbers: Any, like: pa.Array) -> pa.Array:
    width = np.uint16 if like.type == pa.uint16() else np.uint32
    mask = ~validity(like) if like.null_count else None
    return pa.array(numbers.astype(width), like.type, mask=mask)  # astype truncates to the width, which is the modulo


def _running_sum(values: pa.Array) -> pa.Array:
    return _narrowed(np.cumsum(_numbers(values), dtype=np.uint32), values)


def _quasi_decoded(values: pa.Array, equal: Any) -> pa.Array:
    numbers = _numbers(values)
    if not len(numbers):
        return values
    sums = np.cumsum(numbers, dtype=np.uint32)
    starts = np.flatnonzero(~equal)
    # The sum before each run of equal keys.
    before = (sums - numbers)[starts]
    return _narrowed(sums - np.repeat(before, np.diff(starts, append=len(numbers))), values)


def equal_to_previous(table: Table, batch: pa.RecordBatch, decoded: Flat | None = None) -> Any:
    """
    Return for each row whether its quasi-delta key equals that of the previous row; false for the first row.

    The compared columns are added to *decoded*, without their dictionaries.

    Raises:
        ConversionError: a key column has the wrong type.
    """
    rows = batch.num_rows
    equal = np.zeros(rows, np.bool_)
    if rows < 2:
        return equal
    columns = _Compared(table, batch, {} if decoded is None else decoded)
    if table.family == "attributes":
        equal[1:] = _equal_attributes(columns)
    elif table.family == "events":
        equal[1:] = _adjacent_equal(columns.filled("name", ""))
    elif table.family == "links":
        equal[1:] = _adjacent_equal(columns.filled("trace_id", bytes(16)))
    else:
        equal[1:] = _equal_exemplars(columns, rows)
    return equal


class _Compared:
    """The columns by which adjacent rows are compared, each decoded once."""

    def __init__(self, table: Table, batch: pa.RecordBatch, decoded: Flat) -> None:
        self._table, self._batch, self._decoded = table, batch, decoded

    def column(self, name: str) -> pa.Array | None:
        at = self._batch.schema.get_field_index(name)
        if at < 0:
            return None
        if name not in self._decoded:
            self._decoded[name] = plain_values(self._table, self._table.by_name[name], self._batch.column(at))
        return self._decoded[name]

    def filled(self, name: str, unset: Any) -> pa.Array | None:
        values = self.column(name)
        return None if values is None else _filled(values, unset)


def _filled(values: pa.Array, unset: Any) -> pa.Array:
    if pa.types.is_fixed_size_binary(values.type):
        values = values.cast(pa.binary())
    return pc.fill_null(values, unset) if values.null_count else values


def _adjacent_equal(values: pa.Array | None) -> Any:
    """Return whether each value from the second on equals the previous one; an absent column is all zeros."""
    return True if values is None else truths(pc.equal(values[1:], values[:-1]))


def _equal_attributes(columns: _Compared) -> Any:
    types = columns.filled("type", 0)
    if types is None:
        return False
    kinds = np.asarray(types)
    same = (kinds[1:] == kinds[:-1]) & _adjacent_equal(columns.filled("key", ""))
    equal = np.zeros(len(kinds) - 1, np.bool_)
    used = np.bincount(kinds)
    for kind, name in _ARMS.items():
        if kind < len(used) and used[kind]:
            of_kind = same & (kinds[1:] == kind)
            equal |= of_kind & _equal_values(columns, name, of_kind)
    return equal


def _equal_values(columns: _Compared, name: str, rows: Any) -> Any:
    """Return whether values equal the previous ones where *rows*; undefined elsewhere."""
    values = columns.column(name)
    if values is None or not values.null_count:
        return _adjacent_equal(values)
    equal = pc.equal(values[1:], values[:-1])
    if (rows & ~validity(equal)).any():
        return _adjacent_equal(_filled(values, _ZEROS[name]))  # a zero may be encoded as null
    return truths(equal)


def _equal_exemplars(columns: _Compared, rows: int) -> Any:
    kinds = np.zeros(rows, np.int8)
    same = np.ones(rows - 1, np.bool_)
    for kind, name in ((2, "double_value"), (1, "int_value")):
        array = columns.column(name)
        if array is None:
            continue
        there = validity(array)
        kinds[there] = kind
        of_kind = there[1:] & (kinds[1:] == kind)
        same &= ~of_kind | _adjacent_equal(pc.fill_null(array, 0))
    return same & (kinds[1:] == kinds[:-1])
