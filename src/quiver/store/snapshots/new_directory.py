"""A directory that is built under another name and renamed last: a directory with the final name is complete."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

from quiver.errors import UsageError
from quiver.primitives.disk.file_system import FileSystem

__all__ = ["begin_directory", "finish_directory"]

PARTIAL_SUFFIX = ".partial"
"""A directory with this suffix is an unfinished copy; the next copy to the same name replaces it."""


def begin_directory(fs: FileSystem, sources: Iterable[str], target: str) -> str:
    """
    Return the empty directory in which *target* is built from *sources*.

    Raises:
        UsageError: *target* exists, or is inside one of *sources*.
        OSError: the disk reported an error.
    """
    if fs.exists(target):
        # An earlier call that was killed between its rename and its sync left a name that a power loss would remove.
        fs.sync_dir(posixpath.dirname(target) or ".")
        raise UsageError(f"{target} exists; use a new directory")
    for source in sources:
        if f"{posixpath.normpath(target)}/".startswith(f"{posixpath.normpath(source)}/"):
            raise UsageError(f"{target} is inside {source}; use a directory outside of it")
    partial = target + PARTIAL_SUFFIX
    if fs.exists(partial):
        _remove_below(fs, partial)
    fs.make_dirs(partial)
    return partial


def _remove_below(fs: FileSystem, directory: str) -> None:
    """Remove the remains of an interrupted copy in *directory*; an empty directory would look like a store."""
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
        OSError: the disk reported an error; *target* may exist, and is complete then.
    """
    for directory in {posixpath.dirname(path) for path in _files_below(fs, partial)}:
        fs.sync_dir(directory)
    fs.rename(partial, target)
    fs.sync_dir(posixpath.dirname(target) or ".")
