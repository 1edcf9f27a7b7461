"""
A topic as the source of a pipeline: export requests are read from it, stored, and confirmed to its subscription.

A request is confirmed only after it is synced here, so nothing is lost in between. Requests that were stored but not
confirmed when the process dies are stored again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiver.observe import Observer
    from quiver.store.store import Store

import logging
from collections.abc import Iterator

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import QuiverError
from quiver.observe import Observer
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.scan import Damage
from quiver.primitives.worker import Worker
from quiver.receivers.intake import OtlpIntake
from quiver.receivers.polled_settings import TopicReceiverSettings
from quiver.receivers.settings import OtlpSettings
from quiver.store.store import Store
from quiver.topics.format.message import SIGNAL_ATTRIBUTE, Message, MessageCodec
from quiver.topics.reading.file_reader import LostRange, TopicFileReader
from quiver.topics.reading.progress import TopicProgress

__all__ = ["TopicReceiver", "TopicReceiverSettings"]

_CONFIRM_MESSAGES = 1000
_RETRY_S = 1.0
_SIGNALS = frozenset({"logs", "traces", "metrics"})

_log = logging.getLogger("quiver.pipeline")


class TopicReceiver:
    """
    Reads one topic into one store, in its own thread.

    Args:
        store: the destination of requests.
        settings: the topic and the subscription.
        observer: counts requests by signal and outcome.
        clock: used to wait.
    """

    def __init__(
        self, store: Store, settings: TopicReceiverSettings, *, observer: Observer, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.settings = settings
        self._store = store
        # Synced before each confirmation, not with each request.
        self._intake = OtlpIntake(store, OtlpSettings(ack="logged"), observer=observer)
        self._observer = observer
        self._reader = TopicFileReader(settings.place, settings.topic)
        self._progress = TopicProgress(REAL_FILES, settings.directory, settings.subscription)
        self._decode = MessageCodec(settings.topic).decode
        self._reported = ""
        self._worker = Worker(
            f"quiver-topic-receiver {settings.topic}", self._turn, every=settings.poll_interval_s,
            on_death=store.internals.poison, clock=clock, observer=observer,
        )  # fmt: skip

    def start(self) -> None:
        """Start to read. Waits for a topic that does not exist yet."""
        self._worker.wake()
        self._worker.start()

    def stop(self, grace_s: float) -> None:
        """Store and confirm the current messages, and stop, in about *grace_s* seconds."""
        self._worker.stop(grace_s)
        self._progress.release()

    def take(self) -> int:
        """
        Store the available messages of the topic, and confirm them. Return their number. The thread repeats this.

        Raises:
            QuiverError, OSError: nothing more was confirmed; the next call continues from there.
        """
        tip = self._reader.next_offset(durable=True)
        found = self._progress.position()
        if found is None:
            found = self._progress.start_at(tip if self.settings.start == "latest" else self._reader.start_offset())
        position = began = confirmed = found
        for next_position, message in self._messages(position, tip):
            if message is not None and not self._store_one(message):
                break
            position = next_position
            if position - confirmed >= _CONFIRM_MESSAGES:
                confirmed = self._confirm(position)
            if self._worker.is_stopping:
                break
        if position > confirmed:
            self._confirm(position)
        return position - began

    def _messages(self, start: int, stop: int) -> Iterator[tuple[int, Message | None]]:
        """Yield each message with the offset after it; None for a lost message, which is logged."""
        for one in self._reader.read(start, stop):
            if isinstance(one, LostRange):
                _log.error("%s", one.error())
                yield one.after, None
                continue
            for at, body in enumerate(one.bodies, one.first):
                message = self._decode(body)
                if isinstance(message, Damage):
                    _log.error("%s: message %d cannot be read: %s", self.settings.listening_addr, at, message.reason)
                    yield at + 1, None
                else:
                    yield at + 1, message

    def _store_one(self, message: Message) -> bool:
        """Store *message*, or skip it if it can never be stored. Return False if stopped while the store was full."""
        signal = message.attributes.get(SIGNAL_ATTRIBUTE, self.settings.signal)
        if signal not in _SIGNALS:
            self._observer.count("quiver.receiver.requests_total", signal="unknown", outcome="invalid")
            _log.warning(
                "%s: message %d does not specify its signal, skipped", self.settings.listening_addr, message.offset
            )
            return True
        while True:
            verdict = self._intake.accept(signal, message.payload)
            if verdict.confirmed:
                return True
            if verdict.outcome in {"invalid", "too_large"}:
                _log.warning(
                    "%s: message %d skipped: %s", self.settings.listening_addr, message.offset, verdict.message
                )
                return True
            if self._worker.pause(verdict.retry_after_s or _RETRY_S):
                return False

    def _confirm(self, position: int) -> int:
        self._store.sync()
        self._progress.confirm(position)
        return position

    def _turn(self) -> float | None:
        try:
            self.take()
        except (QuiverError, OSError) as error:
            # The topic may appear later, or disk space may be freed: only stored messages are confirmed.
            if str(error) != self._reported:
                self._reported = str(error)
                _log.warning("waiting for %s: %s", self.settings.listening_addr, error)
            return max(_RETRY_S, self.settings.poll_interval_s)
        self._reported = ""
        return None
