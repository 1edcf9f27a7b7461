"""
Lengths, counts and ids as unsigned LEB128: seven bits per byte, the lowest first, at most ten bytes.

300 is ``AC 02``; 16384 is ``80 80 01``. The tenth byte has one bit. Arrays of integers are processed with numpy.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from quiver.errors import UsageError
from quiver.primitives.packing import Cursor, ShortageError

__all__ = ["VarintError", "encode_varint", "encode_varints", "take_varint", "take_varints"]

_BYTE = struct.Struct("<B")
_BYTES_MAX = 10
_ID_BYTES_MAX = 5
_ONE_BYTE = tuple(bytes([value]) for value in range(0x80))


class VarintError(UsageError):
    """The bytes cannot form a 64-bit integer; `offset` is their start. Decoders convert this error to `Damage`."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason


def encode_varint(value: int) -> bytes:
    """Return the bytes of *value*, 0 to 2^64 - 1."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_varints(values: np.ndarray[Any, Any]) -> bytes:
    """Return the concatenated bytes of all *values* (unsigned, below 2^35)."""
    largest = int(values.max(initial=0))
    if largest < 0x80:
        return values.astype(np.uint8).tobytes()
    wide = values.astype(np.uint64)
    groups = (largest.bit_length() + 6) // 7
    table = np.empty((len(wide), groups), np.uint8)
    for group in range(groups):
        table[:, group] = (wide >> np.uint64(7 * group)) & np.uint64(0x7F)
    lengths = np.ones(len(wide), np.int64)
    for group in range(1, groups):
        lengths += wide >= np.uint64(1 << (7 * group))
    columns = np.arange(groups)
    table[columns < (lengths - 1)[:, None]] |= 0x80
    return table[columns < lengths[:, None]].tobytes()


def take_varint(cursor: Cursor) -> int:
    """
    Return the integer at the cursor, and move the cursor after it.

    Raises:
        ShortageError: the bytes end inside it.
        VarintError: it has more than 64 bits.
    """
    start = cursor.offset
    value = 0
    for group in range(_BYTES_MAX):
        byte = cursor.take(_BYTE)[0]
        value |= (byte & 0x7F) << (7 * group)
        if byte < 0x80:
            if value >> 64:
                break
            return value
    raise VarintError(start, "an integer has more than 64 bits")


def take_varints(cursor: Cursor, count: int) -> np.ndarray[Any, Any]:
    """
    Return *count* integers of at most five bytes each, and move the cursor after them.

    Raises:
        ShortageError: the bytes end before the last of them.
        VarintError: one is longer.
    """
    if count > cursor.remaining:
        raise ShortageError(cursor.offset, count - cursor.remaining)
    start = cursor.offset
    view = Cursor.view(cursor, min(count * _ID_BYTES_MAX, cursor.remaining))
    cursor.offset = start
    data = np.frombuffer(view, np.uint8)
    if count == 0 or data[:count].max() < 0x80:
        cursor.skip(count)
        return data[:count].astype(np.int64)
    ends = np.flatnonzero(data < 0x80)[:count]
    if len(ends) < count:
        if len(data) == count * _ID_BYTES_MAX:
            raise VarintError(start, "an id has more than five bytes")
        raise ShortageError(start, count - len(ends))
    starts = np.empty(count, np.int64)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts + 1
    if int(lengths.max()) > _ID_BYTES_MAX:
        raise VarintError(start, "an id has more than five bytes")
    values = np.zeros(count, np.int64)
    for group in range(int(lengths.max())):
        has = lengths > group
        values[has] |= (data[starts[has] + group] & 0x7F).astype(np.int64) << (7 * group)
    cursor.skip(int(ends[-1]) + 1)
    return values
