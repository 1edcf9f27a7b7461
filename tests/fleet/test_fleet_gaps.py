"""Numbers without an object become records that close the chain, with the reason of each."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from quiver.primitives.scan import Frame
from quiver.store.fleet.chain_gaps import LostSegment, gaps_between, gone_records, without
from quiver.store.format.fleet.gone import GoneSegments, decode_gone, encode_gone


def test_gaps():
    present = {3, 4, 7}
    listed = itertools.count().__next__  # not called for few numbers

    def gaps(start, end):
        return gaps_between(start, end, present.__contains__, lambda: [listed()])

    assert gaps(0, 9) == [range(3), range(5, 7), range(8, 9)]
    assert gaps(3, 5) == []
    assert gaps(5, 5) == []
    assert gaps(4, 8) == [range(5, 7)]
    assert listed() == 0


def test_a_gap_of_a_restored_store_is_one_range():
    """It skips all numbers that the original can have used: they are not visited one by one."""
    assert gaps_between(2, 10**15, {5}.__contains__, lambda: [1, 5, 10**15]) == [range(2, 5), range(6, 10**15)]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5))), st.integers(0, 20), st.integers(0, 9))
def test_without(pairs, start, size):
    """The rest, number by number; numbers that are covered keep their records."""
    covered = [range(first, first + count) for first, count in pairs]
    gap = range(start, start + size)
    parts = without(gap, covered)
    assert all(parts)
    assert [number for part in parts for number in part] == [
        number for number in gap if not any(number in one for one in covered)
    ]


def test_records():
    """One for each reason in turn; numbers that no segment had are unused."""
    lost = [
        LostSegment(4, 10, "age", 70),
        LostSegment(5, 11, "age", 71),
        LostSegment(6, 12, "size", 72),
        LostSegment(9, None, "damaged", 73),
    ]
    assert gone_records(range(2, 11), lost, now_ns=99) == [
        GoneSegments(2, 3, "unused", 99),
        GoneSegments(4, 5, "age", 71, ((4, 10), (5, 11))),
        GoneSegments(6, 6, "size", 72, ((6, 12),)),
        GoneSegments(7, 8, "unused", 99),
        GoneSegments(9, 9, "damaged", 73),
        GoneSegments(10, 10, "unused", 99),
    ]
    assert gone_records(range(2, 2), [], now_ns=99) == []


def test_a_record_has_no_more_segments_than_its_format_allows():
    lost = [LostSegment(number, 1, "size", 0) for number in range(20_001)]
    assert [len(one.segments) for one in gone_records(range(20_001), lost, now_ns=0)] == [10_000, 10_000, 1]


REASONS = st.sampled_from(["size", "age", "skipped", "damaged"])


@given(st.dictionaries(st.integers(0, 30), st.tuples(st.none() | st.integers(0, 9), REASONS)), st.integers(0, 30))
def test_records_cover_the_gap_exactly(segments, start):
    gap = range(start, 31)
    lost = [LostSegment(number, *segments[number], 5) for number in sorted(segments) if number in gap]
    records = gone_records(gap, lost, now_ns=7)
    assert [number for one in records for number in range(one.first, one.last + 1)] == list(gap)
    reasons = {number: one.reason for one in records for number in range(one.first, one.last + 1)}
    assert reasons == {number: segments[number][1] if number in segments else "unused" for number in gap}
    assert sum(one.bundles_from(0) for one in records) == sum(one.bundles or 0 for one in lost)
    for one in records:
        data = encode_gone(one)
        assert decode_gone(memoryview(data)) == Frame(one, len(data))
