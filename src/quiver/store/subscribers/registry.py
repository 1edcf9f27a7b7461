"""
All subscribers of one store: who there is, who waits for what, what everyone has finished.

A subscriber may be worked for by this process, which then holds its lock and is the only one to write its
file, or by another, whose file `refresh` reads again when it changed. Every subscriber with a progress file
counts for deletion, also one that nobody has registered since the start (an orphan).
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable

from quiver.bundle import Bundle, BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import BundleUnavailable, StoreClosed, SubscriberUnknown, WrongUse
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.files import FileSystem
from quiver.settings import Profile
from quiver.store.format.names import check_subscriber_id
from quiver.store.subscribers import progress_store
from quiver.store.subscribers.delivery import DeliveryQueue
from quiver.store.subscribers.handle import BundleHandle, Subscriber
from quiver.store.subscribers.membership import Membership, Shared, SubscriberStatus
from quiver.store.subscribers.state import SegmentRef, Segments, Start

__all__ = ["Registry"]

_WAIT_S_MAX = 1.0
"""A handle that the garbage collector drops while its own thread holds the lock can wake nobody. Waiters look by
themselves this often."""


class Registry:
    """
    The subscribers of one store. Thread-safe.

    Every progress file in *root* is loaded. A damaged one is copied to quarantine and begun anew with nothing
    resolved: its subscriber gets everything that still exists once more, and misses nothing.

    Args:
        fs: the file system.
        root: the store's directory.
        segments: the sealed segments that recovery found.
        next_seq: the number that the next segment will get, as far as file names tell; see `floor`.
        load: reads one bundle; called outside all locks.
        profile: how progress files are written.
        clock: for deferrals and time-outs.
        observer: takes counts and events.

    Raises:
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
    ) -> None:
        self.load = load
        self._clock = clock
        self._observer = observer if observer is not None else InMemoryObserver()
        self._segments = Segments(segments, next_seq=next_seq)
        self._shared = Shared(fs, root, profile, clock, self._observer, self._segments)
        self._files_lock = self._shared.files_lock
        self._condition = self._shared.condition
        self._memberships: dict[str, Membership] = {}
        self._dropped: deque[tuple[DeliveryQueue, BundleRef]] = deque()
        self._is_active = False
        self._is_closed = False
        for subscriber_id in progress_store.find_subscribers(fs, root):
            membership = Membership(subscriber_id, self._shared)
            self._memberships[subscriber_id] = membership
            if not membership.reload():
                membership.recreate_if_unowned()
        self._segments.next_seq = max(self._segments.next_seq, self.floor() + 1)

    def floor(self) -> int:
        """
        Return the highest segment number that any progress speaks of, -1 when none: new segments lie above it.
        """
        with self._condition:
            return max((member.state.named_max for member in self._memberships.values()), default=-1)

    # What the store tells.

    def sealed(self, segment: SegmentRef) -> None:
        """
        Make a new segment known and wake everybody who waits. Segments come in the order of their numbers.
        """
        with self._condition:
            self._segments.add(segment)
            for member in self._memberships.values():
                member.reconcile(segment)
                if member.queue is not None:
                    member.queue.sealed(segment)
            self._condition.notify_all()

    def removed(self, seqs: Iterable[int]) -> None:
        """
        Forget segments whose files are gone, durably. Their entries leave the progress files at the next flush.
        """
        with self._condition:
            for seq in seqs:
                self._segments.discard(seq)
                for member in self._memberships.values():
                    if member.file is not None and (self._shared.profile == "otap" or member.state.mentions(seq)):
                        member.is_dirty = True

    def flush(self) -> int:
        """
        Write the progress of every subscriber that changed, one atomic replacement each; return how many.

        Durable on return. One that fails does not keep the others from being written.

        Raises:
            OSError: the first failure; what could not be written stays to be written.
        """
        written = 0
        failure: OSError | None = None
        with self._files_lock:
            for member in self._listed():
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
        Look at the progress files that other processes own: new ones, changed ones, removed ones.

        To be called before anything is deleted.

        Raises:
            OSError: a file cannot be read.
        """
        with self._files_lock:
            found = progress_store.find_subscribers(self._shared.fs, self._shared.root)
            for subscriber_id in found:
                member = self._memberships.get(subscriber_id)
                if member is None:
                    member = Membership(subscriber_id, self._shared)
                    member.reload()
                    with self._condition:
                        self._memberships[subscriber_id] = member
                    self._observer.event("quiver.subscriber.found", subscriber=subscriber_id)
                elif member.file is None:
                    member.reload()
            for member in self._listed():
                if member.file is None and member.id not in found:
                    with self._condition:
                        self._forget(member)
                    self._observer.event("quiver.subscriber.removed", subscriber=member.id)

    # What the store asks.

    def complete(self, seq: int, bundle_count: int) -> bool:
        """
        Say whether every subscriber has resolved all of segment *seq*, and its file on disk says so.

        False without subscribers: nobody has seen the data.
        """
        with self._condition:
            return self._is_complete(SegmentRef(seq, bundle_count))

    def complete_segments(self) -> list[int]:
        """
        Return the numbers of all sealed segments that are `complete`, ascending.
        """
        with self._condition:
            return [segment.seq for segment in self._segments if self._is_complete(segment)]

    def slowest(self) -> str | None:
        """
        Return who holds the oldest data, None when nobody holds any.
        """
        with self._condition:
            members = self._memberships.values()
            position, who = min(((m.state.position(self._segments), m.id) for m in members), default=(None, None))
            return who if position is not None and position.segment in self._segments else None

    def least_lag_segments(self) -> int:
        """
        Return how many sealed segments the subscriber that is furthest ahead has still to finish; 0 without any.
        """
        with self._condition:
            members = self._memberships.values()
            return min((sum(not m.state.is_complete(s) for s in self._segments) for m in members), default=0)

    def statuses(self) -> list[SubscriberStatus]:
        """
        Return how every subscriber stands, by name.
        """
        with self._condition:
            return [self._memberships[subscriber_id].status() for subscriber_id in sorted(self._memberships)]

    def status(self, subscriber_id: str) -> SubscriberStatus:
        """
        Return how one subscriber stands.

        Raises:
            SubscriberUnknown: there is no such subscriber.
        """
        with self._condition:
            return self._member(subscriber_id).status()

    def stats(self) -> dict[str, dict[str, int | bool]]:
        """
        Return the figures of `statuses`, by name of the subscriber.
        """
        return {
            status.id: {
                "registered": status.is_registered,
                "owned": status.is_owned,
                "oldest_incomplete": status.oldest_incomplete,
                "pending_bundles": status.pending_bundles,
                "claimed_bundles": status.claimed_bundles,
            }
            for status in self.statuses()
        }

    # Who there is.

    def register(self, subscriber_id: str, start: Start = "latest") -> Subscriber:
        """
        Register a subscriber. A known one goes on where it was; a new one begins at *start*, durably on return.

        Raises:
            WrongUse: not a valid id, or *start* names nothing.
            DirectoryInUse: another process is creating it at this moment; one that merely works for it is fine.
            StoreClosed: the store was closed.
            OSError: the progress file could not be written.
        """
        check_subscriber_id(subscriber_id)
        shared = self._shared
        with self._files_lock:
            with self._condition:
                self._check_open()
                member = self._memberships.get(subscriber_id)
                segments = Segments(self._segments, next_seq=self._segments.next_seq)
            if member is None:
                created = progress_store.create_if_missing(
                    shared.fs, shared.root, subscriber_id, start=start, segments=segments, profile=shared.profile
                )
                member = Membership(subscriber_id, shared)
                member.reload()
                if created:
                    position = member.state.oldest_incomplete
                    self._observer.event("quiver.subscriber.register", subscriber=subscriber_id, segment=position)
            with self._condition:
                member.is_registered = True
                self._memberships[subscriber_id] = member
            return Subscriber(self, member)

    def unregister(self, subscriber_id: str) -> None:
        """
        Remove a subscriber for good, durably on return. What it had not resolved counts as dropped for it.

        Raises:
            SubscriberUnknown: there is no such subscriber.
            DirectoryInUse: another process works for it.
            StoreClosed: the store was closed.
            OSError: the file could not be removed; the subscriber stays.
        """
        shared = self._shared
        with self._files_lock:
            with self._condition:
                self._check_open()
                member = self._member(subscriber_id)
            owned = member.file
            lock = None if owned else progress_store.lock_subscriber(shared.fs, shared.root, subscriber_id)
            try:
                progress_store.delete(shared.fs, shared.root, subscriber_id)
            finally:
                if lock is not None:
                    lock.release()
            with self._condition:
                pending = member.state.pending_count(self._segments)
                self._forget(member)
            if owned is not None:
                owned.release()
        self._observer.event("quiver.subscriber.unregister", subscriber=subscriber_id, dropped_bundles=pending)
        if pending:
            self._observer.count("quiver.subscriber.dropped_bundles_total", pending, subscriber=subscriber_id)

    def activate(self) -> None:
        """
        End the registration phase: whoever has progress but was not registered is an orphan from now on.

        An orphan still holds its data. Registering later is allowed and ends that. Idempotent.
        """
        with self._condition:
            self._check_open()
            if self._is_active:
                return
            self._is_active = True
        for subscriber_id in self.orphans():
            self._observer.event(
                "quiver.subscriber.orphan", level=logging.WARNING, subscriber=subscriber_id, holds="its unread data"
            )

    def orphans(self) -> list[str]:
        """
        Return the subscribers that have progress but were not registered since the store was opened.
        """
        return [status.id for status in self.statuses() if not status.is_registered]

    def close(self) -> None:
        """
        Write the progress, let go of all locks, and wake everybody who waits. Idempotent.

        A disk that refuses the progress does not stop it: what was not written is delivered again.
        """
        try:
            if not self._is_closed:
                with contextlib.suppress(OSError):  # reported by flush
                    self.flush()
        finally:
            with self._files_lock:
                with self._condition:
                    self._is_closed = True
                    self._condition.notify_all()
                for member in self._listed():
                    if member.file is not None:
                        member.file.release()

    # What a Subscriber and its handles call.

    def take(self, member: Membership, timeout_s: float | None) -> BundleHandle | None:
        """
        Claim the next bundle for *member*; see `Subscriber.next_bundle`.
        """
        self._begin(member)
        deadline = math.inf if timeout_s is None else self._clock.monotonic() + timeout_s
        with self._condition:
            while True:
                queue = self._queue(member)
                now = self._clock.monotonic()
                ref = queue.take(now)
                if ref is not None:
                    return BundleHandle(self, member, queue, ref)
                if now >= deadline:
                    return None
                due = queue.next_due_s()
                until = min(deadline, math.inf if due is None else due, now + _WAIT_S_MAX)
                self._clock.wait(self._condition, until - now)

    def claim(self, member: Membership, ref: BundleRef) -> BundleHandle:
        """
        Claim one bundle for *member*; see `Subscriber.claim`.
        """
        self._begin(member)
        with self._condition:
            queue = self._queue(member)
            queue.claim(ref)
            return BundleHandle(self, member, queue, ref)

    def settle(self, member: Membership, handle: BundleHandle, outcome: str) -> None:
        """
        Resolve the bundle of *handle* as "acked" or "rejected"; see `BundleHandle`.
        """
        with self._condition:
            if handle.outcome == outcome:
                return
            queue = self._queue(member)
            self._check_claim(queue, handle, outcome)
            segment = self._segments.get(handle.ref.segment)
            if segment is not None:
                member.state.resolve(handle.ref, segment.bundle_count)
                member.is_dirty = True
            queue.resolved(handle.ref)
            handle.outcome = outcome
        self._observer.count(f"quiver.subscriber.{outcome}_bundles_total", subscriber=member.id)

    def defer(self, member: Membership, handle: BundleHandle, seconds: float) -> None:
        """
        Give the bundle of *handle* back for later; see `BundleHandle.defer`.
        """
        if not seconds >= 0:
            raise WrongUse(f"defer({seconds}): seconds must be 0 or more")
        with self._condition:
            queue = self._queue(member)
            self._check_claim(queue, handle, "deferred")
            queue.release(handle.ref, due_s=self._clock.monotonic() + seconds if seconds else None)
            handle.outcome = "deferred"
            self._condition.notify_all()
        self._observer.count("quiver.subscriber.deferred_bundles_total", subscriber=member.id)

    def give_back(self, handle: BundleHandle) -> None:
        """
        End the claim of *handle* without a decision, also when the store is closed.
        """
        with self._condition:
            if handle.outcome is None:
                handle.outcome = "returned"
                handle.queue.release(handle.ref)
                self._condition.notify_all()

    def give_back_unreadable(self, member: Membership, handle: BundleHandle) -> None:
        """
        End the claim of *handle* because its bundle could not be read.
        """
        with self._condition:
            if handle.outcome is None:
                handle.outcome = "unreadable"
                handle.queue.release_unreadable(handle.ref)
                self._condition.notify_all()
        self._observer.count("quiver.subscriber.read_errors_total", subscriber=member.id)

    def dropped(self, handle: BundleHandle) -> None:
        """
        Give back the bundle of a handle that was garbage collected. Never waits for a lock.

        The collector runs wherever it likes, also in a thread that holds `_condition` or something that a holder
        of it waits for. So the bundle is only noted, and whoever looks for one next takes note.
        """
        self._dropped.append((handle.queue, handle.ref))
        if self._condition.acquire(blocking=False):
            try:
                self._condition.notify_all()
            finally:
                self._condition.release()

    def disown(self, member: Membership) -> None:
        """
        Write the progress of *member* and let another process work for it; see `Subscriber.release`.
        """
        with self._files_lock:
            member.save()
            with self._condition:
                file, member.file, member.queue = member.file, None, None
                self._condition.notify_all()
            if file is not None:
                file.release()

    def _begin(self, member: Membership) -> None:
        if not self._is_active:
            self.activate()
        if member.queue is not None:
            return
        with self._files_lock:
            with self._condition:
                self._check_member(member)
            if member.file is None:
                member.own()

    def _listed(self) -> list[Membership]:
        with self._condition:
            return list(self._memberships.values())

    # Under the condition.

    def _member(self, subscriber_id: str) -> Membership:
        member = self._memberships.get(subscriber_id)
        if member is None:
            raise SubscriberUnknown(f"there is no subscriber {subscriber_id!r}")
        return member

    def _is_complete(self, segment: SegmentRef) -> bool:
        members = self._memberships.values()
        return bool(members) and all(member.is_durably_complete(segment) for member in members)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosed("the store is closed")

    def _check_member(self, member: Membership) -> None:
        self._check_open()
        if member.gone:
            raise SubscriberUnknown(f"subscriber {member.id!r} was unregistered")

    def _queue(self, member: Membership) -> DeliveryQueue:
        self._check_member(member)
        while self._dropped:
            queue, ref = self._dropped.popleft()
            queue.release(ref)
        if member.queue is None:
            raise BundleUnavailable(f"subscriber {member.id!r} was released; its claims have ended")
        return member.queue

    def _check_claim(self, queue: DeliveryQueue, handle: BundleHandle, outcome: str) -> None:
        if handle.outcome == "unreadable":
            # Nobody claimed it since? Then the consumer may still decide what becomes of it; also when the
            # segment went to quarantine meanwhile, where there is nothing left to decide.
            if handle.ref.segment in self._segments:
                queue.claim(handle.ref)
        elif handle.outcome is not None:
            raise BundleUnavailable(f"bundle {handle.ref} cannot be {outcome}: it was {handle.outcome} already")
        elif handle.queue is not queue or not queue.is_claimed(handle.ref):
            raise BundleUnavailable(f"the claim on bundle {handle.ref} has ended")

    def _forget(self, member: Membership) -> None:
        self._memberships.pop(member.id, None)
        member.gone = True
        member.queue = None
        member.file = None
        self._condition.notify_all()
