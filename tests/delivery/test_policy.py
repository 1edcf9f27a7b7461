"""Delivered, again later, or given up: the rules, without a clock."""

from random import Random

import pytest

from quiver.delivery.policy import (
    RETRY_AFTER_S_MAX,
    Again,
    Delivered,
    Done,
    GiveUp,
    Permanent,
    RetryPolicy,
    Transient,
    outcome_of_error,
)
from quiver.errors import CorruptionError, InvalidBundleError, SettingsError
from quiver.primitives.backoff import Backoff

DOWN = Transient("UNAVAILABLE", "down")
STEADY = RetryPolicy(initial_interval_s=1.0, max_interval_s=8.0, jitter=0.0)


def decide(policy, outcome, attempts=1, elapsed_s=0.0):
    return policy.decide(outcome, attempts=attempts, elapsed_s=elapsed_s, random=Random(1))


def test_delays_grow_to_the_cap():
    """By the count alone, so that a count from the disk goes on where it was; without end."""
    assert [decide(STEADY, DOWN, attempts) for attempts in (1, 2, 3, 4, 5, 10**9)] == [
        Again(delay) for delay in (1.0, 2.0, 4.0, 8.0, 8.0, 8.0)
    ]


@pytest.mark.parametrize("multiplier", [1e5, 1e300])
def test_a_large_multiplier_goes_to_the_cap_at_once(multiplier):
    """Its powers are more than a float can hold, which must not end an exporter after many tries."""
    policy = RetryPolicy(initial_interval_s=0.5, max_interval_s=8.0, multiplier=multiplier, jitter=0.0)
    assert [policy.delay_s(attempts, Random(1)) for attempts in (1, 2, 3, 64, 10**9)] == [0.5, 8.0, 8.0, 8.0, 8.0]


def test_chance_only_shortens():
    """Between what is left of the delay and the delay, and not always the same."""
    policy = RetryPolicy(initial_interval_s=4.0, max_interval_s=4.0, jitter=0.25)
    random = Random(3)
    delays = {policy.delay_s(1, random) for _ in range(50)}
    assert len(delays) > 40
    assert 3.0 <= min(delays) < max(delays) <= 4.0


def test_the_far_side_may_ask_for_longer():
    """Within reason, and never for shorter."""
    for asked, given in ((20.0, 20.0), (0.1, 1.0), (1e9, RETRY_AFTER_S_MAX)):
        assert decide(STEADY, Transient("HTTP 503", retry_after_s=asked)) == Again(given)


def test_attempts_and_time_are_used_up():
    """The last attempt is the one that fails; how it ends is the policy's."""
    policy = RetryPolicy(max_attempts=3, max_elapsed_s=60.0, on_exhausted="drop")
    assert isinstance(decide(policy, DOWN, 2, 59.9), Again)
    assert decide(policy, DOWN, 3) == GiveUp("drop", "3 attempts failed; the last with UNAVAILABLE: down")
    assert decide(policy, DOWN, 2, 60.0) == GiveUp("drop", "failed for 60 s; the last time with UNAVAILABLE: down")


@pytest.mark.parametrize("how", ["halt", "drop", "dead_letter"])
def test_what_is_refused_for_good_is_given_up_at_once(how):
    """In the same way as what is used up."""
    policy = RetryPolicy(on_exhausted=how)
    assert decide(policy, Permanent("HTTP 400", "no")) == GiveUp(how, "HTTP 400: no")
    assert decide(policy, Delivered()) == Done()


def test_errors_have_a_meaning():
    """Data that can never be said are permanent; everything else may pass."""
    assert outcome_of_error(InvalidBundleError("no")) == Permanent("InvalidBundleError", "no")
    assert isinstance(outcome_of_error(CorruptionError("a", 1, "torn")), Permanent)
    assert outcome_of_error(ConnectionError("gone")) == Transient("ConnectionError", "gone")


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_elapsed_s": 0.0},
        {"max_elapsed_s": float("inf")},
        {"on_exhausted": "retry"},
        {"initial_interval_s": 31.0},
        {"jitter": 1.1},
        {"multiplier": 0.5},
    ],
)
def test_numbers_out_of_range_are_refused(wrong):
    """When it is made, not when it is used."""
    with pytest.raises(SettingsError):
        RetryPolicy(**wrong)


def test_a_backoff_is_a_policy_without_an_end():
    """Its numbers are taken over."""
    backoff = Backoff(first_s=2.0, cap_s=9.0, factor=3.0, jitter=0.1)
    policy = RetryPolicy.of_backoff(backoff, on_exhausted="halt")
    assert (policy.backoff, policy.max_attempts, policy.max_elapsed_s) == (backoff, None, None)
    assert policy.on_exhausted == "halt"
