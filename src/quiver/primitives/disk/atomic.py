"""
Atomic replacement of small files, and durable removal.

::

    replace_file          temp next to the target → write → fdatasync → rename over it → fsync directory
    replace_advisory_file temp next to the target → write → rename over it
    remove_durably        unlink → fsync directory

A crash between any two steps of the first leaves the old file or the new one, never neither and never a mixture. It
may leave ``<path>.tmp``, which the next replacement of the same file reuses. A write that the disk refuses
leaves nothing: on a full disk those blocks may be the last ones.
"""

from __future__ import annotations

import contextlib
import errno
import os.path
from collections.abc import Iterable

from quiver.invariant import invariant
from quiver.primitives.disk.file_system import Buffer, FileSystem

__all__ = [
    "TEMPORARY_SUFFIX",
    "remove_durably",
    "remove_files_below",
    "remove_if_empty",
    "replace_advisory_file",
    "replace_file",
]

TEMPORARY_SUFFIX = ".tmp"


def replace_file(fs: FileSystem, path: str, data: Buffer, *, mode: int = 0o600) -> None:
    """
    Write exactly *data* to *path*, durably on return. Readers see the old file or the new one.

    One writer per *path* at a time: two would share the temporary file.

    Raises:
        OSError: the old contents are still there, or (after the last step) the new ones, perhaps not durable.
    """
    temporary = path + TEMPORARY_SUFFIX
    # Without a sync the name could become durable before the bytes: after a power loss the file would be empty.
    _write_temporary(fs, temporary, data, mode=mode, sync=True)
    fs.rename(temporary, path)
    fs.sync_dir(os.path.dirname(path))  # noqa: PTH120


def replace_advisory_file(fs: FileSystem, path: str, data: Buffer, *, mode: int = 0o600) -> None:
    """
    Write exactly *data* to *path*, without a sync. Readers see the old file or the new one, until the power is lost.

    For files that no guarantee depends on: after a power loss the file may be old, missing, empty or incomplete.

    Raises:
        OSError: the old contents are still there.
    """
    temporary = path + TEMPORARY_SUFFIX
    _write_temporary(fs, temporary, data, mode=mode, sync=False)
    fs.rename(temporary, path)


def _write_temporary(fs: FileSystem, temporary: str, data: Buffer, *, mode: int, sync: bool) -> None:
    file = fs.create_or_truncate(temporary, mode=mode)
    try:
        try:
            file.pwrite(data, 0)
            if sync:
                file.sync_data()
            # Another writer of the same file would share the temporary name.
            is_complete = file.size() == memoryview(data).nbytes
        finally:
            file.close()
    except OSError:
        with contextlib.suppress(OSError):
            fs.remove(temporary)
        raise
    invariant(is_complete, f"a file gets its name only when it is complete: {temporary}")


def remove_durably(fs: FileSystem, paths: Iterable[str]) -> None:
    """
    Remove *paths*, in their order, durably on return; files that do not exist are ignored.

    Each directory is synced once, even if nothing was found in it: an earlier run may have been killed between
    its unlink and its sync.

    Raises:
        OSError: some may be removed, and none of them durably.
    """
    directories: dict[str, None] = {}  # in order, once each
    for path in paths:
        directories[os.path.dirname(path)] = None  # noqa: PTH120
        try:
            fs.remove(path)
        except FileNotFoundError:
            continue
    for directory in directories:
        fs.sync_dir(directory)


def remove_files_below(fs: FileSystem, directory: str) -> None:
    """
    Remove *directory* and its files, not durably: the next run removes what a crash leaves. It has no subdirectories.

    A missing directory is ignored. A directory that another process writes into meanwhile stays.

    Raises:
        OSError: some files may be removed.
    """
    with contextlib.suppress(FileNotFoundError):
        for name in fs.list_dir(directory):
            with contextlib.suppress(FileNotFoundError):
                fs.remove(f"{directory}/{name}")
        remove_if_empty(fs, directory)


def remove_if_empty(fs: FileSystem, directory: str) -> None:
    """
    Remove *directory* if it is empty; a missing one is ignored. Not durable.

    Raises:
        OSError: it stays for another reason.
    """
    try:
        fs.remove_dir(directory)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.ENOENT}:
            raise
