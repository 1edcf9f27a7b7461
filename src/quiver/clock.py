"""Clocks, passed as arguments. Nothing else in the library reads a clock or sleeps, except in `yielding`."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Mapping
from typing import Generic, Protocol, TypeVar

__all__ = ["SYSTEM_CLOCK", "Ages", "Clock", "SteadyTime", "SystemClock"]

_STEP_NS = 1_000_000_000

K = TypeVar("K", bound=Hashable)


class Clock(Protocol):
    """The clock that the library uses."""

    def now_ns(self) -> int:
        """Wall clock, nanoseconds since the Unix epoch, UTC. May step back or forward."""

    def monotonic(self) -> float:
        """Seconds on a clock that never steps. Only differences are meaningful."""

    def wait(self, condition: threading.Condition, timeout: float | None) -> bool:
        """Wait on a held *condition*; return False if *timeout* passed first."""


class SystemClock:
    """The machine's own clocks."""

    now_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)

    def wait(self, condition: threading.Condition, timeout: float | None) -> bool:
        """Wait on a held *condition*; return False if *timeout* passed first."""
        # A longer time than the platform supports would raise OverflowError, and the waiting thread would end.
        return condition.wait(timeout if timeout is None else min(timeout, threading.TIMEOUT_MAX))


SYSTEM_CLOCK = SystemClock()


class SteadyTime:
    """
    The time of day without steps: the wall-clock time of creation, plus the monotonic time passed since.

    Args:
        clock: both clocks.
        zero_ns: the time of day at which the monotonic clock was 0, from another instance; None computes it.
    """

    def __init__(self, clock: Clock, zero_ns: int | None = None) -> None:
        self._clock = clock
        self.zero_ns = clock.now_ns() - round(clock.monotonic() * 1e9) if zero_ns is None else zero_ns

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch, UTC. Never steps."""
        return self.zero_ns + round(self._clock.monotonic() * 1e9)

    def step_ns(self) -> int:
        """
        Return by how much the wall clock was set forward since creation; negative if it was set back.

        Less than a second counts as 0: the two clocks drift by as much.
        """
        step_ns = self._clock.now_ns() - self.now_ns()
        return step_ns if abs(step_ns) >= _STEP_NS else 0


class Ages(Generic[K]):
    """
    Tracks when things with a wall-clock timestamp began, so that a step of that clock makes none of them older.

    Not thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._born_s: Mapping[K, float] = {}
        self._looked_s = float("-inf")

    def born_s(self, stamps_ns: Mapping[K, int]) -> dict[K, float]:
        """
        Return when each thing began, in monotonic seconds; *stamps_ns* has the wall-clock times.

        The first call uses the wall clock for all things. A thing that is new in a later call began after the previous
        call: if its timestamp contradicts that, it begins now. Things that are missing from a call are forgotten.
        """
        now_s, now_ns = self._clock.monotonic(), self._clock.now_ns()
        found = {}
        for key, stamp_ns in stamps_ns.items():
            known = self._born_s.get(key)
            if known is None:
                known = now_s - max(0, now_ns - stamp_ns) / 1e9
                known = now_s if known < self._looked_s else known
            found[key] = known
        self._born_s, self._looked_s = found, now_s
        return found
