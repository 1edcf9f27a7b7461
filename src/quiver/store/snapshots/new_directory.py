"""A directory that is built under another name and renamed last: whatever has the name is complete."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

from quiver.errors import UsageError
from quiver.primitives.disk.file_system import FileSystem

__all__ = ["begin_directory", "finish_directory"]

PARTIAL_SUFFIX = ".partial"
"""A directory of this name is a copy that was not finished; the next one to the same name replaces it."""


def begin_directory(fs: FileSystem, sources: Iterable[str], target: str) -> str:
    """
    Return the empty directory in which *target* is made from *sources*.

    Raises:
        UsageError: *target* exists, or lies within one of *sources*.
        OSError: the disk refused.
    """
    if fs.exists(target):
        # Killed between its rename and its sync, an earlier call left a name that loss of power would take back.
        fs.sync_dir(posixpath.dirname(target) or ".")
        raise UsageError(f"{target} exists; name a new directory")
    for source in sources:
        if f"{posixpath.normpath(target)}/".startswith(f"{posixpath.normpath(source)}/"):
            raise UsageError(f"{target} lies within {source}; name a directory beside it")
    partial = target + PARTIAL_SUFFIX
    if fs.exists(partial):
        _remove_below(fs, partial)
    fs.make_dirs(partial)
    return partial


def _remove_below(fs: FileSystem, directory: str) -> None:
    """Remove what a copy that was cut off left in *directory*; an empty directory would pass for a store."""
    for name in fs.list_dir(directory):
        path = f"{directory}/{name}"
        try:
            _remove_below(fs, path)
        except NotADirectoryError:
            fs.remove(path)
        else:
            fs.remove_dir(path)
    fs.sync_dir(directory)


def _files_below(fs: FileSystem, directory: str) -> Iterator[str]:
    for name in fs.list_dir(directory):
        path = f"{directory}/{name}"
        try:
            fs.list_dir(path)
        except NotADirectoryError:
            yield path
        else:
            yield from _files_below(fs, path)


def finish_directory(fs: FileSystem, partial: str, target: str) -> None:
    """
    Make all names in *partial* durable, then rename it to *target*. Durable on return.

    Raises:
        OSError: the disk refused; *target* may exist, and is complete then.
    """
    for directory in {posixpath.dirname(path) for path in _files_below(fs, partial)}:
        fs.sync_dir(directory)
    fs.rename(partial, target)
    fs.sync_dir(posixpath.dirname(target) or ".")
