"""A byte budget never grants more than it has, and names the holders."""

from __future__ import annotations

import threading

import pytest

from quiver.errors import CapacityError, UsageError
from quiver.primitives.budget import ByteBudget
from quiver.testing.clock import ManualClock


def test_reserve_and_release_balance():
    """The cap can be reached but not exceeded; returned bytes are free again."""
    budget = ByteBudget("open segment", 100)
    budget.reserve(60, holder="a")
    budget.reserve(40, holder="b")

    assert (budget.used_bytes, budget.free_bytes) == (100, 0)
    assert list(budget.holders().items()) == [("a", 60), ("b", 40)]
    with pytest.raises(CapacityError) as caught:
        budget.reserve(1, holder="c")
    assert (caught.value.what, caught.value.held_by) == ("open segment", "a")

    budget.release(60, holder="a")
    budget.release(10, holder="b")
    budget.reserve(0, holder="c")
    assert budget.holders() == {"b": 30}
    budget.reserve(70, holder="c")


def test_no_holder_is_named_without_a_name():
    """Bytes may be reserved without a name."""
    budget = ByteBudget("cap", 1)
    budget.reserve(1)

    with pytest.raises(CapacityError) as caught:
        budget.reserve(1)
    assert caught.value.held_by is None


@pytest.mark.parametrize("size", [-1, 101])
def test_a_request_above_the_cap_is_a_usage_error(size):
    """Waiting would not help, so it is not a CapacityError."""
    with pytest.raises(UsageError):
        ByteBudget("cap", 100).reserve(size, timeout=1000)


@pytest.mark.parametrize(("holder", "size"), [("a", 11), ("a", -1), ("b", 1)])
def test_only_reserved_bytes_can_be_released(holder, size):
    """Any other release is refused and changes nothing."""
    budget = ByteBudget("cap", 100)
    budget.reserve(10, holder="a")

    with pytest.raises(UsageError):
        budget.release(size, holder=holder)
    assert budget.holders() == {"a": 10}


def test_a_failed_block_returns_its_bytes():
    """`reserving` keeps the bytes only if its block succeeds."""
    budget = ByteBudget("cap", 100)
    with budget.reserving(10, holder="a"):
        pass
    with pytest.raises(KeyError), budget.reserving(20, holder="a"):
        raise KeyError

    assert budget.used_bytes == 10


def test_a_caller_waits_until_its_deadline():
    """Without free bytes it waits as long as requested, and not longer."""
    clock = ManualClock()
    budget = ByteBudget("cap", 100, clock=clock)
    budget.reserve(100, holder="slow")

    with pytest.raises(CapacityError):
        budget.reserve(1, timeout=5)
    assert clock.monotonic() == 5
    assert budget.used_bytes == 100


def test_waiters_are_served_in_order():
    """A large request that came first is not starved by a small one that would fit."""
    clock = ManualClock(waits="hold")
    budget = ByteBudget("cap", 100, clock=clock)
    budget.reserve(50, holder="old")
    order = []

    def want(size):
        budget.reserve(size, holder=str(size), timeout=60)
        order.append(size)

    large = threading.Thread(target=want, args=(80,))
    large.start()
    clock.wait_for_waiters(1)
    small = threading.Thread(target=want, args=(20,))
    small.start()
    clock.wait_for_waiters(2)
    with pytest.raises(CapacityError):
        budget.reserve(1)  # it would fit, but two came before
    assert order == []
    budget.release(50, holder="old")
    large.join()
    small.join()

    assert sorted(order) == [20, 80]
    assert budget.holders() == {"80": 80, "20": 20}


def test_a_waiter_that_times_out_does_not_block_the_next():
    """The second waiter gets the free bytes as soon as the first has reached its deadline."""
    clock = ManualClock(waits="hold")
    budget = ByteBudget("cap", 100, clock=clock)
    budget.reserve(50, holder="old")
    outcome = {}

    def want(size, timeout):
        try:
            budget.reserve(size, holder="new", timeout=timeout)
        except CapacityError as error:
            outcome[size] = error.held_by
        else:
            outcome[size] = "taken"

    threads = [threading.Thread(target=want, args=args) for args in ((80, 5), (20, 60))]
    for number, thread in enumerate(threads):
        thread.start()
        clock.wait_for_waiters(number + 1)
    clock.advance(6)
    for thread in threads:
        thread.join()

    assert outcome == {80: "old", 20: "taken"}


def test_many_threads_never_exceed_the_cap():
    """In any order of steps the sum stays below the cap and ends at zero."""
    budget = ByteBudget("cap", 10)
    seen = []

    def work(size):
        for _ in range(100):
            budget.reserve(size, holder=str(size), timeout=60)
            seen.append(budget.used_bytes)
            budget.release(size, holder=str(size))

    threads = [threading.Thread(target=work, args=(size,)) for size in (1, 3, 7, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(seen) == 400
    assert max(seen) <= 10
    assert (budget.used_bytes, budget.holders()) == (0, {})
