"""
The bundles of a batch, and their distribution over tasks. Pure.

A `SegmentSummary` has what the plan needs of a sealed segment: its bundles, and the bytes and rows that will be read,
but nothing about single bundles. The size of a bundle is therefore the average in its segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quiver.slots import BundleRef

__all__ = ["PARTITION_BYTES_MIN", "BundleRange", "Limits", "SegmentSummary", "end_of", "pack", "ranges_between", "take"]

PARTITION_BYTES_MIN = 16 * 1024 * 1024
"""Below this size a second task costs more (25 to 30 ms each) than it saves."""


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """
    The properties of a sealed segment that the plan needs.

    Attributes:
        segment: its number.
        path: the file.
        bundle_count: the number of bundles in it.
        size_bytes: the bytes of the streams that will be read.
        row_count: the rows in those streams, as exactly as the segment's directory has them.
        fingerprints: of the schemas of those streams.
    """

    segment: int
    path: str
    bundle_count: int
    size_bytes: int
    row_count: int
    fingerprints: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class BundleRange:
    """Bundles *start* (inclusive) to *stop* (exclusive) of one segment."""

    segment: int
    path: str
    start: int
    stop: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum of one batch: the first limit that is reached ends it. A batch has at least one bundle."""

    bundles_max: int | None = None
    rows_max: int | None = None
    bytes_max: int | None = None

    @property
    def unlimited(self) -> bool:
        """Whether no limit is set."""
        return self.bundles_max is None and self.rows_max is None and self.bytes_max is None

    def divided(self, share: int) -> Limits:
        """Return a *share*-th of each limit, and at least 1."""
        if share <= 1:
            return self
        parts = (
            None if limit is None else max(1, limit // share)
            for limit in (self.bundles_max, self.rows_max, self.bytes_max)
        )
        return Limits(*parts)


def end_of(segments: Sequence[SegmentSummary] | Sequence[BundleRange], start: BundleRef) -> BundleRef:
    """Return the position after the last segment, never one below *start*."""
    if not segments:
        return start
    return max(start, BundleRef(segments[-1].segment + 1, 0))


def take(
    segments: Iterable[SegmentSummary], start: BundleRef, limits: Limits, *, end: BundleRef | None = None
) -> BundleRef:
    """
    Return the position at which a batch that begins at *start* ends.

    Args:
        segments: in ascending order; those before *start* are skipped. Consumed only as far as needed.
        start: the next bundle to read.
        limits: the first one that is reached ends the batch.
        end: the batch ends before this position.
    """
    bundles = 0
    rows = 0.0
    size = 0.0
    reached = start
    for segment in segments:
        if end is not None and segment.segment > end.segment:
            break
        first = start.index if segment.segment == start.segment else 0
        stop = segment.bundle_count
        if end is not None and segment.segment == end.segment:
            stop = min(stop, end.index)
        if segment.segment < start.segment or first >= stop:
            continue
        bundle_rows = segment.row_count / segment.bundle_count
        bundle_bytes = segment.size_bytes / segment.bundle_count
        count = min(
            stop - first,
            _remaining(limits.bundles_max, bundles, 1),
            _remaining(limits.rows_max, rows, bundle_rows),
            _remaining(limits.bytes_max, size, bundle_bytes),
        )
        if count <= 0 and bundles == 0:
            count = 1
        if count <= 0:
            break
        bundles += count
        rows += count * bundle_rows
        size += count * bundle_bytes
        at_end = first + count == segment.bundle_count
        reached = BundleRef(segment.segment + 1, 0) if at_end else BundleRef(segment.segment, first + count)
        if count < stop - first:
            break
    return reached


def _remaining(limit: int | None, used: float, each: float) -> int:
    if limit is None or each <= 0:
        return 2**31
    return int((limit - used) / each)


def ranges_between(segments: Iterable[SegmentSummary], start: BundleRef, end: BundleRef) -> list[BundleRange]:
    """Return the bundles from *start* to before *end*, one range per segment, ascending."""
    ranges = []
    for segment in segments:
        first = start.index if segment.segment == start.segment else 0
        stop = min(segment.bundle_count, end.index) if segment.segment == end.segment else segment.bundle_count
        if start.segment <= segment.segment <= end.segment and first < stop:
            size = segment.size_bytes * (stop - first) // segment.bundle_count
            ranges.append(BundleRange(segment.segment, segment.path, first, stop, size))
    return ranges


def pack(
    ranges: Sequence[BundleRange],
    *,
    parallelism: int,
    partitions_min: int = 0,
    partition_bytes_min: int = PARTITION_BYTES_MIN,
) -> list[tuple[BundleRange, ...]]:
    """
    Distribute *ranges* over tasks, about equally by bytes and in order. Bundles are never divided.

    Args:
        ranges: ascending.
        parallelism: the number of tasks that run at the same time, and the default maximum of partitions.
        partitions_min: the minimum number of partitions, if there are that many bundles; 0 leaves it to the bytes.
        partition_bytes_min: a partition for each of this many bytes, up to *parallelism*.
    """
    total = sum(bundle_range.size_bytes for bundle_range in ranges)
    bundles = sum(bundle_range.stop - bundle_range.start for bundle_range in ranges)
    if bundles == 0:
        return []
    wanted = min(parallelism, -(-total // partition_bytes_min))
    count = max(1, min(bundles, max(wanted, partitions_min)))
    packed: list[tuple[BundleRange, ...]] = []
    current: list[BundleRange] = []
    # Weights, not bytes: a segment whose streams are empty still has bundles that a task must open.
    weight = sum(_weight(bundle_range) for bundle_range in ranges)
    done = 0.0
    for bundle_range in ranges:
        each = _weight(bundle_range) / (bundle_range.stop - bundle_range.start)
        start = bundle_range.start
        while start < bundle_range.stop:
            boundary = weight * (len(packed) + 1) / count
            fits = max(1, round((boundary - done) / each)) if len(packed) + 1 < count else bundle_range.stop - start
            stop = min(bundle_range.stop, start + fits)
            current.append(_cut(bundle_range, start, stop))
            done += each * (stop - start)
            start = stop
            if len(packed) + 1 < count and done >= boundary - each / 2:
                packed.append(tuple(current))
                current = []
    if current:
        packed.append(tuple(current))
    return packed


def _weight(bundle_range: BundleRange) -> float:
    return bundle_range.size_bytes + (bundle_range.stop - bundle_range.start)


def _cut(bundle_range: BundleRange, start: int, stop: int) -> BundleRange:
    size = bundle_range.size_bytes * (stop - start) // (bundle_range.stop - bundle_range.start)
    return BundleRange(bundle_range.segment, bundle_range.path, start, stop, size)
