"""
What becomes of a bundle that was not delivered: again later, or given up, and how. Pure: time is an argument, chance is
handed in.

=============================  =================================================================================
the far side                   the bundle
=============================  =================================================================================
has it (`Delivered`)           is resolved
cannot take it (`Transient`)   waits, each time longer up to a cap, until its attempts or its time are used up
never takes it (`Permanent`)   is given up at once
=============================  =================================================================================

What "given up" means is the policy's `on_exhausted`, the same for both ways to get there.
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
    "Again",
    "Delivered",
    "Done",
    "GiveUp",
    "OnExhausted",
    "Outcome",
    "Permanent",
    "RetryPolicy",
    "Transient",
    "Verdict",
    "outcome_of_error",
]

OnExhausted = Literal["halt", "drop", "dead_letter"]

RETRY_AFTER_S_MAX = 600.0
"""A far side that wants to be left alone for longer is asked again all the same."""

PROCESSOR_ATTEMPTS = 5
"""So often a bundle is tried that a processor fails on, where the policy says neither how often nor how long."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The far side has it."""


@dataclass(frozen=True, slots=True)
class Transient:
    """
    The far side could not take it now.

    Attributes:
        reason: a short name for counting, such as ``UNAVAILABLE``.
        message: what was said, for people.
        retry_after_s: how long it wants to be left alone; None when it did not say.
    """

    reason: str
    message: str = ""
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


@dataclass(frozen=True, slots=True)
class Permanent:
    """
    The far side, or the data themselves, said that it can never be delivered.

    Attributes:
        reason: a short name for counting, such as ``HTTP 400``.
        message: what was said, for people.
        is_of_data: it is the data that are refused, not who sent them or where to: they would be refused again.
    """

    reason: str
    message: str = ""
    is_of_data: bool = True

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


Outcome = Delivered | Transient | Permanent


def outcome_of_error(error: Exception) -> Transient | Permanent:
    """
    Return what an error on the way to the far side means: data that can never be read or said are permanent, and
    everything else may pass.
    """
    kind = type(error).__name__
    if isinstance(error, InvalidBundleError | CorruptionError):
        return Permanent(kind, str(error))
    return Transient(kind, str(error))


@dataclass(frozen=True, slots=True)
class Done:
    """The bundle is resolved."""


@dataclass(frozen=True, slots=True)
class Again:
    """The bundle is tried again after `delay_s` seconds."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """
    The bundle is not tried again.

    Attributes:
        how: `halt`: the exporter stops and waits for a person; `drop`: the bundle is dropped and counted;
            `dead_letter`: it goes to the exporter's dead letters.
        reason: why, for people.
    """

    how: OnExhausted
    reason: str


Verdict = Done | Again | GiveUp


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """
    How often and how long an exporter tries, and what it does in the end.

    Attributes:
        initial_interval_s: how long a bundle waits after its first failure.
        max_interval_s: it never waits longer than this, unless the far side asks for it.
        multiplier: each time so many times as long.
        jitter: 0 takes each delay as it is; 1 takes anything between nothing and the delay.
        max_attempts: so many failed attempts use a bundle up; None: any number.
        max_elapsed_s: so many seconds after its first failure a bundle is used up when it fails again; None: never.
        on_exhausted: what becomes of a bundle that is used up, or permanently refused.

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
        """The delays alone."""
        return Backoff(self.initial_interval_s, self.max_interval_s, self.multiplier, self.jitter)

    def delay_s(self, attempts: int, random: Random) -> float:
        """
        Return the seconds to wait after the failure that was number *attempts*, 1 upwards.

        It is that of a count, not of a sequence: a bundle whose count came back from the disk goes on where it was.
        """
        # Compared by their logarithms: a power of a large multiplier is soon more than a float can hold.
        growth = math.log(self.max_interval_s) - math.log(self.initial_interval_s)
        is_longest = (attempts - 1) * math.log(self.multiplier) >= growth
        grown = self.max_interval_s if is_longest else self.initial_interval_s * self.multiplier ** (attempts - 1)
        return min(grown, self.max_interval_s) * (1 - self.jitter * random.random())

    def for_processors(self) -> RetryPolicy:
        """
        Return the policy for a bundle that a processor fails on: what fails for its content fails always, so there is
        an end to it.
        """
        if self.max_attempts is None and self.max_elapsed_s is None:
            return replace(self, max_attempts=PROCESSOR_ATTEMPTS)
        return self

    @classmethod
    def of_backoff(cls, backoff: Backoff, *, on_exhausted: OnExhausted = "dead_letter") -> RetryPolicy:
        """Return the policy that waits as *backoff* says, and never has enough of it."""
        return cls(
            initial_interval_s=backoff.first_s,
            max_interval_s=backoff.cap_s,
            multiplier=backoff.factor,
            jitter=backoff.jitter,
            on_exhausted=on_exhausted,
        )

    def decide(self, outcome: Outcome, *, attempts: int, elapsed_s: float, random: Random) -> Verdict:
        """
        Return what becomes of a bundle.

        Args:
            outcome: of the attempt that was just made.
            attempts: how many failed, this one included.
            elapsed_s: since the first of them failed.
            random: where jitter comes from.
        """
        if isinstance(outcome, Delivered):
            return Done()
        if isinstance(outcome, Permanent):
            return GiveUp(self.on_exhausted, str(outcome))
        if self.max_attempts is not None and attempts >= self.max_attempts:
            return GiveUp(self.on_exhausted, f"{attempts} attempts failed; the last with {outcome}")
        if self.max_elapsed_s is not None and elapsed_s >= self.max_elapsed_s:
            return GiveUp(self.on_exhausted, f"failed for {elapsed_s:.0f} s; the last time with {outcome}")
        after_s = min(outcome.retry_after_s or 0.0, RETRY_AFTER_S_MAX)
        return Again(max(self.delay_s(attempts, random), after_s))
