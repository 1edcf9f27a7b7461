"""
Encoding of one OTAP stream: tables → messages, with dictionaries that grow from message to message.

A column that was sent once is always sent, so that schemas rarely change. A dictionary starts with an index of 8 bits,
then 16 bits. When its values no longer fit, it is emptied if values repeat; otherwise the column becomes plain. A
column whose values hardly ever repeat becomes plain with its second batch. Each new schema gets a schema id that was
not used before on the stream.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from quiver.errors import UsageError
from quiver.otap.conversion_errors import ConversionError, or_raise
from quiver.otap.stream.arrow_message import ArrowPayload, encode_records
from quiver.otap.stream.transport_order import WireTables, sorted_tables, wire_rows
from quiver.otap.tables.payload_arrays import INDEX_TYPES, PRESENCE, Flat, default_array
from quiver.otap.tables.payload_schema import SIGNALS, TABLES, Column, signal_named
from quiver.primitives.scan import Damage

__all__ = ["COMPRESSIONS", "EncodedBatch", "StreamEncoder"]

COMPRESSIONS = ("zstd", "none")
"""The compression of the buffers inside payloads."""

_DICTIONARY_BYTES_MAX = 4 * 1024 * 1024
_REPEATED = 0.3
"""Ratio of distinct values: below it, a full dictionary is emptied; above it, the column becomes plain."""

_UNREPEATED = 15 / 16
_ROWS_MIN = 256
"""
Above this ratio of distinct values among at least that many rows, a dictionary takes more bytes and time than it
saves, and the column becomes plain before the dictionary is full. Not with the first batch: a stream of one batch would
have two schemas.
"""


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """
    One message.

    Attributes:
        batch_id: the id for its status.
        message: the bytes of a `BatchArrowRecords`.
        items: the number of rows of the root table.
    """

    batch_id: int
    message: bytes
    items: int


@dataclass(slots=True)
class _Growing:
    """A dictionary of the stream: its values, and the width of its index (0: the column is plain)."""

    bits: int
    values: pa.Array
    places: dict[Any, int] = field(default_factory=dict)
    bytes: int = 0
    inserted: int = 0

    def empty(self) -> None:
        self.values = self.values.slice(0, 0)
        self.places = {}
        self.bytes = self.inserted = 0


@dataclass(slots=True)
class _Writer:
    """One payload type of the stream: the columns sent so far, and its IPC stream."""

    columns: set[str] = field(default_factory=set)
    dictionaries: dict[str, _Growing] = field(default_factory=dict)
    schema: pa.Schema | None = None
    schema_id: str = ""
    sink: io.BytesIO = field(default_factory=io.BytesIO)
    ipc: Any = None


class StreamEncoder:
    """
    Encodes the messages of one stream, in order. Not thread-safe.

    Args:
        signal: `logs`, `traces` or `metrics`.
        payload_compression: `zstd` or `none`.
        metric_metadata: also send `Metric.metadata`; one implementation refuses every batch that has it.
        message_bytes_max: the maximum size of a message; by default receivers refuse more than 4 MiB.

    Raises:
        UsageError: no such signal or compression.
    """

    def __init__(
        self,
        signal: str,
        *,
        payload_compression: str = "zstd",
        metric_metadata: bool = False,
        message_bytes_max: int = 4 * 1024 * 1024,
    ) -> None:
        if payload_compression not in COMPRESSIONS:
            raise UsageError(f"payload compression {payload_compression!r}: use one of {', '.join(COMPRESSIONS)}")
        self._root = signal_named(signal).root
        self._signal = signal
        self._compression = None if payload_compression == "none" else payload_compression
        self._metric_metadata = metric_metadata
        self._message_bytes_max = message_bytes_max
        self._writers: dict[int, _Writer] = {}
        self._schema_ids = 0
        self._batch_id = 0

    def encode(self, tables: Mapping[int, pa.RecordBatch], headers: bytes = b"") -> tuple[EncodedBatch, ...]:
        """
        Return the messages for the tables, to be sent in this order.

        There are several if one would be too large, and none for tables without root rows. The encoder can still be
        used after an error.

        Raises:
            InvalidBundleError: the tables are not of this signal, or cannot be encoded.
        """
        return or_raise(self.try_encode(tables, headers))

    def try_encode(
        self, tables: Mapping[int, pa.RecordBatch], headers: bytes = b""
    ) -> tuple[EncodedBatch, ...] | Damage:
        """Encode like `encode`, but return the reason instead of raising."""
        strange = sorted(set(tables) - set(SIGNALS[self._signal].payloads))
        if strange:
            return Damage(0, f"payload types {strange} do not belong to {self._signal}")
        made: list[EncodedBatch] = []
        batch_id = self._batch_id
        try:
            found = sorted_tables(tables, self._signal)
            if not self._metric_metadata:
                found.pop(26, None)
            root = found.get(self._root)
            rows = len(root["resource.id"]) if root is not None else 0
            size = sum(array.nbytes for columns in found.values() for array in columns.values())
            step = max(1, rows // (1 + 2 * size // self._message_bytes_max))
            for start in range(0, rows, step):
                made += self._encode(found, start, min(start + step, rows), headers)
        except (ConversionError, pa.ArrowException) as refusal:
            self._batch_id = batch_id
            self._writers = {}
            return Damage(0, str(refusal))
        return tuple(made)

    def try_encode_all(
        self, sets: Iterable[Mapping[int, pa.RecordBatch]]
    ) -> tuple[tuple[EncodedBatch, ...], ...] | Damage:
        """Return the messages of each set of tables, to be sent in this order, or why one set cannot be encoded."""
        made: list[tuple[EncodedBatch, ...]] = []
        batch_id = self._batch_id
        for tables in sets:
            encoded = self.try_encode(tables)
            if isinstance(encoded, Damage):
                # The messages of earlier sets are not sent, so the dictionaries must not refer to them.
                self._batch_id = batch_id
                self._writers = {}
                return encoded
            made.append(encoded)
        return tuple(made)

    def _encode(self, found: WireTables, start: int, end: int, headers: bytes) -> list[EncodedBatch]:
        travelling = wire_rows(found, self._signal, start, end)
        payloads = [self._payload(payload, columns) for payload, columns in travelling.items()]
        message = encode_records(self._batch_id, payloads, headers)
        if len(message) > self._message_bytes_max:
            self._writers = {}  # this message is not sent: start new IPC streams
            if end - start == 1:
                raise ConversionError(f"a record takes {len(message)} bytes; the limit is {self._message_bytes_max}")
            middle = (start + end) // 2
            return [*self._encode(found, start, middle, headers), *self._encode(found, middle, end, headers)]
        self._batch_id += 1
        return [EncodedBatch(self._batch_id - 1, message, end - start)]

    def _payload(self, payload: int, columns: Flat) -> ArrowPayload:
        writer = self._writers.setdefault(payload, _Writer())
        table = TABLES[payload]
        rows = len(columns["parent_id" if "parent_id" in columns else "resource.id"])
        writer.columns |= set(columns)
        kept = [column for column in table.columns if column.name in writer.columns]
        arrays = {
            column.name: self._grown(writer, column, columns[column.name])
            if column.name in columns
            else self._grown(writer, column, default_array(column, rows))
            for column in kept
        }
        batch = _nested(kept, arrays, columns, rows)
        if writer.ipc is None or not batch.schema.equals(writer.schema):
            self._begin(writer, batch.schema)
        writer.ipc.write_batch(batch)
        record = writer.sink.getvalue()
        writer.sink.seek(0)
        writer.sink.truncate()
        return ArrowPayload(writer.schema_id, payload, record)

    def _begin(self, writer: _Writer, schema: pa.Schema) -> None:
        options = pa.ipc.IpcWriteOptions(compression=self._compression, emit_dictionary_deltas=True)
        writer.sink = io.BytesIO()
        writer.schema = schema
        writer.schema_id = str(self._schema_ids)
        writer.ipc = pa.ipc.new_stream(writer.sink, schema, options=options)
        self._schema_ids += 1

    @staticmethod
    def _grown(writer: _Writer, column: Column, array: pa.Array) -> pa.Array:
        """Return the column over the stream's dictionary, extended with this batch's new values."""
        if not column.index_bits:
            return array
        growing = writer.dictionaries.get(column.name)
        if growing is None:
            growing = writer.dictionaries[column.name] = _Growing(column.index_bits, array.slice(0, 0))
        if not growing.bits:
            return array
        encoded = array.dictionary_encode()
        values = encoded.dictionary.to_pylist()
        fresh = [at for at, value in enumerate(values) if value not in growing.places]
        growing.inserted += len(array)
        growing.bits = _bits(growing, len(growing.places) + len(fresh), len(values))
        if not growing.bits:
            growing.empty()
            return array
        most = next(most for bits, most, _ in INDEX_TYPES if bits == growing.bits)
        grown_bytes = growing.bytes + encoded.dictionary.nbytes
        if len(growing.places) + len(fresh) > most or (grown_bytes > _DICTIONARY_BYTES_MAX and growing.places):
            growing.empty()
            fresh = list(range(len(values)))
        if fresh:
            for at in fresh:
                growing.places[values[at]] = len(growing.places)
            added = encoded.dictionary.take(pa.array(fresh))
            growing.values = pa.concat_arrays([growing.values, added])
            growing.bytes += added.nbytes
        index = next(index for bits, _, index in INDEX_TYPES if bits == growing.bits)
        places = pa.array([growing.places[value] for value in values], index)
        return pa.DictionaryArray.from_arrays(places.take(encoded.indices), growing.values)


def _bits(growing: _Growing, values: int, of_batch: int) -> int:
    """Return the width of the index for *values* values, of which the batch has *of_batch*; 0 for a plain column."""
    if growing.places and growing.inserted >= _ROWS_MIN and values > growing.inserted * _UNREPEATED:
        return 0
    for bits, most, _ in INDEX_TYPES:
        if bits >= growing.bits and values <= most:
            return bits
    bits, most, _ = INDEX_TYPES[-1]
    return bits if of_batch <= most and values < growing.inserted * _REPEATED else 0


def _nested(kept: list[Column], arrays: Mapping[str, pa.Array], columns: Flat, rows: int) -> pa.RecordBatch:
    """Return the columns as a batch, with the children of structs nested."""
    fields: dict[str, pa.Field] = {}
    made: dict[str, pa.Array] = {}
    for column in kept:
        name = column.struct or column.name
        if name in made:
            continue
        if not column.struct:
            made[name] = arrays[name]
            fields[name] = pa.field(name, arrays[name].type, nullable=not column.required)
            continue
        inner = [other for other in kept if other.struct == name]
        named = [pa.field(other.leaf, arrays[other.name].type, nullable=not other.required) for other in inner]
        mask = None
        if name in PRESENCE:
            there = columns.get(name)
            mask = pa.array(np.ones(rows, np.bool_)) if there is None else pa.array(~np.asarray(there))
        made[name] = pa.StructArray.from_arrays([arrays[other.name] for other in inner], fields=named, mask=mask)
        fields[name] = pa.field(name, made[name].type)
    return pa.RecordBatch.from_arrays(list(made.values()), schema=pa.schema(list(fields.values())))
