"""
All subscribers of one store, as the store sees them: what it tells them, what it asks, what they ask of it.

A subscriber may be worked for by this process, which then holds its lock and is the only one to write its
file, or by another, whose file `refresh` reads again when it changed. Who there is stands in `members`, what is
handed out in `claims`; here is what concerns all of them at once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

from quiver.bundle import Bundle, BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import DirectoryInUseError
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.lock import holder_of
from quiver.primitives.forked import refuse_in_children
from quiver.settings import DamagePolicy, Profile
from quiver.store.format.drop_ledger import DroppedSegment
from quiver.store.format.names import subscriber_lock_name
from quiver.store.subscribers.audit_trail import AuditTrail
from quiver.store.subscribers.callbacks import BundleCallback
from quiver.store.subscribers.claims import Claims
from quiver.store.subscribers.drop_applier import Drops
from quiver.store.subscribers.handle import Subscriber
from quiver.store.subscribers.orphaned_progress import find_missing
from quiver.store.subscribers.records import Membership, Shared, SubscriberStatus
from quiver.store.subscribers.rewinding import RewindTo, Rewound, rewind_position
from quiver.store.subscribers.state import SegmentRef, Segments, Start, SubscriberState
from quiver.store.subscribers.table import Members

__all__ = ["Registry"]


class Registry:
    """
    The subscribers of one store. Thread-safe.

    Args:
        fs: the file system.
        root: the store's directory.
        segments: the sealed segments that recovery found.
        next_seq: the number that the next segment will get, as far as file names tell; see `floor`.
        load: reads one bundle; called outside all locks.
        profile: how progress files are written.
        clock: for deferrals, time-outs and ages.
        observer: takes counts and events.
        progress_damage: what is done about a progress file that is not what was written.
        orphan_age_s: an orphan that shows no sign of life for this long is dropped; None keeps it.
        audit_bytes_max: what the trail of outcomes may take; None keeps no trail.
        deleting: while it is held nothing is deleted: a rewind and a registration hold it.

    Raises:
        CorruptionError: a progress file is not what was written, and *progress_damage* is `fail`.
        OSError: a file cannot be read, or a copy cannot be written.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        *,
        segments: Iterable[SegmentRef],
        next_seq: int,
        load: Callable[[BundleRef], Bundle],
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
        self._shared = Shared(fs, root, profile, clock, observer, self._segments, progress_damage, audit)
        self._observer = observer
        self._condition = self._shared.condition
        self._files_lock = self._shared.files_lock
        self._deleting = deleting if deleting is not None else threading.RLock()
        self.members = Members(self._shared, orphan_age_s=orphan_age_s)
        self.claims = Claims(self._shared, self.members, load)
        self._drops = Drops(self._shared, self.members)
        self._segments.next_seq = max(self._segments.next_seq, self.floor() + 1)
        # Subscribers and handles outlive a fork as the store does; a handle that goes in the child is no decision.
        refuse_in_children(self, f"the store {root}")
        refuse_in_children(self.claims, f"the store {root}", silent=("dropped", "give_back"))

    def floor(self) -> int:
        """Return the highest segment number that any progress speaks of, -1 when none: new segments lie above it."""
        with self._condition:
            return max((member.state.named_max for member in self.members.all()), default=-1)

    # ── what the store tells ─────────────────────────────────────────────────────────────────────────

    def sealed(self, segment: SegmentRef) -> None:
        """Make a new segment known and wake everybody who waits. Segments come in the order of their numbers."""
        with self._condition:
            self._segments.add(segment)
            for member in self.members.all():
                member.reconcile(segment)
                if member.queue is not None:
                    member.queue.sealed(segment)
            self._condition.notify_all()

    def removed(self, seqs: Iterable[int]) -> None:
        """Forget segments whose files are gone, durably. Their entries leave the progress files at the next flush."""
        seqs = list(seqs)
        with self._condition:
            for seq in seqs:
                self._segments.discard(seq)
            for member in self.members.all():
                if member.queue is not None:
                    member.queue.removed(seqs)
                if member.file is not None and (
                    self._shared.profile == "otap" or any(map(member.state.mentions, seqs))
                ):
                    member.is_dirty = True

    def fold_drops(self, entries: Sequence[DroppedSegment]) -> dict[str, int]:
        """
        Resolve what policy dropped, for every subscriber that no other process works for; durable on return.

        A subscriber of another process takes note by itself. Doing it again changes nothing and counts nothing, and
        while the ledger has entries that is what to do: the other process may have ended without taking note.

        Returns:
            How many bundles each subscriber lost by this call; those that lost none are left out.

        Raises:
            OSError: a progress file could not be written. What was resolved stays so; call again.
        """
        return self._drops.fold(entries)

    def drops_settled(self, entry: DroppedSegment) -> bool:
        """
        Say whether the progress of every subscriber, as it is on disk, has the dropped segment resolved.

        For subscribers of other processes as of the last `refresh`.
        """
        with self._condition:
            return self._drops.is_settled(entry)

    def drops_forgotten(self, seqs: Iterable[int]) -> None:
        """Take note that the ledger names these dropped segments no more, durably: progress need not speak of them."""
        with self._condition:
            self._drops.forget(seqs)

    def count_missing(self) -> int:
        """
        At open: tell and count the segments that were removed by hand, for each subscriber that had begun one; return
        how many. Nothing is resolved: until a subscriber goes on the file can be put back while the store is closed.

        Raises:
            OSError: a file could not be read.
        """
        shared = self._shared
        missing = find_missing(shared.fs, shared.root, [member.id for member in self.members.listed()])
        with self._files_lock:
            for one in missing:
                shared.count_dropped(one.subscriber, one.bundles, reason="missing")
                self._observer.event(
                    "quiver.segment.missing",
                    level=logging.ERROR,
                    path=one.path,
                    subscriber=one.subscriber,
                    bundles=one.bundles,
                )
        return len(missing)

    def flush(self) -> int:
        """
        Write the progress of every subscriber that changed, one atomic replacement each; return how many.

        Durable on return. One that fails does not keep the others from being written. The audit trail comes first.

        Raises:
            OSError: the first failure; what could not be written stays to be written.
        """
        written = 0
        failure: OSError | None = None
        with self._files_lock:
            if self._shared.audit is not None:
                self._shared.audit.write()
            for member in self.members.listed():
                member.tell_acked()
                try:
                    written += member.save()
                except OSError as error:
                    failure = failure or error
                    self._observer.event(
                        "quiver.subscriber.progress.flush",
                        level=logging.ERROR,
                        subscriber=member.id,
                        problem=str(error),
                    )
        if failure is not None:
            raise failure
        return written

    def refresh(self) -> None:
        """
        Look at the progress files that other processes own: new ones, changed ones, removed ones. Then drop the
        orphans that are too old.

        To be called before anything is deleted.

        Raises:
            OSError: a file cannot be read, or an orphan's cannot be removed.
        """
        self.members.refresh()
        self.members.drop_old_orphans()

    # ── what the store asks ──────────────────────────────────────────────────────────────────────────

    def complete(self, seq: int, bundle_count: int) -> bool:
        """
        Say whether every subscriber has resolved all of segment *seq*, and its file on disk says so.

        False without subscribers: nobody has seen the data.
        """
        with self._condition:
            return self._is_complete(SegmentRef(seq, bundle_count))

    def _is_complete(self, segment: SegmentRef) -> bool:
        members = self.members.all()
        return bool(members) and all(member.is_durably_complete(segment) for member in members)

    def complete_segments(self) -> list[int]:
        """
        Return the numbers of all sealed segments that are `complete`, ascending.

        What it costs grows with what the slowest subscriber has finished, not with what it has before it.
        """
        with self._condition:
            durable = [member.durable for member in self.members.all()]
            slowest = min(
                (one for one in durable if one is not None), key=lambda one: one.oldest_incomplete, default=None
            )
            if slowest is None or None in durable:
                return []
            return [segment.seq for segment in slowest.complete_of(self._segments) if self._is_complete(segment)]

    def slowest(self) -> str | None:
        """Return who holds the oldest data, None when nobody holds any."""
        with self._condition:
            members = self.members.all()
            position, who = min(((m.state.position(self._segments), m.id) for m in members), default=(None, None))
            return who if position is not None and position.segment in self._segments else None

    def least_lag_segments(self) -> int:
        """Return how many sealed segments the subscriber that is furthest ahead has still to finish; 0 without any."""
        with self._condition:
            pending = (sum(1 for _ in member.state.pending_of(self._segments)) for member in self.members.all())
            return min(pending, default=0)

    def claimed_segments(self) -> set[int]:
        """Return the segments of which a bundle is handed out at this moment, in this process."""
        with self._condition:
            queues = (member.queue for member in self.members.all())
            return {seq for queue in queues if queue is not None for seq in queue.claimed_segments()}

    # ── what programs ask ────────────────────────────────────────────────────────────────────────────

    def statuses(self) -> list[SubscriberStatus]:
        """Return how every subscriber stands, by name."""
        return self.members.statuses()

    def status(self, subscriber_id: str) -> SubscriberStatus:
        """
        Return how one subscriber stands.

        Raises:
            UnknownSubscriberError: there is no such subscriber.
        """
        return self.members.status(subscriber_id)

    def orphans(self) -> list[SubscriberStatus]:
        """Return the subscribers that have progress but that nobody registered since the store was opened."""
        return self.members.orphans()

    def stats(self) -> dict[str, dict[str, int | float | bool]]:
        """Return the figures of `statuses`, by name of the subscriber; `dropped_bundles` since the store was opened."""
        return {
            status.id: {
                "registered": status.is_registered,
                "owned": status.is_owned,
                "orphan": status.is_orphan,
                "oldest_incomplete": status.oldest_incomplete,
                "pending_bundles": status.pending_bundles,
                "claimed_bundles": status.claimed_bundles,
                "deferred_bundles": status.deferred_bundles,
                "dropped_bundles": self._shared.lost[status.id],
                "lag_bytes": status.lag_bytes,
                "lag_seconds": status.lag_seconds,
                "idle_seconds": status.idle_seconds,
                "progress_age_seconds": status.progress_age_seconds,
            }
            for status in self.statuses()
        }

    def pending_bundle_count(self, subscriber_id: str) -> int:
        """
        Return how many sealed bundles one subscriber has not resolved, claimed and deferred ones included.

        Raises:
            UnknownSubscriberError: there is no such subscriber.
        """
        with self._condition:
            return self.members.find(subscriber_id).state.pending_count(self._segments)

    def all_subscribers_drained(self) -> bool:
        """
        Say whether every subscriber, orphans included, has resolved all sealed bundles.

        For subscribers of other processes as of the last maintenance pass.
        """
        with self._condition:
            return all(next(m.state.pending_of(self._segments), None) is None for m in self.members.all())

    def oldest_incomplete_segment(self, subscriber_id: str) -> int | None:
        """
        Return the oldest segment with a bundle that one subscriber has not resolved, or None.

        Raises:
            UnknownSubscriberError: there is no such subscriber.
        """
        with self._condition:
            pending = next(self.members.find(subscriber_id).state.pending_of(self._segments), None)
            return None if pending is None else pending[0].seq

    def segment_sequences(self, subscriber_id: str | None = None) -> list[int]:
        """
        Return the numbers of all sealed segments, or of those with bundles that one subscriber has not resolved.

        Raises:
            UnknownSubscriberError: there is no such subscriber.
        """
        with self._condition:
            if subscriber_id is None:
                return [segment.seq for segment in self._segments]
            return [segment.seq for segment, _ in self.members.find(subscriber_id).state.pending_of(self._segments)]

    def pending_bundles_in_range(self, subscriber_id: str, first_segment: int, last_segment: int) -> list[BundleRef]:
        """
        Return what one subscriber could claim from *first_segment* to *last_segment*, both included, ascending.

        Raises:
            UnknownSubscriberError: there is no such subscriber.
        """
        with self._condition:
            member = self.members.find(subscriber_id)
            refs: list[BundleRef] = []
            for segment in self._segments.between(first_segment, last_segment):
                bits = member.state.unresolved(segment)
                while bits:
                    index = (bits & -bits).bit_length() - 1
                    bits ^= 1 << index
                    refs.append(BundleRef(segment.seq, index))
            queue = member.queue
            return refs if queue is None else [ref for ref in refs if not queue.is_claimed(ref)]

    # ── who there is ─────────────────────────────────────────────────────────────────────────────────

    def register(self, subscriber_id: str, start: Start = "latest", *, order: str = "oldest") -> Subscriber:
        """
        Register a subscriber. A known one goes on where it was; a new one begins at *start*, durably on return.

        Args:
            subscriber_id: 1 to 64 of ``A-Za-z0-9_-``.
            start: see `start_segment`.
            order: in which order bundles go out; see `delivery`. It is not written down: the last registration counts.

        Raises:
            UsageError: not a valid id or order, or *start* names nothing.
            DirectoryInUseError: another process is creating it at this moment; one that merely works for it is fine. Or
            one
                that deletes in a core's directory hangs.
            StoreFailedError: the directory was moved.
            StoreClosedError: the store was closed.
            OSError: the progress file could not be written.
        """
        with self._condition:
            self.members.require_open()  # the locks below lie in the directory, which may be gone or another's by now
        self.members.require_place()
        # What it starts with may not be going at this moment for what the others have resolved.
        with self._deleting:
            return Subscriber(self, self.members.register(subscriber_id, start, order))

    def unregister(self, subscriber_id: str) -> int:
        """
        Remove a subscriber for good, durably on return. What it had not resolved counts as dropped for it.

        Returns:
            How many bundles that was.

        Raises:
            UnknownSubscriberError: there is no such subscriber.
            DirectoryInUseError: another process works for it.
            StoreClosedError: the store was closed.
            OSError: the file could not be removed; the subscriber stays.
        """
        return self.members.unregister(subscriber_id)

    def drop_orphan(self, subscriber_id: str) -> int:
        """
        Remove an orphan for good, as `unregister` does.

        Raises:
            UsageError: it is registered, or the registration phase has not ended.
            UnknownSubscriberError: there is no such subscriber.
            DirectoryInUseError: another process works for it.
            StoreClosedError: the store was closed.
            OSError: the file could not be removed; the orphan stays.
        """
        return self.members.drop_orphan(subscriber_id)

    def activate(self) -> None:
        """
        End the registration phase: whoever has progress but was not registered is an orphan from now on.

        An orphan still holds its data. Registering later is allowed and ends that. Idempotent.

        Raises:
            StoreClosedError: the store was closed.
        """
        self.members.activate()

    def rewind(self, subscriber_id: str, to: RewindTo) -> Rewound:
        """
        Deliver again to one subscriber what it resolved; see `Subscriber.rewind`.

        Raises:
            UsageError: *to* means nothing, or a place that the store has not reached.
            UnknownSubscriberError: there is no such subscriber.
            DirectoryInUseError: another process works for it.
            StoreClosedError: the store was closed.
            OSError: it could not be written.
        """
        shared = self._shared
        back = 0
        with self._condition:
            self.members.require_open()  # the locks below lie in the directory, which may be gone or another's by now
        self.members.require_place()
        # Nothing that is promised again may be deleted for what the old progress said.
        with self._deleting, self._files_lock:
            with self._condition:
                self.members.require_open()
                member = self.members.find(subscriber_id)
                position, missing = rewind_position(to, self._segments)

            def change(state: SubscriberState) -> bool:
                nonlocal back
                back = state.rewind(position, self._segments)
                self._drops.resolve_again(state)
                if member.queue is not None:
                    member.queue.rewound(position)
                self._condition.notify_all()
                return True

            if not member.edit(change, is_rewound=True):
                lock = f"{shared.root}/{subscriber_lock_name(subscriber_id)}"
                raise DirectoryInUseError(lock, holder_of(shared.fs, lock) or "another process")
        self._observer.event("quiver.subscriber.rewind", subscriber=subscriber_id, position=str(position), bundles=back)
        return Rewound(position, back, missing)

    def call_on_bundle(self, member: Membership, callback: Callable[[], object]) -> Callable[[], None]:
        """Have *callback* called when bundles become available; see `Subscriber.on_bundle`."""
        self.claims.begin(member)
        with self._condition:
            self.members.require(member)
        return BundleCallback(self._shared, self.members, self.claims, member, callback).stop

    def disown(self, member: Membership) -> None:
        """Write the progress of *member* and let another process work for it; see `Subscriber.release`."""
        self.members.require_place()
        with self._files_lock:
            member.save()
            member.let_go()
        member.tell_acked()

    def close(self, *, writes: bool = True) -> None:
        """
        Write the progress unless *writes* is False, let go of all locks, and wake everybody who waits. Idempotent.

        A disk that refuses the progress does not stop it: what was not written is delivered again.
        """
        try:
            if writes and not self.members.is_closed:
                with contextlib.suppress(OSError):  # reported by flush
                    self.flush()
        finally:
            self.members.close()
            if self._shared.audit is not None:
                self._shared.audit.close()
