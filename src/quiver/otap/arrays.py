"""
Decoded Arrow arrays → the columns of a view, one column at a time.

The counterpart of `columns.py`, which builds the same columns from protobuf objects. Data that cannot be converted
exactly raise `FallbackNeededError` and are converted by way of objects: a value that was set twice, a duplicate key in
a map, invalid nested values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from quiver.otap.views.schemas import TIME

__all__ = [
    "FallbackNeededError",
    "codes",
    "counts_of",
    "counts_of_binary",
    "hex_ids",
    "nanoseconds",
    "placed",
    "relist",
    "repeated",
    "require_distinct",
    "require_one_arm",
    "signed",
    "texts",
    "times",
    "truths",
    "validity",
    "widened",
]

_INT64_MAX = (1 << 63) - 1
_KEY_TABLE_BYTES_MAX = 64 * 1024 * 1024
_BITS = np.left_shift(np.uint64(1), np.arange(63, dtype=np.uint64))
_HEX = np.frombuffer("".join(f"{value:02x}" for value in range(256)).encode(), np.uint16)


class FallbackNeededError(Exception):
    """The data need the slower decoder by way of objects. Not raised outside of this package."""


# -- counting ----------------------------------------------------------------------------------------------


def counts_of(lists: pa.Array) -> np.ndarray:
    """Return the length of each list."""
    return np.diff(np.asarray(lists.offsets))


def repeated(counts: np.ndarray) -> np.ndarray:
    """Return, for each element of lists with these lengths, the index of its list."""
    return np.repeat(np.arange(len(counts), dtype=np.int32), counts)


def _bits(bitmap: pa.Buffer, array: pa.Array) -> np.ndarray:
    start, end = array.offset, array.offset + len(array)
    found = np.frombuffer(bitmap, np.uint8)[start >> 3 : (end + 7) >> 3]
    return np.unpackbits(found, bitorder="little")[start & 7 : (start & 7) + len(array)].view(np.bool_)


def validity(array: pa.Array) -> np.ndarray:
    """Return where the array is not null, as booleans. Arrow's own conversion to numpy is slow."""
    bitmap = array.buffers()[0] if array.null_count else None
    return np.ones(len(array), np.bool_) if bitmap is None else _bits(bitmap, array)


def truths(array: pa.Array) -> np.ndarray:
    """Return booleans; the value for a null is undefined."""
    return _bits(array.buffers()[1], array) if len(array) else np.zeros(0, np.bool_)


def require_one_arm(arms: Sequence[pa.Array]) -> None:
    """
    Check that no row has two of *arms*: an encoding may set a oneof twice, and then the last value counts.

    Raises:
        FallbackNeededError: a row has two.
    """
    used = [arm for arm in arms if arm.null_count < len(arm)]
    if len(used) < 2 or sum(len(arm) - arm.null_count for arm in used) == 0:
        return
    total = validity(used[0]).astype(np.uint8)
    for arm in used[1:]:
        total = total + validity(arm)
    if int(total.max(initial=0)) > 1:
        raise FallbackNeededError


def placed(values: pa.Array, there: np.ndarray) -> pa.Array:
    """Return an array with *values*, strings or bytes, in order where *there* is true, and null elsewhere."""
    if len(values) == len(there):
        return values
    _, own, data = values.buffers()
    offsets = np.zeros(len(there) + 1, np.int32)
    if len(values):
        offsets[0] = np.frombuffer(own, np.int32)[values.offset]
        offsets[1:][there] = counts_of_binary(values)
    np.cumsum(offsets, dtype=np.int32, out=offsets)
    bitmap = pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(values.type, len(there), [bitmap, pa.py_buffer(offsets), data])


# -- one kind of value -------------------------------------------------------------------------------------


def _nulls_where(empty: np.ndarray) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(~empty, bitorder="little")) if empty.any() else None


def texts(values: pa.Array) -> pa.Array:
    """Return strings; the empty string, which OTLP cannot distinguish from unset, is null."""
    _, offsets, data = values.buffers()
    empty = counts_of_binary(values) == 0
    return pa.Array.from_buffers(pa.string(), len(values), [_nulls_where(empty), offsets, data], offset=values.offset)


def counts_of_binary(values: pa.Array) -> np.ndarray:
    """Return the length of each string in bytes."""
    if len(values) == 0:
        return np.zeros(0, np.int32)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    return np.diff(offsets)


def hex_ids(values: pa.Array) -> pa.Array:
    """Return ids of any length as lower-case hex; an id that is empty or all zeros is null."""
    if len(values) == 0:
        return pa.array([], pa.string())
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    start, end = int(offsets[0]), int(offsets[-1])
    if end - start > _INT64_MAX >> 33:
        raise FallbackNeededError
    data = values.buffers()[2]
    raw = np.frombuffer(data, np.uint8)[start:end] if data is not None and end > start else np.zeros(0, np.uint8)
    doubled = pa.py_buffer((offsets - start) * np.int32(2))
    unset = _without_bits(raw, offsets - start)
    return pa.Array.from_buffers(
        pa.string(), len(values), [_nulls_where(unset), doubled, pa.py_buffer(_HEX[raw].view(np.uint8))]
    )


def _without_bits(raw: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return which of the strings in *raw* are empty or all zeros."""
    unset: np.ndarray = np.diff(offsets) == 0
    starts = offsets[:-1][~unset]
    if len(starts):  # empty strings have no bytes, so the others are contiguous
        unset[~unset] = np.bitwise_or.reduceat(raw, starts) == 0
    return unset


def signed(values: pa.Array) -> pa.Array:
    """Return unsigned 64-bit numbers as int64; numbers that do not fit are null."""
    numbers = np.asarray(values)
    if len(numbers) and int(numbers.max()) > _INT64_MAX:
        return pa.array(numbers.view(np.int64), pa.int64(), mask=numbers > _INT64_MAX)
    return pa.array(numbers.view(np.int64), pa.int64())


nanoseconds = signed
"""Exact nanoseconds since the epoch; 0 is unknown, null is beyond the year 2262."""


def times(values: pa.Array) -> pa.Array:
    """Return nanoseconds since the epoch as timestamps, truncated to microseconds; 0 (unknown) is null."""
    numbers = np.asarray(values)
    micros = (numbers // np.uint64(1000)).view(np.int64)
    unknown = numbers == 0
    return pa.array(micros, pa.int64(), mask=unknown if unknown.any() else None).cast(TIME)


def widened(values: pa.Array) -> pa.Array:
    """Return 32-bit numbers as int64."""
    return values.cast(pa.int64())


def codes(values: pa.Array, names: Sequence[str]) -> pa.Array:
    """Return the names of enumeration numbers; a number without a name is returned as digits."""
    numbers = np.asarray(values)
    if not len(numbers) or (int(numbers.min()) >= 0 and int(numbers.max()) < len(names)):
        return pa.array(names, pa.string()).take(values)
    known = dict(enumerate(names))
    distinct, which = np.unique(numbers, return_inverse=True)
    return pa.array([known.get(value) or str(value) for value in distinct.tolist()], pa.string()).take(pa.array(which))


def relist(lists: pa.Array, values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return lists with the lengths of *lists* over other *values*."""
    return pa.ListArray.from_arrays(lists.offsets, values, type=kind)


# -- keys of maps ---------------------------------------------------------------------------------------


def require_distinct(keys: pa.Array, counts: np.ndarray) -> None:
    """
    Check that no list has a duplicate key, on which readers of Arrow maps may fail.

    Raises:
        FallbackNeededError: a list has one.
    """
    if not len(keys) or int(counts.max(initial=0)) < 2:
        return
    encoded = keys.dictionary_encode()
    distinct = len(encoded.dictionary)
    which = np.asarray(encoded.indices)
    if distinct <= len(_BITS):
        # One bit per key: the sum of distinct bits equals their union.
        bits = _BITS.take(which)
        starts = (np.cumsum(counts) - counts)[counts > 0]
        if (np.add.reduceat(bits, starts) != np.bitwise_or.reduceat(bits, starts)).any():
            raise FallbackNeededError
        return
    places = repeated(counts).astype(np.int64) * distinct + which
    if len(counts) * distinct <= _KEY_TABLE_BYTES_MAX:
        seen = np.zeros(len(counts) * distinct, np.bool_)
        seen[places] = True
        unique = int(np.count_nonzero(seen))
    else:
        unique = len(np.unique(places))
    if unique != len(which):
        raise FallbackNeededError
