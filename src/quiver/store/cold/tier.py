"""
Uploads sealed segments to the object tier and removes finished ones, in passes that a caller or a thread runs.

::

    1  the list has the entry `sent`                crash before: nothing has happened
    2  the object is created in one call            crash before: no object exists; the next pass creates it
    3  its digest is compared, or it is read back   crash before: the next pass finds it and reads it back
    4  the list has the entry `verified`            only now may the local file be removed

No lock is held while a pass waits for the object store, and no other work waits for a pass. When the object store does
not answer, the pass ends, and the next one starts after a delay that increases.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from quiver.errors import CorruptionError, ObjectNotFoundError, ObjectsUnavailableError, QuiverError
from quiver.objects.port import ObjectInfo, ObjectTier
from quiver.primitives.backoff import Backoff
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import File
from quiver.primitives.worker import Worker, WorkerDiedError
from quiver.store.cold.files import require_place
from quiver.store.cold.location import location_from_list, object_key, quarantine_key
from quiver.store.cold.register import cold_segment
from quiver.store.context import StoreContext
from quiver.store.fleet.node import FleetNode
from quiver.store.format.cold_list import ColdSegment
from quiver.store.segment.info import SegmentInfo

__all__ = ["ColdTier"]

_PIECE_BYTES = 4 * 1024 * 1024
_CRC_BYTES = 4
_BACKOFF = Backoff(first_s=0.5, cap_s=60.0)


class ColdTier:
    """
    Uploads sealed segments and removes the objects of deleted ones.

    Args:
        context: the store.
        open_tier: opens the object store; called again after it failed.
        on_damage: called with a local file that is damaged.
        is_sending: whether segments are uploaded; otherwise only existing objects are maintained.
        node: the store as a node of a fleet; None if it is not one.
    """

    def __init__(
        self,
        context: StoreContext,
        open_tier: Callable[[], ObjectTier],
        *,
        on_damage: Callable[[SegmentInfo, CorruptionError], None],
        is_sending: bool,
        node: FleetNode | None = None,
    ) -> None:
        self._context = context
        self._register = context.cold
        self._open_tier = open_tier
        self._on_damage = on_damage
        self._is_sending = is_sending
        self._node = node
        self._pass = threading.Lock()
        self._stopping = threading.Event()
        # A daemon: a program that does not close the store must still be able to exit; unsent segments are on the disk.
        self._worker = Worker(
            f"quiver-cold {context.path}", self._turn, every=None, on_death=self._fail, clock=context.clock,
            observer=context.observer,
        )  # fmt: skip
        self._delays = _BACKOFF.delays(Random())  # noqa: S311 - spreads waits, guards nothing
        self._not_before_s: float | None = None
        self._is_away = True
        """Whether the last pass failed, or there was none."""
        self.failure: str | None = None
        """Why the last pass failed; None if it did not."""

    @property
    def is_used(self) -> bool:
        """Whether segments are uploaded, or the tier has some."""
        return self._is_sending or len(self._register) > 0

    def stats(self) -> dict[str, Any]:
        """Return the current figures."""
        verified = [entry for entry in self._register.entries() if entry.state == "verified"]
        waiting = self.waiting()
        sequences = [one.sequence_first for one in waiting if one.sequence_first is not None]
        return {
            "segments": len(verified),
            "segment_bytes": sum(entry.size_bytes for entry in verified),
            "only_there": len(self._context.catalog) - self._context.catalog.local_count,
            "waiting": len(waiting),
            "waiting_sequence": min(sequences, default=None),
            "leaving": len(self._leaving()),
            "problem": self.failure,
            **({} if self._node is None else {"fleet": self._node.stats()}),
        }

    def waiting(self) -> list[SegmentInfo]:
        """Return the segments to upload, ascending: sealed, not verified, and not finished by all subscribers."""
        context = self._context
        if not self._is_sending:
            return []
        found = [info for info in context.catalog.local_segments() if not self._register.is_verified(info.seq)]
        if not found or context.settings.cold_keep_finished_s > 0:
            return found
        finished = set(context.subscribers.complete_segments())
        return [info for info in found if info.seq not in finished]

    def _leaving(self) -> list[ColdSegment]:
        catalog = self._context.catalog
        return [entry for entry in self._register.unverified() if entry.state == "damaged" or entry.seq not in catalog]

    # ── one pass ─────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> int:
        """
        Run one pass; return how many segments were uploaded and verified. Failures are reported and retried after a
        delay.
        """
        clock, observer = self._context.clock, self._context.observer
        if self._not_before_s is not None and clock.monotonic() < self._not_before_s:
            return 0
        sent = 0
        with self._pass:
            if self._stopping.is_set():
                return 0
            try:
                if self._node is not None:
                    self._node.run(self._open_tier(), problem=self.failure)
                leaving, waiting = self._leaving(), self.waiting()
                if leaving or waiting:
                    self._require_place(self._open_tier())
                if leaving:
                    self._remove(self._open_tier())
                for info in waiting:
                    if self._stopping.is_set():
                        break
                    sent += self._send(self._open_tier(), info)
                if self._node is not None and not self._stopping.is_set():
                    self._node.after_pass(self._open_tier())
            except (QuiverError, OSError) as error:
                self.failure = str(error)
                self._is_away = True
                self._not_before_s = clock.monotonic() + next(self._delays)
                observer.count("quiver.cold.failures_total")
                observer.event("quiver.cold.pass", level=logging.WARNING, problem=self.failure)
            else:
                if self._not_before_s is not None:
                    self._delays = _BACKOFF.delays(Random())  # noqa: S311
                self.failure = self._not_before_s = None
                self._is_away = False
        return sent

    def _require_place(self, tier: ObjectTier) -> None:
        """Check that the tier has the objects of earlier segments: uploads elsewhere would be missing there."""
        verified = self._register.first_verified()
        if verified is not None:
            key = object_key(self._folder, verified)
            try:
                tier.head(key)
            except ObjectNotFoundError:
                require_place(tier, key)

    def _send(self, tier: ObjectTier, info: SegmentInfo) -> int:
        try:
            source = self._context.fs.open_read(info.path)
        except FileNotFoundError:
            return 0  # it was finished meanwhile, or lost, which readers report
        with contextlib.closing(source):
            before, entry = self._intend(info, source)
            if entry is None:
                return 0
            if self._node is not None:
                self._node.before_upload(tier, entry.seq)
            key = object_key(self._folder, entry)
            if before != entry or not self._is_there(tier, key, entry):
                sent, damage = _upload(tier, key, source, entry, self._stopping)
                if damage is not None:
                    self._on_damage(info, CorruptionError(info.path, *damage))
                    return 0
                is_there = sent.size_bytes == entry.size_bytes and sent.is_verified
                if not is_there and not self._is_there(tier, key, entry):
                    raise ObjectsUnavailableError("verify", key, "the object differs from the data that was sent")
        with self._context.maintenance:
            if self._stopping.is_set() or info.seq not in self._context.catalog:
                return 0  # it was finished meanwhile: the next pass removes the object
            self._register.put(dataclasses.replace(entry, state="verified"))
        self._context.observer.count("quiver.cold.sent_total")
        self._context.observer.count("quiver.cold.sent_bytes_total", entry.size_bytes)
        return 1

    @property
    def _folder(self) -> str:
        return location_from_list(self._register.location)[1]

    def _intend(self, info: SegmentInfo, source: File) -> tuple[ColdSegment | None, ColdSegment | None]:
        """Step 1: note, durably, that there may be an object. Returns the old and the new entry."""
        checksum = int.from_bytes(source.pread(_CRC_BYTES, max(0, info.size_bytes - _CRC_BYTES)), "little")
        entry = cold_segment(info, checksum, "sent")
        with self._context.maintenance:
            before = self._register.get(info.seq)
            if self._stopping.is_set() or info.seq not in self._context.catalog:
                return before, None
            if before is not None and before != entry:
                # The entry has other contents for this number: remove its object first, or it would be forgotten.
                self._register.mark_unverified([info.seq], "damaged")
                return before, None
            if before is None:
                self._register.put(entry)
            return before, entry

    def _is_there(self, tier: ObjectTier, key: str, entry: ColdSegment) -> bool:
        """Step 3: return whether the object equals the segment, by its checksum."""
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
                # The last four bytes are the checksum, which does not include them.
                crc, tail = crc32(memoryview(piece)[:-_CRC_BYTES], crc), piece[-_CRC_BYTES:]
        except ObjectNotFoundError:
            return False
        return crc == entry.crc32 and int.from_bytes(tail, "little") == crc

    # ── leaving ──────────────────────────────────────────────────────────────────────────────────────

    def _remove(self, tier: ObjectTier) -> None:
        """Remove the objects that are no longer needed; keep a copy of damaged ones."""
        with self._context.maintenance:
            self._register.keep()  # the list must not have it as verified when the object is removed
        leaving = self._leaving()
        if self._node is not None:
            self._node.before_removal(tier, leaving)
        for entry in leaving:
            if entry.state == "damaged":
                key = object_key(self._folder, entry)
                with contextlib.suppress(ObjectNotFoundError):
                    tier.copy(key, quarantine_key(self._folder, entry))
        if leaving:
            tier.delete([object_key(self._folder, entry) for entry in leaving])
            with self._context.maintenance:
                self._register.drop(entry.seq for entry in leaving)
            self._context.observer.count("quiver.cold.removed_total", len(leaving))

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Run passes in a separate thread from now on, requested by `run_pending`. Does nothing without a tier."""
        if self.is_used:
            self._worker.start()

    def run_pending(self) -> None:
        """Run a pass if there is work: in this thread, or in the separate one if it was started."""
        if not self._worker.is_started:
            self.run()
        elif self.idle_s() <= 0:
            self._worker.wake()

    def idle_s(self) -> float:
        """Return for how many seconds there is no work, or none that may be tried, unless something changes."""
        if not self.is_used:
            return math.inf
        node_due_s = math.inf if self._node is None else self._node.due_in_s()
        due_s = 0.0 if self._leaving() or self.waiting() else node_due_s
        not_before_s = self._not_before_s
        return due_s if not_before_s is None else max(due_s, not_before_s - self._context.clock.monotonic())

    def leave(self) -> None:
        """Write the last record of a node, if the object store answered in the last pass and none is running."""
        if self._node is None or self._is_away or not self._pass.acquire(blocking=False):
            return
        try:
            self._node.leave(self._open_tier())
        except (QuiverError, OSError) as error:
            self._context.observer.event("quiver.cold.pass", level=logging.WARNING, problem=str(error))
        finally:
            self._pass.release()

    def stop(self) -> None:
        """
        Wait for the current pass and start no other one: on return nothing is written any more. Idempotent.

        An upload ends after the parts that are being sent; the next start sends the segment again.
        """
        self._stopping.set()
        self._worker.stop()
        with self._pass:  # a pass that a caller runs writes to the directory, too
            return

    def _turn(self) -> None:
        self.run()

    def _fail(self, died: WorkerDiedError) -> None:
        """Make the store refuse calls: it would fill up with segments that are never uploaded."""
        self.failure = str(died)
        self._context.wal.poison(died)
        with self._context.lock:
            self._context.room.notify_all()


def _upload(
    tier: ObjectTier, key: str, source: File, entry: ColdSegment, stopping: threading.Event
) -> tuple[ObjectInfo, tuple[int, str] | None]:
    """
    Step 2. Return the object, and the offset and the reason if the local file is damaged.

    Raises:
        ObjectsUnavailableError: the object store does not answer, or *stopping* was set; there is no object then.
    """
    seen: list[int] = [0]

    def parts() -> Iterator[bytes]:
        crc = offset = 0
        end = entry.size_bytes - _CRC_BYTES
        while offset < entry.size_bytes:
            if stopping.is_set():
                raise ObjectsUnavailableError("put", key, "the store is being closed")
            piece = source.pread(min(_PIECE_BYTES, entry.size_bytes - offset), offset)
            if not piece:
                break
            crc = crc32(memoryview(piece)[: max(0, end - offset)], crc)
            offset += len(piece)
            yield piece
        seen[0] = crc if offset == entry.size_bytes else ~entry.crc32

    sent = tier.put_parts(key, parts)
    if seen[0] != entry.crc32:
        reason = f"checksum mismatch: stored {entry.crc32:08x}; found while sending"
        return sent, (entry.size_bytes - _CRC_BYTES, reason)
    return sent, None
