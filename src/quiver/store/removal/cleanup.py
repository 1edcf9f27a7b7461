"""
What leaves the disk, and why: because everybody has finished with it, because it is over age, or given up at a cap.

In this order, whoever asks:

0. files of segments that the object tier has, beyond the local window: the segments stay (`cold/local_retention.py`);
1. finished segments, after their grace period and beyond the headroom;
2. segments over age: finished ones as they are, the others through the drop ledger;
3. when room is wanted: files that the tier has, then the oldest finished segments, grace and headroom or not;
4. with `drop_oldest`, and only when 3 gave too little: the oldest segments, through the drop ledger.

Nothing goes that the log would bring back after a crash: its cursor has passed a segment before the file goes.
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
from quiver.store.cold.local_retention import ColdWindow
from quiver.store.context import Parts
from quiver.store.format.cores import EVICTED
from quiver.store.format.drop_ledger import DroppedSegment, DropReason
from quiver.store.limits.side_files import Reserve, SideFiles
from quiver.store.removal.drops import DropLedger
from quiver.store.removal.retention import Retention
from quiver.store.sealing.schedule import Pending
from quiver.store.segment.info import SegmentInfo

__all__ = ["Cleanup", "Freed"]

RESERVE_SHARE = 32
RESERVE_BYTES_MAX = 1024 * 1024


class Freed(NamedTuple):
    """What a step removed: segments, and their bytes."""

    segments: int
    size_bytes: int


NOTHING = Freed(0, 0)


class Cleanup:
    """
    Deletes segments. Every method takes the maintenance lock for as long as it works.

    Args:
        parts: the store.
        ledger: the drop ledger as recovery found it.
        on_reserve: told True when the disk has no room for the reserve, and False when it has again.
    """

    def __init__(self, parts: Parts, ledger: DropLedger, *, on_reserve: Callable[[bool], None]) -> None:
        settings = parts.settings
        self._parts = parts
        self._ledger = ledger
        self._fold_again = False
        self.retention = Retention(
            grace_s=settings.delete_grace_s,
            headroom_bytes=settings.steady_state_headroom_bytes,
            age_s_max=settings.max_age_s,
        )
        self.window = ColdWindow(parts, self.retention, self._out_of_log)
        self.side = SideFiles(parts.fs, parts.path, parts.clock)
        self.reserve = Reserve(
            parts.fs,
            parts.path,
            self._reserve_bytes,
            clock=parts.clock,
            observer=parts.observer,
            on_change=on_reserve,
        )

    def _reserve_bytes(self) -> int:
        """
        Return how much the reserve should hold: a share of a segment, and the largest progress file once and a half
        at least. That one is written anew, whole, and may grow until it is.
        """
        share = min(RESERVE_BYTES_MAX, max(1, self._parts.settings.segment_bytes_max // RESERVE_SHARE))
        largest = self.side.progress_bytes_max
        # In powers of two, so that it is not made longer with every acknowledgement.
        return max(share, 1 << (largest * 3 // 2).bit_length() if largest else 0)

    def know(self, info: SegmentInfo, born_s: float | None = None) -> None:
        """
        Note how old a segment is: *born_s* in monotonic seconds, or what the wall clock says of one
        found at open.
        """
        parts = self._parts
        if parts.settings.max_age_s is None and not parts.cold.location:
            return
        if born_s is None:
            clock = parts.clock
            newest_ns = info.ingested_max_ns
            if newest_ns is None:  # another engine's: it goes by the file's time, too; without one it begins now
                there = parts.fs.exists(info.path)
                newest_ns = parts.fs.stat(info.path).modified_ns if there else clock.now_ns()
            born_s = clock.monotonic() - max(0, clock.now_ns() - newest_ns) / 1e9
        self.retention.born(info.seq, born_s)

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────

    def write_progress(self) -> int:
        """
        Write what was acknowledged, durably; how many files were written. On a full disk room is made for them.

        Raises:
            OSError: there is still no room, or the disk failed.
        """
        subscribers = self._parts.subscribers
        if self._fold_again:
            # Before progress passes over the numbers that are gone: from then on nobody could tell whose loss it was.
            self._fold_again = False
            self._fold(self._in_effect())
        # A file can only be replaced where there is room for the new one: delete what may go, then use the reserve.
        for make_room in (self._evict_all, self.reserve.spend):
            try:
                return subscribers.save()
            except OSError as error:
                if not is_full_disk(error):
                    raise
                make_room()
        return subscribers.save()

    def _evict_all(self) -> bool:
        return self.evict(None).segments > 0

    # ── finished ─────────────────────────────────────────────────────────────────────────────────────

    def free_finished(self) -> Freed:
        """
        Delete the segments that every subscriber has durably resolved, grace and headroom kept.

        Raises:
            OSError: the disk refused; what was not removed stays known.
        """
        with self._parts.maintenance:
            finished = {info.seq: info.size_bytes for info in self._finished()}
            seqs = self.retention.deletable(finished, now_s=self._parts.clock.monotonic())
            kept = self.window.keeps(seqs)
            self.window.release(kept)
            return self._delete(self._known(seq for seq in seqs if seq not in kept), "finished")

    def evict(self, bytes_wanted: int | None) -> Freed:
        """
        Delete the oldest finished segments at once until *bytes_wanted* are free; None deletes all of them. Before
        that, files of segments that the object tier has.

        Raises:
            OSError: the disk refused; what was not removed stays known.
        """
        with self._parts.maintenance:
            copies = Freed(*self.window.make_room(bytes_wanted))
            left = None if bytes_wanted is None else bytes_wanted - copies.size_bytes
            gone = self._delete(_oldest(self._on_disk(self._finished()), left), "size")
            return Freed(copies.segments + gone.segments, copies.size_bytes + gone.size_bytes)

    def has_finished(self) -> bool:
        """
        Return whether there are segments on disk that all subscribers have resolved, as far as this
        process knows.
        """
        return bool(self._on_disk(self._known(self._parts.subscribers.complete_segments())))

    def _on_disk(self, infos: list[SegmentInfo]) -> list[SegmentInfo]:
        return [info for info in infos if self._parts.catalog.is_local(info.seq)]

    def _finished(self) -> list[SegmentInfo]:
        parts = self._parts
        if not len(parts.catalog):
            return []
        parts.subscribers.refresh()
        return self._out_of_log(self._known(parts.subscribers.complete_segments()))

    def _out_of_log(self, infos: list[SegmentInfo]) -> list[SegmentInfo]:
        """Return those of *infos* that the log would not bring back: the cursor has passed them, durably."""
        parts = self._parts
        if any((info.wal_position_end or 0) > parts.wal.cursor for info in infos):
            with contextlib.suppress(OSError):  # later, then
                parts.wal.advance_cursor()
        return [info for info in infos if (info.wal_position_end or 0) <= parts.wal.cursor]

    def _known(self, seqs: Iterable[int]) -> list[SegmentInfo]:
        found = (self._parts.catalog.get(seq) for seq in seqs)
        return [info for info in found if info is not None]

    def _delete(self, infos: Sequence[SegmentInfo], reason: str) -> Freed:
        parts = self._parts
        if not infos:
            return NOTHING
        seqs = [info.seq for info in infos]
        invariant(
            all((info.wal_position_end or 0) <= parts.wal.cursor for info in infos),
            f"segments {seqs} must not be deleted before the log's cursor has passed them",
        )
        try:
            parts.catalog.keep_floor(max(seqs) + 1)
        except OSError as error:
            if not is_full_disk(error):
                raise
            if len(seqs) == 1 and self.reserve.spend():
                parts.catalog.keep_floor(max(seqs) + 1)
            elif len(seqs) == 1:
                raise
            else:
                seqs.remove(max(seqs))  # the highest name keeps the number until there is room to write it down
        freed = Freed(len(seqs), parts.catalog.delete(seqs))
        parts.subscribers.removed(seqs)
        self.retention.gone(seqs)
        # A crash before the list says so: the segment is back, as finished as it was, and goes again.
        parts.cold.mark_unverified(seqs)
        parts.sealing.try_now()
        with parts.lock:
            parts.room.notify_all()
        parts.observer.count("quiver.gc.evictions_total", len(seqs), reason=reason)
        return freed

    # ── given up ─────────────────────────────────────────────────────────────────────────────────────

    def expire(self) -> Freed:
        """
        Remove the segments that are over age, resolved or not.

        Raises:
            OSError: the disk refused; the next call goes on.
        """
        parts = self._parts
        with parts.maintenance:
            now_s = parts.clock.monotonic()
            # What the tier has is over age there, not here: here `ColdWindow.shrink` removes the file.
            due = {seq for seq in self.retention.expired(now_s=now_s) if not parts.cold.is_verified(seq)}
            if parts.settings.cold_max_age_s is not None:
                due.update(self.retention.older_than(parts.settings.cold_max_age_s, now_s=now_s))
            if not due:
                return NOTHING
            finished = [info for info in self._finished() if info.seq in due]
            gone = self._delete(finished, "age")
            left = self._known(sorted(due.difference(info.seq for info in finished)))
            dropped = self._give_up(left, "age")
            return Freed(gone.segments + dropped.segments, gone.size_bytes + dropped.size_bytes)

    def drop_oldest(self, bytes_wanted: int) -> Freed:
        """
        Give up the oldest segments, resolved or not, until *bytes_wanted* are free.

        Raises:
            OSError: the disk refused; the next call goes on.
        """
        parts = self._parts
        with parts.maintenance:
            freed = self._give_up(_oldest(self._on_disk(parts.catalog.segments()), bytes_wanted), "size")
            if freed.segments:
                parts.observer.count("quiver.retention.size_emergency_total")
            return freed

    def drop_pending(self, pending: Pending) -> bool:
        """
        Give up a segment that the disk has no room for and that was never written; False when that cannot be noted.

        Its number is not used again. On return the log would not bring it back; the caller lets memory forget it.
        """
        parts = self._parts
        with parts.maintenance:
            sealed = pending.sealed
            position = sealed.wal_position_end or 0
            now_ns = max(0, parts.clock.now_ns())
            entry = DroppedSegment(pending.seq, sealed.bundle_count, 0, "size", now_ns, position)
            if not self._note([entry]):
                return False
            # Crash before: the log brings it back, and the entry is taken back. Crash behind: it is carried out. The
            # entry stays when this fails: nobody knows then what a crash would leave of the cursor. Should the segment
            # be written after all, `continue_drops` removes it.
            self._on_full_disk(lambda: parts.wal.advance_cursor(position, or_never=True))
            self._count_dropped([entry])
            parts.observer.count("quiver.retention.size_emergency_total")
            with contextlib.suppress(OSError):  # the ledger keeps the number until every progress file does
                self._fold([entry])
                parts.catalog.keep_floor(pending.seq + 1)
            return True

    def _on_full_disk(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not (is_full_disk(error) and self.reserve.spend()):
                raise
            write()

    def take_back(self) -> None:
        """At open: forget drops that never took effect, because the log has the bundles still."""
        parts = self._parts
        undone = [entry.seq for entry in self._ledger.entries if entry.wal_position_end > parts.wal.cursor]
        if undone:
            with contextlib.suppress(OSError):
                # Whoever has read the ledger takes the number for dropped: no other segment may get it.
                parts.catalog.keep_floor(max(undone) + 1)
            with contextlib.suppress(OSError):
                self._ledger.remove(undone)

    def _give_up(self, infos: list[SegmentInfo], reason: DropReason) -> Freed:
        """Steps 1 to 5 of a drop; see `drops`."""
        now_ns = max(0, self._parts.clock.now_ns())
        entries = [
            DroppedSegment(info.seq, info.bundle_count, info.size_bytes, reason, now_ns)
            for info in self._out_of_log(infos)
        ]
        if not entries or not self._note_and_count(entries):
            return NOTHING
        invariant(
            all(entry.seq in self._ledger for entry in entries), "a drop must be in the ledger before it is applied"
        )
        return self._carry_out(entries)

    def _note_and_count(self, entries: Sequence[DroppedSegment]) -> bool:
        """
        Note *entries*, and count those that are new. What the disk took before it failed is counted as well: from
        here on it goes, if not by this process.
        """
        fresh = [entry for entry in entries if entry.seq not in self._ledger]
        try:
            return self._note(entries)
        finally:
            self._count_dropped([entry for entry in fresh if entry.seq in self._ledger])

    def _note(self, entries: Sequence[DroppedSegment]) -> bool:
        fresh = [entry for entry in entries if entry.seq not in self._ledger]
        if not self._ledger.has_room(len(fresh)):
            with contextlib.suppress(OSError):
                self.continue_drops()
            if not self._ledger.has_room(len(fresh)):
                self._parts.observer.event("quiver.drops", level=logging.ERROR, problem="the drop ledger is full")
                return False
        self._on_full_disk(lambda: self._ledger.add(fresh))
        return True

    def _count_dropped(self, entries: Sequence[DroppedSegment]) -> None:
        for entry in entries:
            self._parts.observer.count("quiver.segment.dropped_total", reason=entry.reason)
            self._parts.observer.event(
                "quiver.segment.drop",
                level=logging.WARNING,
                path=self._parts.path,
                segment=entry.seq,
                bundles=entry.bundle_count,
                bytes=entry.size_bytes,
                reason=entry.reason,
            )

    def _carry_out(self, entries: Sequence[DroppedSegment]) -> Freed:
        self._fold(entries)
        reasons = {entry.reason for entry in entries}
        freed = [
            self._delete(self._known(entry.seq for entry in entries if entry.reason == reason), reason)
            for reason in sorted(reasons)
        ]
        return Freed(sum(one.segments for one in freed), sum(one.size_bytes for one in freed))

    def _fold(self, entries: Sequence[DroppedSegment]) -> dict[str, int]:
        try:
            return self._parts.subscribers.drops.apply(entries)
        except OSError as error:
            # The ledger says it too, and stays until the progress files do: what goes now makes room for them.
            if not is_full_disk(error):
                raise
            self._fold_again = True
            return {}

    def continue_drops(self) -> None:
        """
        Go on with what the ledger names: after a crash, after a refusal of the disk, or once another process has
        taken note. What is settled leaves the ledger.

        Raises:
            OSError: the disk refused; the next call goes on.
        """
        parts = self._parts
        if not len(self._ledger):
            return
        with parts.maintenance:
            spent = [entry.seq for entry in self._ledger.entries if self._was_written(entry)]
            self._on_full_disk(lambda: self._ledger.add(()))  # what it names goes when it is durable, not before
            entries = self._in_effect()
            unfinished = [entry for entry in entries if entry.seq in parts.catalog]
            if unfinished:
                self._carry_out(unfinished)
            parts.subscribers.refresh()
            parts.subscribers.drops.apply(entries)
            # What others gave up may stand in their record still, and would count as news.
            if not parts.fs.exists(f"{parts.path}/{EVICTED}"):
                spent += [entry.seq for entry in entries if self._is_done_with(entry)]
            self._ledger.remove(spent)
            parts.subscribers.drops.forget(spent)

    def _is_done_with(self, entry: DroppedSegment) -> bool:
        parts = self._parts
        pending = parts.sealing.pending
        return (
            entry.seq not in parts.catalog
            and (pending is None or pending.seq != entry.seq)
            and parts.subscribers.drops.is_settled(entry)
        )

    def _in_effect(self) -> list[DroppedSegment]:
        cursor = self._parts.wal.cursor
        return [
            entry for entry in self._ledger.entries if entry.wal_position_end <= cursor and not self._was_written(entry)
        ]

    def _was_written(self, entry: DroppedSegment) -> bool:
        """Say whether a segment was noted while the disk refused it, and was written after all: it is not dropped."""
        return entry.wal_position_end > 0 and entry.seq in self._parts.catalog

    # ── taken by others ──────────────────────────────────────────────────────────────────────────────

    def note_evicted(self, dropped: Sequence[DroppedSegment]) -> bool:
        """
        Take note that another process removed segment files of this store.

        Args:
            dropped: those of them that not every subscriber had resolved. They enter the drop ledger, and are counted.

        Returns:
            Whether the ledger says it all now. If not, because it is full, the record of it must stay: a subscriber
            that another process works for would be left with a gap that nobody explains.

        Raises:
            OSError: the disk refused; call again.
        """
        parts = self._parts
        with parts.maintenance:
            # The others were noted, and counted, before a crash, or this store gave them up itself at the same time:
            # the ledger forgets nothing while there is a record.
            is_noted = self._note_and_count(dropped)
            self._fold(dropped)
            given_up = {entry.seq for entry in dropped}
            gone = [info.seq for info in parts.catalog.local_segments() if not parts.fs.exists(info.path)]
            copied = [seq for seq in gone if seq not in given_up and parts.cold.is_verified(seq)]
            for seq in copied:
                parts.catalog.went_cold(seq)
            seqs = sorted(set(gone).difference(copied))
            if seqs:
                parts.catalog.keep_floor(max(seqs) + 1)
                parts.cold.mark_unverified(seqs)
                for seq in seqs:
                    parts.catalog.forget(seq)
                parts.subscribers.removed(seqs)
                self.retention.gone(seqs)
                with parts.lock:
                    parts.room.notify_all()
            self._carry_out([entry for entry in dropped if entry.seq in parts.catalog])
            return is_noted

    def quarantine(self, info: SegmentInfo, damage: CorruptionError) -> None:
        """Take a segment that turned out damaged out of everybody's way: the others go on, the loss is counted."""
        parts = self._parts
        with parts.maintenance:
            if info.seq not in parts.catalog:
                return
            parts.catalog.keep_floor(info.seq + 1)
            is_local = parts.catalog.is_local(info.seq)
            if is_local:
                with contextlib.suppress(FileNotFoundError):
                    recovery.quarantine_file(parts.fs, parts.path, info.path)
            if is_local and parts.cold.is_verified(info.seq):
                parts.catalog.went_cold(info.seq)
                parts.observer.event(
                    "quiver.segment.quarantined",
                    level=logging.ERROR,
                    path=info.path,
                    bundles=0,
                    reason=f"{damage.reason}; the object tier has it",
                )
                return
            # An object that is not what was sent is copied to a quarantine of its own by the next pass.
            parts.cold.mark_unverified([info.seq], "sent" if is_local else "damaged")
            parts.catalog.forget(info.seq)
            parts.subscribers.removed([info.seq])
            self.retention.gone([info.seq])
            self.side.measure(now=True)
        parts.observer.event(
            "quiver.segment.quarantined",
            level=logging.ERROR,
            path=damage.path,
            bundles=info.bundle_count,
            reason=damage.reason,
        )
        parts.observer.count("quiver.segment.damaged_bundles_total", info.bundle_count)


def _oldest(infos: Sequence[SegmentInfo], bytes_wanted: int | None) -> list[SegmentInfo]:
    chosen: list[SegmentInfo] = []
    for info in sorted(infos, key=lambda info: info.seq):
        if bytes_wanted is not None and bytes_wanted <= 0:
            break
        chosen.append(info)
        bytes_wanted = None if bytes_wanted is None else bytes_wanted - info.size_bytes
    return chosen
