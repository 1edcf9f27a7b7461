"""Creates or recovers the store in a directory. `quiver.open` calls it, or opens several (`cores/opening.py`)."""

from __future__ import annotations

import os
import uuid

from quiver.bundle import OTAP, Adapter
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CorruptionError
from quiver.objects.port import ObjectTier
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem, directory_name
from quiver.primitives.disk.lock import hold
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.findings import NO_FILE_ERRORS, no_file_reason
from quiver.primitives.forked import refuse_in_children
from quiver.settings import Settings
from quiver.store.format.names import SEGMENTS_DIR, STORE_ID, STORE_LOCK, WAL_DIR
from quiver.store.limits.capacity import Capacity
from quiver.store.reading.check import refuse_snapshot
from quiver.store.store import Store

__all__ = ["open_store"]


def open_store(
    path: str | os.PathLike[str],
    settings: Settings | None = None,
    *,
    fs: FileSystem = REAL_FILES,
    clock: Clock = SYSTEM_CLOCK,
    observer: Observer | None = None,
    adapter: Adapter = OTAP,
    background: bool = True,
    capacity: Capacity | None = None,
    objects: ObjectTier | None = None,
) -> Store:
    """
    Create or recover the store in directory *path*: one writer per directory.

    On return everything that was durable is available again: sealed segments, logged bundles, all progress.

    Args:
        path: the directory; created with its parents when missing.
        settings: how the store behaves.
        fs: the file system.
        clock: where time comes from.
        observer: where counts and events go; in memory and to the `quiver` logger when None.
        adapter: the slot table.
        background: run the flush and maintenance threads; without them the caller calls `maintain()`.
        capacity: a size cap shared with other stores; None uses that of the settings.
        objects: the object tier, open; by default it is opened from `cold.objects` on first use.

    Raises:
        CorruptionError: the list of the object tier cannot be read, or a file is replaced by something else.
        DirectoryInUseError: another process, or this one, has it open.
        UnsupportedFormatError: it was written by a newer version or under another adapter.
        UsageError: it is a snapshot: restore it first.
    """
    root = directory_name(path)
    refuse_snapshot(fs, root)
    fs.make_dirs(root)
    try:
        lock = hold(fs, f"{root}/{STORE_LOCK}", owner="quiver store")
    except NO_FILE_ERRORS as error:
        raise CorruptionError(f"{root}/{STORE_LOCK}", 0, no_file_reason(error)) from error
    try:
        fs.make_dirs(f"{root}/{WAL_DIR}")
        fs.make_dirs(f"{root}/{SEGMENTS_DIR}")
        identity = f"{root}/{STORE_ID}"
        if not fs.exists(identity):
            replace_file(fs, identity, f"{uuid.uuid4()}\n".encode())  # noqa: TID251 - made once, at creation
        store = Store(
            root,
            settings or Settings(),
            fs=fs,
            clock=clock,
            observer=observer or InMemoryObserver(),
            adapter=adapter,
            background=background,
            lock=lock,
            capacity=capacity,
            objects=objects,
        )
    except BaseException as error:
        lock.release()
        if isinstance(error, NO_FILE_ERRORS):
            raise CorruptionError(error.filename or root, 0, no_file_reason(error)) from error
        raise
    refuse_in_children(store, f"the store {root}")
    return store
