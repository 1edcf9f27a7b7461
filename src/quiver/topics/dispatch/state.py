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

    __slots__ = ("_acked", "_behind", "next_offset")

    def __init__(self, next_offset: int, acked: Iterable[tuple[int, int]] = ()) -> None:
        self.next_offset = next_offset
        self._acked: set[int] = set()
        self._behind: dict[int, int] = {}  # long ranges: first offset → the offset after the last
        for first, behind in acked:
            self.pass_over(first, behind)

    def __contains__(self, offset: int) -> bool:
        return (
            offset < self.next_offset
            or offset in self._acked
            or any(first <= offset < behind for first, behind in self._behind.items())
        )

    def ack(self, offset: int) -> None:
        """Confirm one offset. Idempotent."""
        if offset >= self.next_offset:
            self._acked.add(offset)
            self._advance()

    def pass_over(self, first: int, behind: int) -> None:
        """Confirm the offsets from *first* to *behind* − 1."""
        if behind > self.next_offset:
            first = max(first, self.next_offset)
            self._behind[first] = max(behind, self._behind.get(first, 0))
            self._advance()

    def _advance(self) -> None:
        at = self.next_offset
        while True:
            while at in self._acked:
                self._acked.discard(at)
                at += 1
            reached = [first for first in self._behind if first <= at]
            if not reached:
                break
            at = max(at, *(self._behind.pop(first) for first in reached))
            self._acked = {offset for offset in self._acked if offset >= at}
        self.next_offset = at

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Return the confirmed ranges above `next_offset`, in order; adjacent ranges are joined."""
        pieces = sorted([*((offset, offset + 1) for offset in self._acked), *self._behind.items()])
        joined: list[tuple[int, int]] = []
        for first, behind in pieces:
            if joined and first <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(behind, joined[-1][1]))
            else:
                joined.append((first, behind))
        return tuple(joined)
