"""The range of times of a query, and the moments that a caller gives as its bounds. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from quiver.errors import UsageError

__all__ = ["ALL_TIMES", "By", "Moment", "TimeRange", "check_by", "moment_ns"]

By = Literal["ingested", "ingest", "event"]
"""The times of a range: when bundles were ingested (`ingest` is the same), or the event times in the rows."""

Moment = datetime | int
"""A datetime with a zone, or nanoseconds since the epoch."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Times from *start_ns* to *end_ns*, exclusive; None is unbounded."""

    start_ns: int | None
    end_ns: int | None

    @property
    def is_bounded(self) -> bool:
        """Whether it has a start or an end."""
        return self.start_ns is not None or self.end_ns is not None

    def touches(self, low: int, high: int) -> bool:
        """Return whether a time from *low* to *high*, both included, may be in the range."""
        return (
            low <= high
            and (self.start_ns is None or high >= self.start_ns)
            and (self.end_ns is None or low < self.end_ns)
        )

    def has_ingested(self, ingested_at_ns: int | None) -> bool:
        """Return whether a bundle ingested at that time is in the range; True when the time was not recorded."""
        return ingested_at_ns is None or self.touches(ingested_at_ns, ingested_at_ns)

    def may_have_ingested(self, low: int | None, high: int | None) -> bool:
        """Return whether a bundle ingested from *low* to *high* may be in the range; None is an unknown time."""
        return low is None or high is None or self.touches(low, high)


ALL_TIMES = TimeRange(None, None)
"""A range without bounds."""


def check_by(by: object) -> bool:
    """
    Return whether *by* selects by event times.

    Raises:
        UsageError: it is no value of `By`.
    """
    if by not in {"ingested", "ingest", "event"}:
        raise UsageError(f"by={by!r} is neither ingested nor event")
    return by == "event"


def moment_ns(moment: Moment | None, what: str) -> int | None:
    """
    Return nanoseconds since the epoch.

    Raises:
        UsageError: neither a datetime with a time zone nor an integer; *what* names it.
    """
    if moment is None or (isinstance(moment, int) and not isinstance(moment, bool)):
        return moment
    if not isinstance(moment, datetime):
        raise UsageError(f"{what}={moment!r} is neither a datetime nor nanoseconds since the epoch")
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise UsageError(f"{what}={moment.isoformat()} has no time zone; write for example datetime.now(timezone.utc)")
    passed = moment - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000_000 + passed.microseconds * 1_000
