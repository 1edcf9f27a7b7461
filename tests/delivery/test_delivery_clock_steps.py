"""Wall clock steps back and forward: retries run when they are due, and none ends early."""

from __future__ import annotations

import pytest
from numbered import bundle_of

from quiver.bundle import BundleRef
from quiver.delivery.dead_letter_policy import DeadLetterPolicy
from quiver.delivery.dead_letters import DeadLetters, read_dead_letters
from quiver.store.subscribers.retry_set import RetrySet, load_retry_set
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/store"
A = BundleRef(1, 0)
DAYS_S = 2 * 86_400
STEPS_S = pytest.mark.parametrize("step_s", [-DAYS_S, DAYS_S])


@STEPS_S
def test_a_clock_step_does_not_change_when_a_retry_is_due(
    disk: CrashFileSystem, clock: ManualClock, step_s: int
) -> None:
    """Neither delayed by days nor immediate; `max_elapsed` counts elapsed time."""
    with RetrySet.open(disk, ROOT, "out", clock=clock) as retries:
        retries.failed(A, delay_s=10.0, reason="down")
        clock.step_wall(step_s)
        clock.advance(4.0)
        assert retries.due() == []
        assert retries.wait_s(A) == pytest.approx(6.0)
        assert retries.elapsed_s(A) == pytest.approx(4.0)
        clock.advance(6.0)
        assert [entry.ref for entry in retries.due()] == [A]


@STEPS_S
def test_retries_keep_their_delay_across_a_clock_step_and_a_restart(
    disk: CrashFileSystem, clock: ManualClock, step_s: int
) -> None:
    """Retries saved after the step have the time of the new wall clock."""
    with RetrySet.open(disk, ROOT, "out", clock=clock) as retries:
        retries.failed(A, delay_s=10.0, reason="down")
        clock.step_wall(step_s)
        retries.save()
    (saved,) = load_retry_set(disk, ROOT, "out")
    assert saved.next_try_at_ns == clock.now_ns() + 10 * 10**9
    clock.advance(4.0)
    with RetrySet.open(disk, ROOT, "out", clock=clock) as retries:
        assert retries.wait_s(A) == pytest.approx(6.0)
        assert retries.elapsed_s(A) == pytest.approx(4.0)


@STEPS_S
def test_a_clock_step_while_the_process_is_stopped_blocks_no_retry(
    disk: CrashFileSystem, clock: ManualClock, step_s: int
) -> None:
    """A step forward looks like elapsed time; after a step back, the bundle is retried immediately."""
    with RetrySet.open(disk, ROOT, "out", clock=clock) as retries:
        retries.failed(A, delay_s=10.0, reason="down")
    clock.step_wall(step_s)
    with RetrySet.open(disk, ROOT, "out", clock=clock) as retries:
        assert [entry.ref for entry in retries.due()] == [A]


@STEPS_S
def test_a_clock_step_does_not_change_when_a_dead_letter_expires(
    disk: CrashFileSystem, clock: ManualClock, step_s: int
) -> None:
    """`dead_letters.max_age` is measured on the monotonic clock."""
    settings = DeadLetterPolicy(max_age_s=100.0).settings()
    dead_letters = DeadLetters(ROOT, "out", fs=disk, clock=clock, background=False, settings=settings)
    dead_letters.add(A, bundle_of(1), reason="no")
    clock.step_wall(step_s)
    with dead_letters.open_for_removal():
        pass
    clock.advance(99)
    dead_letters._opened().maintain()
    assert [letter.ref for letter in read_dead_letters(disk, ROOT, "out")] == [A]
    clock.advance(2)
    dead_letters._opened().maintain()
    assert read_dead_letters(disk, ROOT, "out") == []
    dead_letters.close()
