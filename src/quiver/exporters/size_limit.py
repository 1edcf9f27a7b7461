"""How large a request to one receiver may be: as set, or less once the receiver refused one for its size."""

from __future__ import annotations

import threading

__all__ = ["GUESSED_BYTES_MIN", "SizeLimit"]

GUESSED_BYTES_MIN = 16 * 1024
"""A refusal that names no size is not taken for one below this: every receiver takes that much."""


class SizeLimit:
    """
    The limit of one receiver. Thread-safe.

    A receiver that names its limit is believed. One that does not is sent half as much, and half of that again, until
    it accepts a request; when it accepts none, size was not the reason, and the limit is what it was before.

    Args:
        bytes_max: the limit until a smaller one is known.
    """

    def __init__(self, bytes_max: int) -> None:
        self._lock = threading.Lock()
        self._bytes_max = bytes_max
        self._before_guesses: int | None = None

    @property
    def bytes_max(self) -> int:
        """The most that a request should have."""
        return self._bytes_max

    def refused(self, size_bytes: int, limit_bytes: int | None) -> bool:
        """
        Record that a request of *size_bytes* was too large, and which limit the receiver named; return whether there is
        a smaller size to try.
        """
        with self._lock:
            if limit_bytes is not None and 0 < limit_bytes < size_bytes:
                self._bytes_max = min(self._bytes_max, limit_bytes)
                self._before_guesses = None
                return True
            half = size_bytes // 2
            if half < GUESSED_BYTES_MIN:
                return False
            if half < self._bytes_max:
                if self._before_guesses is None:
                    self._before_guesses = self._bytes_max
                self._bytes_max = half
            return True

    def accepted(self, size_bytes: int) -> None:
        """Record that a request of *size_bytes* was accepted: a guess that is not much larger was right."""
        if self._before_guesses is not None and 2 * size_bytes > self._bytes_max:
            with self._lock:
                self._before_guesses = None

    def not_the_reason(self) -> None:
        """Take guesses back: the smallest request was refused like the large ones."""
        with self._lock:
            if self._before_guesses is not None:
                self._bytes_max, self._before_guesses = self._before_guesses, None
