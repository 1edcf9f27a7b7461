"""What a size cap is held against: what this store has on disk, and what others under the same cap have."""

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
    The cap that a store lives under. Thread-safe. What it tells is asked often, under locks of the store: it must not
    wait.
    """

    @property
    def cap_bytes(self) -> int | None:
        """The cap on everything together, at this moment; None is no cap."""

    @property
    def largest_bytes(self) -> int | None:
        """The largest that the cap may become; None is no cap."""

    @property
    def cap_name(self) -> str:
        """The setting that the cap comes from, at this moment."""

    def others_bytes(self) -> int:
        """Return what other stores under the same cap have on disk at this moment, as far as known."""

    def make_room(self, bytes_wanted: int) -> int:
        """
        Free what may go in the directories of others, before this store gives up anything of its own; bytes freed.

        Called without the lock that ingest holds. May take a moment.

        Raises:
            OSError: the disk refused.
        """

    def keep_others_out(self) -> Lock | None:
        """
        Keep others from deleting in this store's directory until the lock is released; None when nobody would.

        Called without the locks of the store. May wait a moment.

        Raises:
            DirectoryInUseError: somebody deletes there for longer than that should take.
            OSError: the disk refused.
        """


class Share(Protocol):
    """What a store may have of a cap over several stores that have caps of their own."""

    @property
    def largest_bytes(self) -> int:
        """The most that it may ever have."""

    def left_bytes(self, root: str) -> int:
        """Return what the store at *root* may have now."""


@dataclass(frozen=True, slots=True)
class OwnCap:
    """
    The cap of a store: its own, or what a budget leaves it.

    Attributes:
        size_cap_bytes: its own; None is no cap.
        share: of the budget; None is no budget.
        root: the store's directory.
    """

    size_cap_bytes: int | None
    share: Share | None = None
    root: str = ""

    @property
    def now_bytes(self) -> int | None:
        """The cap at this moment."""
        if self.share is None:
            return self.size_cap_bytes
        left = max(self.share.left_bytes(self.root), 0)
        return left if self.size_cap_bytes is None else min(self.size_cap_bytes, left)

    @property
    def largest_bytes(self) -> int | None:
        """The largest that it may become."""
        if self.share is None:
            return self.size_cap_bytes
        largest = self.share.largest_bytes
        return largest if self.size_cap_bytes is None else min(self.size_cap_bytes, largest)

    @property
    def name(self) -> str:
        """The setting that it comes from, at this moment."""
        return RETENTION_CAP if self.now_bytes == self.size_cap_bytes else BUDGET_CAP


class AloneCapacity:
    """The cap of a store that shares its directory with no other."""

    def __init__(self, cap: OwnCap) -> None:
        self._cap = cap

    @property
    def cap_bytes(self) -> int | None:
        """The cap at this moment."""
        return self._cap.now_bytes

    @property
    def largest_bytes(self) -> int | None:
        """The largest that it may become."""
        return self._cap.largest_bytes

    @property
    def cap_name(self) -> str:
        """The setting that it comes from."""
        return self._cap.name

    def others_bytes(self) -> int:
        """Return 0."""
        return 0

    def make_room(self, bytes_wanted: int) -> int:  # noqa: ARG002
        """Return 0: nobody else has anything."""
        return 0

    def keep_others_out(self) -> Lock | None:
        """Return None: nobody else deletes here."""
        return None


class DiskRoom:
    """
    What the disk has left for bundles to come, once everything that is in memory has become a segment.

    A log that took this room would have nothing to be sealed in: nothing would ever be finished, and nothing freed.

    Args:
        files: asked each time, or, where nothing is *logged* and so nothing taken in between two segments, for each
            eighth of a segment that came in.
        path: where the segments are.
        segment_bytes_max: of it, a 32nd is left for what a segment has beside its bundles.
    """

    def __init__(self, fs: FileSystem, path: str, *, segment_bytes_max: int, logged: bool) -> None:
        self._fs = fs
        self._path = path
        self._margin_bytes = segment_bytes_max // MARGIN_SHARE
        self._step_bytes = 0 if logged else segment_bytes_max // SAMPLE_SHARE
        self._step: int | None = None
        self.free_bytes = 0
        """As of the last look."""

    def spare_bytes(self, unsealed_bytes: int, nbytes: int) -> int | None:
        """Return what is left beside *unsealed_bytes* when *nbytes* are wanted; None when the disk does not say."""
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
    While it is held nothing is deleted from a store, by itself or by others: what a subscriber is promised now cannot
    go for what its progress said before. Not to be held twice by one thread.

    Args:
        capacity: knows the others.
        maintenance: held by the store from its decision to the end of a deletion.
    """

    def __init__(self, capacity: Capacity, maintenance: threading.RLock) -> None:
        self._capacity = capacity
        self._maintenance = maintenance
        self._others: Lock | None = None

    def __enter__(self) -> None:
        # In the order in which a core takes note of what others deleted: first their lock, then its own.
        others = self._capacity.keep_others_out()
        self._maintenance.acquire()
        self._others = others

    def __exit__(self, *_: object) -> None:
        others, self._others = self._others, None
        self._maintenance.release()
        if others is not None:
            others.release()
