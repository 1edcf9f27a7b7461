"""
A circuit breaker for the destination of a forwarder. Pure: time and randomness are arguments.

One failing bundle is retried by itself and does not block others. When several bundles in a row fail without a success
in between, the destination counts as down. Then one bundle at a time is tried, after growing pauses.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from random import Random

from quiver.primitives.backoff import Backoff

__all__ = ["FAILURES_MAX", "CircuitBreaker"]

FAILURES_MAX = 4
"""This many different bundles must fail in a row before the destination counts as down."""


class CircuitBreaker:
    """
    Decides when the next bundle may be tried. Not thread-safe.

    Args:
        backoff: the pauses while the destination is down.
        random: source of their jitter.
    """

    def __init__(self, backoff: Backoff, random: Random) -> None:
        self._backoff = backoff
        self._random = random
        self._failed: set[Hashable] = set()
        self._delays: Iterator[float] | None = None
        self._try_at_s = 0.0

    @property
    def is_down(self) -> bool:
        """Whether the destination counts as down."""
        return self._delays is not None

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until a bundle may be tried; 0 if one may be tried now."""
        return max(0.0, self._try_at_s - now_s) if self.is_down else 0.0

    def probing(self, now_s: float) -> None:
        """Record that a bundle is tried now. While the destination is down, the next one must wait."""
        if self._delays is not None:
            self._try_at_s = now_s + next(self._delays)

    def succeeded(self) -> bool:
        """Record a success. Return whether the destination counted as down until now."""
        was_down = self.is_down
        self._failed.clear()
        self._delays = None
        return was_down

    def failed(self, which: Hashable, now_s: float, after_s: float) -> bool:
        """
        Record that bundle *which* failed, and that the next attempt must wait for *after_s* seconds.

        Return whether the destination counts as down from now on.
        """
        if self._delays is not None:
            self._try_at_s = max(self._try_at_s, now_s + after_s)
            return False
        self._failed.add(which)
        if len(self._failed) < FAILURES_MAX:
            return False
        self._delays = self._backoff.delays(self._random)
        self._try_at_s = now_s + max(next(self._delays), after_s)
        return True
