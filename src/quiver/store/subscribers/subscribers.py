"""
All subscribers of one open store: registered, found at open or while it is open, orphaned, removed.

A subscriber is owned by this process, which then holds its lock and is the only one to write its progress file, or by
another process, whose file `refresh` reads again when it changed. Every subscriber with a progress file counts for
deletion, even if it was not registered since the store was opened. When the registration phase has ended, such a
subscriber is an orphan: it is reported, and keeps its data until it is dropped.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

from quiver.bundle import Bundle, BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import DirectoryInUseError, UsageError
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.lock import holder_of, is_held
from quiver.primitives.forked import refuse_in_children
from quiver.settings import DamagePolicy, Profile
from quiver.store.format.names import check_subscriber_id, subscriber_lock_name
from quiver.store.subscribers import progress_store
from quiver.store.subscribers.audit_trail import AuditTrail
from quiver.store.subscribers.claims import Claims
from quiver.store.subscribers.drop_applier import DropApplier
from quiver.store.subscribers.orphaned_progress import find_missing
from quiver.store.subscribers.queue import Place, check_order
from quiver.store.subscribers.records import SubscriberLag, SubscriberRecord, SubscriberStatus, SubscriberTable
from quiver.store.subscribers.start import RewindTo, Rewound, Start, rewind_position
from quiver.store.subscribers.state import SegmentRef, Segments, SubscriberState
from quiver.store.subscribers.unsealed import UnsealedProgress

__all__ = ["Subscribers"]


class Subscribers:
    """
    The subscribers of one store. Thread-safe. `SubscriberCalls` documents the methods that `Store` offers to users.

    Args:
        fs: the file system.
        root: the store's directory.
        segments: the sealed segments that recovery found.
        next_seq: the number that the next segment will get, according to the file names; see `floor`.
        load: reads one bundle, given its segment and index; called outside all locks.
        load_run: reads consecutive bundles; see `Claims`.
        profile: the format of progress files.
        clock: for deferrals, timeouts and ages.
        observer: receives counts and events.
        progress_damage: the policy for a damaged progress file.
        orphan_age_s: an orphan without activity for this long is dropped; None keeps it.
        audit_bytes_max: the size limit of the audit trail; None keeps no trail.
        deleting: nothing is deleted while it is held: a rewind and a registration hold it.

    Raises:
        CorruptionError: a progress file is damaged, and *progress_damage* is `fail`.
        OSError: a file cannot be read, or a copy cannot be written.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        *,
        segments: Iterable[SegmentRef],
        next_seq: int,
        load: Callable[[Place], Bundle],
        load_run: Callable[[int, int, int], Iterator[Bundle]] | None = None,
        profile: Profile = "spec",
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
        progress_damage: DamagePolicy = "restart_earliest",
        orphan_age_s: float | None = None,
        audit_bytes_max: int | None = None,
        deleting: AbstractContextManager[object] | None = None,
    ) -> None:
        observer = observer if observer is not None else InMemoryObserver()
        audit = None
        if audit_bytes_max is not None:
            audit = AuditTrail(fs, root, bytes_max=audit_bytes_max, clock=clock, observer=observer)
        self._segments = Segments(segments, next_seq=next_seq)
        self.table = SubscriberTable(fs, root, profile, clock, observer, self._segments, progress_damage, audit)
        self.require_place: Callable[[], None] = lambda: None
        """Raises if the directory was moved: another store's files may be at its path."""
        self.save_early: Callable[[str | None], object] = lambda _without: None
        """Writes what was resolved of unsealed bundles, without one subscriber; called under the lock of the files."""
        self.publish: Callable[[], None] = lambda: None
        """Delivers the bundles of the open segment from now on."""
        self.seal: Callable[[], None] = lambda: None
        """Seals the open segment."""
        self._observer = observer
        self._condition = self.table.condition
        self._files_lock = self.table.files_lock
        self._deleting = deleting if deleting is not None else threading.RLock()
        self._orphan_age_s = orphan_age_s
        self._records = self.table.records
        for subscriber_id in progress_store.find_subscribers(fs, root):
            record = SubscriberRecord(subscriber_id, self.table)
            self._records[subscriber_id] = record
            if not record.reload():
                record.recreate_if_unowned()
        self.claims = Claims(self.table, load, self.begin, load_run)
        self.drops = DropApplier(self.table)
        self.unsealed = UnsealedProgress(self.table, self.claims)
        self._segments.next_seq = max(self._segments.next_seq, self.floor() + 1)
        # Like the store, subscribers and handles must refuse in a forked child. A handle that is collected there is
        # not a decision.
        refuse_in_children(self, f"the store {root}")
        refuse_in_children(
            self.claims, f"the store {root}", silent=("dropped", "give_back", "dropped_run", "give_back_run")
        )

    def floor(self) -> int:
        """Return the highest segment number in any progress, -1 if there is none: new segments must lie above it."""
        with self._condition:
            return max((record.state.named_max for record in self._records.values()), default=-1)

    # ── segments ─────────────────────────────────────────────────────────────────────────────────────

    def sealed(self, segment: SegmentRef) -> None:
        """Add a new segment and wake all waiters. Segments must be added in ascending order."""
        with self._condition:
            was_delivered = self._segments.unsealed.pop(segment.seq, None) is not None
            self._segments.add(segment)
            for record in self._records.values():
                if was_delivered and record.state.sealed(segment):
                    record.is_dirty = True
                record.reconcile(segment)
                if record.queue is not None:
                    record.queue.sealed(segment)
            self._condition.notify_all()

    def removed(self, seqs: Iterable[int]) -> None:
        """Remove segments whose files are durably deleted. The next `save` removes them from the progress files."""
        seqs = list(seqs)
        with self._condition:
            for seq in seqs:
                self._segments.discard(seq)
            for record in self._records.values():
                if record.queue is not None:
                    record.queue.removed(seqs)
                if record.file is not None and (self.table.profile == "otap" or any(map(record.state.mentions, seqs))):
                    record.is_dirty = True

    def count_missing(self) -> int:
        """
        At open: report and count the segments that were removed manually, for each subscriber that had begun one.

        Return how many there are. Nothing is resolved: until the subscriber continues, the file can be put back while
        the store is closed.

        Raises:
            OSError: a file could not be read.
        """
        table = self.table
        missing = find_missing(table.fs, table.root, [record.id for record in table.listed()])
        with self._files_lock:
            for one in missing:
                table.count_dropped(one.subscriber, one.bundles, reason="missing")
                self._observer.event(
                    "quiver.segment.missing",
                    level=logging.ERROR,
                    path=one.path,
                    subscriber=one.subscriber,
                    bundles=one.bundles,
                )
        return len(missing)

    # ── progress files ───────────────────────────────────────────────────────────────────────────────

    def save(self) -> int:
        """
        Write the progress of every subscriber that changed, each by one atomic replacement; return how many.

        Durable on return. If one fails, the others are still written. The audit trail is written first.

        Raises:
            OSError: the first failure; the next call writes what is missing.
        """
        written = 0
        failure: OSError | None = None
        with self._files_lock:
            if self.table.audit is not None:
                self.table.audit.write()
            for record in self.table.listed():
                record.count_acked()
                try:
                    written += record.save()
                except OSError as error:
                    failure = failure or error
                    self._observer.event(
                        "quiver.subscriber.progress.flush",
                        level=logging.ERROR,
                        subscriber=record.id,
                        problem=str(error),
                    )
        if failure is not None:
            raise failure
        return written

    def refresh(self) -> None:
        """
        Read the progress files of other processes that are new or changed, and drop the orphans that are too old.

        Call it before anything is deleted.

        Raises:
            OSError: a file cannot be read, or that of an orphan cannot be removed.
        """
        table = self.table
        with table.files_lock:
            found = progress_store.find_subscribers(table.fs, table.root)
            for subscriber_id in found:
                record = self._records.get(subscriber_id)
                if record is None:
                    record = SubscriberRecord(subscriber_id, table)
                    record.reload()
                    with table.condition:
                        self._records[subscriber_id] = record
                    table.observer.event("quiver.subscriber.found", subscriber=subscriber_id)
                elif record.file is None:
                    record.reload()
            for record in table.listed():
                if record.file is None and record.id not in found:
                    with table.condition:
                        self._forget(record)
                    table.observer.event("quiver.subscriber.removed", subscriber=record.id)
        self._drop_old_orphans()

    # ── figures for the store ────────────────────────────────────────────────────────────────────────

    def complete(self, seq: int, bundle_count: int) -> bool:
        """
        Return whether every subscriber has resolved all of segment *seq*, according to its file on disk.

        False without subscribers: the data has not been read.
        """
        with self._condition:
            return self._is_complete(SegmentRef(seq, bundle_count))

    def _is_complete(self, segment: SegmentRef) -> bool:
        records = self._records.values()
        return bool(records) and all(record.is_durably_complete(segment) for record in records)

    def complete_segments(self) -> list[int]:
        """
        Return the numbers of all sealed segments that are `complete`, ascending.

        The cost grows with what the slowest subscriber has finished, not with its backlog.
        """
        with self._condition:
            durable = [record.durable for record in self._records.values()]
            slowest = min(
                (one for one in durable if one is not None), key=lambda one: one.oldest_incomplete, default=None
            )
            if slowest is None or None in durable:
                return []
            return [segment.seq for segment in slowest.complete_of(self._segments) if self._is_complete(segment)]

    def are_settled(self) -> bool:
        """Return whether all progress is written, and no segment can be finished without a call in this process."""
        with self._condition:
            records = self._records.values()
            if any(record.is_dirty or record.acked_uncounted for record in records):
                return False
            if len(self._segments) and any(record.file is None for record in records):
                return False
        return not self.complete_segments()

    def slowest(self) -> str | None:
        """Return the subscriber that needs the oldest data, or None if no data is needed."""
        with self._condition:
            records = self._records.values()
            position, who = min(((r.state.position(self._segments), r.id) for r in records), default=(None, None))
            return who if position is not None and position.segment in self._segments else None

    def least_lag_segments(self) -> int:
        """Return how many sealed segments the fastest subscriber has not finished; 0 without subscribers."""
        with self._condition:
            pending = (sum(1 for _ in record.state.pending_of(self._segments)) for record in self._records.values())
            return min(pending, default=0)

    def claimed_segments(self) -> set[int]:
        """Return the segments that have a bundle claimed in this process."""
        with self._condition:
            self.claims.return_dropped()
            queues = (record.queue for record in self._records.values())
            return {seq for queue in queues if queue is not None for seq in queue.claimed_segments()}

    # ── figures for users ────────────────────────────────────────────────────────────────────────────

    def statuses(self) -> list[SubscriberStatus]:
        """Return the status of every subscriber, by id."""
        with self._condition:
            self.claims.return_dropped()
            return [self._records[name].status() for name in sorted(self._records)]

    def status(self, subscriber_id: str) -> SubscriberStatus:
        """
        Return the status of one subscriber.

        Raises:
            UnknownSubscriberError: it does not exist.
        """
        with self._condition:
            self.claims.return_dropped()
            return self.table.find(subscriber_id).status()

    def orphans(self) -> list[SubscriberStatus]:
        """
        Return the orphans that no other process owns; none before the registration phase has ended.

        Only Linux shows whether a lock is held. Elsewhere subscribers of other processes are included; an orphan that
        is owned cannot be dropped on any system.
        """
        found = [status for status in self.statuses() if status.is_orphan and not status.is_owned]
        return [one for one in found if not is_held(self.table.fs, self._lock_path(one.id))]

    def lag(self, subscriber_id: str) -> SubscriberLag:
        """Return the lag of a subscriber; see `SubscriberCalls.lag`."""
        with self._condition:
            self.claims.return_dropped()
            return self.table.find(subscriber_id).lag()

    def all_subscribers_drained(self) -> bool:
        """Return whether every subscriber has resolved all sealed bundles; see `SubscriberCalls`."""
        with self._condition:
            return all(next(r.state.pending_of(self._segments), None) is None for r in self._records.values())

    def segment_sequences(self) -> list[int]:
        """Return the numbers of all sealed segments, ascending."""
        with self._condition:
            return [segment.seq for segment in self._segments]

    def pending_bundles_in_range(self, subscriber_id: str, first_segment: int, last_segment: int) -> list[BundleRef]:
        """Return the claimable bundles of a range of segments; see `SubscriberCalls`."""
        with self._condition:
            self.claims.return_dropped()
            record = self.table.find(subscriber_id)
            refs: list[BundleRef] = []
            for segment in self._segments.between(first_segment, last_segment):
                bits = record.state.unresolved(segment)
                while bits:
                    index = (bits & -bits).bit_length() - 1
                    bits ^= 1 << index
                    refs.append(BundleRef(segment.seq, index))
            queue = record.queue
            return refs if queue is None else [ref for ref in refs if not queue.is_claimed(ref)]

    # ── registration ─────────────────────────────────────────────────────────────────────────────────

    def register(self, subscriber_id: str, start: Start = "latest", *, order: str = "oldest") -> SubscriberRecord:
        """
        Register a subscriber; see `SubscriberCalls.register`.

        Raises:
            DirectoryInUseError: another process is creating it. A process that only owns it does not
                matter. Or a process that deletes in a core's directory hangs.
            OSError: the progress file could not be written.
        """
        table = self.table
        with table.condition:
            table.require_open()  # the locks below are in the directory, which may have been moved or replaced
        self.require_place()
        # Segments that the others have resolved must not be deleted before this subscriber is registered.
        with self._deleting:
            check_subscriber_id(subscriber_id)
            chosen = check_order(order)
            with table.files_lock:
                with table.condition:
                    table.require_open()
                    record = self._records.get(subscriber_id)
                    segments = Segments(table.segments, next_seq=table.segments.next_seq)
                if record is None:
                    created = progress_store.create_if_missing(
                        table.fs, table.root, subscriber_id, start=start, segments=segments, profile=table.profile
                    )
                    record = SubscriberRecord(subscriber_id, table)
                    record.reload()
                    if created:
                        position = record.state.oldest_incomplete
                        table.observer.event("quiver.subscriber.register", subscriber=subscriber_id, segment=position)
                with table.condition:
                    record.is_registered = True
                    record.order = chosen
                    if record.queue is not None:
                        record.queue.order = chosen
                    self._records[subscriber_id] = record
                table.on_change()
                return record

    def activate(self) -> None:
        """End the registration phase; see `SubscriberCalls.activate`. Idempotent."""
        table = self.table
        with table.condition:
            table.require_open()
            if table.is_active:
                return
            table.is_active = True
            now_s = table.clock.monotonic()
            for record in self._records.values():
                record.idle_since_s = now_s
        for orphan in self.orphans():
            table.observer.event(
                "quiver.subscriber.orphan",
                level=logging.WARNING,
                subscriber=orphan.id,
                holds_bundles=orphan.pending_bundles,
                holds_bytes=orphan.lag_bytes,
            )

    def begin(self, record: SubscriberRecord) -> None:
        """
        Make this process the owner of *record*; the first call also ends the registration phase.

        Raises:
            DirectoryInUseError: another process owns it.
            UnknownSubscriberError: it was unregistered.
            StoreFailedError: the directory was moved.
            StoreClosedError: the store was closed.
            CorruptionError: its progress file is damaged, and the policy is `fail`.
            OSError: its progress file cannot be read.
        """
        if not self.table.is_active:
            self.activate()
        if record.queue is not None:
            return
        self.require_place()
        with self._files_lock:
            with self._condition:
                record.require()
            if record.file is None:
                record.acquire()

    def rewind(self, subscriber_id: str, to: RewindTo) -> Rewound:
        """Make resolved bundles pending again; see `SubscriberCalls.rewind`."""
        table = self.table
        back = 0
        with self._condition:
            table.require_open()  # the locks below are in the directory, which may have been moved or replaced
        self.require_place()
        # The old progress must not lead to the deletion of bundles that are promised again.
        with self._deleting, self._files_lock:
            with self._condition:
                table.require_open()
                record = table.find(subscriber_id)
                position, missing = rewind_position(to, self._segments)

            def change(state: SubscriberState) -> bool:
                nonlocal back
                back = state.rewind(position, self._segments)
                for seq in [seq for seq in table.early.get(subscriber_id, ()) if seq >= position.segment]:
                    del table.early[subscriber_id][seq]
                self.drops.resolve_again(state)
                if record.queue is not None:
                    record.queue.rewound(position)
                self._condition.notify_all()
                return True

            if not record.edit(change, is_rewound=True):
                lock = self._lock_path(subscriber_id)
                raise DirectoryInUseError(lock, holder_of(table.fs, lock) or "another process")
            self.save_early(None)
        self._observer.event("quiver.subscriber.rewind", subscriber=subscriber_id, position=str(position), bundles=back)
        return Rewound(position, back, missing)

    def disown(self, record: SubscriberRecord) -> None:
        """Write the progress of *record* and end this process's ownership; see `Subscriber.release`."""
        self.require_place()
        with self._condition:
            has_early = any(record.state.bitmap_of(seq, 1 << 16) for seq in self._segments.unsealed)
        if has_early:
            self.seal()  # the next owner knows only what is sealed
        with self._files_lock:
            record.save()
            record.release()
        record.count_acked()

    # ── removal ──────────────────────────────────────────────────────────────────────────────────────

    def unregister(self, subscriber_id: str) -> int:
        """Remove a subscriber permanently; see `SubscriberCalls.unregister`."""
        return self._remove(subscriber_id, reason="unregistered")

    def drop_orphan(self, subscriber_id: str) -> int:
        """Remove an orphan permanently; see `SubscriberCalls.drop_orphan`."""
        with self._condition:
            self.table.require_open()
            self.table.find(subscriber_id)
            if not self.table.is_active:
                raise UsageError("the registration phase has not ended: activate() first, then it shows who is missing")
        return self._remove(subscriber_id, reason="orphan", only_orphan=True)

    def _drop_old_orphans(self) -> None:
        """
        Drop the orphans that exceed the age limit.

        The age is measured on a monotonic clock, from the end of the registration phase or the last activity. It
        starts again when the store is opened: dropping late is harmless, dropping early loses data.

        Raises:
            OSError: the disk refused.
        """
        if self._orphan_age_s is None or not self.table.is_active:
            return
        oldest_s = self.table.clock.monotonic() - self._orphan_age_s
        with self._condition:
            old = [
                record
                for record in self._records.values()
                if not record.is_registered and record.file is None and record.idle_since_s <= oldest_s
            ]
        for record in old:
            try:
                self._remove(record.id, reason="orphan", only_orphan=True)
            except DirectoryInUseError:
                with self._condition:
                    record.idle_since_s = self.table.clock.monotonic()
            except UsageError:
                continue  # removed or registered meanwhile

    def _remove(self, subscriber_id: str, *, reason: str, only_orphan: bool = False) -> int:
        table = self.table
        self.require_place()
        with table.files_lock:
            with table.condition:
                table.require_open()
                record = table.find(subscriber_id)
                if only_orphan and record.is_registered:
                    raise UsageError(
                        f"subscriber {subscriber_id!r} is registered, so no orphan; unregister() removes it"
                    )
            owned = record.file
            lock = None if owned else progress_store.lock_subscriber(table.fs, table.root, subscriber_id)
            try:
                if owned is None:
                    record.reload()  # its last owner may have resolved more since
                # First: a new subscriber with the same id must not find what this one has resolved.
                table.early.pop(subscriber_id, None)
                self.save_early(subscriber_id)
                progress_store.delete(table.fs, table.root, subscriber_id)
            finally:
                if lock is not None:
                    lock.release()
            with table.condition:
                pending = 0
                for segment, left in record.state.pending_of(table.segments):
                    pending += left
                    table.audit_dropped(subscriber_id, record.state, segment, reason=reason)
                self._forget(record)
            if owned is not None:
                owned.release()
            record.count_acked()
            table.count_dropped(subscriber_id, pending, reason=reason)
            if table.audit is not None:
                table.audit.write()
        table.on_change()
        table.observer.event(
            "quiver.subscriber.unregister", subscriber=subscriber_id, reason=reason, dropped_bundles=pending
        )
        return pending

    def _forget(self, record: SubscriberRecord) -> None:
        self._records.pop(record.id, None)
        record.is_removed = True
        record.queue = None
        record.file = None
        self._condition.notify_all()

    def _lock_path(self, subscriber_id: str) -> str:
        return f"{self.table.root}/{subscriber_lock_name(subscriber_id)}"

    def close(self, *, writes: bool = True) -> None:
        """
        Write the progress unless *writes* is False, release all locks, and wake all waiters. Idempotent.

        A disk that refuses the progress does not stop it: what was not written is delivered again.
        """
        table = self.table
        try:
            if writes and not table.is_closed:
                with contextlib.suppress(OSError):  # reported by save
                    self.save()
        finally:
            with self._files_lock:
                with self._condition:
                    table.is_closed = True
                    self._condition.notify_all()
                for record in table.listed():
                    if record.file is not None:
                        record.file.release()
            if table.audit is not None:
                table.audit.close()
