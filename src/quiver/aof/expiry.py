"""Which sealed segments of one log leave by now."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from quiver.aof.compaction import HeadTrim
from quiver.aof.config import Retention
from quiver.aof.reading.catalog import Catalog, SealedSegment
from quiver.aof.retention import Held, choose_leaving, is_expired
from quiver.clock import Ages, Clock

__all__ = ["Leaving"]


class Leaving:
    """
    Applies retention and head trimming to the sealed segments. Thread-safe.

    A segment that was there when this was made is as old as the wall clock says. From then on no step of that clock
    makes one older.

    Args:
        catalog: all sealed segments.
        retention: the policy.
        trim: says which segments nobody needs any more.
        clock: measures ages.
    """

    def __init__(self, catalog: Catalog, retention: Retention, trim: HeadTrim, clock: Clock) -> None:
        self._catalog = catalog
        self._retention = retention
        self._trim = trim
        self._clock = clock
        self._ages: Ages[int] = Ages(clock)
        self._lock = threading.Lock()
        self._held(catalog.all())

    def segments(self) -> list[SealedSegment]:
        """Return those that leave, oldest first."""
        segments = self._catalog.all()
        leaving = {
            *choose_leaving(self._retention, self._held(segments), self._now_ns()), *self._trim.leaving(segments)
        }  # fmt: skip
        return [one for one in segments if one.segment_id in leaving]

    def newest_is_expired(self) -> bool:
        """Say whether retention by time no longer keeps the newest segment."""
        if self._retention.policy != "time":
            return False
        newest = self._held(self._catalog.all())[-1:]
        return any(is_expired(self._retention, one.sealed_at, self._now_ns()) for one in newest)

    def _held(self, segments: Sequence[SealedSegment]) -> list[Held]:
        if self._retention.policy != "time":
            return [Held(one.segment_id, 0, one.header.max_size) for one in segments]
        with self._lock:
            sealed_s = self._ages.born_s({one.segment_id: one.footer.sealed_at for one in segments})
        return [Held(one.segment_id, round(sealed_s[one.segment_id] * 1e9), one.header.max_size) for one in segments]

    def _now_ns(self) -> int:
        return round(self._clock.monotonic() * 1e9)
