"""Waiting for the next message, in threads and on event loops; without waiters it costs the writer nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable

from quiver.clock import Clock

__all__ = ["AppendSignal"]


class AppendSignal:
    """Wakes waiters when a log changes. Everything but `waiters` is used under the log's lock, which is *lock*."""

    __slots__ = ("_arrived", "_clock", "_wakers", "waiters")

    def __init__(self, lock: threading.Lock, clock: Clock) -> None:
        self._arrived = threading.Condition(lock)
        self._clock = clock
        self._wakers: list[Callable[[], None]] = []
        self.waiters = 0

    def wait(self, is_there: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until *is_there* returns True; return False if *timeout* seconds pass first."""
        self.waiters += 1
        try:
            while not is_there():
                if not self._clock.wait(self._arrived, timeout):
                    return is_there()
        finally:
            self.waiters -= 1
        return True

    def add(self, wake: Callable[[], None]) -> None:
        """Call *wake* once, from the thread that makes the next change; it must not call the log."""
        self._wakers.append(wake)
        self.waiters += 1

    def notify(self) -> None:
        """Wake all waiters."""
        self._arrived.notify_all()
        wakers, self._wakers = self._wakers, []
        self.waiters -= len(wakers)
        for wake in wakers:
            wake()
