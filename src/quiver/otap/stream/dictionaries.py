"""
The dictionaries of an OTAP stream: each value is validated once, and each batch keeps only the values that it uses.

A dictionary grows from message to message. Without this module, all of it would be validated and stored with every
batch. If nearly every row has a different value, a dictionary saves nothing in transport and is expensive in storage,
because a segment merges the dictionaries of all its batches. Such a column is stored plain from then on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from quiver.otap.arrays import counts_of_binary, validity

__all__ = ["StreamDictionaries"]

_FEW = 256
"""Dictionaries with up to this many values are kept unchanged."""

_ROWS_TO_DECIDE = 64
"""The minimum number of rows for deciding whether values repeat."""

_GROWS_BYTES_MAX = 64 * 1024
"""Plain storage may double the size of a column and add this much."""


class StreamDictionaries:
    """How much of the dictionaries of one IPC stream was validated. They only grow, unless `reset` is called."""

    def __init__(self) -> None:
        self._validated: dict[str, int] = {}
        self._plain: set[str] = set()

    def reset(self) -> None:
        """Record that a dictionary was replaced."""
        self._validated.clear()

    def validated(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """
        Return the batch, fully validated, with dictionaries reduced to the values that it uses.

        Raises:
            ArrowInvalid: the batch is invalid.
        """
        batch.validate()
        found = batch.columns
        columns = [self._check(array, name) for name, array in zip(batch.schema.names, found, strict=True)]
        if all(column is array for column, array in zip(columns, found, strict=True)):
            return batch
        fields = [field.with_type(array.type) for field, array in zip(batch.schema, columns, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, batch.schema.metadata))

    def _check(self, array: Any, path: str) -> pa.Array:
        if pa.types.is_dictionary(array.type):
            return self._compacted(array, path)
        if not pa.types.is_struct(array.type) or not _has_dictionaries(array.type):
            array.validate(full=True)
            return array
        fields = [array.type.field(at) for at in range(array.type.num_fields)]
        found = [array.field(at) for at in range(len(fields))]
        children = [self._check(child, f"{path}.{at}") for at, child in enumerate(found)]
        if not array.null_count and all(child is before for child, before in zip(children, found, strict=True)):
            return array
        fields = [field.with_type(child.type) for field, child in zip(fields, children, strict=True)]
        mask = array.is_null() if array.null_count else None
        if mask is not None:
            fields = [field.with_nullable(True) for field in fields]
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

    def _compacted(self, array: Any, path: str) -> pa.Array:
        values = array.dictionary
        known = self._validated.get(path, 0)
        if len(values) != known:
            values.slice(known).validate(full=True)
            self._validated[path] = len(values)
        indices = array.indices
        indices.validate(full=True)
        places, most, rows = _places(indices), max(_FEW, len(indices)), len(indices) - indices.null_count
        if not rows and path in self._plain:
            return array.dictionary_decode()
        if not rows:
            return pa.DictionaryArray.from_arrays(indices, values.slice(0, 0)) if len(indices) else array
        repeats = path not in self._plain and (rows < _ROWS_TO_DECIDE or 2 * len(values) <= rows)
        if repeats and len(values) <= most and int(places.max()) < len(values):
            return array
        there = validity(indices)
        used = places[there]
        first, last = int(used.min()), int(used.max())
        if last >= len(values):
            raise pa.ArrowInvalid(f"index {last} into a dictionary of {len(values)} values")
        is_used = np.zeros(last + 1 - first, np.bool_)
        is_used[used - places.dtype.type(first)] = True
        kept = np.flatnonzero(is_used) + first
        if path in self._plain or (rows >= _ROWS_TO_DECIDE and 2 * len(kept) > rows):
            self._plain.add(path)
            if _stays_small(values, kept, used):
                return array.dictionary_decode()
        if len(values) <= most:
            return array
        if last - first < most:
            # The values added with this batch are contiguous.
            return _over(values.slice(first, last - first + 1), indices, there, used - places.dtype.type(first))
        new = np.empty(last + 1, places.dtype)
        new[kept] = np.arange(len(kept))
        return _over(values.take(pa.array(kept)), indices, there, new[used])


def _stays_small(values: pa.Array, kept: Any, used: Any) -> bool:
    """Return whether a column is about as small plain as with a dictionary: a long value may occur in many rows."""
    if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
        return bool(pa.types.is_primitive(values.type) or pa.types.is_fixed_size_binary(values.type))
    lengths = counts_of_binary(values)
    taken = int(lengths[used].sum(dtype=np.int64))
    return taken <= 2 * int(lengths[kept].sum(dtype=np.int64)) + _GROWS_BYTES_MAX


def _over(values: pa.Array, indices: pa.Array, there: Any, moved: Any) -> pa.Array:
    """Return a dictionary array over *values*, with the non-null indices *moved* in the type of *indices*."""
    if not indices.null_count:
        buffers = [None, pa.py_buffer(moved)]
    else:
        filled = np.zeros(len(indices), moved.dtype)
        filled[there] = moved
        buffers = [pa.py_buffer(np.packbits(there, bitorder="little")), pa.py_buffer(filled)]
    keys = pa.Array.from_buffers(indices.type, len(indices), buffers)
    return pa.DictionaryArray.from_arrays(keys, values)


def _places(indices: pa.Array) -> Any:
    """Return the indices as unsigned numbers, undefined for nulls. A negative index becomes out of range."""
    if not len(indices):
        return np.zeros(0, np.uint8)
    unsigned = np.dtype(f"u{indices.type.bit_width // 8}")
    return np.frombuffer(indices.buffers()[1], unsigned)[indices.offset : indices.offset + len(indices)]


def _has_dictionaries(kind: pa.StructType) -> bool:
    return any(
        pa.types.is_dictionary(field.type) or (pa.types.is_struct(field.type) and _has_dictionaries(field.type))
        for field in kind
    )
