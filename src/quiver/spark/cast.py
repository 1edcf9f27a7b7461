"""
From any Arrow type to one that Spark takes. Pure.

Spark checks every batch of a Python data source against one exact schema and knows neither dictionaries nor
unsigned integers, fixed-size binaries, views, large types or nanoseconds. What is stored stays as it is;
what crosses to Spark is cast here:

=============================================  ==================================================
stored                                         for Spark
=============================================  ==================================================
uint8, uint16, uint32, uint64                  int16, int32, int64, decimal(20, 0)
float16                                        float
dictionary<…, T>, run_end_encoded<…, T>        T, at any depth (run ends at the top only)
large and view strings and binaries            string, binary
fixed-size binary                              binary
timestamp, any unit, with a zone               timestamp: microseconds, UTC
timestamp, any unit, without a zone            timestamp_ntz: microseconds
timestamp[ns], when asked for                  bigint: nanoseconds
duration, any unit                             interval day to second (microseconds)
time32, time64                                 time(9)
large, fixed-size and view lists               array
=============================================  ==================================================

Everything becomes nullable, at every depth. Months-days-nanos intervals and unions have no place in Spark:
leave them out with the `columns` option.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from quiver.errors import WrongUse

__all__ = ["cast_batch", "merge_schemas", "spark_schema"]

_PLAIN = (
    pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_float32, pa.types.is_float64,
    pa.types.is_decimal128, pa.types.is_string, pa.types.is_binary, pa.types.is_date32, pa.types.is_null,
)  # fmt: skip

_UNSIGNED = {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}

_DECIMAL_DIGITS_MAX = 38


def spark_schema(
    schema: pa.Schema, *, columns: Iterable[str] | None = None, nanos_as_bigint: bool = False
) -> pa.Schema:
    """
    Return *schema*, or the named *columns* of it in that order, with types that Spark takes.

    Raises:
        WrongUse: two columns have one name, or a type has no counterpart in Spark.
    """
    if len(set(schema.names)) != len(schema.names):
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        raise WrongUse(f"two columns are named {', '.join(twice)}; Spark cannot tell them apart, use mode bundles")
    wanted = schema.names if columns is None else [name for name in columns if name in schema.names]
    return pa.schema([pa.field(name, _spark_type(schema.field(name).type, name, nanos_as_bigint)) for name in wanted])


def _spark_type(kind: pa.DataType, where: str, nanos: bool) -> pa.DataType:  # noqa: FBT001
    if any(check(kind) for check in _PLAIN):
        return kind
    scalar = _spark_scalar(kind, nanos)
    if scalar is not None:
        return scalar
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _spark_type(kind.value_type, where, nanos)
    if pa.types.is_struct(kind):
        return pa.struct(
            [pa.field(child.name, _spark_type(child.type, f"{where}.{child.name}", nanos)) for child in kind]
        )
    if pa.types.is_map(kind):
        return pa.map_(
            _spark_type(kind.key_type, f"{where}.key", nanos), _spark_type(kind.item_type, f"{where}.value", nanos)
        )
    if _is_any_list(kind):
        return pa.list_(pa.field("element", _spark_type(kind.value_type, f"{where}.element", nanos)))
    raise WrongUse(f"column {where} is {kind}, which Spark cannot hold; leave it out with columns, or use mode bundles")


def _spark_scalar(kind: pa.DataType, nanos: bool) -> pa.DataType | None:  # noqa: FBT001
    if pa.types.is_unsigned_integer(kind):
        return _UNSIGNED[kind.bit_width]
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        if nanos and kind.unit == "ns":
            return pa.int64()
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_time(kind):
        return pa.time64("ns")
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_decimal(kind) and kind.precision <= _DECIMAL_DIGITS_MAX:
        return pa.decimal128(kind.precision, kind.scale)
    return None


def merge_schemas(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """
    Return the columns of all *schemas*, in order of first appearance, each wide enough for all of them.

    The schemas are such as `spark_schema` returns. Integers widen to integers, integers and floats to double,
    structs gain fields; anything else that differs is a conflict.

    Raises:
        WrongUse: a column has types that do not go together.
    """
    kinds: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            known = kinds.get(field.name)
            kinds[field.name] = field.type if known is None else _wider(known, field.type, field.name)
    return pa.schema([pa.field(name, kind) for name, kind in kinds.items()])


def _wider(left: pa.DataType, right: pa.DataType, where: str) -> pa.DataType:
    if left.equals(right) or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if pa.types.is_struct(left) and pa.types.is_struct(right):
        merged = merge_schemas([pa.schema(list(left)), pa.schema(list(right))])
        return pa.struct(list(merged))
    if pa.types.is_map(left) and pa.types.is_map(right):
        key = _wider(left.key_type, right.key_type, f"{where}.key")
        return pa.map_(key, _wider(left.item_type, right.item_type, f"{where}.value"))
    if pa.types.is_list(left) and pa.types.is_list(right):
        return pa.list_(pa.field("element", _wider(left.value_type, right.value_type, f"{where}.element")))
    number = _wider_number(left, right)
    if number is None:
        raise WrongUse(
            f"column {where} is {left} in one segment and {right} in another, and nothing holds both; "
            "leave it out with columns, give a schema, or use mode bundles"
        )
    return number


def _wider_number(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pa.types.is_signed_integer(left) and pa.types.is_signed_integer(right):
        return left if left.bit_width >= right.bit_width else right
    floats = [pa.types.is_floating(kind) for kind in (left, right)]
    if all(floats) or (any(floats) and any(pa.types.is_signed_integer(kind) for kind in (left, right))):
        return pa.float64()
    digits = [_digits(kind) for kind in (left, right)]
    if any(pa.types.is_decimal128(kind) for kind in (left, right)) and None not in digits:
        scale = max(part[1] for part in digits if part is not None)
        whole = max(part[0] for part in digits if part is not None)
        if whole + scale <= _DECIMAL_DIGITS_MAX:
            return pa.decimal128(whole + scale, scale)
    return None


def _digits(kind: pa.DataType) -> tuple[int, int] | None:
    if pa.types.is_decimal128(kind):
        return kind.precision - kind.scale, kind.scale
    if pa.types.is_signed_integer(kind):
        return {8: 3, 16: 5, 32: 10, 64: 19}[kind.bit_width], 0
    return None


def cast_batch(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """
    Return *batch* with exactly the schema *target*: order, types, nullability.

    Columns that *batch* has not are null, columns that *target* has not are left out. Columns that fit are
    taken over without copying.

    Raises:
        WrongUse: a value does not fit the declared type.
    """
    if batch.schema.equals(target) and all(field.nullable for field in target):
        return batch
    positions = {name: i for i, name in reversed(list(enumerate(batch.schema.names)))}
    columns = []
    for field in target:
        position = positions.get(field.name)
        column = (
            pa.nulls(batch.num_rows, field.type)
            if position is None
            else _cast_column(batch.column(position), field.type, field.name)
        )
        if not field.nullable and column.null_count:
            raise WrongUse(f"column {field.name} is declared not null, but {column.null_count} values are missing")
        columns.append(column)
    if not columns:
        # Arrow would forget how many rows there are.
        return batch.select([])
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _cast_column(array: pa.Array, target: pa.DataType, name: str) -> pa.Array:
    if array.type.equals(target):
        return array
    try:
        # Only times may lose precision: everything else that does not fit is an error, never a wrong value.
        return _plain(array).cast(options=pc.CastOptions(target_type=target, allow_time_truncate=True))
    except pa.ArrowException as error:
        raise WrongUse(f"column {name} is {array.type} and does not fit {target}: {error}") from error


def _plain(array: pa.Array) -> pa.Array:
    """
    Undo the encodings that Arrow's own cast does not undo, or gets wrong.
    """
    kind = array.type
    if pa.types.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(array))
    if pa.types.is_dictionary(kind) and pa.types.is_nested(kind.value_type):
        return _plain(array.dictionary.take(array.indices))
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        # Arrow's cast from a list view to a list returns empty lists.
        lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int32())
        ends = pc.cumulative_sum_checked(lengths)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        return pa.ListArray.from_arrays(offsets, array.flatten(), mask=array.is_null())
    return array


def _is_any_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )
