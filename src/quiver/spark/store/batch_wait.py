"""Waiting for a larger batch: a query that writes files reads rarely, or when enough is stored."""

from __future__ import annotations

from collections.abc import Sequence

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.reading.partitions import BundleRange

__all__ = ["BatchWait"]


class BatchWait:
    """
    Decides whether a batch is large or old enough. The bundles that wait are in the store, so nothing is lost by it.

    Args:
        fs: the file system of the store.
        size_bytes_min: a batch of this size is processed immediately; None waits for *delay_s_max*.
        delay_s_max: a batch is processed when its oldest segment was sealed this long ago. The time is that of the
            file, so a query that is restarted often waits no longer.
        clock: the current time.
    """

    def __init__(
        self, fs: FileSystem, *, size_bytes_min: int | None, delay_s_max: float, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._fs = fs
        self._size_bytes_min = size_bytes_min
        self._delay_ns = round(delay_s_max * 1e9)
        self._clock = clock

    def is_over(self, ranges: Sequence[BundleRange]) -> bool:
        """Return whether the batch of *ranges* is to be processed now."""
        if not ranges:
            return True
        size_bytes = sum(one.size_bytes for one in ranges)
        if self._size_bytes_min is not None and size_bytes >= self._size_bytes_min:
            return True
        try:
            sealed_ns = min(self._fs.stat(path).modified_ns for path in _oldest(ranges))
        except FileNotFoundError:
            return True  # only an object tier has it, or it is missing: then the plan reports it
        return self._clock.now_ns() - sealed_ns >= self._delay_ns


def _oldest(ranges: Sequence[BundleRange]) -> set[str]:
    """Return the first file of each store: the numbers of a store ascend."""
    first: dict[str, str] = {}
    for one in ranges:
        first.setdefault(one.path.rpartition("/")[0], one.path)
    return set(first.values())
