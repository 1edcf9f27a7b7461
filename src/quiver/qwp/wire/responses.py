"""
The server's answers, one per message.

::

    OK             u8 0x00, i64 sequence, u16 tables, per table: u16 length, name, i64 seqTxn
    DURABLE_ACK    u8 0x02,               u16 tables, per table: u16 length, name, i64 seqTxn
    error          u8 status, i64 sequence, u16 length (at most 1024), text

A sequence counts the messages of a connection from 0. An OK covers all messages up to it. A durable acknowledgement has
no sequence: it covers all transactions of each table up to the given one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from quiver.primitives.packing import Cursor, ShortageError
from quiver.primitives.scan import Answer, Damage, Frame

__all__ = [
    "ERROR_TEXT_BYTES_MAX",
    "DurableAck",
    "Ok",
    "Refusal",
    "Response",
    "Status",
    "decode_response",
    "encode_durable_ack",
    "encode_ok",
    "encode_refusal",
]

ERROR_TEXT_BYTES_MAX = 1024

_STATUS = struct.Struct("<B")
_SEQUENCE = struct.Struct("<q")
_COUNT = struct.Struct("<H")


class Status(IntEnum):
    """The first byte of an answer, as far as this client knows."""

    OK = 0x00
    DURABLE_ACK = 0x02
    SCHEMA_MISMATCH = 0x03
    PARSE_ERROR = 0x05
    INTERNAL_ERROR = 0x06
    SECURITY_ERROR = 0x08
    WRITE_ERROR = 0x09
    NOT_WRITABLE = 0x0C
    DICTIONARY_GAP = 0x0D
    LOCAL_DURABLE_ACK = 0x0E


@dataclass(frozen=True, slots=True)
class Ok:
    """All messages up to `sequence` are applied. `tables`: name → the transaction of the newest of them."""

    sequence: int
    tables: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DurableAck:
    """
    Each table's transactions up to the given one are durable.

    `is_local` marks those that are durable only on the server's own disk, which newer servers report separately.
    """

    tables: Mapping[str, int]
    is_local: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """The message `sequence` was refused. The server ignores everything that follows on this connection."""

    status: int
    sequence: int
    text: str


Response = Ok | DurableAck | Refusal


def decode_response(view: memoryview) -> Answer[Response]:
    """Decode one answer: all of *view*. A text message, an empty name or extra bytes are damage."""
    cursor = Cursor(view)
    try:
        response = _take_response(cursor)
    except ShortageError as shortage:
        return Damage(shortage.offset, "the answer ends inside a field")
    except UnicodeDecodeError:
        return Damage(cursor.offset, "a text is not UTF-8")
    if isinstance(response, Damage):
        return response
    if cursor.remaining:
        return Damage(cursor.offset, f"{cursor.remaining} bytes after the answer")
    return Frame(response, cursor.offset)


def _take_response(cursor: Cursor) -> Response | Damage:
    status = cursor.take(_STATUS)[0]
    if status in {Status.DURABLE_ACK, Status.LOCAL_DURABLE_ACK}:
        tables = _take_tables(cursor)
        if isinstance(tables, Damage):
            return tables
        return DurableAck(tables, is_local=status == Status.LOCAL_DURABLE_ACK)
    sequence = cursor.take(_SEQUENCE)[0]
    if status == Status.OK:
        tables = _take_tables(cursor)
        return tables if isinstance(tables, Damage) else Ok(sequence, tables)
    size = cursor.take(_COUNT)[0]
    if size > ERROR_TEXT_BYTES_MAX:
        return Damage(cursor.offset, f"the text has {size} bytes; the maximum is {ERROR_TEXT_BYTES_MAX}")
    return Refusal(status, sequence, str(cursor.view(size), "utf-8"))


def _take_tables(cursor: Cursor) -> dict[str, int] | Damage:
    tables: dict[str, int] = {}
    for _ in range(cursor.take(_COUNT)[0]):
        at = cursor.offset
        name = str(cursor.view(cursor.take(_COUNT)[0]), "utf-8")
        if not name:
            return Damage(at, "a table has no name")
        transaction = cursor.take(_SEQUENCE)[0]
        tables[name] = max(transaction, tables.get(name, transaction))
    return tables


def _encode_tables(tables: Mapping[str, int]) -> bytes:
    parts = [_COUNT.pack(len(tables))]
    for name, transaction in tables.items():
        data = name.encode()
        parts += (_COUNT.pack(len(data)), data, _SEQUENCE.pack(transaction))
    return b"".join(parts)


def encode_ok(ok: Ok) -> bytes:
    """Return the bytes of an OK."""
    return _STATUS.pack(Status.OK) + _SEQUENCE.pack(ok.sequence) + _encode_tables(ok.tables)


def encode_durable_ack(ack: DurableAck) -> bytes:
    """Return the bytes of a durable acknowledgement."""
    status = Status.LOCAL_DURABLE_ACK if ack.is_local else Status.DURABLE_ACK
    return _STATUS.pack(status) + _encode_tables(ack.tables)


def encode_refusal(refusal: Refusal) -> bytes:
    """Return the bytes of an error answer; a long text is truncated between two characters."""
    text = refusal.text.encode()[:ERROR_TEXT_BYTES_MAX].decode("utf-8", "ignore").encode()
    return _STATUS.pack(refusal.status) + _SEQUENCE.pack(refusal.sequence) + _COUNT.pack(len(text)) + text
