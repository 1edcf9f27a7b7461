"""
From any Arrow type to one that Spark takes. Pure.

Spark checks every batch of a Python data source against one exact schema and knows neither dictionaries nor
unsigned integers, fixed-size binaries, views, large types or nanoseconds. Stored data stays as it is;
`store/segment/cast.py` casts batches for Spark to these types:

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
timestamp[ns], on request                      bigint: nanoseconds
duration, any unit                             interval day to second (microseconds)
time32, time64                                 time(9)
large, fixed-size and view lists               array
=============================================  ==================================================

Everything becomes nullable, at every depth. Spark has no type for months-days-nanos intervals and unions:
exclude them with the `columns` option.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from quiver.errors import UsageError
from quiver.store.segment.type_promotion import is_any_list

__all__ = ["spark_schema"]

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
        UsageError: two columns have one name, or a type has no counterpart in Spark.
    """
    if len(set(schema.names)) != len(schema.names):
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        raise UsageError(f"two columns are named {', '.join(twice)}; Spark cannot tell them apart, use mode bundles")
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
    if is_any_list(kind):
        return pa.list_(pa.field("element", _spark_type(kind.value_type, f"{where}.element", nanos)))
    raise UsageError(
        f"column {where} is {kind}, which Spark does not support; exclude it with columns, or use mode bundles"
    )


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
    if pa.types.is_decimal(kind) and kind.scale <= _DECIMAL_DIGITS_MAX:
        # A type with more digits than Spark's may have values that fit. Others are rejected when they are read.
        return pa.decimal128(min(kind.precision, _DECIMAL_DIGITS_MAX), kind.scale)
    return None
