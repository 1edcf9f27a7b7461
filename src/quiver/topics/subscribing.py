"""The subscriptions of a directory's topics: create, list, seek and remove them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import get_args

from quiver.clock import Clock
from quiver.errors import UsageError
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.forked import refuse_in_children
from quiver.topics.cold.port import ColdTier
from quiver.topics.dispatch.saved import SubscriptionFiles
from quiver.topics.dispatch.subscription import DeadLetterWriter, Subscription
from quiver.topics.engine import Start, TopicEngine
from quiver.topics.format.message import Message
from quiver.topics.format.names import (
    CHECKPOINT_SUBSCRIPTION,
    DEAD_LETTER_SUFFIX,
    check_subscription,
    check_topic,
)
from quiver.topics.format.subscription import SavedSubscription, SubscriptionKind
from quiver.topics.log import OpenTopic, TopicLog
from quiver.topics.settings import SubscriptionSettings, TopicSettings

__all__ = ["TopicSubscriptions"]


_REASON_CHARACTERS_MAX = 1000
"""More of a reason is cut off: a dead letter must not be refused because it is too large."""


class TopicSubscriptions(ABC):
    """A base of `TopicStore`, which sets the attributes declared here and opens topics."""

    root: str | None
    settings: TopicSettings
    _fs: FileSystem
    _clock: Clock
    _observer: Observer
    _guard: threading.Lock
    _open: dict[str, OpenTopic]
    _cold: ColdTier | None

    def __init__(self) -> None:
        self._subscribing = threading.Lock()
        self._subscriptions: dict[tuple[str, str], Subscription] = {}

    @abstractmethod
    def topic(self, name: str, *, reliable: bool = True) -> TopicLog:
        """Return the log of a topic; see `TopicStore.topic`."""

    @abstractmethod
    def _topic_now(self, name: str, *, reliable: bool = True) -> OpenTopic:
        pass

    @abstractmethod
    def _topic(self, name: str, *, reliable: bool = True) -> OpenTopic:
        pass

    def _directory_of(self, topic: str) -> str | None:
        return None if self.root is None else f"{self.root}/{topic}"

    def _any_topic(self, name: str) -> OpenTopic:
        return self._open.get(check_topic(name)) or self._topic(name)

    def _existing(self, name: str) -> OpenTopic:
        topic = check_topic(name)
        directory = self._directory_of(topic)
        is_here = topic in self._open or (directory is not None and self._fs.exists(directory))
        if not is_here and (self._cold is None or not self._cold.knows(topic)):
            where = "in memory" if self.root is None else f"below {self.root}"
            raise UsageError(
                f"there is no topic {topic} {where}{'' if self._cold is None else ', nor in the metadata'}"
            )
        return self._any_topic(topic)

    def subscribe(
        self,
        topic: str,
        subscription: str,
        *,
        kind: SubscriptionKind = "shared",
        start: Start = "latest",
        settings: SubscriptionSettings | None = None,
    ) -> Subscription:
        """
        Return a subscription, created at *start* if there is none; its position is durable on return.

        An existing subscription continues at its position and ignores *start*; `seek` moves it.

        Raises:
            UsageError: the name, *start* or *kind* is not valid, or it is open as another kind.
            DirectoryInUseError: a streaming query or a pipeline uses this subscription.
            CorruptionError: its file is damaged.
            StoreClosedError: the store was closed.
        """
        log = self._any_topic(topic).engine
        name = check_subscription(subscription)
        if kind not in get_args(SubscriptionKind):
            raise UsageError(f"{kind!r} is not a kind of subscription: use {', '.join(get_args(SubscriptionKind))}")
        with self._subscribing:
            found = self._subscriptions.get((log.topic, name))
            if found is not None and not found.closed:
                if found.kind != kind:
                    raise UsageError(f"subscription {name} of {log.topic} is open as {found.kind}, not {kind}")
                return found
            keep = self._subscription_files(log)
            lock = keep.hold(name, owner="topics", clock=self._clock) if keep is not None else None
            try:
                saved = self._saved(log, name, kind, start, keep)
                chosen = settings or self.settings.of(log.topic, has_objects=True).subscriptions
                made = Subscription(
                    log, saved, settings=chosen, keep=keep, lock=lock,
                    dead_letter=self._dead_letter_of(log.topic), clock=self._clock, observer=self._observer,
                )  # fmt: skip
            except BaseException:
                if lock is not None:
                    lock.release()
                raise
            refuse_in_children(made, f"the subscription {name} of {log.topic}", silent=("close", "leave"))
            with self._guard:
                self._subscriptions[log.topic, name] = made
            return made

    def _saved(
        self, log: TopicEngine, name: str, kind: SubscriptionKind, start: Start, keep: SubscriptionFiles | None
    ) -> SavedSubscription:
        saved = keep.load(name) if keep is not None else None
        if saved is not None and saved.kind == kind:
            return saved
        offset = log.resolve(start, stored=True) if saved is None else saved.next_offset
        saved = SavedSubscription(name, kind, offset, saved.acked if saved is not None else ())
        if keep is not None:
            if offset > log.durable_offset():
                log.flush()
            keep.save(saved)
        return saved

    def seek(self, topic: str, subscription: str, start: Start) -> int:
        """
        Move a subscription to *start*, back or forward, whether it is open here or not; return that offset.

        It is durable on return. Answers to deliveries made before are ignored.

        Raises:
            UsageError: the subscription does not exist, *start* is not valid, or the topic stores no progress.
            DirectoryInUseError: a streaming query or a pipeline uses this subscription.
            CorruptionError: its file is damaged.
        """
        log = self._existing(topic).engine
        name = check_subscription(subscription)
        with self._subscribing:
            with self._guard:
                found = self._subscriptions.get((log.topic, name))
            if found is None or found.closed:
                return self._seek_saved(log, name, start)
        # Outside the lock: a consumer that reads from the object store may hold its subscription for minutes.
        return found.seek(start)

    def _seek_saved(self, log: TopicEngine, name: str, start: Start) -> int:
        keep = self._subscription_files(log)
        if keep is None:
            raise UsageError(f"{log.topic} is in memory only: its subscriptions are not stored")
        lock = keep.hold(name, owner="topics", clock=self._clock)
        try:
            saved = keep.load(name)
            if saved is None:
                raise UsageError(f"{log.topic} has no subscription {name}; it has {', '.join(keep.names()) or 'none'}")
            offset = log.resolve(start, stored=True)
            if offset > log.durable_offset():
                log.flush()
            keep.save(SavedSubscription(name, saved.kind, offset))
            return offset
        finally:
            lock.release()

    def unsubscribe(self, topic: str, subscription: str) -> bool:
        """
        Remove a subscription and its position; return whether it existed. Durable on return.

        Raises:
            UsageError: the name is not valid, or the topic does not exist.
            DirectoryInUseError: a streaming query or a pipeline uses this subscription.
        """
        log = self._existing(topic).engine
        name = check_subscription(subscription, internal=True)
        with self._subscribing:
            with self._guard:
                found = self._subscriptions.pop((log.topic, name), None)
            if found is not None:
                found.close()
            keep = self._subscription_files(log)
            if keep is None:
                return found is not None
            was_kept = name in keep.names()
            lock = keep.hold(name, owner="topics", clock=self._clock)
            try:
                keep.remove(name)
            finally:
                lock.release()
            return was_kept

    def subscriptions(self, topic: str) -> list[str]:
        """Return the names of the subscriptions of a topic."""
        log = self._any_topic(topic).engine
        keep = self._subscription_files(log)
        with self._guard:
            open_now = {name for of, name in self._subscriptions if of == log.topic}
        return sorted(open_now | set(keep.names() if keep is not None else ()))

    def confirmed_offset(self, topic: str) -> int | None:
        """
        Return the offset below which every reliable subscription has durably confirmed everything; None without any.

        The offset of `ack_checkpoint` counts as a subscription.
        """
        directory = self._directory_of(check_topic(topic))
        return None if directory is None else SubscriptionFiles(self._fs, directory).confirmed()

    def ack_checkpoint(self, topic: str, up_to_offset: int) -> None:
        """
        Record durably that the application has processed everything up to and including *up_to_offset*.

        Raises:
            UsageError: nothing was appended there yet.
        """
        log = self._any_topic(topic).engine
        keep = self._subscription_files(log)
        if not -1 <= up_to_offset < log.current_offset():
            raise UsageError(f"{log.topic} has nothing at {up_to_offset} to acknowledge")
        if keep is None:
            return
        with self._subscribing:
            before = keep.load(CHECKPOINT_SUBSCRIPTION)
            if before is None or before.next_offset <= up_to_offset:
                log.flush()
                keep.save(SavedSubscription(CHECKPOINT_SUBSCRIPTION, "exclusive", up_to_offset + 1))

    def _subscription_files(self, log: TopicEngine) -> SubscriptionFiles | None:
        return None if log.wal.directory is None else SubscriptionFiles(self._fs, log.wal.directory)

    def _dead_letter_of(self, topic: str) -> DeadLetterWriter:
        def keep(message: Message, *, subscription: str, attempts: int, reason: str) -> None:
            attributes = {
                **message.attributes,
                "x-original-topic": f"/{topic}",
                "x-original-subscription": subscription,
                "x-original-topic-offset": str(message.offset),
                "x-delivery-attempt": str(attempts),
            }
            if reason:
                attributes["x-rejection-reason"] = reason[:_REASON_CHARACTERS_MAX]
            dead = self._topic_now(f"{topic}{DEAD_LETTER_SUFFIX}").log
            dead.append(message.payload, attributes=attributes, publish_time_ns=message.publish_time_ns, durable=True)

        return keep

    def _open_subscriptions(self, topic: str | None = None) -> list[Subscription]:
        with self._guard:  # not `_subscribing`, which is held while a new subscription may read objects
            found = list(self._subscriptions.items())
        return [one for (of, _), one in found if not one.closed and topic in {None, of}]
