"""Lays out a bundle as an entry of the log, and writes it."""

from __future__ import annotations

from collections.abc import Callable

from quiver.clock import Clock
from quiver.errors import CapacityError
from quiver.primitives.checksum import crc32
from quiver.primitives.kernel import KERNEL
from quiver.store.encode import EncodedBundle, keep_messages, slot_pieces, write_slots
from quiver.store.format.wal_entry import CRC, ENTRY_HEAD
from quiver.store.limits.admission import Admission
from quiver.store.sealing.schedule import Sealing
from quiver.store.segment.accumulator import EncodedSlot
from quiver.store.segment.log_backed import LogBackedMessage
from quiver.store.wal.writer import WalWriter

__all__ = ["ENTRY_OVERHEAD", "StoreEntries", "write_entry_in_python"]

ENTRY_OVERHEAD = ENTRY_HEAD.size + CRC.size
_LENGTH_BYTES = 4

REREAD_BYTES_MIN = 128 * 1024
"""Entries with one slot and at least this size are not kept in memory: their segment reads them back from the log."""
_UNCOUNTED = _LENGTH_BYTES + CRC.size
"""An entry's length counts neither itself nor the checksum."""


def write_entry_in_python(
    entry: memoryview, ingested_at_ns: int, sequence: int, bitmap: int, slots: list[EncodedSlot]
) -> None:
    """Lay out an entry in *entry*, which has its exact size, and make each slot's message a view of it."""
    ENTRY_HEAD.pack_into(entry, 0, len(entry) - _UNCOUNTED, 0, ingested_at_ns, sequence, bitmap)
    write_slots(slots, entry, ENTRY_HEAD.size)
    CRC.pack_into(entry, len(entry) - CRC.size, crc32(entry[_LENGTH_BYTES : -CRC.size]))


_write_entry: Callable[[memoryview, int, int, int, list[EncodedSlot]], None] = (
    write_entry_in_python if KERNEL is None else KERNEL.write_entry
)


class StoreEntries:
    """A base of `Store`, which sets these attributes."""

    _admission: Admission
    _clock: Clock
    _logging: bool
    _sealing: Sealing
    _sequence: int
    _wal: WalWriter

    def _log(self, encoded: EncodedBundle, stamp: int, nbytes: int, *, zero_ahead: bool) -> int:
        if nbytes >= REREAD_BYTES_MIN and self._logging and len(encoded.slots) == 1:
            return self._log_large(encoded, stamp, nbytes, zero_ahead=zero_ahead)
        arena = self._sealing.arena
        if not self._logging:
            self._wal.require_healthy()
            keep_messages(encoded.slots, arena)
            return self._wal.written
        entry = arena.take(nbytes)
        _write_entry(entry, stamp, self._sequence, encoded.bitmap, encoded.slots)
        try:
            return self._wal.append((entry,), nbytes, zero_ahead=zero_ahead)
        except CapacityError:
            arena.untake(entry)
            raise

    def _log_large(self, encoded: EncodedBundle, stamp: int, nbytes: int, *, zero_ahead: bool) -> int:
        """Log a bundle with one slot without copying it; the segment reads it back from the log."""
        slot = encoded.slots[0]
        message = slot.message
        head, tail = slot_pieces(slot, ENTRY_HEAD.size)
        ENTRY_HEAD.pack_into(head, 0, nbytes - _UNCOUNTED, 0, stamp, self._sequence, encoded.bitmap)
        checksum = crc32(tail, crc32(message, crc32(memoryview(head)[_LENGTH_BYTES:])))
        end = self._wal.append((head, message, tail + CRC.pack(checksum)), nbytes, zero_ahead=zero_ahead)
        log = self._sealing.log
        log.note(end - nbytes, end)
        prefix = bytes(memoryview(message)[:8])
        slot.message = LogBackedMessage(log, end - nbytes, nbytes, len(head), len(message), prefix)
        return end

    def _log_when_there_is_room(
        self, encoded: EncodedBundle, stamp: int, nbytes: int, refused: CapacityError, timeout: float | None
    ) -> int:
        deadline = self._clock.monotonic() + (timeout or 0.0)
        while True:
            self._admission.wait_for_disk(refused, nbytes, deadline)
            self._admission.make_room(nbytes, deadline)
            try:
                return self._log(encoded, stamp, nbytes, zero_ahead=False)
            except CapacityError as again:
                refused = again
