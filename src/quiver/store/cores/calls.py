"""
The calls of `Store` about subscribers, for a store of several cores: they cover the cores that are
open here.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Literal, TypeVar

from quiver.errors import QuiverError, StoreClosedError, UnknownSubscriberError
from quiver.lazy_names import warn_renamed
from quiver.store.cores.subscriber import require_no_place
from quiver.store.store import Store
from quiver.store.subscribers.records import SubscriberLag, SubscriberStatus
from quiver.store.subscribers.start import Rewound

__all__ = ["MultiCoreSubscriberCalls"]

_Result = TypeVar("_Result")


class MultiCoreSubscriberCalls(abc.ABC):
    """A base of `MultiCoreStore`. All counts are of sealed bundles in the cores that this process has open."""

    path: str

    @abc.abstractmethod
    def open_stores(self) -> dict[int, Store]:
        """Return the store of each core that this process has open."""

    @abc.abstractmethod
    def _require_open(self) -> None: ...

    def subscribers(self) -> list[SubscriberStatus]:
        """
        Return the status of every subscriber, by name: bundles and bytes are sums, ages are maxima.

        A subscriber is registered, owned or an orphan if it is so in one of the cores. `oldest_incomplete` is the
        lowest of the cores' numbers; each core counts its own segments.
        """
        return _merged(status for store in self._stores() for status in store.subscribers())

    def orphans(self) -> list[SubscriberStatus]:
        """
        Return the subscribers that have progress in some core, hold data for it, and were not registered there; as
        `subscribers`.
        """
        return _merged(status for store in self._stores() for status in store.orphans())

    def drop_orphan(self, subscriber_id: str) -> int:
        """
        Remove an orphan permanently from every core, durably; return how many bundles it had not resolved.

        Raises:
            UsageError: it is registered, or the registration phase has not ended.
            UnknownSubscriberError: the subscriber does not exist.
            DirectoryInUseError: another process works for it in a core; the cores before that one are done.
            StoreClosedError: the store was closed.
        """
        return sum(self._of_each(subscriber_id, lambda store: store.drop_orphan(subscriber_id)).values())

    def rewind(self, subscriber_id: str, to: Literal["earliest"] | datetime) -> dict[int, Rewound]:
        """
        Deliver again what a subscriber resolved from *to* on; see `MultiCoreSubscriber.rewind`. Durable on return.

        Returns:
            By core, what will be delivered again.

        Raises:
            UsageError: *to* is neither "earliest" nor an aware datetime.
            UnknownSubscriberError: the subscriber does not exist.
            DirectoryInUseError: another process works for it in a core; the cores before that one are rewound.
            StoreClosedError: the store was closed.
            OSError: it could not be written; the cores before that one are rewound.
        """
        require_no_place(to)
        return self._of_each(subscriber_id, lambda store: store.rewind(subscriber_id, to))

    def lag(self, subscriber_id: str) -> SubscriberLag:
        """
        Return the lag of a subscriber, over all cores; each core numbers its own segments.

        Raises:
            UnknownSubscriberError: the subscriber does not exist.
            StoreClosedError: the store was closed.
        """
        lags = self._of_each(subscriber_id, lambda store: store.lag(subscriber_id)).values()
        return sum(lags, SubscriberLag(0, 0, 0, (), 0, 0.0))

    def pending_bundle_count(self, subscriber_id: str) -> int:
        """Return `lag(subscriber_id).pending_bundles`: the former name, for one release."""
        warn_renamed("MultiCoreStore", "pending_bundle_count(id)", "lag(id).pending_bundles")
        return self.lag(subscriber_id).pending_bundles

    def all_subscribers_drained(self) -> bool:
        """
        Return whether every subscriber, orphans included, has resolved all bundles.

        Raises:
            StoreClosedError: the store was closed.
        """
        return all(store.all_subscribers_drained() for store in self._stores())

    def _stores(self) -> list[Store]:
        self._require_open()
        return list(self.open_stores().values())

    def _each(
        self, ask: Callable[[Store], _Result], *, unless: tuple[type[QuiverError], ...] = ()
    ) -> dict[int, _Result]:
        """
        Return the result of *ask* for each open core, except for those where it raises an error of *unless*. A core
        that is drained and removed meanwhile is omitted.
        """
        self._require_open()
        found: dict[int, _Result] = {}
        for core, store in self.open_stores().items():
            try:
                found[core] = ask(store)
            except unless:
                continue
            except StoreClosedError:
                self._require_open()
        return found

    def _of_each(self, subscriber_id: str, ask: Callable[[Store], _Result]) -> dict[int, _Result]:
        found = self._each(ask, unless=(UnknownSubscriberError,))
        if not found:
            raise UnknownSubscriberError(f"there is no subscriber {subscriber_id!r} in any core of {self.path}")
        return found


def _merged(statuses: Iterable[SubscriberStatus]) -> list[SubscriberStatus]:
    found: dict[str, SubscriberStatus] = {}
    for one in statuses:
        other = found.get(one.id)
        found[one.id] = one if other is None else _sum(one, other)
    return [found[name] for name in sorted(found)]


def _sum(one: SubscriberStatus, other: SubscriberStatus) -> SubscriberStatus:
    return replace(
        one,
        is_registered=one.is_registered or other.is_registered,
        is_owned=one.is_owned or other.is_owned,
        is_orphan=one.is_orphan or other.is_orphan,
        oldest_incomplete=min(one.oldest_incomplete, other.oldest_incomplete),
        pending_bundles=one.pending_bundles + other.pending_bundles,
        claimed_bundles=one.claimed_bundles + other.claimed_bundles,
        deferred_bundles=one.deferred_bundles + other.deferred_bundles,
        lag_bytes=one.lag_bytes + other.lag_bytes,
        lag_seconds=max(one.lag_seconds, other.lag_seconds),
        idle_seconds=max(one.idle_seconds, other.idle_seconds),
        progress_age_seconds=max(one.progress_age_seconds, other.progress_age_seconds),
    )
