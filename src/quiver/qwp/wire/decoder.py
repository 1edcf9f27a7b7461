"""
Decoding of messages from any client of this protocol: both dialects, both encodings of nulls, compressed or not.

All input is validated: every count is compared with the remaining bytes, every offset with the previous one, every
symbol with the dictionary. A refused message does not change the dictionary.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quiver.primitives.packing import Cursor, ShortageError
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore
from quiver.qwp.wire.column_types import DECIMAL_BYTES, FIXED_BYTES, TIMESTAMPS, ColumnType
from quiver.qwp.wire.decoded import Column, Table, fits_decimal
from quiver.qwp.wire.gorilla import take_gorilla
from quiver.qwp.wire.message import (
    COLUMNS_MAX,
    MESSAGE_HEADER,
    MESSAGE_MAGIC,
    MESSAGE_VERSION,
    NAME_BYTES_MAX,
    ROWS_MAX,
    SYMBOL_BYTES_MAX,
    Dialect,
    Flags,
)
from quiver.qwp.wire.varint import VarintError, take_varint, take_varints

__all__ = [
    "MESSAGE_BYTES_MAX",
    "SYMBOLS_MAX",
    "DecodedMessage",
    "SymbolDelta",
    "SymbolDictionary",
    "decode_message",
    "decode_symbol_delta",
]

MESSAGE_BYTES_MAX = 256 << 20
SYMBOLS_MAX = 2_000_000
_KNOWN_FLAGS = Flags.DEFER_COMMIT | Flags.DURABLE_POLL | Flags.GORILLA | Flags.DELTA_SYMBOLS
_BYTE = struct.Struct("<B")
_DIMENSIONS_MAX = 32
_TYPES = {int(kind): kind for kind in ColumnType}


class _UnreadableError(ShortageError):
    """A shortage with its own reason. Never leaves this module."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(offset, 1)
        self.reason = reason


@dataclass(slots=True)
class SymbolDictionary:
    """The symbols of a connection: id → symbol, without gaps."""

    entries: list[str] = field(default_factory=list)

    def accept(self, start: int, symbols: Sequence[str]) -> None:
        """Add *symbols* from id *start* on. Existing ids may be sent again, even with other symbols."""
        if start == len(self.entries):
            self.entries.extend(symbols)
            return
        # A new list: earlier decoded tables keep their symbols.
        self.entries = [*self.entries[:start], *symbols, *self.entries[start + len(symbols) :]]


@dataclass(frozen=True, slots=True)
class DecodedMessage:
    """One message. `symbols` are those it contains, from id `symbols_start` on."""

    flags: int
    tables: tuple[Table, ...]
    symbols_start: int
    symbols: tuple[str, ...]
    dialect: Dialect

    @property
    def is_self_sufficient(self) -> bool:
        """Whether the message contains every symbol that it uses."""
        return self.symbols_start == 0


def decode_message(view: memoryview, dictionary: SymbolDictionary | None = None) -> Answer[DecodedMessage]:
    """
    Decode the message at the start of *view*. Its symbols are added to *dictionary* if the entire message is valid.

    Without a dictionary the message must be self-sufficient.
    """
    header = _decode_header(view)
    if not isinstance(header, Frame):
        return header
    flags, table_count = header.value
    payload = view[: header.end]
    known = dictionary if dictionary is not None else SymbolDictionary()
    first: Damage | None = None
    for dialect in ("inline", "schema"):
        try:
            message = _decode_payload(payload, flags, table_count, known.entries, dialect)
        except (ShortageError, VarintError) as error:
            # The message does not identify its dialect. If neither fits, report the first error.
            first = first or Damage(error.offset, getattr(error, "reason", "the message ends inside a field"))
            continue
        if message.symbols:
            known.accept(message.symbols_start, message.symbols)
        return Frame(message, header.end)
    return first or Damage(0, "unreadable")


@dataclass(frozen=True, slots=True)
class SymbolDelta:
    """The dictionary part of a message: symbols from id `start` on, and the offset after them."""

    start: int
    symbols: tuple[str, ...]
    end: int


def decode_symbol_delta(view: memoryview) -> Answer[SymbolDelta]:
    """Decode only the dictionary part of a message."""
    header = _decode_header(view)
    if not isinstance(header, Frame):
        return header
    cursor = Cursor(view[: header.end], MESSAGE_HEADER.size)
    try:
        start, symbols = _take_symbols(cursor, SYMBOLS_MAX) if header.value[0] & Flags.DELTA_SYMBOLS else (0, ())
    except (ShortageError, VarintError) as error:
        return Damage(error.offset, getattr(error, "reason", "the message ends inside its symbols"))
    return Frame(SymbolDelta(start, symbols, cursor.offset), header.end)


def _decode_header(view: memoryview) -> Answer[tuple[int, int]]:
    if not MESSAGE_MAGIC.startswith(bytes(view[:4])):
        return Damage(0, "not a QWP message: the magic does not match")
    if len(view) < MESSAGE_HEADER.size:
        return NeedMore(MESSAGE_HEADER.size - len(view))
    _, version, flags, table_count, payload_bytes = MESSAGE_HEADER.unpack_from(view)
    if version != MESSAGE_VERSION:
        return Damage(4, f"unsupported version {version} of a QWP message")
    if flags & ~_KNOWN_FLAGS:
        return Damage(5, f"unknown flags {flags & ~_KNOWN_FLAGS:#04x}")
    if payload_bytes > MESSAGE_BYTES_MAX:
        return Damage(8, f"the payload has {payload_bytes} bytes; the maximum is {MESSAGE_BYTES_MAX}")
    end = MESSAGE_HEADER.size + payload_bytes
    if len(view) < end:
        return NeedMore(end - len(view))
    return Frame((flags, table_count), end)


def _decode_payload(
    view: memoryview, flags: int, table_count: int, known: Sequence[str], dialect: Dialect
) -> DecodedMessage:
    cursor = Cursor(view, MESSAGE_HEADER.size)
    start, brought = _take_symbols(cursor, len(known)) if flags & Flags.DELTA_SYMBOLS else (0, ())
    symbols: Sequence[str] = brought
    if start:
        symbols = [*known[:start], *brought, *known[start + len(brought) :]] if brought else known
    elif len(brought) < len(known):
        symbols = [*brought, *known[len(brought) :]]
    reader = _TableReader(cursor, flags, symbols, dialect)
    tables = tuple(reader.take_table() for _ in range(min(table_count, cursor.remaining)))
    if len(tables) < table_count:
        raise ShortageError(cursor.offset, 1)
    if cursor.remaining:
        raise _UnreadableError(cursor.offset, f"{cursor.remaining} bytes after the last table")
    return DecodedMessage(flags, tables, start, brought, dialect)


def _take_count(cursor: Cursor, what: str, most: int) -> int:
    start = cursor.offset
    count = take_varint(cursor)
    if count > most:
        raise _UnreadableError(start, f"{count} {what}; the maximum is {most}")
    return count


def _take_text(cursor: Cursor, what: str, bytes_max: int) -> str:
    size = _take_count(cursor, f"bytes of a {what}", bytes_max)
    start = cursor.offset
    try:
        return str(cursor.view(size), "utf-8")
    except UnicodeDecodeError:
        raise _UnreadableError(start, f"the {what} is not UTF-8") from None


def _take_symbols(cursor: Cursor, known: int) -> tuple[int, tuple[str, ...]]:
    at = cursor.offset
    start = take_varint(cursor)
    if start > known:
        raise _UnreadableError(at, f"symbols from id {start} on, but only {known} are known")
    count = _take_count(cursor, "symbols", min(SYMBOLS_MAX - start, cursor.remaining))
    return start, tuple(_take_text(cursor, "symbol", SYMBOL_BYTES_MAX) for _ in range(count))


def _is_text(offsets: np.ndarray[Any, Any], data: memoryview) -> bool:
    # Valid as one text, and no offset splits a character: then every value is UTF-8, too.
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        return False
    starts = np.frombuffer(data, np.uint8)[offsets[offsets < len(data)]]
    return not ((starts & 0xC0) == 0x80).any()


class _TableReader:
    """The state that all columns of a message share during decoding."""

    def __init__(self, cursor: Cursor, flags: int, symbols: Sequence[str], dialect: Dialect) -> None:
        self._cursor = cursor
        self._flags = flags
        self._symbols = symbols
        self._schema_mode = dialect == "schema"

    def take_table(self) -> Table:
        cursor = self._cursor
        start = cursor.offset
        name = _take_text(cursor, "table name", NAME_BYTES_MAX)
        if not name:
            raise _UnreadableError(start, "a table has no name")
        rows = _take_count(cursor, "rows", ROWS_MAX)
        columns = _take_count(cursor, "columns", COLUMNS_MAX)
        if self._schema_mode:
            at = cursor.offset
            if cursor.take(_BYTE)[0]:
                raise _UnreadableError(at, "the table refers to a schema of another message")
            take_varint(cursor)
        definitions = [self._take_definition() for _ in range(columns)]
        return Table(name, rows, tuple(self._take_column(*one, rows) for one in definitions))

    def _take_definition(self) -> tuple[str, ColumnType]:
        name = _take_text(self._cursor, "column name", NAME_BYTES_MAX)
        at = self._cursor.offset
        code = self._cursor.take(_BYTE)[0]
        if code not in _TYPES:
            raise _UnreadableError(at, f"unknown column type {code:#04x}")
        if not name and _TYPES[code] not in TIMESTAMPS:
            raise _UnreadableError(at, f"the designated timestamp has the type {_TYPES[code].name}")
        return name, _TYPES[code]

    def _take_column(self, name: str, kind: ColumnType, rows: int) -> Column:
        cursor = self._cursor
        nulls: np.ndarray[Any, Any] | None = None
        present = rows
        if cursor.take(_BYTE)[0]:
            bits = np.frombuffer(cursor.view((rows + 7) // 8), np.uint8)
            nulls = np.unpackbits(bits, count=rows, bitorder="little").astype(bool)
            present = rows - int(nulls.sum())
        if kind is ColumnType.SYMBOL:
            return Column(name, kind, rows, nulls, self._take_symbol_ids(present), symbols=self._symbols_of_column)
        scale = 0
        if kind in DECIMAL_BYTES:
            scale = cursor.take(_BYTE)[0]
            if scale > 76:
                raise _UnreadableError(cursor.offset - 1, f"invalid decimal scale {scale}")
        elif kind is ColumnType.GEOHASH:
            at = cursor.offset
            scale = take_varint(cursor)
            if not 1 <= scale <= 60:
                raise _UnreadableError(at, f"invalid geohash size of {scale} bits")
        return Column(name, kind, rows, nulls, self._take_values(kind, present, scale), scale=scale)

    def _take_symbol_ids(self, present: int) -> np.ndarray[Any, Any]:
        cursor = self._cursor
        symbols = self._symbols
        if not self._flags & Flags.DELTA_SYMBOLS:
            count = _take_count(cursor, "symbols", cursor.remaining)
            symbols = tuple(_take_text(cursor, "symbol", SYMBOL_BYTES_MAX) for _ in range(count))
        self._symbols_of_column = symbols
        start = cursor.offset
        ids = take_varints(cursor, present)
        if len(ids) and int(ids.max()) >= len(symbols):
            raise _UnreadableError(start, f"symbol {int(ids.max())}, but only {len(symbols)} are known")
        return ids

    def _take_values(self, kind: ColumnType, present: int, scale: int) -> Any:
        cursor = self._cursor
        if kind is ColumnType.BOOLEAN:
            bits = np.frombuffer(cursor.view((present + 7) // 8), np.uint8)
            return np.unpackbits(bits, count=present, bitorder="little").astype(bool)
        if kind in TIMESTAMPS and self._flags & Flags.GORILLA:
            at = cursor.offset
            encoding = cursor.take(_BYTE)[0]
            if encoding > 1:
                raise _UnreadableError(at, f"unknown timestamp encoding {encoding}")
            if encoding:
                return take_gorilla(cursor, present)
        if kind in {ColumnType.VARCHAR, ColumnType.BINARY}:
            return self._take_bytes(kind, present)
        if kind in {ColumnType.DOUBLE_ARRAY, ColumnType.LONG_ARRAY}:
            dtype = np.dtype("<f8" if kind is ColumnType.DOUBLE_ARRAY else "<i8")
            return [self._take_array(dtype) for _ in range(min(present, cursor.remaining + 1))]
        if kind in DECIMAL_BYTES:
            return self._take_decimals(kind, present, scale)
        width = FIXED_BYTES.get(kind) or (scale + 7) // 8
        return np.frombuffer(cursor.view(present * width), np.uint8).reshape(present, width)

    def _take_bytes(self, kind: ColumnType, present: int) -> tuple[np.ndarray[Any, Any], memoryview]:
        cursor = self._cursor
        at = cursor.offset
        offsets = np.frombuffer(cursor.view((present + 1) * 4), "<u4")
        if offsets[0] or (np.diff(offsets.astype(np.int64)) < 0).any():
            raise _UnreadableError(at, "the offsets of texts do not increase from 0")
        data = cursor.view(int(offsets[-1]))
        if kind is ColumnType.VARCHAR and not _is_text(offsets, data):
            raise _UnreadableError(at, "a text is not UTF-8")
        return offsets, data

    def _take_decimals(self, kind: ColumnType, present: int, scale: int) -> np.ndarray[Any, Any]:
        at = self._cursor.offset
        width = DECIMAL_BYTES[kind]
        data = np.frombuffer(self._cursor.view(present * width), np.uint8).reshape(present, width)
        if not fits_decimal(kind, data, scale):
            raise _UnreadableError(at, f"a {kind.name} has too many digits")
        return data

    def _take_array(self, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        cursor = self._cursor
        at = cursor.offset
        dimensions = cursor.take(_BYTE)[0]
        if not 1 <= dimensions <= _DIMENSIONS_MAX:
            raise _UnreadableError(at, f"an array has {dimensions} dimensions")
        shape = np.frombuffer(cursor.view(4 * dimensions), "<i4").tolist()
        size = 1
        for length in shape:
            size *= length
            if length < 0 or size * dtype.itemsize > cursor.remaining:
                raise _UnreadableError(at, f"invalid array shape {shape}")
        values = np.frombuffer(cursor.view(size * dtype.itemsize), dtype)
        try:
            return values.reshape(shape)
        except ValueError:
            # It is empty, so no byte is missing; but its other dimensions exceed the limits of an array.
            raise _UnreadableError(at, f"invalid array shape {shape}") from None
