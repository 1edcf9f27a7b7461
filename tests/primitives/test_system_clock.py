"""The machine's clock waits for any time that a caller names."""

from __future__ import annotations

import threading

import pytest

import quiver
from quiver.clock import SYSTEM_CLOCK


@pytest.mark.parametrize("timeout", [1e12, 1e300, float("inf")])
def test_a_wait_beyond_what_the_platform_knows(timeout: float) -> None:
    """It is as good as for ever, and no OverflowError: who is notified goes on."""
    condition = threading.Condition()

    def notify() -> None:
        with condition:
            condition.notify()

    with condition:
        thread = threading.Thread(target=notify)
        thread.start()
        assert SYSTEM_CLOCK.wait(condition, timeout)
    thread.join()


def test_intervals_without_end(tmp_path) -> None:
    """A store whose background work is never due by time keeps its threads, and closes."""
    never = float("inf")
    settings = quiver.Settings(wal_flush_interval_s=never, maintain_interval_s=never, segment_open_s_max=never)
    with quiver.open(tmp_path / "store", settings) as store:
        store.register("one")
        store.seal()
        assert store.register("one").next_bundle(timeout=0) is None
