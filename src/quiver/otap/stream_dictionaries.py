"""
The dictionaries of an OTAP stream: each value is validated once, and a batch keeps those that it uses.

A dictionary grows from message to message. As it stands in the stream it would be validated whole with every batch,
and kept whole with every batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["StreamDictionaries"]

_FEW = 256
"""Dictionaries of so many values are kept as they are."""


class StreamDictionaries:
    """
    How much of the dictionaries of one IPC stream was validated. They only grow, unless `begin_anew` is called.
    """

    def __init__(self) -> None:
        self._validated: dict[str, int] = {}

    def begin_anew(self) -> None:
        """
        Take note that a dictionary was replaced.
        """
        self._validated.clear()

    def sound(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """
        Return the batch, fully validated, with dictionaries no longer than it needs.

        Raises:
            ArrowInvalid: something in it is not sound.
        """
        batch.validate()
        columns = [self._sound(array, name) for name, array in zip(batch.schema.names, batch.columns, strict=True)]
        fields = [field.with_type(array.type) for field, array in zip(batch.schema, columns, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, batch.schema.metadata))

    def _sound(self, array: Any, path: str) -> pa.Array:
        if pa.types.is_dictionary(array.type):
            return self._compacted(array, path)
        if not pa.types.is_struct(array.type) or not _has_dictionaries(array.type):
            array.validate(full=True)
            return array
        fields = [array.type.field(at) for at in range(array.type.num_fields)]
        children = [self._sound(array.field(at), f"{path}.{at}") for at in range(len(fields))]
        mask = array.is_null() if array.null_count else None
        if mask is not None:
            fields = [field.with_nullable(True) for field in fields]
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

    def _compacted(self, array: Any, path: str) -> pa.Array:
        values = array.dictionary
        known = self._validated.get(path, 0)
        values.slice(known).validate(full=True)
        self._validated[path] = len(values)
        indices = array.indices
        indices.validate(full=True)
        there = np.asarray(indices.fill_null(0)) if indices.null_count else np.asarray(indices)
        if indices.null_count == len(indices):
            return pa.DictionaryArray.from_arrays(indices, values.slice(0, 0))
        if int(there.max()) >= len(values):
            raise pa.ArrowInvalid(f"index {int(there.max())} of a dictionary of {len(values)} values")
        if len(values) <= max(_FEW, len(indices)):
            return array
        used = np.zeros(len(values), np.bool_)
        used[np.asarray(indices.drop_null())] = True
        moved = (np.cumsum(used) - 1).astype(there.dtype)[there]
        mask = np.asarray(indices.is_null()) if indices.null_count else None
        kept = values.take(pa.array(np.flatnonzero(used)))
        return pa.DictionaryArray.from_arrays(pa.array(moved, indices.type, mask=mask), kept)


def _has_dictionaries(kind: pa.StructType) -> bool:
    return any(
        pa.types.is_dictionary(field.type) or (pa.types.is_struct(field.type) and _has_dictionaries(field.type))
        for field in kind
    )
