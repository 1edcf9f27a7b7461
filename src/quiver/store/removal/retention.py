"""
Decides which sealed segments may be deleted. Pure: the finished segments and the time are arguments.

Any segment that every subscriber has resolved may be deleted, not only the oldest, when the grace period is over: a
batch reader that has just listed it must still find it. Any segment, resolved or not, may be deleted when its newest
bundle is over age.

All times are monotonic. The caller knows the age of a segment when it adds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["Retention"]


class Retention:
    """
    Tracks when each segment became complete, and when its newest bundle arrived.

    Args:
        grace_s: seconds that a complete segment is kept, from when it was first seen complete. They start again when
            the store is opened.
        headroom_bytes: the newest complete segments are kept, up to this many bytes in total.
        age_s_max: seconds after which a segment expires; None means never.
    """

    def __init__(self, *, grace_s: float, headroom_bytes: int = 0, age_s_max: float | None = None) -> None:
        self._grace_s = grace_s
        self._headroom_bytes = headroom_bytes
        self._age_s_max = age_s_max
        self._complete_since_s: dict[int, float] = {}
        self._born_s: dict[int, float] = {}

    def deletable(self, complete: Mapping[int, int], *, now_s: float) -> list[int]:
        """
        Return which of the *complete* segments may be deleted although no space is needed, ascending.

        Args:
            complete: number → bytes of all existing segments that all subscribers have durably finished; empty while
                there are no subscribers. A segment that is missing once starts its grace period again: a new
                subscriber may need it.
            now_s: monotonic seconds.
        """
        since_s = {seq: self._complete_since_s.get(seq, now_s) for seq in complete}
        self._complete_since_s = since_s
        left = self._headroom_bytes
        due = []
        for seq in sorted(complete, reverse=True):
            left -= complete[seq]
            if left < 0 and now_s - since_s[seq] >= self._grace_s:
                due.append(seq)
        return due[::-1]

    def born(self, seq: int, at_s: float) -> None:
        """Record that the newest bundle of segment *seq* arrived at *at_s*, in monotonic seconds."""
        self._born_s[seq] = at_s

    def forget(self, seqs: Iterable[int]) -> None:
        """Remove deleted segments."""
        for seq in seqs:
            self._born_s.pop(seq, None)

    def expired(self, *, now_s: float) -> list[int]:
        """Return the segments that are over age, ascending; *now_s* in monotonic seconds."""
        return [] if self._age_s_max is None else self.older_than(self._age_s_max, now_s=now_s)

    def older_than(self, age_s: float, *, now_s: float) -> list[int]:
        """Return the segments whose newest bundle arrived *age_s* before *now_s* (monotonic) or earlier, ascending."""
        return sorted(seq for seq, born in self._born_s.items() if now_s - born >= age_s)

    def is_over_age(self, born_s: float, *, now_s: float) -> bool:
        """Return whether a bundle that arrived at *born_s* is over age."""
        return self._age_s_max is not None and now_s - born_s >= self._age_s_max
