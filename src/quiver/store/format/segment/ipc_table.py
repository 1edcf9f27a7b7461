"""
A table inside a segment: one Arrow IPC file with exactly one record batch. Bytes only.

Columns are found by name and must have exactly the expected type. Other columns and unknown schema metadata are
ignored, so that a later writer may add some. Decoded data is validated fully: pyarrow trusts the offsets that
it reads, and a table may be read before its checksum is verified.
"""

from __future__ import annotations

from array import array
from functools import cache
from typing import Any, Literal

import pyarrow as pa

from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Damage

__all__ = ["ascending", "column_of", "decode_table", "decode_table_head", "encode_table", "fixed_width", "view_of"]

_ASCENDING_MAX = 65_537
_NUMBER_BYTES = array("I").itemsize

_ARROW_ERRORS = (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError)
"""Everything that pyarrow raises on invalid bytes; ValueError covers names that are not UTF-8."""


def encode_table(batch: pa.RecordBatch) -> bytes:
    """Return *batch* as a complete IPC file, uncompressed, metadata version 5."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def decode_table(buffer: Buffer | pa.Buffer, *, what: str, at: int) -> pa.RecordBatch | Damage:
    """
    Return the first record batch of the IPC file in *buffer*, without copying where Arrow allows it.

    *what* names the table and *at* is its file offset, both for a damage report.
    """
    try:
        reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(buffer)))
        if reader.num_record_batches < 1:
            return Damage(at, f"the {what} has no record batch")
        batch = reader.get_batch(0)
        batch.validate(full=True)
    except _ARROW_ERRORS as error:
        return Damage(at, f"the {what} is not a valid Arrow IPC file: {_first_line(error)}")
    return batch


def decode_table_head(buffer: Buffer | pa.Buffer, *, what: str, at: int) -> tuple[dict[bytes, bytes], int] | Damage:
    """Return the schema's metadata and the number of rows, without reading any value."""
    try:
        reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(buffer)))
        if reader.num_record_batches < 1:
            return Damage(at, f"the {what} has no record batch")
        return reader.schema.metadata or {}, reader.get_batch(0).num_rows
    except _ARROW_ERRORS as error:
        return Damage(at, f"the {what} is not a valid Arrow IPC file: {_first_line(error)}")


def column_of(batch: pa.RecordBatch, name: str, kind: pa.DataType, *, what: str, at: int) -> pa.Array | Damage:
    """Return column *name* of *batch* if it exists once, has exactly the type *kind* and no nulls."""
    index = batch.schema.get_field_index(name)
    if index < 0:
        return Damage(at, f"the {what} has no column {name}")
    column = batch.column(index)
    if column.type != kind:
        return Damage(at, f"column {name} of the {what} is not {kind}")
    if column.null_count:
        return Damage(at, f"column {name} of the {what} has nulls")
    return column


def fixed_width(values: array[int], kind: pa.DataType) -> pa.Array:
    """
    Return *values* as a column of *kind*, which has their width. Nothing is copied.

    `pa.array` would import pandas if it is installed, which takes most of a second that the process does not need.
    """
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def view_of(column: pa.Array, code: Literal["H", "i", "I", "Q"]) -> memoryview:
    """Return the values of a fixed-width *column* as a view of items of struct type *code*, without copying."""
    values: Any = column.buffers()[1]
    if values is None or not len(column):
        return memoryview(b"").cast(code)
    width = column.type.bit_width // 8
    return memoryview(values)[column.offset * width : (column.offset + len(column)) * width].cast(code)


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__


def ascending(first: int, count: int) -> bytes:
    """Return the bytes of *count* numbers of 32 bits from *first* on; fewer if they end before. Cheap for low ones."""
    if first + count > _ASCENDING_MAX:
        return array("I", range(first, min(first + count, 1 << 32))).tobytes()
    return _all_ascending()[first * _NUMBER_BYTES : (first + count) * _NUMBER_BYTES]


@cache
def _all_ascending() -> bytes:
    return array("I", range(_ASCENDING_MAX)).tobytes()
