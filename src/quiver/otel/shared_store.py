"""
One open store for all exporters of a process, opened by the first and closed by the last.

A store belongs to the process that opened it. In a forked child, `Lease.is_ours` of the parent's leases is False.
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
"""The default settings of an application's own store: at most 1 GiB on disk. When that is full, new data are refused;
old data are not dropped."""


class _WarningsOnly(InMemoryObserver):
    """
    Counts, and only logs warnings and errors.

    An application may export its own log: an event for each segment would create data for the next segment, forever.
    """

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:
        """Log *name* if *level* is a warning or higher."""
        if level >= logging.WARNING:
            super().event(name, level=level, **attributes)


class _Shared:
    """An open store and the number of its leases."""

    def __init__(self, store: Store, observer: InMemoryObserver) -> None:
        self.store = store
        self.observer = observer
        self.leases = 0


class _OpenStores:
    """The open stores of this process, by directory."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stores: dict[str, _Shared] = {}


_open_stores = _OpenStores()


def _after_fork() -> None:
    # These stores are the parent's, and their lock may be held by a thread that does not exist in the child.
    global _open_stores  # noqa: PLW0603 - one for the process
    _open_stores = _OpenStores()


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
        Release the store; the last lease closes it, which seals and syncs its data. Idempotent.

        Raises:
            StoreFailedError: the disk failed, now or earlier; what was synced is safe.
        """
        if not self.is_ours:
            return
        with self._lock:
            if self._is_released:
                return
            self._is_released = True
        with _open_stores.lock:
            self._shared.leases -= 1
            if self._shared.leases:
                return
            del _open_stores.stores[self._path]
            # Under the lock, so that the next caller opens the directory after it is closed.
            self.store.close()


def lease_store(path: str | os.PathLike[str], settings: Settings | None = None) -> Lease:
    """
    Return a lease on the store at *path*, and open the store if this process has not done so.

    Args:
        path: the directory; created if missing.
        settings: settings of the store; if it is already open, None or the same settings.

    Raises:
        DirectoryInUseError: another process has it open.
        UsageError: this process has it open with other settings, or *path* is empty.
        UnsupportedFormatError: it was written by a newer version or with another adapter.
        OSError: the disk failed.
    """
    real = os.path.realpath(directory_name(path))  # for an empty path, realpath returns the working directory
    with _open_stores.lock:
        shared = _open_stores.stores.get(real)
        if shared is None:
            observer = _WarningsOnly()
            shared = _Shared(open_store(real, settings or OTEL_SETTINGS, observer=observer), observer)
            _open_stores.stores[real] = shared
        elif settings is not None and settings != shared.store.settings:
            raise UsageError(f"{real} is open in this process with other settings; give all exporters the same")
        shared.leases += 1
        return Lease(real, shared)
