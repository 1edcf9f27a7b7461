"""
A file system in memory that can crash.

It guarantees exactly what `quiver.primitives.disk.file_system` does: writes are visible immediately and durable after a
sync of the file; names are visible immediately and durable after a sync of their directory; a sync of one does not
affect the other. `clone_after_crash` returns the disk after a power loss: everything synced, and a seeded choice of the
rest, per 4 KiB block, per length, per name. `clone_after_kill` returns the disk after a kill of the process: everything
visible.

It does not model partly written blocks, misdirected writes, bit rot, and earlier versions of a block that was written
twice between two syncs. For the last, crash at every step: each version is the newest one at some step.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import StoreClosedError
from quiver.primitives.disk.file_system import Buffer, FileStat
from quiver.primitives.disk.mapping import ReadMapping
from quiver.testing.crash_nodes import Chance, CrashDirectory, CrashInode, CrashTree, Node

__all__ = ["CrashFile", "CrashFileSystem", "CrashLock", "CrashWriteMapping"]

OnStep = Callable[[str, str], None]


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class CrashFile:
    """An open file of a `CrashFileSystem`."""

    def __init__(self, path: str, fs: CrashFileSystem, inode: CrashInode, *, writable: bool) -> None:
        self.path = path
        self._fs = fs
        self._inode = inode
        self._writable = writable
        self._closed = False

    def _require(self, *, writable: bool) -> None:
        if self._closed or (writable and not self._writable):
            raise _error(errno.EBADF, self.path)

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to *size* bytes at *offset*; fewer only at the end of the file."""
        self._require(writable=False)
        with self._fs.guard:
            return self._inode.read(size, offset)

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of *data* at *offset*. Visible to readers on return, not durable."""
        self._require(writable=True)
        self._fs.step("pwrite", self.path)
        with self._fs.guard:
            self._inode.write(memoryview(data).cast("B"), offset)
            self._inode.modified_ns = self._fs.clock.now_ns()

    def pwritev(self, parts: Sequence[Buffer], offset: int, size: int = -1) -> None:  # noqa: ARG002
        """Write the concatenated *parts* at *offset*, as one step named ``pwrite``."""
        self.pwrite(b"".join(parts), offset)

    def truncate(self, size: int) -> None:
        """Set the file's length. Not durable until a sync."""
        self._require(writable=True)
        self._fs.step("truncate", self.path)
        with self._fs.guard:
            self._inode.truncate(size)

    def reserve(self, start: int, length: int) -> None:
        """Grow the file to at least ``start + length``."""
        self._require(writable=True)
        self._fs.step("reserve", self.path)
        with self._fs.guard:
            self._inode.truncate(max(self._inode.size, start + length))

    def size(self) -> int:
        """Return the length in bytes."""
        self._require(writable=False)
        return self._inode.size

    def sync_data(self) -> None:
        """Make contents and length durable, but not the file's name."""
        self._sync(metadata=False)

    def sync(self) -> None:
        """Make contents, length and mode durable, but not the file's name."""
        self._sync(metadata=True)

    def _sync(self, *, metadata: bool) -> None:
        self._require(writable=False)
        self._fs.step("sync", self.path)
        with self._fs.guard:
            self._inode.sync(metadata=metadata)

    def map_write(self) -> CrashWriteMapping:
        """Map the file for writing: stores are visible immediately, and durable only after a sync."""
        self._require(writable=True)
        with self._fs.guard:
            return CrashWriteMapping(self, self._inode, self._fs.guard)

    def lose_unsynced(self) -> None:
        """
        Fail a sync as kernels do: unsynced blocks count as clean, stay visible, and never reach the disk.

        `FaultFileSystem` calls this when it fails a sync. A log that just syncs again and continues then loses data.
        """
        with self._fs.guard:
            self._inode.lose_unsynced()

    def set_mode(self, mode: int) -> None:
        """Set permission bits; durable after `sync`, not after `sync_data`."""
        self._require(writable=False)
        self._fs.step("set_mode", self.path)
        with self._fs.guard:
            self._inode.mode = mode

    def close(self) -> None:
        """Close this handle. Idempotent. Makes nothing durable."""
        self._closed = True


class CrashWriteMapping:
    """A writable mapping. A power loss between two steps keeps any choice of the blocks that were stored to."""

    def __init__(self, file: CrashFile, inode: CrashInode, guard: threading.RLock) -> None:
        self._file = file
        self._inode = inode
        self._guard = guard
        self._memory: bytearray | None = inode.map_write()

    def view(self) -> memoryview:
        """Return the complete file as a writable view."""
        if self._memory is None:
            raise StoreClosedError("the mapping was closed; map the file again")
        return memoryview(self._memory)

    def store(self, start: int, data: Buffer) -> None:
        """Store *data* at *start*, as through the view."""
        self.view()[start : start + len(data)] = data

    def touch(self, start: int, end: int) -> None:
        """Write the bytes from *start* to *end* again, unchanged."""
        with self._guard:
            self._inode.touch(start, end)

    def sync(self) -> None:
        """Make all stores durable."""
        self._file.sync_data()

    def close(self) -> None:
        """Release the mapping. Later stores through existing views are lost. Idempotent."""
        if self._memory is not None:
            self._memory = None
            with self._guard:
                self._inode.unmap()


class CrashLock:
    """A held lock. In a clone the lock is free."""

    def __init__(self, fs: CrashFileSystem, inode: CrashInode) -> None:
        self._fs = fs
        self._inode = inode

    def release(self) -> None:
        """Release the lock. Idempotent."""
        with self._fs.guard:
            if self._fs.locks.get(self._inode) is self:
                del self._fs.locks[self._inode]


class CrashFileSystem:
    """
    A `FileSystem` in memory that tracks what is durable. Thread-safe. ``/`` exists, and relative paths are below it.

    Attributes:
        on_step: called as ``on_step(op, path)`` before each operation that changes anything: ``create``, ``pwrite``
            (also gathered), ``truncate``, ``reserve``, ``set_mode``, ``sync`` (both kinds), ``rename`` and ``link``
            (with the target's path), ``remove``, ``rmdir``, ``mkdir``, ``sync_dir``, ``lock``. It may clone, block, or
            raise; if it raises, the operation does not happen. It runs outside the file system's lock.
        steps: the number of such operations.
        clock: provides modification times.
        free: the result of `free_bytes`. The file system never fills up; `FaultFileSystem` simulates ENOSPC.
    """

    def __init__(
        self, *, clock: Clock = SYSTEM_CLOCK, on_step: OnStep | None = None, tree: CrashTree | None = None
    ) -> None:
        self.clock = clock
        self.on_step = on_step
        self.steps = 0
        self.free = 1 << 40
        self.guard = threading.RLock()
        self.locks: dict[CrashInode, CrashLock] = {}
        self._tree = tree or CrashTree(CrashDirectory(1, 0o700, clock.now_ns()))

    def step(self, op: str, path: str) -> None:
        """Count an operation before it happens, and call `on_step`."""
        with self.guard:
            self.steps += 1
        if self.on_step is not None:
            self.on_step(op, path)

    # ---- clones

    def clone_after_crash(self, seed: int) -> CrashFileSystem:
        """
        Return the disk after a power loss: everything synced, and a choice of the rest.

        Seed 0 keeps nothing unsynced, seed 1 everything, every other seed makes its own choice at each step: per block,
        per length, per mode, per changed name. A rename is atomic; it never loses both names.
        """
        with self.guard:
            return self._clone(self._tree.after_crash(Chance(seed, self.steps)))

    def clone_after_kill(self) -> CrashFileSystem:
        """Return the disk after a kill of the process: everything visible, with the same unsynced state."""
        with self.guard:
            return self._clone(self._tree.after_kill())

    def _clone(self, tree: CrashTree) -> CrashFileSystem:
        clone = CrashFileSystem(clock=self.clock, tree=tree)
        clone.free = self.free
        clone.steps = self.steps
        return clone

    # ---- names

    def _find(self, path: str) -> Node:
        node: Node = self._tree.root
        for part in path.split("/"):
            if part in {"", "."}:
                continue
            if isinstance(node, CrashInode):
                raise _error(errno.ENOTDIR, path)
            child = node.children.get(part)
            if child is None:
                raise _error(errno.ENOENT, path)
            node = child
        return node

    def _find_directory(self, path: str) -> CrashDirectory:
        node = self._find(path)
        if isinstance(node, CrashInode):
            raise _error(errno.ENOTDIR, path)
        return node

    def _find_file(self, path: str) -> CrashInode:
        node = self._find(path)
        if isinstance(node, CrashDirectory):
            raise _error(errno.EISDIR, path)
        return node

    def _parent(self, path: str) -> tuple[CrashDirectory, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        try:
            return self._find_directory(parent), name
        except OSError as error:
            error.filename = path
            raise

    def _create(self, path: str, mode: int) -> CrashInode:
        directory, name = self._parent(path)
        if name in directory.children:
            raise _error(errno.EEXIST, path)
        inode = CrashInode(self._tree.next_number(), mode, self.clock.now_ns(), synced_mode=mode)
        self._tree.add(directory, name, inode)
        return inode

    # ---- the port

    def open_read(self, path: str) -> CrashFile:
        """Open an existing file for reading."""
        with self.guard:
            return CrashFile(path, self, self._find_file(path), writable=False)

    def open_write(self, path: str) -> CrashFile:
        """Open an existing file for reading and writing; PermissionError if its mode forbids that, even for root."""
        with self.guard:
            inode = self._find_file(path)
            if not inode.mode & 0o200:
                raise _error(errno.EACCES, path)
            return CrashFile(path, self, inode, writable=True)

    def create(self, path: str, *, mode: int = 0o600) -> CrashFile:
        """Create a new file for reading and writing; FileExistsError when there is one."""
        self.step("create", path)
        with self.guard:
            return CrashFile(path, self, self._create(path, mode), writable=True)

    def create_or_truncate(self, path: str, *, mode: int = 0o600) -> CrashFile:
        """Open for reading and writing, emptied; created when missing."""
        self.step("create", path)
        with self.guard:
            if not self.exists(path):
                return CrashFile(path, self, self._create(path, mode), writable=True)
            file = self.open_write(path)
            inode = self._find_file(path)
            inode.truncate(0)
            inode.mode = mode
            return file

    def map_read(self, path: str) -> ReadMapping:
        """Return the present contents of the file; later changes are not visible in it."""
        with self.guard:
            inode = self._find_file(path)
            return ReadMapping(inode.read(inode.size, 0))

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing *target*. Durable after a sync of the source directory."""
        self.step("rename", target)
        with self.guard:
            from_directory, from_name = self._parent(source)
            node = from_directory.children.get(from_name)
            if node is None:
                raise _error(errno.ENOENT, source)
            to_directory, to_name = self._parent(target)
            replaced = to_directory.children.get(to_name)
            if replaced is node:
                return
            if isinstance(replaced, CrashDirectory):
                raise _error(errno.EISDIR, target)
            self._tree.move(from_directory, from_name, to_directory, to_name)

    def link(self, source: str, target: str) -> None:
        """Give a file a further name. Durable after a sync of that name's directory."""
        self.step("link", target)
        with self.guard:
            inode = self._find_file(source)
            directory, name = self._parent(target)
            if name in directory.children:
                raise _error(errno.EEXIST, source)
            self._tree.add(directory, name, inode)

    def remove(self, path: str) -> None:
        """Unlink. Durable after a sync of its directory. Open handles and mappings stay valid."""
        self.step("remove", path)
        with self.guard:
            self._find_file(path)
            self._tree.take(*self._parent(path))

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory. Durable after a sync of its parent."""
        self.step("rmdir", path)
        with self.guard:
            if self._find_directory(path).children:
                raise _error(errno.ENOTEMPTY, path)
            self._tree.take(*self._parent(path))

    def sync_dir(self, path: str) -> None:
        """Make the names in directory *path* durable, but not the contents of the files."""
        self.step("sync_dir", path)
        with self.guard:
            self._tree.sync(self._find_directory(path))

    def make_dirs(self, path: str, *, mode: int = 0o700) -> None:
        """Create *path* and its missing parents, each durable on return. Existing ones are left alone."""
        made = "/" if path.startswith("/") else ""
        for part in path.split("/"):
            if part in {"", "."}:
                continue
            parent, made = made, f"{made}{part}"
            if not self.exists(made):
                self.step("mkdir", made)
                with self.guard:
                    directory, name = self._parent(made)
                    if name not in directory.children:
                        self._tree.add(
                            directory, name, CrashDirectory(self._tree.next_number(), mode, self.clock.now_ns())
                        )
            # Even if it existed: an earlier run may have been killed before this sync.
            self.sync_dir(parent)
            made += "/"
        self._find_directory(path)

    def list_dir(self, path: str) -> list[str]:
        """Return the names in *path*, sorted."""
        with self.guard:
            return sorted(self._find_directory(path).children)

    def stat(self, path: str) -> FileStat:
        """Return size, times, inode and mode; FileNotFoundError when missing."""
        with self.guard:
            node = self._find(path)
            size = node.size if isinstance(node, CrashInode) else 0
            return FileStat(size, node.modified_ns, node.number, node.mode)

    def exists(self, path: str) -> bool:
        """Return whether *path* is an existing file or directory."""
        with self.guard:
            try:
                self._find(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def read_all(self, path: str, *, size_max: int) -> bytes:
        """Return the contents of a small file; an OSError (EFBIG) when it is larger than *size_max*."""
        with self.guard:
            inode = self._find_file(path)
            if inode.size > size_max:
                raise _error(errno.EFBIG, path)
            return inode.read(inode.size, 0)

    def try_lock(self, path: str, *, note: str) -> CrashLock | None:
        """Take the exclusive lock *path* (created when missing) or return None when it is held."""
        self.step("lock", path)
        with self.guard:
            inode = self._find_file(path) if self.exists(path) else self._create(path, 0o600)
            if inode in self.locks:
                return None
            inode.truncate(0)
            inode.write(memoryview(f"pid {os.getpid()} {note}\n".encode()), 0)
            lock = self.locks[inode] = CrashLock(self, inode)
            return lock

    def free_bytes(self, path: str) -> int:
        """Return `free`, regardless of what is stored."""
        self._find(path)
        return self.free
