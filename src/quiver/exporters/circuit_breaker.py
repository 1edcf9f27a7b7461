"""
Is one bundle sick, or is the far side down? Pure: time is an argument, chance is handed in.

One bundle that fails waits by itself and holds up nothing. When several in a row fail and none succeeds between
them, it is the far side: then one bundle at a time is tried, after growing pauses, instead of all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from random import Random

from quiver.primitives.backoff import Backoff

__all__ = ["SUSPECTS", "Pace"]

SUSPECTS = 4
"""So many different bundles that fail in a row, and the far side counts as down."""


class Pace:
    """
    When the next bundle may be tried. Not thread-safe.

    Args:
        backoff: the pauses while the far side is down.
        random: where their jitter comes from.
    """

    def __init__(self, backoff: Backoff, random: Random) -> None:
        self._backoff = backoff
        self._random = random
        self._failed: set[Hashable] = set()
        self._delays: Iterator[float] | None = None
        self._try_at_s = 0.0

    @property
    def is_down(self) -> bool:
        """Whether the far side counts as down."""
        return self._delays is not None

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until a bundle may be tried, 0 when one may now."""
        return max(0.0, self._try_at_s - now_s) if self.is_down else 0.0

    def probing(self, now_s: float) -> None:
        """Take note that a bundle is tried now: while the far side is down, the next one has to wait."""
        if self._delays is not None:
            self._try_at_s = now_s + next(self._delays)

    def succeeded(self) -> bool:
        """Take note that the far side answered well; True when it counted as down until now."""
        was_down = self.is_down
        self._failed.clear()
        self._delays = None
        return was_down

    def failed(self, which: Hashable, now_s: float, after_s: float) -> bool:
        """
        Take note that bundle *which* failed, and that nothing is to be sent for *after_s*; True when the far side
        counts as down from now on.
        """
        if self._delays is not None:
            self._try_at_s = max(self._try_at_s, now_s + after_s)
            return False
        self._failed.add(which)
        if len(self._failed) < SUSPECTS:
            return False
        self._delays = self._backoff.delays(self._random)
        self._try_at_s = now_s + max(next(self._delays), after_s)
        return True
