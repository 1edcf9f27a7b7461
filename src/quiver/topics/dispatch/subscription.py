"""
A subscription: one cursor, a window of messages under way, and consumers that come and go.

::

    reader ─▶ ready ─▶ in flight ─▶ acked ─▶ saved, every so often, and never ahead of what the log has synced
                ▲          │ nack, time-out, consumer gone
                └── later ◀┘ ─▶ dead letter, after too many times

At least once: a message is delivered until it is acknowledged, also across restarts of either side. Messages of one key
stay in order and with one consumer in a key-shared subscription; exclusive and failover deliver in order to the one
active consumer; redelivery comes late wherever it happens.

Two locks. `_lock` guards everything here. `_bell` only wakes those who wait: the log rings it while it holds its own
lock, so nobody asks the log anything while holding the bell.
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
from quiver.observe import Observer
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import Lock
from quiver.topics.dispatch.consumer import Consumer, Delivery
from quiver.topics.dispatch.saved import SubscriptionFiles
from quiver.topics.dispatch.state import Confirmed
from quiver.topics.engine import Start, TopicEngine
from quiver.topics.format.message import Message
from quiver.topics.format.subscription import SavedSubscription, SubscriptionKind
from quiver.topics.settings import SubscriptionSettings

__all__ = ["DeadLetter", "Subscription"]

_AHEAD_OF_WINDOW = 16
_WAIT_S_MAX = 3600.0
"""Then it looks again: a condition takes no delay of centuries, and a caller may."""


class DeadLetter(Protocol):
    """Keeps a message that nobody could handle; durable on return."""

    def __call__(self, message: Message, *, subscription: str, attempts: int) -> None:
        """Keep *message*, which *subscription* delivered *attempts* times."""


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
        saved: where it stands.
        settings: see `SubscriptionSettings`.
        keep: where progress is kept; None for a topic that keeps none, whose messages are confirmed by delivery.
        lock: says that this is the one user of it; released when it is closed.
        dead_letter: takes messages that were refused too often.
        clock, observer: time, and where counts go.
    """

    def __init__(
        self,
        log: TopicEngine,
        saved: SavedSubscription,
        *,
        settings: SubscriptionSettings,
        keep: SubscriptionFiles | None,
        lock: Lock | None,
        dead_letter: DeadLetter,
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
        self._bell = threading.Condition()
        self._rung = 0
        self._armed = False
        self._closed = False
        self._consumers: list[Consumer] = []
        self._generation = 0
        self._stand_at(saved.next_offset, saved)

    def _stand_at(self, offset: int, saved: SavedSubscription | None = None) -> None:
        self._confirmed = Confirmed(offset, saved.acked if saved is not None else ())
        self._attempts: dict[int, int] = dict(saved.attempts) if saved is not None else {}
        self._reader = self._log.reader(offset, on_lost="skip")
        self._noted_lost = 0
        self._ready: deque[Message] = deque()
        self._flights: dict[int, _Flight] = {}
        self._later: list[tuple[float, int, Message]] = []
        self._waiting: dict[int, float] = {}  # offset → when it is due: what counts of `_later`
        self._holders: dict[str, list[tuple[int, Consumer]]] = {}
        self._saved_offset = offset
        self._unsaved_since_s: float | None = None
        self._generation += 1

    # ── consumers ────────────────────────────────────────────────────────────────────────────────────────

    def consumer(self, name: str) -> Consumer:
        """
        Add a consumer.

        Raises:
            DirectoryInUseError: the subscription is exclusive and somebody is there.
            UsageError: somebody of that name is there.
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
        self._ring()
        return consumer

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer; what it did not answer goes to others at once. Idempotent."""
        with self._lock:
            if consumer not in self._consumers:
                return
            self._consumers.remove(consumer)
            now = self._clock.monotonic()
            for offset, flight in sorted(self._flights.items()):
                if flight.consumer is consumer:
                    self._deliver_later(offset, now)
        self._ring()

    def is_active(self, consumer: Consumer) -> bool:
        """Say whether *consumer* gets messages at all, as of now."""
        with self._lock:
            if consumer not in self._consumers:
                return False
            return self.kind != "failover" or self._consumers[0] is consumer

    @property
    def consumers(self) -> tuple[str, ...]:
        """The names of those who are there, in the order in which they came."""
        return tuple(one.name for one in self._consumers)

    # ── delivering ───────────────────────────────────────────────────────────────────────────────────────

    def receive(self, consumer: Consumer, timeout: float | None) -> Delivery | None:
        """
        Return the next message for *consumer*; None when there is none within *timeout* seconds.

        Raises:
            StoreClosedError: consumer, subscription or topic were closed.
            StoreFailedError: the topic's disk failed.
            TransientError: the object store cannot be reached.
        """
        deadline_s = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            with self._bell:
                seen = self._rung
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
            with self._bell:
                if self._rung == seen:
                    self._clock.wait(self._bell, None if until is None else min(max(0.0, until - now), _WAIT_S_MAX))

    def _next_for(self, consumer: Consumer) -> Delivery | None:
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
        return Delivery(message, attempt, self._generation, self._answer)

    def _due_for(self, consumer: Consumer) -> Message | None:
        """Take the message that is due again the longest, if it is this consumer's."""
        now = self._clock.monotonic()
        passed: list[tuple[float, int, Message]] = []
        found: Message | None = None
        while self._later and self._later[0][0] <= now and found is None:
            entry = heapq.heappop(self._later)
            due_s, offset, message = entry
            if self._waiting.get(offset) != due_s:
                continue  # acknowledged late, or due at another time by now
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
                    self._ring()  # there is room to read ahead again, perhaps for another consumer
                del self._ready[at]
                return message
        return None

    def _read_ahead(self) -> None:
        window = self._settings.max_unacked_messages
        # Beyond this nothing is read while one message stays unanswered: what is confirmed above it must fit in memory.
        far = self._confirmed.next_offset + max(window * _AHEAD_OF_WINDOW, 1024)
        wanted = 1 if self.kind != "key_shared" else window
        while len(self._ready) < wanted and self._reader.offset < far:
            found = self._reader.poll(window)
            self._note_lost()
            if not found:
                # Only here is the log waited for: everything else that a consumer may wait for is an answer, and rings.
                if not self._reader.is_over():
                    self._arm()
                return
            self._ready.extend(one for one in found if one.offset not in self._confirmed)

    def _note_lost(self) -> None:
        for first, behind in self._reader.lost[self._noted_lost :]:
            self._noted_lost += 1
            self._confirmed.pass_over(first, behind)
            self._observer.count("danube_subscription_lost_total", behind - first, subscription=self.name)

    def _may_have(self, consumer: Consumer, message: Message) -> bool:
        if self.kind != "key_shared":
            return True
        key = _key_of(message)
        holders = self._holders.get(key)
        if holders and holders[0][1] in self._consumers:
            return holders[0][1] is consumer
        # The highest of all scores: when a consumer comes or goes, only its own keys move.
        return max(self._consumers, key=lambda one: (crc32(f"{one.name}\0{key}".encode()), one.name)) is consumer

    # ── answers ──────────────────────────────────────────────────────────────────────────────────────────

    def _answer(self, delivery: Delivery, delay_s: float | None, done: bool) -> None:  # noqa: FBT001
        with self._lock:
            self._require_open()
            offset = delivery.offset
            if delivery.generation != self._generation or offset in self._confirmed:
                return
            if done:
                self._confirm(offset)
            else:
                flight = self._flights.get(offset)
                # One that has timed out says nothing about the delivery that another consumer has now.
                if flight is not None and flight.attempt == delivery.attempt:
                    self._refused(offset, delay_s)
            self._ring()  # before anything can fail: there is room for others now
            self._save_if_due()

    def _confirm(self, offset: int) -> None:
        self._land(offset)
        self._waiting.pop(offset, None)
        self._attempts.pop(offset, None)
        self._confirmed.ack(offset)
        if self._unsaved_since_s is None:
            self._unsaved_since_s = self._clock.monotonic()

    def _refused(self, offset: int, delay_s: float | None) -> None:
        flight = self._flights[offset]
        most = self._settings.max_redelivery_count
        if most is not None and flight.attempt > most and self._is_buried(flight):
            self._confirm(offset)
            return
        wait_s = self._settings.redelivery_delay_seconds if delay_s is None else max(0.0, delay_s)
        self._deliver_later(offset, self._clock.monotonic() + wait_s)

    def _is_buried(self, flight: _Flight) -> bool:
        try:
            self._dead_letter(flight.message, subscription=self.name, attempts=flight.attempt)
        except (QuiverError, OSError) as error:
            # One message that nobody can keep must not stop all others: it is delivered again, and tried again then.
            self._observer.event(
                "danube.subscription.dead_letter_failed", level=logging.ERROR, subscription=self.name,
                topic=self._log.topic, offset=flight.message.offset, problem=str(error),
            )  # fmt: skip
            return False
        self._observer.count("danube_subscription_dlq_total", 1, subscription=self.name)
        return True

    def _deliver_later(self, offset: int, due_s: float) -> None:
        message = self._flights[offset].message
        self._land(offset)
        self._waiting[offset] = due_s
        heapq.heappush(self._later, (due_s, offset, message))
        self._observer.count("danube_subscription_redelivery_total", 1, subscription=self.name)

    def _land(self, offset: int) -> None:
        flight = self._flights.pop(offset, None)
        if flight is None or self.kind != "key_shared":
            return
        key = _key_of(flight.message)
        left = [one for one in self._holders.get(key, ()) if one[0] != offset]
        if left:
            self._holders[key] = left
        else:
            self._holders.pop(key, None)

    def _late(self) -> list[int]:
        now = self._clock.monotonic()
        late = []
        for offset, flight in self._flights.items():  # in the order in which they were handed out, all for as long
            if flight.deadline_s is None or flight.deadline_s > now:
                break
            late.append(offset)
        return sorted(late)

    def _expire(self) -> None:
        for offset in self._late():
            self._observer.count("danube_subscription_ack_timeout_total", 1, subscription=self.name)
            self._refused(offset, 0.0)

    def _next_due_s(self) -> float | None:
        # What is due already and was not taken belongs to another consumer: nothing to wake up for.
        now = self._clock.monotonic()
        times = [flight.deadline_s for flight in self._flights.values() if flight.deadline_s is not None]
        return min((due_s for due_s in [*times, *self._waiting.values()] if due_s > now), default=None)

    # ── waking ───────────────────────────────────────────────────────────────────────────────────────────

    def _arm(self) -> None:
        if self._armed:
            return
        self._armed = True
        self._reader.call_when_more(self._more_arrived)

    def _more_arrived(self) -> None:
        self._armed = False
        self._ring()

    def _ring(self) -> None:
        with self._bell:
            self._rung += 1
            self._bell.notify_all()

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def next_offset(self) -> int:
        """The offset below which everything is confirmed."""
        return self._confirmed.next_offset

    @property
    def topic(self) -> str:
        """Whose messages it delivers."""
        return self._log.topic

    @property
    def lag_messages(self) -> int:
        """How many messages of the topic are not confirmed, with all above the first such one. Waits for nobody."""
        return max(0, self._log.current_offset() - self._confirmed.next_offset)

    def stats(self) -> Mapping[str, int]:
        """Return figures of this moment."""
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
        Wake who waits for what was not answered in time, and save progress that would be too old in *within_s* seconds.

        Never waits for a consumer: one that reads from the object store may be in there for minutes, and the caller has
        other topics to sync. The next call, or the consumer's next answer, does it then. For the same reason dead
        letters are left to the consumers: the topic of theirs may have to be opened.

        Raises:
            StoreFailedError: the topic's disk failed.
            OSError: progress could not be saved; what was saved before stands.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._closed:
                return
            if self._late():
                self._ring()
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
        Make what was acknowledged durable: it is not delivered again after this.

        Raises:
            StoreFailedError: the topic's disk failed.
            OSError: it could not be saved; what was saved before stands.
        """
        with self._lock:
            if self._keep is None:
                return
            state = self._confirmed
            ranges = state.ranges()
            highest = max(state.next_offset, ranges[-1][1] if ranges else 0)
            # 1. Confirmed and saved. 2. The power goes, and with it the message, which was not synced. 3. Its offset is
            # given to another message, which would count as confirmed.
            if highest > self._log.durable_offset():
                self._log.flush()
            self._keep.save(SavedSubscription(self.name, self.kind, state.next_offset, ranges, dict(self._attempts)))
            self._saved_offset = state.next_offset
            self._unsaved_since_s = None

    def seek(self, start: Start) -> int:
        """
        Go on from *start*, back or forward, durably; what is under way no longer counts. Return the offset.

        Raises:
            UsageError: no such start.
        """
        with self._lock:
            self._require_open()
            offset = self._log.resolve(start, stored=True)
            self._reader.close()
            self._stand_at(offset)
            self.save()
        self._ring()
        return offset

    @property
    def closed(self) -> bool:
        """Say whether it was closed."""
        return self._closed

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"subscription {self.name} was closed")

    def close(self) -> None:
        """
        Save progress and let go; whoever waits is told. Idempotent.

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
                self._ring()


def _key_of(message: Message) -> str:
    key = message.key
    return f"\0{message.offset}" if key is None else key
