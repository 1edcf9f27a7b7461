"""
A bundle's slots as the bytes that go to the log and to the segment, made once.

The Arrow message of a batch is serialised a single time: the buffer that the WAL writes is the buffer that the
segment's IPC file gathers later. Schemas and fingerprints are cached per slot, the last one used first, since
a producer sends the same schema again and again.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from quiver.bundle import schema_fingerprint
from quiver.errors import BundleInvalid
from quiver.store.format.wal_entry import ENTRY_BYTES_MAX, SLOT_HEAD
from quiver.store.segment.accumulator import EncodedSlot, StreamSchema, check_schema, self_contained

__all__ = ["EncodedBundle", "SlotEncoder"]

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_SCHEMAS_PER_SLOT_MAX = 64

ROWS_MAX = 2**32 - 1


class EncodedBundle:
    """
    What the log and the open segment need of one bundle.

    Attributes:
        slots: for the open segment, ascending; their messages are set by `write_into`.
        bitmap: bit n is set when slot n is present.
        nbytes: length of what stands between the entry's head and its checksum.
    """

    __slots__ = ("_pieces", "bitmap", "nbytes", "slots")

    def __init__(self) -> None:
        self.slots: list[EncodedSlot] = []
        self.bitmap = 0
        self.nbytes = 0
        self._pieces: list[tuple[bytes, memoryview, bytes]] = []

    def write_into(self, region: memoryview, at: int) -> None:
        """
        Copy the slots' bytes into *region* from *at* on, and let each slot's message be its part of the region.

        What serialisation made is let go: a segment keeps the entries it was logged with, and nothing else.
        """
        for slot, (before, message, after) in zip(self.slots, self._pieces, strict=True):
            start = at + len(before)
            region[at:start] = before
            at = start + len(message)
            region[start:at] = message
            slot.message = region[start:at]
            if after:
                start = at
                at = start + len(after)
                region[start:at] = after
        self._pieces = []


class SlotEncoder:
    """
    Turns batches into encoded slots. Safe to call from several threads.
    """

    def __init__(self) -> None:
        self._schemas: dict[int, list[StreamSchema]] = {}

    def encode(
        self, slots: Mapping[int, pa.RecordBatch], fingerprints: Mapping[int, bytes] | None = None
    ) -> EncodedBundle:
        """
        Serialise every slot once.

        *fingerprints* overrides ours, slot by slot, where another writer's log is replayed.

        Raises:
            BundleInvalid: a type that Arrow IPC cannot carry, or more bytes or rows than an entry can hold.
        """
        encoded = EncodedBundle()
        pieces = encoded._pieces  # noqa: SLF001 - its maker
        total = 0
        for slot, batch in slots.items():
            stream = self._stream_schema(slot, batch.schema, fingerprints[slot] if fingerprints else None)
            rows = batch.num_rows
            if stream.has_dictionaries:
                message = memoryview(self_contained(batch)).cast("B")
                size = len(message)
                _check_size(slot, rows, total + size)
                pieces.append((SLOT_HEAD.pack(slot, stream.fingerprint, rows, size), message, b""))
            else:
                message = memoryview(batch.serialize()).cast("B")
                size = len(stream.schema_message) + len(message) + 8
                _check_size(slot, rows, total + size)
                head = SLOT_HEAD.pack(slot, stream.fingerprint, rows, size) + stream.schema_message
                pieces.append((head, message, END_OF_STREAM))
            total += SLOT_HEAD.size + size
            encoded.bitmap |= 1 << slot
            encoded.slots.append(EncodedSlot(slot, stream, rows, message))
        encoded.nbytes = total
        return encoded

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
            schema_message=schema.serialize().to_pybytes(),
            has_dictionaries=has_dictionaries,
        )
        # A fresh list, so that a thread walking the old one is not disturbed.
        self._schemas[slot] = [stream, *self._schemas.get(slot, ())][:_SCHEMAS_PER_SLOT_MAX]
        return stream


def _check_size(slot: int, rows: int, nbytes: int) -> None:
    if rows > ROWS_MAX:
        raise BundleInvalid(f"slot {slot} has {rows} rows; a slot holds at most {ROWS_MAX}")
    if nbytes > ENTRY_BYTES_MAX - 4096:
        raise BundleInvalid(
            f"the bundle takes more than {ENTRY_BYTES_MAX - 4096} bytes serialised; split it into smaller ones"
        )
