"""
Decide whether a bundle is accepted; if it does not fit, free space, wait for it, or refuse the bundle.

The limits, and the ways to free space below them, in this order:

=====================  ==========================================================================================
the previous segment   it is being written: a pause, not a refusal
`wal.max_size`,        the open segment is sealed early, and the log releases it
`max_rotated_files`
`retention.size_cap`   the oldest finished segments are deleted; with `drop_oldest`, the oldest segments in any
                       state. If none is left, or nothing may be dropped, the open segment is sealed early:
                       then the log releases it, and subscribers can finish it
`max_segments`         as for the cap, one segment
the disk               as for the cap; with `drop_oldest` and no segment left, also bundles that could not be written
=====================  ==========================================================================================

Free disk space is treated as a second cap, before the disk is full: the space for everything in memory stays free.
Otherwise it could not be sealed, no subscriber could finish it, and nothing would ever be freed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Literal, NamedTuple

from quiver.errors import BundleTooLargeError, CapacityError, StoreClosedError
from quiver.primitives.disk.disk_full import is_full_disk, is_out_of_descriptors
from quiver.store.context import StoreContext
from quiver.store.limits.capacity import BUDGET_CAP, Capacity, DiskRoom
from quiver.store.limits.disk_reports import RoomNotes
from quiver.store.removal.cleanup import Cleanup
from quiver.store.sealing.sealer import Sealer

__all__ = ["Admission", "Full"]

ENTRY_MARGIN_BYTES = 64
GRANT_SHARE = 8
PAUSE_S = 0.05
DISK = "the disk of "


class Full(NamedTuple):
    """Which limit is reached, human-readable, and the kind of space that is missing."""

    what: str
    cause: Literal["sealing", "log", "cap", "segments", "disk", "descriptors"]


class Admission:
    """
    Called by ingest, under the store's lock, before each bundle that does not certainly fit.

    Args:
        context: the store.
        cleanup: deletes segments.
        capacity: the size cap.
        sealer: writes segments.
    """

    def __init__(self, context: StoreContext, cleanup: Cleanup, capacity: Capacity, sealer: Sealer) -> None:
        self._context = context
        self._cleanup = cleanup
        self._capacity = capacity
        self._sealer = sealer
        self._logging = context.settings.durability == "wal"
        segment_bytes_max = context.settings.segment_bytes_max
        self._disk = DiskRoom(context.fs, context.path, segment_bytes_max=segment_bytes_max, logged=self._logging)
        self._drops = context.settings.size_cap_policy == "drop_oldest"
        self._granted_bytes = 0
        self._notes = RoomNotes(context.fs, context.path)
        self.wake: Callable[[], None] | None = None
        """Requests a pass of the background thread; None if there is none, and then the caller does the work."""
        self.is_closed = False

    # ── usage ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def disk_bytes(self) -> int:
        """Bytes on disk: log, segments, and all other files of the store."""
        context = self._context
        return context.catalog.bytes + context.wal.disk_bytes + self._cleanup.side.nbytes

    @property
    def staged_bytes(self) -> int:
        """Bytes on disk that Spark sinks staged and that are not yet segments."""
        return self._cleanup.side.incoming_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that count for the cap: those on disk, and those in memory that will become a segment."""
        return self.disk_bytes + self._context.sealing.nbytes

    def spare_bytes(self, nbytes: int = 0) -> int | None:
        """
        Return the bytes left below the cap and on the disk for *nbytes* more, after deducting the bytes in memory that
        will become a segment; None if neither is known.
        """
        cap, disk = self._below_cap(), self._disk.spare_bytes(self._context.sealing.file_bytes, nbytes)
        return min((spare for spare in (cap, disk) if spare is not None), default=None)

    def _below_cap(self) -> int | None:
        cap = self._capacity.cap_bytes
        return None if cap is None else cap - self.used_bytes - self._capacity.others_bytes()

    def why_full(self, nbytes: int) -> Full | None:
        """Return the limit that a bundle of *nbytes* would exceed, or None. Called under the lock."""
        context = self._context
        if context.sealing.full:
            return Full("the open segment: the one before it is still being written", "sealing")
        if self._cleanup.reserve.is_lacking:
            return Full(f"{DISK}{context.path} is full", "disk")
        if self._logging:
            log = context.wal.room_for(nbytes)
            if log is not None:
                return Full(log, "log")
        segments_max = context.settings.segments_max
        if segments_max is not None and self._segments_ahead() > segments_max:
            return Full(f"retention.max_segments ({segments_max})", "segments")
        wanted = self._wanted(nbytes)
        spare = self.spare_bytes(wanted)
        if spare is not None and wanted > spare:
            return Full(self._describe_cap(wanted), "cap")
        return None

    def why_refused(self, nbytes: int) -> Full | None:
        """
        Return why a bundle of *nbytes* would be refused, or None. Called under the lock.

        A segment that is being written is a pause and refuses nothing. Neither does a cap under `drop_oldest`, which
        makes space by dropping.
        """
        full = self.why_full(nbytes)
        if full is None or (full.cause in {"sealing", "log"} and self._context.sealing.failure is None):
            return None
        return None if self._drops and full.cause in {"cap", "segments"} else full

    def _segments_ahead(self) -> int:
        # The open segment will become a file, too.
        return self._context.catalog.local_count + (self._context.sealing.pending is not None) + 1

    def _wanted(self, nbytes: int) -> int:
        # It is in the log now and in a segment later; for a moment in both.
        return nbytes + (self._context.wal.growth(nbytes) if self._logging else 0)

    def _describe_cap(self, wanted: int) -> str:
        context = self._context
        spare = self._below_cap()
        if spare is None or wanted <= spare:
            kept = f"{self._disk.free_bytes} bytes are free, {context.sealing.file_bytes} wait to be sealed"
            return f"{DISK}{context.path} is full ({kept})"
        side = self._cleanup.side
        uses = [
            f"{context.catalog.bytes} in segments",
            f"{context.wal.disk_bytes} in the log",
            f"{context.sealing.nbytes} to be sealed",
            f"{side.nbytes} beside them",
        ]
        if side.incoming_bytes:
            uses.append(f"of which staged by Spark sinks {side.incoming_bytes}")
        if side.quarantine_bytes:
            uses.append(f"of which quarantine {side.quarantine_bytes}")
        others = self._capacity.others_bytes()
        if others:
            uses.append(f"{others} in other cores")
        name, cap = self._capacity.cap_name, self._capacity.cap_bytes
        share = "leaves this directory " if name == BUDGET_CAP else ""
        return f"{name} ({share}{cap} bytes: {', '.join(uses)})"

    def may_import(self) -> bool:
        """
        Return whether one more segment of a sink may be imported: not at the cap, unless space could be freed. Called
        with the maintenance lock held. That segment may exceed the cap: a segment that is larger than the rest of the
        cap must be imported some time, too.
        """
        for is_last in (False, True):
            with self._context.lock:
                segments_max = self._context.settings.segments_max
                is_many = segments_max is not None and self._segments_ahead() > segments_max
                below = self._below_cap()
                if below is not None:
                    # It is on the disk already: as a segment it can be finished and deleted.
                    below += self._cleanup.side.incoming_bytes
            if not is_many and (below is None or below > 0):
                return True
            if not is_last:
                self._remove(1 if is_many or below is None else 1 - below, "segments" if is_many else "cap")
        return False

    def serve_sinks(self) -> None:
        """
        Publish the available space to processes that stage segments, and free some if they wait for it. Called with the
        maintenance lock held.
        """
        if self._capacity.cap_bytes is None:
            with contextlib.suppress(OSError):
                self._notes.publish(None)
            return
        with self._context.lock:
            below = self._below_cap() or 0
            allowed = max(0, below + self.disk_bytes)
        with contextlib.suppress(OSError):
            self._notes.publish(allowed)
            wanted = self._notes.wanted_bytes()
            if wanted and wanted > below:
                self._cleanup.write_progress()
                self._remove(wanted - below, "cap")

    # ── freeing space ────────────────────────────────────────────────────────────────────────────────

    def has_room(self, nbytes: int) -> bool:
        """Return whether *nbytes* are within the grant, and deduct them. For a store without a log."""
        self._granted_bytes -= nbytes
        return self._granted_bytes >= 0

    def make_room(self, nbytes: int, deadline: float) -> None:
        """
        Return when a bundle of *nbytes* fits. The lock is held on return, but released while waiting.

        Raises:
            CapacityError: it does not fit at *deadline*, in monotonic seconds.
            BundleTooLargeError: it can never fit.
            StoreFailedError: the disk failed.
            StoreClosedError: the store was closed.
        """
        context = self._context
        self._refuse_what_never_fits(nbytes)
        is_counted = False
        tried: set[str] = set()
        while True:
            self._require_open()
            full = self.why_full(nbytes)
            if full is None:
                self._grant(nbytes)
                return
            # A segment that is being written frees space by itself: that is a pause, not a refusal.
            pause = self._is_being_written()
            changed = self._without_lock(full, nbytes)
            tried = set() if changed else {*tried, full.cause}
            after = self.why_full(nbytes)
            if changed or after is None or after.cause not in tried:
                # Check even if there is space: the store may have been closed while the lock was released. And another
                # limit may be reached now than a moment ago, with other ways to free space for it.
                continue
            if not pause and not is_counted:
                is_counted = True
                context.observer.count("quiver.ingest.throttle_total")
            left = deadline - context.clock.monotonic()
            if not pause and left <= 0:
                self._refuse(full.what)
            context.clock.wait(context.room, PAUSE_S if pause else min(left, PAUSE_S))

    def _grant(self, nbytes: int) -> None:
        """
        Let the next bundles skip the check of the cap if it is not near: together, in the log and in a segment, they
        take at most a quarter of the space left, and at most a quarter of a segment.
        """
        spare = self.spare_bytes()
        segment_bytes_max = self._context.settings.segment_bytes_max
        share = (segment_bytes_max if spare is None else min(max(0, spare), segment_bytes_max)) // GRANT_SHARE
        if not self._logging:
            self._granted_bytes = share
        elif spare is not None:
            self._context.wal.grant(nbytes + share)

    def wait_for_disk(self, refused: CapacityError, nbytes: int, deadline: float) -> None:
        """
        Wait until an append that found the disk full may be tried again. The lock is held on return.

        Raises:
            CapacityError: no space was freed until *deadline*.
            StoreFailedError: the disk failed.
            StoreClosedError: the store was closed.
        """
        context = self._context
        full = Full(refused.what, "descriptors" if is_out_of_descriptors(refused.__cause__) else "disk")
        if not self._without_lock(full, nbytes):
            left = deadline - context.clock.monotonic()
            if left <= 0:
                context.observer.count("quiver.ingest.throttle_total")
                self._refuse(full.what)
            context.clock.wait(context.room, min(left, PAUSE_S))
        self._require_open()

    def _require_open(self) -> None:
        if self.is_closed:
            raise StoreClosedError(f"{self._context.path} is closed")
        # A failed seal frees no space, so waiting for it would never end.
        self._context.wal.require_healthy()

    def _refuse_what_never_fits(self, nbytes: int) -> None:
        settings = self._context.settings
        if self._logging and nbytes + ENTRY_MARGIN_BYTES > settings.wal_bytes_max:
            raise BundleTooLargeError(
                f"the bundle is too large: it takes {nbytes} bytes in the log; wal.max_size is less"
            )
        cap = self._capacity.largest_bytes
        if cap is not None and nbytes * (2 if self._logging else 1) + ENTRY_MARGIN_BYTES > cap:
            twice = " twice, in the log and in a segment," if self._logging else ""
            name = self._capacity.cap_name
            takes = f"it takes {nbytes} bytes{twice} and {name} leaves {cap} at most"
            raise BundleTooLargeError(f"the bundle is too large: {takes}")

    def _is_being_written(self) -> bool:
        return self._context.sealing.pending is not None and self._context.sealing.failure is None

    def _without_lock(self, full: Full, nbytes: int) -> bool:
        """Free space with the store's lock released; return True if anything changed."""
        self._context.sealing.is_urgent = True
        if self.wake is not None and self._is_being_written():
            self.wake()
            return False
        self._context.lock.release()
        try:
            with self._context.maintenance:
                if self.is_closed:
                    return True
                return self._make_room(full, nbytes)
        finally:
            self._context.lock.acquire()

    def _make_room(self, full: Full, nbytes: int) -> bool:
        if self._sealer.seal_pending(may_wait=False):
            return True
        with contextlib.suppress(OSError):  # maintenance tries again and reports it; here it is only one more refusal
            self._cleanup.write_progress()
        failure = self._context.sealing.failure
        if full.cause == "descriptors" or (full.cause != "cap" and is_out_of_descriptors(failure)):
            return False  # dropping data frees no descriptor
        if full.cause in {"sealing", "log"} and failure is None:
            return self._seal_early()
        if self._remove(self._missing(full, nbytes), full.cause):
            return True
        if full.cause == "cap" and self._is_worth_sealing() and self._seal_early():
            return True
        return self._drop_unwritten(full)

    def _missing(self, full: Full, nbytes: int) -> int:
        """Return how many bytes of segments must be deleted."""
        wanted = self._wanted(nbytes)
        spare = self.spare_bytes(wanted)
        if full.cause == "cap" and spare is not None:
            return wanted - spare
        pending = self._context.sealing.pending
        return max(1 if full.cause == "segments" else nbytes, 0 if pending is None else pending.sealed.file_bytes)

    def _remove(self, bytes_wanted: int, cause: str) -> bool:
        removed = 0
        with contextlib.suppress(OSError):
            freed = self._cleanup.evict(bytes_wanted)
            removed = freed.segments
            bytes_wanted -= freed.size_bytes
            if cause == "cap" and bytes_wanted > 0:
                elsewhere = self._capacity.make_room(bytes_wanted)
                removed += elsewhere > 0
                bytes_wanted -= elsewhere
            if self._drops and bytes_wanted > 0:
                removed += self._cleanup.drop_oldest(bytes_wanted).segments
        # Refilling the reserve does not count as freed space: the caller would spend it again, without end.
        self._cleanup.reserve.keep(now=True)
        return removed > 0

    def _is_worth_sealing(self) -> bool:
        """
        Return whether sealing early frees much of the log, or gives subscribers something to finish. Without this
        check, a store at the cap would turn every few bundles into a segment.
        """
        context = self._context
        held = max(context.sealing.open.nbytes, context.wal.disk_bytes)
        return not context.catalog.local_count or held >= context.settings.segment_bytes_max // 2

    def _seal_early(self) -> bool:
        """Seal the open segment, so that log and memory can release it; return True if that changed anything."""
        context = self._context
        with context.lock:
            before = context.wal.disk_bytes
            swapped = context.sealing.swap()
        sealed = self._sealer.seal_pending(may_wait=False) if swapped else 0
        self._sealer.forget_log(0)
        self._retire_log()
        return sealed > 0 or context.wal.disk_bytes < before

    def _drop_unwritten(self, full: Full) -> bool:
        """With `drop_oldest`, a full disk and no segment left to drop: drop bundles that could not be written."""
        context = self._context
        is_disk_full = full.cause == "disk" or is_full_disk(context.sealing.failure)
        if not (self._drops and is_disk_full) or context.catalog.local_count:
            return False
        with context.lock:
            context.sealing.swap()
            pending = context.sealing.pending
        if pending is None:
            return False
        dropped = False
        with contextlib.suppress(OSError):
            dropped = self._cleanup.drop_pending(pending)
        if dropped:
            with context.lock:
                context.sealing.done()
                if context.sealing.full:
                    context.sealing.swap()
                context.room.notify_all()
            self._sealer.forget_log(pending.sealed.wal_position_end or 0)
            self._retire_log()
            self._cleanup.reserve.keep(now=True)
        return dropped

    def _retire_log(self) -> None:
        """Retire the active log file, too, if nothing in it is needed any more."""
        context = self._context
        with context.lock:
            if not (context.sealing.pending is None and context.sealing.open.is_empty):
                return
            try:
                context.wal.retire_covered()
            except CapacityError:  # the next file needs a little space first
                if self._cleanup.reserve.spend():
                    with contextlib.suppress(CapacityError):
                        context.wal.retire_covered()
        self._sealer.forget_log(0)

    def _refuse(self, what: str) -> None:
        context = self._context
        failure = context.sealing.failure
        if failure is not None:
            who = "the system" if is_out_of_descriptors(failure) else "the disk"
            what = f"{what}; {who} refuses the next segment: {failure.strerror}"
        elif self._cleanup.reserve.is_lacking and not what.startswith(DISK):
            what = f"{what}; {DISK}{context.path} is full"
        holder = context.subscribers.slowest()
        if holder is None and not context.subscribers.statuses():
            what = f"{what}; no subscriber is registered, so nothing is ever finished"
        raise CapacityError(what, held_by=holder)
