"""
The file-system port: every operation that a log may request from a disk. `real_files` and `quiver.testing` implement
it.

The behavior of each call on power loss is part of its contract; `quiver.testing.crashfs` provides exactly
these guarantees and no more. Paths are plain strings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from quiver.errors import UsageError

__all__ = [
    "Buffer",
    "File",
    "FileStat",
    "FileSystem",
    "Mapping",
    "NotRegularFileError",
    "WriteMapping",
    "directory_name",
]

Buffer = bytes | bytearray | memoryview


class NotRegularFileError(OSError):
    """
    The path names a pipe, a socket or a device instead of a file. Nothing was read from it
    or written to it.
    """


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def directory_name(path: str | os.PathLike[str]) -> str:
    """
    Return *path* as logs use it as a prefix: a string without a trailing slash, except for the root directory.

    Raises:
        UsageError: it is empty, which would be the root of the machine, a URL, or not a path.
    """
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str):
        raise UsageError(f"path={path!r}: a directory is named by a string or a path")
    if not name:
        raise UsageError("an empty path names no directory")
    if _URL.match(name):
        raise UsageError(
            f"{name.partition('?')[0]} is a URL: a log is written to a local directory. Give one, and name the object "
            "store as its tier (cold.objects of a store, objects= of topics and append-only logs)"
        )
    return name.rstrip("/") or "/"


@dataclass(frozen=True, slots=True)
class FileStat:
    """The metadata of a file."""

    size_bytes: int
    modified_ns: int
    inode: int
    mode: int


class File(Protocol):
    """An open file. Positions are explicit, without a cursor."""

    path: str

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to *size* bytes at *offset*; fewer only at the end of the file."""

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of *data* at *offset*. Visible to readers on return, not durable."""

    def pwritev(self, parts: Sequence[Buffer], offset: int, size: int = -1) -> None:
        """
        Write all *parts* consecutively at *offset*, in one system call if possible.

        *size*, the bytes of all parts together, avoids counting them if the caller knows it already.
        """

    def truncate(self, size: int) -> None:
        """Set the file's length. Not durable until `sync`."""

    def reserve(self, start: int, length: int) -> None:
        """
        Reserve blocks, growing the file to ``start + length``; an OSError (ENOTSUP) if that is impossible.

        `quiver.primitives.disk.prealloc` handles that case.
        """

    def size(self) -> int:
        """Return the length in bytes."""

    def map_write(self) -> WriteMapping:
        """
        Map a complete file whose blocks are reserved, for writing. The file stays open as long
        as it is mapped.
        """

    def sync_data(self) -> None:
        """Make contents and length durable (fdatasync). After an error nothing may be assumed: never retry."""

    def sync(self) -> None:
        """Make contents and metadata durable (fsync). After an error nothing may be assumed: never retry."""

    def set_mode(self, mode: int) -> None:
        """Set permission bits; on a file system without them, do the nearest equivalent."""

    def close(self) -> None:
        """Release the descriptor. Idempotent. Makes nothing durable."""


class Mapping(Protocol):
    """A read-only mapping that stays valid while it, or any buffer of it, is referenced."""

    def view(self) -> memoryview:
        """Return the whole file as a read-only view, without copying."""

    def close(self) -> None:
        """Drop this reference; the pages are released with the last view."""


class WriteMapping(Protocol):
    """
    A file written through memory: every reader sees a store immediately; it is durable after `sync`.

    Its blocks must be reserved, and it must not be truncated meanwhile: either would kill the process by a signal.
    """

    def view(self) -> memoryview:
        """Return the whole file as a writable view, without copying."""

    def store(self, start: int, data: Buffer) -> None:
        """Store *data* at *start*, as through the view; large pieces in the cheapest way."""

    def touch(self, start: int, end: int) -> None:
        """
        Write the bytes from *start* to *end* again unchanged, so that the next `sync` writes them to the disk.

        After a failed sync, the kernel may consider pages clean that never reached the disk.
        """

    def sync(self) -> None:
        """Make all stores durable. After an error nothing may be assumed: `touch`, then check, then sync."""

    def close(self) -> None:
        """Drop this reference; the pages are released with the last view. Makes nothing durable."""


class FileSystem(Protocol):
    """
    The operations of one file system. Errors are `OSError` with `filename` set.

    Opening, mapping and locking never wait for another process: a pipe, a socket or a device is refused with
    `NotRegularFileError`.
    """

    def open_read(self, path: str) -> File:
        """Open an existing file for reading."""

    def open_write(self, path: str) -> File:
        """Open an existing file for reading and writing."""

    def create(self, path: str, *, mode: int = 0o600) -> File:
        """
        Create a new file for reading and writing; FileExistsError if it exists.

        The name is durable only after `sync_dir` of its directory.
        """

    def create_or_truncate(self, path: str, *, mode: int = 0o600) -> File:
        """Open for reading and writing, emptied; created if missing. For temporary files."""

    def map_read(self, path: str) -> Mapping:
        """Map an existing, immutable file read-only. An empty file maps to an empty view."""

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing *target*. Atomic for readers; durable only after `sync_dir`."""

    def link(self, source: str, target: str) -> None:
        """
        Give the file *source*, which is never written to again, the additional name *target*.

        FileExistsError if that name exists; another OSError if files cannot have two names. Durable only after
        `sync_dir`.
        """

    def remove(self, path: str) -> None:
        """Unlink. Durable only after `sync_dir`."""

    def remove_dir(self, path: str) -> None:
        """
        Remove a directory; an OSError (ENOTEMPTY) if it is not empty. Durable only after `sync_dir` of its
        parent.
        """

    def sync_dir(self, path: str) -> None:
        """Make the names in directory *path* durable."""

    def make_dirs(self, path: str, *, mode: int = 0o700) -> None:
        """Create *path* and its missing parents, each durable on return. Existing ones stay unchanged."""

    def list_dir(self, path: str) -> list[str]:
        """Return the names in *path*, sorted."""

    def stat(self, path: str) -> FileStat:
        """Return size, times, inode and mode; FileNotFoundError if missing."""

    def exists(self, path: str) -> bool:
        """Return whether *path* names a file or directory."""

    def read_all(self, path: str, *, size_max: int) -> bytes:
        """Return the contents of a small file; an OSError (EFBIG) if it is larger than *size_max*."""

    def try_lock(self, path: str, *, note: str) -> Lock | None:
        """
        Take the exclusive lock *path* (created if missing) or return None if another holder has it.

        The kernel releases it when the holder dies. *note* (a human-readable line) is written into it.
        """

    def free_bytes(self, path: str) -> int:
        """Return the bytes that an ordinary user may still write below *path*; `sys.maxsize` if unknown."""


class Lock(Protocol):
    """A held exclusive lock."""

    def release(self) -> None:
        """Release the lock. Idempotent."""
