"""One sick bundle does not make the far side count as down; several in a row do, and then it is tried one by one."""

from random import Random

from quiver.exporters.circuit_breaker import SUSPECTS, Pace
from quiver.primitives.backoff import Backoff


def made():
    return Pace(Backoff(first_s=1.0, cap_s=8.0, jitter=0.0), Random(1))


def down(pace, now=0.0):
    for number in range(SUSPECTS):
        pace.failed(number, now, 0.0)
    assert pace.is_down
    return pace


def test_one_bundle_that_fails_often_holds_up_nothing():
    """However often the same one fails, the next may go at once."""
    pace = made()

    assert not any(pace.failed("sick", float(number), 0.0) for number in range(50))
    assert (pace.is_down, pace.wait_s(50.0)) == (False, 0.0)


def test_several_bundles_in_a_row_are_the_far_side():
    """The last of them says so once; what succeeds between them starts the count again."""
    pace = made()
    for number in range(SUSPECTS - 1):
        assert not pace.failed(number, 0.0, 0.0)
    assert pace.succeeded() is False
    for number in range(SUSPECTS - 1):
        assert not pace.failed(number, 0.0, 0.0)

    assert pace.failed("last", 0.0, 0.0) is True
    assert pace.is_down


def test_pauses_grow_to_the_cap_and_each_lets_one_through():
    """A probe closes the door behind it for the next pause."""
    pace = down(made())
    now, pauses = 0.0, []
    for _ in range(6):
        pauses.append(pace.wait_s(now))
        now += pauses[-1]
        assert pace.wait_s(now) == 0.0
        pace.probing(now)
        assert pace.wait_s(now) > 0
        assert pace.failed("x", now, 0.0) is False

    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_a_success_opens_at_once_and_the_next_outage_begins_small():
    """Nothing of an outage is left behind by it."""
    pace = down(made())
    pace.probing(1.0)
    pace.probing(3.0)

    assert pace.succeeded() is True
    assert (pace.is_down, pace.wait_s(3.0)) == (False, 0.0)
    assert down(pace, 10.0).wait_s(10.0) == 1.0


def test_a_far_side_that_wants_to_be_left_alone_is():
    """Its own delay counts when it is the longer one."""
    pace = made()
    for number in range(SUSPECTS):
        pace.failed(number, 0.0, 20.0)
    assert pace.wait_s(0.0) == 20.0
    pace.probing(20.0)
    pace.failed("x", 20.0, 30.0)

    assert pace.wait_s(20.0) == 30.0
