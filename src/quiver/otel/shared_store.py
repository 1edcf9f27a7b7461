"""
One open store for all exporters of a process: opened by the first, closed by the last.

A store belongs to the process that opened it. In a forked child the parent's leases are of no use, and say so.
"""

from __future__ import annotations

import logging
import os
import threading

from quiver.errors import UsageError
from quiver.observe import InMemoryObserver, Value
from quiver.primitives.disk.file_system import directory_name
from quiver.primitives.disk.platform_files import call_at_fork
from quiver.settings import GIB, MIB, Settings
from quiver.store.opening import open_store
from quiver.store.store import Store

__all__ = ["OTEL_SETTINGS", "Lease", "lease_store"]

OTEL_SETTINGS = Settings(
    segment_bytes_max=8 * MIB,
    segment_open_s_max=1.0,
    wal_bytes_max=64 * MIB,
    wal_rotate_bytes=16 * MIB,
    size_cap_bytes=1 * GIB,
)
"""What an application's own store is opened with unless told otherwise: at most 1 GiB on disk, and when that is full,
new data is refused rather than old data dropped."""


class _WarningsOnly(InMemoryObserver):
    """
    Counts, and logs nothing below a warning.

    An application may export its own log: a line for each segment would be data for the next segment, without end.
    """

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:
        """Log *name* if it is a warning or worse."""
        if level >= logging.WARNING:
            super().event(name, level=level, **attributes)


class _Shared:
    """An open store and how many leases there are on it."""

    def __init__(self, store: Store, observer: InMemoryObserver) -> None:
        self.store = store
        self.observer = observer
        self.leases = 0


class _Shelf:
    """The open stores of this process, by directory."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stores: dict[str, _Shared] = {}


_shelf = _Shelf()


def _after_fork() -> None:
    # What is on the shelf is the parent's, and its lock may be held by a thread that is not here.
    global _shelf  # noqa: PLW0603 - one for the process
    _shelf = _Shelf()


call_at_fork(after_in_child=_after_fork)


class Lease:
    """The use of a store until `release`. Thread-safe."""

    def __init__(self, path: str, shared: _Shared) -> None:
        self.store = shared.store
        self.observer = shared.observer
        self._path = path
        self._shared = shared
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._is_released = False

    @property
    def is_ours(self) -> bool:
        """Whether this process opened the store. A forked child did not, and must not touch it."""
        return self._pid == os.getpid()

    def release(self) -> None:
        """
        Give it back; the last one closes the store, which seals and syncs what it has. Idempotent.

        Raises:
            StoreFailedError: the disk failed, now or earlier; what was synced is safe.
        """
        if not self.is_ours:
            return
        with self._lock:
            if self._is_released:
                return
            self._is_released = True
        with _shelf.lock:
            self._shared.leases -= 1
            if self._shared.leases:
                return
            del _shelf.stores[self._path]
            # Under the lock: whoever opens the directory next waits until it is free.
            self.store.close()


def lease_store(path: str | os.PathLike[str], settings: Settings | None = None) -> Lease:
    """
    Return a lease on the store in directory *path*, opened when this process has not done so already.

    Args:
        path: the directory; created when missing.
        settings: how it behaves; when it is open already, None or the same.

    Raises:
        DirectoryInUseError: another process has it open.
        UsageError: this process has it open, with other settings; or *path* names no directory.
        UnsupportedFormatError: it was written by a newer version or under another adapter.
        OSError: the disk refused.
    """
    real = os.path.realpath(directory_name(path))  # of an empty path it would be the working directory
    with _shelf.lock:
        shared = _shelf.stores.get(real)
        if shared is None:
            observer = _WarningsOnly()
            shared = _Shared(open_store(real, settings or OTEL_SETTINGS, observer=observer), observer)
            _shelf.stores[real] = shared
        elif settings is not None and settings != shared.store.settings:
            raise UsageError(f"{real} is open in this process with other settings; give all exporters the same")
        shared.leases += 1
        return Lease(real, shared)
