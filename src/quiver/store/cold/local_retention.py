"""
Removes local files of segments that the object tier has: those outside the local window, over age, or to free space.

No data is lost, and subscribers notice only slower reads. A file is removed only when its object is verified in
the list on disk, and when the log would not restore its bundles after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from quiver.primitives.disk.disk_full import is_full_disk
from quiver.store.context import Parts
from quiver.store.removal.retention import Retention
from quiver.store.segment.info import SegmentInfo

__all__ = ["LocalRetention"]


class LocalRetention:
    """
    Removes local files of segments in the tier. Called under the maintenance lock.

    Args:
        parts: the store.
        retention: has the age of segments.
        out_of_log: returns the segments whose bundles the log would not restore.
    """

    def __init__(
        self, parts: Parts, retention: Retention, out_of_log: Callable[[list[SegmentInfo]], list[SegmentInfo]]
    ) -> None:
        self._parts = parts
        self._retention = retention
        self._out_of_log = out_of_log

    def keeps(self, seqs: Iterable[int]) -> set[int]:
        """Return the finished segments among *seqs* that the tier still has to keep (`cold.keep_finished`)."""
        keep_s = self._parts.settings.cold_keep_finished_s
        if keep_s <= 0:
            return set()
        old = set(self._retention.older_than(keep_s, now_s=self._parts.clock.monotonic()))
        return set(seqs) - old

    def shrink(self) -> tuple[int, int]:
        """
        Remove the files outside the local window; return the number of segments and their bytes.

        Raises:
            OSError: the disk reported an error; the next call continues.
        """
        settings = self._parts.settings
        beyond: set[int] = set()
        if settings.cold_local_bytes is not None:
            left = settings.cold_local_bytes
            for info in reversed(self._parts.catalog.local_segments()):
                left -= info.size_bytes
                if left < 0:
                    beyond.add(info.seq)
        now_s = self._parts.clock.monotonic()
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
        for info in self._verified(info.seq for info in self._parts.catalog.local_segments()):
            if bytes_wanted is not None:
                if bytes_wanted <= 0:
                    break
                bytes_wanted -= info.size_bytes
            chosen.append(info.seq)
        return self.release(chosen)

    def _verified(self, seqs: Iterable[int]) -> Sequence[SegmentInfo]:
        parts = self._parts
        wanted = [seq for seq in sorted(seqs) if parts.cold.is_verified(seq) and parts.catalog.is_local(seq)]
        found = (parts.catalog.get(seq) for seq in wanted)
        return self._out_of_log([info for info in found if info is not None]) if wanted else []

    def release(self, seqs: Iterable[int]) -> tuple[int, int]:
        """
        Remove the files of the segments among *seqs* that the tier has; return their number and bytes.

        Raises:
            OSError: the disk reported an error; the next call continues.
        """
        parts = self._parts
        removed = [info.seq for info in self._verified(seqs)]
        if not removed:
            return 0, 0
        try:
            # Other programs derive the next number from the highest name.
            parts.catalog.keep_floor(max(removed) + 1)
        except OSError as error:
            if not is_full_disk(error):
                raise
            removed.remove(max(removed))  # keep the highest file until there is space to write the number
        freed = parts.catalog.let_go(removed)
        with parts.lock:
            parts.room.notify_all()
        parts.observer.count("quiver.cold.let_go_total", len(removed))
        return len(removed), freed
