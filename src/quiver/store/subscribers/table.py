"""
Who subscribes to an open store: found at open, registered, orphaned, removed, in this process or in another.

Every subscriber with a progress file counts for deletion, also one that nobody has registered since the start. Once
the registration phase has ended such a one is an orphan: it is reported, and holds its data until it is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from quiver.errors import DirectoryInUseError, StoreClosedError, UnknownSubscriberError, UsageError
from quiver.primitives.disk.lock import is_held
from quiver.store.format.names import check_subscriber_id, subscriber_lock_name
from quiver.store.subscribers import progress_store
from quiver.store.subscribers.delivery import Order, check_order
from quiver.store.subscribers.records import Membership, Shared, SubscriberStatus
from quiver.store.subscribers.state import Segments, Start

__all__ = ["Members"]


class Members:
    """
    The subscribers of one store by name. Thread-safe but for what is said to be under the condition.

    Every progress file is loaded; with a damaged one is done what the policy says.

    Args:
        shared: what all of them have in common.
        orphan_age_s: an orphan that shows no sign of life for this long is dropped; None keeps it.

    Raises:
        CorruptionError: a progress file is not what was written, and the policy is not to go on.
        OSError: a file cannot be read, or a copy cannot be written.
    """

    def __init__(self, shared: Shared, *, orphan_age_s: float | None = None) -> None:
        self._shared = shared
        self._orphan_age_s = orphan_age_s
        self._members: dict[str, Membership] = {}
        self._is_active = False
        self.is_closed = False
        """The store was closed."""
        self.require_place: Callable[[], None] = lambda: None
        """Raises when the directory is not where it was: another store's files may be at its path."""
        for subscriber_id in progress_store.find_subscribers(shared.fs, shared.root):
            member = Membership(subscriber_id, shared)
            self._members[subscriber_id] = member
            if not member.reload():
                member.recreate_if_unowned()

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────

    def listed(self) -> list[Membership]:
        """Return all of them. Takes the condition."""
        with self._shared.condition:
            return list(self._members.values())

    def all(self) -> Iterable[Membership]:
        """Return all of them. Under the condition."""
        return self._members.values()

    def find(self, subscriber_id: str) -> Membership:
        """
        Return one of them. Under the condition.

        Raises:
            UnknownSubscriberError: there is no such subscriber.
        """
        member = self._members.get(subscriber_id)
        if member is None:
            raise UnknownSubscriberError(f"there is no subscriber {subscriber_id!r}")
        return member

    def require_open(self) -> None:
        """
        Return when the store is not closed.

        Raises:
            StoreClosedError: it is.
        """
        if self.is_closed:
            raise StoreClosedError("the store is closed")

    def require(self, member: Membership) -> None:
        """
        Return when *member* is one of them still. Under the condition.

        Raises:
            StoreClosedError: the store was closed.
            UnknownSubscriberError: it was unregistered.
        """
        self.require_open()
        if member.gone:
            raise UnknownSubscriberError(f"subscriber {member.id!r} was unregistered")

    def statuses(self) -> list[SubscriberStatus]:
        """Return how each of them stands, by name."""
        with self._shared.condition:
            return [self._members[name].status(is_active=self._is_active) for name in sorted(self._members)]

    def status(self, subscriber_id: str) -> SubscriberStatus:
        """
        Return how one of them stands.

        Raises:
            UnknownSubscriberError: there is no such subscriber.
        """
        with self._shared.condition:
            return self.find(subscriber_id).status(is_active=self._is_active)

    def orphans(self) -> list[SubscriberStatus]:
        """
        Return those that have progress but that nobody registered, and that nobody works for in another process.

        Before the registration phase has ended there are none. A lock that is held is seen on Linux only; elsewhere a
        subscriber of another process is listed, too. None of them can be dropped while it is worked for.
        """
        shared = self._shared
        found = [status for status in self.statuses() if status.is_orphan and not status.is_owned]
        return [one for one in found if not is_held(shared.fs, f"{shared.root}/{subscriber_lock_name(one.id)}")]

    # ── coming ───────────────────────────────────────────────────────────────────────────────────────

    def register(self, subscriber_id: str, start: Start, order: str) -> Membership:
        """Register a subscriber; see `Registry.register`."""
        check_subscriber_id(subscriber_id)
        chosen: Order = check_order(order)
        shared = self._shared
        with shared.files_lock:
            with shared.condition:
                self.require_open()
                member = self._members.get(subscriber_id)
                segments = Segments(shared.segments, next_seq=shared.segments.next_seq)
            if member is None:
                created = progress_store.create_if_missing(
                    shared.fs, shared.root, subscriber_id, start=start, segments=segments, profile=shared.profile
                )
                member = Membership(subscriber_id, shared)
                member.reload()
                if created:
                    position = member.state.oldest_incomplete
                    shared.observer.event("quiver.subscriber.register", subscriber=subscriber_id, segment=position)
            with shared.condition:
                member.is_registered = True
                member.order = chosen
                if member.queue is not None:
                    member.queue.order = chosen
                self._members[subscriber_id] = member
            return member

    def activate(self) -> None:
        """End the registration phase; see `Registry.activate`."""
        shared = self._shared
        with shared.condition:
            self.require_open()
            if self._is_active:
                return
            self._is_active = True
            now_s = shared.clock.monotonic()
            for member in self._members.values():
                member.idle_since_s = now_s
        for orphan in self.orphans():
            shared.observer.event(
                "quiver.subscriber.orphan",
                level=logging.WARNING,
                subscriber=orphan.id,
                holds_bundles=orphan.pending_bundles,
                holds_bytes=orphan.lag_bytes,
            )

    def refresh(self) -> None:
        """
        Look at the progress files that other processes own: new ones, changed ones, removed ones.

        Raises:
            OSError: a file cannot be read.
        """
        shared = self._shared
        with shared.files_lock:
            found = progress_store.find_subscribers(shared.fs, shared.root)
            for subscriber_id in found:
                member = self._members.get(subscriber_id)
                if member is None:
                    member = Membership(subscriber_id, shared)
                    member.reload()
                    with shared.condition:
                        self._members[subscriber_id] = member
                    shared.observer.event("quiver.subscriber.found", subscriber=subscriber_id)
                elif member.file is None:
                    member.reload()
            for member in self.listed():
                if member.file is None and member.id not in found:
                    with shared.condition:
                        self._forget(member)
                    shared.observer.event("quiver.subscriber.removed", subscriber=member.id)

    # ── going ────────────────────────────────────────────────────────────────────────────────────────

    def unregister(self, subscriber_id: str) -> int:
        """Remove a subscriber for good; see `Registry.unregister`."""
        return self._remove(subscriber_id, reason="unregistered")

    def drop_orphan(self, subscriber_id: str) -> int:
        """Remove an orphan for good; see `Registry.drop_orphan`."""
        with self._shared.condition:
            self.require_open()
            self.find(subscriber_id)
            if not self._is_active:
                raise UsageError("the registration phase has not ended: activate() first, then it shows who is missing")
        return self._remove(subscriber_id, reason="orphan", only_orphan=True)

    def drop_old_orphans(self) -> list[str]:
        """
        Drop the orphans that are older than is allowed; return who that was.

        The age counts on a clock that never steps, from the end of the registration phase or the last sign of life,
        so it begins again when the store is opened: too late is harmless, too early is loss.

        Raises:
            OSError: the disk refused.
        """
        if self._orphan_age_s is None or not self._is_active:
            return []
        oldest_s = self._shared.clock.monotonic() - self._orphan_age_s
        with self._shared.condition:
            old = [
                member
                for member in self._members.values()
                if not member.is_registered and member.file is None and member.idle_since_s <= oldest_s
            ]
        dropped: list[str] = []
        for member in old:
            try:
                self._remove(member.id, reason="orphan", only_orphan=True)
            except DirectoryInUseError:
                with self._shared.condition:
                    member.idle_since_s = self._shared.clock.monotonic()
            except UsageError:
                continue  # removed, or registered, since we looked
            else:
                dropped.append(member.id)
        return dropped

    def _remove(self, subscriber_id: str, *, reason: str, only_orphan: bool = False) -> int:
        shared = self._shared
        self.require_place()
        with shared.files_lock:
            with shared.condition:
                self.require_open()
                member = self.find(subscriber_id)
                if only_orphan and member.is_registered:
                    raise UsageError(
                        f"subscriber {subscriber_id!r} is registered, so no orphan; unregister() removes it"
                    )
            owned = member.file
            lock = None if owned else progress_store.lock_subscriber(shared.fs, shared.root, subscriber_id)
            try:
                if owned is None:
                    member.reload()  # its last owner may have said more since
                progress_store.delete(shared.fs, shared.root, subscriber_id)
            finally:
                if lock is not None:
                    lock.release()
            with shared.condition:
                pending = 0
                for segment, left in member.state.pending_of(shared.segments):
                    pending += left
                    shared.audit_dropped(subscriber_id, member.state, segment, reason=reason)
                self._forget(member)
            if owned is not None:
                owned.release()
            member.tell_acked()
            shared.count_dropped(subscriber_id, pending, reason=reason)
            if shared.audit is not None:
                shared.audit.write()
        shared.observer.event(
            "quiver.subscriber.unregister", subscriber=subscriber_id, reason=reason, dropped_bundles=pending
        )
        return pending

    def _forget(self, member: Membership) -> None:
        self._members.pop(member.id, None)
        member.gone = True
        member.queue = None
        member.file = None
        self._shared.condition.notify_all()

    def close(self) -> None:
        """Let go of all locks and wake everybody who waits. Idempotent."""
        shared = self._shared
        with shared.files_lock:
            with shared.condition:
                self.is_closed = True
                shared.condition.notify_all()
            for member in self.listed():
                if member.file is not None:
                    member.file.release()
