"""`bisect` finds the items that make a batch fail, with few probes and without wrong accusations."""

from hypothesis import given
from hypothesis import strategies as st

from quiver.spark.processors.bisect import PROBES_MAX, PROBES_WITHOUT_SUCCESS_MAX, bisect


class Prober:
    """Fails on groups with a bad item."""

    def __init__(self, bad):
        self.bad = bad
        self.asked = []

    def __call__(self, group):
        self.asked.append(tuple(group))
        found = sorted(self.bad & set(group))
        return f"bad {found[0]}" if found else None


def found(things, bad, **more):
    prober = Prober(frozenset(bad))
    return bisect(things, prober, reason=prober(things), **more), len(prober.asked) - 1


@given(st.integers(1, 60), st.data())
def test_exactly_the_bad_items_are_found(count, data):
    """In order, each with its own reason, at any position."""
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    answer, _ = found(range(count), bad, probes_max=10_000)
    assert answer == [(one, f"bad {one}") for one in sorted(bad)]


@given(st.integers(0, 999))
def test_one_bad_item_needs_at_most_two_probes_per_halving(bad):
    """For a thousand bundles that is twenty jobs, not a thousand; one more confirms that no other item is bad."""
    answer, probes = found(range(1000), {bad})
    assert answer == [(bad, f"bad {bad}")]
    assert probes <= 2 * 10 + 1


def test_a_half_that_passes_needs_no_second_probe():
    """Then the bad item is in the other half."""
    answer, probes = found(range(1024), {1023})
    assert (answer, probes) == ([(1023, "bad 1023")], 10 + 1)


def test_one_item_needs_no_probe():
    """It is the bad one."""
    assert found(["a"], {"a"}) == ([("a", "bad a")], 0)


@given(st.sets(st.integers(0, 399), min_size=1), st.integers(0, 30))
def test_too_many_bad_items_are_reported_with_their_neighbors(bad, probes_max):
    """There are never more probes than allowed, and no bad item is missed."""
    answer, probes = found(range(400), bad, probes_max=probes_max)
    assert probes <= probes_max
    assert bad <= {thing for thing, _ in answer}
    assert all(why.startswith("bad") for thing, why in answer if thing in bad and "one of" not in why)


def test_a_batch_with_one_bad_item_in_fifty_loses_no_good_one():
    """With the largest batch and forty bad bundles in it, the default number of probes suffices."""
    bad = set(range(7, 2048, 51))
    answer, probes = found(range(2048), bad)
    assert {thing for thing, _ in answer} == bad
    assert probes <= PROBES_MAX


def test_a_batch_with_only_bad_items_needs_few_probes():
    """A processor that fails on every bundle is not run on each of them."""
    answer, probes = found(range(2048), range(2048))
    assert len(answer) == 2048
    assert probes <= PROBES_WITHOUT_SUCCESS_MAX


def test_items_that_fail_only_together_are_separated():
    """For example, a sum that overflows: the cause is unknown, and each item may pass individually."""
    answer = bisect("abc", lambda group: "overflow" if len(group) == 3 else None, reason="overflow")
    assert answer == [("c", "overflow")]


@given(st.sets(st.integers(0, 19), min_size=2, max_size=4))
def test_the_items_that_are_not_reported_pass(together):
    """Even if items fail only together."""

    def fails(group):
        return "overflow" if together <= set(group) else None

    answer = bisect(range(20), fails, reason="overflow", probes_max=1000)
    assert fails([thing for thing in range(20) if thing not in dict(answer)]) is None
