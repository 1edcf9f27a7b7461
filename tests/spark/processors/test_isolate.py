"""What makes a batch fail is found by halving, with few probes, and nothing is blamed for nothing."""

from hypothesis import given
from hypothesis import strategies as st

from quiver.spark.processors.bisect import PROBES_MAX, PROBES_WITHOUT_SUCCESS_MAX, bisect


class Prober:
    """Fails on groups that hold a bad thing."""

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
def test_exactly_the_bad_ones_are_found(count, data):
    """In order, each with its own reason, wherever they are."""
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    answer, _ = found(range(count), bad, probes_max=10_000)
    assert answer == [(one, f"bad {one}") for one in sorted(bad)]


@given(st.integers(0, 999))
def test_one_bad_thing_costs_one_or_two_probes_a_halving(bad):
    """A thousand bundles are twenty jobs at most, not a thousand; and one more that says that this was all."""
    answer, probes = found(range(1000), {bad})
    assert answer == [(bad, f"bad {bad}")]
    assert probes <= 2 * 10 + 1


def test_what_passes_is_not_asked_twice():
    """A half that passes says that the other one does not."""
    answer, probes = found(range(1024), {1023})
    assert (answer, probes) == ([(1023, "bad 1023")], 10 + 1)


def test_one_thing_needs_no_probe():
    """It is the one."""
    assert found(["a"], {"a"}) == ([("a", "bad a")], 0)


@given(st.sets(st.integers(0, 399), min_size=1), st.integers(0, 30))
def test_too_many_bad_ones_are_set_aside_with_their_neighbours(bad, probes_max):
    """Never more probes than allowed, and never a bad one left out."""
    answer, probes = found(range(400), bad, probes_max=probes_max)
    assert probes <= probes_max
    assert bad <= {thing for thing, _ in answer}
    assert all(why.startswith("bad") for thing, why in answer if thing in bad and "one of" not in why)


def test_a_batch_of_which_one_in_fifty_is_bad_loses_no_good_one():
    """As many bundles as a batch may have, and forty bad ones among them, are told apart by default."""
    bad = set(range(7, 2048, 51))
    answer, probes = found(range(2048), bad)
    assert {thing for thing, _ in answer} == bad
    assert probes <= PROBES_MAX


def test_where_everything_fails_few_probes_are_made():
    """A processor that fails on every bundle is not asked about each of them."""
    answer, probes = found(range(2048), range(2048))
    assert len(answer) == 2048
    assert probes <= PROBES_WITHOUT_SUCCESS_MAX


def test_what_fails_only_together_is_parted():
    """A sum that overflows, say: nobody knows whose fault it is, and each may pass by itself."""
    answer = bisect("abc", lambda group: "overflow" if len(group) == 3 else None, reason="overflow")
    assert answer == [("c", "overflow")]


@given(st.sets(st.integers(0, 19), min_size=2, max_size=4))
def test_without_what_is_set_aside_the_others_pass(together):
    """Whatever fails only together."""

    def fails(group):
        return "overflow" if together <= set(group) else None

    answer = bisect(range(20), fails, reason="overflow", probes_max=1000)
    assert fails([thing for thing in range(20) if thing not in dict(answer)]) is None
