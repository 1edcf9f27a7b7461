"""Waiting for the next message: in threads and on event loops, at no cost to a writer that nobody waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from quiver.clock import Clock

__all__ = ["Arrivals"]


class Arrivals:
    """Those who wait for a log to change. Everything but `waiters` is used under the log's lock, which is *lock*."""

    __slots__ = ("_arrived", "_clock", "_wakers", "waiters")

    def __init__(self, lock: threading.Lock, clock: Clock) -> None:
        self._arrived = threading.Condition(lock)
        self._clock = clock
        self._wakers: list[Callable[[], None]] = []
        self.waiters = 0

    def wait(self, is_there: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until *is_there* says so; False when *timeout* seconds passed first."""
        self.waiters += 1
        try:
            while not is_there():
                if not self._clock.wait(self._arrived, timeout):
                    return is_there()
        finally:
            self.waiters -= 1
        return True

    def add(self, wake: Callable[[], None]) -> None:
        """Have *wake* called with the next change, once, by whoever makes it; it must not ask the log anything."""
        self._wakers.append(wake)
        self.waiters += 1

    def announce(self) -> None:
        """Wake all of them."""
        self._arrived.notify_all()
        wakers, self._wakers = self._wakers, []
        self.waiters -= len(wakers)
        for wake in wakers:
            wake()
