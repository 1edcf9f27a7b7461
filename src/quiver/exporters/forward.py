"""
Drain a subscriber to a far side: take a bundle, send what is in it, acknowledge, defer or reject it.

======================  ==========================================================================
the far side            the bundle
======================  ==========================================================================
confirms                is acknowledged
cannot take it now      is deferred, each time for longer up to a cap, and newer ones go before it
refuses it for good     is given up as the policy says: a dead letter, dropped and counted, or all stops here
======================  ==========================================================================

A bundle of several requests remembers those that were confirmed; only the others are sent again. It is delivered at
least once: what was confirmed and not yet written as progress when the process died is sent again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Self

from quiver.bundle import Bundle, BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.delivery.policy import Again, GiveUp, Permanent, RetryPolicy, Transient
from quiver.delivery.undelivered import Undelivered
from quiver.errors import (
    AtCapacity,
    BundleInvalid,
    BundleUnavailable,
    Damaged,
    FormatUnsupported,
    QuiverError,
    StoreClosed,
    SubscriberUnknown,
)
from quiver.exporters.pace import Pace
from quiver.exporters.ports import ForwardedHandle, Sender, Source
from quiver.exporters.reply import Reply
from quiver.exporters.requests import bundle_of, requests_of
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.backoff import Backoff
from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDied

__all__ = ["BundleForwarder", "ForwardState", "ForwardedHandle", "Sender", "Source"]

LOOK_S = 0.2
"""A thread that waits for a bundle looks this often whether it shall stop."""

TOLD_AGAIN_S = 60.0
"""A refusal for the same reason is told so often at most: whoever refuses one request refuses many, and the program
may export its own log."""

TROUBLE_S = 1.0
"""Before the store is asked again after it could not give a bundle."""

SOON_S = 0.05
"""A bundle whose time has not come, by so little, is tried all the same: two clocks were rounded."""


@dataclass(frozen=True, slots=True)
class ForwardState:
    """
    What a forwarder is at, at one moment.

    Attributes:
        confirmed: requests that the far side has.
        refused: requests that it will never take.
        retrying: bundles that were tried and are not resolved, those being sent included.
        in_flight: bundles being sent.
        is_down: whether the far side counts as down.
        problem: the last failure, for people; empty when the last attempt succeeded.
        halted: why nothing is sent any more, until somebody has looked after it; empty otherwise.
    """

    confirmed: int
    refused: int
    retrying: int
    in_flight: int
    is_down: bool
    problem: str
    halted: str = ""


@dataclass(slots=True)
class _Attempts:
    """
    What this process knows of a bundle that was tried and not resolved, beside what stands in the retry set.
    """

    confirmed: set[int] = field(default_factory=set)
    refused: dict[int, Permanent] = field(default_factory=dict)
    troubles: int = 0
    """How often it could not be read here, which says nothing of the far side."""


class BundleForwarder:
    """
    Sends a subscriber's bundles on, from threads of its own between `start` and `stop`. A context manager.

    Args:
        source: the subscriber; nobody else takes from it.
        sender: closed by `stop`.
        origin: the id of the store; with it each request carries a batch id that is the same whenever it is sent again:
            ``<origin>/<segment>:<index>/<number of the request>``.
        in_flight_max: bundles being sent at once, each in a thread.
        retry: how long a bundle waits after each of its failures, without end; what is refused is dropped. Not with
            *undelivered*.
        undelivered: the policy, and where what was not delivered is kept; closed by `stop`. Its delays are those of
            the pauses while the far side is down, too.
        random: where jitter comes from.
        clock: for the pauses.
        observer: takes counts and events.

    Attributes:
        died: why a thread of it ended and nothing is sent any more; None while all is well. Make another.
    """

    def __init__(
        self,
        source: Source,
        sender: Sender,
        *,
        origin: str = "",
        in_flight_max: int = 4,
        retry: Backoff | None = None,
        undelivered: Undelivered | None = None,
        random: Random | None = None,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
    ) -> None:
        self._source = source
        self._sender = sender
        self._origin = origin
        self._in_flight_max = in_flight_max
        random = random or Random()  # noqa: S311 - jitter, not a secret
        self._clock = clock
        self._observer = observer or InMemoryObserver()
        self._undelivered = undelivered or Undelivered(
            source.id,
            RetryPolicy.of_backoff(retry or Backoff(first_s=1.0, cap_s=30.0), on_exhausted="drop"),
            random=random,
            clock=clock,
            observer=self._observer,
        )
        self._random = random
        self._pace = Pace(self._undelivered.policy.backoff, random)
        self._condition = threading.Condition(threading.Lock())
        self._turn = threading.Lock()  # one thread looks for a bundle, the others wait for their turn
        self._attempts: dict[BundleRef, _Attempts] = {}
        self._counts: Counter[str] = Counter()
        self._in_flight = 0
        self._problem = ""
        self._halted = ""
        self._trouble = ""
        self._told_at_s: dict[str, float] = {}
        self._draining = False
        self._stopped = False
        self._workers: list[Worker] = []
        self.died: WorkerDied | None = None

    # ── up and down ──────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """
        Begin to send. Once.

        Raises:
            StoreClosed: it was stopped; make another.
        """
        with self._condition:
            if self._stopped or self._draining:
                raise StoreClosed("this forwarder was stopped; make another")
            if self._workers:
                return
            self._forget_resolved()
            # Daemons: a program that forgets to stop them must still be able to end; nothing is lost by it.
            self._workers = [
                Worker(
                    f"quiver-forward {self._source.id} {number}", self._work, every=0.0, on_death=self._fail,
                    clock=self._clock, observer=self._observer,
                )
                for number in range(self._in_flight_max)
            ]  # fmt: skip
        for worker in self._workers:
            worker.start()

    def stop(self, timeout_s: float = 5.0) -> int:
        """
        Send what can be sent now, for at most *timeout_s* seconds, and end. Idempotent.

        What waits for a retry, and everything while the far side is down, is not waited for. What is on its way when
        the time is up is broken off; the far side may have it, and it is sent again.

        Returns:
            How many sealed bundles are left; 0 also when the store is closed already.
        """
        deadline = self._clock.monotonic() + timeout_s
        with self._condition:
            self._draining = True
            self._condition.notify_all()
            while self._alive() and (left := deadline - self._clock.monotonic()) > 0:
                self._clock.wait(self._condition, min(left, LOOK_S))
            self._stopped = True
            self._condition.notify_all()
        self._sender.close()
        # One that hangs in a connect cannot be woken. It ends by itself, and finds that it was stopped.
        deadline = self._clock.monotonic() + LOOK_S + TROUBLE_S
        for worker in self._workers:
            worker.stop(max(deadline - self._clock.monotonic(), 0.0))
        self._undelivered.close()
        try:
            return self._source.pending_bundle_count()
        except QuiverError:
            return 0

    def drained(self, timeout_s: float) -> bool:
        """
        Wait until every sealed bundle is resolved; False when *timeout_s* passed first.

        Raises:
            StoreClosed: the store was closed.
        """
        deadline = self._clock.monotonic() + timeout_s
        while self._source.pending_bundle_count():
            with self._condition:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    return False
                self._clock.wait(self._condition, min(left, LOOK_S))
        return True

    def _alive(self) -> bool:
        return any(worker.is_running for worker in self._workers)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def state(self) -> ForwardState:
        """
        Return what it is at.
        """
        with self._condition:
            return ForwardState(
                self._counts["confirmed"],
                self._counts["refused"],
                len(self._attempts),
                self._in_flight,
                self._pace.is_down,
                self._problem,
                self._halted,
            )

    # ── one thread ───────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> Finished | None:
        with self._turn:
            handle = self._next()
        if handle is not None:
            self._forward(handle)
            return None
        with self._condition:
            self._condition.notify_all()
        return FINISHED

    def _fail(self, died: WorkerDied) -> None:
        """
        Send nothing more: a part of the bundles would no longer be sent.
        """
        with self._condition:
            self.died = died
            self._halted = self._problem = str(died)
            self._condition.notify_all()

    def forward_one(self) -> bool:
        """
        Take one bundle and send it, in the calling thread; False when none is pending, or none may be sent now.

        Raises:
            QuiverError: the store could not give a bundle.
            OSError: the same, for what the disk says.
        """
        with self._condition:
            if self._stopped or self._halted or self._pace.wait_s(self._clock.monotonic()) > 0:
                return False
        handle = self._take(0)
        if handle is None:
            return False
        self._forward(handle)
        return True

    def _next(self) -> ForwardedHandle | None:
        """
        Return the bundle to send next, when there is one; None when it is time to end.
        """
        while self._await_pace():
            timeout_s = 0.0 if self._draining else LOOK_S
            try:
                handle = self._take(timeout_s)
            except (StoreClosed, SubscriberUnknown):
                return None
            except (QuiverError, OSError) as error:
                self._note_trouble(str(error))
                if self._draining:
                    return None
                with self._condition:
                    self._clock.wait(self._condition, TROUBLE_S)
                continue
            if handle is not None:
                return handle
            self._save()
            if self._draining and timeout_s == 0:
                return None
        return None

    def _await_pace(self) -> bool:
        """
        Wait until a bundle may be tried; False when it is time to end.
        """
        with self._condition:
            while not self._stopped:
                wait_s = LOOK_S if self._halted else self._pace.wait_s(self._clock.monotonic())
                if wait_s <= 0:
                    return True
                if self._draining:
                    return False  # the far side is down, or nothing is to be sent
                self._clock.wait(self._condition, wait_s)
        return False

    def _take(self, timeout_s: float) -> ForwardedHandle | None:
        with self._condition:
            # While the far side is down a single bundle decides whether it is up again: that should not be one that
            # failed for reasons of its own, as long as there is another.
            count = len(self._attempts) + 1 if self._pace.is_down else 1
        while handles := self._source.next_bundles(count, timeout_s):
            ready = [one for one in handles if not self._put_off(one)]
            if ready:
                break
        else:
            return None
        with self._condition:
            chosen = next((one for one in ready if one.ref not in self._attempts), ready[0])
            self._pace.probing(self._clock.monotonic())
            self._in_flight += 1
        for other in ready:
            if other is not chosen:
                with other:
                    pass  # left without a decision, it is pending as before
        return chosen

    def _put_off(self, handle: ForwardedHandle) -> bool:
        """
        Give a bundle back whose time has not come: an earlier process was told to wait with it.
        """
        wait_s = self._undelivered.retries.wait_s(handle.ref)
        if wait_s <= SOON_S:
            return False
        self._known(handle.ref)
        handle.defer(wait_s)
        return True

    def _note_trouble(self, problem: str) -> None:
        if problem != self._trouble:
            self._trouble = problem
            self._observer.event(
                "quiver.exporter.trouble", level=logging.ERROR, exporter=self._source.id, problem=problem
            )

    # ── one bundle ───────────────────────────────────────────────────────────────────────────────────

    def _forward(self, handle: ForwardedHandle) -> None:
        try:
            self._settle(handle)
        except BundleUnavailable:
            # Policy dropped it meanwhile, or the subscriber was released: nothing is left to decide.
            self._forget(handle.ref)
        except (StoreClosed, SubscriberUnknown):
            pass  # it will be delivered again, or to nobody
        except Exception as error:  # noqa: BLE001 - the edge: a fault of ours or of a sender must not end the thread
            self._note_trouble(f"{type(error).__name__}: {error}")
            with contextlib.suppress(QuiverError):
                self._defer_unread(handle, type(error).__name__, error)
        finally:
            with self._condition:
                self._in_flight -= 1
                if not self._in_flight:
                    self._condition.notify_all()

    def _settle(self, handle: ForwardedHandle) -> None:
        try:
            requests = requests_of(handle.bundle)
        except (OSError, FormatUnsupported) as error:
            self._defer_unread(handle, "READ", error)
            return
        except (BundleInvalid, Damaged) as error:
            kind = type(error).__name__
            self._count("refused", "", reason=kind, message=str(error))
            # What is damaged cannot be read again; what is only no request can.
            content = None if isinstance(error, Damaged) else handle.bundle
            self._failed(handle, Permanent(kind, str(error)), lambda: content)
            return
        attempts = self._known(handle.ref)
        for number, (signal, request) in enumerate(requests):
            if number in attempts.confirmed or number in attempts.refused:
                continue
            batch_id = f"{self._origin}/{handle.ref}/{number}" if self._origin else ""
            reply = self._sender.send(signal, request, batch_id)
            if reply.outcome == "retry":
                self._count("retried", signal, reason=reply.reason)
                self._defer(handle, reply, lambda: bundle_of(handle.bundle, requests, attempts.confirmed))
                return
            if reply.outcome == "refused":
                attempts.refused[number] = Permanent(reply.reason, reply.message)
            else:
                attempts.confirmed.add(number)
            self._answered(signal, reply)
        if attempts.refused:
            last = attempts.refused[max(attempts.refused)]
            self._failed(handle, last, lambda: bundle_of(handle.bundle, requests, attempts.confirmed))
            return
        handle.ack()
        self._forget(handle.ref)

    def _answered(self, signal: str, reply: Reply) -> None:
        """
        Take note of an answer that settles a request, one way or the other. Either way the far side is up.
        """
        if reply.outcome == "refused":
            self._count("refused", signal, reason=reply.reason, message=reply.message)
        else:
            self._count("confirmed", signal)
            if reply.rejected_items:
                self._observer.count(
                    "quiver.exporter.rejected_items_total",
                    reply.rejected_items,
                    exporter=self._source.id,
                    signal=signal,
                )
                self._tell("quiver.exporter.partial", reply.reason, signal=signal, message=reply.message)
            for what, count in reply.left_out.items():
                self._observer.count(
                    "quiver.exporter.left_out_total", count, exporter=self._source.id, signal=signal, what=what
                )
                self._tell("quiver.exporter.left_out", what, signal=signal, message=f"{count} of one request")
        with self._condition:
            self._problem = ""
            was_down = self._pace.succeeded()
            if was_down:
                self._condition.notify_all()
        if was_down:
            self._event("quiver.exporter.up", level=logging.INFO)
            self._forget_dropped()

    def _defer(self, handle: ForwardedHandle, reply: Reply, content: Callable[[], Bundle | None]) -> None:
        """
        Take note that the far side could not take the bundle, and do what the policy says.
        """
        outcome = Transient(reply.reason, reply.message, reply.retry_after_s)
        with self._condition:
            self._problem = str(outcome)
        if reply.reason == "CLOSED":
            # It was broken off here, which is no attempt.
            handle.defer(0.0)
            return
        delay_s = self._failed(handle, outcome, content)
        with self._condition:
            now_s = self._clock.monotonic()
            went_down = self._pace.failed(handle.ref, now_s, min(reply.retry_after_s or 0.0, delay_s))
        if went_down:
            self._event("quiver.exporter.down", problem=str(outcome))

    def _failed(
        self, handle: ForwardedHandle, outcome: Transient | Permanent, content: Callable[[], Bundle | None]
    ) -> float:
        """
        Give the bundle back for later, or give it up; return for how long.
        """
        try:
            verdict = self._undelivered.failed(handle.ref, outcome, content=content)
        except (AtCapacity, OSError) as error:
            # It is pending in the store all the same; only its attempts are not counted.
            self._note_trouble(str(error))
            verdict = Again(self._undelivered.policy.max_interval_s)
        if isinstance(verdict, GiveUp):
            self._give_up(handle, verdict)
            return 0.0
        handle.defer(verdict.delay_s)
        return verdict.delay_s

    def _give_up(self, handle: ForwardedHandle, verdict: GiveUp) -> None:
        if verdict.how == "halt":
            with self._condition:
                self._halted = self._problem = verdict.reason
                self._condition.notify_all()
            handle.defer(0.0)
            return
        handle.reject(verdict.reason)
        self._forget(handle.ref)

    def _defer_unread(self, handle: ForwardedHandle, reason: str, error: Exception) -> None:
        """
        Give a bundle back that could not be read: that is no failure of the far side, and uses nothing up.
        """
        attempts = self._known(handle.ref)
        with self._condition:
            attempts.troubles += 1
            delay_s = self._undelivered.policy.delay_s(attempts.troubles, self._random)
            self._problem = f"{reason}: {error}"
        handle.defer(delay_s)

    def _known(self, ref: BundleRef) -> _Attempts:
        with self._condition:
            known = self._attempts.get(ref)
            if known is None:
                known = self._attempts[ref] = _Attempts()
            return known

    def _forget(self, ref: BundleRef) -> None:
        with self._condition:
            self._attempts.pop(ref, None)
        try:
            self._undelivered.resolved(ref)
        except OSError as error:
            self._note_trouble(str(error))

    def _save(self) -> None:
        """
        Write the retry set, if it changed; when nothing else is to be done, too.
        """
        try:
            self._undelivered.save()
        except OSError as error:
            self._note_trouble(str(error))

    def _forget_resolved(self) -> None:
        """
        Take out of the retry set what an earlier process resolved and was killed before it took it out.
        """
        with contextlib.suppress(StoreClosed, SubscriberUnknown, OSError):
            entries = self._undelivered.retries.entries()
            for segment in sorted({entry.ref.segment for entry in entries}):
                pending = set(self._source.pending_bundles_in_range(segment, segment))
                for entry in entries:
                    if entry.ref.segment == segment and entry.ref not in pending:
                        self._undelivered.resolved(entry.ref)

    def _forget_dropped(self) -> None:
        """
        Forget bundles that policy dropped while they waited: they never come again.
        """
        oldest = self._source.oldest_incomplete_segment()
        with self._condition:
            gone = [ref for ref in self._attempts if oldest is None or ref.segment < oldest]
        for ref in gone:
            self._forget(ref)

    def _count(self, outcome: str, signal: str, *, reason: str = "", message: str = "") -> None:
        with self._condition:
            self._counts[outcome] += 1
        self._observer.count(
            "quiver.exporter.requests_total",
            exporter=self._source.id,
            signal=signal,
            outcome=outcome,
            reason=reason,
        )
        if outcome == "refused":
            self._tell("quiver.exporter.refused", reason, signal=signal, message=message)

    def _tell(self, name: str, reason: str, *, signal: str, message: str) -> None:
        """
        Report a loss, unless one for the same reason was reported a short while ago. All of them are counted.
        """
        with self._condition:
            now_s = self._clock.monotonic()
            told_at_s = self._told_at_s.get(reason)
            if told_at_s is not None and now_s - told_at_s < TOLD_AGAIN_S:
                return
            self._told_at_s[reason] = now_s
        self._event(name, reason=reason, signal=signal, message=message)

    def _event(self, name: str, *, level: int = logging.WARNING, **attributes: str | int) -> None:
        self._observer.event(name, level=level, exporter=self._source.id, **attributes)
