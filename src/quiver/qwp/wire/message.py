"""
Encoding of messages: tables of rows, in a form that any server understands without context.

::

    0   4  magic       b"QWP1"
    4   u8 version     1
    5   u8 flags       0x08: a symbol dictionary follows
    6   u16 tables
    8   u32 payload    bytes after this header
    12  varint dictionary start (0), varint symbols, each varint length and UTF-8
        per table: varint length and name, varint rows, varint columns,
                   per column: varint length and name (empty: the designated timestamp), u8 type
                   then the columns' values, in the same order

Symbols get ids from 0 in the order of their first use: table by table, column by column. A message contains every
symbol up to the highest id that it uses, so it can be sent to any server at any time. When messages share their ids
(`SymbolIds`), an id never changes its meaning in a later one; clients that store a dictionary next to the slot need
that to send it. Above a limit, each message assigns its own ids and contains only the symbols that it uses.

The older dialect has ``u8 0, varint schema id`` between a table's counts and its columns. The version is the same.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quiver.errors import UsageError
from quiver.primitives.disk.file_system import Buffer
from quiver.qwp.wire.columns import ColumnData, symbol_ids
from quiver.qwp.wire.varint import encode_varint

__all__ = [
    "BATCH_BYTES_DEFAULT",
    "COLUMNS_MAX",
    "MESSAGE_HEADER",
    "MESSAGE_MAGIC",
    "MESSAGE_VERSION",
    "NAME_BYTES_MAX",
    "ROWS_MAX",
    "SCHEMAS_MAX",
    "SYMBOL_BYTES_MAX",
    "TABLES_MAX",
    "Dialect",
    "Flags",
    "MessageBuffer",
    "SymbolIds",
    "TableData",
    "encode_message",
    "is_complete",
    "with_all_symbols",
]

MESSAGE_HEADER = struct.Struct("<4sBBHI")
MESSAGE_MAGIC = b"QWP1"
MESSAGE_VERSION = 1

TABLES_MAX = 65_535
ROWS_MAX = 1_000_000
COLUMNS_MAX = 2_048
NAME_BYTES_MAX = 127
SYMBOL_BYTES_MAX = 1 << 20
SCHEMAS_MAX = 65_535
BATCH_BYTES_DEFAULT = 2_097_138
"""The default limit of servers on the size of a message."""
_SHARED_SYMBOLS_MAX = 1_000
_SHARED_BYTES_MAX = 16 * 1024

Dialect = Literal["inline", "schema"]
"""`inline` is the dialect of servers since June 2026; `schema` is the dialect of the beta."""


class Flags:
    """The flag bits in the header."""

    DEFER_COMMIT = 0x01
    DURABLE_POLL = 0x02
    GORILLA = 0x04
    DELTA_SYMBOLS = 0x08


@dataclass(frozen=True, slots=True)
class TableData:
    """Rows of one table to encode. Every column has `rows` values."""

    name: str
    rows: int
    columns: Sequence[ColumnData]


def _text(text: str) -> bytes:
    data = text.encode()
    return encode_varint(len(data)) + data


def _checked_name(what: str, name: str) -> bytes:
    data = name.encode()
    if len(data) > NAME_BYTES_MAX:
        raise UsageError(f"{what} {name!r} has {len(data)} bytes; the maximum is {NAME_BYTES_MAX}")
    return encode_varint(len(data)) + data


def _encode_table(table: TableData, ids: dict[str, int], schemas: dict[bytes, int] | None, parts: list[Buffer]) -> int:
    """Add the table to *parts*. Return the highest symbol id that it uses, or -1 if there is none."""
    if not table.name:
        raise UsageError("a table needs a name")
    if not 0 <= table.rows <= ROWS_MAX:
        raise UsageError(f"table {table.name}: a message has at most {ROWS_MAX} rows of a table, not {table.rows}")
    if len(table.columns) > COLUMNS_MAX:
        raise UsageError(f"table {table.name}: a table has at most {COLUMNS_MAX} columns, not {len(table.columns)}")
    definitions = bytearray()
    for column in table.columns:
        if column.rows != table.rows:
            raise UsageError(f"table {table.name}: column {column.name} has {column.rows} rows, not {table.rows}")
        definitions += _checked_name("column", column.name)
        definitions.append(column.type)
    head = _checked_name("table", table.name) + encode_varint(table.rows) + encode_varint(len(table.columns))
    if schemas is not None:
        head += b"\0" + encode_varint(schemas.setdefault(bytes(definitions), len(schemas)))
    parts.append(head)
    parts.append(definitions)
    highest = -1
    for column in table.columns:
        parts.extend(column.parts)
        if column.symbols is not None:
            encoded, column_highest = symbol_ids(column.symbols, ids)
            highest = max(highest, column_highest)
            parts.append(encoded)
    return highest


class SymbolIds:
    """Symbol → id, shared by the messages of a sender until it is too large to be part of each of them."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._nbytes = 0
        self._encoded = bytearray()
        self._ends = [0]  # offsets in `_encoded`, by number of symbols

    def of_message(self) -> dict[str, int]:
        """Return the initial ids of a message: the shared ones, or none."""
        if len(self._ids) > _SHARED_SYMBOLS_MAX or self._nbytes > _SHARED_BYTES_MAX:
            return {}
        return self._ids

    def encode(self, ids: dict[str, int], count: int) -> bytes:
        """
        Return the dictionary part of a message with the first *count* of *ids*.

        Raises:
            UsageError: a symbol is too long.
        """
        if ids is not self._ids:
            return _encode_symbols(0, list(itertools.islice(ids, count)))
        for symbol in itertools.islice(ids, len(self._ends) - 1, count):
            self._encoded += _encode_symbol(symbol)
            self._ends.append(len(self._encoded))
        return encode_varint(0) + encode_varint(count) + bytes(memoryview(self._encoded)[: self._ends[count]])

    def keep(self, ids: dict[str, int], known: int, *, is_sent: bool) -> None:
        """
        Record the symbols that a message added to *ids*, which had *known* before, or discard them if no message was
        made.
        """
        if ids is not self._ids:
            return
        added = list(itertools.islice(ids, known, None))
        if is_sent:
            self._nbytes += sum(map(len, added))
            return
        for symbol in added:
            del ids[symbol]
        del self._ends[known + 1 :]
        del self._encoded[self._ends[-1] :]


class MessageBuffer:
    """
    A reusable buffer for the encoding of messages.

    Args:
        size_bytes: the initial size.
        bytes_max: the buffer doubles up to this size; a larger message gets its own memory.
    """

    def __init__(self, size_bytes: int, bytes_max: int) -> None:
        self._data = bytearray(size_bytes)
        self._bytes_max = bytes_max

    @property
    def size_bytes(self) -> int:
        """The current size."""
        return len(self._data)

    def join(self, parts: Sequence[Buffer]) -> Buffer:
        """Return *parts* concatenated; valid until the next call."""
        pieces = [memoryview(part).cast("B") for part in parts]
        size = sum(map(len, pieces))
        if size > self._bytes_max:
            return b"".join(parts)
        if size > len(self._data):
            # A new one: the old one may still have exported views, and then cannot be resized.
            self._data = bytearray(min(self._bytes_max, max(size, 2 * len(self._data))))
        view = memoryview(self._data)
        at = 0
        for piece in pieces:
            view[at : at + len(piece)] = piece
            at += len(piece)
        return view[:size]


def encode_message(
    tables: Sequence[TableData],
    *,
    dialect: Dialect = "inline",
    shared: SymbolIds | None = None,
    schemas_max: int = SCHEMAS_MAX,
    into: MessageBuffer | None = None,
) -> Buffer:
    """
    Return a message that contains *tables*, including its header. *shared* ids are used and extended.

    *schemas_max* limits the schemas of a message, which only the dialect `schema` numbers. With *into*, the message is
    stored there, and is valid until the next one is encoded into it.

    Raises:
        UsageError: a name, a count, a symbol or the number of schemas exceeds the limits of a message.
    """
    symbols = SymbolIds() if shared is None else shared
    ids = symbols.of_message()
    known = len(ids)
    try:
        parts = _encode_parts(tables, dialect, symbols, ids, schemas_max)
    except UsageError:
        symbols.keep(ids, known, is_sent=False)
        raise
    symbols.keep(ids, known, is_sent=True)
    return b"".join(parts) if into is None else into.join(parts)


def _encode_parts(
    tables: Sequence[TableData], dialect: Dialect, shared: SymbolIds, ids: dict[str, int], schemas_max: int
) -> list[Buffer]:
    if len(tables) > TABLES_MAX:
        raise UsageError(f"a message has at most {TABLES_MAX} tables, not {len(tables)}")
    schemas: dict[bytes, int] | None = {} if dialect == "schema" else None
    body: list[Buffer] = []
    highest = -1
    for table in tables:
        highest = max(highest, _encode_table(table, ids, schemas, body))
    if schemas is not None and len(schemas) > schemas_max:
        raise UsageError(f"the message has {len(schemas)} schemas; max_schemas_per_connection allows {schemas_max}")
    symbols = shared.encode(ids, highest + 1)
    payload_bytes = len(symbols) + sum(memoryview(part).nbytes for part in body)
    if payload_bytes > 0xFFFFFFFF:
        raise UsageError(f"a message has at most 4 GiB, not {payload_bytes} bytes")
    header = MESSAGE_HEADER.pack(MESSAGE_MAGIC, MESSAGE_VERSION, Flags.DELTA_SYMBOLS, len(tables), payload_bytes)
    return [header, symbols, *body]


def _encode_symbols(start: int, symbols: Sequence[str]) -> bytes:
    return b"".join([encode_varint(start), encode_varint(len(symbols)), *map(_encode_symbol, symbols)])


def _encode_symbol(symbol: str) -> bytes:
    data = symbol.encode()
    if len(data) > SYMBOL_BYTES_MAX:
        raise UsageError(f"a symbol has {len(data)} bytes; the maximum is {SYMBOL_BYTES_MAX}")
    return encode_varint(len(data)) + data


def with_all_symbols(message: bytes, symbols: Sequence[str], delta: tuple[int, int]) -> bytes:
    """
    Return *message* with all of *symbols* instead of its own, so that it can be sent without context.

    *delta* is the end of its own dictionary part, and the id after its last symbol. Ids do not change.
    """
    end, reach = delta
    magic, version, flags, tables, _ = MESSAGE_HEADER.unpack_from(message)
    dictionary = _encode_symbols(0, symbols[:reach])
    header = MESSAGE_HEADER.pack(magic, version, flags, tables, len(dictionary) + len(message) - end)
    return header + dictionary + message[end:]


def is_complete(data: Buffer) -> bool:
    """Return whether *data* is one complete message according to its header: magic, version and length."""
    view = memoryview(data)
    if len(view) < MESSAGE_HEADER.size:
        return False
    magic, version, _, _, payload_bytes = MESSAGE_HEADER.unpack_from(view)
    return bool(
        magic == MESSAGE_MAGIC and version == MESSAGE_VERSION and len(view) == MESSAGE_HEADER.size + payload_bytes
    )
