"""Segment numbers that a node does not upload, as records that close its chain. No disk and no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from quiver.store.format.drop_ledger import DroppedSegment
from quiver.store.format.fleet.gone import GONE_SEGMENTS_MAX, GoneReason, GoneSegments

__all__ = ["LostSegment", "gaps_between", "gone_records", "without"]

_STEP_MAX = 4096


@dataclass(frozen=True, slots=True)
class LostSegment:
    """
    A segment that is not, or no longer, uploaded.

    Attributes:
        number: of the segment.
        bundles: how many it had; None if unknown.
        reason: why.
        at_ns: wall-clock time, in nanoseconds since the epoch.
    """

    number: int
    bundles: int | None
    reason: GoneReason
    at_ns: int

    @classmethod
    def of(cls, entry: DroppedSegment) -> LostSegment:
        """Return an entry of the drop ledger."""
        return cls(entry.seq, entry.bundle_count, entry.reason, entry.dropped_at_ns)


def gaps_between(
    start: int, end: int, present: Callable[[int], bool], listed: Callable[[], Iterable[int]]
) -> list[range]:
    """
    Return the numbers from *start* to *end*, exclusive, that have no object, as ranges, ascending.

    Args:
        start: the first number.
        end: the number after the last one.
        present: whether a number has an object.
        listed: returns all numbers with objects, ascending; called if there are many numbers.
    """
    every: Iterable[int] = range(start, end) if end - start <= _STEP_MAX else listed()
    gaps = []
    for number in every:
        if start <= number < end and present(number):
            if number > start:
                gaps.append(range(start, number))
            start = number + 1
    return [*gaps, range(start, end)] if start < end else gaps


def without(gap: range, covered: Iterable[range]) -> list[range]:
    """Return the parts of *gap* that are in none of *covered*, ascending."""
    parts = []
    start = gap.start
    for one in sorted((one for one in covered if one.start < gap.stop and one), key=lambda found: found.start):
        if one.start > start:
            parts.append(range(start, one.start))
        start = max(start, one.stop)
    return [*parts, range(start, gap.stop)] if start < gap.stop else parts


def gone_records(gap: range, lost: Sequence[LostSegment], *, now_ns: int) -> list[GoneSegments]:
    """
    Return the records for the numbers of *gap*, in order: one for each reason in turn.

    Args:
        gap: consecutive numbers without an object.
        lost: the segments that had some of these numbers, ascending. No segment had the others.
        now_ns: the time of the record about those.
    """
    records: list[GoneSegments] = []
    run: list[LostSegment] = []
    next_number = gap.start

    def close() -> None:
        nonlocal next_number
        if run:
            pairs = tuple((one.number, one.bundles) for one in run if one.bundles is not None)
            records.append(GoneSegments(run[0].number, run[-1].number, run[0].reason, run[-1].at_ns, pairs))
            next_number = run[-1].number + 1
            run.clear()

    for one in lost:
        follows = not run or (run[-1].number + 1, run[0].reason) == (one.number, one.reason)
        if not follows or len(run) == GONE_SEGMENTS_MAX:
            close()
        if not run and one.number > next_number:
            records.append(GoneSegments(next_number, one.number - 1, "unused", now_ns))
        run.append(one)
    close()
    if next_number < gap.stop:
        records.append(GoneSegments(next_number, gap.stop - 1, "unused", now_ns))
    return records
