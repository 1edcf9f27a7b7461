"""Delays grow, stay below their cap, and depend only on the random generator that is passed."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest

from quiver.errors import SettingsError
from quiver.primitives.backoff import Backoff


def test_delays_double_up_to_the_cap():
    """Without jitter they are exactly first, first times factor, … cap, cap."""
    delays = Backoff(first_s=0.1, cap_s=1.0, factor=2, jitter=0).delays(Random(1))

    assert list(itertools.islice(delays, 6)) == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_jitter_only_shortens():
    """Each delay is between its minimum share and its full value; the same seed gives the same sequence."""
    backoff = Backoff(first_s=1, cap_s=8, factor=2, jitter=0.25)
    plain = [1, 2, 4, 8, 8, 8]
    first, second = (list(itertools.islice(backoff.delays(Random(5)), 6)) for _ in range(2))

    assert first == second
    assert all(complete * 0.75 < delay <= complete for delay, complete in zip(first, plain, strict=True))
    assert len(set(first)) == 6


def test_many_failures_do_not_overflow():
    """The ten-thousandth delay is the cap."""
    delays = Backoff(first_s=0.1, cap_s=30, factor=10, jitter=0).delays(Random(1))

    assert next(itertools.islice(delays, 10_000, None)) == 30


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_s": 0}, {"first_s": -1}, {"first_s": 31}, {"cap_s": math.inf}, {"cap_s": math.nan},
        {"factor": 0.5}, {"factor": math.inf}, {"jitter": -0.1}, {"jitter": 1.1},
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(wrong):
    """A backoff that could not work cannot be created."""
    with pytest.raises(SettingsError):
        Backoff(**wrong)
