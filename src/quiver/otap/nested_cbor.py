"""Arrays and maps inside AnyValues → CBOR: the column version of `cbor.encode_value`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quiver.otap.nested_values import Notation, nested_column
from quiver.otap.tables.cbor import encode_value

__all__ = ["cbor_values"]

_INTEGER, _NEGATIVE, _BYTES, _TEXT = 0, 1, 2, 3
_SHORT = 24
_FLOAT_HEAD = 0xFB
_NUMBER_ENDS = np.array([_SHORT, 1 << 8, 1 << 16, 1 << 32], np.uint64)
_NUMBER_WIDTHS = np.array([0, 1, 2, 4, 8])
_NOTHING = b""


def cbor_values(values: Any) -> pa.Array:
    """
    Return arrays and maps among *values* as CBOR, and null for other values.

    Raises:
        FallbackNeededError: a value is invalid or nests too deep.
    """
    return nested_column(values, _CBOR)


def _heads(major: int, numbers: np.ndarray) -> pa.Array:
    """Return the heads of CBOR items of one major type with these numbers or lengths."""
    if not len(numbers) or int(numbers.max()) < _SHORT:
        short = (numbers.astype(np.uint8) | np.uint8(major << 5)).tobytes()
        offsets = pa.py_buffer(np.arange(len(numbers) + 1, dtype=np.int32))
        return pa.Array.from_buffers(pa.binary(), len(numbers), [None, offsets, pa.py_buffer(short)])
    # The number follows in no, 1, 2, 4 or 8 bytes: the last ones of its eight.
    kinds = np.searchsorted(_NUMBER_ENDS, numbers.astype(np.uint64), side="right")
    widths = _NUMBER_WIDTHS[kinds]
    written = np.empty((len(numbers), 9), np.uint8)
    written[:, 0] = np.where(kinds == 0, numbers, _SHORT - 1 + kinds).astype(np.uint8) | np.uint8(major << 5)
    written[:, 1:] = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    kept = np.arange(9) >= 9 - widths[:, np.newaxis]
    kept[:, 0] = True
    offsets = np.zeros(len(numbers) + 1, np.int32)
    np.cumsum(widths + 1, out=offsets[1:])
    data = pa.py_buffer(written[kept])
    return pa.Array.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(offsets), data])


def _measured(major: int, values: pa.Array) -> pa.Array:
    raw = values.cast(pa.binary())
    lengths = np.asarray(pc.binary_length(raw))
    return pc.binary_join_element_wise(_heads(major, lengths), raw, _NOTHING)


def _integers(values: pa.Array) -> pa.Array:
    numbers = np.asarray(values)
    negative = numbers < 0
    if not negative.any():
        return _heads(_INTEGER, numbers)
    # ~n is -1 - n, without overflow.
    written = [_heads(_INTEGER, numbers[~negative]), _heads(_NEGATIVE, ~numbers[negative])]
    places = np.where(negative, np.cumsum(negative) + np.count_nonzero(~negative), np.cumsum(~negative)) - 1
    return pa.concat_arrays(written).take(pa.array(places))


def _doubles(values: pa.Array) -> pa.Array:
    written = np.empty((len(values), 9), np.uint8)
    written[:, 0] = _FLOAT_HEAD
    written[:, 1:] = np.asarray(values).astype(">f8").view(np.uint8).reshape(-1, 8)
    offsets = pa.py_buffer(np.arange(0, 9 * len(values) + 1, 9, dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), len(values), [None, offsets, pa.py_buffer(written)])


def _booleans(values: pa.Array) -> pa.Array:
    return pa.array([b"\xf4", b"\xf5"], pa.binary()).take(values.cast(pa.int8()))


_CBOR = Notation(
    leaves={
        "string_value": lambda values: _measured(_TEXT, values),
        "int_value": _integers,
        "bool_value": _booleans,
        "double_value": _doubles,
        "bytes_value": lambda values: _measured(_BYTES, values),
    },
    type=pa.binary(),
    brackets={"ArrayValue": (b"\x9f", b"\xff"), "KeyValueList": (b"\xbf", b"\xff")},
    nothing=_NOTHING,
    between=_NOTHING,
    after_key=_NOTHING,
    unset=b"\xf6",
    unique_keys=False,
    one=encode_value,
)
