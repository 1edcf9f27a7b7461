"""Where a subscriber starts, and how far it is rewound: from numbers and times to a position. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from quiver.bundle import BundleRef
from quiver.errors import UsageError
from quiver.store.subscribers.state import Segments

__all__ = ["RewindTo", "Rewound", "Start", "instant_ns", "rewind_position", "start_segment"]

Start = Literal["latest", "earliest"] | int | datetime
"""Where a new subscriber starts; see `start_segment`."""

RewindTo = Literal["earliest"] | int | datetime | BundleRef
"""The oldest segment there is, a segment number, an aware datetime, or one bundle."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def start_segment(start: Start, segments: Segments) -> int:
    """
    Return the segment number a new subscriber starts at.

    Args:
        start: "latest", the number of the next sealed segment; "earliest", the oldest segment that exists (the next
            number if there is none); a segment number; or an aware datetime, the first segment with a bundle ingested
            at or after it.
        segments: the segments that exist.

    Raises:
        UsageError: the segment cannot exist yet, or the datetime has no time zone.
    """
    if isinstance(start, datetime):
        return _segment_at(start, segments)
    if start == "latest":
        return segments.next_seq
    if start == "earliest":
        oldest = segments.at_or_after(0)
        return segments.next_seq if oldest is None else oldest.seq
    if isinstance(start, bool) or not isinstance(start, int):
        raise UsageError(f'start={start!r} is not "latest", "earliest", a segment number or a datetime')
    if not 0 <= start <= segments.next_seq and start not in segments.unsealed:
        raise UsageError(f"there is no segment {start}: the next is {segments.next_seq}; none above it can be chosen")
    return start


def instant_ns(moment: datetime) -> int:
    """
    Return nanoseconds since the Unix epoch.

    Raises:
        UsageError: *moment* has no time zone.
    """
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise UsageError(f"start={moment.isoformat()} has no time zone; write for example datetime.now(timezone.utc)")
    passed = moment - _EPOCH
    return ((passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds) * 1000


def _segment_at(start: datetime, segments: Segments) -> int:
    start_ns = instant_ns(start)
    for segment in segments:
        # An unknown time counts as a match: delivering too much is harmless, delivering too little is not.
        if segment.ingested_max_ns is None or segment.ingested_max_ns >= start_ns:
            return segment.seq
    return segments.next_seq


@dataclass(frozen=True, slots=True)
class Rewound:
    """
    The result of a rewind.

    Attributes:
        position: this bundle and all later ones that exist are pending.
        bundles: how many of them were resolved before.
        missing: later segment numbers that have no segment: deleted, dropped, or never used. If the rewind was to a
            time, and the oldest segment begins after it, also all numbers before that segment.
    """

    position: BundleRef
    bundles: int
    missing: tuple[range, ...]


def rewind_position(to: RewindTo, segments: Segments) -> tuple[BundleRef, tuple[range, ...]]:
    """
    Return the bundle that *to* refers to, and the later segment numbers that have no segment.

    Raises:
        UsageError: *to* is invalid, or beyond the end of the store.
    """
    if isinstance(to, BundleRef):
        first = start_segment(to.segment, segments)
        segment = segments.find(first)
        if to.index < 0 or (segment is not None and to.index >= segment.bundle_count):
            count = 0 if segment is None else segment.bundle_count
            raise UsageError(f"cannot rewind to bundle {to}: segment {first} has {count} bundles")
        return to, segments.missing(first)
    if to == "latest":
        raise UsageError('a rewind to "latest" would skip what was not delivered; unregister and register does that')
    first = start_segment(to, segments)
    missing = segments.missing(first)
    if isinstance(to, datetime):
        oldest = segments.at_or_after(0)
        begun_ns = None if oldest is None else oldest.ingested_min_ns
        is_oldest = oldest is None or oldest.seq == first
        if is_oldest and first > 0 and (begun_ns is None or begun_ns > instant_ns(to)):
            missing = (range(first), *missing)
    return BundleRef(first, 0), missing
