"""
Columns of a message from Arrow arrays, with kernels: no Python values are created, except one for each distinct symbol.

=============================================  =================================================
Arrow                                          QWP
=============================================  =================================================
bool                                           BOOLEAN
int8, int16, uint8, uint16                     INT
int32, int64, uint32, uint64                   LONG
float16, float32 / float64                     FLOAT / DOUBLE
dictionary of text, or named in *symbols*      SYMBOL
text / binary                                  VARCHAR / BINARY
timestamp ns / us, s / ms                      TIMESTAMP_NANOS / TIMESTAMP / DATE
date32, date64                                 DATE
decimal32, decimal64 / decimal128 / decimal256  DECIMAL64 / DECIMAL128 / DECIMAL256
uuid, binary of 16 bytes                       UUID
lists of floats or integers, also of lists     DOUBLE_ARRAY, LONG_ARRAY
=============================================  =================================================

A field whose metadata has a type (`quiver.qwp.wire.decoded.TYPE_KEY`) gets that type, so that a decoded table can be
encoded unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from quiver.errors import UsageError
from quiver.qwp.wire.column_types import SENTINELS, ColumnType
from quiver.qwp.wire.columns import (
    ColumnData,
    array_column,
    boolean_column,
    bytes_column,
    decimal_column,
    fixed_column,
    geohash_column,
    symbol_column,
)
from quiver.qwp.wire.decoded import SCALE_KEY, TYPE_KEY

__all__ = ["Dictionaries", "columns_of_batch"]

_FIXED: dict[ColumnType, Any] = {
    ColumnType.BYTE: pa.int8(), ColumnType.SHORT: pa.int16(), ColumnType.INT: pa.int32(), ColumnType.LONG: pa.int64(),
    ColumnType.FLOAT: pa.float32(), ColumnType.DOUBLE: pa.float64(), ColumnType.TIMESTAMP: pa.timestamp("us"),
    ColumnType.DATE: pa.timestamp("ms"), ColumnType.TIMESTAMP_NANOS: pa.timestamp("ns"),
    ColumnType.CHAR: pa.uint16(), ColumnType.IPV4: pa.uint32(),
}  # fmt: skip
_BY_ARROW: dict[Any, ColumnType] = {
    pa.bool_(): ColumnType.BOOLEAN,
    pa.int8(): ColumnType.INT, pa.int16(): ColumnType.INT, pa.uint8(): ColumnType.INT, pa.uint16(): ColumnType.INT,
    pa.int32(): ColumnType.LONG, pa.int64(): ColumnType.LONG, pa.uint32(): ColumnType.LONG,
    pa.uint64(): ColumnType.LONG, pa.float16(): ColumnType.FLOAT, pa.float32(): ColumnType.FLOAT,
    pa.float64(): ColumnType.DOUBLE, pa.string(): ColumnType.VARCHAR, pa.large_string(): ColumnType.VARCHAR,
    pa.string_view(): ColumnType.VARCHAR, pa.binary(): ColumnType.BINARY, pa.large_binary(): ColumnType.BINARY,
    pa.binary_view(): ColumnType.BINARY, pa.date32(): ColumnType.DATE, pa.date64(): ColumnType.DATE,
    pa.binary(16): ColumnType.UUID,
}  # fmt: skip
_TIMESTAMPS = {"ns": ColumnType.TIMESTAMP_NANOS, "us": ColumnType.TIMESTAMP, "s": ColumnType.TIMESTAMP,
               "ms": ColumnType.DATE}  # fmt: skip
_DECIMALS = {
    32: (ColumnType.DECIMAL64, 8), 64: (ColumnType.DECIMAL64, 8), 128: (ColumnType.DECIMAL128, 16),
    256: (ColumnType.DECIMAL256, 32),
}  # fmt: skip
_WHOLE: dict[ColumnType, Any] = {
    ColumnType.BOOLEAN: types.is_boolean, ColumnType.UUID: types.is_fixed_size_binary,
    ColumnType.LONG256: types.is_fixed_size_binary,
}  # fmt: skip
"""Types that must match exactly: other values are not converted to them."""
_SHARED_VALUES_MAX = 10_000
Array = np.ndarray[Any, Any]


Dictionaries = dict[str, list[str] | None]
"""The values of a batch's dictionaries, by column, shared by its slices; None for one that each slice reads itself."""


def columns_of_batch(
    batch: Any, *, symbols: Collection[str] = (), at: str | None = None, dictionaries: Dictionaries | None = None
) -> list[ColumnData]:
    """
    Return the columns of the record batch *batch*: symbols first, then the others, the designated timestamp last.

    *symbols* names text columns to send as symbols. *at* names the column with the designated timestamp. A column of
    Arrow's type `null` has no QWP type and is omitted: the server treats it as null as well. Slices of one batch may
    share *dictionaries*, initially empty.

    Raises:
        UsageError: a type is not supported, a value does not fit, or no column is left.
    """
    first: list[ColumnData] = []
    others: list[ColumnData] = []
    last: list[ColumnData] = []
    for field, array in zip(batch.schema, batch.columns, strict=True):
        is_at = field.name == at
        if types.is_null(array.type) and field.name not in symbols and not is_at:
            continue
        try:
            if is_at:
                column = _designated(field, array)
            else:
                column = _column(field, array, as_symbol=field.name in symbols, dictionaries=dictionaries)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError) as error:
            raise UsageError(f"column {field.name}: {error}") from error
        (last if is_at else first if column.type is ColumnType.SYMBOL else others).append(column)
    if not (first or others or last):
        raise UsageError("every column has the type null, so there is nothing to send; cast one first")
    return first + others + last


def _designated(field: Any, array: Any) -> ColumnData:
    if types.is_timestamp(array.type) and array.type.unit == "ns":
        return _fixed("", ColumnType.TIMESTAMP_NANOS, array)
    if types.is_timestamp(array.type) or types.is_date(array.type):
        return _fixed("", ColumnType.TIMESTAMP, array)
    if types.is_int64(array.type):
        return _fixed("", ColumnType.TIMESTAMP_NANOS, array)  # as in rows: an integer is in nanoseconds
    raise UsageError(f"column {field.name}: {array.type} is not a time, so it cannot be the designated timestamp")


def _kind_of(field: Any, array: Any, *, as_symbol: bool) -> ColumnType | None:
    declared = (field.metadata or {}).get(TYPE_KEY)
    if as_symbol or types.is_dictionary(array.type):
        return ColumnType.SYMBOL
    if declared is not None and declared.decode() in ColumnType.__members__:
        return ColumnType[declared.decode()]
    if types.is_timestamp(array.type):
        return _TIMESTAMPS[array.type.unit]
    return _BY_ARROW.get(array.type)


def _column(field: Any, array: Any, *, as_symbol: bool, dictionaries: Dictionaries | None) -> ColumnData:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = _kind_of(field, array, as_symbol=as_symbol)
    if kind is ColumnType.SYMBOL:
        known = None if dictionaries is None else _shared_values(field.name, array, dictionaries)
        return _symbols(field.name, array) if known is None else _known_symbols(field.name, array, known)
    if types.is_decimal(array.type):
        return _decimals(field.name, array)
    if kind in _FIXED:
        return _fixed(field.name, kind, array)
    if kind is not None and kind in _WHOLE and not _WHOLE[kind](array.type):
        raise UsageError(f"column {field.name}: {array.type}, but its metadata has the type {kind.name}")
    if kind is ColumnType.BOOLEAN:
        nulls = _nulls(array)
        return boolean_column(field.name, array.drop_null().to_numpy(zero_copy_only=False), nulls)
    if kind in {ColumnType.VARCHAR, ColumnType.BINARY}:
        return _texts(field.name, kind, array)
    if kind in {ColumnType.UUID, ColumnType.LONG256}:
        return _words(field.name, kind, array)
    if kind is ColumnType.GEOHASH:
        bits = int(field.metadata.get(SCALE_KEY, b"0"))
        values = array.cast(pa.int64()).drop_null().to_numpy(zero_copy_only=False)
        return geohash_column(field.name, bits, values, _nulls(array))
    if (
        types.is_struct(array.type)
        or types.is_list(array.type)
        or types.is_large_list(array.type)
        or (types.is_fixed_size_list(array.type))
    ):
        return _arrays(field.name, array)
    raise UsageError(f"column {field.name}: QWP has no type for {array.type}; cast it first")


def _nulls(array: Any) -> Array | None:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def _fixed(name: str, kind: ColumnType, array: Any) -> ColumnData:
    target = _FIXED[kind]
    if types.is_timestamp(target):
        if types.is_date(array.type):
            array = array.cast(pa.timestamp("ms"))
        if types.is_timestamp(array.type):
            array = array.cast(pa.timestamp(target.unit, array.type.tz))
        target = pa.int64()
    if array.type != target:
        array = array.cast(target)
    if not array.null_count:
        return fixed_column(name, kind, _plain(array))
    if kind in SENTINELS and kind is not ColumnType.CHAR:
        value = np.frombuffer(SENTINELS[kind], target.to_pandas_dtype())[0]
        return fixed_column(name, kind, _plain(pc.fill_null(array, pa.scalar(value, target))))
    return fixed_column(name, kind, _plain(array.drop_null()), _nulls(array))


def _plain(array: Any) -> Array:
    # A view of the array's own memory with any content, including NaN and types that numpy does not have.
    dtype = np.dtype(array.type.to_pandas_dtype())
    start = array.offset * dtype.itemsize
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, count=len(array), offset=start)


def _texts(name: str, kind: ColumnType, array: Any) -> ColumnData:
    small = pa.string() if kind is ColumnType.VARCHAR else pa.binary()
    nulls = _nulls(array)
    if array.type != small:
        array = array.cast(small)
    if nulls is not None:
        array = array.drop_null()
    if not len(array):
        return bytes_column(name, kind, np.zeros(1, "<u4"), b"", nulls)
    _, offsets_data, data = array.buffers()
    offsets = np.frombuffer(offsets_data, np.int32, count=len(array) + 1, offset=array.offset * 4)
    first, last = int(offsets[0]), int(offsets[-1])
    view = memoryview(data)[first:last] if data is not None else b""
    return bytes_column(name, kind, offsets - offsets[0] if first else offsets, view, nulls)


def _symbols(name: str, array: Any) -> ColumnData:
    nulls = _nulls(array)
    if types.is_dictionary(array.type) and array.dictionary.null_count:
        array = array.cast(array.type.value_type)
        nulls = _nulls(array)
    if not types.is_dictionary(array.type):
        if array.type not in {pa.string(), pa.large_string(), pa.string_view()}:
            array = array.cast(pa.string())
        encoded = array.drop_null().cast(pa.string()).dictionary_encode()
        return symbol_column(name, encoded.dictionary.to_pylist(), _plain(encoded.indices), nulls)
    numbers = _plain(array.indices.drop_null())
    order = _by_first_row(numbers, len(array.dictionary))
    values = array.dictionary.take(pa.array(order)).cast(pa.string())
    if len(values.unique()) < len(values):  # a dictionary may have duplicates
        again = pa.DictionaryArray.from_arrays(pa.array(numbers), array.dictionary).cast(pa.string())
        encoded = again.dictionary_encode()
        return symbol_column(name, encoded.dictionary.to_pylist(), _plain(encoded.indices), nulls)
    return symbol_column(name, values.to_pylist(), numbers, nulls, order=order)


def _shared_values(name: str, array: Any, dictionaries: Dictionaries) -> list[str] | None:
    """Return the values of a small dictionary without nulls and duplicates; *dictionaries* keeps them."""
    if name not in dictionaries:
        dictionaries[name] = None
        if types.is_dictionary(array.type) and len(array.dictionary) <= _SHARED_VALUES_MAX:
            with contextlib.suppress(pa.ArrowInvalid):  # a value is invalid; perhaps no row has it
                values = array.dictionary.cast(pa.string()).to_pylist()
                if None not in values and len(set(values)) == len(values):
                    dictionaries[name] = values
    return dictionaries[name]


def _known_symbols(name: str, array: Any, known: list[str]) -> ColumnData:
    numbers = _plain(array.indices.drop_null())
    order = _by_first_row(numbers, len(known))
    return symbol_column(name, [known[number] for number in order.tolist()], numbers, _nulls(array), order=order)


def _by_first_row(numbers: Array, count: int) -> Array:
    """Return the distinct values of *numbers*, all below *count*, in the order of their first row."""
    if 4 * count < len(numbers):
        # With few distinct values, the first rows usually have them all; then the others need no search.
        order = [*dict.fromkeys(numbers[: 4 * count].tolist())]
        if len(order) == count:
            return np.array(order, numbers.dtype)
    return _plain(pa.array(numbers).unique())


def _decimals(name: str, array: Any) -> ColumnData:
    kind, width = _DECIMALS[array.type.bit_width]
    if array.type.bit_width == 32:
        array = array.cast(pa.decimal64(18, array.type.scale))
    nulls = _nulls(array)
    array = array.drop_null() if nulls is not None else array
    data = array.buffers()[1]
    start = array.offset * width
    unscaled = (
        np.frombuffer(data, np.uint8, count=len(array) * width, offset=start) if len(array) else np.empty(0, "u1")
    )
    return decimal_column(name, kind, array.type.scale, unscaled, nulls)


def _words(name: str, kind: ColumnType, array: Any) -> ColumnData:
    width = array.type.byte_width
    nulls = _nulls(array)
    array = array.drop_null() if nulls is not None else array
    data = np.frombuffer(array.buffers()[1], np.uint8, count=len(array) * width, offset=array.offset * width)
    rows = data.reshape(len(array), width)
    if kind is ColumnType.UUID:
        rows = rows[:, ::-1]  # the usual notation has the highest byte first
    return fixed_column(name, kind, np.ascontiguousarray(rows).view(f"V{width}").reshape(-1), nulls)


def _arrays(name: str, array: Any) -> ColumnData:
    nulls = _nulls(array)
    present = array.drop_null()
    if types.is_struct(array.type) and [one.name for one in array.type] == [
        "shape",
        "values",
    ]:  # as `decoded` writes them: values and shape
        values_type = array.type.field("values").type.value_type
        rows = [np.array(one["values"]).reshape(one["shape"]) for one in present.to_pylist()]
    else:
        values_type = array.type
        while not types.is_primitive(values_type):
            if not hasattr(values_type, "value_type"):
                raise UsageError(f"column {name}: QWP has no type for {array.type}")
            values_type = values_type.value_type
        if not (types.is_integer(values_type) or types.is_floating(values_type)):
            raise UsageError(f"column {name}: QWP has no type for {array.type}; arrays hold floats or integers")
        dtype = np.int64 if types.is_integer(values_type) else np.float64
        rows = [_nested(name, one, dtype) for one in present.to_pylist()]
    kind = ColumnType.LONG_ARRAY if types.is_integer(values_type) else ColumnType.DOUBLE_ARRAY
    return array_column(name, kind, rows, nulls)


def _nested(name: str, values: list[Any], dtype: Any) -> Array:
    try:
        return np.array(values, dtype)
    except (ValueError, TypeError):
        raise UsageError(f"column {name}: an array has nulls, or rows of different lengths") from None
