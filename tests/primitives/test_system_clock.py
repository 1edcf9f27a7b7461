"""The system clock can wait for any time."""

from __future__ import annotations

import threading

import pytest

import quiver
from quiver.clock import SYSTEM_CLOCK


@pytest.mark.parametrize("timeout", [1e12, 1e300, float("inf")])
def test_a_wait_longer_than_the_platform_supports(timeout: float) -> None:
    """It waits without limit and raises no OverflowError; a notified thread continues."""
    condition = threading.Condition()

    def notify() -> None:
        with condition:
            condition.notify()

    with condition:
        thread = threading.Thread(target=notify)
        thread.start()
        assert SYSTEM_CLOCK.wait(condition, timeout)
    thread.join()


def test_infinite_intervals(tmp_path) -> None:
    """A store whose background work is never due keeps its threads, and can be closed."""
    never = float("inf")
    settings = quiver.Settings(wal_flush_interval_s=never, maintain_interval_s=never, segment_open_s_max=never)
    with quiver.open(tmp_path / "store", settings) as store:
        store.register("one")
        store.seal()
        assert store.register("one").next_bundle(timeout=0) is None
