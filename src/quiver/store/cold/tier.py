"""
Sealed segments go to the object tier, and leave it: one pass, driven by hand or by a thread of its own.

::

    1  the list says `sent`                         crash before: nothing has happened
    2  the object is made, whole, in one call       crash before: there is no object; the next pass makes it
    3  it is read back and its checksum computed    crash before: the next pass finds it and reads it back
    4  the list says `verified`                     only now may the local file go

Nothing here holds a lock while it waits for the object store, and nobody waits for this: when the store does not
answer, the pass is over, and the next one comes after a pause that grows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from quiver.errors import CorruptionError, ObjectNotFoundError, ObjectsUnavailableError, QuiverError
from quiver.objects.port import ObjectTier
from quiver.primitives.backoff import Backoff
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import File
from quiver.primitives.worker import Worker, WorkerDiedError
from quiver.store.cold.files import require_place
from quiver.store.cold.location import location_from_list, object_key, quarantine_key
from quiver.store.cold.register import cold_segment
from quiver.store.context import Parts
from quiver.store.format.cold_list import ColdSegment
from quiver.store.segment.info import SegmentInfo

__all__ = ["ColdTier"]

_PIECE_BYTES = 4 * 1024 * 1024
_CRC_BYTES = 4
_BACKOFF = Backoff(first_s=0.5, cap_s=60.0)


class ColdTier:
    """
    Sends what is sealed and removes what is gone.

    Args:
        parts: the store.
        open_tier: gets to the object store; asked again after it failed.
        on_damage: told of a local file that is not what was written.
        is_sending: whether segments are sent; else those that are there are looked after.
    """

    def __init__(
        self,
        parts: Parts,
        open_tier: Callable[[], ObjectTier],
        *,
        on_damage: Callable[[SegmentInfo, CorruptionError], None],
        is_sending: bool,
    ) -> None:
        self._parts = parts
        self._register = parts.cold
        self._open_tier = open_tier
        self._on_damage = on_damage
        self._is_sending = is_sending
        self._pass = threading.Lock()
        self._stopping = threading.Event()
        # A daemon: a program that forgets to close must still be able to end; what is not sent is on the disk.
        self._worker = Worker(
            f"quiver-cold {parts.path}", self._turn, every=None, on_death=self._fail, clock=parts.clock,
            observer=parts.observer,
        )  # fmt: skip
        self._delays = _BACKOFF.delays(Random())  # noqa: S311 - spreads waits, guards nothing
        self._not_before_s: float | None = None
        self.failure: str | None = None
        """Why the last pass did not get through; None when it did."""

    @property
    def is_used(self) -> bool:
        """Whether segments are sent, or some are there."""
        return self._is_sending or len(self._register) > 0

    def stats(self) -> dict[str, Any]:
        """Return figures of this moment."""
        verified = [entry for entry in self._register.entries() if entry.state == "verified"]
        waiting = self.waiting()
        sequences = [one.sequence_first for one in waiting if one.sequence_first is not None]
        return {
            "segments": len(verified),
            "segment_bytes": sum(entry.size_bytes for entry in verified),
            "only_there": len(self._parts.catalog) - self._parts.catalog.local_count,
            "waiting": len(waiting),
            "waiting_sequence": min(sequences, default=None),
            "leaving": len(self._leaving()),
            "problem": self.failure,
        }

    def waiting(self) -> list[SegmentInfo]:
        """Return the segments that are to be sent, ascending: sealed, not verified, and not finished by everybody."""
        parts = self._parts
        if not self._is_sending:
            return []
        found = [info for info in parts.catalog.local_segments() if not self._register.is_verified(info.seq)]
        if not found or parts.settings.cold_keep_finished_s > 0:
            return found
        finished = set(parts.subscribers.complete_segments())
        return [info for info in found if info.seq not in finished]

    def _leaving(self) -> list[ColdSegment]:
        catalog = self._parts.catalog
        return [entry for entry in self._register.unverified() if entry.state == "damaged" or entry.seq not in catalog]

    # ── one pass ─────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> int:
        """One pass; how many segments were sent and verified. What fails is told, and tried again after a pause."""
        clock, observer = self._parts.clock, self._parts.observer
        if self._not_before_s is not None and clock.monotonic() < self._not_before_s:
            return 0
        sent = 0
        with self._pass:
            if self._stopping.is_set():
                return 0
            try:
                leaving, waiting = self._leaving(), self.waiting()
                if leaving or waiting:
                    self._require_place(self._open_tier())
                if leaving:
                    self._remove(self._open_tier())
                for info in waiting:
                    if self._stopping.is_set():
                        break
                    sent += self._send(self._open_tier(), info)
            except (QuiverError, OSError) as error:
                self.failure = str(error)
                self._not_before_s = clock.monotonic() + next(self._delays)
                observer.count("quiver.cold.failures_total")
                observer.event("quiver.cold.pass", level=logging.WARNING, problem=self.failure)
            else:
                if self._not_before_s is not None:
                    self._delays = _BACKOFF.delays(Random())  # noqa: S311
                self.failure = self._not_before_s = None
        return sent

    def _require_place(self, tier: ObjectTier) -> None:
        """Return when the tier is where earlier segments went: what is sent elsewhere would be missed there."""
        verified = next((entry for entry in self._register.entries() if entry.state == "verified"), None)
        if verified is not None:
            key = object_key(self._folder, verified)
            try:
                tier.head(key)
            except ObjectNotFoundError:
                require_place(tier, key)

    def _send(self, tier: ObjectTier, info: SegmentInfo) -> int:
        try:
            source = self._parts.fs.open_read(info.path)
        except FileNotFoundError:
            return 0  # finished meanwhile, or lost: whoever reads it says so
        with contextlib.closing(source):
            before, entry = self._intend(info, source)
            if entry is None:
                return 0
            key = object_key(self._folder, entry)
            if before != entry or not self._is_there(tier, key, entry):
                damage = _upload(tier, key, source, entry)
                if damage is not None:
                    self._on_damage(info, CorruptionError(info.path, *damage))
                    return 0
                if not self._is_there(tier, key, entry):
                    raise ObjectsUnavailableError("verify", key, "what came back is not what was sent")
        with self._parts.maintenance:
            if self._stopping.is_set() or info.seq not in self._parts.catalog:
                return 0  # finished meanwhile: the next pass removes the object
            self._register.put(dataclasses.replace(entry, state="verified"))
        self._parts.observer.count("quiver.cold.sent_total")
        self._parts.observer.count("quiver.cold.sent_bytes_total", entry.size_bytes)
        return 1

    @property
    def _folder(self) -> str:
        return location_from_list(self._register.location)[1]

    def _intend(self, info: SegmentInfo, source: File) -> tuple[ColdSegment | None, ColdSegment | None]:
        """Step 1: note, durably, that there may be an object. Returns the entry as it was, and as it is."""
        checksum = int.from_bytes(source.pread(_CRC_BYTES, max(0, info.size_bytes - _CRC_BYTES)), "little")
        entry = cold_segment(info, checksum, "sent")
        with self._parts.maintenance:
            before = self._register.get(info.seq)
            if self._stopping.is_set() or info.seq not in self._parts.catalog:
                return before, None
            if before is not None and before != entry:
                # Another content under this number: its object goes first, or nobody would know of it any more.
                self._register.leave([info.seq], "damaged")
                return before, None
            if before is None:
                self._register.put(entry)
            return before, entry

    def _is_there(self, tier: ObjectTier, key: str, entry: ColdSegment) -> bool:
        """Step 3: say whether the object is the segment, byte for byte, by its checksum."""
        crc = offset = 0
        tail = b""
        try:
            if tier.head(key).size_bytes != entry.size_bytes:
                return False
            while offset < entry.size_bytes:
                length = min(_PIECE_BYTES, entry.size_bytes - offset)
                piece = tail + tier.get_range(key, offset, length)
                if len(piece) != length + len(tail):
                    return False
                offset += length
                # The last four bytes are the checksum, and not in it.
                crc, tail = crc32(memoryview(piece)[:-_CRC_BYTES], crc), piece[-_CRC_BYTES:]
        except ObjectNotFoundError:
            return False
        return crc == entry.crc32 and int.from_bytes(tail, "little") == crc

    # ── leaving ──────────────────────────────────────────────────────────────────────────────────────

    def _remove(self, tier: ObjectTier) -> None:
        """Remove the objects that nobody relies on; keep a copy of damaged ones."""
        with self._parts.maintenance:
            self._register.keep()  # never an object before the list says that it may be missing
        leaving = self._leaving()
        for entry in leaving:
            if entry.state == "damaged":
                key = object_key(self._folder, entry)
                with contextlib.suppress(ObjectNotFoundError):
                    tier.copy(key, quarantine_key(self._folder, entry))
        if leaving:
            tier.delete([object_key(self._folder, entry) for entry in leaving])
            with self._parts.maintenance:
                self._register.drop(entry.seq for entry in leaving)
            self._parts.observer.count("quiver.cold.removed_total", len(leaving))

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Run passes in a thread of its own from now on, when asked by `tend`. None without a tier."""
        if self.is_used:
            self._worker.start()

    def tend(self) -> None:
        """Do what there is to do: now, or where there is a thread, there."""
        if not self._worker.is_started:
            self.run()
        elif self._leaving() or self.waiting():
            self._worker.wake()

    def stop(self) -> None:
        """Let the pass that runs end, and start no other: on return nobody here writes any more. Idempotent."""
        self._stopping.set()
        self._worker.stop()
        with self._pass:  # one that somebody drives by hand writes to the directory, too
            return

    def _turn(self) -> None:
        self.run()

    def _fail(self, died: WorkerDiedError) -> None:
        """Let the store refuse: it would fill up with segments that nothing sends."""
        self.failure = str(died)
        self._parts.wal.poison(died)
        with self._parts.lock:
            self._parts.room.notify_all()


def _upload(tier: ObjectTier, key: str, source: File, entry: ColdSegment) -> tuple[int, str] | None:
    """Step 2. Returns where and why the local file is not what was written, or None."""
    seen: list[int] = [0]

    def parts() -> Iterator[bytes]:
        crc = offset = 0
        end = entry.size_bytes - _CRC_BYTES
        while offset < entry.size_bytes:
            piece = source.pread(min(_PIECE_BYTES, entry.size_bytes - offset), offset)
            if not piece:
                break
            crc = crc32(memoryview(piece)[: max(0, end - offset)], crc)
            offset += len(piece)
            yield piece
        seen[0] = crc if offset == entry.size_bytes else ~entry.crc32

    tier.put_parts(key, parts)
    if seen[0] != entry.crc32:
        return entry.size_bytes - _CRC_BYTES, f"checksum mismatch: stored {entry.crc32:08x}; found when it was sent"
    return None
