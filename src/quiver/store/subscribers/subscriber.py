"""The public API: `Subscriber`, and the methods of `Store` that concern its subscribers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable

from quiver.bundle import BundleRef
from quiver.errors import StoreFailedError
from quiver.lazy_names import warn_renamed
from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDiedError
from quiver.store.subscribers.claims import WAIT_S_MAX, BundleHandle, Claims
from quiver.store.subscribers.queue import DeliveryQueue, Order
from quiver.store.subscribers.records import SubscriberLag, SubscriberRecord, SubscriberStatus, SubscriberTable
from quiver.store.subscribers.runs import BundleRun
from quiver.store.subscribers.start import RewindTo, Rewound, Start
from quiver.store.subscribers.subscribers import Subscribers

__all__ = ["Subscriber", "SubscriberCalls"]


class Subscriber:
    """
    One consumer of a store. Several threads may share it; each bundle is delivered to one of them.

    The first `next_bundle`, `claim` or `on_bundle` takes ownership: only one process at a time owns a subscriber.
    """

    def __init__(self, subscribers: Subscribers, record: SubscriberRecord) -> None:
        self._subscribers = subscribers
        self._claims = subscribers.claims
        self._record = record

    @property
    def id(self) -> str:
        """The id under which it was registered."""
        return self._record.id

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────

    def next_bundle(self, timeout: float | None = None) -> BundleHandle | None:
        """
        Claim the next pending bundle, in the order given to `register`.

        Waits up to *timeout* seconds for one (None: without limit, 0: not at all). The wait ends early when a bundle
        is sealed or returned, or when a deferral expires.

        Returns:
            The handle, or None if the timeout has expired.

        Raises:
            DirectoryInUseError: another process owns this subscriber.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed, possibly during the wait.
        """
        return self._claims.take(self._record, timeout)

    def next_bundles(self, count: int, timeout: float | None = None) -> list[BundleHandle]:
        """
        Claim up to *count* bundles: those that *count* calls of `next_bundle` would return.

        Together with `ack_all` it takes less time than one by one; `next_run` takes least. It waits like `next_bundle`
        until there is one bundle, and then returns those that are pending.

        Returns:
            The handles in the order of delivery; empty if the timeout has expired.

        Raises:
            UsageError: *count* is below 1.
            DirectoryInUseError: another process owns this subscriber.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed, possibly during the wait.
        """
        return self._claims.take_many(self._record, count, timeout)

    def next_run(self, count_max: int = 256, timeout: float | None = None) -> BundleRun | None:
        """
        Claim the next run: up to *count_max* consecutive bundles of one segment.

        This is the fastest way to consume many small bundles. It waits like `next_bundle` until there is one bundle, in
        the order given to `register`, and adds the pending bundles that directly follow it. Under `newest` those
        that precede it are added, and every fourth run is from the old end. Within a run the oldest bundle comes first.

        Returns:
            The run, or None if the timeout has expired.

        Raises:
            UsageError: *count_max* is below 1.
            DirectoryInUseError: another process owns this subscriber.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed, possibly during the wait.
        """
        claim = self._claims.take_run(self._record, count_max, timeout)
        return None if claim is None else BundleRun(self._claims, self._record, claim)

    def ack_all(self, handles: Iterable[BundleHandle]) -> None:
        """
        Acknowledge *handles* of this subscriber, like `BundleHandle.ack` for each.

        Raises:
            BundleUnavailableError: one of them was rejected, deferred or returned before; all others are
                acknowledged.
            StoreClosedError: the store is closed; the bundles will be delivered again.
        """
        self._claims.ack_all(self._record, handles)

    def claim(self, ref: BundleRef) -> BundleHandle:
        """
        Claim one bundle by its reference in any order; a deferred one even before its time.

        Raises:
            BundleUnavailableError: the bundle does not exist, or is resolved or claimed.
            DirectoryInUseError: another process owns this subscriber.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed.
        """
        return self._claims.claim(self._record, ref)

    def on_bundle(self, callback: Callable[[], object]) -> Callable[[], None]:
        """
        Call *callback* whenever bundles become available, and immediately if there are some.

        The callback runs in its own thread and outside all locks, never twice at the same time, and not once for each
        bundle: it should take bundles until ``next_bundle(timeout=0)`` returns None. A callback that raises is not
        called again.

        Returns:
            A function that stops the calls. It does not wait for a call that is running.

        Raises:
            DirectoryInUseError: another process owns this subscriber.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed.
        """
        self._subscribers.begin(self._record)
        table = self._subscribers.table
        with table.condition:
            self._record.require()
        return _BundleCallback(table, self._claims, self._record, callback).stop

    def rewind(self, to: RewindTo) -> Rewound:
        """
        Deliver resolved bundles again: *to* and every later bundle that still exists. Durable on return.

        Bundles before *to* are not changed, pending or not. Claimed and deferred bundles stay so. No bundle is ever
        skipped.

        Args:
            to: "earliest", a segment number, an aware datetime (the first segment with a bundle ingested at or after
                it), or a `BundleRef`.

        Returns:
            How many bundles are pending again, and which later segment numbers no longer exist.

        Raises:
            UsageError: *to* is invalid, or beyond the end of the store.
            DirectoryInUseError: another process owns this subscriber.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed.
            OSError: the progress could not be written. The rewind applies in this process, and the next maintenance
                pass tries to write it again.
        """
        return self._subscribers.rewind(self._record.id, to)

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────

    def lag(self) -> SubscriberLag:
        """Return the lag of this subscriber: pending bundles, their segments, bytes and age."""
        return self._subscribers.lag(self.id)

    def pending_bundle_count(self) -> int:
        """Return `lag().pending_bundles`: the former name, for one release."""
        warn_renamed("Subscriber", "pending_bundle_count()", "lag().pending_bundles")
        return self.lag().pending_bundles

    def is_drained(self) -> bool:
        """Return `lag().is_drained`: the former name, for one release."""
        warn_renamed("Subscriber", "is_drained()", "lag().is_drained")
        return self.lag().is_drained

    def oldest_incomplete_segment(self) -> int | None:
        """Return `lag().oldest_incomplete_segment`: the former name, for one release."""
        warn_renamed("Subscriber", "oldest_incomplete_segment()", "lag().oldest_incomplete_segment")
        return self.lag().oldest_incomplete_segment

    def segment_sequences(self) -> list[int]:
        """Return `lag().segments`: the former name, for one release."""
        warn_renamed("Subscriber", "segment_sequences()", "lag().segments")
        return list(self.lag().segments)

    def pending_bundles_in_range(self, first_segment: int, last_segment: int) -> list[BundleRef]:
        """
        Return the bundles that `claim` accepts, from *first_segment* to *last_segment* inclusive, ascending.

        Deferred bundles are included, claimed ones are not.
        """
        return self._subscribers.pending_bundles_in_range(self.id, first_segment, last_segment)

    def release(self) -> None:
        """
        Write the progress and let another process own this subscriber. All claims end.

        Raises:
            OSError: the progress could not be written; this process still owns the subscriber.
        """
        self._subscribers.disown(self._record)

    def __repr__(self) -> str:
        return f"Subscriber({self.id!r})"


class SubscriberCalls:
    """A base of `Store`, which sets `_subscribers`. All methods count sealed bundles; `seal` seals the open segment."""

    _subscribers: Subscribers

    def register(self, subscriber_id: str, start: Start = "latest", *, order: Order = "oldest") -> Subscriber:
        """
        Register a subscriber, durable on return. A known one continues where it was; *start* is for new ones.

        Args:
            subscriber_id: 1 to 64 of ``A-Za-z0-9_-``.
            start: "latest" (bundles that are not sealed yet), "earliest", a segment number, or an aware datetime.
            order: "oldest" first; "newest" first, with every fourth bundle from the old end; or "round_robin", one
                bundle of each segment in turn. It is not stored: pass it at each registration.

        Raises:
            UsageError: the id, the start or the order is invalid.
            StoreFailedError: the directory was moved; open it at its new path.
            StoreClosedError: the store was closed.
        """
        record = self._subscribers.register(subscriber_id, start, order=order)
        with contextlib.suppress(OSError, StoreFailedError):  # maintenance retries and reports it
            self._subscribers.publish()
        return Subscriber(self._subscribers, record)

    def unregister(self, subscriber_id: str) -> int:
        """
        Remove a subscriber permanently, durable on return; return how many bundles it had not resolved.

        They count as dropped for it. If it is registered again, it is a new subscriber.

        Raises:
            UnknownSubscriberError: it does not exist.
            DirectoryInUseError: another process owns it.
            StoreClosedError: the store was closed.
            OSError: its file could not be removed; the subscriber still exists.
        """
        return self._subscribers.unregister(subscriber_id)

    def activate(self) -> None:
        """
        End the registration phase; the first `next_bundle` does so, too. Idempotent.

        From now on subscribers that have progress but were not registered are orphans. An orphan still keeps its data;
        registering it later is allowed and ends that state.

        Raises:
            StoreClosedError: the store was closed.
        """
        self._subscribers.activate()

    def orphans(self) -> list[SubscriberStatus]:
        """Return the orphans: subscribers with progress that were not registered in the registration phase."""
        return self._subscribers.orphans()

    def drop_orphan(self, subscriber_id: str) -> int:
        """
        Remove an orphan permanently, as `unregister` does for a registered subscriber.

        Raises:
            UsageError: it is registered, or the registration phase has not ended.
            UnknownSubscriberError: it does not exist.
            DirectoryInUseError: another process owns it.
            StoreClosedError: the store was closed.
            OSError: its file could not be removed; the orphan still exists.
        """
        return self._subscribers.drop_orphan(subscriber_id)

    def rewind(self, subscriber_id: str, to: RewindTo) -> Rewound:
        """
        Deliver resolved bundles again, from *to* on; see `Subscriber.rewind`. Durable on return.

        Raises:
            UsageError: *to* is invalid, or beyond the end of the store.
            UnknownSubscriberError: the subscriber does not exist.
            DirectoryInUseError: another process owns it.
            StoreClosedError: the store was closed.
            OSError: the progress could not be written.
        """
        return self._subscribers.rewind(subscriber_id, to)

    def subscribers(self) -> list[SubscriberStatus]:
        """Return the status of every subscriber, sorted by id."""
        return self._subscribers.statuses()

    def lag(self, subscriber_id: str) -> SubscriberLag:
        """
        Return the lag of a subscriber: pending bundles, their segments, bytes and age.

        For a subscriber of another process, as of the last maintenance pass.

        Raises:
            UnknownSubscriberError: it does not exist.
        """
        return self._subscribers.lag(subscriber_id)

    def pending_bundle_count(self, subscriber_id: str) -> int:
        """Return `lag(subscriber_id).pending_bundles`: the former name, for one release."""
        warn_renamed("Store", "pending_bundle_count(id)", "lag(id).pending_bundles")
        return self.lag(subscriber_id).pending_bundles

    def all_subscribers_drained(self) -> bool:
        """
        Return whether every subscriber, including orphans, has resolved all bundles.

        For subscribers of other processes, as of the last maintenance pass.
        """
        return self._subscribers.all_subscribers_drained()

    def oldest_incomplete_segment(self, subscriber_id: str) -> int | None:
        """Return `lag(subscriber_id).oldest_incomplete_segment`: the former name, for one release."""
        warn_renamed("Store", "oldest_incomplete_segment(id)", "lag(id).oldest_incomplete_segment")
        return self.lag(subscriber_id).oldest_incomplete_segment

    def segment_sequences(self, subscriber_id: str | None = None) -> list[int]:
        """
        Return the numbers of all sealed segments, ascending.

        With *subscriber_id*, return `lag(subscriber_id).segments`: the former name, for one release.
        """
        if subscriber_id is None:
            return self._subscribers.segment_sequences()
        warn_renamed("Store", "segment_sequences(id)", "lag(id).segments")
        return list(self.lag(subscriber_id).segments)

    def pending_bundles_in_range(self, subscriber_id: str, first_segment: int, last_segment: int) -> list[BundleRef]:
        """
        Return what a subscriber could `claim` from *first_segment* to *last_segment* inclusive, ascending.

        Raises:
            UnknownSubscriberError: the subscriber does not exist.
        """
        return self._subscribers.pending_bundles_in_range(subscriber_id, first_segment, last_segment)


class _BundleCallback:
    """
    Calls *callback* whenever bundles become available: after a seal, a deferral that expired, a returned bundle, a
    rewind. Ends with `stop`, or when the subscriber is removed or the store closed.

    The worker thread starts immediately. It holds no lock during a call, so the callback may use the store freely, and
    a slow one delays no one else. If the callback raises, the thread ends through `threading.excepthook`.
    """

    def __init__(
        self, table: SubscriberTable, claims: Claims, record: SubscriberRecord, callback: Callable[[], object]
    ) -> None:
        self._table = table
        self._claims = claims
        self._record = record
        self._callback = callback
        self._is_stopped = False
        self._seen: tuple[DeliveryQueue, int] | None = None
        # A daemon: a program that forgets to close must still be able to exit.
        Worker(
            f"quiver-on-bundle {record.id}", self._turn, every=0.0, on_death=self._report, clock=table.clock,
            observer=table.observer,
        ).start()  # fmt: skip

    def stop(self) -> None:
        """Stop the calls, without waiting for one that is running. Idempotent."""
        with self._table.condition:
            self._is_stopped = True
            self._table.condition.notify_all()

    def _turn(self) -> Finished | None:
        self._seen = self._wait_for_bundle(self._seen)
        if self._seen is None:
            return FINISHED
        self._callback()
        return None

    def _report(self, died: WorkerDiedError) -> None:
        self._table.observer.event(
            "quiver.subscriber.callback", level=logging.ERROR, subscriber=self._record.id, problem=str(died)
        )

    def _wait_for_bundle(self, seen: tuple[DeliveryQueue, int] | None) -> tuple[DeliveryQueue, int] | None:
        """Wait for a bundle that became available after *seen* was returned; return None at the end."""
        clock, condition = self._table.clock, self._table.condition
        with condition:
            while not (self._is_stopped or self._table.is_closed or self._record.is_removed):
                queue = self._record.queue
                wait_s = WAIT_S_MAX
                if queue is not None:
                    self._claims.queue_of(self._record)  # returns the bundles of dropped handles
                    if self._claims.arrivals is not None:
                        self._claims.arrivals.arrive(queue)
                    now_s = clock.monotonic()
                    if queue.has_free(now_s) and seen != (queue, queue.arrivals):
                        return queue, queue.arrivals
                    due_s = queue.next_due_s()
                    wait_s = WAIT_S_MAX if due_s is None else min(WAIT_S_MAX, due_s - now_s)
                self._claims.waiting += 1
                try:
                    clock.wait(condition, wait_s)
                finally:
                    self._claims.waiting -= 1
        return None
