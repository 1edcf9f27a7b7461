"""
Decoded tables, as Python values and as Arrow.

The field metadata of Arrow columns has what Arrow has no type for (`TYPE_KEY`, `SCALE_KEY`), so that a decoded table
can be encoded unchanged. Null follows the server's rule: the bitmap, and the sentinels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from quiver.bundle import QWP_TABLE_KEY
from quiver.qwp.wire.column_types import DECIMAL_BYTES, SENTINELS, ColumnType

__all__ = ["DESIGNATED_NAME", "SCALE_KEY", "TABLE_KEY", "TYPE_KEY", "Column", "Table", "fits_decimal"]

TYPE_KEY = b"qwp.type"
"""Field metadata: the name of the column's type."""
SCALE_KEY = b"qwp.bits"
"""Field metadata: the number of bits of a geohash."""
TABLE_KEY = QWP_TABLE_KEY
"""Schema metadata: the name of the table."""
DESIGNATED_NAME = "timestamp"
"""The name of the designated timestamp, which has none on the wire, where it needs one."""

_NUMPY = {
    ColumnType.BYTE: "<i1", ColumnType.SHORT: "<i2", ColumnType.INT: "<i4", ColumnType.LONG: "<i8",
    ColumnType.FLOAT: "<f4", ColumnType.DOUBLE: "<f8", ColumnType.TIMESTAMP: "<i8", ColumnType.DATE: "<i8",
    ColumnType.TIMESTAMP_NANOS: "<i8", ColumnType.CHAR: "<u2", ColumnType.IPV4: "<u4",
}  # fmt: skip
_ARROW = {
    ColumnType.BYTE: pa.int8(), ColumnType.SHORT: pa.int16(), ColumnType.INT: pa.int32(), ColumnType.LONG: pa.int64(),
    ColumnType.FLOAT: pa.float32(), ColumnType.DOUBLE: pa.float64(), ColumnType.TIMESTAMP: pa.timestamp("us", "UTC"),
    ColumnType.DATE: pa.timestamp("ms", "UTC"), ColumnType.TIMESTAMP_NANOS: pa.timestamp("ns", "UTC"),
    ColumnType.CHAR: pa.uint16(), ColumnType.IPV4: pa.uint32(),
}  # fmt: skip
_DECIMALS: dict[ColumnType, Callable[[int], Any]] = {
    ColumnType.DECIMAL64: lambda scale: pa.decimal64(18, scale),
    ColumnType.DECIMAL128: lambda scale: pa.decimal128(38, scale),
    ColumnType.DECIMAL256: lambda scale: pa.decimal256(76, scale),
}
_SENTINEL_IS_NULL = frozenset({ColumnType.INT, ColumnType.LONG, ColumnType.FLOAT, ColumnType.DOUBLE})
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """
    One column of a decoded table.

    Attributes:
        name: empty for the designated timestamp.
        type: as on the wire.
        rows: the number of rows, including nulls.
        nulls: true where the bitmap marks a null; None without a bitmap.
        present: the values of the other rows, in the representation of their type on the wire: numpy arrays of
            integers, booleans or ids, byte arrays with one row per value, offsets and bytes of texts, lists of arrays.
        symbols: the symbols by id.
        scale: the scale of decimals, or the number of bits of geohashes.
    """

    name: str
    type: ColumnType
    rows: int
    nulls: Array | None
    present: Any
    symbols: Sequence[str] = ()
    scale: int = 0

    def numbers(self) -> Array:
        """Return the non-null values of a numeric type as a numpy array."""
        if self.present.dtype != np.uint8 or self.present.ndim == 1:
            return self.present  # booleans, ids, and decompressed timestamps
        return np.ascontiguousarray(self.present).view(_NUMPY[self.type]).reshape(-1)

    def values(self) -> list[Any]:
        """Return one Python value per row, None where the bitmap marks a null. Sentinels are returned unchanged."""
        present = self._present_values()
        if self.nulls is None:
            return present
        left = iter(present)
        return [None if null else next(left) for null in self.nulls.tolist()]

    def _present_values(self) -> list[Any]:
        kind = self.type
        if kind is ColumnType.SYMBOL:
            return [self.symbols[number] for number in self.present.tolist()]
        if kind in _NUMPY or kind is ColumnType.BOOLEAN:
            return self.numbers().tolist()
        if kind in {ColumnType.VARCHAR, ColumnType.BINARY}:
            offsets, data = self.present
            ends = offsets.tolist()
            pieces = [bytes(data[ends[row] : ends[row + 1]]) for row in range(len(ends) - 1)]
            return [piece.decode() for piece in pieces] if kind is ColumnType.VARCHAR else pieces
        if kind in {ColumnType.DOUBLE_ARRAY, ColumnType.LONG_ARRAY}:
            return list(self.present)
        rows = [row.tobytes() for row in self.present]
        if kind in DECIMAL_BYTES:
            return [_decimal(int.from_bytes(row, "little", signed=True), self.scale) for row in rows]
        if kind is ColumnType.UUID:
            return rows
        return [int.from_bytes(row, "little") for row in rows]

    def to_arrow(self) -> tuple[Any, Any]:
        """Return the column as an Arrow array, with its field."""
        array = self._arrow()
        metadata = {TYPE_KEY: self.type.name.encode()}
        if self.type is ColumnType.GEOHASH:
            metadata[SCALE_KEY] = str(self.scale).encode()
        return array, pa.field(self.name, array.type, metadata=metadata)

    def _arrow(self) -> Any:
        kind = self.type
        if kind is ColumnType.SYMBOL:
            # Only the symbols in use: a connection's dictionary may have two million.
            used, indices = np.unique(self.present, return_inverse=True)
            symbols = pa.array([self.symbols[number] for number in used.tolist()], pa.string())
            return pa.DictionaryArray.from_arrays(self._spread(indices.astype(np.int32), pa.int32()), symbols)
        if kind is ColumnType.BOOLEAN:
            return self._spread(self.present, pa.bool_())
        if kind in {ColumnType.VARCHAR, ColumnType.BINARY}:
            return self._arrow_bytes()
        if kind in {ColumnType.DOUBLE_ARRAY, ColumnType.LONG_ARRAY}:
            return self._arrow_arrays()
        if kind in DECIMAL_BYTES:
            return self._spread_bytes(_DECIMALS[kind](self.scale), self.present)
        if kind is ColumnType.UUID:
            return self._spread_bytes(pa.binary(16), self.present[:, ::-1])  # in the usual notation's order
        if kind is ColumnType.LONG256:
            return self._spread_bytes(pa.binary(32), self.present)
        if kind is ColumnType.GEOHASH:
            wide = np.zeros((len(self.present), 8), np.uint8)
            wide[:, : self.present.shape[1]] = self.present
            values = wide.view("<u8").reshape(-1)
            ones = (1 << (8 * self.present.shape[1])) - 1
            return self._spread(
                values.astype(np.int64), pa.int64(), is_null=values == ones if self.nulls is None else None
            )
        numbers = self.numbers()
        return self._spread(numbers, _ARROW[kind], is_null=self._sentinels(numbers))

    def _sentinels(self, numbers: Array) -> Array | None:
        if self.type in {ColumnType.FLOAT, ColumnType.DOUBLE}:
            found = np.isnan(numbers)
        elif self.type in _SENTINEL_IS_NULL:
            found = numbers == np.frombuffer(SENTINELS[self.type], numbers.dtype)[0]
        elif self.type is ColumnType.IPV4:
            found = numbers == 0
        else:
            return None
        return found if found.any() else None

    def _full(self, present: Array) -> Array:
        full = np.zeros((self.rows, *present.shape[1:]), present.dtype)
        full[~self.nulls] = present  # type: ignore[operator]
        return full

    def _spread(self, present: Array, kind: Any, *, is_null: Array | None = None) -> Any:
        if self.nulls is None:
            return pa.array(present, mask=is_null).cast(kind) if len(present) else pa.array([], kind)
        mask = self.nulls
        if is_null is not None:
            mask = mask | self._full(is_null)
        return pa.array(self._full(present), mask=mask).cast(kind)

    def _spread_bytes(self, kind: Any, present: Array) -> Any:
        full = present if self.nulls is None else self._full(present)
        validity = None
        if self.nulls is not None:
            validity = pa.py_buffer(np.packbits(~self.nulls, bitorder="little").tobytes())
        return pa.Array.from_buffers(kind, self.rows, [validity, pa.py_buffer(np.ascontiguousarray(full).tobytes())])

    def _arrow_bytes(self) -> Any:
        offsets, data = self.present
        is_text = self.type is ColumnType.VARCHAR
        validity = None
        if self.nulls is not None:
            lengths = self._full(np.diff(offsets.astype(np.int64)))
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            validity = pa.py_buffer(np.packbits(~self.nulls, bitorder="little").tobytes())
        if int(offsets[-1]) >> 31:
            kind, width = (pa.large_string() if is_text else pa.large_binary()), "<i8"
        else:
            kind, width = (pa.string() if is_text else pa.binary()), "<i4"
        buffers = [validity, pa.py_buffer(np.ascontiguousarray(offsets, width)), pa.py_buffer(bytes(data))]
        return pa.Array.from_buffers(kind, self.rows, buffers)

    def _arrow_arrays(self) -> Any:
        # Rows may differ in shape, even in dimensions: store the values in row-major order, with their shape.
        values = pa.float64() if self.type is ColumnType.DOUBLE_ARRAY else pa.int64()
        kind = pa.struct([("shape", pa.list_(pa.int32())), ("values", pa.list_(values))])
        rows = [None if one is None else {"shape": one.shape, "values": one.reshape(-1)} for one in self.values()]
        return pa.array(rows, kind)


def fits_decimal(kind: ColumnType, unscaled: Array, scale: int) -> bool:
    """
    Return whether each row of *unscaled* fits into the digits of its type: 18, 38 or 76. Readers of the type cannot
    handle more.
    """
    try:
        arrow = _DECIMALS[kind](scale)
        pa.Array.from_buffers(arrow, len(unscaled), [None, pa.py_buffer(unscaled.tobytes())]).validate(full=True)
    except (pa.ArrowInvalid, ValueError):
        return False
    return True


def _decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal((int(unscaled < 0), tuple(int(digit) for digit in str(abs(unscaled))), -scale))


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows of one table from one message."""

    name: str
    rows: int
    columns: tuple[Column, ...]

    def to_arrow(self) -> Any:
        """Return the rows as a record batch. The designated timestamp gets its default name unless a column has it."""
        arrays = []
        fields = []
        taken = {column.name.lower() for column in self.columns}
        for column in self.columns:
            array, field = column.to_arrow()
            if not column.name:
                name = DESIGNATED_NAME if DESIGNATED_NAME not in taken else ""
                field = field.with_name(name).with_metadata({**field.metadata, b"qwp.designated": b"true"})
            arrays.append(array)
            fields.append(field)
        schema = pa.schema(fields, metadata={TABLE_KEY: self.name.encode()})
        if not fields:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * self.rows, pa.struct([]))).replace_schema_metadata(
                {TABLE_KEY: self.name.encode()}
            )
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
