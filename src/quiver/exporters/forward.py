"""
Drain a subscriber to a destination: claim a bundle, send its requests, then acknowledge, defer or reject it.

==========================  ==========================================================================
the destination             the bundle
==========================  ==========================================================================
confirms                    is acknowledged
cannot accept it now        is deferred with exponential backoff, and newer bundles overtake it
refuses it permanently      is handled by the policy: a dead letter, dropped and counted, or the forwarder halts
==========================  ==========================================================================

A request that is too large for the destination is split between records, and the small requests of several bundles may
be combined (`RequestSizes`). A bundle is acknowledged when all of its records are confirmed; after a failure only the
unconfirmed records are sent again. Delivery is at least once: records that were confirmed, but whose progress was not
written before the process died, are sent again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import Self

from quiver.bundle import Bundle, BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.delivery.exporter_stats import ExporterStats
from quiver.delivery.policy import Exhausted, Outcome, Permanent, Retry, RetryPolicy, Transient
from quiver.delivery.signal_filter import SignalFilter
from quiver.delivery.undelivered import Undelivered
from quiver.errors import (
    BundleUnavailableError,
    CapacityError,
    CorruptionError,
    InvalidBundleError,
    QuiverError,
    StoreClosedError,
    UnknownSubscriberError,
    UnsupportedFormatError,
)
from quiver.exporters.attempts import AttemptTable
from quiver.exporters.circuit_breaker import CircuitBreaker
from quiver.exporters.counts import ExporterCounts
from quiver.exporters.forward_state import ForwardState
from quiver.exporters.once import send_once
from quiver.exporters.parts import ALL_RECORDS, PartSender
from quiver.exporters.ports import ForwardedHandle, RequestSender, Source
from quiver.exporters.reply import Reply
from quiver.exporters.requests import bundle_of, requests_of
from quiver.exporters.settings import RequestSizes
from quiver.exporters.size_limit import SizeLimit
from quiver.exporters.taken import BundleTaker, CombinedRequest, TakenBundle, acknowledge, combined
from quiver.lazy_names import renamed_keyword
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.backoff import Backoff
from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDiedError

__all__ = ["BundleForwarder", "ForwardState", "ForwardedHandle", "RequestSender", "Source"]

POLL_S = 0.2
"""A thread that waits for a bundle checks this often whether to stop."""

COMBINED_MAX = 1024
"""The maximum number of bundles to combine: all of them are claimed meanwhile."""

STORE_RETRY_S = 1.0
"""The pause after the store failed to return a bundle."""


class BundleForwarder:
    """
    Forwards the bundles of a subscriber from background threads, from `start` to `stop`. A context manager.

    Args:
        source: the subscriber; only this forwarder may claim from it.
        sender: sends the requests; closed by `stop`.
        origin: the id of the store. With it, each request has a batch id that is the same whenever it is sent again:
            ``<origin>/<segment>:<index>/<number of the request>``, followed by ``/<first record>-<next>`` for a part.
        sizes: limits of request sizes.
        in_flight_max: the number of bundles to send concurrently, each in a thread.
        retry: the delays between attempts, without a limit; refused bundles are dropped. Not together with
            *undelivered*.
        undelivered: the policy, the retry set and the dead letters; closed by `stop`. Its delays also apply to the
            pauses while the destination is down.
        random: source of jitter.
        clock: measures the pauses.
        observer: receives counts and events.
        stats: receives the counts that all exporters have, and the last failure.
        signals: the signals to send; bundles without them are acknowledged and counted. None sends everything.

    Attributes:
        died: why a thread died and nothing is sent any more; None otherwise. Create another forwarder to continue.
    """

    def __init__(
        self,
        source: Source,
        sender: RequestSender,
        *,
        origin: str = "",
        sizes: RequestSizes | None = None,
        in_flight_max: int = 4,
        retry: Backoff | None = None,
        undelivered: Undelivered | None = None,
        random: Random | None = None,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
        stats: ExporterStats | None = None,
        signals: SignalFilter | None = None,
    ) -> None:
        self._source = source
        self._sender = sender
        self._origin = origin
        self._sizes = sizes or RequestSizes()
        self._in_flight_max = in_flight_max
        random = random or Random()  # noqa: S311 - jitter, not a secret
        self._clock = clock
        self._observer = observer or InMemoryObserver()
        stats = stats or ExporterStats(source.id, self._observer, clock=clock)
        self._counts = ExporterCounts(stats, clock, self._observer)
        self._limit = SizeLimit(self._sizes.request_bytes_max)
        self._parts = PartSender(sender, self._limit, self._answered)
        self._undelivered = undelivered or Undelivered(
            source.id,
            RetryPolicy.of_backoff(retry or Backoff(first_s=1.0, cap_s=30.0), on_exhausted="drop"),
            random=random,
            clock=clock,
            observer=self._observer,
        )
        self._random = random
        self._breaker = CircuitBreaker(self._undelivered.policy.backoff, random)
        self._condition = threading.Condition(threading.Lock())
        self._claim_lock = threading.Lock()  # only one thread at a time claims bundles
        self._attempts = AttemptTable(source, self._undelivered, self._counts.local_problem)
        self._taker = BundleTaker(source, self._attempts, signals, self._counts.skipped)
        self._in_flight = 0
        self._problem = ""
        self._halted = ""
        self._draining = False
        self._stopped = False
        self._workers: list[Worker] = []
        self.died: WorkerDiedError | None = None

    # ── up and down ──────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """
        Start the threads. Idempotent.

        Raises:
            StoreClosedError: it was stopped; create another.
        """
        with self._condition:
            if self._stopped or self._draining:
                raise StoreClosedError("this forwarder was stopped; create another")
            if self._workers:
                return
            self._attempts.remove_resolved()
            # Daemon threads: a program that does not stop them can still exit, and no data are lost.
            self._workers = [
                Worker(
                    f"quiver-forward {self._source.id} {number}", self._work, every=0.0, on_death=self._fail,
                    clock=self._clock, observer=self._observer,
                )
                for number in range(self._in_flight_max)
            ]  # fmt: skip
        for worker in self._workers:
            worker.start()

    @renamed_keyword("timeout_s", "timeout")
    def stop(self, timeout: float = 5.0) -> int:
        """
        Send pending bundles for at most *timeout* seconds, then stop. Idempotent.

        It does not wait for bundles that are due for a retry later, nor for a destination that is down. Requests still
        in flight at the end are cancelled and sent again after a restart; the destination may already have them.

        Returns:
            The number of sealed bundles that are left; 0 if the store is already closed.
        """
        deadline = self._clock.monotonic() + timeout
        with self._condition:
            self._draining = True
            self._condition.notify_all()
            while self._alive() and (left := deadline - self._clock.monotonic()) > 0:
                self._clock.wait(self._condition, min(left, POLL_S))
            self._stopped = True
            self._condition.notify_all()
        self._sender.close()
        # A thread that hangs in a connect cannot be interrupted. It ends when the connect does.
        deadline = self._clock.monotonic() + POLL_S + STORE_RETRY_S
        for worker in self._workers:
            worker.stop(max(deadline - self._clock.monotonic(), 0.0))
        self._undelivered.close()
        try:
            return self._source.lag().pending_bundles
        except QuiverError:
            return 0

    @renamed_keyword("timeout_s", "timeout")
    def drained(self, timeout: float) -> bool:
        """
        Wait until every sealed bundle is resolved. Return False if *timeout* passes first.

        Raises:
            StoreClosedError: the store was closed.
        """
        deadline = self._clock.monotonic() + timeout
        while self._source.lag().pending_bundles:
            with self._condition:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    return False
                self._clock.wait(self._condition, min(left, POLL_S))
        return True

    def _alive(self) -> bool:
        return any(worker.is_running for worker in self._workers)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def state(self) -> ForwardState:
        """Return a snapshot of the state."""
        with self._condition:
            return ForwardState(
                self._counts.requests("confirmed"),
                self._counts.requests("refused"),
                len(self._attempts),
                self._in_flight,
                self._breaker.is_down,
                self._problem,
                self._halted,
                self._counts.requests("denied"),
            )

    def replay(self, ref: BundleRef, bundle: Bundle) -> Outcome:
        """
        Send a dead letter once, in the calling thread, and return the outcome.

        It has the same batch ids as the original.
        """
        return send_once(self._parts, bundle, f"{self._origin}/{ref}" if self._origin else "")

    # ── one thread ───────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> Finished | None:
        with self._claim_lock:
            bundles = self._next()
        if bundles:
            self._forward(bundles)
            return None
        with self._condition:
            self._condition.notify_all()
        return FINISHED

    def _fail(self, died: WorkerDiedError) -> None:
        """Halt all threads: without this one, some bundles would no longer be sent."""
        with self._condition:
            self.died = died
            self._halted = self._problem = str(died)
            self._condition.notify_all()

    def forward_one(self) -> bool:
        """
        Claim one bundle, or several to combine, and send it in the calling thread.

        Return False if none is pending or none may be sent now.

        Raises:
            QuiverError: the store could not return a bundle.
            OSError: the disk failed.
        """
        with self._condition:
            if self._stopped or self._halted or self._breaker.wait_s(self._clock.monotonic()) > 0:
                return False
        bundles = self._take_some(0)
        if bundles:
            self._forward(bundles)
        return bool(bundles)

    def _next(self) -> list[TakenBundle]:
        """Return the bundles to send next; an empty list when it is time to stop."""
        while self._await_breaker():
            timeout = 0.0 if self._draining else POLL_S
            try:
                bundles = self._take_some(timeout)
            except (StoreClosedError, UnknownSubscriberError):
                return []
            except (QuiverError, OSError) as error:
                self._counts.local_problem(str(error))
                if self._draining:
                    return []
                with self._condition:
                    self._clock.wait(self._condition, STORE_RETRY_S)
                continue
            if bundles:
                return bundles
            self._attempts.save()
            if self._draining and timeout == 0:
                return []
        return []

    def _await_breaker(self) -> bool:
        """Wait until a bundle may be tried; return False when it is time to stop."""
        with self._condition:
            while not self._stopped:
                wait_s = POLL_S if self._halted else self._breaker.wait_s(self._clock.monotonic())
                if wait_s <= 0:
                    return True
                if self._draining:
                    return False  # the destination is down, or the forwarder halted
                self._clock.wait(self._condition, wait_s)
        return False

    def _take_some(self, timeout: float) -> list[TakenBundle]:
        """Claim a bundle; to combine small ones, claim more until the batch is large enough or its delay is over."""
        # While the destination is down, a single bundle probes it. Prefer one that was not tried before: another may
        # fail because of its own data.
        first = self._taker.take(timeout, prefer_new=self._breaker.is_down)
        # Skipping needs no destination, so it neither waits for one that is down nor uses up its probe.
        while first is not None and self._taker.skip(first):
            first = None if self._stopped else self._taker.take(0.0, prefer_new=self._breaker.is_down)
        if first is None:
            return []
        self._begin(1)
        bundles = [first]
        if not self._sizes.batch_bytes_min or self._breaker.is_down or first.ref in self._attempts:
            return bundles
        deadline = self._clock.monotonic() + self._sizes.batch_delay_s_max
        first.read()
        size = first.nbytes
        try:
            while first.requests and size < self._sizes.batch_bytes_min and len(bundles) < COMBINED_MAX:
                before = self._clock.monotonic()
                wait_s = 0.0 if self._draining or self._stopped else min(max(deadline - before, 0.0), POLL_S)
                missing = self._sizes.batch_bytes_min - size
                count = min(-(-missing * len(bundles) // size), COMBINED_MAX - len(bundles))
                more = self._taker.take_run(count, wait_s, bytes_max=missing)
                self._begin(len(more or ()))
                bundles += more or ()
                size += sum(bundle.nbytes for bundle in more or ())
                if more is None or (not more and (not wait_s or self._clock.monotonic() == before)):
                    break  # a failed bundle is due, which is sent individually, or the delay is over
        except (QuiverError, OSError) as error:
            self._counts.local_problem(str(error))  # the bundles claimed before are sent
        return bundles

    def _begin(self, count: int) -> None:
        with self._condition:
            self._breaker.probing(self._clock.monotonic())
            self._in_flight += count

    # ── one bundle, or several ───────────────────────────────────────────────────────────────────────

    def _forward(self, bundles: Sequence[TakenBundle]) -> None:
        alone = bundles
        try:
            if len(bundles) > 1:
                alone = self._send_combined(bundles)
        except Exception as error:  # noqa: BLE001 - a bug in a sender must not end the thread
            self._counts.local_problem(f"{type(error).__name__}: {error}")
        self._end(len(bundles) - len(alone))
        for bundle in alone:
            try:
                self._forward_alone(bundle)
            finally:
                self._end(1)

    def _end(self, count: int) -> None:
        with self._condition:
            self._in_flight -= count
            if not self._in_flight:
                self._condition.notify_all()

    def _send_combined(self, bundles: Sequence[TakenBundle]) -> Sequence[TakenBundle]:
        """
        Send the requests of *bundles* that can be combined, and acknowledge the bundles that are confirmed by that.

        Return the bundles to settle individually.

        A refused combined request does not show which bundle is refused, so its bundles are sent individually. After a
        combined request that must be retried later, nothing more is sent.
        """
        for request in combined(bundles, self._limit.bytes_max):
            batch_id = f"{self._origin}/{request.batch_id}" if self._origin else ""
            reply = self._sender.send(request.signal, request.data, batch_id)
            if reply.outcome == "retry":
                return self._combined_failed(bundles, request, reply)
            if reply.outcome == "refused":
                self._answered(request.signal, request.data, Reply("refused", reply.reason, is_too_large=True))
                continue
            self._limit.accepted(len(request.data))
            for bundle, number in request.members:
                bundle.attempts.of(number).settle(0, ALL_RECORDS)
            self._answered(request.signal, request.data, reply, parts=request.parts)
        confirmed: list[TakenBundle] = []
        others: list[TakenBundle] = []
        for bundle in bundles:
            (confirmed if bundle.is_confirmed else others).append(bundle)
        try:
            acknowledge(confirmed, others)
        except (StoreClosedError, UnknownSubscriberError):
            return others  # the confirmed ones are delivered again if the subscriber still exists
        except BundleUnavailableError:
            pass  # the subscriber was released: nothing is left to decide
        if not self._attempts.is_empty:
            for bundle in confirmed:
                self._attempts.remove(bundle.ref)
        return others

    def _combined_failed(
        self, bundles: Sequence[TakenBundle], request: CombinedRequest, reply: Reply
    ) -> Sequence[TakenBundle]:
        self._counts.answered(request.signal, request.data, reply)
        failed = {bundle: None for bundle, _ in request.members}
        for number, bundle in enumerate(failed):
            with contextlib.suppress(BundleUnavailableError, StoreClosedError, UnknownSubscriberError):
                self._attempts.add(bundle.ref, bundle.attempts)
                self._defer(bundle, reply, is_one_more=number > 0)
        self._attempts.save()
        settled = []
        for bundle in bundles:
            if bundle in failed:
                continue
            if bundle.requests and all(not bundle.attempts.of(at).is_untouched for at in range(len(bundle.requests))):
                settled.append(bundle)
                continue
            with contextlib.suppress(BundleUnavailableError, StoreClosedError, UnknownSubscriberError), bundle.handle:
                # Leaving it undecided makes it pending again.
                self._attempts.add(bundle.ref, bundle.attempts)
        return settled

    def _forward_alone(self, bundle: TakenBundle) -> None:
        try:
            self._settle(bundle)
        except BundleUnavailableError:
            # The store dropped it by policy, or the subscriber was released: nothing is left to decide.
            self._attempts.remove(bundle.ref)
        except (StoreClosedError, UnknownSubscriberError):
            pass  # it is delivered again if the subscriber still exists
        except Exception as error:  # noqa: BLE001 - a bug here or in a sender must not end the thread
            self._counts.local_problem(f"{type(error).__name__}: {error}")
            with contextlib.suppress(QuiverError):
                self._defer_unread(bundle, type(error).__name__, error)

    def _settle(self, bundle: TakenBundle) -> None:
        handle = bundle.handle
        try:
            requests = bundle.requests = bundle.requests or requests_of(bundle.content)
        except (OSError, UnsupportedFormatError) as error:
            self._defer_unread(bundle, "READ", error)
            return
        except (InvalidBundleError, CorruptionError) as error:
            kind = type(error).__name__
            self._counts.unsendable(kind, str(error))
            # A damaged bundle cannot be read; one that cannot be converted to a request can.
            content = None if isinstance(error, CorruptionError) else bundle.content
            self._failed(handle, Permanent(kind, str(error)), lambda: content)
            return
        self._attempts.add(bundle.ref, bundle.attempts)
        attempts = bundle.attempts
        for number, (signal, request) in enumerate(requests):
            batch_id = f"{self._origin}/{handle.ref}/{number}" if self._origin else ""
            later = self._parts.send(signal, request, attempts.of(number), batch_id)
            if later is not None:
                self._counts.answered(signal, request, later)
                self._defer(bundle, later)
                return
        refused = [attempts.of(number).why for number in range(len(requests)) if attempts.of(number).why is not None]
        if refused and refused[-1] is not None:
            if self._failed(handle, refused[-1], lambda: self._unconfirmed_part(bundle)):
                # It could not become a dead letter and is retried: refused credentials may be accepted by then.
                attempts.forget_denials()
            return
        handle.ack()
        self._attempts.remove(handle.ref)

    @staticmethod
    def _unconfirmed_part(bundle: TakenBundle) -> Bundle:
        """Return the unconfirmed part of a bundle."""
        return bundle_of(bundle.content, bundle.requests or (), bundle.attempts.requests)

    def _answered(self, signal: str, request: bytes, reply: Reply, *, parts: Sequence[bytes] = ()) -> None:
        """Record an answer that settles a request. Whether confirmed or refused, the destination is up."""
        self._counts.answered(signal, request, reply, parts=parts)
        with self._condition:
            self._problem = ""
            was_down = self._breaker.succeeded()
            if was_down:
                self._condition.notify_all()
        if was_down:
            self._counts.event("quiver.exporter.up", level=logging.INFO)
            self._attempts.remove_dropped()

    def _defer(self, bundle: TakenBundle, reply: Reply, *, is_one_more: bool = False) -> None:
        """
        Record that the destination could not accept a bundle, and apply the policy.

        *is_one_more*: the failed request was already recorded for another bundle, so it does not count again as a
        failure of the destination.
        """
        handle = bundle.handle
        outcome = Transient(reply.reason, reply.message, reply.retry_after_s)
        with self._condition:
            self._problem = str(outcome)
        if reply.reason == "CLOSED":
            # The sender was closed, which does not count as an attempt.
            handle.nack(0.0)
            return
        delay_s = self._failed(handle, outcome, lambda: self._unconfirmed_part(bundle), save=not is_one_more)
        if is_one_more:
            return
        with self._condition:
            now_s = self._clock.monotonic()
            went_down = self._breaker.failed(handle.ref, now_s, min(reply.retry_after_s or 0.0, delay_s))
        if went_down:
            self._counts.event("quiver.exporter.down", problem=str(outcome))

    def _failed(
        self,
        handle: ForwardedHandle,
        outcome: Transient | Permanent,
        content: Callable[[], Bundle | None],
        *,
        save: bool = True,
    ) -> float:
        """Defer the bundle, or apply `on_exhausted`. Return the delay."""
        try:
            verdict = self._undelivered.failed(handle.ref, outcome, content=content, save=save)
        except (CapacityError, OSError) as error:
            # It stays pending in the store; only its attempts are not counted.
            self._counts.local_problem(str(error))
            verdict = Retry(self._undelivered.policy.max_interval_s)
        if isinstance(verdict, Exhausted):
            self._apply_exhausted(handle, verdict)
            return 0.0
        handle.nack(verdict.delay_s)
        return verdict.delay_s

    def _apply_exhausted(self, handle: ForwardedHandle, verdict: Exhausted) -> None:
        if verdict.how == "halt":
            with self._condition:
                self._halted = self._problem = verdict.reason
                self._condition.notify_all()
            handle.nack(0.0)
            return
        handle.reject(verdict.reason)
        self._attempts.remove(handle.ref)

    def _defer_unread(self, bundle: TakenBundle, reason: str, error: Exception) -> None:
        """Defer a bundle that could not be read. It does not count as an attempt or as a failure of the destination."""
        self._counts.unread(reason, str(error))
        self._attempts.add(bundle.ref, bundle.attempts)
        with self._condition:
            bundle.attempts.read_failures += 1
            delay_s = self._undelivered.policy.delay_s(bundle.attempts.read_failures, self._random)
            self._problem = f"{reason}: {error}"
        bundle.handle.nack(delay_s)
