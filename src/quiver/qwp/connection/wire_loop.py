"""
The thread that drains a slot: connect, send frames, process answers, and reconnect when the connection ends.

::

    walk the hosts ─▶ connected ─▶ send · receive · trim ─▶ lost ─▶ walk the hosts …
         └ time is over, credentials or frame rejected ─▶ halted: the next call of the producer raises

The producer does not notice outages: it can append until the slot is full.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from quiver.clock import Clock
from quiver.errors import StoreFailedError
from quiver.observe import Observer
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Frame
from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDiedError
from quiver.qwp.conf import Address
from quiver.qwp.connection.failover import HostTracker, OutageBackoff
from quiver.qwp.connection.fitting import FrameFitter
from quiver.qwp.connection.session import (
    Accepted,
    Action,
    Category,
    Confirm,
    Drop,
    Halt,
    Policy,
    Reconnect,
    SenderError,
    Session,
    SessionSettings,
    request_headers,
)
from quiver.qwp.connection.transport import (
    Connection,
    ConnectionLostError,
    HandshakeError,
    WakeUp,
    open_connection,
    tls_context,
)
from quiver.qwp.format.dead_letters import DeadLetterRecord
from quiver.qwp.settings import SenderSettings
from quiver.qwp.slots.slot import MemorySlot, Slot
from quiver.qwp.wire.decoder import decode_symbol_delta
from quiver.qwp.wire.message import MESSAGE_HEADER, with_all_symbols

__all__ = ["Counters", "WireLoop"]

_QUEUED_BYTES_MAX = 4 << 20
_IDLE_S = 0.5


@dataclass(slots=True)
class Counters:
    """Event counts since the sender was created."""

    reconnect_attempts: int = 0
    reconnects_succeeded: int = 0
    frames_sent: int = 0
    frames_replayed: int = 0
    server_errors: int = 0
    frames_dropped: int = 0
    dead_letters_dropped: int = 0


class WireLoop:
    """
    Drains one slot, in its own thread (`start`) or in the caller's (`run`).

    Args:
        slot: open, and held by the caller.
        settings: of the sender.
        tracker: the states of the hosts; several loops may share it.
        counters: incremented by this loop.
        on_error: called with every error, from this loop's thread; must not block.
        clock, observer, random: time, events and metrics, and randomness.
        until_drained: end when every frame is confirmed, instead of waiting for more.
        gives_way: also end if no host answers, instead of waiting until one does.

    Attributes:
        halted: the final error; None while the loop may continue.
        batch_bytes_max: the latest message limit that the server announced; 0 if there is none.
    """

    def __init__(
        self,
        slot: Slot | MemorySlot,
        settings: SenderSettings,
        tracker: HostTracker,
        *,
        counters: Counters,
        on_error: Callable[[SenderError], None],
        clock: Clock,
        observer: Observer,
        random: Random,
        until_drained: bool = False,
        stop_when_offline: bool = False,
    ) -> None:
        self._slot = slot
        self._ring = slot.ring
        self._settings = settings
        self._tracker = tracker
        self._counters = counters
        self._on_error = on_error
        self._clock = clock
        self._observer = observer
        self._until_drained = until_drained
        self._stop_when_offline = stop_when_offline
        self._session = Session(
            SessionSettings(
                settings.durable_ack,
                settings.keepalive_s,
                settings.policies,
                settings.rejections_max,
                settings.poison_window_s,
            ),
            acked_fsn=slot.ring.acked_fsn,
        )
        self._backoff = OutageBackoff(settings.first_backoff_s, settings.backoff_s_max, settings.outage_s_max, random)
        self._tls: ssl.SSLContext | None = None
        if settings.tls:
            self._tls = tls_context(
                verify=settings.tls_verify, roots=settings.tls_roots, roots_password=settings.tls_roots_password
            )
        self._previous: int | None = None  # the host of the broken connection; never shared between loops
        self._connection: Connection | None = None
        self._attempt_s: float | None = None  # the start of this outage
        self._attempts = 0  # in this outage
        self._reason = ""  # why the last attempt failed, or the last connection ended
        self._highest_sent = -1
        self._is_first = True
        self._stopping = False
        self._pause = threading.Condition()
        self._wake_up = WakeUp()
        self._worker: Worker | None = None
        self._fitter = FrameFitter()
        self._ring.why_full = self._why_full
        self.halted: SenderError | None = None
        self.batch_bytes_max = 0

    # ---- called from other threads

    def start(self, name: str) -> None:
        """Run in a separate thread."""
        self._worker = Worker(
            name, self._work, every=0.0, on_death=self._fail, clock=self._clock, observer=self._observer
        )
        self._worker.start()

    def wake(self) -> None:
        """Notify the loop that there is a frame to send. Cheap while the loop is busy."""
        self._wake_up.wake()

    def stop(self, timeout: float) -> None:
        """Stop the loop. Unconfirmed frames stay in the slot. Waits up to *timeout* seconds for the thread."""
        with self._pause:
            self._stopping = True
            self._pause.notify_all()
        self._ring.wake()
        self._wake_up.asleep = True
        self._wake_up.wake()
        if self._worker is not None:
            self._worker.join(timeout)

    def stats(self) -> dict[str, Any]:
        """Return current statistics of the slot."""
        ring = self._ring
        oldest_us = ring.oldest_us
        age_s = 0.0 if oldest_us is None else max(0.0, (self._clock.now_ns() // 1000 - oldest_us) / 1e6)
        return {
            "backlog_frames": ring.backlog,
            "backlog_bytes": ring.backlog_bytes,
            "oldest_unconfirmed_s": age_s,
            "allocated_bytes": ring.allocated_bytes,
            "connected": self._attempt_s is None and self._connection is not None,
        }

    @property
    def is_running(self) -> bool:
        """Whether the thread is alive."""
        return self._worker is not None and self._worker.is_running

    def _why_full(self) -> str:
        since = self._attempt_s
        if since is None:
            return "the connection works, but the server confirms too slowly"
        lasted = self._clock.monotonic() - since
        return f"the sender is reconnecting: attempt {self._attempts}, the outage began {lasted:.1f} s ago"

    # ---- the loop

    def connect_first(self) -> None:
        """
        Make the first connection in the caller's thread, as ``initial_connect_retry`` requires. Sets `halted` if there
        is none. With ``async``, `run` connects instead.
        """
        if self._settings.initial_connect != "async":
            self._connect(only_one_round=self._settings.initial_connect == "off")

    def run(self) -> None:
        """Drain the slot until `stop` is called, it halts, or (with *until_drained*) every frame is confirmed."""
        try:
            while not self._stopping and self.halted is None and not self._is_drained():
                if self._connection is None:
                    self._connect(only_one_round=False)
                    continue
                self._pump(self._connection)
        except (StoreFailedError, OSError) as error:
            # A disk error: data read from the slot can no longer be trusted.
            span = (self._ring.acked_fsn + 1, self._ring.published_fsn)
            reason = f"the slot failed: {error}"
            self._halt(SenderError(Category.INTERNAL_ERROR, Policy.HALT, -1, reason, -1, *span))
        finally:
            if self._connection is not None:
                self._connection.close(orderly=True)
                self._connection = None
            self._ring.wake()

    def _work(self) -> Finished:
        self.run()
        return FINISHED

    def _fail(self, died: WorkerDiedError) -> None:
        """Halt the sender: otherwise its producer would wait forever."""
        span = (self._ring.acked_fsn + 1, self._ring.published_fsn)
        reason = f"an internal error of the sender: {died.__cause__}"
        self._halt(SenderError(Category.INTERNAL_ERROR, Policy.HALT, -1, reason, -1, *span))

    def _is_drained(self) -> bool:
        return self._until_drained and self._ring.acked_fsn >= self._ring.published_fsn

    def release(self) -> None:
        """Release what the loop holds besides the slot. Call it after the thread has ended."""
        if not self.is_running:
            self._wake_up.close()

    def _halt(self, error: SenderError) -> None:
        self.halted = error
        self._observer.count("quiver.qwp.halts_total")
        self._observer.event("qwp.halted", level=logging.ERROR, error=str(error))
        self._on_error(error)
        self._ring.wake()

    # ---- connecting

    def _connect(self, *, only_one_round: bool) -> None:
        """Walk the hosts until one answers, the time is over, or no host may be tried any more."""
        now = self._clock.monotonic()
        self._backoff.start(now)
        self._attempt_s = now
        self._attempts = 0
        if self._previous is not None:
            # Before a host is picked: otherwise the broken one would look like the healthiest.
            self._tracker.record_mid_stream_failure(self._previous)
            self._previous = None
            if len(self._settings.addresses) == 1:
                self._tracker.begin_round(forget=True)  # reconnect to the only host without a pause
        role_reject = False
        while not self._stopping:
            index = self._tracker.pick_next()
            if index is None and self._stop_when_offline:
                # Other loops that share the tracker may have used up the round: this loop needs its own.
                self._stopping = self._attempts >= len(self._settings.addresses)
                self._tracker.begin_round(forget=True)
                continue
            if index is None:
                if not self._next_round(only_one_round=only_one_round, role_reject=role_reject):
                    return
                continue
            self._attempts += 1
            self._counters.reconnect_attempts += 0 if self._is_first else 1
            self._observer.count("quiver.qwp.connect_attempts_total")
            try:
                connection, accepted = self._open(self._settings.addresses[index])
            except HandshakeError as failure:
                role_reject = failure.refused.kind in {"role", "topology"}
                self._failed(index, str(failure))
                if failure.refused.kind in {"auth", "durable"}:
                    self._tracker.record_transport_error(index)
                    self._halt(self._credentials_error(failure))
                    return
                if role_reject:
                    self._tracker.record_role_reject(index, transient=failure.refused.kind == "role")
                else:
                    self._tracker.record_transport_error(index)
            except OSError as error:
                role_reject = False
                self._failed(index, str(error))
                self._tracker.record_transport_error(index)
            else:
                self._connected(index, connection, accepted)
                return

    def _failed(self, index: int, reason: str) -> None:
        self._reason = self._tracker.last_failure = f"{self._settings.addresses[index]}: {reason}"

    def _failure_reason(self) -> str:
        """Return why there is no connection. If other loops tried every host of this round, return their reason."""
        return self._reason or self._tracker.last_failure or "every server of this round was already tried"

    def _credentials_error(self, failure: HandshakeError) -> SenderError:
        published = self._ring.published_fsn
        if failure.refused.kind == "durable":
            return self._session.timed_out(str(failure), published_fsn=published).error
        return self._session.credentials_rejected(str(failure), published_fsn=published).error

    def _next_round(self, *, only_one_round: bool, role_reject: bool) -> bool:
        """Pause between two rounds. Return False after the last one."""
        pause_s = None
        if not only_one_round:
            pause_s = self._backoff.after_round(self._clock.monotonic(), role_reject=role_reject)
        if pause_s is None:
            why = self._failure_reason()
            reason = f"the reconnect time is over: {why}"
            if only_one_round:
                reason = f"no server answered: {why}; initial_connect_retry=async keeps rows until one does"
            self._halt(self._session.timed_out(reason, published_fsn=self._ring.published_fsn).error)
            return False
        # After the first few, rounds are seconds apart: report each, so that users see why nothing is sent.
        self._observer.event(
            "qwp.no_server",
            level=logging.WARNING,
            reason=self._failure_reason(),
            frames=self._ring.backlog,
            pause_s=pause_s,
        )
        self._sleep(pause_s)
        self._tracker.begin_round(forget=True)
        return True

    def _sleep(self, pause_s: float) -> None:
        deadline = self._clock.monotonic() + pause_s
        with self._pause:
            while not self._stopping and (left := deadline - self._clock.monotonic()) > 0:
                self._clock.wait(self._pause, left)

    def _open(self, address: Address) -> tuple[Connection, Accepted]:
        settings = self._settings
        headers = request_headers(
            durable_ack=settings.durable_ack,
            client_id=settings.client_id,
            username=settings.username,
            password=settings.password,
            token=settings.token,
        )
        return open_connection(
            address,
            headers,
            tls=self._tls,
            durable_ack=settings.durable_ack,
            timeout=settings.handshake_s,
            clock=self._clock,
        )

    def _connected(self, index: int, connection: Connection, accepted: Accepted) -> None:
        self._tracker.record_success(index)
        self._previous = index
        self._connection = connection
        self.batch_bytes_max = accepted.batch_bytes_max
        now = self._clock.monotonic()
        self._session.connected(acked_fsn=self._ring.acked_fsn, durable_ack=accepted.durable_ack, now=now)
        self._attempt_s = None
        if not self._is_first:
            self._counters.reconnects_succeeded += 1
            self._observer.count("quiver.qwp.reconnects_total")
        self._is_first = False
        self._observer.event("qwp.connected", address=str(self._settings.addresses[index]))

    # ---- connected

    def _pump(self, connection: Connection) -> None:
        """Send as much as possible, then process the answers; one iteration."""
        try:
            more = self._send(connection)
            self._ring.maintain(provision=not self._until_drained)
            messages = connection.receive(self._wake_up, self._wait_s(more=more))
        except ConnectionLostError as lost:
            action = self._session.closed(
                lost.code, lost.reason, self._clock.monotonic(), published_fsn=self._ring.published_fsn
            )
            self._apply([action])
            return
        for message in messages:
            now = self._clock.monotonic()
            published = self._ring.published_fsn
            if not self._apply(self._session.receive(message, now, published_fsn=published)):
                return

    def _send(self, connection: Connection) -> bool:
        session = self._session
        now = self._clock.monotonic()
        while connection.queued_bytes < _QUEUED_BYTES_MAX and session.next_fsn <= self._ring.published_fsn:
            fsn = session.next_fsn
            messages = self._messages(fsn)
            if not messages:
                self._apply(session.skipped())
                continue
            for message in messages:
                connection.send(message)
            session.sent(now, len(messages))
            self._counters.frames_sent += 1
            self._observer.count("quiver.qwp.frames_sent_total")
            if fsn <= self._highest_sent:
                self._counters.frames_replayed += 1
                self._observer.count("quiver.qwp.frames_replayed_total")
            self._highest_sent = max(fsn, self._highest_sent)
        if session.ping_in_s(now) == 0:
            connection.ping()
            session.pinged(now)
        connection.flush()
        # From now on a producer that appends wakes this thread; the next line sees earlier appends.
        self._wake_up.asleep = True
        return session.next_fsn <= self._ring.published_fsn and connection.queued_bytes < _QUEUED_BYTES_MAX

    def _messages(self, fsn: int) -> list[Buffer]:
        fitted = self._fitter.fit(fsn, self._frame(fsn), self.batch_bytes_max)
        for one in fitted.too_large:
            self._drop_message(SenderError(Category.TOO_LARGE, Policy.DROP, -1, one.reason, -1, fsn, fsn), one.message)
        if len(fitted.messages) > 1:
            self._observer.count("quiver.qwp.frames_split_total")
        return fitted.messages

    def _frame(self, fsn: int) -> Buffer:
        message = self._ring.read(fsn)
        if not self._slot.symbols or not message[MESSAGE_HEADER.size]:
            return message
        # A frame of a newer client refers to symbols of earlier frames, which this server may not have.
        delta = decode_symbol_delta(memoryview(message))
        if not isinstance(delta, Frame):
            return message  # the server reports the error
        reach = delta.value.start + len(delta.value.symbols)
        return with_all_symbols(bytes(message), self._slot.symbols, (delta.value.end, reach))

    def _wait_s(self, *, more: bool) -> float:
        if more:
            return 0.0
        ping_s = self._session.ping_in_s(self._clock.monotonic())
        return _IDLE_S if ping_s is None else min(ping_s, _IDLE_S)

    def _apply(self, actions: list[Action]) -> bool:
        """Execute the actions of the session. Return False if this connection is over."""
        for action in actions:
            if isinstance(action, Confirm):
                self._ring.acknowledge(action.fsn)
                self._fitter.confirmed(action.fsn)
            elif isinstance(action, Drop):
                self._drop(action)
            elif isinstance(action, Halt):
                if action.error.status >= 0:
                    self._count_refusal()
                self._disconnect()
                self._halt(action.error)
                return False
            else:
                self._reconnect(action)
                return False
        return True

    def _count_refusal(self) -> None:
        self._counters.server_errors += 1
        self._observer.count("quiver.qwp.server_errors_total")

    def _drop(self, action: Drop) -> None:
        self._count_refusal()
        fsn = action.error.from_fsn
        if action.piece is None:
            message = bytes(self._frame(fsn))
        else:
            message = self._fitter.leave_out(fsn, self._frame(fsn), action.piece)
        self._drop_message(action.error, message)

    def _drop_message(self, error: SenderError, message: bytes) -> None:
        self._counters.frames_dropped += 1
        self._observer.count("quiver.qwp.frames_dropped_total")
        if self._settings.dead_letters:
            # Stored before it counts as confirmed: after a crash in between it is sent again, and stored twice.
            at_ns, status = self._clock.now_ns(), max(0, error.status)
            letter = DeadLetterRecord(error.from_fsn, at_ns, status, error.message, message)
            self._counters.dead_letters_dropped += self._slot.keep_dead_letter(letter)
        self._on_error(error)

    def _reconnect(self, action: Reconnect) -> None:
        self._disconnect()
        # Nothing is trimmed during an outage, and a producer must not wait for space that could be free.
        self._ring.maintain(force=True, provision=False)
        self._observer.event("qwp.reconnect", level=logging.WARNING, reason=action.reason)
        if self._previous is not None:
            self._failed(self._previous, action.reason)
        if action.error is not None:
            self._count_refusal()
            self._on_error(action.error)
        if action.paced:
            base = self._backoff.base_s(self._session.fruitless)
            self._sleep(base + self._backoff.random.random() * base)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close(orderly=True)
            self._connection = None

    def resume(self) -> None:
        """Clear the error. `start` continues with the first unconfirmed frame."""
        self.halted = None
        self._stopping = False
        self._previous = None
        self._session.resumed()
        self._tracker.begin_round(forget=True)
