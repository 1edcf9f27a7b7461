"""The size of one of our directories, with everything below it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from quiver.primitives.disk.file_system import FileSystem

__all__ = ["file_bytes", "tree_bytes"]

DEPTH_MAX = 6
"""No file of ours is deeper: core, dead letters, an exporter, segments."""


def tree_bytes(fs: FileSystem, directory: str, *, skip: Collection[str] = (), depth: int = DEPTH_MAX) -> int:
    """
    Return the bytes of all files below *directory*. A file that disappears meanwhile counts as 0.

    Args:
        fs: the file system.
        directory: need not exist.
        skip: names in it to skip.
        depth: how many levels of directories to read.
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
        # Our files have a dot in their names, and our directories have none: this saves a system call per segment.
        if "." in name:
            with contextlib.suppress(FileNotFoundError):
                total += fs.stat(path).size_bytes
        elif depth:
            total += tree_bytes(fs, path, depth=depth - 1)
    return total


def file_bytes(fs: FileSystem, directory: str) -> int:
    """
    Return the bytes of the files in *directory*, without those in its directories. A file that disappears meanwhile
    counts as 0.
    """
    return tree_bytes(fs, directory, depth=0)
