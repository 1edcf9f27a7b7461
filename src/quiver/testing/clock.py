"""A clock that the test controls."""

from __future__ import annotations

import threading
from typing import Literal

__all__ = ["ManualClock"]

_NS = 1_000_000_000


class ManualClock:
    """
    A `quiver.clock.Clock` that only moves when the test advances it. No call ever sleeps in real time.

    *waits* selects how a wait with a timeout behaves:

    ``skip`` (the default), for code without threads
        The wait returns immediately: the clock advances by the timeout and the result is False. The condition's lock
        is released for a moment, and a notification that arrives then counts. A wait without a timeout returns True
        immediately, as conditions may.
    ``hold``, for code with threads
        The thread waits until the condition is notified, or until `advance` in another thread has moved the clock past
        its deadline. `wait_for_waiters` returns when threads are waiting.

    Args:
        now_ns: the start of the wall clock.
        waits: ``skip`` or ``hold``.
    """

    def __init__(self, *, now_ns: int = 1_700_000_000 * _NS, waits: Literal["skip", "hold"] = "skip") -> None:
        self._state = threading.Condition()
        self._wall_ns = now_ns
        self._passed_ns = 0
        self._waits = waits
        self._waiting: dict[object, threading.Condition] = {}  # one ticket for each waiting thread

    def now_ns(self) -> int:
        """Return the wall clock, in nanoseconds since the Unix epoch."""
        return self._wall_ns

    def monotonic(self) -> float:
        """Return the seconds that passed by `advance` and skipped waits."""
        return self._passed_ns / _NS

    def advance(self, seconds: float) -> None:
        """
        Advance both clocks by *seconds* and wake every held wait, so that those past their deadline end.

        Do not call it while holding a condition that another thread waits on, unless its lock is an RLock.
        """
        with self._state:
            self._passed_ns += round(seconds * _NS)
            self._wall_ns += round(seconds * _NS)
            waiting = list(self._waiting.items())
        for ticket, condition in waiting:
            with condition:
                condition.notify_all()
            with self._state:
                # The thread counts as waiting only when it waits again, so `wait_for_waiters` may follow directly.
                self._waiting.pop(ticket, None)

    def step_wall(self, seconds: float) -> None:
        """Step the wall clock by *seconds*, which may be negative. The monotonic clock does not change."""
        self.set_wall_ns(self.now_ns() + round(seconds * _NS))

    def set_wall_ns(self, now_ns: int) -> None:
        """Set the wall clock, as an administrator would. The monotonic clock does not change."""
        with self._state:
            self._wall_ns = now_ns

    def wait(self, condition: threading.Condition, timeout: float | None) -> bool:
        """Wait on a held *condition*; return False if *timeout* passes first. The class describes the two modes."""
        if self._waits == "hold":
            return self._hold(condition, timeout)
        notified = condition.wait(0)
        if notified or timeout is None:
            return True
        # At least 1 ns: otherwise a caller whose deadline is a rounding error away would wait for ever.
        passed_ns = max(1 if timeout > 0 else 0, round(timeout * _NS))
        with self._state:
            self._passed_ns += passed_ns
            self._wall_ns += passed_ns
        return False

    def _hold(self, condition: threading.Condition, timeout: float | None) -> bool:
        ticket = object()
        with self._state:
            deadline = None if timeout is None else self._passed_ns + round(timeout * _NS)
            self._waiting[ticket] = condition
            self._state.notify_all()
        try:
            # No notification can come between the line above and the next: the caller holds the condition.
            if deadline is None or self._passed_ns < deadline:
                condition.wait()
        finally:
            with self._state:
                self._waiting.pop(ticket, None)
        return deadline is None or self._passed_ns < deadline

    def wait_for_waiters(self, count: int = 1) -> None:
        """Return when at least *count* threads are held in `wait`."""
        with self._state:
            self._state.wait_for(lambda: len(self._waiting) >= count)
