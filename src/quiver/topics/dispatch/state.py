"""The offsets that a subscription has confirmed: all below one offset, and some above it."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Confirmed"]


class Confirmed:
    """
    The offsets that need not be delivered again.

    Args:
        next_offset: everything below it is confirmed.
        acked: confirmed ranges above it: the first offset, and the offset after the last.
    """

    __slots__ = ("_acked", "_ranges", "next_offset")

    def __init__(self, next_offset: int, acked: Iterable[tuple[int, int]] = ()) -> None:
        self.next_offset = next_offset
        self._acked: set[int] = set()
        self._ranges: dict[int, int] = {}  # long ranges: first offset → the offset after the last
        for first, after in acked:
            self.skip(first, after)

    def __contains__(self, offset: int) -> bool:
        return (
            offset < self.next_offset
            or offset in self._acked
            or any(first <= offset < after for first, after in self._ranges.items())
        )

    def ack(self, offset: int) -> None:
        """Confirm one offset. Idempotent."""
        if offset >= self.next_offset:
            self._acked.add(offset)
            self._advance()

    def skip(self, first: int, after: int) -> None:
        """Confirm the offsets from *first* up to, but not including, *after*."""
        if after > self.next_offset:
            first = max(first, self.next_offset)
            self._ranges[first] = max(after, self._ranges.get(first, 0))
            self._advance()

    def _advance(self) -> None:
        at = self.next_offset
        while True:
            while at in self._acked:
                self._acked.discard(at)
                at += 1
            reached = [first for first in self._ranges if first <= at]
            if not reached:
                break
            at = max(at, *(self._ranges.pop(first) for first in reached))
            self._acked = {offset for offset in self._acked if offset >= at}
        self.next_offset = at

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Return the confirmed ranges above `next_offset`, in order; adjacent ranges are joined."""
        pieces = sorted([*((offset, offset + 1) for offset in self._acked), *self._ranges.items()])
        joined: list[tuple[int, int]] = []
        for first, after in pieces:
            if joined and first <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(after, joined[-1][1]))
            else:
                joined.append((first, after))
        return tuple(joined)
