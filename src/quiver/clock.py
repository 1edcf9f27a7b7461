"""Time, handed in. Nothing else in the library reads a clock or sleeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Mapping
from typing import Generic, Protocol, TypeVar

__all__ = ["SYSTEM_CLOCK", "Ages", "Clock", "SteadyTime", "SystemClock"]

_STEP_NS = 1_000_000_000

K = TypeVar("K", bound=Hashable)


class Clock(Protocol):
    """What the library needs to know about time."""

    def now_ns(self) -> int:
        """Wall clock, nanoseconds since the Unix epoch, UTC. May step back or forward."""

    def monotonic(self) -> float:
        """Seconds on a clock that never steps. Only differences mean anything."""

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """Wait on a held *condition*; False when *timeout_s* passed first."""


class SystemClock:
    """The machine's own clocks."""

    now_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """Wait on a held *condition*; False when *timeout_s* passed first."""
        # Beyond what the platform can wait for, a lock raises OverflowError, and the thread that waits would end.
        return condition.wait(timeout_s if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))


SYSTEM_CLOCK = SystemClock()


class SteadyTime:
    """
    The time of day without steps: what the wall clock said when this was made, plus what has passed since.

    Args:
        clock: both clocks.
        zero_ns: the time of day at which the monotonic clock was 0, as another instance gave it; None is by now.
    """

    def __init__(self, clock: Clock, zero_ns: int | None = None) -> None:
        self._clock = clock
        self.zero_ns = clock.now_ns() - round(clock.monotonic() * 1e9) if zero_ns is None else zero_ns

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch, UTC. Never steps."""
        return self.zero_ns + round(self._clock.monotonic() * 1e9)

    def step_ns(self) -> int:
        """
        Return by how much the wall clock was set forward since this was made; below 0 when it was set back.

        Less than a second counts as none: the two clocks drift apart by as much.
        """
        step_ns = self._clock.now_ns() - self.now_ns()
        return step_ns if abs(step_ns) >= _STEP_NS else 0


class Ages(Generic[K]):
    """
    When things began that bear a time of the wall clock, so that no step of that clock makes one older.

    Not thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._born_s: Mapping[K, float] = {}
        self._looked_s = float("-inf")

    def born_s(self, stamps_ns: Mapping[K, int]) -> dict[K, float]:
        """
        Return when each thing began, in monotonic seconds; *stamps_ns* says when that was by the wall clock.

        The first call decides what the wall clock says of things that were there before. A thing that is new in a
        later call came after the previous one: where the wall clock says something else, it begins now. Things that
        are missing from a call are forgotten.
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
