"""
Runs of log entries with known layouts, taken over without parsing each of them.

A producer logs bundles with one schema again and again. Such entries differ only in their time, number and lengths, and
in the Arrow message from its length on::

    entry head │ bitmap │ slot, fingerprint │ rows, length │ schema message │ start of the message │ body length │ …
                 └───────── identity ───────┘                └────────────── opening ──────────────┘

So one entry is parsed completely, and those after it are compared with it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from quiver.store.format.wal_entry import CRC, ENTRY_HEAD, SLOT_HEAD, WalSlot
from quiver.store.segment.accumulator import EncodedRun, RunPart, StreamSchema
from quiver.store.segment.ipc_file import END_OF_STREAM, body_length_place
from quiver.store.wal.scan import ScannedEntries

__all__ = ["EntryLayouts"]

RUN_ENTRIES_MAX = 4096
IDENTITIES_MAX = 256
LAYOUTS_PER_IDENTITY_MAX = 4
"""Arrow writes an empty batch with another layout, and every Arrow library has its own."""

_MESSAGE_PREFIX_BYTES = 8
_METADATA_BYTES = struct.Struct("<4xi")
_IDENTITY = struct.Struct("<QH32s")
_IDENTITY_START = ENTRY_HEAD.size - 8
_PAYLOAD_START = ENTRY_HEAD.size + SLOT_HEAD.size
_AFTER_MESSAGE = len(END_OF_STREAM) + CRC.size
_END = struct.Struct(f"{len(END_OF_STREAM)}s")


class _Layout:
    """
    What entries with one slot and one schema have in common.

    Attributes:
        fields: unpacks time, identity, rows, opening, length of the body, closing.
        identity: bitmap, id and fingerprint of the slot.
        opening: the payload up to the length of the message's body.
        closing: the bytes after that length that decide how the message is read; usually empty.
        message_start: where the message starts in an entry.
        fixed_bytes: length of an entry without the message's body.
    """

    __slots__ = ("closing", "fields", "fixed_bytes", "identity", "message_start", "opening", "slot", "stream_schema")

    def __init__(
        self, slot: WalSlot, stream_schema: StreamSchema, metadata_bytes: int, *, body_length: int, decided: int
    ) -> None:
        schema_bytes = len(stream_schema.schema_bytes)
        payload = slot.payload
        self.slot = slot.slot
        self.stream_schema = stream_schema
        self.identity = _identity_of(slot)
        self.opening = bytes(payload[: schema_bytes + body_length])
        self.closing = bytes(payload[schema_bytes + body_length + 8 : schema_bytes + decided])
        self.fields = struct.Struct(f"<5xq8x{_IDENTITY.size}sI4x{len(self.opening)}sq{len(self.closing)}s")
        self.message_start = _PAYLOAD_START + schema_bytes
        self.fixed_bytes = self.message_start + _MESSAGE_PREFIX_BYTES + metadata_bytes + _AFTER_MESSAGE

    def fits(self, view: memoryview, start: int, end: int) -> bool:
        """Return whether the entry from *start* to *end* of *view* has this layout; its last bytes are not compared."""
        if start + self.fields.size > len(view):
            return False
        _, identity, _, opening, body_bytes, closing = self.fields.unpack_from(view, start)
        return bool(
            end - start == self.fixed_bytes + body_bytes
            and opening == self.opening
            and identity == self.identity
            and closing == self.closing
        )


class EntryLayouts:
    """The layouts of entries that were parsed before. The first ones are kept, so learning has a limit."""

    def __init__(self) -> None:
        self._by_identity: dict[bytes, list[_Layout]] = {}

    def learn(self, slot: WalSlot, stream_schema: StreamSchema, message: memoryview) -> None:
        """Remember the layout of an entry with only *slot*, whose batch message *message* is valid."""
        identity = _identity_of(slot)
        known = self._by_identity.get(identity, [])
        if len(known) >= LAYOUTS_PER_IDENTITY_MAX or (not known and len(self._by_identity) >= IDENTITIES_MAX):
            return
        place = body_length_place(message)
        if place is not None:
            body_length, decided = place
            (metadata_bytes,) = _METADATA_BYTES.unpack_from(message)
            known.append(_Layout(slot, stream_schema, metadata_bytes, body_length=body_length, decided=decided))
            self._by_identity[identity] = known

    def _find(self, view: memoryview, start: int, end: int) -> _Layout | None:
        identity_start = start + _IDENTITY_START
        known = self._by_identity.get(bytes(view[identity_start : identity_start + _IDENTITY.size]), ())
        for layout in known:
            if layout.fits(view, start, end):
                return layout
        return None

    def run(self, entries: ScannedEntries, at: int) -> EncodedRun | None:
        """
        Return the consecutive entries from *at* on that have known layouts, without decoding or copying them.

        Return None if not even the first has one. The entries are bundles with valid checksums and lengths.
        """
        view = entries.view
        layout = self._find(view, *entries.offsets(at)) if self._by_identity else None
        if layout is None:
            return None
        starts, ends = entries.part(at, RUN_ENTRIES_MAX)
        signed = view.cast("b")  # as the arena and pyarrow have it
        messages: list[memoryview] = []
        row_counts: list[int] = []
        times: list[int] = []
        parts: list[RunPart] = []
        add_message, add_rows, add_time, unpack_end = messages.append, row_counts.append, times.append, _END.unpack_from
        expected = starts[0]
        unpack, identity, opening, closing, message_start, fixed_bytes, last = _locals(layout, view)
        for start, end in zip(starts, ends, strict=True):
            message_end = end - _AFTER_MESSAGE
            if start != expected or unpack_end(view, message_end)[0] != END_OF_STREAM:
                break
            if start <= last:
                time_ns, its_identity, rows, its_opening, body_bytes, its_closing = unpack(view, start)
            if (
                start > last
                or end - start != fixed_bytes + body_bytes
                or its_opening != opening
                or its_identity != identity
                or its_closing != closing
            ):
                following = self._find(view, start, end)
                if following is None:
                    break
                parts.append(RunPart(layout.slot, layout.stream_schema, len(messages)))
                layout = following
                unpack, identity, opening, closing, message_start, fixed_bytes, last = _locals(layout, view)
                time_ns, _, rows, _, _, _ = unpack(view, start)
            add_message(signed[start + message_start : message_end])
            add_rows(rows)
            add_time(time_ns)
            expected = end
        count = len(messages)
        if not count:
            return None
        parts.append(RunPart(layout.slot, layout.stream_schema, count))
        return EncodedRun(
            parts,
            messages,
            row_counts,
            times,
            sequences=entries.sequences(at, count),
            start=starts[0] + entries.shift,
            ends=ends[:count],
            shift=entries.shift,
        )


def _locals(layout: _Layout, view: memoryview) -> tuple[Callable[..., Any], bytes, bytes, bytes, int, int, int]:
    fields = layout.fields
    return (
        fields.unpack_from,
        layout.identity,
        layout.opening,
        layout.closing,
        layout.message_start,
        layout.fixed_bytes,
        len(view) - fields.size,
    )


def _identity_of(slot: WalSlot) -> bytes:
    return _IDENTITY.pack(1 << slot.slot, slot.slot, slot.fingerprint)
