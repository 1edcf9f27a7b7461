"""What consumers do with an open store: take a bundle, wait for one, decide about it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

from quiver.bundle import Bundle, BundleRef
from quiver.errors import BundleUnavailableError, UsageError
from quiver.store.format.audit import Outcome
from quiver.store.subscribers.delivery import DeliveryQueue
from quiver.store.subscribers.handle import BundleHandle
from quiver.store.subscribers.records import Membership, Shared
from quiver.store.subscribers.table import Members

__all__ = ["WAIT_S_MAX", "Claims"]

WAIT_S_MAX = 1.0
"""A handle that the garbage collector drops while its own thread holds the lock can wake nobody. Waiters look by
themselves this often."""


class Claims:
    """
    The bundles that are handed out. Thread-safe.

    Args:
        shared: what all subscribers have in common.
        members: who they are.
        load: reads one bundle; called outside all locks.
    """

    def __init__(self, shared: Shared, members: Members, load: Callable[[BundleRef], Bundle]) -> None:
        self.load = load
        self._shared = shared
        self._members = members
        self._clock = shared.clock
        self._observer = shared.observer
        self._condition = shared.condition
        self._lock = shared.lock
        self._segments = shared.segments
        self._dropped: deque[tuple[DeliveryQueue, BundleRef]] = deque()
        self._has_begun = False

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────

    def begin(self, member: Membership) -> None:
        """
        Make sure that this process works for *member*; the first time also ends the registration phase.

        Raises:
            DirectoryInUseError: another process works for it.
            UnknownSubscriberError: it was unregistered.
            StoreFailedError: the directory was moved.
            StoreClosedError: the store was closed.
            CorruptionError: its progress file is not what was written, and the policy is not to go on.
            OSError: its progress file cannot be read.
        """
        if not self._has_begun:
            self._members.activate()
            self._has_begun = True
        if member.queue is not None:
            return
        self._members.require_place()
        with self._shared.files_lock:
            with self._condition:
                self._members.require(member)
            if member.file is None:
                member.own()

    def take(self, member: Membership, timeout_s: float | None) -> BundleHandle | None:
        """Claim the next bundle for *member*; see `Subscriber.next_bundle`."""
        if member.queue is None or not self._has_begun:
            self.begin(member)
        with self._lock:
            queue = self.queue_of(member)
            ref = queue.take(self._clock.monotonic())
            if ref is None and timeout_s != 0:
                queue, refs = self._wait_for(member, 1, timeout_s)
                ref = refs[0] if refs else None
            return None if ref is None else BundleHandle(self, member, queue, ref)

    def take_many(self, member: Membership, count: int, timeout_s: float | None) -> list[BundleHandle]:
        """Claim up to *count* bundles for *member*; see `Subscriber.next_bundles`."""
        if count < 1:
            raise UsageError(f"next_bundles({count}): ask for at least one")
        if member.queue is None or not self._has_begun:
            self.begin(member)
        with self._condition:
            queue, refs = self._wait_for(member, count, timeout_s)
            return [BundleHandle(self, member, queue, ref) for ref in refs]

    def _wait_for(
        self, member: Membership, count: int, timeout_s: float | None
    ) -> tuple[DeliveryQueue, list[BundleRef]]:
        """Claim what there is, up to *count*, as soon as there is any; nothing when *timeout_s* has passed."""
        deadline = math.inf if timeout_s is None else self._clock.monotonic() + timeout_s
        while True:
            queue = self.queue_of(member)
            now = self._clock.monotonic()
            refs = queue.take_many(now, count)
            if refs or now >= deadline:
                return queue, refs
            due = queue.next_due_s()
            until = min(deadline, math.inf if due is None else due, now + WAIT_S_MAX)
            self._clock.wait(self._condition, until - now)

    def claim(self, member: Membership, ref: BundleRef) -> BundleHandle:
        """Claim one bundle for *member*; see `Subscriber.claim`."""
        self.begin(member)
        with self._condition:
            queue = self.queue_of(member)
            queue.claim(ref)
            return BundleHandle(self, member, queue, ref)

    # ── deciding ─────────────────────────────────────────────────────────────────────────────────────

    def settle(self, member: Membership, handle: BundleHandle, outcome: Outcome, why: str = "") -> None:
        """
        Resolve the bundle of *handle* as "acked" or "rejected"; see `BundleHandle`.

        One that policy dropped meanwhile is dropped already and counts as nothing else.
        """
        with self._lock:
            if handle.outcome == outcome:
                return
            is_news = self._settle(member, self.queue_of(member), handle, outcome, why)
            if is_news and outcome == "acked":
                member.acked_uncounted += 1
                return
        if is_news:
            self._observer.count("quiver.subscriber.rejected_bundles_total", subscriber=member.id)

    def ack_all(self, member: Membership, handles: Iterable[BundleHandle]) -> None:
        """Resolve the bundles of *handles* as "acked"; see `Subscriber.ack_all`."""
        refused: BundleUnavailableError | None = None
        with self._condition:
            queue = self.queue_of(member)
            for handle in handles:
                if handle.outcome != "acked":
                    try:
                        member.acked_uncounted += self._settle(member, queue, handle, "acked")
                    except BundleUnavailableError as error:
                        refused = refused or error
        if refused is not None:
            raise refused

    def _settle(
        self, member: Membership, queue: DeliveryQueue, handle: BundleHandle, outcome: Outcome, why: str = ""
    ) -> bool:
        """Resolve the bundle of *handle*, under the condition; True when it was not resolved before."""
        ref = handle.ref
        if handle.outcome is not None or handle.queue is not queue or not queue.is_claimed(ref):
            self._check_claim(queue, handle, outcome)
        segment = self._segments.get(ref.segment)
        is_news = segment is not None and member.state.resolve(ref, segment.bundle_count)
        if is_news:
            member.is_dirty = True
            if self._shared.audit is not None:
                self._shared.audit.resolved(member.id, ref.segment, ref.index, outcome, why)
        queue.resolved(ref)
        handle.outcome = outcome
        return is_news

    def defer(self, member: Membership, handle: BundleHandle, seconds: float) -> None:
        """Give the bundle of *handle* back for later; see `BundleHandle.defer`."""
        if not seconds >= 0:
            raise UsageError(f"defer({seconds}): seconds must be 0 or more")
        with self._condition:
            queue = self.queue_of(member)
            self._check_claim(queue, handle, "deferred")
            queue.release(handle.ref, due_s=self._clock.monotonic() + seconds if seconds else None)
            handle.outcome = "deferred"
            self._condition.notify_all()
        self._observer.count("quiver.subscriber.deferred_bundles_total", subscriber=member.id)

    def give_back(self, handle: BundleHandle) -> None:
        """End the claim of *handle* without a decision, also when the store is closed."""
        with self._condition:
            if handle.outcome is None:
                handle.outcome = "returned"
                handle.queue.release(handle.ref)
                self._condition.notify_all()

    def give_back_unreadable(self, member: Membership, handle: BundleHandle) -> None:
        """End the claim of *handle* because its bundle could not be read."""
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

    # ── under the condition ──────────────────────────────────────────────────────────────────────────

    def queue_of(self, member: Membership) -> DeliveryQueue:
        """
        Return what is pending for *member*, dropped handles included.

        Raises:
            BundleUnavailableError: this process does not work for it any more.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed.
        """
        if self._members.is_closed or member.gone:
            self._members.require(member)
        while self._dropped:
            queue, ref = self._dropped.popleft()
            queue.release(ref)
        if member.queue is None:
            raise BundleUnavailableError(f"subscriber {member.id!r} was released; its claims have ended")
        return member.queue

    def _check_claim(self, queue: DeliveryQueue, handle: BundleHandle, outcome: str) -> None:
        if handle.outcome == "unreadable":
            # Nobody claimed it since? Then the consumer may still decide what becomes of it; also when the
            # segment went to quarantine meanwhile, where there is nothing left to decide.
            if handle.ref.segment in self._shared.segments:
                queue.claim(handle.ref)
        elif handle.outcome is not None:
            raise BundleUnavailableError(f"bundle {handle.ref} cannot be {outcome}: it was {handle.outcome} already")
        elif handle.queue is not queue or not queue.is_claimed(handle.ref):
            raise BundleUnavailableError(f"the claim on bundle {handle.ref} has ended")
