"""One failing bundle does not open the circuit breaker; several in a row do, and then single bundles probe."""

from random import Random

from quiver.exporters.circuit_breaker import FAILURES_MAX, CircuitBreaker
from quiver.primitives.backoff import Backoff


def made():
    return CircuitBreaker(Backoff(first_s=1.0, cap_s=8.0, jitter=0.0), Random(1))


def down(pace, now=0.0):
    for number in range(FAILURES_MAX):
        pace.failed(number, now, 0.0)
    assert pace.is_down
    return pace


def test_one_failing_bundle_does_not_block_others():
    """Regardless of how often it fails."""
    pace = made()

    assert not any(pace.failed("sick", float(number), 0.0) for number in range(50))
    assert (pace.is_down, pace.wait_s(50.0)) == (False, 0.0)


def test_several_failing_bundles_in_a_row_open_the_breaker():
    """Only the last of them reports it; a success in between resets the count."""
    pace = made()
    for number in range(FAILURES_MAX - 1):
        assert not pace.failed(number, 0.0, 0.0)
    assert pace.succeeded() is False
    for number in range(FAILURES_MAX - 1):
        assert not pace.failed(number, 0.0, 0.0)

    assert pace.failed("last", 0.0, 0.0) is True
    assert pace.is_down


def test_pauses_grow_to_the_cap_with_one_probe_each():
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


def test_a_success_closes_the_breaker_and_resets_the_pauses():
    pace = down(made())
    pace.probing(1.0)
    pace.probing(3.0)

    assert pace.succeeded() is True
    assert (pace.is_down, pace.wait_s(3.0)) == (False, 0.0)
    assert down(pace, 10.0).wait_s(10.0) == 1.0


def test_a_destination_may_ask_for_a_longer_pause():
    pace = made()
    for number in range(FAILURES_MAX):
        pace.failed(number, 0.0, 20.0)
    assert pace.wait_s(0.0) == 20.0
    pace.probing(20.0)
    pace.failed("x", 20.0, 30.0)

    assert pace.wait_s(20.0) == 30.0
