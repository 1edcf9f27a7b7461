"""
Decoding of one OTAP stream: messages in order → tables with plain ids.

The payloads of one type form an Arrow IPC stream with growing dictionaries. The meaning of a message depends on earlier
ones, so after the first error nothing more can be decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from quiver.otap.conversion_errors import ConversionError, or_raise
from quiver.otap.stream.arrow_message import ArrowPayload, decode_records
from quiver.otap.stream.dictionaries import StreamDictionaries
from quiver.otap.stream.ipc_messages import DICTIONARY, RECORD_BATCH, SCHEMA, IpcMessage, parse_messages
from quiver.otap.stream.transport_ids import plain_ids
from quiver.otap.tables.payload_arrays import Flat
from quiver.otap.tables.payload_schema import TABLES, signal_named
from quiver.primitives.scan import Damage

__all__ = ["ArrowBatch", "StreamDecoder", "StreamLimits"]

_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)
"""The buffers of a batch are small: waking a thread pool takes longer than decompressing one of them."""
_COLUMNS_MAX = 64
_DEPTH_MAX = 4


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """
    The limits of one stream.

    Attributes:
        message_bytes_max: the size of a message.
        inflated_bytes_max: the decompressed size of all buffers of a message.
        dictionary_values_max: the number of values in a dictionary.
        dictionaries_bytes_max: the size of all dictionaries that the stream still uses.
    """

    message_bytes_max: int = 4 * 1024 * 1024
    inflated_bytes_max: int = 128 * 1024 * 1024
    dictionary_values_max: int = 65_536
    dictionaries_bytes_max: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ArrowBatch:
    """
    One decoded message.

    Attributes:
        batch_id: the id for its status.
        tables: payload type → batch with plain ids, ascending; without empty tables.
        headers: HPACK blocks, which must be passed to the stream's HPACK decoder even if they are not used.
        decoded: payload type → columns that were decoded from dictionaries, to avoid decoding them again.
    """

    batch_id: int
    tables: Mapping[int, pa.RecordBatch]
    headers: bytes = b""
    decoded: Mapping[int, Flat] = field(default_factory=dict, repr=False, compare=False)


class _Feed:
    """A file with the last payload that was put into it. Arrow does not read beyond the current message."""

    closed = False

    def __init__(self) -> None:
        self._data = b""
        self._at = 0

    def put(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def drained(self) -> bool:
        return self._at == len(self._data)

    def read(self, size: int = -1) -> bytes:
        end = len(self._data) if size < 0 else min(self._at + size, len(self._data))
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(slots=True)
class _Reader:
    """One IPC stream: its reader, and the number of values and bytes of its dictionaries."""

    schema_id: str
    feed: _Feed = field(default_factory=_Feed)
    reader: Any = None
    values: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    dictionaries: StreamDictionaries = field(default_factory=StreamDictionaries)

    def count(self, ipc_message: IpcMessage) -> None:
        before = (
            (self.values.get(ipc_message.dictionary, 0), self.sizes.get(ipc_message.dictionary, 0))
            if ipc_message.is_delta
            else (0, 0)
        )
        self.values[ipc_message.dictionary] = before[0] + ipc_message.rows
        self.sizes[ipc_message.dictionary] = before[1] + ipc_message.bytes_inflated


class StreamDecoder:
    """
    Decodes the messages of one stream, each once and in order. Not thread-safe.

    Args:
        signal: `logs`, `traces` or `metrics`, from the stream's method.
        limits: the limits of the stream.

    Raises:
        UsageError: no such signal.
    """

    def __init__(self, signal: str, limits: StreamLimits | None = None) -> None:
        self._payloads = frozenset(signal_named(signal).payloads)
        self._signal = signal
        self._limits = limits or StreamLimits()
        self._readers: dict[int, _Reader] = {}
        self._types: dict[str, int] = {}
        self._failed: Damage | None = None
        self.batch_id: int | None = None
        """The id of the last message, also if it was refused; None if the id could not be decoded."""

    @property
    def dictionary_bytes(self) -> int:
        """The decompressed size of the stream's dictionaries."""
        return sum(sum(reader.sizes.values()) for reader in self._readers.values())

    def decode(self, message: bytes) -> ArrowBatch:
        """
        Return the tables of a `BatchArrowRecords`, fully validated.

        After an error, every further call raises the same error: end the stream.

        Raises:
            InvalidBundleError: the message is malformed, exceeds a limit, or does not fit the stream.
        """
        return or_raise(self.try_decode(message))

    def try_decode(self, message: bytes) -> ArrowBatch | Damage:
        """Decode like `decode`, but return the reason instead of raising."""
        self.batch_id = None
        if self._failed is not None:
            return self._failed
        if len(message) > self._limits.message_bytes_max:
            self._failed = Damage(
                0, f"{len(message)} bytes in a message; the limit is {self._limits.message_bytes_max}"
            )
            return self._failed
        records = decode_records(message)
        if isinstance(records, Damage):
            self._failed = records
            return records
        self.batch_id = records.batch_id
        budget = self._limits.inflated_bytes_max
        tables: dict[int, pa.RecordBatch] = {}
        decoded: dict[int, Flat] = {}
        try:
            for payload in sorted(records.payloads, key=lambda found: found.payload):
                columns: Flat = {}
                batch, inflated = self._table(payload, budget, columns)
                budget -= inflated
                if batch.num_rows:
                    tables[payload.payload], decoded[payload.payload] = batch, columns
        except ConversionError as refusal:
            self._failed = Damage(0, str(refusal))
        except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError, StopIteration) as error:
            self._failed = Damage(0, f"Arrow refuses it: {str(error)[:300] or type(error).__name__}")
        return self._failed or ArrowBatch(records.batch_id, tables, records.headers, decoded)

    def _table(self, payload: ArrowPayload, budget: int, decoded: Flat) -> tuple[pa.RecordBatch, int]:
        if payload.payload not in self._payloads:
            raise ConversionError(f"payload type {payload.payload} does not belong to {self._signal}")
        table = TABLES[payload.payload]
        reader = self._reader(payload)
        messages = parse_messages(payload.record)
        inflated = self._check(reader, messages, table.name, table.rows_max, budget)
        reader.feed.put(payload.record)
        if reader.reader is None:
            reader.reader = pa.ipc.open_stream(reader.feed, options=_OPTIONS)
            _check_schema(reader.reader.schema, table.name)
        batch = reader.reader.read_next_batch()
        if not reader.feed.drained:
            raise ConversionError(f"{table.name}: bytes after the record batch")
        if any(ipc_message.kind == DICTIONARY and not ipc_message.is_delta for ipc_message in messages):
            reader.dictionaries.reset()
        batch = reader.dictionaries.validated(batch)
        return plain_ids(payload.payload, batch, decoded), inflated

    def _reader(self, payload: ArrowPayload) -> _Reader:
        known = self._types.setdefault(payload.schema_id, payload.payload)
        if known != payload.payload:
            raise ConversionError(f"schema id {payload.schema_id!r} is already used by {TABLES[known].name}")
        reader = self._readers.get(payload.payload)
        if reader is None or reader.schema_id != payload.schema_id:
            # The previous stream is not used again. Its id is reserved only while it is the newest of its type.
            if reader is not None:
                del self._types[reader.schema_id]
            reader = self._readers[payload.payload] = _Reader(payload.schema_id)
        return reader

    def _check(self, reader: _Reader, messages: list[IpcMessage], name: str, rows_max: int, budget: int) -> int:
        """Check the order and the limits of the messages. Return their decompressed size."""
        kinds = [ipc_message.kind for ipc_message in messages]
        head = [SCHEMA] if reader.reader is None else []
        middle = kinds[len(head) : -1]
        if kinds[: len(head)] != head or kinds[-1:] != [RECORD_BATCH] or any(kind != DICTIONARY for kind in middle):
            expected = f"{'a schema, ' if head else ''}dictionaries, then one record batch"
            raise ConversionError(f"{name}: expected {expected}, not {kinds}")
        inflated = sum(ipc_message.bytes_inflated for ipc_message in messages)
        if inflated > budget:
            sizes = f"{name} takes {inflated} bytes decompressed, and {budget} are left"
            raise ConversionError(f"the batch is too large: {sizes}")
        if messages[-1].rows > rows_max:
            raise ConversionError(f"{name}: {messages[-1].rows} rows; the limit is {rows_max}")
        for ipc_message in messages[len(head) : -1]:
            reader.count(ipc_message)
            if reader.values[ipc_message.dictionary] > self._limits.dictionary_values_max:
                raise ConversionError(
                    f"{name}: a dictionary of {reader.values[ipc_message.dictionary]} values; "
                    f"the limit is {self._limits.dictionary_values_max}"
                )
        if self.dictionary_bytes > self._limits.dictionaries_bytes_max:
            raise ConversionError(
                f"{name}: the dictionaries of the stream take {self.dictionary_bytes} bytes; "
                f"the limit is {self._limits.dictionaries_bytes_max}"
            )
        return inflated


def _check_schema(schema: pa.Schema, name: str) -> None:
    if len(schema) > _COLUMNS_MAX:
        raise ConversionError(f"{name}: {len(schema)} columns; the limit is {_COLUMNS_MAX}")
    for column in schema:
        _check_type(column.type, name, column.name, 1)


def _check_type(kind: pa.DataType, name: str, column: str, depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise ConversionError(f"{name}: column {column[:64]} nests too deep")
    if pa.types.is_dictionary(kind):
        return _check_type(kind.value_type, name, column, depth + 1)
    if pa.types.is_struct(kind) or pa.types.is_list(kind):
        if kind.num_fields > _COLUMNS_MAX:
            raise ConversionError(f"{name}: column {column[:64]} has {kind.num_fields} columns")
        for at in range(kind.num_fields):
            _check_type(kind.field(at).type, name, column, depth + 1)
        return None
    if kind.id not in _KINDS:
        raise ConversionError(f"{name}: column {column[:64]} is {str(kind)[:64]}, which OTAP does not have")
    return None


_KINDS = frozenset(
    kind.id
    for kind in (
        pa.bool_(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int8(), pa.int16(), pa.int32(), pa.int64(),
        pa.float64(), pa.string(), pa.binary(), pa.binary(1), pa.timestamp("ns"), pa.duration("ns"),
    )
)  # fmt: skip
