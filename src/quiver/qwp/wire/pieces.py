"""
Splitting of a message that is larger than a server accepts, into smaller ones with the same rows in the same order.

Columns keep their order, types and encoding of nulls (a bitmap or sentinels). Each piece contains the symbols that it
uses, so it can be sent without context. Compressed timestamps are decompressed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Answer, Frame
from quiver.qwp.wire.column_types import DECIMAL_BYTES, ColumnType
from quiver.qwp.wire.columns import ColumnData, array_column, symbol_column
from quiver.qwp.wire.decoded import Column, Table
from quiver.qwp.wire.decoder import DecodedMessage, decode_message
from quiver.qwp.wire.message import Flags, TableData, encode_message
from quiver.qwp.wire.varint import encode_varint

__all__ = ["MessagePiece", "as_group", "committing", "split_message"]

_FLAGS_OFFSET = 5
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class MessagePiece:
    """A part of a message, itself a message. A piece above the size limit is a single row."""

    message: bytes
    rows: int


def split_message(view: memoryview, bytes_max: int) -> Answer[list[MessagePiece]]:
    """Split the message *view*, which is self-sufficient, into messages of at most *bytes_max* bytes."""
    answer = decode_message(view)
    if not isinstance(answer, Frame):
        return answer
    message = answer.value
    ranges = [(table, 0, table.rows) for table in message.tables if table.rows and table.columns]
    # A message without rows is still sent, without its symbols: it commits the previous ones.
    pieces = list(_split(message, ranges, bytes_max)) or [MessagePiece(bytes(encode_message([])), 0)]
    return Frame(pieces, answer.end)


def as_group(pieces: Sequence[bytes], original: Buffer) -> list[bytes]:
    """
    Return *pieces* of the message *original* so that a server makes all their rows visible together: only the last one
    commits, unless the original did not either.
    """
    deferred = memoryview(original)[_FLAGS_OFFSET] & Flags.DEFER_COMMIT
    found = [bytearray(piece) for piece in pieces]
    for number, piece in enumerate(found):
        piece[_FLAGS_OFFSET] |= Flags.DEFER_COMMIT if number < len(found) - 1 else deferred
    return [bytes(piece) for piece in found]


def committing(message: Buffer) -> bytes:
    """Return *message* without the flag that defers the commit."""
    data = bytearray(message)
    data[_FLAGS_OFFSET] &= ~Flags.DEFER_COMMIT
    return bytes(data)


_Range = tuple[Table, int, int]


def _split(message: DecodedMessage, ranges: list[_Range], bytes_max: int) -> Iterator[MessagePiece]:
    rows = sum(stop - start for _, start, stop in ranges)
    if not rows:
        return
    encoded = encode_message([_table(*one) for one in ranges], dialect=message.dialect)
    if len(encoded) <= bytes_max or rows == 1:
        yield MessagePiece(bytes(encoded), rows)
    elif len(ranges) > 1:
        half = len(ranges) // 2
        yield from _split(message, ranges[:half], bytes_max)
        yield from _split(message, ranges[half:], bytes_max)
    else:
        # About as many rows as fit, and at least two parts.
        table, start, _ = ranges[0]
        parts = min(rows, len(encoded) // bytes_max + 1)
        bounds = [start + rows * part // parts for part in range(parts + 1)]
        for first, last in itertools.pairwise(bounds):
            yield from _split(message, [(table, first, last)], bytes_max)


def _table(table: Table, start: int, stop: int) -> TableData:
    return TableData(table.name, stop - start, [_column(one, start, stop) for one in table.columns])


def _column(column: Column, start: int, stop: int) -> ColumnData:
    """Return the rows from *start* to *stop* of a column, ready to encode."""
    nulls: Array | None = None
    first, last = start, stop  # of the non-null values
    header = b"\0"
    if column.nulls is not None:
        nulls = column.nulls[start:stop]
        first = int(np.count_nonzero(~column.nulls[:start]))
        last = first + int(np.count_nonzero(~nulls))
        header = b"\1" + np.packbits(nulls, bitorder="little").tobytes()
    kind = column.type
    if kind is ColumnType.SYMBOL:
        ids = column.present[first:last]
        used, where, indices = np.unique(ids, return_index=True, return_inverse=True)
        order = np.argsort(where, kind="stable")  # by first row
        ranks = np.empty(len(used), np.int64)
        ranks[order] = np.arange(len(used))
        values = [column.symbols[int(used[number])] for number in order]
        return symbol_column(column.name, values, ranks[indices], nulls)
    if kind in {ColumnType.DOUBLE_ARRAY, ColumnType.LONG_ARRAY}:
        return array_column(column.name, kind, column.present[first:last], nulls)
    return ColumnData(column.name, kind, stop - start, (header, *_values(column, first, last)))


def _values(column: Column, first: int, last: int) -> tuple[Buffer, ...]:
    kind, present = column.type, column.present
    if kind in {ColumnType.VARCHAR, ColumnType.BINARY}:
        offsets, data = present
        ends = offsets[first : last + 1]
        return (ends - ends[0]).astype("<u4").tobytes(), data[int(ends[0]) : int(ends[-1])]
    if kind is ColumnType.BOOLEAN:
        return (np.packbits(present[first:last], bitorder="little").tobytes(),)
    values = np.ascontiguousarray(present[first:last])
    if values.dtype.itemsize > 1:
        values = values.astype(values.dtype.newbyteorder("<"), copy=False)
    if kind in DECIMAL_BYTES:
        return bytes([column.scale]), values.tobytes()
    if kind is ColumnType.GEOHASH:
        return encode_varint(column.scale), values.tobytes()
    return (values.tobytes(),)
