"""The bundles of a batch, and their distribution over tasks."""

from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.bundle import BundleRef
from quiver.store.reading.partitions import (
    PARTITION_BYTES_MIN,
    Limits,
    SegmentSummary,
    end_of,
    pack,
    ranges_between,
    take,
)

MIB = 1024 * 1024


def segment(number, bundles, size=1000, rows=None):
    return SegmentSummary(number, f"s/{number}", bundles, size, bundles if rows is None else rows)


def bundles_of(ranges):
    return [
        (bundle_range.segment, index)
        for bundle_range in ranges
        for index in range(bundle_range.start, bundle_range.stop)
    ]


def test_a_batch_ends_at_the_first_limit():
    """Bundles, rows and bytes each end a batch."""
    segments = [segment(1, 10, 1000, 100), segment(2, 10, 1000, 100)]
    start = BundleRef(0, 0)
    assert take(segments, start, Limits()) == BundleRef(3, 0)
    assert take(segments, start, Limits(bundles_max=3)) == BundleRef(1, 3)
    assert take(segments, start, Limits(bundles_max=10)) == BundleRef(2, 0)
    assert take(segments, start, Limits(bundles_max=13)) == BundleRef(2, 3)
    assert take(segments, start, Limits(rows_max=50)) == BundleRef(1, 5)
    assert take(segments, start, Limits(bytes_max=250)) == BundleRef(1, 2)
    assert take(segments, start, Limits(bundles_max=9, rows_max=50, bytes_max=250)) == BundleRef(1, 2)


def test_a_batch_has_at_least_one_bundle():
    """A bundle larger than the limit is still delivered, alone."""
    assert take([segment(4, 2, 10_000)], BundleRef(4, 0), Limits(bytes_max=1)) == BundleRef(4, 1)
    assert take([segment(4, 2, 10_000)], BundleRef(4, 1), Limits(bytes_max=1)) == BundleRef(5, 0)


def test_nothing_new_leaves_the_position():
    """Also when a start after the last bundle is written with its index."""
    assert take([], BundleRef(3, 0), Limits()) == BundleRef(3, 0)
    assert take([segment(2, 5)], BundleRef(3, 0), Limits()) == BundleRef(3, 0)
    assert take([segment(2, 5)], BundleRef(2, 5), Limits()) == BundleRef(2, 5)
    assert end_of([segment(2, 5)], BundleRef(9, 1)) == BundleRef(9, 1)


def test_an_end_is_never_passed():
    """A run that ends at the available data takes none that arrives later."""
    segments = [segment(1, 4), segment(2, 4), segment(3, 4)]
    assert take(segments, BundleRef(1, 2), Limits(), end=BundleRef(2, 3)) == BundleRef(2, 3)
    assert take(segments, BundleRef(1, 2), Limits(), end=BundleRef(3, 0)) == BundleRef(3, 0)
    assert take(segments, BundleRef(2, 3), Limits(), end=BundleRef(2, 3)) == BundleRef(2, 3)


segment_lists = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(0, 64 * MIB)), min_size=0, max_size=8
).map(
    lambda steps: [
        segment(sum(step for step, _, _ in steps[: i + 1]), bundles, size) for i, (_, bundles, size) in enumerate(steps)
    ]
)


@settings(max_examples=100, deadline=None)
@given(segment_lists, st.integers(1, 7), st.integers(1, 40 * MIB), st.integers(1, 6), st.integers(0, 5))
def test_batches_cover_everything_once_and_in_order(segments, bundles_max, bytes_max, parallelism, at_least):
    """For any limits: each bundle is in exactly one batch and exactly one partition, in order."""
    limits = Limits(bundles_max=bundles_max, bytes_max=bytes_max)
    position, seen = BundleRef(0, 0), []
    while True:
        end = take(segments, position, limits)
        if end == position:
            break
        ranges = ranges_between(segments, position, end)
        assert 1 <= len(bundles_of(ranges)) <= bundles_max
        packed = pack(ranges, parallelism=parallelism, partitions_min=at_least)
        assert all(packed)
        assert len(packed) <= max(parallelism, at_least, 1)
        assert bundles_of([bundle_range for part in packed for bundle_range in part]) == bundles_of(ranges)
        seen += bundles_of(ranges)
        position = end
    assert seen == [(s.segment, i) for s in segments for i in range(s.bundle_count)]


def test_small_batches_are_one_task_and_large_ones_fill_the_cores():
    """A second task has to be worth its start."""
    small = ranges_between([segment(1, 100, 1 * MIB)], BundleRef(0, 0), BundleRef(2, 0))
    assert len(pack(small, parallelism=8)) == 1
    large = ranges_between([segment(1, 100, 8 * PARTITION_BYTES_MIN)], BundleRef(0, 0), BundleRef(2, 0))
    parts = pack(large, parallelism=4)
    assert [sum(bundle_range.stop - bundle_range.start for bundle_range in part) for part in parts] == [25, 25, 25, 25]


def test_the_minimum_of_partitions_is_reached_if_there_are_enough_bundles():
    """`minPartitions` is a hint: bundles are never divided."""
    ranges = ranges_between([segment(1, 3, 10)], BundleRef(0, 0), BundleRef(2, 0))
    assert len(pack(ranges, parallelism=1, partitions_min=2)) == 2
    assert len(pack(ranges, parallelism=1, partitions_min=9)) == 3
    assert pack([], parallelism=4, partitions_min=4) == []
