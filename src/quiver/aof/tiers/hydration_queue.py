"""The queue of segments to hydrate in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable

from quiver.errors import QuiverError

__all__ = ["HydrationQueue"]


class HydrationQueue:
    """Ids of segments to hydrate, and the errors of those that failed. Thread-safe; holds its lock only briefly."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: set[int] = set()
        self._errors: dict[int, QuiverError | OSError] = {}

    def add(self, segment_id: int) -> None:
        """
        Queue a segment.

        Raises:
            QuiverError, OSError: the error of its last hydration. The next call queues it again.
        """
        with self._lock:
            error = self._errors.pop(segment_id, None)
            if error is None:
                self._wanted.add(segment_id)
                return
        raise error

    @property
    def waiting(self) -> int:
        """How many segments are queued."""
        with self._lock:
            return len(self._wanted)

    def process(self, hydrate: Callable[[int], None]) -> bool:
        """
        Call *hydrate* with each queued segment, the oldest first; return whether there were any.

        Its errors are stored for the next `add` of the segment.
        """
        with self._lock:
            wanted, self._wanted = sorted(self._wanted), set()
        for segment_id in wanted:
            try:
                hydrate(segment_id)
            except (OSError, QuiverError) as error:
                with self._lock:
                    self._errors[segment_id] = error
        return bool(wanted)
