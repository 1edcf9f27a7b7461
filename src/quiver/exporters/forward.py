"""
Drain a subscriber to a far side: take a bundle, send what is in it, acknowledge, defer or reject it.

======================  ==========================================================================
the far side            the bundle
======================  ==========================================================================
confirms                is acknowledged
cannot take it now      is deferred, each time for longer up to a cap, and newer ones go before it
refuses it for good     is given up as the policy says: a dead letter, dropped and counted, or all stops here
======================  ==========================================================================

A request that is too large for the far side is divided between records, and the small ones of several bundles may be
combined into one (`RequestSizes`). A bundle is acknowledged when all of it is confirmed; of one that failed only the
records that were not confirmed are sent again. It is delivered at least once: what was confirmed and not yet written as
progress when the process died is sent again.
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
from quiver.exporters.circuit_breaker import Pace
from quiver.exporters.counts import ExporterCounts
from quiver.exporters.forward_state import ForwardState
from quiver.exporters.once import send_once
from quiver.exporters.parts import ALL_RECORDS, PartSender
from quiver.exporters.ports import ForwardedHandle, Sender, Source
from quiver.exporters.reply import Reply
from quiver.exporters.requests import bundle_of, requests_of
from quiver.exporters.settings import RequestSizes
from quiver.exporters.size_limit import SizeLimit
from quiver.exporters.taken import CombinedRequest, TakenBundle, combined
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.backoff import Backoff
from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDiedError

__all__ = ["BundleForwarder", "ForwardState", "ForwardedHandle", "Sender", "Source"]

LOOK_S = 0.2
"""A thread that waits for a bundle looks this often whether it shall stop."""

COMBINED_MAX = 1024
"""So many bundles at most are combined: each of them is claimed meanwhile."""

TROUBLE_S = 1.0
"""Before the store is asked again after it could not give a bundle."""


class BundleForwarder:
    """
    Sends a subscriber's bundles on, from threads of its own between `start` and `stop`. A context manager.

    Args:
        source: the subscriber; nobody else takes from it.
        sender: closed by `stop`.
        origin: the id of the store; with it each request carries a batch id that is the same whenever it is sent again:
            ``<origin>/<segment>:<index>/<number of the request>``, and ``/<first record>-<next>`` after it for a part.
        sizes: how large requests are.
        in_flight_max: bundles being sent at once, each in a thread.
        retry: how long a bundle waits after each of its failures, without end; what is refused is dropped. Not with
            *undelivered*.
        undelivered: the policy, and where what was not delivered is kept; closed by `stop`. Its delays are those of
            the pauses while the far side is down, too.
        random: where jitter comes from.
        clock: for the pauses.
        observer: takes counts and events.
        stats: takes what every exporter counts, and the last failure.

    Attributes:
        died: why a thread of it ended and nothing is sent any more; None while all is well. Make another.
    """

    def __init__(
        self,
        source: Source,
        sender: Sender,
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
        self._pace = Pace(self._undelivered.policy.backoff, random)
        self._condition = threading.Condition(threading.Lock())
        self._turn = threading.Lock()  # one thread looks for a bundle, the others wait for their turn
        self._attempts = AttemptTable(source, self._undelivered, self._counts.trouble)
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
        Begin to send. Once.

        Raises:
            StoreClosedError: it was stopped; make another.
        """
        with self._condition:
            if self._stopped or self._draining:
                raise StoreClosedError("this forwarder was stopped; make another")
            if self._workers:
                return
            self._attempts.forget_resolved()
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
            StoreClosedError: the store was closed.
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
        """Return what it is at."""
        with self._condition:
            return ForwardState(
                self._counts.requests("confirmed"),
                self._counts.requests("refused"),
                len(self._attempts),
                self._in_flight,
                self._pace.is_down,
                self._problem,
                self._halted,
                self._counts.requests("denied"),
            )

    def send_again(self, ref: BundleRef, bundle: Bundle) -> Outcome:
        """
        Send once, in the calling thread, a bundle that was given up; return what became of it. It carries the batch ids
        that it had.
        """
        return send_once(self._parts, bundle, f"{self._origin}/{ref}" if self._origin else "")

    # ── one thread ───────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> Finished | None:
        with self._turn:
            bundles = self._next()
        if bundles:
            self._forward(bundles)
            return None
        with self._condition:
            self._condition.notify_all()
        return FINISHED

    def _fail(self, died: WorkerDiedError) -> None:
        """Send nothing more: a part of the bundles would no longer be sent."""
        with self._condition:
            self.died = died
            self._halted = self._problem = str(died)
            self._condition.notify_all()

    def forward_one(self) -> bool:
        """
        Take one bundle, or several that are combined, and send it, in the calling thread; False when none is pending,
        or none may be sent now.

        Raises:
            QuiverError: the store could not give a bundle.
            OSError: the same, for what the disk says.
        """
        with self._condition:
            if self._stopped or self._halted or self._pace.wait_s(self._clock.monotonic()) > 0:
                return False
        bundles = self._take_some(0)
        if bundles:
            self._forward(bundles)
        return bool(bundles)

    def _next(self) -> list[TakenBundle]:
        """Return what to send next, when there is something; nothing when it is time to end."""
        while self._await_pace():
            timeout_s = 0.0 if self._draining else LOOK_S
            try:
                bundles = self._take_some(timeout_s)
            except (StoreClosedError, UnknownSubscriberError):
                return []
            except (QuiverError, OSError) as error:
                self._counts.trouble(str(error))
                if self._draining:
                    return []
                with self._condition:
                    self._clock.wait(self._condition, TROUBLE_S)
                continue
            if bundles:
                return bundles
            self._attempts.save()
            if self._draining and timeout_s == 0:
                return []
        return []

    def _await_pace(self) -> bool:
        """Wait until a bundle may be tried; False when it is time to end."""
        with self._condition:
            while not self._stopped:
                wait_s = LOOK_S if self._halted else self._pace.wait_s(self._clock.monotonic())
                if wait_s <= 0:
                    return True
                if self._draining:
                    return False  # the far side is down, or nothing is to be sent
                self._clock.wait(self._condition, wait_s)
        return False

    def _take_some(self, timeout_s: float) -> list[TakenBundle]:
        """Take a bundle; when small ones are combined, so many that they make a batch, or that come in its time."""
        first = self._take(timeout_s)
        if first is None:
            return []
        bundles = [first]
        if not self._sizes.batch_bytes_min or self._pace.is_down or first.handle.ref in self._attempts:
            return bundles
        deadline = self._clock.monotonic() + self._sizes.batch_delay_s_max
        size = self._read(first)
        try:
            while first.requests and size < self._sizes.batch_bytes_min and len(bundles) < COMBINED_MAX:
                before = self._clock.monotonic()
                wait_s = 0.0 if self._draining or self._stopped else min(max(deadline - before, 0.0), LOOK_S)
                more = self._take(wait_s, only_new=True)
                if more is not None:
                    bundles.append(more)
                    size += self._read(more)
                elif not wait_s or self._clock.monotonic() == before:
                    break  # the time is over, or a bundle that failed before is due, which is sent by itself
        except (QuiverError, OSError) as error:
            self._counts.trouble(str(error))  # what was taken before is sent all the same
        return bundles

    def _take(self, timeout_s: float, *, only_new: bool = False) -> TakenBundle | None:
        """Take one bundle whose time has come; with *only_new* one that was not tried before."""
        with self._condition:
            # While the far side is down a single bundle decides whether it is up again: that should not be one that
            # failed for reasons of its own, as long as there is another.
            count = len(self._attempts) + 1 if self._pace.is_down or only_new else 1
        while handles := self._source.next_bundles(count, timeout_s):
            ready = [one for one in handles if not self._attempts.put_off(one)]
            if ready:
                break
        else:
            return None
        new = next((one for one in ready if one.ref not in self._attempts), None)
        chosen = None if new is None and only_new else new or ready[0]
        with self._condition:
            if chosen is not None:
                self._pace.probing(self._clock.monotonic())
                self._in_flight += 1
        for other in ready:
            if other is not chosen:
                with other:
                    pass  # left without a decision, it is pending as before
        return None if chosen is None else TakenBundle(chosen, self._attempts.get(chosen.ref))

    @staticmethod
    def _read(bundle: TakenBundle) -> int:
        """
        Read a bundle that is to be combined; return how large it is. One that cannot be read is sent by itself, which
        says why.
        """
        with contextlib.suppress(QuiverError, OSError):
            bundle.requests = requests_of(bundle.handle.bundle)
        return bundle.nbytes

    # ── one bundle, or several ───────────────────────────────────────────────────────────────────────

    def _forward(self, bundles: Sequence[TakenBundle]) -> None:
        alone: Sequence[TakenBundle] = bundles
        try:
            if len(bundles) > 1:
                alone = self._send_combined(bundles)
        except Exception as error:  # noqa: BLE001 - the edge: a fault of a sender must not end the thread
            self._counts.trouble(f"{type(error).__name__}: {error}")
        for bundle in bundles:
            try:
                if bundle in alone:
                    self._forward_alone(bundle)
            finally:
                with self._condition:
                    self._in_flight -= 1
                    if not self._in_flight:
                        self._condition.notify_all()

    def _send_combined(self, bundles: Sequence[TakenBundle]) -> Sequence[TakenBundle]:
        """
        Send what can be combined of *bundles*; return those that are still to be settled, each by itself.

        A combined request that is refused says nothing of each of them: they are sent alone. After one that has to be
        sent again later nothing more is sent.
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
            self._answered(request.signal, request.data, reply)
        return bundles

    def _combined_failed(
        self, bundles: Sequence[TakenBundle], request: CombinedRequest, reply: Reply
    ) -> Sequence[TakenBundle]:
        self._counts.answered(request.signal, request.data, reply)
        failed = {bundle: None for bundle, _ in request.members}
        for number, bundle in enumerate(failed):
            with contextlib.suppress(BundleUnavailableError, StoreClosedError, UnknownSubscriberError):
                self._attempts.keep(bundle.handle.ref, bundle.attempts)
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
                # Left without a decision, it is pending as before.
                self._attempts.keep(bundle.handle.ref, bundle.attempts)
        return settled

    def _forward_alone(self, bundle: TakenBundle) -> None:
        handle = bundle.handle
        try:
            self._settle(bundle)
        except BundleUnavailableError:
            # Policy dropped it meanwhile, or the subscriber was released: nothing is left to decide.
            self._attempts.forget(handle.ref)
        except (StoreClosedError, UnknownSubscriberError):
            pass  # it will be delivered again, or to nobody
        except Exception as error:  # noqa: BLE001 - the edge: a fault of ours or of a sender must not end the thread
            self._counts.trouble(f"{type(error).__name__}: {error}")
            with contextlib.suppress(QuiverError):
                self._defer_unread(bundle, type(error).__name__, error)

    def _settle(self, bundle: TakenBundle) -> None:
        handle = bundle.handle
        try:
            requests = bundle.requests = bundle.requests or requests_of(handle.bundle)
        except (OSError, UnsupportedFormatError) as error:
            self._defer_unread(bundle, "READ", error)
            return
        except (InvalidBundleError, CorruptionError) as error:
            kind = type(error).__name__
            self._counts.unsendable(kind, str(error))
            # What is damaged cannot be read again; what is only no request can.
            content = None if isinstance(error, CorruptionError) else handle.bundle
            self._failed(handle, Permanent(kind, str(error)), lambda: content)
            return
        self._attempts.keep(bundle.handle.ref, bundle.attempts)
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
            if self._failed(handle, refused[-1], lambda: self._left_of(bundle)):
                # It could not become a dead letter, and is tried again: whoever was not let in may be by then.
                attempts.forget_denials()
            return
        handle.ack()
        self._attempts.forget(handle.ref)

    @staticmethod
    def _left_of(bundle: TakenBundle) -> Bundle:
        """Return what the far side did not confirm of a bundle."""
        return bundle_of(bundle.handle.bundle, bundle.requests or (), bundle.attempts.requests)

    def _answered(self, signal: str, request: bytes, reply: Reply) -> None:
        """Take note of an answer that settles a request, one way or the other. Either way the far side is up."""
        self._counts.answered(signal, request, reply)
        with self._condition:
            self._problem = ""
            was_down = self._pace.succeeded()
            if was_down:
                self._condition.notify_all()
        if was_down:
            self._counts.event("quiver.exporter.up", level=logging.INFO)
            self._attempts.forget_dropped()

    def _defer(self, bundle: TakenBundle, reply: Reply, *, is_one_more: bool = False) -> None:
        """
        Take note that the far side could not take a bundle, and do what the policy says. *is_one_more*: in a request
        that failed for another bundle already, which says no more of the far side.
        """
        handle = bundle.handle
        outcome = Transient(reply.reason, reply.message, reply.retry_after_s)
        with self._condition:
            self._problem = str(outcome)
        if reply.reason == "CLOSED":
            # It was broken off here, which is no attempt.
            handle.defer(0.0)
            return
        delay_s = self._failed(handle, outcome, lambda: self._left_of(bundle), save=not is_one_more)
        if is_one_more:
            return
        with self._condition:
            now_s = self._clock.monotonic()
            went_down = self._pace.failed(handle.ref, now_s, min(reply.retry_after_s or 0.0, delay_s))
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
        """Give the bundle back for later, or give it up; return for how long."""
        try:
            verdict = self._undelivered.failed(handle.ref, outcome, content=content, save=save)
        except (CapacityError, OSError) as error:
            # It is pending in the store all the same; only its attempts are not counted.
            self._counts.trouble(str(error))
            verdict = Retry(self._undelivered.policy.max_interval_s)
        if isinstance(verdict, Exhausted):
            self._give_up(handle, verdict)
            return 0.0
        handle.defer(verdict.delay_s)
        return verdict.delay_s

    def _give_up(self, handle: ForwardedHandle, verdict: Exhausted) -> None:
        if verdict.how == "halt":
            with self._condition:
                self._halted = self._problem = verdict.reason
                self._condition.notify_all()
            handle.defer(0.0)
            return
        handle.reject(verdict.reason)
        self._attempts.forget(handle.ref)

    def _defer_unread(self, bundle: TakenBundle, reason: str, error: Exception) -> None:
        """Give a bundle back that could not be read: that is no failure of the far side, and uses nothing up."""
        self._counts.unread(reason, str(error))
        self._attempts.keep(bundle.handle.ref, bundle.attempts)
        with self._condition:
            bundle.attempts.troubles += 1
            delay_s = self._undelivered.policy.delay_s(bundle.attempts.troubles, self._random)
            self._problem = f"{reason}: {error}"
        bundle.handle.defer(delay_s)
