"""
Who waits for what: one signal for each kind of back-pressure, and none of them is ever missed.

A waiter reads the `generation` of a kind *before* it tries; a signal in between changes the generation, and the wait is
over at once. Callers in an event loop leave a function instead, which is called once.
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
Those of `WouldBlockError`; `records`: something can be read that could not be read before; `upload`: one more segment
has an object.
"""


def in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> Callable[[], None]:
    """
    Return what has *call* called in the thread of *loop*, from any thread, and does nothing when the loop is
    closed.
    """

    def hand_over() -> None:
        # Its program has given up. An error here would end a thread that works for every log.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(call)

    return hand_over


def deadline_of(clock: Clock, timeout_s: float | None) -> float | None:
    """
    Return the moment at which *timeout_s* from now has passed; None: there is none.

    Raises:
        UsageError: it is no number of seconds.
    """
    if timeout_s is None:
        return None
    if not isinstance(timeout_s, int | float) or math.isnan(timeout_s):
        raise UsageError(f"a time-out is a number of seconds, or None, not {timeout_s!r}")
    return clock.monotonic() + timeout_s


class Notifier:
    """Signals of one log. Thread-safe; `notify` may be called with any lock of the log held."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._generations = dict.fromkeys(KINDS, 0)
        self._once: dict[str, list[Callable[[], None]]] = {kind: [] for kind in KINDS}

    def generation(self, kind: str) -> int:
        """Return a number that every signal of *kind* changes."""
        return self._generations[kind]

    def notify(self, *kinds: str) -> None:
        """Wake all who wait for one of *kinds*."""
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
        """Wake everybody: the log was closed or failed."""
        self.notify(*KINDS)

    def wait(self, kind: str, seen: int, timeout_s: float | None) -> bool:
        """
        Return when *kind* was signalled after its generation was *seen*; False when *timeout_s* passed first.

        It may return early; the caller tries again and decides by its own deadline.
        """
        with self._changed:
            if self._generations[kind] != seen:
                return True
            return self._clock.wait(self._changed, timeout_s)

    def call_once(self, kind: str, seen: int, call: Callable[[], None]) -> None:
        """
        Call *call* at the next signal of *kind* after its generation was *seen*, at once if that has passed.

        It is called from the thread that signals, and must only hand over.
        """
        with self._changed:
            if self._generations[kind] == seen:
                self._once[kind].append(call)
                return
        call()
