"""
Drain a subscriber to a far side: take a bundle, send what is in it, acknowledge, defer or reject it.

======================  ==========================================================================
the far side            the bundle
======================  ==========================================================================
confirms                is acknowledged
cannot take it now      is deferred, each time for longer up to a cap, and newer ones go before it
refuses it for good     is rejected: dropped for this subscriber, counted with the reason
======================  ==========================================================================

A bundle of several requests remembers those that were confirmed; only the others are sent again. It is delivered at
least once: what was confirmed and not yet written as progress when the process died is sent again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Protocol, Self

from quiver.bundle import Bundle, BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import (
    BundleInvalid,
    BundleUnavailable,
    Damaged,
    FormatUnsupported,
    QuiverError,
    StoreClosed,
    SubscriberUnknown,
)
from quiver.exporters.pace import Pace
from quiver.exporters.reply import Reply
from quiver.exporters.requests import requests_of
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.backoff import Backoff

__all__ = ["BundleForwarder", "ForwardState", "ForwardedHandle", "Sender", "Source"]

LOOK_S = 0.2
"""A thread that waits for a bundle looks this often whether it shall stop."""

RETRY_AFTER_S_MAX = 600.0
"""A far side that wants to be left alone for longer is asked again all the same."""

TOLD_AGAIN_S = 60.0
"""A refusal for the same reason is told so often at most: whoever refuses one request refuses many, and the program
may export its own log."""

TROUBLE_S = 1.0
"""Before the store is asked again after it could not give a bundle."""


class ForwardedHandle(Protocol):
    """
    A claimed bundle; `quiver.BundleHandle` is one.
    """

    @property
    def ref(self) -> BundleRef:
        """
        Where it lies.
        """

    @property
    def bundle(self) -> Bundle:
        """
        The bundle, read when asked for.
        """

    def ack(self) -> None:
        """
        It is done.
        """

    def reject(self, why: str = "") -> None:
        """
        It can never be done.
        """

    def defer(self, seconds: float = 0.0) -> None:
        """
        It comes again after *seconds*.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Source(Protocol):
    """
    Where bundles come from; `quiver.Subscriber` is one.
    """

    @property
    def id(self) -> str:
        """
        Its name.
        """

    def next_bundles(self, count: int, timeout: float | None = None) -> Sequence[ForwardedHandle]:
        """
        Claim up to *count* bundles, waiting up to *timeout* seconds for the first.
        """

    def pending_bundle_count(self) -> int:
        """
        Return how many bundles are not resolved.
        """

    def oldest_incomplete_segment(self) -> int | None:
        """
        Return the number of the oldest segment with a bundle that is not resolved, or None.
        """


class Sender(Protocol):
    """
    Where requests go; `OtlpGrpcSender` and `OtlpHttpSender` are two.
    """

    def send(self, signal: str, request: bytes) -> Reply:
        """
        Send one request and wait for the answer. Called from several threads; raises nothing.
        """

    def close(self) -> None:
        """
        End it, and every request on its way.
        """


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
    """

    confirmed: int
    refused: int
    retrying: int
    in_flight: int
    is_down: bool
    problem: str


@dataclass(slots=True)
class _Attempts:
    """
    What is known of a bundle that was tried and not resolved.
    """

    delays: Iterator[float]
    settled: set[int] = field(default_factory=set)
    refusal: str = ""


class BundleForwarder:
    """
    Sends a subscriber's bundles on, from threads of its own between `start` and `stop`. A context manager.

    Args:
        source: the subscriber; nobody else takes from it.
        sender: closed by `stop`.
        in_flight_max: bundles being sent at once, each in a thread.
        retry: how long a bundle waits after each of its failures; the same for the pauses while the far side is down.
        random: where jitter comes from.
        clock: for the pauses.
        observer: takes counts and events.
    """

    def __init__(
        self,
        source: Source,
        sender: Sender,
        *,
        in_flight_max: int = 4,
        retry: Backoff | None = None,
        random: Random | None = None,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
    ) -> None:
        self._source = source
        self._sender = sender
        self._in_flight_max = in_flight_max
        self._retry = retry or Backoff(first_s=1.0, cap_s=30.0)
        self._random = random or Random()  # noqa: S311 - jitter, not a secret
        self._clock = clock
        self._observer = observer or InMemoryObserver()
        self._pace = Pace(self._retry, self._random)
        self._condition = threading.Condition(threading.Lock())
        self._turn = threading.Lock()  # one thread looks for a bundle, the others wait for their turn
        self._attempts: dict[BundleRef, _Attempts] = {}
        self._counts: Counter[str] = Counter()
        self._in_flight = 0
        self._problem = ""
        self._trouble = ""
        self._told_at_s: dict[str, float] = {}
        self._draining = False
        self._stopped = False
        self._threads: list[threading.Thread] = []

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
            if self._threads:
                return
            name = f"quiver-forward {self._source.id}"
            # Daemons: a program that forgets to stop them must still be able to end; nothing is lost by it.
            self._threads = [
                threading.Thread(target=self._work, name=f"{name} {number}", daemon=True)
                for number in range(self._in_flight_max)
            ]
        for thread in self._threads:
            thread.start()

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
        for thread in self._threads:
            thread.join(max(deadline - self._clock.monotonic(), 0.0))
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
        return any(thread.is_alive() for thread in self._threads)

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
            )

    # ── one thread ───────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        try:
            while True:
                with self._turn:
                    handle = self._next()
                if handle is None:
                    return
                self._forward(handle)
                del handle
        finally:
            with self._condition:
                self._condition.notify_all()

    def forward_one(self) -> bool:
        """
        Take one bundle and send it, in the calling thread; False when none is pending, or none may be sent now.

        Raises:
            QuiverError: the store could not give a bundle.
            OSError: the same, for what the disk says.
        """
        with self._condition:
            if self._stopped or self._pace.wait_s(self._clock.monotonic()) > 0:
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
            if self._draining and timeout_s == 0:
                return None
        return None

    def _await_pace(self) -> bool:
        """
        Wait until a bundle may be tried; False when it is time to end.
        """
        with self._condition:
            while not self._stopped:
                wait_s = self._pace.wait_s(self._clock.monotonic())
                if wait_s <= 0:
                    return True
                if self._draining:
                    return False  # the far side is down
                self._clock.wait(self._condition, wait_s)
        return False

    def _take(self, timeout_s: float) -> ForwardedHandle | None:
        with self._condition:
            # While the far side is down a single bundle decides whether it is up again: that should not be one that
            # failed for reasons of its own, as long as there is another.
            count = len(self._attempts) + 1 if self._pace.is_down else 1
        handles = self._source.next_bundles(count, timeout_s)
        if not handles:
            return None
        with self._condition:
            chosen = next((one for one in handles if one.ref not in self._attempts), handles[0])
            self._pace.probing(self._clock.monotonic())
            self._in_flight += 1
        for other in handles:
            if other is not chosen:
                with other:
                    pass  # left without a decision, it is pending as before
        return chosen

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
                self._defer(handle, Reply("retry", type(error).__name__, str(error)), far=False)
        finally:
            with self._condition:
                self._in_flight -= 1
                if not self._in_flight:
                    self._condition.notify_all()

    def _settle(self, handle: ForwardedHandle) -> None:
        try:
            requests = requests_of(handle.bundle)
        except (OSError, FormatUnsupported) as error:
            self._defer(handle, Reply("retry", "READ", str(error)), far=False)
            return
        except (BundleInvalid, Damaged) as error:
            self._count("refused", "", reason=type(error).__name__, message=str(error))
            self._forget(handle.ref)
            handle.reject(str(error))
            return
        attempts = self._known(handle.ref)
        for number, (signal, request) in enumerate(requests):
            if number in attempts.settled:
                continue
            reply = self._sender.send(signal, request)
            if reply.outcome == "retry":
                self._count("retried", signal, reason=reply.reason)
                self._defer(handle, reply)
                return
            attempts.settled.add(number)
            self._answered(signal, reply, attempts)
        self._forget(handle.ref)
        if attempts.refusal:
            handle.reject(attempts.refusal)
        else:
            handle.ack()

    def _answered(self, signal: str, reply: Reply, attempts: _Attempts) -> None:
        """
        Take note of an answer that settles a request, one way or the other. Either way the far side is up.
        """
        if reply.outcome == "refused":
            attempts.refusal = f"{reply.reason}: {reply.message}" if reply.message else reply.reason
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
        with self._condition:
            self._problem = ""
            was_down = self._pace.succeeded()
            if was_down:
                self._condition.notify_all()
        if was_down:
            self._event("quiver.exporter.up", level=logging.INFO)
            self._forget_dropped()

    def _defer(self, handle: ForwardedHandle, reply: Reply, *, far: bool = True) -> None:
        """
        Give the bundle back for later; *far* says whether it was the far side that failed.
        """
        after_s = min(reply.retry_after_s or 0.0, RETRY_AFTER_S_MAX)
        attempts = self._known(handle.ref)
        problem = f"{reply.reason}: {reply.message}" if reply.message else reply.reason
        with self._condition:
            delay_s = max(next(attempts.delays), after_s)
            now_s = self._clock.monotonic()
            went_down = far and reply.reason != "CLOSED" and self._pace.failed(handle.ref, now_s, after_s)
            self._problem = problem
        if went_down:
            self._event("quiver.exporter.down", problem=problem)
        handle.defer(delay_s)

    def _known(self, ref: BundleRef) -> _Attempts:
        with self._condition:
            known = self._attempts.get(ref)
            if known is None:
                known = self._attempts[ref] = _Attempts(self._retry.delays(self._random))
            return known

    def _forget(self, ref: BundleRef) -> None:
        with self._condition:
            self._attempts.pop(ref, None)

    def _forget_dropped(self) -> None:
        """
        Forget bundles that policy dropped while they waited: they never come again.
        """
        oldest = self._source.oldest_incomplete_segment()
        with self._condition:
            gone = [ref for ref in self._attempts if oldest is None or ref.segment < oldest]
            for ref in gone:
                del self._attempts[ref]

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
