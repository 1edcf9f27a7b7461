"""
Runs of log entries with the same layout, taken over without parsing each of them.

A producer logs bundles with one schema again and again. Such entries differ only in their time, number and lengths, and
in the Arrow message from its length on::

    entry head │ bitmap │ slot, fingerprint │ rows, length │ schema message │ start of the message │ body length │ …
                 └───────── identity ───────┘                └────────────── opening ──────────────┘

So one entry is parsed completely, and those after it are compared with it.
"""

from __future__ import annotations

import struct

from quiver.store.format.wal_entry import CRC, ENTRY_HEAD, SLOT_HEAD, WalSlot
from quiver.store.segment.accumulator import EncodedRun, StreamSchema
from quiver.store.segment.ipc_file import END_OF_STREAM, body_length_place
from quiver.store.wal.scan import ScannedEntries

__all__ = ["EntryLayout", "identity_of"]

RUN_ENTRIES_MAX = 4096
_MESSAGE_PREFIX_BYTES = 8
_METADATA_BYTES = struct.Struct("<4xi")
_IDENTITY = struct.Struct("<QH32s")
_PAYLOAD_START = ENTRY_HEAD.size + SLOT_HEAD.size
_AFTER_MESSAGE = len(END_OF_STREAM) + CRC.size
_END = struct.Struct(f"{len(END_OF_STREAM)}s")


def identity_of(slot: WalSlot) -> bytes:
    """Return `ScannedEntries.identity` of an entry with only *slot*."""
    return _IDENTITY.pack(1 << slot.slot, slot.slot, slot.fingerprint)


class EntryLayout:
    """
    What entries with one slot and one schema have in common.

    Args:
        stream: the schema.
        identity: the result of `identity_of`.
        opening: the payload up to the length of the batch message's body.
        closing: the bytes after that length that decide how the message is read; usually empty.
        metadata_bytes: length of the batch message's metadata.
    """

    __slots__ = ("_closing", "_fields", "_fixed_bytes", "_identity", "_message_start", "_opening", "_slot", "_stream")

    def __init__(
        self, slot: int, stream: StreamSchema, *, identity: bytes, opening: bytes, closing: bytes, metadata_bytes: int
    ) -> None:
        self._slot = slot
        self._stream = stream
        self._identity = identity
        self._opening = opening
        self._closing = closing
        # Time, identity, rows, opening, length of the body, closing.
        self._fields = struct.Struct(f"<5xq8x{len(identity)}sI4x{len(opening)}sq{len(closing)}s")
        self._message_start = _PAYLOAD_START + len(stream.schema_bytes)
        self._fixed_bytes = self._message_start + _MESSAGE_PREFIX_BYTES + metadata_bytes + _AFTER_MESSAGE

    @classmethod
    def learn(cls, slot: WalSlot, stream: StreamSchema, message: memoryview) -> EntryLayout | None:
        """
        Return the layout of an entry with only *slot*, whose batch message *message* is valid.

        Return None if the message does not have the parts that decide how it is read in the usual order.
        """
        place = body_length_place(message)
        if place is None:
            return None
        body_length, decided = place
        schema_bytes = len(stream.schema_bytes)
        payload = slot.payload
        return cls(
            slot.slot,
            stream,
            identity=identity_of(slot),
            opening=bytes(payload[: schema_bytes + body_length]),
            closing=bytes(payload[schema_bytes + body_length + 8 : schema_bytes + decided]),
            metadata_bytes=_METADATA_BYTES.unpack_from(message)[0],
        )

    def run(self, entries: ScannedEntries, at: int) -> EncodedRun | None:
        """
        Return the consecutive entries from *at* on that have this layout, without decoding or copying them.

        Return None if not even the first has it. The entries are bundles with valid checksums and lengths.
        """
        view, starts, ends = entries.part(at, RUN_ENTRIES_MAX)
        signed = view.cast("b")  # as the arena and pyarrow have it
        unpack, unpack_end, last = self._fields.unpack_from, _END.unpack_from, len(view) - self._fields.size
        identity, opening, closing = self._identity, self._opening, self._closing
        fixed_bytes, message_start = self._fixed_bytes, self._message_start
        messages: list[memoryview] = []
        row_counts: list[int] = []
        times: list[int] = []
        add_message, add_rows, add_time = messages.append, row_counts.append, times.append
        expected = starts[0]
        for start, end in zip(starts, ends, strict=True):
            if start != expected or start > last:
                break
            time_ns, its_identity, rows, its_opening, body_bytes, its_closing = unpack(view, start)
            message_end = end - _AFTER_MESSAGE
            if (
                end - start != fixed_bytes + body_bytes
                or its_opening != opening
                or its_identity != identity
                or its_closing != closing
                or unpack_end(view, message_end)[0] != END_OF_STREAM
            ):
                break
            add_message(signed[start + message_start : message_end])
            add_rows(rows)
            add_time(time_ns)
            expected = end
        count = len(messages)
        if not count:
            return None
        return EncodedRun(
            self._slot,
            self._stream,
            messages,
            row_counts,
            times,
            sequences=entries.sequences(at, count),
            start=starts[0] + entries.shift,
            ends=ends[:count],
            shift=entries.shift,
        )
