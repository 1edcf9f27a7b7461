"""The usage that a size cap is compared with: this store's own, and that of other stores under the same cap."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from quiver.primitives.disk.file_system import FileSystem, Lock

__all__ = ["BUDGET_CAP", "AloneCapacity", "Capacity", "DeletionPause", "DiskRoom", "OwnCap", "Share"]

RETENTION_CAP = "retention.size_cap"
BUDGET_CAP = "disk.size_cap"

MARGIN_SHARE = 32
SAMPLE_SHARE = 8


class Capacity(Protocol):
    """
    The cap of a store. Thread-safe. The store calls it often and under its locks, so it must not
    wait.
    """

    @property
    def cap_bytes(self) -> int | None:
        """The current cap on everything together; None without a cap."""

    @property
    def largest_bytes(self) -> int | None:
        """The largest value that the cap may reach; None without a cap."""

    @property
    def cap_name(self) -> str:
        """The setting that the current cap comes from."""

    def others_bytes(self) -> int:
        """Return what other stores under the same cap have on disk now, as far as known."""

    def make_room(self, bytes_wanted: int) -> int:
        """
        Free what may be deleted in the directories of other stores, before this store drops its own data; return the
        bytes freed.

        Called without the lock that ingest holds. May take a moment.

        Raises:
            OSError: the disk refused.
        """

    def keep_others_out(self) -> Lock | None:
        """
        Keep other processes from deleting in this store's directory until the lock is released; None if no other would.

        Called without the locks of the store. May wait a moment.

        Raises:
            DirectoryInUseError: another process has been deleting there for longer than that should take.
            OSError: the disk refused.
        """


class Share(Protocol):
    """The share of a store in a cap over several stores that also have their own caps."""

    @property
    def largest_bytes(self) -> int:
        """The largest value that it may ever reach."""

    def left_bytes(self, root: str) -> int:
        """Return the current share of the store at *root*."""


@dataclass(frozen=True, slots=True)
class OwnCap:
    """
    The cap of a store: its own, or its share of a budget.

    Attributes:
        size_cap_bytes: its own cap, or None.
        share: its share of the budget; None without a budget.
        root: the store's directory.
    """

    size_cap_bytes: int | None
    share: Share | None = None
    root: str = ""

    @property
    def now_bytes(self) -> int | None:
        """The current cap."""
        if self.share is None:
            return self.size_cap_bytes
        left = max(self.share.left_bytes(self.root), 0)
        return left if self.size_cap_bytes is None else min(self.size_cap_bytes, left)

    @property
    def largest_bytes(self) -> int | None:
        """The largest value that it may reach."""
        if self.share is None:
            return self.size_cap_bytes
        largest = self.share.largest_bytes
        return largest if self.size_cap_bytes is None else min(self.size_cap_bytes, largest)

    @property
    def name(self) -> str:
        """The setting that the current cap comes from."""
        return RETENTION_CAP if self.now_bytes == self.size_cap_bytes else BUDGET_CAP


class AloneCapacity:
    """The cap of a store that shares its directory with no other."""

    def __init__(self, cap: OwnCap) -> None:
        self._cap = cap

    @property
    def cap_bytes(self) -> int | None:
        """The current cap."""
        return self._cap.now_bytes

    @property
    def largest_bytes(self) -> int | None:
        """The largest value that it may reach."""
        return self._cap.largest_bytes

    @property
    def cap_name(self) -> str:
        """The setting that the cap comes from."""
        return self._cap.name

    def others_bytes(self) -> int:
        """Return 0."""
        return 0

    def make_room(self, bytes_wanted: int) -> int:  # noqa: ARG002
        """Return 0: no other store shares the cap."""
        return 0

    def keep_others_out(self) -> Lock | None:
        """Return None: no other process deletes here."""
        return None


class DiskRoom:
    """
    The disk space left for new bundles, after everything in memory has become a segment.

    If the log used this space, the bundles in memory could not be sealed, never finished, and nothing would be freed.

    Args:
        fs: asked on each call; if the store is not *logged* and so writes nothing between two segments, once for each
            eighth of a segment that was ingested.
        path: the directory of the segments.
        segment_bytes_max: a 32nd of it is reserved for the parts of a segment besides its bundles.
    """

    def __init__(self, fs: FileSystem, path: str, *, segment_bytes_max: int, logged: bool) -> None:
        self._fs = fs
        self._path = path
        self._margin_bytes = segment_bytes_max // MARGIN_SHARE
        self._step_bytes = 0 if logged else segment_bytes_max // SAMPLE_SHARE
        self._step: int | None = None
        self.free_bytes = 0
        """As of the last check."""

    def spare_bytes(self, unsealed_bytes: int, nbytes: int) -> int | None:
        """Return the space left after *unsealed_bytes* for *nbytes* more; None if the disk does not report it."""
        kept_bytes = unsealed_bytes + self._margin_bytes
        step = unsealed_bytes // self._step_bytes if self._step_bytes else None
        if step is None or step != self._step or self.free_bytes - kept_bytes < nbytes:
            try:
                self.free_bytes = self._fs.free_bytes(self._path)
            except OSError:
                return None
            self._step = step
        return self.free_bytes - kept_bytes


class DeletionPause:
    """
    While it is held, nothing is deleted from the store, neither by itself nor by others, so that a new promise to a
    subscriber cannot be broken by a deletion that its earlier progress allowed. Not reentrant.

    Args:
        capacity: knows the other stores.
        maintenance: the lock that the store holds from its decision to the end of a deletion.
    """

    def __init__(self, capacity: Capacity, maintenance: threading.RLock) -> None:
        self._capacity = capacity
        self._maintenance = maintenance
        self._others: Lock | None = None

    def __enter__(self) -> None:
        # In the order in which a core records what others deleted: first their lock, then its own.
        others = self._capacity.keep_others_out()
        self._maintenance.acquire()
        self._others = others

    def __exit__(self, *_: object) -> None:
        others, self._others = self._others, None
        self._maintenance.release()
        if others is not None:
            others.release()
