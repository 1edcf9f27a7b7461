"""
A subscription: a position, a window of unacknowledged messages, and consumers that join and leave.

::

    reader ─▶ ready ─▶ in flight ─▶ acked ─▶ saved periodically, and never ahead of what the log has synced
                ▲          │ nack, timeout, consumer left
                └── later ◀┘ ─▶ dead letter, after too many attempts

Delivery is at least once: a message is delivered until it is acknowledged, also across restarts of either side. In a
key-shared subscription, messages with the same key stay in order and with one consumer. Exclusive and failover
subscriptions deliver in order to the one active consumer. Redelivered messages arrive out of order.

There are two locks. `_lock` guards all state. `_wakeup` only wakes waiting consumers: the log notifies it while holding
its own lock, so code that holds `_wakeup` must not call the log.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from quiver.clock import Clock
from quiver.errors import DirectoryInUseError, QuiverError, StoreClosedError, UsageError
from quiver.invariant import invariant
from quiver.observe import Observer
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import Lock
from quiver.topics.dispatch.consumer import Consumer, MessageDecision, ReceivedMessage
from quiver.topics.dispatch.saved import SubscriptionFiles
from quiver.topics.dispatch.state import Confirmed
from quiver.topics.engine import Start, TopicEngine
from quiver.topics.format.message import Message
from quiver.topics.format.subscription import SavedSubscription, SubscriptionKind
from quiver.topics.settings import SubscriptionSettings

__all__ = ["DeadLetterWriter", "Subscription"]

_AHEAD_OF_WINDOW = 16
_WAIT_S_MAX = 3600.0
"""Longest single wait: a condition accepts no timeout of centuries, but a caller may pass one."""


class DeadLetterWriter(Protocol):
    """Stores a message that no consumer could process; durable on return."""

    def __call__(self, message: Message, *, subscription: str, attempts: int, reason: str) -> None:
        """Store *message*, which *subscription* delivered *attempts* times; *reason* is empty if there is none."""


@dataclass(slots=True)
class _Flight:
    message: Message
    consumer: Consumer
    attempt: int
    deadline_s: float | None


class Subscription:
    """
    One subscription of one topic. Thread-safe.

    Args:
        log: the topic.
        saved: its position.
        settings: see `SubscriptionSettings`.
        keep: stores progress; None for a topic that stores none, whose messages are confirmed by delivery.
        lock: ensures that the subscription has only one user; released when it is closed.
        dead_letter: stores messages that were rejected, or refused too often.
        clock, observer: time, and where counts and events are sent.
    """

    def __init__(
        self,
        log: TopicEngine,
        saved: SavedSubscription,
        *,
        settings: SubscriptionSettings,
        keep: SubscriptionFiles | None,
        lock: Lock | None,
        dead_letter: DeadLetterWriter,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self.name = saved.name
        self.kind: SubscriptionKind = saved.kind
        self._log = log
        self._settings = settings
        self._keep = keep
        self._user_lock = lock
        self._dead_letter = dead_letter
        self._clock = clock
        self._observer = observer
        self._lock = threading.RLock()
        self._wakeup = threading.Condition()
        self._wakeups = 0
        self._armed = False
        self._closed = False
        self._consumers: list[Consumer] = []
        self._generation = 0
        self._reset_to(saved.next_offset, saved)

    def _reset_to(self, offset: int, saved: SavedSubscription | None = None) -> None:
        self._confirmed = Confirmed(offset, saved.acked if saved is not None else ())
        self._attempts: dict[int, int] = dict(saved.attempts) if saved is not None else {}
        self._reader = self._log.reader(offset, on_lost="skip")
        self._recorded_lost = 0
        self._ready: deque[Message] = deque()
        self._flights: dict[int, _Flight] = {}
        self._later: list[tuple[float, int, Message]] = []
        self._waiting: dict[int, float] = {}  # offset → when it is due; an entry of `_later` without it is obsolete
        self._holders: dict[str, list[tuple[int, Consumer]]] = {}
        self._saved_offset = offset
        self._unsaved_since_s: float | None = None
        self._generation += 1

    # ── consumers ────────────────────────────────────────────────────────────────────────────────────────

    def consumer(self, name: str) -> Consumer:
        """
        Add a consumer.

        Raises:
            DirectoryInUseError: the subscription is exclusive and has a consumer.
            UsageError: it already has a consumer with this name.
            StoreClosedError: the subscription was closed.
        """
        with self._lock:
            self._require_open()
            if self.kind == "exclusive" and self._consumers:
                raise DirectoryInUseError(f"exclusive subscription {self.name}", self._consumers[0].name)
            if any(one.name == name for one in self._consumers):
                raise UsageError(f"subscription {self.name} has a consumer {name!r} already")
            consumer = Consumer(self, name)
            self._consumers.append(consumer)
        self._wake()
        return consumer

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer; its unacknowledged messages are delivered to others immediately. Idempotent."""
        with self._lock:
            if consumer not in self._consumers:
                return
            self._consumers.remove(consumer)
            now = self._clock.monotonic()
            for offset, flight in sorted(self._flights.items()):
                if flight.consumer is consumer:
                    self._deliver_later(offset, now)
        self._wake()

    def is_active(self, consumer: Consumer) -> bool:
        """Return whether *consumer* gets messages now."""
        with self._lock:
            if consumer not in self._consumers:
                return False
            return self.kind != "failover" or self._consumers[0] is consumer

    @property
    def consumers(self) -> tuple[str, ...]:
        """The names of the current consumers, in the order in which they joined."""
        return tuple(one.name for one in self._consumers)

    # ── delivering ───────────────────────────────────────────────────────────────────────────────────────

    def receive(self, consumer: Consumer, timeout: float | None) -> ReceivedMessage | None:
        """
        Return the next message for *consumer*; None when there is none within *timeout* seconds.

        Raises:
            StoreClosedError: the consumer, the subscription or the topic was closed.
            StoreFailedError: the topic's disk failed.
            TransientError: the object store cannot be reached.
        """
        deadline_s = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            with self._wakeup:
                seen = self._wakeups
            with self._lock:
                self._require_open()
                if consumer not in self._consumers:
                    raise StoreClosedError(f"consumer {consumer.name} of {self.name} was closed")
                self._expire()
                delivery = self._next_for(consumer)
                if delivery is not None:
                    return delivery
                due_s = self._next_due_s()
            now = self._clock.monotonic()
            if deadline_s is not None and now >= deadline_s:
                return None
            until = min((one for one in (deadline_s, due_s) if one is not None), default=None)
            with self._wakeup:
                if self._wakeups == seen:
                    self._clock.wait(self._wakeup, None if until is None else min(max(0.0, until - now), _WAIT_S_MAX))

    def _next_for(self, consumer: Consumer) -> ReceivedMessage | None:
        if self.kind == "failover" and self._consumers[0] is not consumer:
            return None
        message = self._due_for(consumer) or self._ready_for(consumer)
        if message is None:
            if self._reader.is_over() and not self._flights and not self._waiting:
                raise StoreClosedError(f"topic {self._log.topic} was closed")
            return None
        offset = message.offset
        attempt = self._attempts.get(offset, 0) + 1
        if self._keep is None:
            self._confirmed.ack(offset)
        else:
            self._attempts[offset] = attempt
            timeout_s = self._settings.ack_timeout_seconds
            deadline_s = None if timeout_s is None else self._clock.monotonic() + timeout_s
            self._flights[offset] = _Flight(message, consumer, attempt, deadline_s)
            if self.kind == "key_shared":
                self._holders.setdefault(_key_of(message), []).append((offset, consumer))
        return ReceivedMessage(message, attempt, self._generation, self._answer)

    def _due_for(self, consumer: Consumer) -> Message | None:
        """Take the message that has been due longest, if it may be delivered to this consumer."""
        now = self._clock.monotonic()
        passed: list[tuple[float, int, Message]] = []
        found: Message | None = None
        while self._later and self._later[0][0] <= now and found is None:
            entry = heapq.heappop(self._later)
            due_s, offset, message = entry
            if self._waiting.get(offset) != due_s:
                continue  # acknowledged late, or rescheduled
            if self._may_have(consumer, message):
                del self._waiting[offset]
                found = message
            else:
                passed.append(entry)
        for entry in passed:
            heapq.heappush(self._later, entry)
        return found

    def _ready_for(self, consumer: Consumer) -> Message | None:
        if len(self._flights) + len(self._waiting) >= self._settings.max_unacked_messages:
            return None
        self._read_ahead()
        if self.kind != "key_shared":
            return self._ready.popleft() if self._ready else None
        blocked = {_key_of(message) for _, offset, message in self._later if offset in self._waiting}
        for at, message in enumerate(self._ready):
            if _key_of(message) not in blocked and self._may_have(consumer, message):
                if len(self._ready) >= self._settings.max_unacked_messages:
                    self._wake()  # there is space to read ahead again, perhaps for another consumer
                del self._ready[at]
                return message
        return None

    def _read_ahead(self) -> None:
        window = self._settings.max_unacked_messages
        # Do not read further while one message stays unacknowledged: confirmed offsets above it must fit in memory.
        far = self._confirmed.next_offset + max(window * _AHEAD_OF_WINDOW, 1024)
        wanted = 1 if self.kind != "key_shared" else window
        while len(self._ready) < wanted and self._reader.offset < far:
            found = self._reader.poll(window)
            self._record_lost()
            if not found:
                # The only wait for the log: everything else that a consumer waits for is an answer, which wakes it.
                if not self._reader.is_over():
                    self._arm()
                return
            self._ready.extend(one for one in found if one.offset not in self._confirmed)

    def _record_lost(self) -> None:
        for first, after in self._reader.lost[self._recorded_lost :]:
            self._recorded_lost += 1
            self._confirmed.skip(first, after)
            self._observer.count("danube_subscription_lost_total", after - first, subscription=self.name)

    def _may_have(self, consumer: Consumer, message: Message) -> bool:
        if self.kind != "key_shared":
            return True
        key = _key_of(message)
        holders = self._holders.get(key)
        if holders and holders[0][1] in self._consumers:
            return holders[0][1] is consumer
        # Rendezvous hashing, highest score: when a consumer joins or leaves, only its own keys move.
        return max(self._consumers, key=lambda one: (crc32(f"{one.name}\0{key}".encode()), one.name)) is consumer

    # ── answers ──────────────────────────────────────────────────────────────────────────────────────────

    def _answer(self, delivery: ReceivedMessage, answer: MessageDecision) -> None:
        with self._lock:
            self._require_open()
            offset = delivery.offset
            if delivery.generation != self._generation or offset in self._confirmed:
                return
            if answer.kind == "ack":
                self._confirm(offset)
            else:
                flight = self._flights.get(offset)
                # A delivery that has timed out must not affect the one that another consumer has now.
                if flight is not None and flight.attempt == delivery.attempt:
                    self._refused(offset, answer)
            self._wake()  # before anything can fail: others may be delivered messages now
            self._save_if_due()

    def _confirm(self, offset: int) -> None:
        self._remove_flight(offset)
        self._waiting.pop(offset, None)
        self._attempts.pop(offset, None)
        self._confirmed.ack(offset)
        if self._unsaved_since_s is None:
            self._unsaved_since_s = self._clock.monotonic()

    def _refused(self, offset: int, answer: MessageDecision) -> None:
        flight = self._flights[offset]
        most = self._settings.max_redelivery_count
        is_final = answer.kind == "reject" or (most is not None and flight.attempt > most)
        if is_final and self._is_dead_letter_stored(flight, answer.reason):
            self._confirm(offset)
            return
        wait_s = self._settings.redelivery_delay_seconds if answer.delay is None else max(0.0, answer.delay)
        self._deliver_later(offset, self._clock.monotonic() + wait_s)

    def _is_dead_letter_stored(self, flight: _Flight, reason: str) -> bool:
        try:
            self._dead_letter(flight.message, subscription=self.name, attempts=flight.attempt, reason=reason)
        except (QuiverError, OSError) as error:
            # A dead letter that cannot be stored must not stop the other messages: this one is redelivered and retried.
            self._observer.event(
                "danube.subscription.dead_letter_failed", level=logging.ERROR, subscription=self.name,
                topic=self._log.topic, offset=flight.message.offset, problem=str(error),
            )  # fmt: skip
            return False
        self._observer.count("danube_subscription_dlq_total", 1, subscription=self.name)
        return True

    def _deliver_later(self, offset: int, due_s: float) -> None:
        message = self._flights[offset].message
        self._remove_flight(offset)
        self._waiting[offset] = due_s
        heapq.heappush(self._later, (due_s, offset, message))
        self._observer.count("danube_subscription_redelivery_total", 1, subscription=self.name)

    def _remove_flight(self, offset: int) -> None:
        flight = self._flights.pop(offset, None)
        if flight is None or self.kind != "key_shared":
            return
        key = _key_of(flight.message)
        left = [one for one in self._holders.get(key, ()) if one[0] != offset]
        if left:
            self._holders[key] = left
        else:
            self._holders.pop(key, None)

    def _timed_out(self) -> list[int]:
        now = self._clock.monotonic()
        late = []
        for offset, flight in self._flights.items():  # in order of delivery, and the timeout is the same for all
            if flight.deadline_s is None or flight.deadline_s > now:
                break
            late.append(offset)
        return sorted(late)

    def _expire(self) -> None:
        for offset in self._timed_out():
            self._observer.count("danube_subscription_ack_timeout_total", 1, subscription=self.name)
            self._refused(offset, MessageDecision("nack", 0.0))

    def _next_due_s(self) -> float | None:
        # A message that is due but was not taken belongs to another consumer: do not wake up for it.
        now = self._clock.monotonic()
        times = [flight.deadline_s for flight in self._flights.values() if flight.deadline_s is not None]
        return min((due_s for due_s in [*times, *self._waiting.values()] if due_s > now), default=None)

    # ── waking ───────────────────────────────────────────────────────────────────────────────────────────

    def _arm(self) -> None:
        if self._armed:
            return
        self._armed = True
        self._reader.call_when_more(self._on_more)

    def _on_more(self) -> None:
        self._armed = False
        self._wake()

    def _wake(self) -> None:
        with self._wakeup:
            self._wakeups += 1
            self._wakeup.notify_all()

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def next_offset(self) -> int:
        """The offset below which everything is confirmed."""
        return self._confirmed.next_offset

    @property
    def topic(self) -> str:
        """The topic whose messages it delivers."""
        return self._log.topic

    @property
    def lag_messages(self) -> int:
        """The number of messages from the first unconfirmed one to the end of the topic. Never blocks."""
        return max(0, self._log.current_offset() - self._confirmed.next_offset)

    def stats(self) -> Mapping[str, int]:
        """Return current figures."""
        with self._lock:
            return {
                "next_offset": self._confirmed.next_offset,
                "lag_messages": self.lag_messages,
                "in_flight": len(self._flights),
                "to_be_redelivered": len(self._waiting),
                "consumers": len(self._consumers),
            }

    def maintain(self, *, within_s: float = 0.0) -> None:
        """
        Wake consumers if deliveries have timed out, and save progress that is due within *within_s* seconds.

        It never waits for a consumer: one that reads from the object store may hold the lock for minutes, and the
        caller has other topics to sync. The next call, or the consumer's next answer, catches up. For the same reason
        consumers store the dead letters: the topic for them may have to be opened.

        Raises:
            StoreFailedError: the topic's disk failed.
            OSError: progress could not be saved; the last saved progress is intact.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._closed:
                return
            if self._timed_out():
                self._wake()
            self._save_if_due(within_s)
        finally:
            self._lock.release()

    def _save_if_due(self, within_s: float = 0.0) -> None:
        since_s = self._unsaved_since_s
        settings = self._settings
        if since_s is not None and (
            self._confirmed.next_offset - self._saved_offset >= settings.progress_min_offset_delta
            or self._clock.monotonic() - since_s >= settings.progress_flush_interval_seconds - within_s
        ):
            self.save()

    def save(self) -> None:
        """
        Make acknowledgements durable: acknowledged messages are not delivered again.

        Raises:
            StoreFailedError: the topic's disk failed.
            OSError: progress could not be saved; the last saved progress is intact.
        """
        with self._lock:
            if self._keep is None:
                return
            state = self._confirmed
            ranges = state.ranges()
            highest = max(state.next_offset, ranges[-1][1] if ranges else 0)
            # 1. An offset is confirmed and saved. 2. Power is lost, and with it the unsynced message. 3. Another
            # message gets this offset, and would count as confirmed.
            if highest > self._log.durable_offset():
                self._log.flush()
            invariant(highest <= self._log.durable_offset(), "progress is saved only for messages that are synced")
            self._keep.save(SavedSubscription(self.name, self.kind, state.next_offset, ranges, dict(self._attempts)))
            self._saved_offset = state.next_offset
            self._unsaved_since_s = None

    def seek(self, start: Start) -> int:
        """
        Continue from *start*, back or forward, durably; answers to earlier deliveries are ignored. Return the offset.

        Raises:
            UsageError: *start* is not valid.
        """
        with self._lock:
            self._require_open()
            offset = self._log.resolve(start, stored=True)
            self._reader.close()
            self._reset_to(offset)
            self.save()
        self._wake()
        return offset

    @property
    def closed(self) -> bool:
        """Whether the subscription was closed."""
        return self._closed

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"subscription {self.name} was closed")

    def close(self) -> None:
        """
        Save progress and close; waiting consumers raise `StoreClosedError`. Idempotent.

        Raises:
            StoreFailedError: the topic's disk failed, and progress was not saved.
            OSError: progress could not be saved.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                if self._unsaved_since_s is not None:
                    self.save()
            finally:
                self._reader.close()
                if self._user_lock is not None:
                    self._user_lock.release()
                self._wake()


def _key_of(message: Message) -> str:
    key = message.key
    return f"\0{message.offset}" if key is None else key
