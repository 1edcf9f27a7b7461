"""Where a rewind goes to, and what of that is gone. No disk, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from quiver.bundle import BundleRef
from quiver.errors import UsageError
from quiver.store.subscribers.state import Segments, instant_ns, start_segment

__all__ = ["RewindTo", "Rewound", "rewind_position"]

RewindTo = Literal["earliest"] | int | datetime | BundleRef
"""The oldest segment there is, a segment number, an aware datetime, or one bundle."""


@dataclass(frozen=True, slots=True)
class Rewound:
    """
    What a rewind did.

    Attributes:
        position: from this bundle on everything that exists is pending.
        bundles: how many bundles that brought back: they were resolved and are not any more.
        missing: segment numbers from there on that have no segment: deleted, dropped, or never used. For a time,
            also all numbers before the oldest segment, when that was begun later.
    """

    position: BundleRef
    bundles: int
    missing: tuple[range, ...]


def rewind_position(to: RewindTo, segments: Segments) -> tuple[BundleRef, tuple[range, ...]]:
    """
    Return the bundle that *to* means, and the segment numbers from there on that have no segment.

    Raises:
        UsageError: *to* means nothing, or a place that the store has not reached.
    """
    if isinstance(to, BundleRef):
        first = start_segment(to.segment, segments)
        segment = segments.get(first)
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
