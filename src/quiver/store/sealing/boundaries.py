"""Where unsealed segments began before a crash, so that the replay of the log begins them there again. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from quiver.store.format.early_progress import UnsealedSegment
from quiver.store.segment.accumulator import EncodedRun

__all__ = ["Boundaries"]


class Boundaries:
    """
    The beginnings of unsealed segments, to be taken in order.

    Attributes:
        last: the highest number of a segment; None if there are none.
    """

    def __init__(self, segments: Sequence[UnsealedSegment]) -> None:
        self._left = list(segments)[::-1]
        self.last = segments[-1].seq if segments else None

    def take(self, position: int, sequence: int) -> int | None:
        """Return the number of the segment that began with the bundle at *position*, or None. Earlier ones are left."""
        while self._left and self._left[-1].wal_position < position:
            self._left.pop()  # its first bundles are in a segment, or damaged
        if not self._left or (self._left[-1].wal_position, self._left[-1].sequence) != (position, sequence):
            return None
        return self._left.pop().seq

    def next_in(self, run: EncodedRun, first: int) -> int:
        """Return the index of the next bundle of *run* after *first* that began a segment; the length if none did."""
        if not self._left:
            return len(run)
        return bisect_left(range(len(run)), self._left[-1].wal_position, lo=first + 1, key=run.start_of)
