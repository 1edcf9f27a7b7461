"""The retry policy: delivered, retry, or exhausted."""

from random import Random

import pytest

from quiver.delivery.policy import (
    RETRY_AFTER_S_MAX,
    Delivered,
    Done,
    Exhausted,
    Permanent,
    Retry,
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
    """They depend only on the count, so a count read from disk continues the backoff."""
    assert [decide(STEADY, DOWN, attempts) for attempts in (1, 2, 3, 4, 5, 10**9)] == [
        Retry(delay) for delay in (1.0, 2.0, 4.0, 8.0, 8.0, 8.0)
    ]


@pytest.mark.parametrize("multiplier", [1e5, 1e300])
def test_a_large_multiplier_does_not_overflow(multiplier):
    """Its powers exceed a float, which must not end an exporter after many attempts."""
    policy = RetryPolicy(initial_interval_s=0.5, max_interval_s=8.0, multiplier=multiplier, jitter=0.0)
    assert [policy.delay_s(attempts, Random(1)) for attempts in (1, 2, 3, 64, 10**9)] == [0.5, 8.0, 8.0, 8.0, 8.0]


def test_jitter_only_shortens_delays():
    policy = RetryPolicy(initial_interval_s=4.0, max_interval_s=4.0, jitter=0.25)
    random = Random(3)
    delays = {policy.delay_s(1, random) for _ in range(50)}
    assert len(delays) > 40
    assert 3.0 <= min(delays) < max(delays) <= 4.0


def test_a_destination_may_ask_for_a_longer_delay():
    """Up to a maximum, and never for a shorter one."""
    for asked, given in ((20.0, 20.0), (0.1, 1.0), (1e9, RETRY_AFTER_S_MAX)):
        assert decide(STEADY, Transient("HTTP 503", retry_after_s=asked)) == Retry(given)


def test_retries_end_by_attempts_or_time():
    """`on_exhausted` then applies."""
    policy = RetryPolicy(max_attempts=3, max_elapsed_s=60.0, on_exhausted="drop")
    assert isinstance(decide(policy, DOWN, 2, 59.9), Retry)
    assert decide(policy, DOWN, 3) == Exhausted("drop", "3 attempts failed; the last with UNAVAILABLE: down")
    assert decide(policy, DOWN, 2, 60.0) == Exhausted("drop", "failed for 60 s; the last time with UNAVAILABLE: down")


@pytest.mark.parametrize("how", ["halt", "drop", "dead_letter"])
def test_a_permanent_refusal_is_not_retried(how):
    """`on_exhausted` applies immediately."""
    policy = RetryPolicy(on_exhausted=how)
    assert decide(policy, Permanent("HTTP 400", "no")) == Exhausted(how, "HTTP 400: no")
    assert decide(policy, Delivered()) == Done()


def test_errors_are_classified():
    """Data that cannot be encoded are permanent; everything else is transient."""
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
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(SettingsError):
        RetryPolicy(**wrong)


def test_a_policy_of_a_backoff_has_no_limits():
    backoff = Backoff(first_s=2.0, cap_s=9.0, factor=3.0, jitter=0.1)
    policy = RetryPolicy.of_backoff(backoff, on_exhausted="halt")
    assert (policy.backoff, policy.max_attempts, policy.max_elapsed_s) == (backoff, None, None)
    assert policy.on_exhausted == "halt"
