"""
The thread that drains a slot: connect, send what is there, take answers, and connect again when that ends.

::

    walk the hosts ─▶ connected ─▶ send · receive · trim ─▶ lost ─▶ walk the hosts …
         └ out of time, not let in, refused for good ─▶ halted: the next call of the producer raises

The producer is not told of outages: it goes on appending until the slot is full.
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
from quiver.qwp.connection.failover import Backoff, HostTracker
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
from quiver.qwp.format.dead_letters import DeadLetter
from quiver.qwp.settings import SenderSettings
from quiver.qwp.slots.slot import MemorySlot, Slot
from quiver.qwp.wire.decoder import decode_symbol_delta
from quiver.qwp.wire.message import MESSAGE_HEADER, with_all_symbols

__all__ = ["Counters", "WireLoop"]

_QUEUED_BYTES_MAX = 4 << 20
_IDLE_S = 0.5


@dataclass(slots=True)
class Counters:
    """What happened, since the sender was made."""

    reconnect_attempts: int = 0
    reconnects_succeeded: int = 0
    frames_sent: int = 0
    frames_replayed: int = 0
    server_errors: int = 0
    frames_dropped: int = 0
    dead_letters_dropped: int = 0


class WireLoop:
    """
    Drains one slot, from a thread of its own (`start`) or in the caller's (`run`).

    Args:
        slot: held by the caller.
        settings: of the sender.
        tracker: what is known of the hosts; several loops may share it.
        counters: are added to.
        on_error: is given every error, from this loop's thread; must not wait.
        clock, observer, random: as everywhere.
        until_drained: end when every frame is confirmed, instead of waiting for more.
        gives_way: end where no host answers, too, instead of waiting until one does.

    Attributes:
        halted: why the loop has ended for good; None while it has not.
        batch_bytes_max: the largest message that the server takes, as it said last; 0 when it did not say.
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
        gives_way: bool = False,
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
        self._gives_way = gives_way
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
        self._backoff = Backoff(settings.first_backoff_s, settings.backoff_s_max, settings.outage_s_max, random)
        self._tls: ssl.SSLContext | None = None
        if settings.tls:
            self._tls = tls_context(
                verify=settings.tls_verify, roots=settings.tls_roots, roots_password=settings.tls_roots_password
            )
        self._previous: int | None = None  # the host of the connection that broke; never shared between loops
        self._connection: Connection | None = None
        self._attempt_s: float | None = None  # since when this outage lasts
        self._attempts = 0  # of it
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

    # ---- from other threads

    def start(self, name: str) -> None:
        """Run in a thread of its own."""
        self._worker = Worker(
            name, self._work, every=0.0, on_death=self._fail, clock=self._clock, observer=self._observer
        )
        self._worker.start()

    def wake(self) -> None:
        """Say that there is something to send. Costs nothing while the loop is busy."""
        self._wake_up.wake()

    def stop(self, timeout: float) -> None:
        """End the loop; what is not confirmed stays in the slot. Waits at most *timeout* for the thread."""
        with self._pause:
            self._stopping = True
            self._pause.notify_all()
        self._ring.wake()
        self._wake_up.asleep = True
        self._wake_up.wake()
        if self._worker is not None:
            self._worker.join(timeout)

    def stats(self) -> dict[str, Any]:
        """Return figures of this moment about the slot."""
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
        """Say whether the thread is alive."""
        return self._worker is not None and self._worker.is_running

    def _why_full(self) -> str:
        since = self._attempt_s
        if since is None:
            return "the wire is publishing, but the server confirms too slowly"
        lasted = self._clock.monotonic() - since
        return f"the wire is reconnecting: attempt {self._attempts}, the outage began {lasted:.1f} s ago"

    # ---- the loop

    def connect_first(self) -> None:
        """
        Make the first connection in the caller's thread, as ``initial_connect_retry`` says; `halted` is set when there
        is none. With ``async`` this is left to `run`.
        """
        if self._settings.initial_connect != "async":
            self._connect(only_one_round=self._settings.initial_connect == "off")

    def run(self) -> None:
        """Drain the slot until `stop`, until it halts, or until it is drained when that was asked for."""
        try:
            while not self._stopping and self.halted is None and not self._is_drained():
                if self._connection is None:
                    self._connect(only_one_round=False)
                    continue
                self._pump(self._connection)
        except (StoreFailedError, OSError) as error:
            # The disk: nothing that is read from it can be relied upon any more.
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
        """Halt the sender: otherwise its producer would wait for ever."""
        span = (self._ring.acked_fsn + 1, self._ring.published_fsn)
        reason = f"a fault of the sender: {died.__cause__}"
        self._halt(SenderError(Category.INTERNAL_ERROR, Policy.HALT, -1, reason, -1, *span))

    def _is_drained(self) -> bool:
        return self._until_drained and self._ring.acked_fsn >= self._ring.published_fsn

    def release(self) -> None:
        """Give back what the loop holds beside the slot. After the thread has ended."""
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
        """Walk the hosts until one answers, the time is over, or nobody may be asked any more."""
        now = self._clock.monotonic()
        self._backoff.start(now)
        self._attempt_s = now
        self._attempts = 0
        if self._previous is not None:
            # Before any host is picked, or the broken one would be the healthiest of all.
            self._tracker.record_mid_stream_failure(self._previous)
            self._previous = None
            if len(self._settings.addresses) == 1:
                self._tracker.begin_round(forget=True)  # the blip of a connection to the only host costs no pause
        role_reject = False
        while not self._stopping:
            index = self._tracker.pick_next()
            if index is None and self._gives_way:
                # The round may have been that of others who share the tracker: one of its own is what counts.
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
                    self._halt(self._not_let_in(failure))
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

    def _why_not(self) -> str:
        """Say why there is no connection. Where other loops have tried every host of this round, their reason."""
        return self._reason or self._tracker.last_failure or "every server of this round was asked already"

    def _not_let_in(self, failure: HandshakeError) -> SenderError:
        published = self._ring.published_fsn
        if failure.refused.kind == "durable":
            return self._session.gave_up(str(failure), published_fsn=published).error
        return self._session.not_let_in(str(failure), published_fsn=published).error

    def _next_round(self, *, only_one_round: bool, role_reject: bool) -> bool:
        """Pause between two rounds; False when there is no next one."""
        pause_s = None
        if not only_one_round:
            pause_s = self._backoff.after_round(self._clock.monotonic(), role_reject=role_reject)
        if pause_s is None:
            reason = f"the time for reconnecting is over: {self._why_not()}"
            if only_one_round:
                reason = f"no server answered: {self._why_not()}; initial_connect_retry=async keeps rows until one does"
            self._halt(self._session.gave_up(reason, published_fsn=self._ring.published_fsn).error)
            return False
        # Rounds are seconds apart, all but the first few: said each time, or nobody knows why nothing leaves.
        self._observer.event(
            "qwp.no_server", level=logging.WARNING, reason=self._why_not(), frames=self._ring.backlog, pause_s=pause_s
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
        """Send what fits, then take what arrived; one turn."""
        try:
            more = self._send(connection)
            self._ring.upkeep(provision=not self._until_drained)
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
                self._apply(session.given_up())
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
        # From here on a producer that appends wakes this thread; whoever appended before is seen by the next line.
        self._wake_up.asleep = True
        return session.next_fsn <= self._ring.published_fsn and connection.queued_bytes < _QUEUED_BYTES_MAX

    def _messages(self, fsn: int) -> list[Buffer]:
        fitted = self._fitter.fit(fsn, self._frame(fsn), self.batch_bytes_max)
        for one in fitted.too_large:
            self._give_up(SenderError(Category.TOO_LARGE, Policy.DROP, -1, one.reason, -1, fsn, fsn), one.message)
        if len(fitted.messages) > 1:
            self._observer.count("quiver.qwp.frames_split_total")
        return fitted.messages

    def _frame(self, fsn: int) -> Buffer:
        message = self._ring.read(fsn)
        if not self._slot.symbols or not message[MESSAGE_HEADER.size]:
            return message
        # A newer client's: it counts on symbols of earlier frames, which this server may never have seen.
        delta = decode_symbol_delta(memoryview(message))
        if not isinstance(delta, Frame):
            return message  # the server says what is wrong with it
        reach = delta.value.start + len(delta.value.symbols)
        return with_all_symbols(bytes(message), self._slot.symbols, (delta.value.end, reach))

    def _wait_s(self, *, more: bool) -> float:
        if more:
            return 0.0
        ping_s = self._session.ping_in_s(self._clock.monotonic())
        return _IDLE_S if ping_s is None else min(ping_s, _IDLE_S)

    def _apply(self, actions: list[Action]) -> bool:
        """Do what the session decided; False when this connection is over."""
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
        self._give_up(action.error, message)

    def _give_up(self, error: SenderError, message: bytes) -> None:
        self._counters.frames_dropped += 1
        self._observer.count("quiver.qwp.frames_dropped_total")
        if self._settings.dead_letters:
            # Kept before it counts as confirmed: a crash in between sends it again, and it is kept twice.
            at_ns, status = self._clock.now_ns(), max(0, error.status)
            letter = DeadLetter(error.from_fsn, at_ns, status, error.message, message)
            self._counters.dead_letters_dropped += self._slot.keep_dead_letter(letter)
        self._on_error(error)

    def _reconnect(self, action: Reconnect) -> None:
        self._disconnect()
        # Nothing is trimmed during an outage, and a producer must not wait for room that is there already.
        self._ring.upkeep(force=True, provision=False)
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
        """Forget why it halted; `start` begins again, with the first frame that is not confirmed."""
        self.halted = None
        self._stopping = False
        self._previous = None
        self._session.resumed()
        self._tracker.begin_round(forget=True)
