"""
Deletes segments: those that all subscribers have finished, those over age, and those that are dropped at a cap.

The order is always the same:

0. files of segments that the object tier has, beyond local retention: the segments remain (`cold/local_retention.py`);
1. finished segments, after their grace period and beyond the headroom;
2. segments over age: finished ones directly, the others through the drop ledger;
3. when space is needed: files that the tier has, then the oldest finished segments, regardless of grace and headroom;
4. with `drop_oldest`, and only if 3 freed too little: the oldest segments, through the drop ledger.

A segment is deleted only after the log's cursor has passed it; otherwise the log would restore it after a crash.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from quiver.errors import CorruptionError
from quiver.invariant import invariant
from quiver.primitives.disk.disk_full import is_full_disk
from quiver.store import recovery
from quiver.store.cold.local_retention import LocalRetention
from quiver.store.context import StoreContext
from quiver.store.early_delivery import EarlyDelivery
from quiver.store.format.cores import EVICTED
from quiver.store.format.drop_ledger import DroppedSegment, DropReason
from quiver.store.limits.side_files import Reserve, SideFiles
from quiver.store.removal.drops import DropLedger
from quiver.store.removal.retention import Retention
from quiver.store.sealing.schedule import Pending
from quiver.store.segment.info import SegmentInfo
from quiver.store.subscribers.state import SegmentRef

__all__ = ["Cleanup", "Freed"]

RESERVE_SHARE = 32
RESERVE_BYTES_MAX = 1024 * 1024


class Freed(NamedTuple):
    """The segments that a step removed, and their bytes."""

    segments: int
    size_bytes: int


NOTHING = Freed(0, 0)


class Cleanup:
    """
    Deletes segments. Every method holds the maintenance lock while it runs.

    Args:
        context: the store.
        ledger: the drop ledger as recovery found it.
        early: has the progress of bundles that are not sealed.
        on_reserve: called with True when the disk has no space for the reserve, and with False when it has again.
    """

    def __init__(
        self, context: StoreContext, ledger: DropLedger, early: EarlyDelivery, *, on_reserve: Callable[[bool], None]
    ) -> None:
        settings = context.settings
        self._context = context
        self._early = early
        self._ledger = ledger
        self._apply_again = False
        self.retention = Retention(
            grace_s=settings.delete_grace_s,
            headroom_bytes=settings.steady_state_headroom_bytes,
            age_s_max=settings.max_age_s,
        )
        self.window = LocalRetention(context, self.retention, self._out_of_log)
        self.side = SideFiles(context.fs, context.path, context.clock)
        self.reserve = Reserve(
            context.fs,
            context.path,
            self._reserve_bytes,
            clock=context.clock,
            observer=context.observer,
            on_change=on_reserve,
        )

    def _reserve_bytes(self) -> int:
        """
        Return the size of the reserve: a share of a segment, but at least 1.5 times the largest progress file.

        A progress file is replaced as a unit, and may grow before the next replacement.
        """
        share = min(RESERVE_BYTES_MAX, max(1, self._context.settings.segment_bytes_max // RESERVE_SHARE))
        largest = self.side.progress_bytes_max
        # A power of two, so that the reserve does not grow with every acknowledgement.
        return max(share, 1 << (largest * 3 // 2).bit_length() if largest else 0)

    def know(self, info: SegmentInfo, born_s: float | None = None) -> None:
        """Record the age of a segment: *born_s* in monotonic seconds, or by the wall clock for one found at open."""
        context = self._context
        if context.settings.max_age_s is None and not context.cold.location:
            return
        if born_s is None:
            clock = context.clock
            newest_ns = info.ingested_max_ns
            if newest_ns is None:  # another engine's segment has only the file's time; without a file it is new
                there = context.fs.exists(info.path)
                newest_ns = context.fs.stat(info.path).modified_ns if there else clock.now_ns()
            born_s = clock.monotonic() - max(0, clock.now_ns() - newest_ns) / 1e9
        self.retention.born(info.seq, born_s)

    def is_settled(self) -> bool:
        """Return whether no segment becomes due by its age, no drop has to be continued, and no space is lacking."""
        context, settings = self._context, self._context.settings
        if self._apply_again or len(self._ledger) or self.reserve.is_lacking:
            return False
        limits = (settings.max_age_s, settings.cold_max_age_s, settings.cold_local_age_s, settings.cold_local_bytes)
        return not len(context.catalog) or all(limit is None for limit in limits)

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────

    def write_progress(self) -> int:
        """
        Write the acknowledged progress durably; return how many files were written. Frees space if the disk is full.

        Raises:
            OSError: there is still no space, or the disk failed.
        """
        if self._apply_again:
            # Before progress moves past the deleted numbers: afterwards the losses could not be attributed.
            self._apply_again = False
            self._apply_drops(self._in_effect())
        # Replacing a file needs space for the new one: delete finished segments first, then use the reserve.
        for make_room in (self._evict_all, self.reserve.spend):
            try:
                return self._save()
            except OSError as error:
                if not is_full_disk(error):
                    raise
                make_room()
        return self._save()

    def _save(self) -> int:
        written = self._context.subscribers.save()
        self._early.save()
        return written

    def _evict_all(self) -> bool:
        return self.evict(None).segments > 0

    # ── finished ─────────────────────────────────────────────────────────────────────────────────────

    def free_finished(self) -> Freed:
        """
        Delete the segments that every subscriber has durably resolved, respecting grace period and headroom.

        Raises:
            OSError: the disk refused; segments that were not removed stay in the catalog.
        """
        with self._context.maintenance:
            finished = {info.seq: info.size_bytes for info in self._finished()}
            seqs = self.retention.deletable(finished, now_s=self._context.clock.monotonic())
            kept = self.window.keeps(seqs)
            self.window.release(kept)
            due = self._known(seq for seq in seqs if seq not in kept)
            first = min((info.sequence_first for info in due if info.sequence_first is not None), default=None)
            last = max((info.sequence_last for info in due if info.sequence_last is not None), default=None)
            if first is not None and last is not None and not self._context.may_remove(first, last):
                return NOTHING
            return self._delete(due, "finished")

    def evict(self, bytes_wanted: int | None) -> Freed:
        """
        Delete files of segments that the object tier has, then the oldest finished segments, without grace period.

        Stops when *bytes_wanted* are free; None deletes all of them.

        Raises:
            OSError: the disk refused; segments that were not removed stay in the catalog.
        """
        with self._context.maintenance:
            copies = Freed(*self.window.make_room(bytes_wanted))
            left = None if bytes_wanted is None else bytes_wanted - copies.size_bytes
            removed = self._delete(_oldest(self._on_disk(self._finished()), left), "size")
            return Freed(copies.segments + removed.segments, copies.size_bytes + removed.size_bytes)

    def has_finished(self) -> bool:
        """Return whether there are segments on disk that all subscribers have resolved, as far as is known here."""
        return bool(self._on_disk(self._known(self._context.subscribers.complete_segments())))

    def _on_disk(self, infos: list[SegmentInfo]) -> list[SegmentInfo]:
        return [info for info in infos if self._context.catalog.is_local(info.seq)]

    def _finished(self) -> list[SegmentInfo]:
        context = self._context
        if not len(context.catalog):
            return []
        context.subscribers.refresh()
        return self._out_of_log(self._known(context.subscribers.complete_segments()))

    def _out_of_log(self, infos: list[SegmentInfo]) -> list[SegmentInfo]:
        """Return those of *infos* that the log would not restore: its cursor has passed them, durably."""
        context = self._context
        if not infos:
            return []
        if max(info.wal_position_end or 0 for info in infos) > context.wal.cursor:
            with contextlib.suppress(OSError):  # later, then
                context.wal.advance_cursor()
        return [info for info in infos if (info.wal_position_end or 0) <= context.wal.cursor]

    def _known(self, seqs: Iterable[int]) -> list[SegmentInfo]:
        get = self._context.catalog.get
        return [info for seq in seqs if (info := get(seq)) is not None]

    def _delete(self, infos: Sequence[SegmentInfo], reason: str) -> Freed:
        context = self._context
        if not infos:
            return NOTHING
        seqs = [info.seq for info in infos]
        invariant(
            all((info.wal_position_end or 0) <= context.wal.cursor for info in infos),
            f"segments {seqs} must not be deleted before the log's cursor has passed them",
        )
        try:
            context.catalog.keep_floor(max(seqs) + 1)
        except OSError as error:
            if not is_full_disk(error):
                raise
            if len(seqs) == 1 and self.reserve.spend():
                context.catalog.keep_floor(max(seqs) + 1)
            elif len(seqs) == 1:
                raise
            else:
                seqs.remove(max(seqs))  # the file with the highest number reserves it until the floor can be written
        freed = Freed(len(seqs), context.catalog.delete(seqs))
        context.subscribers.removed(seqs)
        self.retention.forget(seqs)
        # After a crash before the cold list is written, the segment exists again, still finished, and is deleted again.
        context.cold.mark_unverified(seqs)
        context.sealing.try_now()
        with context.lock:
            context.room.notify_all()
        context.observer.count("quiver.gc.evictions_total", len(seqs), reason=reason)
        return freed

    # ── dropped ──────────────────────────────────────────────────────────────────────────────────────

    def expire(self) -> Freed:
        """
        Remove the segments that are over age, resolved or not.

        Raises:
            OSError: the disk refused; the next call continues.
        """
        context = self._context
        with context.maintenance:
            now_s = context.clock.monotonic()
            # Segments that the tier has expire there; `LocalRetention.shrink` removes their local files.
            due = {seq for seq in self.retention.expired(now_s=now_s) if not context.cold.is_verified(seq)}
            if context.settings.cold_max_age_s is not None:
                due.update(self.retention.older_than(context.settings.cold_max_age_s, now_s=now_s))
            if not due:
                return NOTHING
            finished = [info for info in self._finished() if info.seq in due]
            removed = self._delete(finished, "age")
            left = self._known(sorted(due.difference(info.seq for info in finished)))
            dropped = self._drop(left, "age")
            return Freed(removed.segments + dropped.segments, removed.size_bytes + dropped.size_bytes)

    def drop_oldest(self, bytes_wanted: int) -> Freed:
        """
        Drop the oldest segments, resolved or not, until *bytes_wanted* are free.

        Raises:
            OSError: the disk refused; the next call continues.
        """
        context = self._context
        with context.maintenance:
            freed = self._drop(_oldest(self._on_disk(context.catalog.segments()), bytes_wanted), "size")
            if freed.segments:
                context.observer.count("quiver.retention.size_emergency_total")
            return freed

    def drop_pending(self, pending: Pending) -> bool:
        """
        Drop a segment that was never written for lack of space; return False if the ledger has no space for it.

        Its number is not used again. On return the log would not restore it; the caller releases its memory.
        """
        context = self._context
        with context.maintenance:
            sealed = pending.sealed
            position = sealed.wal_position_end or 0
            now_ns = max(0, context.clock.now_ns())
            entry = DroppedSegment(pending.seq, sealed.bundle_count, 0, "size", now_ns, position)
            if not self._record([entry]):
                return False
            # Crash before: the log restores the segment, and the entry is removed. Crash after: the drop takes effect.
            # If this fails the entry stays, because it is unknown which cursor a crash would leave. If the segment is
            # written after all, `continue_drops` removes the entry.
            self._on_full_disk(lambda: context.wal.advance_cursor(position, or_never=True))
            context.subscribers.unsealed.remove_dropped(SegmentRef(pending.seq, sealed.bundle_count))
            self._count_dropped([entry])
            context.observer.count("quiver.retention.size_emergency_total")
            with contextlib.suppress(OSError):  # the ledger keeps the number until every progress file has it
                self._apply_drops([entry])
                context.catalog.keep_floor(pending.seq + 1)
            return True

    def _on_full_disk(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not (is_full_disk(error) and self.reserve.spend()):
                raise
            write()

    def take_back(self) -> None:
        """At open: remove drops that never took effect because the log still has the bundles."""
        context = self._context
        undone = [entry.seq for entry in self._ledger.entries if entry.wal_position_end > context.wal.cursor]
        if undone:
            with contextlib.suppress(OSError):
                # A process that has read the ledger considers the number dropped: no other segment may get it.
                context.catalog.keep_floor(max(undone) + 1)
            with contextlib.suppress(OSError):
                self._ledger.remove(undone)

    def _drop(self, infos: list[SegmentInfo], reason: DropReason) -> Freed:
        """Take steps 1 to 5 of a drop; see `drops`."""
        now_ns = max(0, self._context.clock.now_ns())
        entries = [
            DroppedSegment(info.seq, info.bundle_count, info.size_bytes, reason, now_ns)
            for info in self._out_of_log(infos)
        ]
        if not entries or not self._record_and_count(entries):
            return NOTHING
        invariant(
            all(entry.seq in self._ledger for entry in entries), "a drop must be in the ledger before it is applied"
        )
        return self._delete_dropped(entries)

    def _record_and_count(self, entries: Sequence[DroppedSegment]) -> bool:
        """
        Record *entries* in the ledger, and count those that are new.

        Entries that reached the disk before a failure are counted, too: they will be dropped, if not by this process.
        """
        fresh = [entry for entry in entries if entry.seq not in self._ledger]
        try:
            return self._record(entries)
        finally:
            self._count_dropped([entry for entry in fresh if entry.seq in self._ledger])

    def _record(self, entries: Sequence[DroppedSegment]) -> bool:
        fresh = [entry for entry in entries if entry.seq not in self._ledger]
        if not self._ledger.has_room(len(fresh)):
            with contextlib.suppress(OSError):
                self.continue_drops()
            if not self._ledger.has_room(len(fresh)):
                self._context.observer.event("quiver.drops", level=logging.ERROR, problem="the drop ledger is full")
                return False
        self._on_full_disk(lambda: self._ledger.add(fresh))
        return True

    def _count_dropped(self, entries: Sequence[DroppedSegment]) -> None:
        for entry in entries:
            self._context.observer.count("quiver.segment.dropped_total", reason=entry.reason)
            self._context.observer.event(
                "quiver.segment.drop",
                level=logging.WARNING,
                path=self._context.path,
                segment=entry.seq,
                bundles=entry.bundle_count,
                bytes=entry.size_bytes,
                reason=entry.reason,
            )

    def _delete_dropped(self, entries: Sequence[DroppedSegment]) -> Freed:
        self._apply_drops(entries)
        reasons = {entry.reason for entry in entries}
        freed = [
            self._delete(self._known(entry.seq for entry in entries if entry.reason == reason), reason)
            for reason in sorted(reasons)
        ]
        return Freed(sum(one.segments for one in freed), sum(one.size_bytes for one in freed))

    def _apply_drops(self, entries: Sequence[DroppedSegment]) -> dict[str, int]:
        try:
            return self._context.subscribers.drops.apply(entries)
        except OSError as error:
            # The ledger keeps the entries until the progress files have them; deleting frees the space they need.
            if not is_full_disk(error):
                raise
            self._apply_again = True
            return {}

    def continue_drops(self) -> None:
        """
        Continue the drops in the ledger: after a crash, after a disk error, or when another process has applied them.

        Settled entries leave the ledger.

        Raises:
            OSError: the disk refused; the next call continues.
        """
        context = self._context
        if not len(self._ledger):
            return
        with context.maintenance:
            spent = [entry.seq for entry in self._ledger.entries if self._was_written(entry)]
            self._on_full_disk(lambda: self._ledger.add(()))  # its entries may be deleted only when it is durable
            entries = self._in_effect()
            unfinished = [entry for entry in entries if entry.seq in context.catalog]
            if unfinished:
                self._delete_dropped(unfinished)
            context.subscribers.refresh()
            context.subscribers.drops.apply(entries)
            # Entries may still be in another core's record of evictions, and would count as new again.
            if not context.fs.exists(f"{context.path}/{EVICTED}"):
                spent += [entry.seq for entry in entries if self._is_done_with(entry)]
            self._ledger.remove(spent)
            context.subscribers.drops.forget(spent)

    def _is_done_with(self, entry: DroppedSegment) -> bool:
        context = self._context
        pending = context.sealing.pending
        return (
            entry.seq not in context.catalog
            and (pending is None or pending.seq != entry.seq)
            and context.subscribers.drops.is_settled(entry)
            and all(guard(entry.seq) for guard in context.drop_guards)
        )

    def _in_effect(self) -> list[DroppedSegment]:
        cursor = self._context.wal.cursor
        return [
            entry for entry in self._ledger.entries if entry.wal_position_end <= cursor and not self._was_written(entry)
        ]

    def _was_written(self, entry: DroppedSegment) -> bool:
        """Return whether a segment was recorded while the disk was full, and written after all: it is not dropped."""
        return entry.wal_position_end > 0 and entry.seq in self._context.catalog

    # ── removed by others ────────────────────────────────────────────────────────────────────────────

    def note_evicted(self, dropped: Sequence[DroppedSegment]) -> bool:
        """
        Account for segment files of this store that another process removed.

        Args:
            dropped: those that some subscriber had not resolved. They enter the drop ledger and are counted.

        Returns:
            Whether the ledger has all of them. If not, because it is full, the record must stay: otherwise a
            subscriber that another process owns would have a gap without explanation.

        Raises:
            OSError: the disk refused; call again.
        """
        context = self._context
        with context.maintenance:
            # Those that are in the ledger already were counted before a crash, or this store dropped them at the same
            # time: the ledger keeps its entries while there is a record.
            is_noted = self._record_and_count(dropped)
            self._apply_drops(dropped)
            given_up = {entry.seq for entry in dropped}
            removed = [info.seq for info in context.catalog.local_segments() if not context.fs.exists(info.path)]
            copied = [seq for seq in removed if seq not in given_up and context.cold.is_verified(seq)]
            for seq in copied:
                context.catalog.went_cold(seq)
            seqs = sorted(set(removed).difference(copied))
            if seqs:
                context.catalog.keep_floor(max(seqs) + 1)
                context.cold.mark_unverified(seqs)
                for seq in seqs:
                    context.catalog.forget(seq)
                context.subscribers.removed(seqs)
                self.retention.forget(seqs)
                with context.lock:
                    context.room.notify_all()
            self._delete_dropped([entry for entry in dropped if entry.seq in context.catalog])
            return is_noted

    def quarantine(self, info: SegmentInfo, damage: CorruptionError) -> None:
        """Move a damaged segment to quarantine, so that all others are still delivered; the loss is counted."""
        context = self._context
        with context.maintenance:
            if info.seq not in context.catalog:
                return
            context.catalog.keep_floor(info.seq + 1)
            is_local = context.catalog.is_local(info.seq)
            if is_local:
                with contextlib.suppress(FileNotFoundError):
                    recovery.quarantine_file(context.fs, context.path, info.path)
            if is_local and context.cold.is_verified(info.seq):
                context.catalog.went_cold(info.seq)
                context.observer.event(
                    "quiver.segment.quarantined",
                    level=logging.ERROR,
                    path=info.path,
                    bundles=0,
                    reason=f"{damage.reason}; the object tier has it",
                )
                return
            # The next pass copies an object that differs from what was sent to the tier's own quarantine.
            context.cold.mark_unverified([info.seq], "sent" if is_local else "damaged")
            context.catalog.forget(info.seq)
            context.subscribers.removed([info.seq])
            self.retention.forget([info.seq])
            self.side.measure(now=True)
        context.observer.event(
            "quiver.segment.quarantined",
            level=logging.ERROR,
            path=damage.path,
            bundles=info.bundle_count,
            reason=damage.reason,
        )
        context.observer.count("quiver.segment.damaged_bundles_total", info.bundle_count)


def _oldest(infos: Sequence[SegmentInfo], bytes_wanted: int | None) -> list[SegmentInfo]:
    chosen: list[SegmentInfo] = []
    for info in sorted(infos, key=lambda info: info.seq):
        if bytes_wanted is not None and bytes_wanted <= 0:
            break
        chosen.append(info)
        bytes_wanted = None if bytes_wanted is None else bytes_wanted - info.size_bytes
    return chosen
