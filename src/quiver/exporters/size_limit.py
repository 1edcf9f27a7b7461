"""The maximum size of a request to one receiver: configured, or learned from the receiver's refusals."""

from __future__ import annotations

import threading

__all__ = ["GUESSED_BYTES_MIN", "SizeLimit"]

GUESSED_BYTES_MIN = 16 * 1024
"""A refusal without a limit does not lower the limit below this: every receiver accepts this size."""


class SizeLimit:
    """
    The size limit of one receiver. Thread-safe.

    If a refusal states the receiver's limit, that limit applies. Otherwise the limit is halved until the receiver
    accepts a request. If it accepts none, size was not the reason, and the earlier limit is restored.

    Args:
        bytes_max: the initial limit.
    """

    def __init__(self, bytes_max: int) -> None:
        self._lock = threading.Lock()
        self._bytes_max = bytes_max
        self._before_guesses: int | None = None

    @property
    def bytes_max(self) -> int:
        """The maximum size of a request."""
        return self._bytes_max

    def refused(self, size_bytes: int, limit_bytes: int | None) -> bool:
        """
        Record that a request of *size_bytes* was too large, with the limit that the receiver stated, if any.

        Return whether to try a smaller size.
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
        """Record that a request of *size_bytes* was accepted, which confirms a guess of up to twice that size."""
        if self._before_guesses is not None and 2 * size_bytes > self._bytes_max:
            with self._lock:
                self._before_guesses = None

    def not_the_reason(self) -> None:
        """Revert guesses: the smallest request was refused like the large ones."""
        with self._lock:
            if self._before_guesses is not None:
                self._bytes_max, self._before_guesses = self._before_guesses, None
