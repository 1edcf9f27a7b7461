"""
One column of a message, ready to be encoded: a name, a type, and the bytes of its values.

::

    u8 null_flag     0: every row has a value
                     1: ceil(rows / 8) bytes follow, lowest bit first, 1 = null; then only the other rows' values
    values           by type

The functions below take numpy arrays. *nulls* is a boolean array, true for rows without a value, or None.
With nulls, *values* has only the values of the other rows, for every type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quiver.errors import UsageError
from quiver.primitives.disk.file_system import Buffer
from quiver.qwp.wire.column_types import DECIMAL_BYTES, FIXED_BYTES, SENTINELS, ColumnType
from quiver.qwp.wire.varint import encode_varint, encode_varints

__all__ = [
    "ColumnData",
    "SymbolData",
    "array_column",
    "boolean_column",
    "bytes_column",
    "decimal_column",
    "fixed_column",
    "geohash_column",
    "symbol_column",
    "symbol_ids",
]

Array = np.ndarray[Any, Any]
_ALL_PRESENT = b"\0"
_DIMENSIONS_MAX = 32
_TEXT_BYTES_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class SymbolData:
    """
    The symbols of one column: each once, in the order of their first row, and the index of each non-null row's symbol.

    With *order* the indexes are mapped: the first symbol has the index ``order[0]``.
    """

    values: Sequence[str]
    indices: Array
    order: Array | None = None


@dataclass(frozen=True, slots=True)
class ColumnData:
    """A column to encode. `parts` are its bytes; symbols end with ids that only the message can assign."""

    name: str
    type: ColumnType
    rows: int
    parts: tuple[Buffer, ...]
    symbols: SymbolData | None = None

    @property
    def nbytes(self) -> int:
        """The approximate size of the values in bytes; a symbol counts as three."""
        known = sum(memoryview(part).nbytes for part in self.parts)
        return known + (3 * len(self.symbols.indices) if self.symbols else 0)


def _null_header(nulls: Array | None) -> bytes:
    if nulls is None:
        return _ALL_PRESENT
    return b"\1" + np.packbits(nulls, bitorder="little").tobytes()


def _as_bytes(values: Array) -> memoryview:
    return memoryview(np.ascontiguousarray(values).data).cast("B")


def _with_sentinels(kind: ColumnType, values: Array, nulls: Array) -> Array:
    full = np.empty(len(nulls), values.dtype)
    full[nulls] = np.frombuffer(SENTINELS[kind], values.dtype)[0]
    full[~nulls] = values
    return full


def fixed_column(name: str, kind: ColumnType, values: Array, nulls: Array | None = None) -> ColumnData:
    """Return a column of fixed-width values; *values* has that item size, little-endian."""
    if values.dtype.itemsize != FIXED_BYTES[kind]:
        raise UsageError(f"{kind.name} has {FIXED_BYTES[kind]} bytes per value, not {values.dtype.itemsize}")
    rows = len(values) if nulls is None else len(nulls)
    if nulls is not None and kind in SENTINELS:
        values, nulls = _with_sentinels(kind, values, nulls), None
    if not values.size:
        return ColumnData(name, kind, rows, (_null_header(nulls),))
    return ColumnData(name, kind, rows, (_null_header(nulls), _as_bytes(values)))


def boolean_column(name: str, values: Array, nulls: Array | None = None) -> ColumnData:
    """Return a column of bits. A null is encoded as false."""
    if nulls is not None:
        values = _with_sentinels(ColumnType.BOOLEAN, values, nulls)
    return ColumnData(
        name, ColumnType.BOOLEAN, len(values), (_ALL_PRESENT, np.packbits(values, bitorder="little").tobytes())
    )


def bytes_column(name: str, kind: ColumnType, offsets: Array, data: Buffer, nulls: Array | None = None) -> ColumnData:
    """
    Return a column of VARCHAR or BINARY: value *i* is ``data[offsets[i]:offsets[i + 1]]``, and the first offset is 0.

    Raises:
        UsageError: the total size of the values exceeds the range of an offset.
    """
    if len(offsets) and int(offsets[-1]) > _TEXT_BYTES_MAX:
        raise UsageError(f"column {name}: {int(offsets[-1])} bytes do not fit into one message")
    rows = len(offsets) - 1 if nulls is None else len(nulls)
    return ColumnData(name, kind, rows, (_null_header(nulls), _as_bytes(offsets.astype("<u4", copy=False)), data))


def decimal_column(name: str, kind: ColumnType, scale: int, unscaled: Array, nulls: Array | None = None) -> ColumnData:
    """Return a column of decimals. *unscaled* has their bytes: two's complement, little-endian, one row each."""
    if not 0 <= scale <= 76:
        raise UsageError(f"column {name}: a decimal has a scale of 0 to 76, not {scale}")
    width = DECIMAL_BYTES[kind]
    rows = len(unscaled) // width if nulls is None else len(nulls)
    return ColumnData(name, kind, rows, (_null_header(nulls), bytes([scale]), _as_bytes(unscaled)))


def geohash_column(name: str, precision: int, values: Array, nulls: Array | None = None) -> ColumnData:
    """Return a column of geohashes of *precision* bits, 1 to 60."""
    if not 1 <= precision <= 60:
        raise UsageError(f"column {name}: a geohash has 1 to 60 bits, not {precision}")
    rows = len(values) if nulls is None else len(nulls)
    if nulls is None and precision % 8 == 0:
        # With whole bytes the highest geohash equals the sentinel, so write a bitmap without nulls.
        nulls = np.zeros(rows, bool)
    wide = np.ascontiguousarray(values.astype("<u8")).view(np.uint8).reshape(-1, 8)
    data = np.ascontiguousarray(wide[:, : (precision + 7) // 8]).tobytes()
    return ColumnData(name, ColumnType.GEOHASH, rows, (_null_header(nulls), encode_varint(precision), data))


def array_column(name: str, kind: ColumnType, values: Sequence[Array], nulls: Array | None = None) -> ColumnData:
    """
    Return a column of arrays of doubles or longs, each with its own shape, in row-major order.

    Raises:
        UsageError: an array has no dimension, or more than 32.
    """
    dtype = np.dtype("<f8" if kind is ColumnType.DOUBLE_ARRAY else "<i8")
    parts: list[Buffer] = [_null_header(nulls)]
    for value in values:
        if not 1 <= value.ndim <= _DIMENSIONS_MAX:
            raise UsageError(f"column {name}: an array has 1 to {_DIMENSIONS_MAX} dimensions, not {value.ndim}")
        parts.append(bytes([value.ndim]) + np.array(value.shape, "<i4").tobytes())
        parts.append(np.ascontiguousarray(value, dtype).tobytes())
    rows = len(values) if nulls is None else len(nulls)
    return ColumnData(name, kind, rows, (b"".join(parts),))


def symbol_column(
    name: str, values: Sequence[str], indices: Array, nulls: Array | None = None, *, order: Array | None = None
) -> ColumnData:
    """Return a column of symbols; see `SymbolData` for *values*, *indices* and *order*."""
    rows = len(indices) if nulls is None else len(nulls)
    return ColumnData(name, ColumnType.SYMBOL, rows, (_null_header(nulls),), SymbolData(values, indices, order))


def symbol_ids(symbols: SymbolData, ids: dict[str, int]) -> tuple[bytes, int]:
    """
    Return the ids of the rows' symbols, and the highest of them (-1 if there is none). New symbols are added to *ids*
    (symbol → id).
    """
    numbers = np.array([ids.setdefault(value, len(ids)) for value in symbols.values], np.int64)
    if not len(symbols.indices):
        return b"", -1
    highest = int(numbers.max())
    if symbols.order is not None:
        ordered = np.zeros(int(symbols.order.max()) + 1, np.int64)
        ordered[symbols.order] = numbers
        numbers = ordered
    if highest < 0x80:  # usually one byte each
        return numbers.astype(np.uint8).take(symbols.indices).tobytes(), highest
    return encode_varints(numbers[symbols.indices]), highest
