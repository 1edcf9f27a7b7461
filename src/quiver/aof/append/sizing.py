"""
The size of the next segment. Pure: the caller passes the times.

A segment that fills within moments costs more to seal than to write, so its successor is larger. One that takes
minutes reserves disk blocks that stay unused, so its successor is smaller. A new stream begins at the target size:
a hundred idle streams reserve a hundred small files.
"""

from __future__ import annotations

__all__ = ["Sizing"]

_MOMENT_S = 0.25
_SHORT_S = 2.0
_LONG_S = 120.0


class Sizing:
    """The size of the next segment: a power of two between two limits, adapted to how fast segments fill."""

    def __init__(self, *, bytes_min: int, bytes_max: int, bytes_first: int) -> None:
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self.next_bytes = bytes_first

    def filled(self, size: int, fill_s: float) -> None:
        """Record that a segment of *size* bytes was full after *fill_s* seconds."""
        if fill_s < _MOMENT_S:
            wanted = max(self.next_bytes, size * 4)
        elif fill_s < _SHORT_S:
            wanted = max(self.next_bytes, size * 2)
        elif fill_s > _LONG_S:
            wanted = size // 2
        else:
            wanted = size
        self.next_bytes = min(max(wanted, self._bytes_min), self._bytes_max)

    def cut_short(self, used: int) -> None:
        """
        Record that a segment was sealed with *used* bytes in it, before it was full.

        Its successor has space for twice as much: the unused space of a sealed segment stays reserved on the disk.
        """
        fitting = 1 << (2 * used - 1).bit_length()
        self.next_bytes = min(self.next_bytes, max(fitting, self._bytes_min))

    def smallest(self, need: int, overhead: int) -> int:
        """Return the smallest size of a segment with space for *need* bytes and *overhead*."""
        fitting = 1 << (need + overhead - 1).bit_length()
        return min(max(self._bytes_min, fitting), self._bytes_max)

    def for_record(self, need: int, overhead: int) -> int:
        """Return the size of a segment with space for *need* bytes and *overhead*; at least the next size."""
        return max(self.next_bytes, self.smallest(need, overhead))
