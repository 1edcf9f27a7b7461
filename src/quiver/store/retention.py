"""
Which sealed segments may be deleted now. Pure: who is finished, and what time it is, are arguments.

Any segment that every subscriber has resolved may go, not only the oldest, once it has been so for the grace
period: a batch reader that listed it a moment ago must still find it.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Retention"]


class Retention:
    """
    Remembers since when each segment is complete.

    Args:
        grace_s: seconds that a complete segment is kept. They count from when it was first seen complete, on a
            clock that never steps, and begin again when the store is opened.
    """

    def __init__(self, *, grace_s: float) -> None:
        self._grace_s = grace_s
        self._complete_since_s: dict[int, float] = {}

    def deletable(self, complete: Iterable[int], *, now_s: float, grace_s: float | None = None) -> list[int]:
        """
        Return which of the *complete* segments may be deleted, ascending.

        Args:
            complete: numbers of all segments that exist and that all subscribers are durably finished with; none
                while there are no subscribers. One that is missing here starts its grace period over: a new
                subscriber may want it.
            now_s: monotonic seconds.
            grace_s: another grace period for this once; 0 when the disk is full.
        """
        since_s = {seq: self._complete_since_s.get(seq, now_s) for seq in complete}
        self._complete_since_s = since_s
        grace_s = self._grace_s if grace_s is None else grace_s
        return sorted(seq for seq, since in since_s.items() if now_s - since >= grace_s)
