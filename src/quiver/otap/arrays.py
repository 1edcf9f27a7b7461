"""
Decoded Arrow arrays → the columns of a view, one column at a time.

The counterpart of `columns.py`, which builds the same columns from protobuf objects. Data that cannot be converted
exactly raise `FallbackNeededError` and are converted by way of objects: a value that was set twice, a duplicate key in
a map, invalid nested values.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from quiver.otap.views.schemas import TIME

__all__ = [
    "FallbackNeededError",
    "checked_text",
    "codes",
    "counts_of",
    "counts_of_binary",
    "hex_ids",
    "nanoseconds",
    "numbers_array",
    "placed",
    "relist",
    "repeated",
    "repeated_numbers",
    "repeated_texts",
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
_FEW_KEYS, _MANY_KEYS = 128, 1024
_KEY_BYTES_MAX = 255
_SPARSE = 8
"""If fewer than one row in this many has a value, repeating its offset is faster than a maximum over all rows."""
_KEY_TABLE_BYTES_MAX = 64 * 1024 * 1024
_NOT_ASCII, _CONTINUATION_MASK = 0x80, 0xC0
_BITS = np.left_shift(np.uint64(1), np.arange(63, dtype=np.uint64))
_WORD_BYTES = 8
_ID_BYTES = (_WORD_BYTES, 2 * _WORD_BYTES)
"""The lengths of span and trace ids."""


class FallbackNeededError(Exception):
    """The data need the slower decoder by way of objects. Not raised outside of this package."""


# -- counting ----------------------------------------------------------------------------------------------


def counts_of(lists: pa.Array) -> np.ndarray:
    """Return the length of each list."""
    offsets = np.asarray(lists.offsets)
    return offsets[1:] - offsets[:-1]


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


def placed(values: pa.Array, there: np.ndarray, rows: np.ndarray | None = None) -> pa.Array:
    """
    Return an array with *values*, strings or bytes, in order where *there* is true, and null elsewhere.

    *rows* are the indexes of *there*, for a caller that has them.
    """
    if len(values) == len(there):
        return values
    _, own, data = values.buffers()
    if len(values):
        rows = np.flatnonzero(there) if rows is None else rows
        ends = np.frombuffer(own, np.int32)[values.offset : values.offset + len(values) + 1]
        if len(rows) * _SPARSE < len(there):
            offsets = np.repeat(ends, np.diff(rows, prepend=-1, append=len(there)))
        else:
            offsets = np.zeros(len(there) + 1, np.int32)
            offsets[0] = ends[0]
            offsets[rows + 1] = ends[1:]
            np.maximum.accumulate(offsets, out=offsets)
    else:
        offsets = np.zeros(len(there) + 1, np.int32)
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


def checked_text(values: pa.Array) -> pa.Array:
    """
    Return bytes without nulls as strings.

    Valid values that follow each other are valid as one, and then each begins with the first byte of a character. So
    one pass over all bytes replaces a check of each value.

    Raises:
        FallbackNeededError: a value is not UTF-8.
    """
    if not len(values):
        return pa.nulls(0, pa.string())
    _, offsets, data = values.buffers()
    places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    start, end = int(places[0]), int(places[-1])
    if end > start:
        raw = np.frombuffer(data, np.uint8)[start:end]
        if int(raw.max()) >= _NOT_ASCII:
            whole = [None, pa.py_buffer(np.array([start, end], np.int32)), data]
            try:
                pa.Array.from_buffers(pa.string(), 1, whole).validate(full=True)
            except pa.ArrowInvalid as error:
                raise FallbackNeededError from error
            begins = places[:-1][places[1:] > places[:-1]] - start
            if (raw[begins] & _CONTINUATION_MASK == _NOT_ASCII).any():
                raise FallbackNeededError
    return pa.Array.from_buffers(pa.string(), len(values), [None, offsets, data], offset=values.offset)


def counts_of_binary(values: pa.Array) -> np.ndarray:
    """Return the length of each string in bytes."""
    if len(values) == 0:
        return np.zeros(0, np.int32)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    return offsets[1:] - offsets[:-1]


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
        pa.string(), len(values), [_nulls_where(unset), doubled, pa.py_buffer(hexlify(raw.data))]
    )


def _without_bits(raw: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return which of the strings in *raw* are empty or all zeros."""
    lengths = offsets[1:] - offsets[:-1]
    unset: np.ndarray = lengths == 0
    there = ~unset
    count = int(np.count_nonzero(there))
    if not count:
        return unset
    width = len(raw) // count
    # Empty strings have no bytes, so the others are contiguous.
    if width in _ID_BYTES and width * count == len(raw) and int(lengths.max()) == width:
        words = raw.view(np.uint64)
        zeros = words == 0 if width == _WORD_BYTES else (words[0::2] | words[1::2]) == 0
    else:
        zeros = np.bitwise_or.reduceat(raw, offsets[:-1][there]) == 0
    if zeros.any():
        unset[there] = zeros
    return unset


def numbers_array(numbers: np.ndarray, kind: pa.DataType, valid: np.ndarray | None = None) -> pa.Array:
    """Return an array of *kind*, whose values are as wide as *numbers*; null where *valid* is false."""
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(numbers), [bitmap, pa.py_buffer(numbers)])


def signed(values: pa.Array) -> pa.Array:
    """Return unsigned 64-bit numbers as int64; numbers that do not fit are null."""
    numbers = np.ascontiguousarray(values)
    fits = numbers <= _INT64_MAX
    return numbers_array(numbers, pa.int64(), None if fits.all() else fits)


nanoseconds = signed
"""Exact nanoseconds since the epoch; 0 is unknown, null is beyond the year 2262."""


def times(values: pa.Array) -> pa.Array:
    """Return nanoseconds since the epoch as timestamps, truncated to microseconds; 0 (unknown) is null."""
    numbers = np.asarray(values)
    known = numbers != 0
    return numbers_array(numbers // np.uint64(1000), TIME, None if known.all() else known)


def widened(values: pa.Array) -> pa.Array:
    """Return 32-bit numbers as int64."""
    return numbers_array(np.asarray(values).astype(np.int64), pa.int64())


def repeated_numbers(values: pa.Array, which: np.ndarray) -> pa.Array:
    """Return the 32-bit numbers at the indexes *which* as int64."""
    return numbers_array(np.asarray(values).astype(np.int64).take(which), pa.int64())


def repeated_texts(values: pa.Array, which: np.ndarray) -> pa.Array:
    """Return the strings at the indexes *which*; the empty string is null."""
    found = texts(values)
    return pa.nulls(len(which), pa.string()) if found.null_count == len(found) else found.take(pa.array(which))


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
    if len(keys) <= _FEW_KEYS:
        names = iter(keys.to_pylist())
        if any(len(set(islice(names, count))) < count for count in counts.tolist()):
            raise FallbackNeededError
        return
    if len(keys) >= _MANY_KEYS:
        keys, counts = _distinct_lists(keys, counts)
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


def _distinct_lists(keys: pa.Array, counts: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """
    Return lists of keys among which each distinct list occurs, and their lengths.

    Records of one kind have the same keys, so there are few. Two lists are equal if their keys have the same lengths
    and the same bytes.
    """
    _, offsets, data = keys.buffers()
    places = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    lengths = places[1:] - places[:-1]
    if data is None or int(lengths.max()) > _KEY_BYTES_MAX:
        return keys, counts
    begins = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=begins[1:])
    texts = _encoded(begins, places, data)
    if len(texts.dictionary) * 2 > len(counts):
        return keys, counts
    sizes = _encoded(begins, None, pa.py_buffer(lengths.astype(np.uint8)))
    kinds = len(sizes.dictionary)
    if len(texts.dictionary) * kinds > _KEY_TABLE_BYTES_MAX:
        return keys, counts
    one_of = np.full(len(texts.dictionary) * kinds, -1, np.int64)
    one_of[np.asarray(texts.indices).astype(np.int64) * kinds + np.asarray(sizes.indices)] = np.arange(len(counts))
    picked = one_of[one_of >= 0]
    of_list = counts[picked]
    ends = np.cumsum(of_list)
    within = np.repeat(begins[picked] - (ends - of_list), of_list) + np.arange(int(ends[-1]))
    return keys.take(pa.array(within)), of_list


def _encoded(begins: np.ndarray, places: np.ndarray | None, data: pa.Buffer) -> Any:
    offsets = pa.py_buffer(begins if places is None else places[begins])
    return pa.Array.from_buffers(pa.binary(), len(begins) - 1, [None, offsets, data]).dictionary_encode()
