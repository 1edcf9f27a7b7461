"""The append times of frames, to about a second and in bounded memory. A backlog of hours makes them less precise."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

__all__ = ["AppendTimes"]

_SPACING_US = 1_000_000
_MARKS_MAX = 4096


class AppendTimes:
    """
    Frame numbers with the times of their appends. Not thread-safe.

    Args:
        known: frames that already exist: (number, microseconds since the epoch), in order.
    """

    def __init__(self, known: Iterable[tuple[int, int]] = ()) -> None:
        self._marks = list(known)
        self._spacing_us = _SPACING_US

    def add(self, fsn: int, now_us: int, *, is_oldest: bool) -> None:
        """
        Record that the frame *fsn* is appended now. The time of the oldest unconfirmed frame (*is_oldest*) is exact;
        others are recorded about once a second or less often.
        """
        if self._marks and not is_oldest and 0 <= now_us - self._marks[-1][1] < self._spacing_us:
            return
        self._marks.append((fsn, now_us))
        if len(self._marks) > _MARKS_MAX:
            del self._marks[1:-1:2]
            self._spacing_us *= 2

    def time_of(self, fsn: int) -> int | None:
        """Return when the frame *fsn* was appended, or slightly earlier; None if unknown."""
        at = bisect.bisect_right(self._marks, fsn, key=lambda mark: mark[0])
        return self._marks[at - 1][1] if at else None

    def forget(self, fsn: int) -> None:
        """Forget the times that frames from *fsn* on do not need."""
        at = bisect.bisect_right(self._marks, fsn, key=lambda mark: mark[0])
        if at > 1:
            del self._marks[: at - 1]
            if len(self._marks) == 1:
                self._spacing_us = _SPACING_US
