"""
Loops of a background thread that let other threads run in between.

CPython runs the Python code of one thread at a time. A thread that releases the interpreter to write to a file gets it
back after the switch interval of 5 ms if another thread is busy in a loop. The write itself takes a hundredth of that.
A loop over `yielding` blocks for an instant every few hundred steps, and a waiting thread continues then.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["STEPS", "yielding"]

T = TypeVar("T")

STEPS = 256
"""Steps between two pauses: a few tenths of a millisecond of a simple loop."""

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
