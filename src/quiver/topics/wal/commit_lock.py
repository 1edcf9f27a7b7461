"""The group-commit lock: one thread syncs or rotates, and others wait for its result."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["GroupCommitLock"]


class GroupCommitLock:
    """A lock whose waiters may find that the holder has already done what they wanted."""

    __slots__ = ("_changed", "_taken")

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False

    def acquire(self, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Acquire the lock; return False without it if *is_done* returns True first."""
        with self._changed:
            while self._taken and not is_done():
                self._changed.wait()
            if is_done():
                return False
            self._taken = True
            return True

    def release(self) -> None:
        """Release the lock and wake the waiters."""
        with self._changed:
            self._taken = False
            self._changed.notify_all()
