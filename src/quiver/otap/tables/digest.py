"""
A digest of OTAP tables that does not depend on their encoding, to recognize tables that were sent before.

The same batch on another stream has other dictionaries, other omitted columns and other encodings of its ids. The
digest is over plain ids and decoded dictionaries, with defaults normalized.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from quiver.otap.arrays import truths, validity
from quiver.otap.conversion_errors import ConversionError
from quiver.otap.stream.transport_ids import plain_columns
from quiver.otap.tables.payload_arrays import PRESENCE, Flat, is_all_default
from quiver.otap.tables.payload_schema import TABLES
from quiver.primitives.scan import Damage

__all__ = ["DIGEST_BYTES", "digest_of_columns", "digest_of_tables"]

DIGEST_BYTES = 16


def digest_of_tables(tables: Mapping[int, pa.RecordBatch]) -> bytes | Damage:
    """Return 128 bits of BLAKE3 over the tables' content, or why they are invalid. The order of rows matters."""
    try:
        columns = {payload: plain_columns(payload, batch) for payload, batch in tables.items()}
    except (ConversionError, KeyError) as refusal:
        return Damage(0, f"invalid tables: {refusal}")
    return digest_of_columns(columns, {payload: batch.num_rows for payload, batch in tables.items()})


def digest_of_columns(columns: Mapping[int, Flat], rows: Mapping[int, int]) -> bytes:
    """Return the digest of decoded tables: payload type → columns with plain ids, and → number of rows."""
    digest = blake3(b"otap tables")
    for payload, flat in sorted(columns.items()):
        digest.update(f"{payload} {rows[payload]};".encode())
        _add_table(digest, payload, flat)
    return digest.digest(length=DIGEST_BYTES)


def _add_table(digest: Any, payload: int, flat: Flat) -> None:
    for struct in PRESENCE:
        if struct in flat:
            _add(digest, struct, flat[struct])
    for column in TABLES[payload].columns:
        array = flat.get(column.name)
        if array is None:
            continue
        if array.null_count and not column.optional and not pa.types.is_fixed_size_binary(column.type):
            array = _without_nulls(array)
        if not is_all_default(column, array):
            _add(digest, column.name, array)


def _add(digest: Any, name: str, array: pa.Array) -> None:
    digest.update(f"{name};".encode())
    if array.null_count:
        digest.update(np.packbits(validity(array)).data)
        array = _without_nulls(array)
    for part in _parts(array):
        view = memoryview(part)
        if view.nbytes:
            digest.update(view.cast("B"))


def _without_nulls(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(_offsets(pc.fill_null(pc.list_value_length(array), 0)), array.flatten())
    if pa.types.is_temporal(kind):
        return pc.fill_null(array.view(pa.int64()), 0)
    if (pa.types.is_string(kind) or pa.types.is_binary(kind)) and not _hides_text(array):
        return pa.Array.from_buffers(kind, len(array), [None, *array.buffers()[1:]], offset=array.offset)
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        empty = bytes(kind.byte_width) if pa.types.is_fixed_size_binary(kind) else b""
        return pc.fill_null(array, pa.scalar(empty.decode() if pa.types.is_string(kind) else empty, kind))
    return pc.fill_null(array, pa.scalar(False if pa.types.is_boolean(kind) else 0, kind))


def _offsets(lengths: pa.Array) -> pa.Array:
    return pa.array(np.concatenate(([0], np.cumsum(np.asarray(lengths)))), pa.int32())


def _hides_text(array: pa.Array) -> bool:
    """Return whether a null has bytes. Decoded dictionaries have none."""
    return bool(np.diff(_places(array))[~validity(array)].any())


def _places(array: pa.Array) -> Any:
    """Return the start of each text, and the end of the last one."""
    if not len(array):
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]


def _parts(array: pa.Array) -> list[Any]:
    """Return the bytes of an array without nulls, independent of its offset."""
    kind = array.type
    if pa.types.is_list(kind):
        lengths = np.asarray(pc.list_value_length(array)).astype(np.int32)
        return [lengths, *_items(array.flatten())]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        places, data = _places(array), array.buffers()[2]
        start, end = int(places[0]), int(places[-1])
        return [np.diff(places), memoryview(data)[start:end] if end > start else b""]
    if pa.types.is_fixed_size_binary(kind):
        start, end = array.offset * kind.byte_width, (array.offset + len(array)) * kind.byte_width
        return [memoryview(array.buffers()[1])[start:end]]
    if pa.types.is_boolean(kind):
        return [np.packbits(truths(array))]
    return [np.asarray(array.view(pa.int64()) if pa.types.is_temporal(kind) else array)]


def _items(items: Any) -> list[Any]:
    """Return the bytes of list items, with zeros for nulls."""
    if pa.types.is_struct(items.type):
        children = [_without_nulls(child) for child in items.flatten()]
        return [part for child in children for part in _parts(child)]
    return _parts(_without_nulls(items))
