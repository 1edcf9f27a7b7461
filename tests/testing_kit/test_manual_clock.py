"""A manual clock moves only when it is advanced."""

from __future__ import annotations

import threading

from quiver.testing.clock import ManualClock


def test_both_clocks_advance_together():
    """`advance` moves the wall clock and the steady clock by the same amount."""
    clock = ManualClock(now_ns=1_000)
    clock.advance(2.5)

    assert (clock.now_ns(), clock.monotonic()) == (2_500_001_000, 2.5)


def test_the_wall_clock_steps_alone():
    """Setting it back or forward is not noticed by the steady clock."""
    clock = ManualClock()
    clock.set_wall_ns(5)

    assert (clock.now_ns(), clock.monotonic()) == (5, 0.0)


def test_skipped_waits_end_immediately():
    """Time passes as if it had been waited for; without a timeout the result is a spurious wake-up."""
    clock = ManualClock()
    condition = threading.Condition()
    with condition:
        assert clock.wait(condition, 3600) is False
        assert clock.wait(condition, None) is True

    assert clock.monotonic() == 3600


def test_held_waits_end_by_notification():
    """A notified wait returns True, even if no time has passed."""
    clock = ManualClock(waits="hold")
    condition = threading.Condition()
    answers = []

    def wait(timeout):
        with condition:
            answers.append(clock.wait(condition, timeout))

    for timeout in (10, None):
        thread = threading.Thread(target=wait, args=(timeout,))
        thread.start()
        clock.wait_for_waiters()
        with condition:
            condition.notify_all()
        thread.join()

    assert answers == [True, True]
    assert clock.monotonic() == 0


def test_held_waits_end_by_their_deadline():
    """`advance` past the deadline ends the wait with False; a wait of zero seconds does not stop the thread."""
    clock = ManualClock(waits="hold")
    condition = threading.Condition()
    answers = []

    def wait():
        with condition:
            answers.append(clock.wait(condition, 0))
            left = 10.0
            while left > 0 and clock.wait(condition, left):
                left = 10.0 - clock.monotonic()
            answers.append(left)

    thread = threading.Thread(target=wait)
    thread.start()
    clock.wait_for_waiters()
    clock.advance(4)
    clock.wait_for_waiters()
    clock.advance(7)
    thread.join()

    assert answers == [False, 6.0]
