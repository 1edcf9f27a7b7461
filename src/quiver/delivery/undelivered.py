"""
Retry policy, retry set and dead letters of an exporter as one object.

A forwarder calls it for each failed bundle, a Spark query for each failed bundle of a batch before the commit.

::

    failed(ref, outcome)  → Retry       durably in the retry set            the position may pass it, no ack may
                          → Exhausted   a durable dead letter, or counted   it may be acknowledged
    resolved(ref)                       removed from the retry set          after the acknowledgement or just before
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from quiver.bundle import Bundle, BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.delivery.policy import Done, Exhausted, Permanent, Retry, RetryPolicy, Transient
from quiver.errors import CapacityError, DeliveryHaltedError, InvariantError, QuiverError, UsageError
from quiver.invariant import invariant
from quiver.observe import InMemoryObserver, Observer
from quiver.store.subscribers.retry_set import RetrySet

if TYPE_CHECKING:
    from quiver.delivery.dead_letters import (
        DeadLetters,  # imports the store engine, which a Spark process does not need
    )

__all__ = ["Undelivered"]

SAVE_EVERY_S = 1.0
"""A delivered bundle may stay in the saved set this long: after a crash it is tried once more."""

LOG_INTERVAL_S = 60.0
"""Minimum time between two events for the same reason: a destination that refuses one bundle refuses many."""


class Undelivered:
    """
    The undelivered bundles of one exporter: its retry set and its dead letters. Thread-safe.

    Args:
        exporter: its name, for metrics and events.
        policy: the retry policy.
        retries: the retry set; None keeps one in memory.
        letters: the dead letters.
        random: source of jitter.
        clock: limits how often events are logged and the retry set is saved.
        observer: receives counts and events.

    Raises:
        UsageError: the policy is `dead_letter`, and *letters* is None.
    """

    def __init__(
        self,
        exporter: str,
        policy: RetryPolicy,
        *,
        retries: RetrySet | None = None,
        letters: DeadLetters | None = None,
        random: Random | None = None,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
    ) -> None:
        if policy.on_exhausted == "dead_letter" and letters is None:
            raise UsageError(f"{exporter}: on_exhausted=dead_letter needs letters=DeadLetters(…)")
        self.exporter = exporter
        self.policy = policy
        self.retries = RetrySet(clock=clock) if retries is None else retries
        self._letters = letters
        self._random = random or Random()  # noqa: S311 - jitter, not a secret
        self._clock = clock
        self._observer = observer or InMemoryObserver()
        self._lock = threading.Lock()
        self._saved_at_s = clock.monotonic()
        self._logged_at_s: dict[str, float] = {}

    def failed(
        self,
        ref: BundleRef,
        outcome: Transient | Permanent,
        *,
        content: Callable[[], Bundle | None],
        save: bool = True,
    ) -> Retry | Exhausted:
        """
        Record a failed attempt and return the verdict, which is durable on return.

        Args:
            ref: the bundle.
            outcome: the outcome of the attempt.
            content: returns the bundle, called if it becomes a dead letter; returns None if it cannot be read.
            save: write the retry set now. If False, the caller must call `save` before relying on the verdict.

        Returns:
            `Retry`: keep the bundle unacknowledged; also if its dead letter could not be written. `Exhausted`:
            acknowledge the bundle and call `resolved`; with `halt`, leave it unacknowledged.

        Raises:
            CapacityError: the retry set is full, so the position must not pass the bundle.
            OSError: the retry set could not be written, so the position must not pass the bundle.
        """
        known = self.retries.get(ref)
        attempts = 1 + (0 if known is None else known.attempts)
        with self._lock:
            verdict = self.policy.decide(
                outcome, attempts=attempts, elapsed_s=self.retries.elapsed_s(ref), random=self._random
            )
            delay_s = self.policy.delay_s(attempts, self._random)
        if isinstance(verdict, Done):
            raise InvariantError(f"the policy treats no failed bundle as delivered ({ref})")
        if isinstance(verdict, Exhausted):
            problem = self._exhaust(ref, outcome, verdict, content, attempts)
            if problem is None and verdict.how != "halt":
                return verdict
            if problem is not None:
                outcome, verdict = Transient("DEAD_LETTER", problem), Retry(delay_s)
        if isinstance(verdict, Retry):
            self.retries.failed(ref, delay_s=verdict.delay_s, reason=str(outcome))
        else:
            with contextlib.suppress(CapacityError):  # the exporter halts even if this cannot be recorded
                self.retries.failed(ref, delay_s=0.0, reason=str(outcome), is_halted=True)
        if save:
            self.save()
        return verdict

    def settle(self, ref: BundleRef, outcome: Transient | Permanent, *, content: Callable[[], Bundle | None]) -> None:
        """
        Record a failed attempt of a bundle that the position passes. Call `save` before relying on it.

        Args:
            ref: the bundle.
            outcome: the outcome of the attempt.
            content: returns the bundle, as for `failed`.

        Raises:
            DeliveryHaltedError: the policy is to halt at this bundle.
            CapacityError: the retry set is full, so the position must not pass the bundle.
        """
        verdict = self.failed(ref, outcome, content=content, save=False)
        if isinstance(verdict, Retry):
            return
        if verdict.how == "halt":
            raise DeliveryHaltedError(self.exporter, str(ref), verdict.reason)
        self.resolved(ref)

    def _exhaust(
        self,
        ref: BundleRef,
        outcome: Transient | Permanent,
        verdict: Exhausted,
        content: Callable[[], Bundle | None],
        attempts: int,
    ) -> str | None:
        """Count the bundle and, if the policy asks for it, add a dead letter. Return the problem if adding failed."""
        invariant(
            verdict.how != "dead_letter" or self._letters is not None,
            f"bundle {ref} is acknowledged only after its dead letter is durable",
        )
        if verdict.how == "dead_letter" and self._letters is not None:
            known = self.retries.get(ref)
            first_ns = 0 if known is None else known.first_failed_at_ns
            try:
                self._letters.add(
                    ref,
                    content(),
                    reason=verdict.reason,
                    attempts=attempts,
                    first_failed_at_ns=first_ns,
                    is_refused=isinstance(outcome, Permanent) and outcome.is_data_refused,
                )
            except (QuiverError, OSError) as error:
                self._log("quiver.exporter.trouble", "dead letter", ref, str(error), level=logging.ERROR)
                return str(error)
        self._observer.count("quiver.exporter.given_up_total", exporter=self.exporter, how=verdict.how)
        if verdict.how == "drop" and isinstance(outcome, Permanent):
            return None  # the sender logs each refusal
        level = logging.ERROR if verdict.how == "halt" else logging.WARNING
        self._log("quiver.exporter.given_up", outcome.reason, ref, verdict.reason, level=level, how=verdict.how)
        return None

    def _log(self, name: str, reason: str, ref: BundleRef, message: str, *, level: int, how: str = "") -> None:
        with self._lock:
            now_s = self._clock.monotonic()
            logged_at_s = self._logged_at_s.get(f"{name} {reason}")
            if logged_at_s is not None and now_s - logged_at_s < LOG_INTERVAL_S:
                return
            self._logged_at_s[f"{name} {reason}"] = now_s
        more = {"how": how} if how else {}
        self._observer.event(name, level=level, exporter=self.exporter, bundle=str(ref), message=message, **more)

    def resolved(self, ref: BundleRef) -> None:
        """
        Remove a bundle that was delivered, dropped or removed from the retry set. Durable within a second or on `save`.

        Raises:
            OSError: the retry set could not be written; the next call, or `save`, tries again.
        """
        if not self.retries.resolved(ref):
            return
        with self._lock:
            is_due = self._clock.monotonic() - self._saved_at_s >= SAVE_EVERY_S
        if is_due:
            self.save()

    def save(self) -> None:
        """
        Write the retry set if it changed. Durable on return.

        Raises:
            OSError: the disk failed; the next call tries again.
        """
        with self._lock:
            self._saved_at_s = self._clock.monotonic()
        self.retries.save()

    def close(self) -> None:
        """Save and close the retry set and the dead letters. Idempotent."""
        # Neither failure loses data: after a restart the bundle is tried once more.
        with contextlib.suppress(OSError):
            self.retries.close()
        if self._letters is not None:
            with contextlib.suppress(QuiverError, OSError):
                self._letters.close()
