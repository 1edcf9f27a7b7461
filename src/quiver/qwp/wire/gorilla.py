"""
Decoding of timestamps that are compressed as second differences, in as few bits as possible. Encoding is not supported.

::

    i64 first   i64 second   then for every further value, bits of each byte from the lowest on:
    0                            difference as before
    1 0      +  7 bits           -64 … 63
    1 1 0    +  9 bits           -256 … 255
    1 1 1 0  + 12 bits           -2048 … 2047
    1 1 1 1  + 32 bits           the rest, in two's complement

The bits are padded to a byte once, at the end.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from quiver.primitives.packing import Cursor, ShortageError

__all__ = ["take_gorilla"]

_I64 = struct.Struct("<q")
_WIDTHS = (7, 9, 12, 32)


class _Bits:
    """The remaining bits, and the number of bits taken."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._end = len(view) * 8
        self.taken = 0

    def take(self, width: int) -> int:
        if width > self._end - self.taken:
            raise ShortageError(self.taken // 8, 1)
        first, shift = divmod(self.taken, 8)
        self.taken += width
        word = int.from_bytes(self._view[first : first + (shift + width + 7) // 8], "little")
        return (word >> shift) & ((1 << width) - 1)


def _difference(bits: _Bits) -> int:
    if not bits.take(1):
        return 0
    ones = 0
    while ones < len(_WIDTHS) - 1 and bits.take(1):
        ones += 1
    width = _WIDTHS[ones]
    value = bits.take(width)
    return value - (1 << width) if value >> (width - 1) else value


def take_gorilla(cursor: Cursor, count: int) -> np.ndarray[Any, Any]:
    """
    Return *count* timestamps, and move the cursor after them.

    Raises:
        ShortageError: the bytes end before the last of them.
    """
    values: list[int] = [cursor.take(_I64)[0] for _ in range(min(count, 2))]
    left = count - len(values)
    if left > cursor.remaining * 8:
        raise ShortageError(cursor.offset, 1)
    if left:
        start = cursor.offset
        bits = _Bits(cursor.view(cursor.remaining))
        cursor.offset = start
        step = values[1] - values[0]
        for _ in range(left):
            step += _difference(bits)
            values.append(values[-1] + step)
        cursor.skip((bits.taken + 7) // 8)
    # As the clients do: add in 64 bits with wrap-around.
    return np.array([value & 0xFFFFFFFFFFFFFFFF for value in values], np.uint64).view(np.int64)
