"""
Ids as they travel ↔ plain ids.

On the wire an `id` is the difference to the one before (*delta*), and a `parent_id` the difference to the one before
when the row before has an equal key, else the parent itself (*quasi-delta*). A field's metadata may say how it is
written; where it says nothing, the column's default holds. All arithmetic is modulo the width of the id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quiver.otap.payload_arrays import PLAIN, plain_values
from quiver.otap.payload_schema import ENCODING, TABLES, Column, Table
from quiver.otap.refused import Refused

__all__ = ["equal_to_previous", "plain_ids"]

_ARMS = {1: "str", 2: "int", 3: "double", 4: "bool", 7: "bytes"}
_ZEROS = {"str": "", "int": 0, "double": 0.0, "bool": False, "bytes": b""}


def plain_ids(payload: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """
    Return the table with plain ids, which its fields' metadata then say.

    Raises:
        Refused: an encoding is not known, or an id column has another type than the table's.
    """
    table = TABLES[payload]
    arrays = list(batch.columns)
    fields = list(batch.schema)
    for column in table.columns:
        if not column.default:
            continue
        at = batch.schema.get_field_index(column.struct or column.name)
        if at < 0:
            continue
        if column.struct:
            arrays[at], fields[at] = _in_struct(table, column, arrays[at], fields[at])
        else:
            arrays[at], fields[at] = _decoded(table, column, arrays[at], fields[at], batch)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _in_struct(table: Table, column: Column, array: pa.Array, field: pa.Field) -> tuple[pa.Array, pa.Field]:
    if not pa.types.is_struct(array.type):
        raise Refused(f"{table.name}: column {column.struct} is {array.type}, not a struct")
    inner = array.type.get_field_index(column.leaf)
    if inner < 0:
        return array, field
    children = array.flatten()
    fields = [array.type.field(at) for at in range(array.type.num_fields)]
    # A null struct has null children, also where the field says that it has none.
    fields = [child.with_nullable(child.nullable or array.null_count > 0) for child in fields]
    children[inner], fields[inner] = _decoded(table, column, children[inner], fields[inner], None)
    mask = array.is_null() if array.null_count else None
    made = pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    return made, pa.field(field.name, made.type, nullable=field.nullable, metadata=field.metadata)


def _decoded(
    table: Table, column: Column, array: pa.Array, field: pa.Field, batch: pa.RecordBatch | None
) -> tuple[pa.Array, pa.Field]:
    said = (field.metadata or {}).get(ENCODING, column.default.encode())
    values = plain_values(table, column, array)
    if said == b"delta":
        values = _running_sum(values)
    elif said == b"quasidelta" and batch is not None and column.name == "parent_id":
        values = _quasi_decoded(values, equal_to_previous(table, batch))
    elif said != b"plain":
        raise Refused(f"{table.name}: column {column.name} has the encoding {said[:40]!r}, which is not known")
    metadata = {**(field.metadata or {}), **PLAIN}
    return values, pa.field(field.name, values.type, nullable=field.nullable, metadata=metadata)


def _numbers(values: pa.Array) -> Any:
    return np.asarray(pc.fill_null(values, 0)).astype(np.uint64)


def _narrowed(numbers: Any, like: pa.Array) -> pa.Array:
    width = np.uint16 if like.type == pa.uint16() else np.uint32
    mask = np.asarray(like.is_null()) if like.null_count else None
    return pa.array(numbers.astype(width), like.type, mask=mask)  # astype cuts to the width: modulo


def _running_sum(values: pa.Array) -> pa.Array:
    return _narrowed(np.cumsum(_numbers(values), dtype=np.uint64), values)


def _quasi_decoded(values: pa.Array, equal: Any) -> pa.Array:
    numbers = _numbers(values)
    if not len(numbers):
        return values
    sums = np.cumsum(numbers, dtype=np.uint64)
    start = np.maximum.accumulate(np.where(equal, 0, np.arange(len(numbers))))
    return _narrowed(sums - sums[start] + numbers[start], values)


def equal_to_previous(table: Table, batch: pa.RecordBatch) -> Any:
    """
    Return for each row whether its quasi-delta key equals that of the row before; for the first it does not.

    Raises:
        Refused: a key column has a type that the table does not have.
    """
    rows = batch.num_rows
    equal = np.zeros(rows, np.bool_)
    if rows < 2:
        return equal
    if table.family == "attributes":
        equal[1:] = _equal_attributes(table, batch)
    elif table.family == "events":
        equal[1:] = _neighbours(_column(table, batch, "name", ""))
    elif table.family == "links":
        equal[1:] = _neighbours(_column(table, batch, "trace_id", bytes(16)))
    else:
        equal[1:] = _equal_exemplars(table, batch)
    return equal


def _column(table: Table, batch: pa.RecordBatch, name: str, unset: Any) -> pa.Array | None:
    at = batch.schema.get_field_index(name)
    if at < 0:
        return None
    values = plain_values(table, table.by_name[name], batch.column(at))
    if pa.types.is_fixed_size_binary(values.type):
        values = values.cast(pa.binary())
    return pc.fill_null(values, unset) if values.null_count else values


def _neighbours(values: pa.Array | None) -> Any:
    """
    Return whether each value from the second on equals the one before; an absent column has equal zeros.
    """
    return True if values is None else np.asarray(pc.equal(values[1:], values[:-1]))


def _equal_attributes(table: Table, batch: pa.RecordBatch) -> Any:
    types = _column(table, batch, "type", 0)
    if types is None:
        return False
    kinds = np.asarray(types)
    same = _neighbours(types) & _neighbours(_column(table, batch, "key", ""))
    equal = np.zeros(len(kinds) - 1, np.bool_)
    used: Mapping[int, int] = dict.fromkeys(np.unique(kinds).tolist(), 0)
    for kind, name in _ARMS.items():
        if kind in used:
            equal |= same & (kinds[1:] == kind) & _neighbours(_column(table, batch, name, _ZEROS[name]))
    return equal


def _equal_exemplars(table: Table, batch: pa.RecordBatch) -> Any:
    kinds = np.zeros(batch.num_rows, np.int8)
    same = np.ones(batch.num_rows - 1, np.bool_)
    for kind, name in ((2, "double_value"), (1, "int_value")):
        at = batch.schema.get_field_index(name)
        if at < 0:
            continue
        array = plain_values(table, table.by_name[name], batch.column(at))
        there = np.asarray(array.is_valid())
        kinds[there] = kind
        of_kind = there[1:] & (kinds[1:] == kind)
        same &= ~of_kind | _neighbours(pc.fill_null(array, 0))
    return same & (kinds[1:] == kinds[:-1])
