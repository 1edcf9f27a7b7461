"""
Loops of a background thread that let other threads run in between.

CPython runs the Python code of one thread at a time. A thread that releases the interpreter to write to a file gets it
back after the switch interval of 5 ms if another thread is busy in a loop. The write itself takes a hundredth of that.
A loop over `yielding` blocks for an instant every few hundred steps, and a waiting thread continues then.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

__all__ = ["STEPS", "yielding", "yielding_slices"]

T = TypeVar("T")

STEPS = 256
"""Steps between two pauses: a few tenths of a millisecond of a simple loop."""

_SLICE_ITEMS = 1024
"""As many as operations on complete slices, which are faster than loops, process in the same time."""

_PAUSE_S = 1e-6
"""More than zero: a thread that only offers the interpreter takes it back before a waiting one has woken up."""


def yielding(items: Iterable[T], steps: int = STEPS) -> Iterator[T]:
    """Yield *items*, with a short pause for other threads after each *steps* of them."""
    left = steps
    for item in items:
        yield item
        left -= 1
        if not left:
            left = steps
            time.sleep(_PAUSE_S)  # noqa: TID251 - no result depends on this pause


def yielding_slices(items: Sequence[T], size: int = _SLICE_ITEMS) -> Iterator[Sequence[T]]:
    """Yield *items* in slices of *size*, with a short pause for other threads between two of them."""
    for start in range(0, len(items), size):
        if start:
            time.sleep(_PAUSE_S)  # noqa: TID251 - no result depends on this pause
        yield items[start : start + size]
