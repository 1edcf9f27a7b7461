"""Keeps a store closed while a program works on its files."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from quiver.clock import Clock
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.lock import hold
from quiver.settings import Settings
from quiver.store.format.cores import EVICT_LOCK, parse_core_directory
from quiver.store.format.names import STORE_LOCK
from quiver.store.opening import open_store
from quiver.store.reading.written_by import written_by

__all__ = ["drain", "locked_for_writing", "require_closed"]

_NEVER_S = 1e9
"""A grace period that does not end meanwhile: programs that work on files must not delete data."""


class _Quiet(InMemoryObserver):
    """Counts, but does not log: programs that work on the files report their own work."""

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Any) -> None:
        """Ignore the event."""


@contextmanager
def locked_for_writing(fs: FileSystem, root: str, *, owner: str) -> Iterator[None]:
    """
    Prevent other processes from writing to the store at *root*; *owner* is the reason that they get.

    Raises:
        DirectoryInUseError: a process has it open; or, for one core of several, another core is freeing space in it.
        OSError: a lock cannot be taken.
    """
    with ExitStack() as locks:
        locks.callback(hold(fs, f"{root}/{STORE_LOCK}", owner=owner).release)
        if parse_core_directory(posixpath.basename(root)) is not None:
            locks.callback(hold(fs, f"{root}/{EVICT_LOCK}", owner=owner).release)
        yield


def require_closed(fs: FileSystem, roots: Sequence[str], *, owner: str) -> None:
    """
    Check that no process has one of *roots* open, before an operation on all cores of a store changes the first one.

    Raises:
        DirectoryInUseError, OSError: as `locked_for_writing`.
    """
    for root in roots:
        with locked_for_writing(fs, root, owner=owner):
            pass


def drain(fs: FileSystem, root: str, *, clock: Clock) -> None:
    """
    Open the store at *root* as it was written, seal all bundles in its log, and close it. Deletes no segment.

    On return, segments contain everything that is in the log, and of its files only the active one is left.

    Raises:
        DirectoryInUseError: a process has it open.
        UnsupportedFormatError: a newer version wrote the log.
        QuiverError: the store cannot be recovered.
        OSError: the disk reported an error.
    """
    found = written_by(fs, root)
    settings = Settings(format_profile=found.profile, delete_grace_s=_NEVER_S)
    with open_store(
        root, settings, fs=fs, clock=clock, adapter=found.adapter, observer=_Quiet(), background=False
    ) as store:
        store.seal()
