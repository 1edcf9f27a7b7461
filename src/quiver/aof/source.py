"""
A segment as a reader sees it, wherever it lies: its bytes, and how far they may be read.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Source"]


class Source(NamedTuple):
    """
    A segment that can be read up to `end`; `complete` when nothing will ever be behind it.

    `last_timestamp` is that of its last record at this moment.
    """

    segment_id: int
    path: str
    view: memoryview
    end: int
    complete: bool
    last_timestamp: int
