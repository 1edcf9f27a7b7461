"""The bitmap of claimable bundles behaves like a set, also across word boundaries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.store.subscribers.queue import ClaimableBitmap

INDEX = st.one_of(st.integers(0, 5), st.sampled_from([510, 511, 512, 513, 1023, 1024]), st.integers(0, 65_535))
STEP = st.tuples(st.sampled_from(["add", "discard", "first", "some", "last", "run", "last run"]), INDEX)
RANGES = st.lists(st.tuples(INDEX, st.integers(1, 1_200)), max_size=3)


def consecutive(model, count, *, from_end):
    step = -1 if from_end else 1
    found = [max(model) if from_end else min(model)]
    while len(found) < count and found[-1] + step in model:
        found.append(found[-1] + step)
    return sorted(found)


@given(RANGES, st.sets(INDEX), st.lists(STEP, max_size=60))
def test_the_bitmap_behaves_like_a_set(ranges, at_first, steps):
    at_first |= {index for first, length in ranges for index in range(first, first + length)}
    free, model = ClaimableBitmap(sum(1 << index for index in at_first)), set(at_first)
    for what, number in steps:
        if what == "add":
            free.add(number)
            model.add(number)
        elif what == "discard":
            free.discard(number)
            model.discard(number)
        elif what == "some":
            expected = sorted(model)[: number % 7]
            assert free.pop_some(number % 7) == expected
            model.difference_update(expected)
        elif "run" in what:
            if model:
                first, length = (free.pop_run if what == "run" else free.pop_last_run)(number % 600 + 1)
                expected = consecutive(model, number % 600 + 1, from_end=what == "last run")
                assert list(range(first, first + length)) == expected
                model.difference_update(expected)
        elif model:
            expected, pop = (min(model), free.pop_first) if what == "first" else (max(model), free.pop_last)
            assert pop() == expected
            model.discard(expected)
        assert free.count == len(model)
    assert free.pop_some(len(model) + 1) == sorted(model)
    assert free.count == 0


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 65_536])
def test_all_of_a_segment_in_order(count):
    free = ClaimableBitmap((1 << count) - 1)
    assert free.pop_some(count) == list(range(count))
    assert free.pop_some(1) == []
