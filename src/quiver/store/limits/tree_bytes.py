"""How many bytes a directory of ours takes, with all that is below it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from quiver.primitives.disk.file_system import FileSystem

__all__ = ["file_bytes", "tree_bytes"]

DEPTH_MAX = 6
"""Nothing of ours lies deeper: core, dead letters, an exporter, segments."""


def tree_bytes(fs: FileSystem, directory: str, *, skip: Collection[str] = (), depth: int = DEPTH_MAX) -> int:
    """
    Return the bytes of all files below *directory*. What vanishes meanwhile is 0.

    Args:
        fs: the file system.
        directory: need not exist.
        skip: names in it that are passed over.
        depth: how many levels of directories are looked at.
    """
    try:
        names = fs.list_dir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    total = 0
    for name in names:
        path = f"{directory}/{name}"
        if name in skip:
            continue
        # Our files have a full stop in their names, and our directories have none: a look saved for each segment.
        if "." in name:
            with contextlib.suppress(FileNotFoundError):
                total += fs.stat(path).size_bytes
        elif depth:
            total += tree_bytes(fs, path, depth=depth - 1)
    return total


def file_bytes(fs: FileSystem, directory: str) -> int:
    """
    Return the bytes of the files in *directory*, without those of the directories in it. What vanishes meanwhile is
    0.
    """
    return tree_bytes(fs, directory, depth=0)
