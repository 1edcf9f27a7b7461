"""One at a time: who syncs or rotates now, and who waits for it to be done."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Turns"]


class Turns:
    """A turn that is taken and given back; those who wait may find that what they wanted was done meanwhile."""

    __slots__ = ("_changed", "_taken")

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False

    def take(self, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the turn and take it; False, without it, when *is_done* says so first."""
        with self._changed:
            while self._taken and not is_done():
                self._changed.wait()
            if is_done():
                return False
            self._taken = True
            return True

    def give_back(self) -> None:
        """Let the next one in."""
        with self._changed:
            self._taken = False
            self._changed.notify_all()
