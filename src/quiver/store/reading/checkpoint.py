"""
A query's checkpoint on a local disk, made as durable as the data that depends on it.

Spark writes each file of a checkpoint, renames it into place, and never syncs it. After a power loss the newest files
may be missing or empty. Then Spark refuses to start the query, or the checkpoint is older than the acknowledgements of
the subscriber. So the files are synced here: the offsets of a batch before any task reads it, and the commit of a batch
before it is acknowledged. Files that can still be lost have had no effect yet, and `repair_checkpoint` removes their
remains.
"""

from __future__ import annotations

import logging

from quiver.primitives.disk.atomic import remove_durably
from quiver.primitives.disk.file_system import FileSystem

__all__ = ["Checkpoint", "is_local", "local_checkpoint", "repair_checkpoint"]

_OFFSETS, _COMMITS, _METADATA = "offsets", "commits", "metadata"
_log = logging.getLogger("quiver.spark")


def is_local(path: str) -> bool:
    """Return whether *path* is on this machine's file system, and not a URL of another one."""
    return ":" not in path.partition("/")[0] or path.startswith("file:")


def local_checkpoint(path: str) -> str:
    """Return the directory that a path or ``file:`` URL refers to, without a trailing slash."""
    return path.removeprefix("file://").removeprefix("file:").rstrip("/") or "/"


class Checkpoint:
    """
    The files of one query's checkpoint. Each is synced once.

    Args:
        fs: the file system.
        path: the local directory; Spark creates it.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = local_checkpoint(path)
        self._synced: dict[str, str] = {}

    def sync_offsets(self) -> None:
        """
        Make the offsets of the newest batch and the identity of the query durable. Call it before the batch is read.

        Raises:
            OSError: the disk reported an error.
        """
        if "" not in self._synced:
            self._sync(self._path, _METADATA)
            self._fs.sync_dir(self._path)
            self._synced[""] = _METADATA
        self._sync_newest(_OFFSETS)

    def sync_commits(self) -> None:
        """
        Make the newest commit durable. Call it before its batch is acknowledged.

        Raises:
            OSError: the disk reported an error.
        """
        self._sync_newest(_COMMITS)

    def _sync_newest(self, log: str) -> None:
        directory = f"{self._path}/{log}"
        batches = _batches(self._fs, directory)
        if not batches or self._synced.get(log) == batches[-1]:
            return
        self._sync(directory, batches[-1])
        self._fs.sync_dir(directory)
        self._synced[log] = batches[-1]

    def _sync(self, directory: str, name: str) -> None:
        # Hadoop stores a checksum next to each file, and does not read a file whose checksum is empty.
        for path in (f"{directory}/{name}", f"{directory}/.{name}.crc"):
            try:
                file = self._fs.open_write(path)
            except FileNotFoundError:
                continue
            try:
                file.sync()
            finally:
                file.close()


def repair_checkpoint(fs: FileSystem, path: str) -> list[str]:
    """
    Remove the remains of files that were never synced before a power loss; return their paths.

    Call it only while no query runs. The remains are the newest offsets and commits that are empty, and an empty
    identity of a query that has planned no batch. A source with the option `checkpoint` lets no task read a batch
    before its offsets are synced.

    Raises:
        OSError: the disk reported an error.
    """
    root = local_checkpoint(path)
    empty: list[str] = []
    for log in (_OFFSETS, _COMMITS):
        for name in reversed(_batches(fs, f"{root}/{log}")):
            found = _empty_of(fs, f"{root}/{log}", name)
            empty += found
            if f"{root}/{log}/{name}" not in found:
                break
    if all(not _batches(fs, f"{root}/{log}") for log in (_OFFSETS, _COMMITS)):
        empty += _empty_of(fs, root, _METADATA)
    remove_durably(fs, empty)
    for one in empty:
        _log.warning("quiver.spark.checkpoint_repaired removed=%s reason=empty after a crash", one)
    return empty


def _empty_of(fs: FileSystem, directory: str, name: str) -> list[str]:
    """Return the empty ones of a file and its checksum; both when the file is empty."""
    path, checksum = f"{directory}/{name}", f"{directory}/.{name}.crc"
    present = [one for one in (path, checksum) if fs.exists(one)]
    if path in present and not fs.stat(path).size_bytes:
        return present
    return [one for one in present if one == checksum and not fs.stat(one).size_bytes]


def _batches(fs: FileSystem, directory: str) -> list[str]:
    """Return the names of the batches in one of Spark's logs, ascending."""
    try:
        names = fs.list_dir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((name for name in names if name.isdecimal()), key=int)
