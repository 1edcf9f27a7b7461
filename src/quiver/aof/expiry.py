"""The expired segments of one log, by retention and head trimming."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from quiver.aof.compaction import HeadTrim
from quiver.aof.config import Retention
from quiver.aof.reading.catalog import Catalog, SealedSegment
from quiver.aof.retention import SealedAge, choose_expired, is_expired
from quiver.clock import Ages, Clock

__all__ = ["Expiry"]


class Expiry:
    """
    Applies retention and head trimming to the sealed segments. Thread-safe.

    The age of a segment that exists when this object is made comes from the wall clock. Later steps of that clock do
    not make a segment older.

    Args:
        catalog: all sealed segments.
        retention: the policy.
        trim: finds the segments that are no longer needed.
        clock: measures ages.
    """

    def __init__(self, catalog: Catalog, retention: Retention, trim: HeadTrim, clock: Clock) -> None:
        self._catalog = catalog
        self._retention = retention
        self._trim = trim
        self._clock = clock
        self._ages: Ages[int] = Ages(clock)
        self._lock = threading.Lock()
        self._ages_of(catalog.all())

    def segments(self) -> list[SealedSegment]:
        """Return the segments that leave the log now, oldest first."""
        segments = self._catalog.all()
        leaving = {
            *choose_expired(self._retention, self._ages_of(segments), self._now_ns()), *self._trim.leaving(segments)
        }  # fmt: skip
        return [one for one in segments if one.segment_id in leaving]

    def newest_is_expired(self) -> bool:
        """Return whether the newest segment has expired by time."""
        if self._retention.policy != "time":
            return False
        newest = self._ages_of(self._catalog.all())[-1:]
        return any(is_expired(self._retention, one.sealed_at, self._now_ns()) for one in newest)

    def _ages_of(self, segments: Sequence[SealedSegment]) -> list[SealedAge]:
        if self._retention.policy != "time":
            return [SealedAge(one.segment_id, 0, one.header.max_size) for one in segments]
        with self._lock:
            sealed_s = self._ages.born_s({one.segment_id: one.footer.sealed_at for one in segments})
        return [
            SealedAge(one.segment_id, round(sealed_s[one.segment_id] * 1e9), one.header.max_size) for one in segments
        ]

    def _now_ns(self) -> int:
        return round(self._clock.monotonic() * 1e9)
