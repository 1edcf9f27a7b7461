"""Which segments may be deleted: a truth table, with time as an argument."""

import pytest

from quiver.store.removal.retention import Retention


def sized(*seqs):
    return dict.fromkeys(seqs, 100)


@pytest.mark.parametrize(
    ("complete", "passed_s", "grace_s", "expected"),
    [
        ([], 100.0, 10.0, []),  # no subscriber is finished, or there are none
        ([0], 0.0, 10.0, []),
        ([0], 9.999, 10.0, []),
        ([0], 10.0, 10.0, [0]),
        ([0], 0.0, 0.0, [0]),
        ([2, 5], 10.0, 10.0, [2, 5]),  # not only the oldest
    ],
)
def test_complete_and_old_enough(complete, passed_s, grace_s, expected):
    retention = Retention(grace_s=grace_s)
    retention.deletable(sized(*complete), now_s=1000.0)
    assert retention.deletable(sized(*complete), now_s=1000.0 + passed_s) == expected


def test_each_segment_has_its_own_time():
    retention = Retention(grace_s=10)
    assert retention.deletable(sized(4), now_s=0) == []
    assert retention.deletable(sized(4, 1), now_s=6) == []
    assert retention.deletable(sized(4, 1), now_s=10) == [4]
    assert retention.deletable(sized(1), now_s=16) == [1]


def test_the_grace_period_restarts_when_a_segment_is_pending_again():
    retention = Retention(grace_s=10)
    retention.deletable(sized(0), now_s=0)
    retention.deletable({}, now_s=5)
    assert retention.deletable(sized(0), now_s=12) == []
    assert retention.deletable(sized(0), now_s=22) == [0]


def test_a_segment_that_could_not_be_deleted_is_returned_again():
    retention = Retention(grace_s=1)
    retention.deletable(sized(0), now_s=0)
    assert retention.deletable(sized(0), now_s=2) == [0]
    assert retention.deletable(sized(0), now_s=3) == [0]


@pytest.mark.parametrize(
    ("headroom_bytes", "expected"),
    [(0, [1, 2, 3]), (99, [1, 2, 3]), (100, [1, 2]), (250, [1]), (299, [1]), (300, [])],
)
def test_the_newest_stay_as_headroom(headroom_bytes, expected):
    """Whole segments, and never more than configured."""
    retention = Retention(grace_s=0, headroom_bytes=headroom_bytes)
    assert retention.deletable(sized(1, 2, 3), now_s=0) == expected


def test_headroom_does_not_shorten_the_grace_period():
    retention = Retention(grace_s=10, headroom_bytes=100)
    retention.deletable(sized(1), now_s=0)
    assert retention.deletable(sized(1, 2), now_s=5) == []
    assert retention.deletable(sized(1, 2), now_s=10) == [1]


def test_age_counts_from_the_newest_bundle():
    """Deleted segments are not returned again; without a limit none is."""
    retention = Retention(grace_s=0, age_s_max=60)
    retention.born(3, -100.0)
    retention.born(4, 10.0)
    assert retention.expired(now_s=69.9) == [3]
    assert retention.expired(now_s=70.0) == [3, 4]
    retention.forget([3, 7])
    assert retention.expired(now_s=70.0) == [4]
    assert retention.is_over_age(10.0, now_s=70.0)
    assert not retention.is_over_age(10.1, now_s=70.0)
    for_ever = Retention(grace_s=0)
    for_ever.born(0, -1e9)
    assert for_ever.expired(now_s=1e9) == []
    assert not for_ever.is_over_age(-1e9, now_s=1e9)
