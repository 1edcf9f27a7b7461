"""
Schemas that drift → one schema that fits all of them: every column, each under the widest of its types. Pure.

Promotion to a wider type loses nothing, except that an integer next to a float becomes the nearest double. A decimal
that does not fit 76 digits is rejected when it is read: types that declare 76 digits seldom use so many.

==============================================  =======================================================
types in the bundles                            common type
==============================================  =======================================================
null, T                                         T
dictionary<…, T>, T; dictionaries that differ   T (equal dictionary types stay as they are)
run_end_encoded<…, T>, T                        T
signed integers; unsigned integers              the wider one
signed and unsigned integers                    the signed one that holds both; with uint64 decimal(20, 0)
integers or decimals, with floats               double
floats                                          the wider one
decimals, integers                              the decimal that has the digits of both; where these are more than
                                                76, 76 with the larger scale
strings; binaries                               large if one is large or a view
strings, binaries, fixed-size binaries          binary
timestamps (all with a zone, or all without)    the finest unit; UTC if zones differ
durations; times; dates                         the finest unit; date64
lists of any kind                               list, large_list if one is large; items widened
maps                                            keys and values widened
structs                                         all fields, each widened
==============================================  =======================================================

Any other difference is a conflict and is reported: text next to numbers, numbers next to booleans, times with a zone
next to times without.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from quiver.errors import UsageError

__all__ = ["columns_of", "common_schema", "common_type", "is_any_list"]

_UNITS = ("s", "ms", "us", "ns")
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
_DECIMAL128_DIGITS = 38
_DECIMAL256_DIGITS = 76


def common_schema(schemas: Iterable[pa.Schema], columns: Sequence[str] | None = None) -> pa.Schema:
    """
    Return the columns of all *schemas*, in order of first appearance, each wide enough for all of them.

    A column is nullable if it is nullable or missing in any schema. Metadata of a column stays if all agree on it.

    Args:
        schemas: those of the bundles; their order only affects the order of the columns.
        columns: only these, in this order; a conflict in another column does not matter then.

    Raises:
        UsageError: a column has types without a common type, two columns of a schema have the same name, or none of
            the schemas has a column of *columns*.
    """
    known = list(schemas)
    if columns is not None:
        return pa.schema(_chosen(known, columns))
    names = dict.fromkeys(name for schema in known for name in schema.names)
    return pa.schema([_field(name, known) for name in names])


def columns_of(schemas: Iterable[pa.Schema]) -> list[str]:
    """Return the names of all columns, in order of first appearance."""
    return list(dict.fromkeys(name for schema in schemas for name in schema.names))


def _chosen(schemas: list[pa.Schema], columns: Sequence[str]) -> list[pa.Field]:
    present = columns_of(schemas)
    for name in columns:
        if name not in present and present:
            raise UsageError(f"there is no column {name!r}; there are {', '.join(sorted(present))}")
        if columns.count(name) > 1:
            raise UsageError(f"column {name!r} is requested twice")
    return [_field(name, schemas) for name in columns]


def _field(name: str, schemas: list[pa.Schema]) -> pa.Field:
    found: list[pa.Field] = []
    for schema in schemas:
        places = schema.get_all_field_indices(name)
        if len(places) > 1:
            raise UsageError(f"two columns are named {name}, so a table cannot tell them apart; read complete bundles")
        if places:
            found.append(schema.field(places[0]))
    if not found:
        return pa.field(name, pa.null())
    joined = _joined(found, name)
    return joined if len(found) == len(schemas) else joined.with_nullable(True)


def _joined(fields: Sequence[pa.Field], where: str) -> pa.Field:
    first = fields[0]
    metadata = first.metadata if all(field.metadata == first.metadata for field in fields) else None
    kind = common_type([field.type for field in fields], where)
    return pa.field(first.name, kind, any(field.nullable for field in fields), metadata)


def common_type(kinds: Iterable[pa.DataType], where: str) -> pa.DataType:
    """
    Return the narrowest type that can represent the values of all *kinds*, by the table above, in any order.

    *where* is the column's name, for the error.

    Raises:
        UsageError: there is no such type.
    """
    different = _different(kinds)
    while len(different) > 1:
        plain = _different(map(_unwrapped, different))
        if plain == different:
            break
        different = plain
    if len(different) <= 1:
        return different[0] if different else pa.null()
    for wider in (_wider_number, _wider_bytes, _wider_time):
        found = wider(different)
        if found is not None:
            return found
    found = _wider_nested(different, where)
    if found is None:
        raise UsageError(
            f"column {where} is {different[0]} in some bundles and {different[1]} in others, and no type fits both; "
            "leave it out by naming the columns you need, or read complete bundles"
        )
    return found


def _different(kinds: Iterable[pa.DataType]) -> list[pa.DataType]:
    """Return each type once, in order of first appearance, without null, which fits any type."""
    found: list[pa.DataType] = []
    for kind in kinds:
        if not pa.types.is_null(kind) and not any(kind.equals(known) for known in found):
            found.append(kind)
    return found


def _unwrapped(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values below an encoding, or *kind* itself if it is not an encoding."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return kind.value_type
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    return kind


# Numbers.


def _wider_number(kinds: list[pa.DataType]) -> pa.DataType | None:
    types = pa.types
    if all(types.is_integer(kind) for kind in kinds):
        return _wider_integer(kinds)
    if all(types.is_floating(kind) for kind in kinds):
        return max(kinds, key=_bit_width)
    if not all(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) for kind in kinds):
        return None
    if any(types.is_floating(kind) for kind in kinds):
        return pa.float64()
    return _wider_decimal(kinds)


def _wider_integer(kinds: list[pa.DataType]) -> pa.DataType:
    signed = [kind for kind in kinds if pa.types.is_signed_integer(kind)]
    unsigned = [kind for kind in kinds if not pa.types.is_signed_integer(kind)]
    if not signed or not unsigned:
        return max(kinds, key=_bit_width)
    bits = max(2 * max(map(_bit_width, unsigned)), *map(_bit_width, signed))
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(bits) or pa.decimal128(20, 0)


def _wider_decimal(kinds: list[pa.DataType]) -> pa.DataType:
    digits = [_digits(kind) for kind in kinds]
    scale = max(scale for _, scale in digits)
    precision = min(max(whole for whole, _ in digits) + scale, _DECIMAL256_DIGITS)
    is_long = precision > _DECIMAL128_DIGITS or any(pa.types.is_decimal256(kind) for kind in kinds)
    return pa.decimal256(precision, scale) if is_long else pa.decimal128(precision, scale)


def _bit_width(kind: pa.DataType) -> int:
    width: int = kind.bit_width
    return width


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """Return how many digits there are before and after the decimal point."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return (20 if kind == pa.uint64() else _INTEGER_DIGITS[kind.bit_width]), 0


# Strings and binaries.


def _wider_bytes(kinds: list[pa.DataType]) -> pa.DataType | None:
    types = pa.types

    def is_text(kind: pa.DataType) -> bool:
        return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))

    def is_large(kind: pa.DataType) -> bool:
        return not (types.is_string(kind) or types.is_binary(kind) or types.is_fixed_size_binary(kind))

    def is_bytes(kind: pa.DataType) -> bool:
        binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
        return bool(binary or types.is_fixed_size_binary(kind) or is_text(kind))

    if not all(is_bytes(kind) for kind in kinds):
        return None
    wide = any(is_large(kind) for kind in kinds)
    if all(is_text(kind) for kind in kinds):
        return pa.large_string() if wide else pa.string()
    return pa.large_binary() if wide else pa.binary()


# Times.


def _wider_time(kinds: list[pa.DataType]) -> pa.DataType | None:
    types = pa.types
    if all(types.is_date(kind) for kind in kinds):
        return pa.date64()
    if all(types.is_timestamp(kind) for kind in kinds):
        zones = {kind.tz for kind in kinds}
        if None in zones and len(zones) > 1:
            return None
        return pa.timestamp(_finest(kinds), zones.pop() if len(zones) == 1 else "UTC")
    if all(types.is_duration(kind) for kind in kinds):
        return pa.duration(_finest(kinds))
    if all(types.is_time(kind) for kind in kinds):
        unit = _finest(kinds)
        return pa.time32(unit) if unit in {"s", "ms"} else pa.time64(unit)
    return None


def _finest(kinds: list[pa.DataType]) -> str:
    return max((kind.unit for kind in kinds), key=_UNITS.index)


# Nested types.


def is_any_list(kind: pa.DataType) -> bool:
    """Return whether *kind* is a list: of 32 or 64 bits, of fixed size, or a view."""
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _wider_nested(kinds: list[pa.DataType], where: str) -> pa.DataType | None:
    types = pa.types
    if all(types.is_struct(kind) for kind in kinds):
        return pa.struct(_struct_fields([list(kind) for kind in kinds], where))
    if all(types.is_map(kind) for kind in kinds):
        key = common_type([kind.key_type for kind in kinds], f"{where}.key")
        item = _joined([kind.item_field for kind in kinds], f"{where}.value")
        return pa.map_(key, item, keys_sorted=all(kind.keys_sorted for kind in kinds))
    if all(is_any_list(kind) for kind in kinds):
        item = _joined([kind.value_field for kind in kinds], f"{where}[]")
        is_large = any(types.is_large_list(kind) or types.is_large_list_view(kind) for kind in kinds)
        return pa.large_list(item) if is_large else pa.list_(item)
    return None


def _struct_fields(structs: Sequence[list[pa.Field]], where: str) -> list[pa.Field]:
    by_name: dict[str, list[pa.Field]] = {}
    for fields in structs:
        names = {field.name for field in fields}
        if len(names) != len(fields):
            raise UsageError(f"column {where} is a struct with two fields of the same name; read complete bundles")
        for field in fields:
            by_name.setdefault(field.name, []).append(field)
    joined = [_joined(found, f"{where}.{name}") for name, found in by_name.items()]
    return [field if len(by_name[field.name]) == len(structs) else field.with_nullable(True) for field in joined]
