"""
Time, handed in. Nothing else in the library reads a clock or sleeps.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "SystemClock"]


class Clock(Protocol):
    """
    What the library needs to know about time.
    """

    def now_ns(self) -> int:
        """
        Wall clock, nanoseconds since the Unix epoch, UTC. May step back or forward.
        """

    def monotonic(self) -> float:
        """
        Seconds on a clock that never steps. Only differences mean anything.
        """

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """
        Wait on a held *condition*; False when *timeout_s* passed first.
        """


class SystemClock:
    """
    The machine's own clocks.
    """

    now_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """
        Wait on a held *condition*; False when *timeout_s* passed first.
        """
        # Beyond what the platform can wait for, a lock raises OverflowError, and the thread that waits would end.
        return condition.wait(timeout_s if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))


SYSTEM_CLOCK = SystemClock()
