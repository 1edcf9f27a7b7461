"""The readable objects of a node: an unbroken chain, to a hole or a fork, across records of lost segments."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.store.format.fleet.chain import Chain, Fork, Hole, check_chain
from quiver.store.format.fleet.names import InboxObject


def segment(number, crc32=1):
    return InboxObject(number, number, crc32, 10)


def gone(first, last):
    return InboxObject(first, last, None, 5)


def test_the_chain_starts_at_the_position():
    """Objects below it are ignored, until its node removes it."""
    found = [segment(number) for number in range(3, 8)]
    assert check_chain(found, 5) == Chain(5, (segment(5), segment(6), segment(7)))
    assert check_chain(found, 5).end == 8
    assert check_chain(found, 8) == Chain(8, ())
    assert check_chain(found, 8).end == 8
    assert check_chain([], 0) == Chain(0, ())


def test_a_hole_ends_the_chain():
    found = [segment(5), segment(8), segment(9)]
    assert check_chain(found, 5) == Chain(5, (segment(5),), Hole(6, 7))
    assert check_chain(found, 3) == Chain(3, (), Hole(3, 4))


def test_a_fork_ends_the_chain():
    found = [segment(5), segment(6, 2), segment(6, 1), segment(7)]
    assert check_chain(found, 5) == Chain(5, (segment(5),), Fork(6, (1, 2)))


def test_a_fork_below_the_position_is_not_seen():
    """It was read, and mostly one of the two is removed. Nodes find it by the checksum in their position."""
    assert check_chain([segment(4, 1), segment(4, 2), segment(5)], 5) == Chain(5, (segment(5),))


def test_gone_segments_close_a_hole():
    found = [segment(5), gone(6, 7), segment(8)]
    assert check_chain(found, 5) == Chain(5, (segment(5), gone(6, 7), segment(8)))


def test_gone_segments_are_read_while_their_objects_exist():
    """No data are left out that are there: the record may be that of another store with the same identity."""
    chain = check_chain([segment(5), segment(7), gone(5, 6), segment(8)], 5)
    assert chain.objects == (segment(5), gone(5, 6), segment(7), segment(8))


def test_gone_segments_may_begin_before_the_position():
    assert check_chain([gone(2, 6), segment(7)], 5).objects == (gone(2, 6), segment(7))


def test_gone_segments_may_overlap():
    """After a crash, a later record may repeat an earlier one."""
    chain = check_chain([gone(5, 7), gone(6, 9), gone(8, 8), segment(10)], 5)
    assert chain.objects == (gone(5, 7), gone(6, 9), segment(10))


def test_gone_segments_end_a_fork():
    assert check_chain([segment(5, 1), segment(5, 2), gone(5, 5), segment(6)], 5).objects == (gone(5, 5), segment(6))


def test_the_last_number():
    """Numbers are 64 bits wide, and the highest is not a segment."""
    last = 2**64 - 2
    assert check_chain([segment(last)], last).end == 2**64 - 1
    assert check_chain([gone(0, last)], 7).objects == (gone(0, last),)


OBJECTS = st.lists(
    st.builds(segment, st.integers(0, 8), st.integers(1, 2))
    | st.tuples(st.integers(0, 8), st.integers(0, 3)).map(lambda pair: gone(pair[0], pair[0] + pair[1])),
    max_size=12,
)


@given(OBJECTS, st.integers(0, 9), st.randoms())
def test_against_a_model(found, position, random):
    """Number by number: recorded, or exactly one segment. The order of the listing does not matter."""
    random.shuffle(found)
    chain = check_chain(found, position)

    end = position
    while True:
        closing = [one for one in found if one.is_gone and one.first <= end <= one.last]
        segments = {one for one in found if not one.is_gone and one.first == end}
        if len(segments) == 1:
            end += 1
        elif closing:
            end = max(one.last for one in closing) + 1
        else:
            break
    assert chain.end == end
    later = [one for one in found if one.last >= end]
    if len(segments) > 1:
        assert chain.problem == Fork(end, (1, 2))
    elif later:
        assert chain.problem == Hole(end, min(one.first for one in later) - 1)
    else:
        assert chain.problem is None
    for before, after in itertools.pairwise(chain.objects):
        assert after.first <= before.last + 1 <= after.last


@pytest.mark.parametrize("count", [20_000])
def test_many_objects(count):
    """A node that was not read for weeks."""
    found = [segment(number) for number in range(count)] + [gone(count, count + 9)] * 5
    assert check_chain(reversed(found), 0).end == count + 10
