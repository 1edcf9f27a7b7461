"""How long the disk takes to make the log durable, as a metric."""

from __future__ import annotations

from collections.abc import Callable

from quiver.clock import Clock
from quiver.observe import Observer
from quiver.primitives.disk.file_system import File

__all__ = ["timed_sync"]


def timed_sync(clock: Clock, observer: Observer) -> Callable[[File], None]:
    """Return a function that syncs a file's data and records the duration. A failed sync is not recorded."""

    def sync(file: File) -> None:
        started = clock.monotonic()
        file.sync_data()
        observer.record("quiver.wal.fsync.duration", clock.monotonic() - started)

    return sync
