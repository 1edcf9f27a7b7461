"""Loops that pause every few steps let other threads run."""

from __future__ import annotations

import sys
import threading

import pytest

from quiver.primitives import yielding as module
from quiver.primitives.yielding import STEPS, yielding, yielding_slices


@pytest.mark.parametrize(("items", "pauses"), [(0, 0), (1, 0), (STEPS - 1, 0), (STEPS, 1), (2 * STEPS + 1, 2)], ids=str)
def test_every_item_comes_in_order_with_a_pause_after_each_few_hundred(
    items: int, pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments of a few bundles are written without a pause."""
    taken: list[float] = []
    monkeypatch.setattr(module.time, "sleep", taken.append)
    assert list(yielding(range(items))) == list(range(items))
    assert len(taken) == pauses
    assert all(0 < pause_s < 0.001 for pause_s in taken)


def test_a_waiting_thread_runs_before_a_long_loop_ends() -> None:
    """The loop has no other reason to release the interpreter: the switch interval is longer than the test."""
    begun, ran = threading.Event(), threading.Event()

    def run_when_begun() -> None:
        begun.wait()
        ran.set()

    other = threading.Thread(target=run_when_begun)
    other.start()
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    try:
        begun.set()
        assert any(ran.is_set() for _ in yielding(range(10_000 * STEPS)))
    finally:
        sys.setswitchinterval(interval_s)
        other.join()


@pytest.mark.parametrize(("items", "pauses"), [(0, 0), (1, 0), (10, 0), (11, 1), (20, 1), (35, 3)], ids=str)
def test_slices_come_in_order_with_a_pause_between_them(
    items: int, pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing pauses after the last slice."""
    taken: list[float] = []
    monkeypatch.setattr(module.time, "sleep", taken.append)
    slices = list(yielding_slices(range(items), 10))
    assert [item for some in slices for item in some] == list(range(items))
    assert len(taken) == pauses == max(0, len(slices) - 1)
    assert all(len(some) == 10 for some in slices[:-1])
