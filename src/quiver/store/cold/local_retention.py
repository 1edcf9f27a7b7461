"""
Removes local files of segments that the object tier has: those outside the local window, over age, or to free space.

No data is lost, and subscribers notice only slower reads. A file is removed only when its object is verified in
the list on disk, and when the log would not restore its bundles after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from quiver.invariant import invariant
from quiver.primitives.disk.disk_full import is_full_disk
from quiver.store.context import StoreContext
from quiver.store.removal.retention import Retention
from quiver.store.segment.info import SegmentInfo

__all__ = ["LocalRetention"]


class LocalRetention:
    """
    Removes local files of segments in the tier. Called under the maintenance lock.

    Args:
        context: the store.
        retention: has the age of segments.
        out_of_log: returns the segments whose bundles the log would not restore.
    """

    def __init__(
        self, context: StoreContext, retention: Retention, out_of_log: Callable[[list[SegmentInfo]], list[SegmentInfo]]
    ) -> None:
        self._context = context
        self._retention = retention
        self._out_of_log = out_of_log

    def keeps(self, seqs: Iterable[int]) -> set[int]:
        """Return the finished segments among *seqs* that the tier still has to keep (`cold.keep_finished`)."""
        keep_s = self._context.settings.cold_keep_finished_s
        if keep_s <= 0:
            return set()
        old = set(self._retention.older_than(keep_s, now_s=self._context.clock.monotonic()))
        return set(seqs) - old

    def shrink(self) -> tuple[int, int]:
        """
        Remove the files outside the local window; return the number of segments and their bytes.

        Raises:
            OSError: the disk reported an error; the next call continues.
        """
        settings = self._context.settings
        beyond: set[int] = set()
        if settings.cold_local_bytes is not None:
            left = settings.cold_local_bytes
            for info in reversed(self._context.catalog.local_segments()):
                left -= info.size_bytes
                if left < 0:
                    beyond.add(info.seq)
        now_s = self._context.clock.monotonic()
        for age_s in (settings.cold_local_age_s, settings.max_age_s):
            if age_s is not None:
                beyond.update(self._retention.older_than(age_s, now_s=now_s))
        return self.release(beyond)

    def make_room(self, bytes_wanted: int | None) -> tuple[int, int]:
        """
        Remove the oldest files that the tier has until *bytes_wanted* are free, or all when None; return segments and
        bytes.

        Raises:
            OSError: the disk reported an error.
        """
        chosen = []
        for info in self._verified(info.seq for info in self._context.catalog.local_segments()):
            if bytes_wanted is not None:
                if bytes_wanted <= 0:
                    break
                bytes_wanted -= info.size_bytes
            chosen.append(info.seq)
        return self.release(chosen)

    def _verified(self, seqs: Iterable[int]) -> Sequence[SegmentInfo]:
        cold, catalog = self._context.cold, self._context.catalog
        found = []
        for seq in sorted(seqs):
            info = catalog.get(seq) if cold.is_verified(seq) and catalog.is_local(seq) else None
            if info is not None:
                found.append(info)
        return self._out_of_log(found) if found else []

    def release(self, seqs: Collection[int]) -> tuple[int, int]:
        """
        Remove the files of the segments among *seqs* that the tier has; return their number and bytes.

        Raises:
            OSError: the disk reported an error; the next call continues.
        """
        if not seqs:
            return 0, 0
        context = self._context
        removed = [info.seq for info in self._verified(seqs)]
        if not removed:
            return 0, 0
        try:
            # Other programs derive the next number from the highest name.
            context.catalog.keep_floor(max(removed) + 1)
        except OSError as error:
            if not is_full_disk(error):
                raise
            removed.remove(max(removed))  # keep the highest file until there is space to write the number
        invariant(
            all(context.cold.is_verified(seq) for seq in removed),
            "a local file is removed only if the object tier has the segment, read back",
        )
        freed = context.catalog.let_go(removed)
        with context.lock:
            context.room.notify_all()
        context.observer.count("quiver.cold.let_go_total", len(removed))
        return len(removed), freed
