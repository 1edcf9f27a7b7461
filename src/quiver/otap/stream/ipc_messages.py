"""
Checks of Arrow IPC messages before Arrow reads them.

Arrow trusts lengths: a few bytes can request gigabytes, and compressed buffers state their decompressed size only
inside. So every length is read here first and compared with the available bytes and a budget. Only the three kinds of
messages of a stream are accepted.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from quiver.otap.conversion_errors import ConversionError

__all__ = ["DICTIONARY", "RECORD_BATCH", "SCHEMA", "IpcMessage", "parse_messages"]

SCHEMA, DICTIONARY, RECORD_BATCH = 1, 2, 3

_METADATA_BYTES_MAX = 1 << 20
_BUFFERS_MAX = 4096
_CONTINUATION = 0xFFFFFFFF
_ALIGNMENT = 8
_STORED_RAW = -1


@dataclass(frozen=True, slots=True)
class IpcMessage:
    """
    One IPC message.

    Attributes:
        kind: `SCHEMA`, `DICTIONARY` or `RECORD_BATCH`.
        rows: rows of the batch, or values of the dictionary; 0 for a schema.
        bytes_inflated: the decompressed size of its buffers.
        dictionary: the dictionary's id; -1 for the others.
        is_delta: whether the values are appended to the dictionary.
    """

    kind: int
    rows: int = 0
    bytes_inflated: int = 0
    dictionary: int = -1
    is_delta: bool = False


def parse_messages(data: bytes) -> list[IpcMessage]:
    """
    Return the IPC messages of a payload's record, with all lengths checked.

    Raises:
        ConversionError: the bytes are not complete IPC messages, or are of a kind that producers do not send.
    """
    found = []
    at = 0
    try:
        while at < len(data):
            message, at = _message(data, at)
            found.append(message)
    except struct.error:
        raise ConversionError(f"IPC: the message at byte {at} ends too early") from None
    return found


def _message(data: bytes, start: int) -> tuple[IpcMessage, int]:
    mark, size = struct.unpack_from("<II", data, start)
    if mark != _CONTINUATION:
        raise ConversionError(f"IPC: no message starts at byte {start}")
    begin = start + 8
    if not 0 < size <= _METADATA_BYTES_MAX or begin + size > len(data):
        raise ConversionError(f"IPC: the message at byte {start} has {size} bytes of metadata")
    flat = _Flat(data[begin : begin + size])
    message = flat.root()
    kind = flat.scalar(message, 1, "B", 0)
    body_bytes = flat.scalar(message, 3, "q", 0)
    body = begin + size
    if not 0 <= body_bytes <= len(data) - body or body_bytes % _ALIGNMENT:
        raise ConversionError(f"IPC: the message at byte {start} has a body of {body_bytes} bytes")
    header = flat.table(message, 2)
    if header is None:
        raise ConversionError(f"IPC: the message at byte {start} has no header")
    end = body + body_bytes
    if kind == SCHEMA:
        return IpcMessage(SCHEMA), end
    if kind == RECORD_BATCH:
        rows, inflated = _batch(flat, header, memoryview(data)[body:end])
        return IpcMessage(RECORD_BATCH, rows, inflated), end
    if kind == DICTIONARY:
        batch = flat.table(header, 1)
        if batch is None:
            raise ConversionError(f"IPC: the dictionary at byte {start} has no values")
        rows, inflated = _batch(flat, batch, memoryview(data)[body:end])
        identity = flat.scalar(header, 0, "q", 0)
        return IpcMessage(DICTIONARY, rows, inflated, identity, bool(flat.scalar(header, 2, "B", 0))), end
    raise ConversionError(f"IPC: the message at byte {start} is of kind {kind}")


def _batch(flat: _Flat, batch: int, body: memoryview) -> tuple[int, int]:
    """Return the rows of a record batch, and the decompressed size of its buffers."""
    rows = flat.scalar(batch, 0, "q", 0)
    compression = flat.table(batch, 3)
    nodes, node_count = flat.vector(batch, 1, 16)
    buffers, buffer_count = flat.vector(batch, 2, 16)
    if rows < 0 or buffer_count > _BUFFERS_MAX or node_count > _BUFFERS_MAX:
        raise ConversionError(f"IPC: a batch of {rows} rows, {node_count} columns and {buffer_count} buffers")
    if flat.vector(batch, 4, 8)[1]:
        raise ConversionError("IPC: a batch with view columns")
    for length, nulls in struct.iter_unpack("<qq", flat.data[nodes : nodes + 16 * node_count]):
        if length < 0 or not 0 <= nulls <= length:
            raise ConversionError(f"IPC: a column of {length} values, {nulls} of them null")
    inflated = 0
    for offset, length in struct.iter_unpack("<qq", flat.data[buffers : buffers + 16 * buffer_count]):
        if offset < 0 or length < 0 or offset + length > len(body):
            raise ConversionError(f"IPC: a buffer of {length} bytes at {offset}, in a body of {len(body)}")
        inflated += length
        if compression is not None and length:
            if length < 8:
                raise ConversionError(f"IPC: a compressed buffer of {length} bytes")
            size = int(struct.unpack_from("<q", body, offset)[0])
            if size < _STORED_RAW:
                raise ConversionError(f"IPC: a compressed buffer of {size} bytes")
            inflated += max(size, 0)
    return rows, inflated


class _Flat:
    """A flatbuffer, read with bounds checks. `struct` raises for offsets outside of it."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def root(self) -> int:
        return self._at(0, 0)

    def _at(self, place: int, base: int) -> int:
        target = base + int(struct.unpack_from("<I", self.data, place)[0])
        if not 0 <= target <= len(self.data) - 4:
            raise ConversionError("IPC: metadata that points outside of itself")
        return target

    def field(self, table: int, slot: int) -> int | None:
        """Return the offset of a table's field; None if it is left out."""
        vtable = table - int(struct.unpack_from("<i", self.data, table)[0])
        if not 0 <= vtable <= len(self.data) - 4:
            raise ConversionError("IPC: metadata that points outside of itself")
        size = int(struct.unpack_from("<H", self.data, vtable)[0])
        if 4 + 2 * slot + 2 > size:
            return None
        offset = int(struct.unpack_from("<H", self.data, vtable + 4 + 2 * slot)[0])
        return table + offset if offset else None

    def scalar(self, table: int, slot: int, code: str, unset: int) -> int:
        place = self.field(table, slot)
        return unset if place is None else int(struct.unpack_from(f"<{code}", self.data, place)[0])

    def table(self, table: int, slot: int) -> int | None:
        place = self.field(table, slot)
        return None if place is None else self._at(place, place)

    def vector(self, table: int, slot: int, item_bytes: int) -> tuple[int, int]:
        """Return the offset of a vector's first item, and the number of items."""
        place = self.field(table, slot)
        if place is None:
            return 0, 0
        start = self._at(place, place)
        count = int(struct.unpack_from("<I", self.data, start)[0])
        if start + 4 + count * item_bytes > len(self.data):
            raise ConversionError("IPC: metadata that points outside of itself")
        return start + 4, count
