"""
Small files replaced whole, and names that stay gone.

::

    replace_file          temp beside the target → write → fdatasync → rename over it → fsync directory
    replace_advisory_file temp beside the target → write → rename over it
    remove_durably        unlink → fsync directory

A crash between any two steps of the first leaves the old file or the new one, never neither and never a mixture. What
may be left over is ``<path>.tmp``; the next replacement of the same file takes it over. A write that the disk refuses
leaves nothing: on a full disk those blocks may be the last ones.
"""

from __future__ import annotations

import contextlib
import errno
import os.path
from collections.abc import Iterable

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
    Make *path* hold exactly *data*, durably on return. Readers see the old file or the new one.

    One writer per *path* at a time: two would share the temporary file.

    Raises:
        OSError: the old contents are still there, or (from the last step) the new ones, perhaps not durably.
    """
    temporary = path + TEMPORARY_SUFFIX
    # Without a sync the name could become durable before the bytes: after a power cut the file is there, empty.
    _write_temporary(fs, temporary, data, mode=mode, sync=True)
    fs.rename(temporary, path)
    fs.sync_dir(os.path.dirname(path))  # noqa: PTH120


def replace_advisory_file(fs: FileSystem, path: str, data: Buffer, *, mode: int = 0o600) -> None:
    """
    Make *path* hold exactly *data*, without a sync. Readers see the old file or the new one, as long as power lasts.

    For what nobody relies on: after a loss of power the file may be old, gone, empty or half there.

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
        finally:
            file.close()
    except OSError:
        with contextlib.suppress(OSError):
            fs.remove(temporary)
        raise


def remove_durably(fs: FileSystem, paths: Iterable[str]) -> None:
    """
    Remove *paths*, in their order, durably on return; a file that is missing already is fine.

    Each directory is synced once, also when nothing was found in it: an earlier run may have been killed between
    its unlink and its sync.

    Raises:
        OSError: some may be gone, and none of them durably.
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
    Remove *directory* and its files; not durably: what a crash leaves is removed again. There are no directories in it.

    One that is gone is fine, and so is one that somebody writes into meanwhile: it stays.

    Raises:
        OSError: some files may be gone.
    """
    with contextlib.suppress(FileNotFoundError):
        for name in fs.list_dir(directory):
            with contextlib.suppress(FileNotFoundError):
                fs.remove(f"{directory}/{name}")
        remove_if_empty(fs, directory)


def remove_if_empty(fs: FileSystem, directory: str) -> None:
    """
    Remove *directory* unless something is in it; one that is gone is fine. Not durably.

    Raises:
        OSError: it stays for another reason.
    """
    try:
        fs.remove_dir(directory)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.ENOENT}:
            raise
