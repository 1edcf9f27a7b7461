"""
Which sealed segments may be deleted now. Pure: who is finished, and what time it is, are arguments.

Any segment that every subscriber has resolved may go, not only the oldest, once it has been so for the grace
period: a batch reader that listed it a moment ago must still find it. Any segment may go, resolved or not, once its
newest bundle is over age.

All time here is on a clock that never steps. How old a segment was when it became known is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["Retention"]


class Retention:
    """
    Remembers since when each segment is complete, and when its newest bundle came.

    Args:
        grace_s: seconds that a complete segment is kept. They count from when it was first seen complete and begin
            again when the store is opened.
        headroom_bytes: the newest complete segments are kept, up to this many bytes together.
        age_s_max: seconds after which a segment expires; None never.
    """

    def __init__(self, *, grace_s: float, headroom_bytes: int = 0, age_s_max: float | None = None) -> None:
        self._grace_s = grace_s
        self._headroom_bytes = headroom_bytes
        self._age_s_max = age_s_max
        self._complete_since_s: dict[int, float] = {}
        self._born_s: dict[int, float] = {}

    def deletable(self, complete: Mapping[int, int], *, now_s: float) -> list[int]:
        """
        Return which of the *complete* segments may be deleted with no need for their room, ascending.

        Args:
            complete: number → bytes of all segments that exist and that all subscribers are durably finished with;
                none while there are no subscribers. One that is missing here starts its grace period over: a new
                subscriber may want it.
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
        """Note that the newest bundle of segment *seq* came at *at_s*, in monotonic seconds."""
        self._born_s[seq] = at_s

    def gone(self, seqs: Iterable[int]) -> None:
        """Forget segments."""
        for seq in seqs:
            self._born_s.pop(seq, None)

    def expired(self, *, now_s: float) -> list[int]:
        """Return the segments that are over age, ascending; *now_s* in monotonic seconds."""
        return [] if self._age_s_max is None else self.older_than(self._age_s_max, now_s=now_s)

    def older_than(self, age_s: float, *, now_s: float) -> list[int]:
        """
        Return the segments whose newest bundle came *age_s* ago or earlier, ascending; *now_s* in monotonic
        seconds.
        """
        return sorted(seq for seq, born in self._born_s.items() if now_s - born >= age_s)

    def is_over_age(self, born_s: float, *, now_s: float) -> bool:
        """Say whether a bundle that came at *born_s* is over age."""
        return self._age_s_max is not None and now_s - born_s >= self._age_s_max
