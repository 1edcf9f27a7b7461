"""Time that passes when the test says so."""

from __future__ import annotations

import threading
from typing import Literal

__all__ = ["ManualClock"]

_NS = 1_000_000_000


class ManualClock:
    """
    A `quiver.clock.Clock` that only moves when told. No call ever sleeps in real time.

    What a wait with a time-out does is chosen at the start:

    ``skip`` (the default), for code without threads
        The wait is over at once: the clock moves on by the time-out and the answer is False. The condition's lock
        is let go for a moment, and a notification that arrives in it counts. A wait without time-out returns
        True at once, as conditions may.
    ``hold``, for code with threads
        The waiting thread stops until somebody notifies the condition, or until `advance` in another thread has
        moved the clock past its deadline. `wait_for_waiters` tells the test when threads have stopped.

    Args:
        now_ns: where the wall clock starts.
        waits: ``skip`` or ``hold``.
    """

    def __init__(self, *, now_ns: int = 1_700_000_000 * _NS, waits: Literal["skip", "hold"] = "skip") -> None:
        self._state = threading.Condition()
        self._wall_ns = now_ns
        self._passed_ns = 0
        self._waits = waits
        self._waiting: dict[object, threading.Condition] = {}  # one ticket a stopped thread

    def now_ns(self) -> int:
        """Wall clock, nanoseconds since the Unix epoch."""
        return self._wall_ns

    def monotonic(self) -> float:
        """Seconds that `advance` and skipped waits have let pass."""
        return self._passed_ns / _NS

    def advance(self, seconds: float) -> None:
        """
        Let *seconds* pass on both clocks and wake every held wait, so that those whose deadline passed end.

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
                # It counts as stopped again when it waits again, so `wait_for_waiters` may follow at once.
                self._waiting.pop(ticket, None)

    def step_wall(self, seconds: float) -> None:
        """
        Set the wall clock forward by *seconds*, or back when they are below 0. The monotonic clock
        does not change.
        """
        self.set_wall_ns(self.now_ns() + round(seconds * _NS))

    def set_wall_ns(self, now_ns: int) -> None:
        """Step the wall clock, back or forward, as an administrator would. `monotonic` does not notice."""
        with self._state:
            self._wall_ns = now_ns

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """Wait on a held *condition*; False when *timeout_s* passed first. See the class for what waiting means."""
        if self._waits == "hold":
            return self._hold(condition, timeout_s)
        notified = condition.wait(0)
        if notified or timeout_s is None:
            return True
        # At least something: a caller whose deadline is a rounding error away would wait for ever.
        passed_ns = max(1 if timeout_s > 0 else 0, round(timeout_s * _NS))
        with self._state:
            self._passed_ns += passed_ns
            self._wall_ns += passed_ns
        return False

    def _hold(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        ticket = object()
        with self._state:
            deadline = None if timeout_s is None else self._passed_ns + round(timeout_s * _NS)
            self._waiting[ticket] = condition
            self._state.notify_all()
        try:
            # Between the line above and the next nobody can notify: the caller holds the condition.
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
