"""The size of a store's files other than log and segments, and a reserve for a full disk."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from quiver.clock import Clock
from quiver.observe import Observer
from quiver.primitives.disk.atomic import remove_durably
from quiver.primitives.disk.disk_full import is_full_disk
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.prealloc import reserve_blocks
from quiver.store.format.names import (
    COLD_LIST,
    CURSOR_NAME,
    QUARANTINE_DIR,
    RESERVE,
    SEGMENT_FLOOR,
    SEGMENTS_DIR,
    WAL_DIR,
    parse_progress_name,
)
from quiver.store.format.sink_commit import INCOMING_DIR
from quiver.store.limits.tree_bytes import tree_bytes

__all__ = ["Reserve", "SideFiles"]

MEASURE_S = 1.0
"""Files that other processes write are measured at most this often."""

RETRY_S = 1.0

_OURS = "quiver."


class SideFiles:
    """
    The size of all files that are neither log nor segment: progress, audit trails, quarantine, ledger, reserve, and
    segments that Spark sinks staged. Dead letters are not included: they have their own cap.

    Attributes:
        incoming_bytes: the staged part, which will become segments.
        quarantine_bytes: the part that only an operator removes.
        progress_bytes_max: the size of the largest progress file.
    """

    def __init__(self, fs: FileSystem, root: str, clock: Clock) -> None:
        self._fs = fs
        self._root = root
        self._clock = clock
        self._measured_at: float | None = None
        self._other_bytes = 0
        self.incoming_bytes = 0
        self.quarantine_bytes = 0
        self.progress_bytes_max = 0

    @property
    def nbytes(self) -> int:
        """The total size, as last measured."""
        return self._other_bytes + self.incoming_bytes

    def measure_incoming(self) -> None:
        """Measure the staged segments. A directory that cannot be read changes nothing."""
        with contextlib.suppress(OSError):
            self.incoming_bytes = tree_bytes(self._fs, f"{self._root}/{INCOMING_DIR}")

    def measure(self, *, now: bool = False) -> None:
        """
        Measure again if the last measurement is old enough or with *now*; staged segments each time. A directory that
        cannot be read changes nothing.
        """
        self.measure_incoming()
        at = self._clock.monotonic()
        if not now and self._measured_at is not None and at - self._measured_at < MEASURE_S:
            return
        self._measured_at = at
        root = self._root
        with contextlib.suppress(OSError):
            sizes = {name: self._size(f"{root}/{name}") for name in self._fs.list_dir(root) if name.startswith(_OURS)}
            progress = (size for name, size in sizes.items() if parse_progress_name(name) is not None)
            self.progress_bytes_max = max(progress, default=0)
            paths = [f"{root}/{WAL_DIR}/{CURSOR_NAME}"]
            paths += [f"{root}/{SEGMENTS_DIR}/{name}" for name in (SEGMENT_FLOOR, COLD_LIST)]
            quarantine = f"{root}/{QUARANTINE_DIR}"
            kept = [f"{quarantine}/{name}" for name in self._fs.list_dir(quarantine)] if self._exists() else []
            self.quarantine_bytes = sum(map(self._size, kept))
            self._other_bytes = self.quarantine_bytes + sum(sizes.values()) + sum(map(self._size, paths))

    def _exists(self) -> bool:
        return self._fs.exists(f"{self._root}/{QUARANTINE_DIR}")

    def _size(self, path: str) -> int:
        try:
            return self._fs.stat(path).size_bytes
        except FileNotFoundError:
            return 0


class Reserve:
    """
    Disk blocks reserved by a file without content. When the disk is full they are released, so that an acknowledgement
    can still be written and the segments that it frees can be deleted. Nothing is ingested until the reserve is
    refilled.

    Args:
        fs: the file system.
        root: the store's directory.
        size_bytes: the current target size. The reserve grows with it.
        clock: limits how often refilling is attempted.
        observer: receives events.
        on_change: called with True when the reserve is missing, with False when it is complete again.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        size_bytes: Callable[[], int],
        *,
        clock: Clock,
        observer: Observer,
        on_change: Callable[[bool], None],
    ) -> None:
        self._fs = fs
        self._path = f"{root}/{RESERVE}"
        self._size_bytes = size_bytes
        self._clock = clock
        self._observer = observer
        self._on_change = on_change
        self._retry_at = 0.0
        self._held_bytes = 0
        self.is_lacking = False
        """There was no space for it. False on a file system that cannot preallocate: it gets no reserve."""

    def keep(self, *, now: bool = False) -> bool:
        """Refill the reserve if needed; after a failure only once in a while, or *now*. True if ingest may continue."""
        wanted = self._size_bytes()
        if self._held_bytes >= wanted:
            self._report(is_lacking=False)
            return True
        if not now and self._clock.monotonic() < self._retry_at:
            return not self.is_lacking
        self._retry_at = self._clock.monotonic() + RETRY_S
        try:
            self._hold(wanted)
        except OSError as error:
            if not self._held_bytes:
                with contextlib.suppress(OSError):
                    self._fs.remove(self._path)
            self._report(is_lacking=is_full_disk(error), problem=str(error))
        else:
            self._held_bytes = wanted
            self._report(is_lacking=False)
        return not self.is_lacking

    def _report(self, *, is_lacking: bool, problem: str = "") -> None:
        if self.is_lacking == is_lacking:
            return
        self.is_lacking = is_lacking
        if problem:
            self._observer.event("quiver.reserve", level=logging.WARNING, path=self._path, problem=problem)
        self._on_change(is_lacking)

    def _hold(self, size_bytes: int) -> None:
        # Blocks that are reserved already are kept: on a full disk they could not be reserved again.
        open_file = self._fs.open_write if self._held_bytes else self._fs.create_or_truncate
        file = open_file(self._path)
        try:
            reserve_blocks(file, 0, size_bytes, on_unsupported="zeros")
        finally:
            file.close()

    def spend(self) -> bool:
        """Release the reserve; return False if there is none."""
        if not self._held_bytes:
            return False
        self._held_bytes = 0
        self._retry_at = self._clock.monotonic()
        self._report(is_lacking=True, problem="spent: the disk is full")
        try:
            remove_durably(self._fs, [self._path])
        except OSError:
            return False
        return True
