"""
One cap over everything that several stores have on one disk: their logs and segments, segments that Spark sinks staged
for them, and their dead letters.

Each store has a cap that changes: the part of the budget that the others leave. A store that is open in this process
reports its exact usage; for the others, the sizes of the files are added up from time to time. Some space is reserved
for each buffer, so that a full buffer that waits for the next one does not keep the next one from accepting data.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quiver.clock import Clock
from quiver.primitives.disk.file_system import FileSystem
from quiver.settings import Settings
from quiver.store.cores.instances import find_cores
from quiver.store.format.cores import core_directory
from quiver.store.format.names import DEAD_LETTER_DIR
from quiver.store.limits.tree_bytes import file_bytes, tree_bytes

__all__ = ["Attached", "DiskBudget", "DiskShare", "working_bytes"]

LISTED_S = 0.5
"""The files of other processes are added up at most this often."""


class _Claiming(Protocol):
    def claimed_bytes(self) -> int:
        """Return the bytes on disk, and those in memory that will become a segment."""


class Attached(Protocol):
    """A store that is open in this process."""

    @property
    def path(self) -> str:
        """Its directory."""

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""

    @property
    def internals(self) -> _Claiming:
        """The part of the store that knows its usage."""


def working_bytes(settings: Settings, stores: int = 1) -> int:
    """Return the minimum space that *stores* stores with these *settings* need to work."""
    log = settings.wal_rotate_bytes if settings.durability == "wal" else 0
    return stores * (log + 2 * settings.segment_bytes_max)


@dataclass(slots=True)
class _Place:
    """A buffer, or the dead letters of one."""

    path: str
    reserved_bytes: int
    are_dead_letters: bool
    attached: dict[str, weakref.ref[Attached]] = field(default_factory=dict)
    listed_bytes: dict[str, int] = field(default_factory=dict)

    def open_stores(self) -> list[Attached]:
        """Return its stores that are open in this process."""
        found = [store for one in self.attached.values() if (store := one()) is not None]
        return [store for store in found if not store.is_closed]

    def used_bytes(self, without: str = "") -> int:
        """Return its size on disk, without the store *without*."""
        exact = {_absolute(store.path): store.internals.claimed_bytes() for store in self.open_stores()}
        used = self.listed_bytes | exact
        return sum(size for path, size in used.items() if path != without)

    def list(self, fs: FileSystem) -> None:
        """Add up the files of the stores that are not open in this process."""
        known = {_absolute(store.path) for store in self.open_stores()}
        roots = [
            root for root in _store_roots(fs, self.path, are_dead_letters=self.are_dead_letters) if root not in known
        ]
        skip = () if self.are_dead_letters else (DEAD_LETTER_DIR,)
        listed = {root: tree_bytes(fs, root, skip=skip) for root in roots}
        if not self.are_dead_letters and self.path not in known:
            listed.setdefault(self.path, file_bytes(fs, self.path))  # the level above cores has what they share
        self.listed_bytes = listed


class DiskBudget:
    """
    The budget of one pipeline, in one of its processes. Thread-safe.

    Args:
        fs: the file system.
        cap_bytes: the budget.
        buffers: directory of each buffer → its reserved bytes; see `working_bytes`.
        clock: limits how often files are added up.
    """

    def __init__(self, fs: FileSystem, cap_bytes: int, buffers: Mapping[str, int], *, clock: Clock) -> None:
        self.cap_bytes = cap_bytes
        self._fs = fs
        self._clock = clock
        self._lock = threading.Lock()
        self._listed_s = -math.inf
        places = {_absolute(path): reserved for path, reserved in buffers.items()}
        self._buffers = {path: _Place(path, reserved, are_dead_letters=False) for path, reserved in places.items()}
        self._dead_letters = {path: _Place(path, 0, are_dead_letters=True) for path in places}

    def buffer(self, path: str) -> DiskShare:
        """Return the share of the buffer at *path*, which must be one of *buffers*."""
        return DiskShare(self, self._buffers[_absolute(path)])

    def dead_letters(self, path: str) -> DiskShare:
        """Return the share of the dead letters of the buffer at *path*."""
        return DiskShare(self, self._dead_letters[_absolute(path)])

    def used_bytes(self) -> int:
        """Return the size on disk of everything under the budget."""
        with self._lock:
            self._list_sometimes()
            return sum(place.used_bytes() for place in self._places())

    def left_bytes(self, place: _Place, root: str) -> int:
        """
        Return the part of the budget for *place*: for a buffer, everything that the others leave; for a store of dead
        letters at *root*, everything that buffers and other dead letters leave.
        """
        with self._lock:
            self._list_sometimes()
            left = self.cap_bytes
            for other in self._places():
                if other is not place:
                    left -= max(other.used_bytes(), other.reserved_bytes)
                elif place.are_dead_letters:
                    left -= other.used_bytes(without=_absolute(root))
            return left

    def largest_bytes(self, place: _Place) -> int:
        """Return the maximum that *place* may ever have."""
        return self.cap_bytes - sum(other.reserved_bytes for other in self._places() if other is not place)

    def attach(self, place: _Place, store: Attached) -> None:
        """Ask *store* for its usage while it is open, instead of adding up its files."""
        with self._lock:
            path = _absolute(store.path)
            place.attached[path] = weakref.ref(store)
            place.listed_bytes.pop(path, None)

    def _places(self) -> Sequence[_Place]:
        return [*self._buffers.values(), *self._dead_letters.values()]

    def _list_sometimes(self) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._listed_s < LISTED_S:
            return
        self._listed_s = now_s
        for place in self._places():
            try:
                place.list(self._fs)
            except OSError:
                continue  # the last known size counts


@dataclass(frozen=True, slots=True)
class DiskShare:
    """The share of one buffer, or of its dead letters, in a budget."""

    budget: DiskBudget
    place: _Place

    @property
    def largest_bytes(self) -> int:
        """The maximum that it may ever have."""
        return self.budget.largest_bytes(self.place)

    def left_bytes(self, root: str) -> int:
        """Return the current share; for dead letters, that of the store at *root*."""
        return self.budget.left_bytes(self.place, root)

    def attach(self, store: Attached) -> None:
        """Use the reported usage of a store that this process opened."""
        self.budget.attach(self.place, store)


def _absolute(path: str) -> str:
    # One process may use the path from its settings, another one the absolute path.
    return os.path.abspath(path)  # noqa: PTH100 - kept as text


def _store_roots(fs: FileSystem, path: str, *, are_dead_letters: bool) -> list[str]:
    if not fs.exists(path):
        return []
    cores = find_cores(fs, path)
    roots = [f"{path}/{core_directory(core)}" for core in cores] or [path]
    if not are_dead_letters:
        return roots
    places = [f"{root}/{DEAD_LETTER_DIR}" for root in roots]
    return [f"{place}/{name}" for place in places if fs.exists(place) for name in fs.list_dir(place)]
