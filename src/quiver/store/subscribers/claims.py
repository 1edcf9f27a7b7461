"""The bundles that an open store has handed out: take the next one, wait for one, decide about it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Protocol, Self, TypeVar

from quiver.bundle import Bundle, BundleRef
from quiver.errors import BundleUnavailableError, CorruptionError, UsageError
from quiver.lazy_names import warn_renamed
from quiver.store.format.audit import AuditOutcome
from quiver.store.subscribers.queue import DeliveryQueue, Place, RunClaim
from quiver.store.subscribers.records import SubscriberRecord, SubscriberTable

__all__ = ["WAIT_S_MAX", "ArrivalSource", "BundleHandle", "Claims"]

_T = TypeVar("_T")

WAIT_S_MAX = 1.0
"""Waiters check for bundles this often. The garbage collector may drop a handle in a thread that holds the lock, and
then cannot wake them."""


class BundleHandle:
    """
    One bundle, claimed for one subscriber until it is acknowledged, rejected, deferred or dropped.

    A handle that is garbage collected, or whose `with` block ends without a decision, returns the bundle: it will be
    delivered again. Thread-safe.
    """

    __slots__ = ("_bundle", "_claims", "_record", "outcome", "place", "queue")

    def __init__(self, claims: Claims, record: SubscriberRecord, queue: DeliveryQueue, place: Place) -> None:
        self.outcome: str | None = None
        """How the claim ended: acked, rejected, deferred, returned or unreadable; None while it lasts."""
        self._claims = claims
        self._record = record
        self._bundle: Bundle | None = None
        self.queue = queue
        """The queue that has the claim. The subscriber gets another one when it is released and acquired again."""
        self.place = place
        """The pair that `ref` is made of."""

    @property
    def ref(self) -> BundleRef:
        """The address of the bundle; `Subscriber.claim` accepts it."""
        return BundleRef(*self.place)

    @property
    def bundle(self) -> Bundle:
        """
        The bundle, read on first access and cached.

        If it cannot be read the claim ends: the bundle is pending again, after all others. The handle can still be
        rejected or acknowledged, which is how a consumer skips the bundle.

        Raises:
            CorruptionError: the bytes on disk are not what was written.
            BundleUnavailableError: the segment is not on disk any more.
            ObjectsUnavailableError: only the object tier has the bundle, and it does not answer; retry, or `nack`.
            OSError: the disk could not be read.
        """
        bundle = self._bundle
        if bundle is None:
            try:
                bundle = self._bundle = self._claims.load(self.place)
            except (CorruptionError, BundleUnavailableError, OSError):
                self._claims.give_back_unreadable(self._record, self)
                raise
        return bundle

    def ack(self) -> None:
        """
        Acknowledge the bundle: it is never delivered to this subscriber again.

        Durable after the next maintenance pass. Repeating it has no effect, and neither has acknowledging a bundle
        that policy dropped meanwhile.

        Raises:
            BundleUnavailableError: the handle was rejected, deferred or returned before.
            StoreClosedError: the store is closed; the bundle will be delivered again.
        """
        self._claims.settle(self._record, self, "acked")

    def reject(self, reason: str = "", *, why: str | None = None) -> None:
        """
        Reject the bundle because it can never be processed: it is dropped for this subscriber, and counted.

        Durable after the next maintenance pass. Repeating it has no effect. *reason* is written to the audit trail
        if there is one; *why* is its former name, for one release.

        Raises:
            BundleUnavailableError: the handle was acknowledged, deferred or returned before.
            UsageError: *reason* is not a string; nothing was decided.
            StoreClosedError: the store is closed; the bundle will be delivered again.
        """
        if why is not None:
            warn_renamed("BundleHandle", "reject(why=)", "reject(reason=)")
            reason = why
        if not isinstance(reason, str):
            # Another thread writes the trail later: the error would end that thread, and the store with it.
            raise UsageError(f"reject({reason!r}): the reason must be a string, for example str(error)")
        self._claims.settle(self._record, self, "rejected", reason)

    def nack(self, delay: float = 0.0) -> None:
        """
        Return the bundle, to be delivered again after *delay* seconds. Other bundles are delivered meanwhile.

        Raises:
            BundleUnavailableError: the handle was acknowledged, rejected, deferred or returned before.
            UsageError: *delay* is negative or not a number.
        """
        self._claims.defer(self._record, self, delay)

    def defer(self, seconds: float = 0.0) -> None:
        """The former name of `nack`."""
        warn_renamed("BundleHandle", "defer(seconds)", "nack(delay)")
        self.nack(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.outcome is None:
            self._claims.give_back(self)

    def __del__(self) -> None:
        # Runs in any thread at any moment, perhaps in one that holds the condition: it must not wait for it.
        try:
            if self.outcome is None:
                self._claims.dropped(self)
        except AttributeError:
            pass  # it was never complete

    def __repr__(self) -> str:
        return f"BundleHandle({self.ref}, {self.outcome or 'claimed'})"


class ArrivalSource(Protocol):
    """The bundles that may be delivered before they are sealed."""

    def arrive(self, queue: DeliveryQueue) -> None:
        """Add those that are new to *queue*. Called under the condition."""
        ...


class Claims:
    """
    The claims of all subscribers. Thread-safe.

    Attributes:
        arrivals: the bundles that may be delivered before they are sealed; None if there are none.
        waiting: the number of callers that wait for a bundle.

    Args:
        table: the subscribers.
        load: reads one bundle, given its segment and index; called outside all locks.
        begin: called before the first claim for a subscriber: makes this process its owner.
        load_run: reads bundles of a segment in turn, given its number, the first index, and the index after the last;
            called outside all locks. Without it they are read one by one.
    """

    def __init__(
        self,
        table: SubscriberTable,
        load: Callable[[Place], Bundle],
        begin: Callable[[SubscriberRecord], None],
        load_run: Callable[[int, int, int], Iterator[Bundle]] | None = None,
    ) -> None:
        self.arrivals: ArrivalSource | None = None
        self.waiting = 0
        self.load = load
        self.load_run = load_run if load_run is not None else self._load_each
        self._table = table
        self._begin = begin
        self._clock = table.clock
        self._observer = table.observer
        self._condition = table.condition
        self._lock = table.lock
        self._segments = table.segments
        self._dropped: deque[tuple[DeliveryQueue, Place] | RunClaim] = deque()

    def _load_each(self, segment: int, first: int, end: int) -> Iterator[Bundle]:
        return (self.load((segment, index)) for index in range(first, end))

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────

    def take(self, record: SubscriberRecord, timeout_s: float | None) -> BundleHandle | None:
        """Claim the next bundle; see `Subscriber.next_bundle`."""
        if record.queue is None or not self._table.is_active:
            self._begin(record)
        with self._lock:
            queue = record.queue
            if queue is None or self._dropped or record.is_removed or self._table.is_closed:
                queue = self.queue_of(record)
            if self.arrivals is not None and queue.order != "oldest":
                self.arrivals.arrive(queue)
            place = queue.take(self._clock.monotonic() if queue.due else 0.0)
            if place is None and (timeout_s != 0 or self.arrivals is not None):
                queue, place = self._wait_for(record, DeliveryQueue.take, timeout_s)
            return None if place is None else BundleHandle(self, record, queue, place)

    def take_many(self, record: SubscriberRecord, count: int, timeout_s: float | None) -> list[BundleHandle]:
        """Claim up to *count* bundles; see `Subscriber.next_bundles`."""
        if count < 1:
            raise UsageError(f"next_bundles({count}): ask for at least one")
        if record.queue is None or not self._table.is_active:
            self._begin(record)
        with self._condition:
            queue, places = self._wait_for(record, lambda queue, now_s: queue.take_many(now_s, count), timeout_s)
            return [BundleHandle(self, record, queue, place) for place in places or ()]

    def take_run(self, record: SubscriberRecord, count_max: int, timeout_s: float | None) -> RunClaim | None:
        """Claim the next run of up to *count_max* bundles; see `Subscriber.next_run`."""
        if count_max < 1:
            raise UsageError(f"next_run({count_max}): ask for at least one bundle")
        if record.queue is None or not self._table.is_active:
            self._begin(record)
        with self._condition:
            return self._wait_for(record, lambda queue, now_s: queue.take_run(now_s, count_max), timeout_s)[1]

    def _wait_for(
        self, record: SubscriberRecord, take: Callable[[DeliveryQueue, float], _T | None], timeout_s: float | None
    ) -> tuple[DeliveryQueue, _T | None]:
        """Return what *take* claims as soon as it claims something; nothing if *timeout_s* passes first."""
        deadline = math.inf if timeout_s is None else self._clock.monotonic() + timeout_s
        while True:
            queue = self.queue_of(record)
            if self.arrivals is not None:
                self.arrivals.arrive(queue)
            now = self._clock.monotonic()
            taken = take(queue, now)
            if taken or now >= deadline:
                return queue, taken
            due = queue.next_due_s()
            until = min(deadline, math.inf if due is None else due, now + WAIT_S_MAX)
            self.waiting += 1
            try:
                self._clock.wait(self._condition, until - now)
            finally:
                self.waiting -= 1

    def wake(self) -> None:
        """Wake all callers that wait for a bundle: one that is not sealed has arrived."""
        with self._condition:
            self._condition.notify_all()

    def claim(self, record: SubscriberRecord, ref: BundleRef) -> BundleHandle:
        """Claim one bundle by its reference; see `Subscriber.claim`."""
        self._begin(record)
        with self._condition:
            queue = self.queue_of(record)
            if self.arrivals is not None:
                self.arrivals.arrive(queue)
            queue.claim(ref)
            return BundleHandle(self, record, queue, ref)

    # ── deciding ─────────────────────────────────────────────────────────────────────────────────────

    def settle(self, record: SubscriberRecord, handle: BundleHandle, outcome: AuditOutcome, reason: str = "") -> None:
        """
        Resolve the bundle of *handle* as "acked" or "rejected"; see `BundleHandle`.

        A bundle that policy dropped meanwhile counts as dropped only.
        """
        with self._lock:
            if handle.outcome == outcome:
                return
            queue = record.queue
            if queue is None or self._dropped or record.is_removed or self._table.is_closed:
                queue = self.queue_of(record)
            is_new = self._settle(record, queue, handle, outcome, reason)
            if is_new and outcome == "acked":
                record.acked_uncounted += 1
                return
        if is_new:
            self._observer.count("quiver.subscriber.rejected_bundles_total", subscriber=record.id)

    def ack_all(self, record: SubscriberRecord, handles: Iterable[BundleHandle]) -> None:
        """Resolve the bundles of *handles* as "acked"; see `Subscriber.ack_all`."""
        refused: BundleUnavailableError | None = None
        with self._condition:
            queue = self.queue_of(record)
            for handle in handles:
                if handle.outcome != "acked":
                    try:
                        record.acked_uncounted += self._settle(record, queue, handle, "acked")
                    except BundleUnavailableError as error:
                        refused = refused or error
        if refused is not None:
            raise refused

    def _settle(
        self,
        record: SubscriberRecord,
        queue: DeliveryQueue,
        handle: BundleHandle,
        outcome: AuditOutcome,
        reason: str = "",
    ) -> bool:
        """Resolve the bundle of *handle*, under the condition; return whether it was unresolved before."""
        place = handle.place
        if handle.outcome is not None or handle.queue is not queue or place not in queue.claimed:
            self._check_claim(queue, handle, outcome)
        segment = self._segments.find(place[0])
        is_new = segment is not None and record.state.resolve(place, segment.bundle_count)
        if is_new:
            record.mark_dirty()
            if self._table.audit is not None:
                self._table.audit.resolved(record.id, *place, outcome, reason)
        queue.claimed.discard(place)
        handle.outcome = outcome
        return is_new

    def defer(self, record: SubscriberRecord, handle: BundleHandle, seconds: float) -> None:
        """Return the bundle of *handle* for later delivery; see `BundleHandle.nack`."""
        if not seconds >= 0:
            raise UsageError(f"nack({seconds}): the delay must be 0 or more")
        with self._condition:
            queue = self.queue_of(record)
            self._check_claim(queue, handle, "deferred")
            queue.release(handle.place, due_s=self._clock.monotonic() + seconds if seconds else None)
            handle.outcome = "deferred"
            self._condition.notify_all()
        self._observer.count("quiver.subscriber.deferred_bundles_total", subscriber=record.id)

    # ── runs ─────────────────────────────────────────────────────────────────────────────────────────

    def settle_run(
        self, record: SubscriberRecord, run: RunClaim, bits: int, outcome: AuditOutcome, reason: str = ""
    ) -> None:
        """Resolve those of *bits* that *run* still claims as "acked" or "rejected"; see `BundleRun`."""
        with self._lock:
            bits = self._claimed_bits(record, run, bits, outcome)
            segment = self._segments.find(run.segment)
            new = 0
            if segment is not None and bits:
                new = record.state.resolve_run(run.segment, run.first, bits, segment.bundle_count)
            if new:
                record.mark_dirty()
                if self._table.audit is not None:
                    self._table.audit.resolved_many(record.id, run.segment, new << run.first, outcome, reason)
            run.queue.end_run(run, bits)
            run.outcome = outcome
            if outcome == "acked":
                record.acked_uncounted += new.bit_count()
                return
        if new:
            self._observer.count("quiver.subscriber.rejected_bundles_total", new.bit_count(), subscriber=record.id)

    def defer_run(self, record: SubscriberRecord, run: RunClaim, seconds: float) -> None:
        """Return what *run* still claims for later delivery; see `BundleRun.nack`."""
        with self._condition:
            count = self._claimed_bits(record, run, run.left, "deferred").bit_count()
            run.queue.release_run(run, due_s=self._clock.monotonic() + seconds if seconds else None)
            run.outcome = "deferred"
            self._condition.notify_all()
        self._observer.count("quiver.subscriber.deferred_bundles_total", count, subscriber=record.id)

    def split(self, record: SubscriberRecord, run: RunClaim, index: int, *, is_unreadable: bool) -> BundleHandle:
        """Take one bundle out of *run*; see `BundleRun.split`."""
        ref = BundleRef(run.segment, index)
        with self._condition:
            queue = self.queue_of(record)
            if queue is not run.queue or not (ref in run or is_unreadable):
                raise BundleUnavailableError(f"the run has no claim on bundle {ref}")
            handle = BundleHandle(self, record, queue, ref)
            if ref in run:
                queue.split(run, ref)
            else:
                handle.outcome = "unreadable"
            return handle

    def give_back_run(self, run: RunClaim) -> None:
        """End the claim of *run* without a decision, even if the store is closed."""
        with self._condition:
            if run.left:
                run.queue.release_run(run)
                run.outcome = "returned"
                self._condition.notify_all()

    def give_back_unreadable_of(self, record: SubscriberRecord, run: RunClaim, index: int) -> bool:
        """End the claim on one bundle of *run* because it could not be read; return whether *run* had one."""
        ref = BundleRef(run.segment, index)
        with self._condition:
            was_claimed = ref in run
            if was_claimed:
                run.queue.end_run(run, 1 << index - run.first)
                run.queue.release_unreadable(ref)
                self._condition.notify_all()
        self._observer.count("quiver.subscriber.read_errors_total", subscriber=record.id)
        return was_claimed

    def dropped_run(self, run: RunClaim) -> None:
        """Return the bundles of a run that was garbage collected. Never waits for a lock."""
        self._dropped.append(run)
        self._wake()

    def _claimed_bits(self, record: SubscriberRecord, run: RunClaim, bits: int, outcome: str) -> int:
        """Return those of *bits* that *run* claims. Under the condition."""
        queue = self.queue_of(record)
        if not run.left:
            if run.outcome not in {None, outcome}:
                name = f"run {run.segment}:{run.first}-{run.first + run.count - 1}"
                raise BundleUnavailableError(f"{name} cannot be {outcome}: it was {run.outcome} already")
        elif run.queue is not queue:
            raise BundleUnavailableError(f"the claim on bundles of segment {run.segment} has ended")
        return bits & run.left

    # ── without a decision ───────────────────────────────────────────────────────────────────────────

    def give_back(self, handle: BundleHandle) -> None:
        """End the claim of *handle* without a decision, even if the store is closed."""
        with self._condition:
            if handle.outcome is None:
                handle.outcome = "returned"
                handle.queue.release(handle.place)
                self._condition.notify_all()

    def give_back_unreadable(self, record: SubscriberRecord, handle: BundleHandle) -> None:
        """End the claim of *handle* because its bundle could not be read."""
        with self._condition:
            if handle.outcome is None:
                handle.outcome = "unreadable"
                handle.queue.release_unreadable(handle.place)
                self._condition.notify_all()
        self._observer.count("quiver.subscriber.read_errors_total", subscriber=record.id)

    def dropped(self, handle: BundleHandle) -> None:
        """
        Return the bundle of a handle that was garbage collected. Never waits for a lock.

        The collector runs at any point, also in a thread that holds `_condition` or something that a holder of it
        waits for. So this only records the bundle; the next call that looks for one returns it to the queue.
        """
        self._dropped.append((handle.queue, handle.place))
        self._wake()

    def _wake(self) -> None:
        if self._condition.acquire(blocking=False):
            try:
                self._condition.notify_all()
            finally:
                self._condition.release()

    # ── under the condition ──────────────────────────────────────────────────────────────────────────

    def queue_of(self, record: SubscriberRecord) -> DeliveryQueue:
        """
        Return the queue of *record*, after the bundles of dropped handles were returned to it.

        Raises:
            BundleUnavailableError: this process does not own the subscriber any more.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed.
        """
        if self._table.is_closed or record.is_removed:
            record.require()
        if self._dropped:
            self.return_dropped()
        if record.queue is None:
            raise BundleUnavailableError(f"subscriber {record.id!r} was released; its claims have ended")
        return record.queue

    def return_dropped(self) -> None:
        """Return the bundles of dropped handles and runs to their queues. Call it before any look at a queue."""
        while self._dropped:
            dropped = self._dropped.popleft()
            if isinstance(dropped, RunClaim):
                dropped.queue.release_run(dropped)
            else:
                queue, place = dropped
                queue.release(place)

    def _check_claim(self, queue: DeliveryQueue, handle: BundleHandle, outcome: str) -> None:
        if handle.outcome == "unreadable":
            # If no one has claimed it since, the consumer may still decide about it. The segment may be in
            # quarantine by now; then there is nothing left to decide.
            if self._segments.find(handle.ref.segment) is not None:
                queue.claim(handle.ref)
        elif handle.outcome is not None:
            raise BundleUnavailableError(f"bundle {handle.ref} cannot be {outcome}: it was {handle.outcome} already")
        elif handle.queue is not queue or not queue.is_claimed(handle.place):
            raise BundleUnavailableError(f"the claim on bundle {handle.ref} has ended")
