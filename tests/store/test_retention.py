"""
Which segments may go: a truth table, with time as an argument.
"""

import pytest

from quiver.store.retention import Retention


@pytest.mark.parametrize(
    ("complete", "passed_s", "grace_s", "expected"),
    [
        ([], 100.0, 10.0, []),  # nobody is finished, or there are no subscribers
        ([0], 0.0, 10.0, []),
        ([0], 9.999, 10.0, []),
        ([0], 10.0, 10.0, [0]),
        ([0], 0.0, 0.0, [0]),
        ([2, 5], 10.0, 10.0, [2, 5]),  # not only the oldest
    ],
)
def test_complete_and_old_enough(complete, passed_s, grace_s, expected):
    retention = Retention(grace_s=grace_s)
    retention.deletable(complete, now_s=1000.0)
    assert retention.deletable(complete, now_s=1000.0 + passed_s) == expected


def test_each_segment_has_its_own_time():
    retention = Retention(grace_s=10)
    assert retention.deletable([4], now_s=0) == []
    assert retention.deletable([4, 1], now_s=6) == []
    assert retention.deletable([4, 1], now_s=10) == [4]
    assert retention.deletable([1], now_s=16) == [1]


def test_the_grace_period_starts_over_when_somebody_wants_the_segment_again():
    retention = Retention(grace_s=10)
    retention.deletable([0], now_s=0)
    retention.deletable([], now_s=5)
    assert retention.deletable([0], now_s=12) == []
    assert retention.deletable([0], now_s=22) == [0]


def test_a_full_disk_waives_the_grace_period_and_nothing_else():
    retention = Retention(grace_s=10)
    assert retention.deletable([0], now_s=0, grace_s=0.0) == [0]
    assert retention.deletable([], now_s=0, grace_s=0.0) == []


def test_what_could_not_be_deleted_is_named_again():
    retention = Retention(grace_s=1)
    retention.deletable([0], now_s=0)
    assert retention.deletable([0], now_s=2) == [0]
    assert retention.deletable([0], now_s=3) == [0]
