"""
One signal for each kind of back-pressure. No signal is ever missed.

A waiter reads the `generation` of a kind *before* it tries. A signal in between changes the generation, and the wait
returns immediately. Callers in an event loop register a function instead, which is called once.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from contextlib import suppress

from quiver.clock import Clock
from quiver.errors import UsageError

__all__ = ["KINDS", "Notifier", "deadline_of", "in_loop"]

KINDS = ("admission", "rollover", "hydration", "flush", "tail", "records", "upload")
"""
The kinds of `WouldBlockError`, and two more. `records`: new records can be read. `upload`: another segment has an
object.
"""


def in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> Callable[[], None]:
    """Return a function that runs *call* in the thread of *loop*, from any thread; it does nothing on a closed loop."""

    def schedule() -> None:
        # The program has closed the loop. An error here would end a thread that serves every log.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(call)

    return schedule


def deadline_of(clock: Clock, timeout: float | None) -> float | None:
    """
    Return the time at which *timeout* seconds from now have passed; None for no timeout.

    Raises:
        UsageError: *timeout* is not a number of seconds.
    """
    if timeout is None:
        return None
    if not isinstance(timeout, int | float) or math.isnan(timeout):
        raise UsageError(f"a timeout is a number of seconds or None, not {timeout!r}")
    return clock.monotonic() + timeout


class Notifier:
    """The signals of one log. Thread-safe; `notify` may be called with any lock of the log held."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._generations = dict.fromkeys(KINDS, 0)
        self._once: dict[str, list[Callable[[], None]]] = {kind: [] for kind in KINDS}

    def generation(self, kind: str) -> int:
        """Return a number that changes with every signal of *kind*."""
        return self._generations[kind]

    def notify(self, *kinds: str) -> None:
        """Wake all waiters for one of *kinds*."""
        with self._changed:
            calls: list[Callable[[], None]] = []
            for kind in kinds:
                self._generations[kind] += 1
                calls += self._once[kind]
                self._once[kind] = []
            self._changed.notify_all()
        for call in calls:
            call()

    def notify_all(self) -> None:
        """Wake all waiters: the log was closed or failed."""
        self.notify(*KINDS)

    def wait(self, kind: str, seen: int, timeout: float | None) -> bool:
        """
        Wait for a signal of *kind* after generation *seen*; return False if *timeout* passes first.

        It may return early: the caller tries again and checks its own deadline.
        """
        with self._changed:
            if self._generations[kind] != seen:
                return True
            return self._clock.wait(self._changed, timeout)

    def call_once(self, kind: str, seen: int, call: Callable[[], None]) -> None:
        """
        Call *call* at the next signal of *kind* after generation *seen*; immediately if there was one already.

        The function runs in the thread that signals and must only schedule work.
        """
        with self._changed:
            if self._generations[kind] == seen:
                self._once[kind].append(call)
                return
        call()
