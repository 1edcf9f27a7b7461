"""
A file system that fails on demand: the n-th write, the third sync, every rename from now on.

It wraps any other file system and passes all calls through except the selected ones. A failed sync over a
`CrashFileSystem` also loses the unsynced data, as kernels do: this exposes a log that just syncs again and continues.
"""

from __future__ import annotations

import errno as errno_names
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from quiver.errors import UsageError
from quiver.primitives.disk import file_system as files
from quiver.primitives.disk.file_system import Buffer, File, FileStat, FileSystem, Lock
from quiver.primitives.disk.prealloc import reserve_blocks

__all__ = ["OPERATIONS", "FaultFile", "FaultFileSystem", "FaultWriteMapping"]

OPERATIONS = frozenset({
    "open", "create", "map", "rename", "link", "remove", "rmdir", "sync_dir", "mkdir", "list", "stat", "read_all",
    "lock", "free", "pread", "pwrite", "truncate", "reserve", "size", "sync", "set_mode",
})  # fmt: skip
"""The operations that can fail. ``pwrite`` includes gathered writes, ``sync`` both kinds, ``create`` both functions."""


class FaultFile:
    """An open file of a `FaultFileSystem`."""

    def __init__(self, inner: File, fs: FaultFileSystem) -> None:
        self.path = inner.path
        self._inner = inner
        self._fs = fs

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to *size* bytes at *offset*; fewer only at the end of the file."""
        self._fs.may_fail("pread", self.path)
        return self._inner.pread(size, offset)

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of *data* at *offset*; a call that fails writes at most `short_write` bytes."""
        try:
            self._fs.may_fail("pwrite", self.path)
        except OSError:
            prefix = memoryview(data).cast("B")[: self._fs.short_write]
            if prefix:
                self._inner.pwrite(prefix, offset)
            raise
        self._inner.pwrite(data, offset)

    def pwritev(self, parts: Sequence[Buffer], offset: int, size: int = -1) -> None:  # noqa: ARG002
        """Write the concatenated *parts* at *offset*; counts and fails as ``pwrite``."""
        self.pwrite(b"".join(parts), offset)

    def truncate(self, size: int) -> None:
        """Set the file's length. Not durable until a sync."""
        self._fs.may_fail("truncate", self.path)
        self._inner.truncate(size)

    def reserve(self, start: int, length: int) -> None:
        """Reserve blocks, as far as the inner file supports it."""
        self._fs.may_fail("reserve", self.path)
        reserve_blocks(self._inner, start, length, on_unsupported="raise")

    def size(self) -> int:
        """Return the length in bytes."""
        self._fs.may_fail("size", self.path)
        return self._inner.size()

    def sync_data(self) -> None:
        """Make contents and length durable, or fail and lose them."""
        self._may_fail_to_sync()
        self._inner.sync_data()

    def sync(self) -> None:
        """Make contents and metadata durable, or fail and lose them."""
        self._may_fail_to_sync()
        self._inner.sync()

    def _may_fail_to_sync(self) -> None:
        try:
            self._fs.may_fail("sync", self.path)
        except OSError:
            lose = getattr(self._inner, "lose_unsynced", None)
            if lose is not None:
                lose()
            raise

    def map_write(self) -> FaultWriteMapping:
        """Map the file for writing. Stores never fail; the sync may."""
        self._fs.may_fail("map", self.path)
        return FaultWriteMapping(self._inner.map_write(), self._may_fail_to_sync)

    def set_mode(self, mode: int) -> None:
        """Set permission bits."""
        self._fs.may_fail("set_mode", self.path)
        self._inner.set_mode(mode)

    def close(self) -> None:
        """Close the inner file. Never fails."""
        self._inner.close()


class FaultWriteMapping:
    """A writable mapping of a `FaultFile`. Its sync counts and fails as ``sync``."""

    def __init__(self, inner: files.WriteMapping, sync: Callable[[], None]) -> None:
        self._inner = inner
        self._may_fail_to_sync = sync
        self.view = inner.view
        self.store = inner.store
        self.touch = inner.touch
        self.close = inner.close

    def sync(self) -> None:
        """Make all stores durable, or fail and lose them."""
        self._may_fail_to_sync()
        self._inner.sync()


class FaultFileSystem:
    """
    Wraps *inner* and makes selected calls fail. Thread-safe.

    Args:
        inner: the file system that does the work.
        fail_on: operation → the number of the call that fails, counted from 1. See `OPERATIONS`.
        error: the errno of the failure.
        path_part: only calls on paths that contain this are counted and fail.
        short_write: a failing write first writes this many bytes.
        forever: every later call of the operation fails, too.

    Attributes:
        calls: operation → number of calls on matching paths; a run without faults shows how far a loop must count.

    Raises:
        UsageError: an operation is unknown, or its number is below 1.
    """

    def __init__(
        self,
        inner: FileSystem,
        fail_on: Mapping[str, int] | None = None,
        *,
        error: int = errno_names.EIO,
        path_part: str = "",
        short_write: int = 0,
        forever: bool = False,
    ) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()
        self.short_write = short_write
        self._error = error
        self._path_part = path_part
        self._forever = forever
        self._guard = threading.Lock()
        self._fail_on: dict[str, int] = {}
        for op, call in (fail_on or {}).items():
            self.fail_on(op, call)

    def fail_on(self, op: str, call: int = 1) -> None:
        """
        Make the *call*-th further call of *op* fail.

        Raises:
            UsageError: the operation is unknown, or *call* is below 1.
        """
        if op not in OPERATIONS or call < 1:
            raise UsageError(f"cannot fail call {call} of {op!r}; operations are {', '.join(sorted(OPERATIONS))}")
        with self._guard:
            self._fail_on[op] = self.calls[op] + call

    def heal(self) -> None:
        """Stop all failures."""
        with self._guard:
            self._fail_on.clear()

    def may_fail(self, op: str, path: str) -> None:
        """
        Count a call, and raise if it was selected.

        Raises:
            OSError: the selected errno, with *path*.
        """
        if self._path_part not in path:
            return
        with self._guard:
            self.calls[op] += 1
            chosen = self._fail_on.get(op)
            fails = chosen is not None and (self.calls[op] == chosen or (self._forever and self.calls[op] > chosen))
        if fails:
            raise OSError(self._error, os.strerror(self._error), path)

    def open_read(self, path: str) -> FaultFile:
        """Open an existing file for reading."""
        self.may_fail("open", path)
        return FaultFile(self._inner.open_read(path), self)

    def open_write(self, path: str) -> FaultFile:
        """Open an existing file for reading and writing."""
        self.may_fail("open", path)
        return FaultFile(self._inner.open_write(path), self)

    def create(self, path: str, *, mode: int = 0o600) -> FaultFile:
        """Create a new file for reading and writing; FileExistsError when there is one."""
        self.may_fail("create", path)
        return FaultFile(self._inner.create(path, mode=mode), self)

    def create_or_truncate(self, path: str, *, mode: int = 0o600) -> FaultFile:
        """Open for reading and writing, emptied; created when missing."""
        self.may_fail("create", path)
        return FaultFile(self._inner.create_or_truncate(path, mode=mode), self)

    def map_read(self, path: str) -> files.Mapping:
        """Map an existing, immutable file read-only."""
        self.may_fail("map", path)
        return self._inner.map_read(path)

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing *target*. The path of *target* is matched."""
        self.may_fail("rename", target)
        self._inner.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """Give a file another name. The path of *target* is matched."""
        self.may_fail("link", target)
        self._inner.link(source, target)

    def remove(self, path: str) -> None:
        """Unlink. Durable only after `sync_dir`."""
        self.may_fail("remove", path)
        self._inner.remove(path)

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory. Durable only after `sync_dir` of its parent."""
        self.may_fail("rmdir", path)
        self._inner.remove_dir(path)

    def sync_dir(self, path: str) -> None:
        """Make the names in directory *path* durable."""
        self.may_fail("sync_dir", path)
        self._inner.sync_dir(path)

    def make_dirs(self, path: str, *, mode: int = 0o700) -> None:
        """Create *path* and its missing parents; counts once as ``mkdir``."""
        self.may_fail("mkdir", path)
        self._inner.make_dirs(path, mode=mode)

    def list_dir(self, path: str) -> list[str]:
        """Return the names in *path*, sorted."""
        self.may_fail("list", path)
        return self._inner.list_dir(path)

    def stat(self, path: str) -> FileStat:
        """Return size, times, inode and mode; FileNotFoundError when missing."""
        self.may_fail("stat", path)
        return self._inner.stat(path)

    def exists(self, path: str) -> bool:
        """Return whether *path* is an existing file or directory; counts and fails as ``stat``."""
        self.may_fail("stat", path)
        return self._inner.exists(path)

    def read_all(self, path: str, *, size_max: int) -> bytes:
        """Return the contents of a small file; an OSError (EFBIG) when it is larger than *size_max*."""
        self.may_fail("read_all", path)
        return self._inner.read_all(path, size_max=size_max)

    def try_lock(self, path: str, *, note: str) -> Lock | None:
        """Take the exclusive lock *path* or return None when another holds it."""
        self.may_fail("lock", path)
        return self._inner.try_lock(path, note=note)

    def free_bytes(self, path: str) -> int:
        """Return the free bytes for an ordinary user below *path*."""
        self.may_fail("free", path)
        return self._inner.free_bytes(path)
