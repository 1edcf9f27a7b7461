"""
What an exporter does with a bundle that its far side did not take: the policy, the retry set and the dead letters as
one object. A forwarder asks it for each bundle, a Spark query for each bundle of a batch before the batch is committed.

::

    failed(ref, outcome)  → Again     in the retry set, durably           the position may pass it, no ack does
                          → GiveUp    a dead letter, durably, or counted  it may be acknowledged
    resolved(ref)                     out of the retry set                when it was acknowledged, or just before
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
from quiver.delivery.policy import Again, Done, GiveUp, Permanent, RetryPolicy, Transient
from quiver.errors import CapacityError, QuiverError, UsageError
from quiver.observe import InMemoryObserver, Observer
from quiver.store.reading.retry_set import RetrySet

if TYPE_CHECKING:
    from quiver.delivery.dead_letters import DeadLetters  # has the engine, which a Spark process has no use for

__all__ = ["Undelivered"]

SAVE_EVERY_S = 1.0
"""What was delivered after all need not leave the set at once: until it does it is looked at once more."""

TOLD_AGAIN_S = 60.0
"""A bundle given up for the same reason is told so often at most: whoever refuses one refuses many."""


class Undelivered:
    """
    What one exporter has to try again, and what it gave up. Thread-safe.

    Args:
        exporter: its name, for counts and events.
        policy: how often, how long, and what then.
        retries: where what failed waits; in memory when None.
        letters: where what is given up goes.
        random: where jitter comes from.
        clock: spaces what is told, and what is saved.
        observer: takes counts and events.

    Raises:
        UsageError: the policy is to keep dead letters, and there is no place for them.
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
            raise UsageError(f"{exporter}: on_exhausted=dead_letter needs a place for dead letters")
        self.exporter = exporter
        self.policy = policy
        self.retries = RetrySet(clock=clock) if retries is None else retries
        self._letters = letters
        self._random = random or Random()  # noqa: S311 - jitter, not a secret
        self._clock = clock
        self._observer = observer or InMemoryObserver()
        self._lock = threading.Lock()
        self._saved_at_s = clock.monotonic()
        self._told_at_s: dict[str, float] = {}

    def failed(
        self,
        ref: BundleRef,
        outcome: Transient | Permanent,
        *,
        content: Callable[[], Bundle | None],
        save: bool = True,
    ) -> Again | GiveUp:
        """
        Take note of a failed attempt and say what is to be done. What is answered is durable on return.

        Args:
            ref: the bundle.
            outcome: of the attempt.
            content: of the bundle, asked for when it becomes a letter; None when it cannot be read.
            save: write the retry set now. Without it the caller does, with `save`, before it relies on it.

        Returns:
            `Again`: also when the letter could not be written: nothing is given up without it. `GiveUp`: to be
            acknowledged and `resolved`, or with `halt` to be left as it is.

        Raises:
            CapacityError: the retry set has no room for it, so the position must not pass it.
            OSError: the retry set could not be written; the same holds.
        """
        known = self.retries.get(ref)
        attempts = 1 + (0 if known is None else known.attempts)
        with self._lock:
            verdict = self.policy.decide(
                outcome, attempts=attempts, elapsed_s=self.retries.elapsed_s(ref), random=self._random
            )
            delay_s = self.policy.delay_s(attempts, self._random)
        if isinstance(verdict, Done):
            raise UsageError(f"{ref} was delivered: that is no failure")
        if isinstance(verdict, GiveUp):
            problem = self._give_up(ref, outcome, verdict, content, attempts)
            if problem is None and verdict.how != "halt":
                return verdict
            if problem is not None:
                outcome, verdict = Transient("DEAD_LETTER", problem), Again(delay_s)
        if isinstance(verdict, Again):
            self.retries.failed(ref, delay_s=verdict.delay_s, reason=str(outcome))
        else:
            with contextlib.suppress(CapacityError):  # all stops here, whether that can be noted or not
                self.retries.failed(ref, delay_s=0.0, reason=str(outcome), is_halted=True)
        if save:
            self.save()
        return verdict

    def _give_up(
        self,
        ref: BundleRef,
        outcome: Transient | Permanent,
        verdict: GiveUp,
        content: Callable[[], Bundle | None],
        attempts: int,
    ) -> str | None:
        """Keep the letter, if one is to be kept, and count; return what went wrong with it."""
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
                    is_refused=isinstance(outcome, Permanent) and outcome.is_of_data,
                )
            except (QuiverError, OSError) as error:
                self._tell("quiver.exporter.trouble", "dead letter", ref, str(error), level=logging.ERROR)
                return str(error)
        self._observer.count("quiver.exporter.given_up_total", exporter=self.exporter, how=verdict.how)
        if verdict.how == "drop" and isinstance(outcome, Permanent):
            return None  # who sent it tells of each refusal
        level = logging.ERROR if verdict.how == "halt" else logging.WARNING
        self._tell("quiver.exporter.given_up", outcome.reason, ref, verdict.reason, level=level, how=verdict.how)
        return None

    def _tell(self, name: str, reason: str, ref: BundleRef, message: str, *, level: int, how: str = "") -> None:
        with self._lock:
            now_s = self._clock.monotonic()
            told_at_s = self._told_at_s.get(f"{name} {reason}")
            if told_at_s is not None and now_s - told_at_s < TOLD_AGAIN_S:
                return
            self._told_at_s[f"{name} {reason}"] = now_s
        more = {"how": how} if how else {}
        self._observer.event(name, level=level, exporter=self.exporter, bundle=str(ref), message=message, **more)

    def resolved(self, ref: BundleRef) -> None:
        """
        Take note that a bundle is delivered, given up, or gone. Durable within a second, or with `save`.

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
        Write the retry set, if it changed. Durable on return.

        Raises:
            OSError: the disk refused; the next call tries again.
        """
        with self._lock:
            self._saved_at_s = self._clock.monotonic()
        self.retries.save()

    def close(self) -> None:
        """Write what changed, and let go of the retry set and the dead letters. Idempotent."""
        # Neither failure loses anything: what is not written is tried, or given up, once more.
        with contextlib.suppress(OSError):
            self.retries.close()
        if self._letters is not None:
            with contextlib.suppress(QuiverError, OSError):
                self._letters.close()
