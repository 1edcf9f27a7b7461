"""What a consumer holds: its `Subscriber`, and a `BundleHandle` for each bundle it was given."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from quiver.bundle import Bundle, BundleRef
from quiver.errors import BundleUnavailableError, CorruptionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quiver.store.subscribers.claims import Claims
    from quiver.store.subscribers.delivery import DeliveryQueue
    from quiver.store.subscribers.records import Membership
    from quiver.store.subscribers.registry import Registry
    from quiver.store.subscribers.rewinding import RewindTo, Rewound

__all__ = ["BundleHandle", "Subscriber"]


class BundleHandle:
    """
    One bundle, claimed for one subscriber until it is acknowledged, rejected, deferred or dropped.

    A handle that is garbage collected, or left by `with` without a decision, gives the bundle back: it will be
    delivered again. Thread-safe.
    """

    __slots__ = ("_bundle", "_claims", "_membership", "outcome", "queue", "ref")

    def __init__(self, claims: Claims, membership: Membership, queue: DeliveryQueue, ref: BundleRef) -> None:
        self.outcome: str | None = None
        """How the claim ended: acked, rejected, deferred, returned or unreadable; None while it lasts."""
        self._claims = claims
        self._membership = membership
        self._bundle: Bundle | None = None
        self.queue = queue
        """Where the claim is held. Another one takes its place when the subscriber is released and owned again."""
        self.ref = ref
        """Where the bundle lies; `Subscriber.claim` takes it."""

    @property
    def bundle(self) -> Bundle:
        """
        The bundle, read when first asked for and kept.

        When it cannot be read the claim ends: the bundle is pending again, behind everything else that is. The
        handle can still be rejected (or acknowledged), which is how a consumer gets past it.

        Raises:
            CorruptionError: the bytes on disk are not what was written.
            BundleUnavailableError: the segment is not on disk any more.
            ObjectsUnavailableError: only the object tier has it, and does not answer; ask again, or `defer`.
            OSError: the disk could not be read.
        """
        bundle = self._bundle
        if bundle is None:
            try:
                bundle = self._bundle = self._claims.load(self.ref)
            except (CorruptionError, BundleUnavailableError, OSError):
                self._claims.give_back_unreadable(self._membership, self)
                raise
        return bundle

    def ack(self) -> None:
        """
        Say that the bundle was processed: it is never delivered to this subscriber again.

        Durable after the next maintenance pass. Doing it twice is harmless, and so is doing it after policy dropped
        the bundle.

        Raises:
            BundleUnavailableError: the handle was rejected, deferred or given back before.
            StoreClosedError: the store is closed; the bundle will be delivered again.
        """
        self._claims.settle(self._membership, self, "acked")

    def reject(self, why: str = "") -> None:
        """
        Say that the bundle can never be processed: it is dropped for this subscriber, and counted.

        Durable after the next maintenance pass. Doing it twice is harmless. *why* goes into the audit trail, if one
        is kept.

        Raises:
            BundleUnavailableError: the handle was acknowledged, deferred or given back before.
            UsageError: *why* is no text; nothing was decided.
            StoreClosedError: the store is closed; the bundle will be delivered again.
        """
        if not isinstance(why, str):
            # The trail is written by another thread, later: there it would cost that thread, and the store with it.
            raise UsageError(f"reject({why!r}): say why as text, for example str(error)")
        self._claims.settle(self._membership, self, "rejected", why)

    def defer(self, seconds: float = 0.0) -> None:
        """
        Give the bundle back, to be delivered again after *seconds*. Newer bundles are not held up meanwhile.

        Raises:
            BundleUnavailableError: the handle was acknowledged, rejected, deferred or given back before.
            UsageError: *seconds* is negative or not a number.
        """
        self._claims.defer(self._membership, self, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.outcome is None:
            self._claims.give_back(self)

    def __del__(self) -> None:
        # Runs in any thread, at any moment, perhaps inside the registry's own lock: it must not wait for it.
        if getattr(self, "outcome", "") is None:
            self._claims.dropped(self)

    def __repr__(self) -> str:
        return f"BundleHandle({self.ref}, {self.outcome or 'claimed'})"


class Subscriber:
    """
    One consumer of a store. Several threads may share it; each bundle goes to one of them.

    The first `next_bundle`, `claim` or `on_bundle` takes ownership: one process at a time works for a subscriber.
    """

    def __init__(self, registry: Registry, membership: Membership) -> None:
        self._registry = registry
        self._membership = membership

    @property
    def id(self) -> str:
        """The name it was registered under."""
        return self._membership.id

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────

    def next_bundle(self, timeout: float | None = None) -> BundleHandle | None:
        """
        Claim the pending bundle whose turn it is, in the order that `register` was told.

        Waits up to *timeout* seconds for one (None: without end, 0: not at all). It ends early when a bundle is
        sealed, is given back, or a deferral's time has come.

        Returns:
            The handle, or None when the time has passed.

        Raises:
            DirectoryInUseError: another process works for this subscriber.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed, also while waiting.
        """
        return self._registry.claims.take(self._membership, timeout)

    def next_bundles(self, count: int, timeout: float | None = None) -> list[BundleHandle]:
        """
        Claim up to *count* bundles at once, those that as many calls of `next_bundle` would. With `ack_all` this is
        the fast way to take many small bundles.

        Waits as `next_bundle` does until there is one, and then returns what there is.

        Returns:
            The handles in the order of delivery; empty when the time has passed.

        Raises:
            UsageError: *count* is below 1.
            DirectoryInUseError: another process works for this subscriber.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed, also while waiting.
        """
        return self._registry.claims.take_many(self._membership, count, timeout)

    def ack_all(self, handles: Iterable[BundleHandle]) -> None:
        """
        Say of all *handles*, which this subscriber gave out, what `BundleHandle.ack` says of one.

        Raises:
            BundleUnavailableError: one of them was rejected, deferred or given back before; all others are
            acknowledged. StoreClosedError: the store is closed; the bundles will be delivered again.
        """
        self._registry.claims.ack_all(self._membership, handles)

    def claim(self, ref: BundleRef) -> BundleHandle:
        """
        Claim one bundle by name, whatever its turn; a deferred one before its time, too.

        Raises:
            BundleUnavailableError: there is no such bundle, or it is resolved or claimed.
            DirectoryInUseError: another process works for this subscriber.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed.
        """
        return self._registry.claims.claim(self._membership, ref)

    def on_bundle(self, callback: Callable[[], object]) -> Callable[[], None]:
        """
        Have *callback* called when bundles become available, and now if there are any.

        It is called in a thread of its own and outside all locks, never twice at once, and not once for each bundle:
        it takes what there is, until ``next_bundle(timeout=0)`` returns None. A callback that raises is not called
        again.

        Returns:
            A function that ends it. A call that runs at that moment is not waited for.

        Raises:
            DirectoryInUseError: another process works for this subscriber.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed.
        """
        return self._registry.call_on_bundle(self._membership, callback)

    def rewind(self, to: RewindTo) -> Rewound:
        """
        Deliver again what was resolved: *to* and everything behind it that still exists. Durable on return.

        What lies before *to* stays as it is, pending or not, and bundles that are claimed or deferred at this moment
        stay so. Nothing is skipped, whatever *to* says.

        Args:
            to: "earliest", a segment number, an aware datetime (the first segment with a bundle ingested at or after
                it), or a `BundleRef`.

        Returns:
            How many bundles came back, and which segment numbers from there on are gone.

        Raises:
            UsageError: *to* means nothing, or a place that the store has not reached.
            DirectoryInUseError: another process works for this subscriber.
            UnknownSubscriberError: it was unregistered.
            StoreClosedError: the store was closed.
            OSError: it could not be written; it holds in this process, and the next maintenance pass tries again.
        """
        return self._registry.rewind(self._membership.id, to)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────

    def pending_bundle_count(self) -> int:
        """Return how many sealed bundles are not resolved, claimed and deferred ones included."""
        return self._registry.pending_bundle_count(self.id)

    def is_drained(self) -> bool:
        """Say whether all sealed bundles are resolved. What is in the open segment is not sealed: `flush` first."""
        return self.pending_bundle_count() == 0

    def oldest_incomplete_segment(self) -> int | None:
        """Return the number of the oldest segment with a bundle that is not resolved, or None."""
        return self._registry.oldest_incomplete_segment(self.id)

    def segment_sequences(self) -> list[int]:
        """Return the numbers of all segments with bundles that are not resolved, ascending."""
        return self._registry.segment_sequences(self.id)

    def pending_bundles_in_range(self, first_segment: int, last_segment: int) -> list[BundleRef]:
        """
        Return what `claim` would take from the segments *first_segment* to *last_segment*, both included, ascending.

        Deferred bundles are among them, claimed ones are not.
        """
        return self._registry.pending_bundles_in_range(self.id, first_segment, last_segment)

    def release(self) -> None:
        """
        Write the progress and let another process work for this subscriber. Claims end.

        Raises:
            OSError: the progress could not be written; ownership is kept.
        """
        self._registry.disown(self._membership)

    def __repr__(self) -> str:
        return f"Subscriber({self.id!r})"
