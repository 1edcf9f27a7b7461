"""
The retry policy. Pure: time and randomness are arguments.

============================================  ====================================================================
the destination                               the bundle
============================================  ====================================================================
has the bundle (`Delivered`)                  is resolved
cannot accept the bundle now (`Transient`)    is retried with exponential backoff, up to a limit of attempts or time
never accepts the bundle (`Permanent`)        is not retried
============================================  ====================================================================

When retries are used up, and after a permanent refusal, the policy's `on_exhausted` applies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, get_args

from quiver.errors import CorruptionError, InvalidBundleError, SettingsError
from quiver.primitives.backoff import Backoff

__all__ = [
    "PROCESSOR_ATTEMPTS",
    "RETRY_AFTER_S_MAX",
    "Delivered",
    "Done",
    "Exhausted",
    "OnExhausted",
    "Outcome",
    "Permanent",
    "Retry",
    "RetryPolicy",
    "Transient",
    "Verdict",
    "outcome_of_error",
]

OnExhausted = Literal["halt", "drop", "dead_letter"]

RETRY_AFTER_S_MAX = 600.0
"""Upper bound of the delay that a destination may ask for."""

PROCESSOR_ATTEMPTS = 5
"""Attempts for a bundle that a processor fails on, if the policy limits neither attempts nor time."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The destination has the bundle."""


@dataclass(frozen=True, slots=True)
class Transient:
    """
    The destination could not accept the bundle now.

    Attributes:
        reason: a short name for metrics, such as ``UNAVAILABLE``.
        message: human-readable details.
        retry_after_s: the delay that the destination asked for; None if it did not.
    """

    reason: str
    message: str = ""
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


@dataclass(frozen=True, slots=True)
class Permanent:
    """
    The bundle can never be delivered: the destination refused it, or its data are invalid.

    Attributes:
        reason: a short name for metrics, such as ``HTTP 400``.
        message: human-readable details.
        is_data_refused: the data were refused, and would be again; not the credentials or the address.
    """

    reason: str
    message: str = ""
    is_data_refused: bool = True

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


Outcome = Delivered | Transient | Permanent


def outcome_of_error(error: Exception) -> Transient | Permanent:
    """Classify an error: data that cannot be read or encoded are permanent, everything else is transient."""
    kind = type(error).__name__
    if isinstance(error, InvalidBundleError | CorruptionError):
        return Permanent(kind, str(error))
    return Transient(kind, str(error))


@dataclass(frozen=True, slots=True)
class Done:
    """The bundle is resolved."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The bundle is retried after `delay_s` seconds."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Exhausted:
    """
    The bundle is not retried.

    Attributes:
        how: `halt`: the exporter stops until an operator restarts it; `drop`: the bundle is dropped and counted;
            `dead_letter`: it is added to the exporter's dead letters.
        reason: the human-readable reason.
    """

    how: OnExhausted
    reason: str


Verdict = Done | Retry | Exhausted


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """
    How often and how long an exporter retries, and what happens when retries are used up.

    Attributes:
        initial_interval_s: the delay after the first failure.
        max_interval_s: the maximum delay, unless the destination asks for a longer one.
        multiplier: the factor from one delay to the next.
        jitter: the random part of a delay: 0 for none, 1 for a delay between zero and the full value.
        max_attempts: the number of failed attempts after which retries end; None: no limit.
        max_elapsed_s: the seconds since the first failure after which a failure ends retries; None: no limit.
        on_exhausted: applies to a bundle whose retries are used up, and to one refused permanently.

    Raises:
        SettingsError: out of range.
    """

    initial_interval_s: float = 1.0
    max_interval_s: float = 30.0
    multiplier: float = 2.0
    jitter: float = 0.5
    max_attempts: int | None = None
    max_elapsed_s: float | None = None
    on_exhausted: OnExhausted = "dead_letter"

    def __post_init__(self) -> None:
        _ = self.backoff  # which checks its own numbers
        if self.max_attempts is not None and self.max_attempts < 1:
            raise SettingsError(f"max_attempts must be at least 1, not {self.max_attempts}")
        if self.max_elapsed_s is not None and not 0 < self.max_elapsed_s < math.inf:
            raise SettingsError(f"max_elapsed must be above 0, not {self.max_elapsed_s}")
        words = get_args(OnExhausted)
        if self.on_exhausted not in words:
            raise SettingsError(f"on_exhausted: {self.on_exhausted!r} is not {', '.join(words)}")

    @property
    def backoff(self) -> Backoff:
        """The delays without the limits."""
        return Backoff(self.initial_interval_s, self.max_interval_s, self.multiplier, self.jitter)

    def delay_s(self, attempts: int, random: Random) -> float:
        """
        Return the seconds to wait after failure number *attempts*, counted from 1.

        It depends only on the count, so a bundle whose count was read from disk continues its backoff.
        """
        # Compare logarithms: a power of a large multiplier overflows a float.
        growth = math.log(self.max_interval_s) - math.log(self.initial_interval_s)
        is_longest = (attempts - 1) * math.log(self.multiplier) >= growth
        grown = self.max_interval_s if is_longest else self.initial_interval_s * self.multiplier ** (attempts - 1)
        return min(grown, self.max_interval_s) * (1 - self.jitter * random.random())

    def for_processors(self) -> RetryPolicy:
        """
        Return the policy for a bundle that a processor fails on.

        A bundle that fails because of its content always fails, so its attempts are limited.
        """
        if self.max_attempts is None and self.max_elapsed_s is None:
            return replace(self, max_attempts=PROCESSOR_ATTEMPTS)
        return self

    @classmethod
    def of_backoff(cls, backoff: Backoff, *, on_exhausted: OnExhausted = "dead_letter") -> RetryPolicy:
        """Return a policy with the delays of *backoff* that retries without limit."""
        return cls(
            initial_interval_s=backoff.first_s,
            max_interval_s=backoff.cap_s,
            multiplier=backoff.factor,
            jitter=backoff.jitter,
            on_exhausted=on_exhausted,
        )

    def decide(self, outcome: Outcome, *, attempts: int, elapsed_s: float, random: Random) -> Verdict:
        """
        Return whether the bundle is resolved, retried or exhausted.

        Args:
            outcome: the outcome of the last attempt.
            attempts: the number of failed attempts, including the last one.
            elapsed_s: the time since the first failure.
            random: source of jitter.
        """
        if isinstance(outcome, Delivered):
            return Done()
        if isinstance(outcome, Permanent):
            return Exhausted(self.on_exhausted, str(outcome))
        if self.max_attempts is not None and attempts >= self.max_attempts:
            return Exhausted(self.on_exhausted, f"{attempts} attempts failed; the last with {outcome}")
        if self.max_elapsed_s is not None and elapsed_s >= self.max_elapsed_s:
            return Exhausted(self.on_exhausted, f"failed for {elapsed_s:.0f} s; the last time with {outcome}")
        after_s = min(outcome.retry_after_s or 0.0, RETRY_AFTER_S_MAX)
        return Retry(max(self.delay_s(attempts, random), after_s))
