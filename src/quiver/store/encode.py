"""
Serialises the slots of a bundle once, for the log and the segment.

The bytes of the Arrow message that the WAL writes are the bytes that the segment's IPC file gathers later. Schemas and
fingerprints are cached per slot, the newest first, because a producer sends the same schema repeatedly.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from quiver.bundle import batch_bytes, schema_fingerprint
from quiver.errors import BundleTooLargeError, InvalidBundleError
from quiver.primitives.arena import Arena
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.kernel import KERNEL
from quiver.store.format.wal_entry import ENTRY_BYTES_MAX, SLOT_HEAD, WalSlot
from quiver.store.segment.accumulator import EncodedRun, EncodedSlot, StreamSchema, check_schema, self_contained
from quiver.store.segment.ipc_file import END_OF_STREAM, is_one_batch_message
from quiver.store.segment.pieced import PIECES_BYTES_MIN, PiecedMessage, pieced
from quiver.store.wal.entry_layout import EntryLayouts
from quiver.store.wal.scan import ScannedEntries

__all__ = ["EncodedBundle", "SlotEncoder", "copy_message_in_python", "slot_pieces", "write_slots"]

_END = struct.Struct(f"{len(END_OF_STREAM)}s")
_SCHEMAS_PER_SLOT_MAX = 64
_MESSAGE_HEAD = struct.Struct("<II")

ROWS_MAX = 2**32 - 1
_BYTES_MAX = ENTRY_BYTES_MAX - 4096


class EncodedBundle(NamedTuple):
    """
    One bundle, serialised for the log and the open segment.

    Attributes:
        slots: for the open segment, ascending.
        bitmap: bit n is set when slot n is present.
        nbytes: the length of the entry between its head and its checksum.
    """

    slots: list[EncodedSlot]
    bitmap: int
    nbytes: int


_encoded_bundle: Callable[[tuple[list[EncodedSlot], int, int]], EncodedBundle] = partial(
    tuple.__new__, EncodedBundle
)  # three times as fast as the constructor; called for every bundle


def write_slots(slots: list[EncodedSlot], region: memoryview, at: int) -> None:
    """
    Copy the bytes of the slots into *region* at offset *at*, and make each slot's message a view of the region.

    The serialised originals are released: a segment keeps only the logged entries.
    """
    for slot in slots:
        stream = slot.stream_schema
        message = slot.message
        head = stream.head
        # One call for head and schema's message: small bundles are made of such calls.
        head.pack_into(
            region, at, slot.slot, stream.fingerprint, slot.row_count, slot.payload_bytes, stream.schema_bytes
        )
        start = at + head.size
        at = start + len(message)
        slot.message = kept = region[start:at]
        kept[:] = message
        if not stream.has_dictionaries:
            _END.pack_into(region, at, END_OF_STREAM)
            at += _END.size


def copy_message_in_python(region: memoryview, message: Buffer) -> memoryview:
    """Copy *message* to *region*, which has its size, and return it from there."""
    region[:] = message
    return region


_copy_message: Callable[[memoryview, Any], Any] = copy_message_in_python if KERNEL is None else KERNEL.copy_message


def keep_messages(slots: list[EncodedSlot], arena: Arena) -> None:
    """
    Copy the messages of *slots* to *arena*, and release the serialized originals.

    The arena reuses memory; large memory that is allocated for each message would cost more than the copy.
    """
    for slot in slots:
        message = slot.message
        if type(message) is not PiecedMessage:
            slot.message = _copy_message(arena.take(len(message)), message)


def slot_pieces(slot: EncodedSlot, head_bytes: int) -> tuple[bytearray, bytes]:
    """Return the bytes of an entry before the slot's message, after space for *head_bytes*, and those after it."""
    stream = slot.stream_schema
    schema_message = b"" if stream.has_dictionaries else stream.schema_message
    start = head_bytes + SLOT_HEAD.size
    head = bytearray(start + len(schema_message))
    SLOT_HEAD.pack_into(head, head_bytes, slot.slot, stream.fingerprint, slot.row_count, slot.payload_bytes)
    head[start:] = schema_message
    return head, b"" if stream.has_dictionaries else END_OF_STREAM


class SlotEncoder:
    """
    Turns batches into encoded slots. Safe to call from several threads.

    Args:
        keeps_batches: keep large batches whose buffers cannot change, instead of serializing them.
    """

    def __init__(self, *, keeps_batches: bool = False) -> None:
        self._keeps_batches = keeps_batches
        self._schemas: dict[int, list[StreamSchema]] = {}
        # By slot, of the entry adopted last: fingerprint, the schema's message, and what it means.
        self._logged_schemas: dict[int, tuple[bytes, bytes, StreamSchema]] = {}
        self._layouts = EntryLayouts()

    def encode(
        self, slots: Mapping[int, pa.RecordBatch], fingerprints: Mapping[int, bytes] | None = None
    ) -> EncodedBundle:
        """
        Serialise every slot once.

        *fingerprints* replaces the computed ones when another writer's log is replayed.

        Raises:
            InvalidBundleError: a type that Arrow IPC cannot carry.
            BundleTooLargeError: more bytes or rows than an entry can hold.
        """
        encoded: list[EncodedSlot] = []
        bitmap = 0
        total = 0
        for slot, batch in slots.items():
            stream = self._stream_schema(slot, batch.schema, fingerprints[slot] if fingerprints else None)
            rows = batch.num_rows
            if stream.has_dictionaries:
                message = self_contained(batch)
                size = len(message)
            else:
                message = None
                # `nbytes` looks at each column; the size of all buffers is known, and small batches have small ones.
                if (
                    self._keeps_batches
                    and batch.get_total_buffer_size() >= PIECES_BYTES_MIN
                    and batch_bytes(batch) >= PIECES_BYTES_MIN
                    and not fingerprints
                ):
                    message = pieced(batch, len(stream.schema_message))
                if message is None:
                    message = batch.serialize()
                size = len(stream.schema_message) + len(message) + len(END_OF_STREAM)
            total += SLOT_HEAD.size + size
            if rows > ROWS_MAX or total > _BYTES_MAX:
                raise _too_large(slot, rows)
            bitmap |= 1 << slot
            encoded.append(EncodedSlot(slot, stream, rows, message, size))
        return _encoded_bundle((encoded, bitmap, total))

    def encode_logged(self, slots: Sequence[WalSlot]) -> EncodedBundle | None:
        """
        Return the slots of a log entry without decoding or copying: messages are views into it.

        Return None if a slot does not have the layout of `encode`, or its schema has dictionaries.
        """
        encoded: list[EncodedSlot] = []
        bitmap = 0
        total = 0
        for slot, fingerprint, row_count, payload in slots:
            size = len(payload)
            message_end = size - len(END_OF_STREAM)
            if message_end < _MESSAGE_HEAD.size or payload[message_end:] != END_OF_STREAM:
                return None
            known = self._logged_schemas.get(slot)
            schema_end = 0 if known is None else len(known[1])
            if known is not None and known[0] == fingerprint and payload[:schema_end] == known[1]:
                stream = known[2]
            else:
                schema_end = _MESSAGE_HEAD.size + _MESSAGE_HEAD.unpack_from(payload)[1]
                stream_schema = self._schema_from_log(slot, fingerprint, payload[:schema_end])
                if stream_schema is None:
                    return None
                stream = stream_schema
            message = payload[schema_end:message_end].cast("b")  # as the arena and pyarrow have it
            if not is_one_batch_message(message):
                return None
            bitmap |= 1 << slot
            total += SLOT_HEAD.size + size
            encoded.append(EncodedSlot(slot, stream, row_count, message, size))
        if len(slots) == 1:
            self._layouts.learn(slots[0], encoded[0].stream_schema, encoded[0].message)
        return _encoded_bundle((encoded, bitmap, total))

    def encode_run(self, entries: ScannedEntries, at: int) -> EncodedRun | None:
        """
        Return consecutive entries from *at* on whose layouts `encode_logged` has seen before, as it would return them.

        Return None if not even the first one is among them.
        """
        return self._layouts.run(entries, at)

    def _schema_from_log(self, slot: int, fingerprint: bytes, schema_message: memoryview) -> StreamSchema | None:
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(schema_message))
            stream = self._stream_schema(slot, schema, fingerprint)
        except (pa.ArrowException, OSError, InvalidBundleError):
            return None
        if stream.has_dictionaries or stream.schema_message != schema_message:
            return None
        self._logged_schemas[slot] = fingerprint, bytes(schema_message), stream
        return stream

    def _stream_schema(self, slot: int, schema: pa.Schema, fingerprint: bytes | None) -> StreamSchema:
        known = self._schemas.get(slot)
        if known is not None:
            for stream in known:
                if (fingerprint is None or stream.fingerprint == fingerprint) and stream.schema.equals(
                    schema, check_metadata=True
                ):
                    return stream
        return self._learn(slot, schema, fingerprint)

    def _learn(self, slot: int, schema: pa.Schema, fingerprint: bytes | None) -> StreamSchema:
        has_dictionaries = check_schema(schema)
        stream = StreamSchema(
            schema=schema,
            fingerprint=schema_fingerprint(schema) if fingerprint is None else fingerprint,
            schema_message=schema.serialize(),
            has_dictionaries=has_dictionaries,
        )
        # A new list, because another thread may be iterating over the old one.
        self._schemas[slot] = [stream, *self._schemas.get(slot, ())][:_SCHEMAS_PER_SLOT_MAX]
        return stream


def _too_large(slot: int, rows: int) -> BundleTooLargeError:
    if rows > ROWS_MAX:
        return BundleTooLargeError(
            f"the bundle is too large: slot {slot} has {rows} rows; a slot holds at most {ROWS_MAX}"
        )
    return BundleTooLargeError(f"the bundle is too large: it takes more than {_BYTES_MAX} bytes serialised; divide it")
