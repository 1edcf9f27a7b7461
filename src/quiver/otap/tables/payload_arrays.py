"""
One OTAP table ↔ plain columns, as arrays or lists: omitted columns, dictionaries, the meaning of nulls.

A column with the default in every row is omitted. A column with few distinct values becomes a dictionary with an index
of 8 or 16 bits; with more values, or hardly any value twice in many rows, it is plain. Ids are plain, as their
metadata state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quiver.otap.conversion_errors import ConversionError
from quiver.otap.tables.payload_schema import ENCODING, Column, Table

__all__ = [
    "COLUMN_BYTES_MAX",
    "INDEX_TYPES",
    "PLAIN",
    "PRESENCE",
    "Flat",
    "Lists",
    "array_of",
    "batch_of",
    "build_batch",
    "default_array",
    "flat_columns",
    "is_all_default",
    "lists_of",
    "plain_values",
]

Lists = dict[str, list[Any]]
"""Column name → its values; all have the same length."""

Flat = dict[str, pa.Array]
"""Column name → its values without dictionaries; all have the same length."""

PRESENCE = ("positive", "negative")
"""Structs that may be null in some rows, which a list of booleans states."""

PLAIN = {ENCODING: b"plain"}

INDEX_TYPES = ((8, 255, pa.uint8()), (16, 65_535, pa.uint16()))
"""The bits of a dictionary's index, the maximum number of values, and its type."""


_SAMPLE_ROWS_MIN, _SAMPLE_VALUES_MIN = 128, 24
_DISTINCT_SHARE = 15 / 16
_RANDOM = np.random.default_rng(0).random(4096)
_OFFSET_BYTES, _INDEX_BYTES_MAX = 4, 2

COLUMN_BYTES_MAX = 128 * 1024 * 1024
"""The maximum size of a column's texts without their dictionary."""

# -- columns → Arrow -----------------------------------------------------------------------------------------


def build_batch(table: Table, lists: Mapping[str, list[Any]]) -> pa.RecordBatch | None:
    """
    Return the rows as a batch; None if there are none.

    Columns with `kinds` only have the values of the rows of these kinds.

    Raises:
        ConversionError: a value cannot be represented, such as an id of invalid length.
    """
    if not lists["parent_id" if "parent_id" in lists else "schema_url"]:
        return None
    arrays = {column.name: _array(column, lists) for column in table.columns}
    arrays |= {struct: pa.array(lists[struct], pa.bool_()) for struct in PRESENCE if struct in lists}
    return batch_of(table, arrays)


def batch_of(table: Table, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """
    Return plain columns as a batch, without columns that are all default, and with dictionaries where they save space.

    A missing column is all default. Columns with `kinds` are null in the rows of other kinds; those of `PRESENCE` are
    booleans.
    """
    fields: list[pa.Field] = []
    arrays: list[pa.Array] = []
    for struct, inside in table.by_struct.items():
        present = columns.get(struct) if struct in PRESENCE else None
        if struct in PRESENCE and (present is None or not present.true_count):
            continue
        kept = [
            column
            for column in inside
            if column.name in columns
            and (present is not None or column.required or not is_all_default(column, columns[column.name]))
        ]
        children = [_dictionary(column, columns[column.name]) for column in kept]
        named = [_field(column, array) for column, array in zip(kept, children, strict=True)]
        if not struct:
            fields += named
            arrays += children
        elif kept:
            mask = pc.invert(present) if present is not None else None
            arrays.append(pa.StructArray.from_arrays(children, fields=named, mask=mask))
            fields.append(pa.field(struct, arrays[-1].type))
    order = sorted(range(len(fields)), key=lambda at: table.places[fields[at].name])
    return pa.RecordBatch.from_arrays([arrays[at] for at in order], schema=pa.schema([fields[at] for at in order]))


def _array(column: Column, lists: Mapping[str, list[Any]]) -> pa.Array:
    array = array_of(column, lists[column.name])
    if not column.kinds:
        return array
    types = np.array(lists[f"{column.struct}.type" if column.struct else "type"], np.uint8)
    there = np.isin(types, column.kinds)
    return array.take(pa.array(np.cumsum(there) - 1, mask=~there))


def _field(column: Column, array: pa.Array) -> pa.Field:
    return pa.field(column.leaf, array.type, nullable=not column.required, metadata=PLAIN if column.default else None)


def is_all_default(column: Column, array: pa.Array) -> bool:
    """Return whether a plain column, without nulls that mean zero, may be omitted."""
    if array.null_count == len(array):
        return True
    if column.optional:
        return False
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_list(kind):
        offsets = np.frombuffer(array.buffers()[1], np.int32)
        return bool(offsets[array.offset] == offsets[array.offset + len(array)])
    if pa.types.is_boolean(kind):
        return not array.true_count
    if pa.types.is_fixed_size_binary(kind):
        return False
    if pa.types.is_floating(kind):
        # Compare bits: minus zero is a value that protobuf encodes.
        return not np.asarray(array).view(np.uint64).any()
    return not np.asarray(array.view(pa.int64()) if pa.types.is_temporal(kind) else array).any()


def array_of(column: Column, values: Sequence[Any]) -> pa.Array:
    """
    Return the values as a plain array of the column's type.

    Raises:
        ConversionError: a value does not fit the type.
    """
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return pa.array(np.array(values, np.uint64).view(np.int64)).view(kind)
    if pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        odd = next((value for value in values if value and len(value) != width), None)
        if odd is not None:
            raise ConversionError(f"a {column.leaf} has {len(odd)} bytes; OTAP requires {width}")
        unset = bytes(width) if column.required else None
        return pa.array([value or unset for value in values], kind)
    return pa.array(values, kind)


def _dictionary(column: Column, array: pa.Array) -> pa.Array:
    if not column.index_bits or array.null_count == len(array) or _is_mostly_distinct(array):
        return array
    encoded = array.dictionary_encode()
    for bits, most, index in INDEX_TYPES:
        if bits >= column.index_bits and len(encoded.dictionary) <= most:
            return pa.DictionaryArray.from_arrays(_narrowed(encoded.indices, index), encoded.dictionary)
    return array


def _is_mostly_distinct(array: pa.Array) -> bool:
    """
    Return whether many rows have hardly any value twice, by a sample.

    A dictionary of such values saves nothing, and each segment would merge it with those of its other batches. Few rows
    always get a dictionary: a schema that changes from batch to batch would be worse.
    """
    fixed = pa.types.is_primitive(array.type) or pa.types.is_fixed_size_binary(array.type)
    width = array.type.byte_width if fixed else _OFFSET_BYTES
    # In a plain column, a null is as wide as a value; in a dictionary, as an index. Plain may be twice as large.
    in_dictionary = (len(array) - array.null_count) * width + len(array) * _INDEX_BYTES_MAX
    if len(array) < 2 * _SAMPLE_ROWS_MIN or len(array) * width > 2 * in_dictionary:
        return False
    more = min(max(len(array) // 8, _SAMPLE_ROWS_MIN), len(_RANDOM))
    for rows in (_SAMPLE_ROWS_MIN, more):  # most columns with few values show it in few rows
        # One row at random of each of as many equal parts: values often repeat at a constant distance.
        places = (np.arange(rows) + _RANDOM[:rows]) * (len(array) / rows)
        sample = array.take(pa.array(places.astype(np.int64)))
        values = len(sample) - sample.null_count
        if values < _SAMPLE_VALUES_MIN or len(sample.unique()) - (sample.null_count > 0) <= values * _DISTINCT_SHARE:
            return False
    return True


def _narrowed(indices: Any, index: pa.DataType) -> pa.Array:
    """Return the indices of a dictionary, which fit, as *index*. Arrow's cast would check each of them."""
    valid, data = indices.buffers()
    numbers = np.frombuffer(data, np.int32, count=len(indices)).astype(index.to_pandas_dtype())
    return pa.Array.from_buffers(index, len(indices), [valid, pa.py_buffer(numbers)], indices.null_count)


# -- Arrow → lists -----------------------------------------------------------------------------------------


def lists_of(table: Table, batch: pa.RecordBatch) -> Lists:
    """
    Return every column of the table as a decoded list, with defaults for nulls and omitted columns.

    Nulls that mean unset stay None. Unknown columns are skipped.

    Raises:
        ConversionError: a column has the wrong type or is duplicated.
    """
    rows = batch.num_rows
    found = flat_columns(table, batch)
    lists: Lists = {}
    for column in table.columns:
        if column.struct in PRESENCE and column.struct not in lists:
            there = found.get(column.struct)
            lists[column.struct] = [False] * rows if there is None else there.to_pylist()
        array = found.get(column.name)
        lists[column.name] = _defaults(column, rows) if array is None else _values(column, array)
    return lists


def flat_columns(table: Table, batch: pa.RecordBatch, decoded: Mapping[str, pa.Array] | None = None) -> Flat:
    """
    Return the existing columns by name, without dictionaries; children of structs are named like `resource.id`.

    A null struct has null children; for those of `PRESENCE`, a column of booleans states which structs are not null.
    Columns in *decoded* are not decoded again.

    Raises:
        ConversionError: a column has the wrong type or is duplicated.
    """
    top = _children(table, batch)
    structs: dict[str, dict[str, pa.Array]] = {"": top}
    found: Flat = {}
    for column in table.columns:
        struct = column.struct
        if struct not in structs:
            structs[struct] = _struct(table, struct, top)
            if struct in PRESENCE and struct in top:
                found[struct] = top[struct].is_valid()
        array = structs[struct].get(column.leaf)
        if array is not None:
            known = decoded.get(column.name) if decoded else None
            found[column.name] = plain_values(table, column, array) if known is None else known
    return found


def default_array(column: Column, rows: int) -> pa.Array:
    """Return the values of an omitted column."""
    kind = column.type
    if column.optional or (pa.types.is_fixed_size_binary(kind) and not column.required):
        return pa.nulls(rows, kind)
    if pa.types.is_temporal(kind):
        return pa.repeat(pa.scalar(0, pa.int64()), rows).view(kind)
    zero: Any = [] if pa.types.is_list(kind) else 0
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        zero = "" if pa.types.is_string(kind) else b""
    elif pa.types.is_fixed_size_binary(kind):
        zero = bytes(kind.byte_width)
    elif pa.types.is_boolean(kind):
        zero = False
    return pa.repeat(pa.scalar(zero, kind), rows) if rows else pa.array([], kind)


def _children(table: Table, holder: Any) -> dict[str, pa.Array]:
    """Return the columns of a batch, or of a struct array, by name; a null struct has null children."""
    if isinstance(holder, pa.RecordBatch):
        names, arrays = holder.schema.names, holder.columns
    else:
        names, arrays = [holder.type.field(at).name for at in range(holder.type.num_fields)], holder.flatten()
    if len(set(names)) != len(names):
        raise ConversionError(f"{table.name}: duplicate column: {', '.join(sorted(names))[:200]}")
    return dict(zip(names, arrays, strict=True))


def _struct(table: Table, name: str, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    array = columns.get(name)
    if array is None:
        return {}
    if not pa.types.is_struct(array.type):
        raise ConversionError(f"{table.name}: column {name} is {array.type}, not a struct")
    return _children(table, array)


def _defaults(column: Column, rows: int) -> list[Any]:
    kind = column.type
    if column.optional:
        return [None] * rows
    if pa.types.is_list(kind):
        return [()] * rows
    if pa.types.is_fixed_size_binary(kind):
        return [b""] * rows
    if pa.types.is_string(kind):
        return [""] * rows
    if pa.types.is_boolean(kind):
        return [False] * rows
    return [0.0 if pa.types.is_floating(kind) else 0] * rows


def _values(column: Column, array: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_list(kind):
        return _list_values(array)
    if column.optional:
        return array.to_pylist()
    if pa.types.is_fixed_size_binary(kind):
        zero = bytes(kind.byte_width)
        return [b"" if value is None or value == zero else value for value in array.to_pylist()]
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        numbers = pc.fill_null(array.view(pa.int64()), 0)
        return np.asarray(numbers).view(np.uint64).tolist()
    if pa.types.is_string(kind):
        return pc.fill_null(array, "").to_pylist()
    if pa.types.is_boolean(kind):
        return pc.fill_null(array, False).to_pylist()
    return np.asarray(pc.fill_null(array, 0)).tolist()


def plain_values(table: Table, column: Column, array: pa.Array) -> pa.Array:
    """
    Return the column without its dictionary.

    Raises:
        ConversionError: its values are not of the column's type.
    """
    if pa.types.is_dictionary(array.type):
        if pa.types.is_list(column.type) or not _same(array.type.value_type, column.type):
            raise ConversionError(f"{table.name}: column {column.name} is {array.type}, not {column.type}")
        _bound_decoded(table, column, array)
        return array.dictionary_decode()
    if not _same(array.type, column.type):
        raise ConversionError(f"{table.name}: column {column.name} is {array.type}, not {column.type}")
    return array


def _bound_decoded(table: Table, column: Column, array: pa.Array) -> None:
    """Check the decoded size: a long value in a dictionary takes four bytes a row, and its length when decoded."""
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return
    if array.dictionary.nbytes * len(array) <= COLUMN_BYTES_MAX:
        return  # below the limit even with the longest value in every row
    size = pc.sum(pc.binary_length(array.dictionary).cast(pa.int64()).take(array.indices)).as_py() or 0
    if size > COLUMN_BYTES_MAX:
        raise ConversionError(f"{table.name}: column {column.name} takes {size} bytes; the limit is {COLUMN_BYTES_MAX}")


def _same(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_timestamp(wanted):
        return pa.types.is_timestamp(found) and found.unit == wanted.unit
    if pa.types.is_list(wanted) and pa.types.is_list(found):
        inner, asked = found.value_type, wanted.value_type
        if pa.types.is_struct(asked):
            known = {field.name: field.type for field in asked}
            return pa.types.is_struct(inner) and all(known.get(field.name) == field.type for field in inner)
        return bool(inner == asked)
    return bool(found == wanted)


def _list_values(array: pa.Array) -> list[Any]:
    """Return lists with zeros for null items: one producer encodes zeros as nulls."""
    lists = array.to_pylist()
    if array.null_count == 0 and array.flatten().null_count == 0 and not pa.types.is_struct(array.type.value_type):
        return lists
    return [[0 if item is None else item for item in items or ()] for items in lists]
