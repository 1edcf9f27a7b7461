"""
The columns of a table and those of a batch → the columns to write. Pure.

A table only grows: a batch may add columns, also inside structs, and leave out columns. It never changes the type of a
column that exists, except where the format can widen it.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from quiver.errors import UsageError
from quiver.store.segment.type_promotion import common_type, is_any_list

__all__ = ["check_storable", "grown_schema", "is_same_type", "never", "nullable_schema"]

_DECIMAL_DIGITS_MAX = 38

Widens = Callable[[pa.DataType, pa.DataType], bool]
"""Whether a format can change a column from one type to another without writing its files again."""


def never(old: pa.DataType, new: pa.DataType) -> bool:  # noqa: ARG001 - a `Widens`
    """Return False: the format changes no types."""
    return False


def nullable_schema(schema: pa.Schema) -> pa.Schema:
    """Return *schema* with columns and fields that may be null: that one batch has no nulls says little of the next."""
    return pa.schema([pa.field(field.name, _nullable(field.type)) for field in schema])


def _nullable(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
    if is_any_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)))
    if types.is_map(kind):
        return pa.map_(kind.key_type, _nullable(kind.item_type))
    return kind


def grown_schema(
    table: str, existing: pa.Schema, incoming: pa.Schema, *, widens: Widens = never, may_change: bool = True
) -> pa.Schema:
    """
    Return the columns of *table* after a batch with the columns *incoming*: the existing ones, then the new ones.

    *may_change* says whether the table may get new columns.

    Raises:
        UsageError: a column has another type than before, or has to be added although *may_change* is False.
    """
    fields = []
    for field in existing:
        position = incoming.get_field_index(field.name)
        if position < 0:
            fields.append(field)
            continue
        kind = _grown(f"{table}.{field.name}", field.type, incoming.field(position).type, widens)
        fields.append(field if is_same_type(kind, field.type) else field.with_type(kind))
    fields += [field for field in incoming if field.name not in existing.names]
    grown = pa.schema(fields)
    if not may_change:
        changed = [
            field.name
            for number, field in enumerate(grown)
            if number >= len(existing) or not is_same_type(field.type, existing.field(number).type)
        ]
        if changed:
            raise UsageError(
                f"table {table}: the batch has other columns than the table ({', '.join(changed)}), and "
                "schema_changes: refuse does not add them; add them to the table, or drop them with a processor"
            )
    return grown


def _grown(where: str, old: pa.DataType, new: pa.DataType, widens: Widens) -> pa.DataType:
    types = pa.types
    if is_same_type(old, new):
        return old
    if types.is_struct(old) and types.is_struct(new):
        fields = []
        for field in old:
            position = new.get_field_index(field.name)
            kind = field.type
            if position >= 0:
                kind = _grown(f"{where}.{field.name}", kind, new.field(position).type, widens)
            fields.append(field.with_type(kind))
        names = {field.name for field in old}
        return pa.struct([*fields, *(field for field in new if field.name not in names)])
    if is_any_list(old) and is_any_list(new):
        return pa.list_(old.value_field.with_type(_grown(f"{where}.element", old.value_type, new.value_type, widens)))
    if types.is_map(old) and types.is_map(new):
        item = old.item_field.with_type(_grown(f"{where}.value", old.item_type, new.item_type, widens))
        return pa.map_(_grown(f"{where}.key", old.key_type, new.key_type, never), item)
    try:
        common = common_type([old, new], where)
    except UsageError:
        common = None
    if common is not None and is_same_type(common, old):
        return old  # the values fit
    if common is not None and widens(old, common):
        return common
    raise UsageError(
        f"column {where} of the table is {old}, and the batch has {new}: the type of a column never changes; "
        "write it under another name, or cast it with a processor"
    )


def check_storable(table: str, schema: pa.Schema) -> None:
    """
    Check that every column of *schema* has a type that tables can store.

    Raises:
        UsageError: one has not.
    """
    for field in schema:
        found = _not_storable(field.type)
        if found is not None:
            raise UsageError(
                f"column {table}.{field.name} has the type {found}, which tables cannot store; cast it with a processor"
            )


def _not_storable(kind: pa.DataType) -> pa.DataType | None:
    """Return the type inside *kind* that cannot be stored, if any."""
    types = pa.types
    inner: list[pa.DataType] = []
    if types.is_struct(kind):
        inner = [field.type for field in kind]
    elif is_any_list(kind):
        inner = [kind.value_type]
    elif types.is_map(kind):
        inner = [kind.key_type, kind.item_type]
    if inner:
        return next((found for found in map(_not_storable, inner) if found is not None), None)
    is_plain = _is_text(kind) or _is_binary(kind) or types.is_boolean(kind) or types.is_signed_integer(kind)
    is_number = types.is_float32(kind) or types.is_float64(kind)
    is_decimal = types.is_decimal(kind) and kind.precision <= _DECIMAL_DIGITS_MAX
    is_time = types.is_date32(kind) or (types.is_timestamp(kind) and kind.unit == "us")
    return None if is_plain or is_number or is_decimal or is_time else kind


def is_same_type(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether two types have the same values; names of list elements and nullability do not matter."""
    types = pa.types
    if types.is_struct(one) and types.is_struct(other):
        return [field.name for field in one] == [field.name for field in other] and all(
            is_same_type(field.type, other.field(number).type) for number, field in enumerate(one)
        )
    if is_any_list(one) and is_any_list(other):
        return is_same_type(one.value_type, other.value_type)
    if types.is_map(one) and types.is_map(other):
        return is_same_type(one.key_type, other.key_type) and is_same_type(one.item_type, other.item_type)
    if _is_text(one) or _is_binary(one):
        return _is_text(other) if _is_text(one) else _is_binary(other)
    return bool(one.equals(other))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))
