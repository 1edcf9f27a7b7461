"""
What a consumer holds: its `Subscriber`, and a `BundleHandle` for each bundle it was given.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from quiver.bundle import Bundle, BundleRef
from quiver.errors import BundleUnavailable, Damaged

if TYPE_CHECKING:
    from quiver.store.subscribers.delivery import DeliveryQueue
    from quiver.store.subscribers.membership import Membership
    from quiver.store.subscribers.registry import Registry

__all__ = ["BundleHandle", "Subscriber"]


class BundleHandle:
    """
    One bundle, claimed for one subscriber until it is acknowledged, rejected, deferred or dropped.

    A handle that is garbage collected, or left by `with` without a decision, gives the bundle back: it will be
    delivered again. Thread-safe.
    """

    __slots__ = ("_bundle", "_membership", "_registry", "outcome", "queue", "ref")

    def __init__(self, registry: Registry, membership: Membership, queue: DeliveryQueue, ref: BundleRef) -> None:
        self.outcome: str | None = None
        """How the claim ended: acked, rejected, deferred, returned or unreadable; None while it lasts."""
        self._registry = registry
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
            Damaged: the bytes on disk are not what was written.
            BundleUnavailable: the segment is not on disk any more.
            OSError: the disk could not be read.
        """
        if self._bundle is None:
            try:
                self._bundle = self._registry.load(self.ref)
            except (Damaged, BundleUnavailable, OSError):
                self._registry.give_back_unreadable(self._membership, self)
                raise
        return self._bundle

    def ack(self) -> None:
        """
        Say that the bundle was processed: it is never delivered to this subscriber again.

        Durable after the next maintenance pass. Doing it twice is harmless.

        Raises:
            BundleUnavailable: the handle was rejected, deferred or given back before.
            StoreClosed: the store is closed; the bundle will be delivered again.
        """
        self._registry.settle(self._membership, self, "acked")

    def reject(self) -> None:
        """
        Say that the bundle can never be processed: it is dropped for this subscriber, and counted.

        Durable after the next maintenance pass. Doing it twice is harmless.

        Raises:
            BundleUnavailable: the handle was acknowledged, deferred or given back before.
            StoreClosed: the store is closed; the bundle will be delivered again.
        """
        self._registry.settle(self._membership, self, "rejected")

    def defer(self, seconds: float = 0.0) -> None:
        """
        Give the bundle back, to be delivered again after *seconds*. Newer bundles are not held up meanwhile.

        Raises:
            BundleUnavailable: the handle was acknowledged, rejected, deferred or given back before.
            WrongUse: *seconds* is negative or not a number.
        """
        self._registry.defer(self._membership, self, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.outcome is None:
            self._registry.give_back(self)

    def __del__(self) -> None:
        # Runs in any thread, at any moment, perhaps inside the registry's own lock: it must not wait for it.
        if getattr(self, "outcome", "") is None:
            self._registry.dropped(self)

    def __repr__(self) -> str:
        return f"BundleHandle({self.ref}, {self.outcome or 'claimed'})"


class Subscriber:
    """
    One consumer of a store. Several threads may share it; each bundle goes to one of them.

    The first `next_bundle` or `claim` takes ownership: one process at a time works for a subscriber.
    """

    def __init__(self, registry: Registry, membership: Membership) -> None:
        self._registry = registry
        self._membership = membership

    @property
    def id(self) -> str:
        """
        The name it was registered under.
        """
        return self._membership.id

    def next_bundle(self, timeout: float | None = None) -> BundleHandle | None:
        """
        Claim the oldest pending bundle; wait up to *timeout* seconds for one (None: without end, 0: not at all).

        Returns:
            The handle, or None when the time has passed.

        Raises:
            DirectoryInUse: another process works for this subscriber.
            SubscriberUnknown: it was unregistered.
            StoreClosed: the store was closed, also while waiting.
        """
        return self._registry.take(self._membership, timeout)

    def claim(self, ref: BundleRef) -> BundleHandle:
        """
        Claim one bundle by name, whatever its turn; a deferred one before its time, too.

        Raises:
            BundleUnavailable: there is no such bundle, or it is resolved or claimed.
            DirectoryInUse: another process works for this subscriber.
            SubscriberUnknown: it was unregistered.
            StoreClosed: the store was closed.
        """
        return self._registry.claim(self._membership, ref)

    def pending_count(self) -> int:
        """
        Return how many sealed bundles are not resolved, claimed and deferred ones included.
        """
        return self._registry.status(self._membership.id).pending_bundles

    def release(self) -> None:
        """
        Write the progress and let another process work for this subscriber. Claims end.

        Raises:
            OSError: the progress could not be written; ownership is kept.
        """
        self._registry.disown(self._membership)

    def __repr__(self) -> str:
        return f"Subscriber({self.id!r})"
