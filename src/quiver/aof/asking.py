"""
What the tail of a log asks of those who work on the disk, and what is asked of it.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Ask", "Rollover"]


class Ask(Protocol):
    """
    How the tail asks for work on the disk. Called with the tail's lock held; must only note it down.
    """

    def flush(self, *, now: bool) -> None:
        """
        Flush at once, or when the flush interval has passed.
        """

    def upkeep(self) -> None:
        """
        Seal what waits, and make spares.
        """

    def took(self, seconds: float) -> None:
        """
        Take note how long one append took that was looked at.
        """


class Rollover:
    """
    A rollover that was asked for: requested → (sealing) → done, or failed with a reason.
    """

    __slots__ = ("done", "error", "segment_id")

    def __init__(self, segment_id: int) -> None:
        self.segment_id = segment_id
        self.done = False
        self.error: str | None = None
