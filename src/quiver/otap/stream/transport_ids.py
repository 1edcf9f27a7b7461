"""
Ids as they travel ↔ plain ids.

On the wire an `id` is the difference to the one before (*delta*), and a `parent_id` the difference to the one before
when the row before has an equal key, else the parent itself (*quasi-delta*). A field's metadata may say how it is
written; where it says nothing, the column's default holds. All arithmetic is modulo the width of the id.
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
        payload: which table it is.
        batch: its rows.
        decoded: what `plain_ids` decoded when it made *batch*.

    Raises:
        ConversionError: a column has a type that the table does not have, or is there twice; as `plain_ids`.
    """
    known: Flat = dict(decoded or {})
    return flat_columns(TABLES[payload], plain_ids(payload, batch, known), known)


def plain_ids(payload: int, batch: pa.RecordBatch, decoded: Flat | None = None) -> pa.RecordBatch:
    """
    Return the table with plain ids, which its fields' metadata then say.

    *decoded* is where columns go that lose their dictionary on the way: ids, and what neighbours are compared by.

    Raises:
        ConversionError: an encoding is not known, or an id column has another type than the table's.
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
    # A null struct has null children, also where the field says that it has none.
    fields = [child.with_nullable(child.nullable or array.null_count > 0) for child in fields]
    mask = array.is_null() if array.null_count else None
    made = pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    return made, pa.field(field.name, made.type, nullable=field.nullable, metadata=field.metadata)


def _decoded(
    table: Table, column: Column, array: pa.Array, field: pa.Field, batch: pa.RecordBatch | None, known: Flat
) -> tuple[pa.Array, pa.Field]:
    said = (field.metadata or {}).get(ENCODING, column.default.encode())
    values = plain_values(table, column, array)
    if said == b"delta":
        values = _running_sum(values)
    elif said == b"quasidelta" and batch is not None and column.name == "parent_id":
        values = _quasi_decoded(values, equal_to_previous(table, batch, known))
    elif said != b"plain":
        raise ConversionError(f"{table.name}: column {column.name} has the encoding {said[:40]!r}, which is not known")
    known[column.name] = values
    if values is array:
        return array, field
    metadata = {**(field.metadata or {}), **PLAIN}
    return values, pa.field(field.name, values.type, nullable=field.nullable, metadata=metadata)


def _numbers(values: pa.Array) -> Any:
    filled = pc.fill_null(values, 0) if values.null_count else values
    return np.asarray(filled).astype(np.uint32, copy=False)  # no id is wider


def _narrowed(numbers: Any, like: pa.Array) -> pa.Array:
    width = np.uint16 if like.type == pa.uint16() else np.uint32
    mask = ~validity(like) if like.null_count else None
    return pa.array(numbers.astype(width), like.type, mask=mask)  # astype cuts to the width: modulo


def _running_sum(values: pa.Array) -> pa.Array:
    return _narrowed(np.cumsum(_numbers(values), dtype=np.uint32), values)


def _quasi_decoded(values: pa.Array, equal: Any) -> pa.Array:
    numbers = _numbers(values)
    if not len(numbers):
        return values
    sums = np.cumsum(numbers, dtype=np.uint32)
    starts = np.flatnonzero(~equal)
    # What was summed up before a run of equal keys began.
    before = (sums - numbers)[starts]
    return _narrowed(sums - np.repeat(before, np.diff(starts, append=len(numbers))), values)


def equal_to_previous(table: Table, batch: pa.RecordBatch, decoded: Flat | None = None) -> Any:
    """
    Return for each row whether its quasi-delta key equals that of the row before; for the first it does not.

    *decoded* is where the columns go that are compared, without their dictionaries.

    Raises:
        ConversionError: a key column has a type that the table does not have.
    """
    rows = batch.num_rows
    equal = np.zeros(rows, np.bool_)
    if rows < 2:
        return equal
    columns = _Compared(table, batch, {} if decoded is None else decoded)
    if table.family == "attributes":
        equal[1:] = _equal_attributes(columns)
    elif table.family == "events":
        equal[1:] = _neighbours(columns.filled("name", ""))
    elif table.family == "links":
        equal[1:] = _neighbours(columns.filled("trace_id", bytes(16)))
    else:
        equal[1:] = _equal_exemplars(columns, rows)
    return equal


class _Compared:
    """The columns that neighbours are compared by, each decoded once."""

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


def _neighbours(values: pa.Array | None) -> Any:
    """Return whether each value from the second on equals the one before; an absent column has equal zeros."""
    return True if values is None else truths(pc.equal(values[1:], values[:-1]))


def _equal_attributes(columns: _Compared) -> Any:
    types = columns.filled("type", 0)
    if types is None:
        return False
    kinds = np.asarray(types)
    same = (kinds[1:] == kinds[:-1]) & _neighbours(columns.filled("key", ""))
    equal = np.zeros(len(kinds) - 1, np.bool_)
    used = np.bincount(kinds)
    for kind, name in _ARMS.items():
        if kind < len(used) and used[kind]:
            of_kind = same & (kinds[1:] == kind)
            equal |= of_kind & _equal_values(columns, name, of_kind)
    return equal


def _equal_values(columns: _Compared, name: str, asked: Any) -> Any:
    """Return whether values equal the ones before where *asked*; elsewhere the answer means nothing."""
    values = columns.column(name)
    if values is None or not values.null_count:
        return _neighbours(values)
    equal = pc.equal(values[1:], values[:-1])
    if (asked & ~validity(equal)).any():
        return _neighbours(_filled(values, _ZEROS[name]))  # a zero may be written as null
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
        same &= ~of_kind | _neighbours(pc.fill_null(array, 0))
    return same & (kinds[1:] == kinds[:-1])
