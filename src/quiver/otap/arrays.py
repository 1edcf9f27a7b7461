"""
Arrow arrays as decoded from the wire → the columns of a view, whole columns at a time.

The counterpart of `columns.py`, which makes the same columns from protobuf objects. What this one cannot do exactly it
refuses with `FallbackNeededError`, and the objects do it: a value that was set twice on the wire, a key that is twice
in one map, nested values that do not parse.
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
    """These bytes need the careful decoder. Never leaves this package."""


# -- counting ----------------------------------------------------------------------------------------------


def counts_of(lists: pa.Array) -> np.ndarray:
    """Return how many elements each list has."""
    return np.diff(np.asarray(lists.offsets))


def repeated(counts: np.ndarray) -> np.ndarray:
    """Return for each element of lists with these lengths the index of its list."""
    return np.repeat(np.arange(len(counts), dtype=np.int32), counts)


def _bits(bitmap: pa.Buffer, array: pa.Array) -> np.ndarray:
    start, end = array.offset, array.offset + len(array)
    found = np.frombuffer(bitmap, np.uint8)[start >> 3 : (end + 7) >> 3]
    return np.unpackbits(found, bitorder="little")[start & 7 : (start & 7) + len(array)].view(np.bool_)


def validity(array: pa.Array) -> np.ndarray:
    """Return where the array is not null, as booleans. Arrow's own way to numpy takes them one by one."""
    bitmap = array.buffers()[0] if array.null_count else None
    return np.ones(len(array), np.bool_) if bitmap is None else _bits(bitmap, array)


def truths(array: pa.Array) -> np.ndarray:
    """Return booleans; under a null stands either."""
    return _bits(array.buffers()[1], array) if len(array) else np.zeros(0, np.bool_)


def require_one_arm(arms: Sequence[pa.Array]) -> None:
    """
    Return when no row has two of *arms* set: the wire may set a oneof twice, and then the last one counts.

    Raises:
        FallbackNeededError: some row has.
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
    """Put texts or bytes, in order, where something is *there*; null elsewhere."""
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
    """Return strings; the empty string, which OTLP cannot tell from unset, is null."""
    _, offsets, data = values.buffers()
    empty = counts_of_binary(values) == 0
    return pa.Array.from_buffers(pa.string(), len(values), [_nulls_where(empty), offsets, data], offset=values.offset)


def counts_of_binary(values: pa.Array) -> np.ndarray:
    """Return the length in bytes of each string."""
    if len(values) == 0:
        return np.zeros(0, np.int32)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    return np.diff(offsets)


def hex_ids(values: pa.Array) -> pa.Array:
    """Return ids as lower-case hex, whatever their length; an id that is empty, or all zeros, is null."""
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
    """Return which of the strings in *raw* are empty or zeros only."""
    unset: np.ndarray = np.diff(offsets) == 0
    starts = offsets[:-1][~unset]
    if len(starts):  # empty ones take no bytes: what is left stands side by side
        unset[~unset] = np.bitwise_or.reduceat(raw, starts) == 0
    return unset


def signed(values: pa.Array) -> pa.Array:
    """Return unsigned 64-bit numbers as int64; what does not fit is null."""
    numbers = np.asarray(values)
    if len(numbers) and int(numbers.max()) > _INT64_MAX:
        return pa.array(numbers.view(np.int64), pa.int64(), mask=numbers > _INT64_MAX)
    return pa.array(numbers.view(np.int64), pa.int64())


nanoseconds = signed
"""Exact nanoseconds since the epoch; 0 is unknown, null is beyond the year 2262."""


def times(values: pa.Array) -> pa.Array:
    """Return nanoseconds since the epoch as timestamps, cut to the microsecond; 0 (unknown) is null."""
    numbers = np.asarray(values)
    micros = (numbers // np.uint64(1000)).view(np.int64)
    unknown = numbers == 0
    return pa.array(micros, pa.int64(), mask=unknown if unknown.any() else None).cast(TIME)


def widened(values: pa.Array) -> pa.Array:
    """Return 32-bit numbers as int64."""
    return values.cast(pa.int64())


def codes(values: pa.Array, names: Sequence[str]) -> pa.Array:
    """Return the names of enumeration numbers; a number without a name is written in digits."""
    numbers = np.asarray(values)
    if not len(numbers) or (int(numbers.min()) >= 0 and int(numbers.max()) < len(names)):
        return pa.array(names, pa.string()).take(values)
    known = dict(enumerate(names))
    distinct, which = np.unique(numbers, return_inverse=True)
    return pa.array([known.get(value) or str(value) for value in distinct.tolist()], pa.string()).take(pa.array(which))


def relist(lists: pa.Array, values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return lists as long as *lists* over other *values*."""
    return pa.ListArray.from_arrays(lists.offsets, values, type=kind)


# -- keys of maps ---------------------------------------------------------------------------------------


def require_distinct(keys: pa.Array, counts: np.ndarray) -> None:
    """
    Return when no list has a key twice. Readers of Arrow maps may fail on a batch that has.

    Raises:
        FallbackNeededError: some list has.
    """
    if not len(keys) or int(counts.max(initial=0)) < 2:
        return
    encoded = keys.dictionary_encode()
    distinct = len(encoded.dictionary)
    which = np.asarray(encoded.indices)
    if distinct <= len(_BITS):
        # One bit per key: sums of distinct bits are the same as their union.
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
