"""What a store offers about its subscribers: the calls of `Store` that only its registry answers."""

from __future__ import annotations

from quiver.bundle import BundleRef
from quiver.store.subscribers.delivery import Order
from quiver.store.subscribers.handle import Subscriber
from quiver.store.subscribers.records import SubscriberStatus
from quiver.store.subscribers.registry import Registry
from quiver.store.subscribers.rewinding import RewindTo, Rewound
from quiver.store.subscribers.state import Start

__all__ = ["SubscriberCalls"]


class SubscriberCalls:
    """A base of `Store`, which sets `_registry`. Everything counts sealed bundles: `flush` seals what is open."""

    _registry: Registry

    def register(self, subscriber_id: str, start: Start = "latest", *, order: Order = "oldest") -> Subscriber:
        """
        Register a subscriber, durably; a known one resumes where it was, whatever *start* says.

        Args:
            subscriber_id: 1 to 64 of ``A-Za-z0-9_-``.
            start: "latest" (what is sealed from now on), "earliest", a segment number, or an aware datetime.
            order: "oldest" first; "newest" first, with every fourth bundle from the old end; or "round_robin", one
                bundle of each segment in turn. Not written down: each registration says it anew.

        Raises:
            UsageError: the id, the start or the order is not lawful.
            StoreFailedError: the directory was moved; open it where it is now.
            StoreClosedError: the store was closed.
        """
        return self._registry.register(subscriber_id, start, order=order)

    def unregister(self, subscriber_id: str) -> int:
        """
        Remove a subscriber for good, durably on return; return how many bundles it had not resolved.

        They count as dropped for it. Registered again it is a new one.

        Raises:
            UnknownSubscriberError: not registered.
            DirectoryInUseError: another process works for it.
            StoreClosedError: the store was closed.
        """
        return self._registry.unregister(subscriber_id)

    def activate(self) -> None:
        """
        End the registration phase. The first `next_bundle` does it too.

        Raises:
            StoreClosedError: the store was closed.
        """
        self._registry.activate()

    def orphans(self) -> list[SubscriberStatus]:
        """
        Return those that have progress, hold data for it, and were not registered when the registration phase
        ended.
        """
        return self._registry.orphans()

    def drop_orphan(self, subscriber_id: str) -> int:
        """
        Remove an orphan for good, as `unregister` does for one that is registered.

        Raises:
            UsageError: it is registered, or the registration phase has not ended.
            UnknownSubscriberError: there is no such subscriber.
            DirectoryInUseError: another process works for it.
            StoreClosedError: the store was closed.
        """
        return self._registry.drop_orphan(subscriber_id)

    def rewind(self, subscriber_id: str, to: RewindTo) -> Rewound:
        """
        Deliver again what a subscriber resolved from *to* on; see `Subscriber.rewind`. Durable on return.

        Raises:
            UsageError: *to* means nothing, or a place that the store has not reached.
            UnknownSubscriberError: there is no such subscriber.
            DirectoryInUseError: another process works for it.
            StoreClosedError: the store was closed.
            OSError: it could not be written.
        """
        return self._registry.rewind(subscriber_id, to)

    def subscribers(self) -> list[SubscriberStatus]:
        """Return how every subscriber stands, by name."""
        return self._registry.statuses()

    def pending_bundle_count(self, subscriber_id: str) -> int:
        """
        Return how many bundles a subscriber has not resolved.

        Raises:
            UnknownSubscriberError: there is no such subscriber.
        """
        return self._registry.pending_bundle_count(subscriber_id)

    def all_subscribers_drained(self) -> bool:
        """Say whether every subscriber, orphans included, has resolved all bundles."""
        return self._registry.all_subscribers_drained()

    def oldest_incomplete_segment(self, subscriber_id: str) -> int | None:
        """
        Return the oldest segment with a bundle that a subscriber has not resolved, or None.

        Raises:
            UnknownSubscriberError: there is no such subscriber.
        """
        return self._registry.oldest_incomplete_segment(subscriber_id)

    def segment_sequences(self, subscriber_id: str | None = None) -> list[int]:
        """
        Return the numbers of all segments, or of those with bundles that a subscriber has not resolved.

        Raises:
            UnknownSubscriberError: there is no such subscriber.
        """
        return self._registry.segment_sequences(subscriber_id)

    def pending_bundles_in_range(self, subscriber_id: str, first_segment: int, last_segment: int) -> list[BundleRef]:
        """
        Return what a subscriber could `claim` from *first_segment* to *last_segment*, both included, ascending.

        Raises:
            UnknownSubscriberError: there is no such subscriber.
        """
        return self._registry.pending_bundles_in_range(subscriber_id, first_segment, last_segment)
