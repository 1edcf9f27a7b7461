"""
The column types of QWP, their codes and widths.

Nulls have two encodings. Either a bitmap marks null rows and only the other values follow (`1` means null), or every
row has a value, and one special value, the *sentinel*, means null. Readers accept both for every type. `SENTINELS` has
what this writer, like the clients of 2026, writes for a null.
"""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType

__all__ = ["DECIMAL_BYTES", "FIXED_BYTES", "SENTINELS", "TIMESTAMPS", "ColumnType"]


class ColumnType(IntEnum):
    """The type byte after a column's name. 0x08 was once a string type and is refused."""

    BOOLEAN = 0x01
    BYTE = 0x02
    SHORT = 0x03
    INT = 0x04
    LONG = 0x05
    FLOAT = 0x06
    DOUBLE = 0x07
    SYMBOL = 0x09
    TIMESTAMP = 0x0A
    DATE = 0x0B
    UUID = 0x0C
    LONG256 = 0x0D
    GEOHASH = 0x0E
    VARCHAR = 0x0F
    TIMESTAMP_NANOS = 0x10
    DOUBLE_ARRAY = 0x11
    LONG_ARRAY = 0x12
    DECIMAL64 = 0x13
    DECIMAL128 = 0x14
    DECIMAL256 = 0x15
    CHAR = 0x16
    BINARY = 0x17
    IPV4 = 0x18


FIXED_BYTES = MappingProxyType({
    ColumnType.BYTE: 1, ColumnType.SHORT: 2, ColumnType.INT: 4, ColumnType.LONG: 8, ColumnType.FLOAT: 4,
    ColumnType.DOUBLE: 8, ColumnType.TIMESTAMP: 8, ColumnType.DATE: 8, ColumnType.UUID: 16, ColumnType.LONG256: 32,
    ColumnType.TIMESTAMP_NANOS: 8, ColumnType.CHAR: 2, ColumnType.IPV4: 4,
})  # fmt: skip
"""The size of a value, for types with adjacent values of fixed size."""

DECIMAL_BYTES = MappingProxyType({
    ColumnType.DECIMAL64: 8, ColumnType.DECIMAL128: 16, ColumnType.DECIMAL256: 32,
})  # fmt: skip
"""The size of an unscaled decimal."""

TIMESTAMPS = frozenset({ColumnType.TIMESTAMP, ColumnType.TIMESTAMP_NANOS})
"""The types that may be compressed, and that a designated timestamp may have."""

SENTINELS = MappingProxyType({
    ColumnType.BOOLEAN: b"\0",
    ColumnType.BYTE: b"\0",
    ColumnType.SHORT: b"\0\0",
    ColumnType.INT: b"\0\0\0\x80",
    ColumnType.LONG: b"\0\0\0\0\0\0\0\x80",
    ColumnType.FLOAT: b"\0\0\xc0\x7f",
    ColumnType.DOUBLE: b"\0\0\0\0\0\0\xf8\x7f",
    ColumnType.CHAR: b"\0\0",
})  # fmt: skip
"""Type → the value that is written for a null. Other types use a bitmap."""
