"""Segments that somebody wants back and does not wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from quiver.errors import QuiverError

__all__ = ["HydrationQueue"]


class HydrationQueue:
    """
    Ids of segments that are to be brought back, and why some could not be. Thread-safe; its lock is never held
    long.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: set[int] = set()
        self._errors: dict[int, QuiverError | OSError] = {}

    def ask(self, segment_id: int) -> None:
        """
        Take note that a segment is wanted.

        Raises:
            QuiverError, OSError: it was wanted before, and could not be brought back. The next call wants it again.
        """
        with self._lock:
            error = self._errors.pop(segment_id, None)
            if error is None:
                self._wanted.add(segment_id)
                return
        raise error

    @property
    def waiting(self) -> int:
        """How many segments are wanted."""
        with self._lock:
            return len(self._wanted)

    def serve(self, bring: Callable[[int], None]) -> bool:
        """
        Call *bring* with each segment that is wanted, the oldest first; say whether there were any.

        What it raises is kept for whoever asks next.
        """
        with self._lock:
            wanted, self._wanted = sorted(self._wanted), set()
        for segment_id in wanted:
            try:
                bring(segment_id)
            except (OSError, QuiverError) as error:
                with self._lock:
                    self._errors[segment_id] = error
        return bool(wanted)
