"""Time and ages that a step of the wall clock does not change."""

from __future__ import annotations

import pytest

from quiver.clock import Ages, SteadyTime
from quiver.testing.clock import ManualClock

DAYS_S = 2 * 86_400
STEPS_S = pytest.mark.parametrize("step_s", [-DAYS_S, DAYS_S])


@STEPS_S
def test_steady_time_does_not_step(step_s: int) -> None:
    """It continues, and reports the difference to the wall clock."""
    clock = ManualClock()
    time = SteadyTime(clock)
    began_ns = time.now_ns()
    clock.step_wall(step_s)
    clock.advance(5)
    assert time.now_ns() - began_ns == 5 * 10**9
    assert time.step_ns() == step_s * 10**9
    assert SteadyTime(clock, time.zero_ns).now_ns() == time.now_ns()


def test_drift_is_not_a_step() -> None:
    """Two clocks never agree exactly."""
    clock = ManualClock()
    time = SteadyTime(clock)
    clock.step_wall(0.9)
    assert time.step_ns() == 0


@STEPS_S
def test_known_things_do_not_age_by_a_step(step_s: int) -> None:
    """Objects that exist at first have the age that the wall clock gives then."""
    clock = ManualClock()
    clock.advance(1000)
    ages: Ages[str] = Ages(clock)
    stamps = {"old": clock.now_ns() - 60 * 10**9, "ahead": clock.now_ns() + 10**18}
    assert ages.born_s(stamps) == {"old": 940.0, "ahead": 1000.0}
    clock.step_wall(step_s)
    clock.advance(10)
    assert ages.born_s(stamps) == {"old": 940.0, "ahead": 1000.0}


@STEPS_S
def test_new_things_are_not_older_than_the_last_check(step_s: int) -> None:
    """With a timestamp from before the step or after it."""
    clock = ManualClock()
    ages: Ages[str] = Ages(clock)
    assert ages.born_s({}) == {}
    clock.advance(100)
    before_ns = clock.now_ns()
    clock.step_wall(step_s)
    clock.advance(100)
    found = ages.born_s({"before": before_ns, "after": clock.now_ns() - 50 * 10**9})
    assert found["after"] == 150.0
    assert found["before"] == 200.0


def test_missing_things_are_forgotten() -> None:
    """A name may be reused."""
    clock = ManualClock()
    ages: Ages[str] = Ages(clock)
    ages.born_s({"a": clock.now_ns()})
    ages.born_s({})
    clock.advance(10)
    assert ages.born_s({"a": clock.now_ns()}) == {"a": 10.0}
