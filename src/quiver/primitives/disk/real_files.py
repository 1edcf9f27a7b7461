"""The real disk: `RealFileSystem` implements `file_system.FileSystem` with system calls."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
import sys
import threading
import warnings
import weakref
from collections.abc import Sequence

from quiver.primitives.disk.descriptors import KEPT_WITH_A_LOG, RESERVE
from quiver.primitives.disk.disk_full import is_out_of_descriptors
from quiver.primitives.disk.file_system import Buffer, FileStat, NotRegularFileError
from quiver.primitives.disk.mapping import MappedForWriting, ReadMapping, map_descriptor, map_descriptor_for_writing
from quiver.primitives.disk.platform_files import PLATFORM, Platform, call_at_fork

__all__ = ["REAL_FILES", "RealFile", "RealFileSystem"]

_LOCK_ATTEMPTS_MAX = 16

_NO_MODES = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""The errors of disks without permission bits when they are changed, even by the owner of the file."""

_CLOSED = 2**31 - 1
"""Replaces the descriptor after `close`: no descriptor is ever that high, so every call fails with EBADF."""


def _taken(written: int) -> int:
    if not written:
        raise OSError(errno.EIO, "the disk accepts no more bytes and gives no reason")
    return written


class RealFile:
    """
    An open descriptor. Every error carries the path.

    Positions are explicit, so several threads may read while one writes.
    """

    __slots__ = ("__weakref__", "_fd", "_platform", "_pwrite", "_pwritev", "path")

    def __init__(self, path: str, fd: int, platform: Platform) -> None:
        self.path = path
        self._fd = fd
        self._platform = platform
        self._pwrite = platform.pwrite
        self._pwritev = platform.pwritev

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to *size* bytes at *offset*; fewer only at the end of the file."""
        pieces: list[bytes] = []
        try:
            while size > 0:
                piece = self._platform.pread(self._fd, size, offset)
                if len(piece) == size and not pieces:
                    return piece
                if not piece:
                    break
                pieces.append(piece)
                size -= len(piece)
                offset += len(piece)
        except OSError as error:
            error.filename = self.path
            raise
        return b"".join(pieces)

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of *data* at *offset*. Visible to readers on return, not durable."""
        left = data if type(data) is bytes else memoryview(data).cast("B")
        try:
            written = self._pwrite(self._fd, left, offset)
            if written == len(left):
                return
            left = memoryview(left)[written:]
            offset += written
            while left:
                written = _taken(self._pwrite(self._fd, left, offset))
                left = left[written:]
                offset += written
        except OSError as error:
            error.filename = self.path
            raise

    def pwritev(self, parts: Sequence[Buffer], offset: int, size: int = -1) -> None:
        """
        Write all *parts* consecutively at *offset*, in one system call if possible.

        The `len` of each part must be its size in bytes. *size*, their sum, avoids counting them here if the
        caller knows it exactly.
        """
        try:
            written = self._pwritev(self._fd, parts, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or len(parts) <= self._platform.iov_max:
                error.filename = self.path
                raise
            written = 0
        if written != size:
            left = -written
            for part in parts:
                left += len(part)
            if left:
                self._write_rest(parts, offset, written)

    def _write_rest(self, parts: Sequence[Buffer], offset: int, written: int) -> None:
        # A nearly full disk, a file size limit or 2 GiB in one call show up as a short write; the next
        # call then raises the reason. Remove empty parts: a write of only those returns 0, which is not an error.
        skip = written
        left = []
        for part in parts:
            view = memoryview(part)
            if skip < len(view):
                left.append(view[skip:])
                skip = 0
            else:
                skip -= len(view)
        offset += written
        while left:
            try:
                written = _taken(self._pwritev(self._fd, left[: self._platform.iov_max], offset))
            except OSError as error:
                error.filename = self.path
                raise
            offset += written
            done = 0
            while written and written >= len(left[done]):
                written -= len(left[done])
                done += 1
            del left[:done]
            if written:
                left[0] = left[0][written:]

    def truncate(self, size: int) -> None:
        """Set the file's length. Not durable until `sync`."""
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            error.filename = self.path
            raise

    def reserve(self, start: int, length: int) -> None:
        """Reserve blocks, growing the file to ``start + length``; an OSError (ENOTSUP) if that is impossible."""
        try:
            self._platform.reserve(self._fd, start, length)
        except OSError as error:
            error.filename = self.path
            raise

    def size(self) -> int:
        """Return the length in bytes."""
        try:
            return os.fstat(self._fd).st_size
        except OSError as error:
            error.filename = self.path
            raise

    def map(self) -> ReadMapping:
        """Map the complete file read-only. The mapping outlives this file."""
        try:
            return map_descriptor(self._fd, os.fstat(self._fd).st_size)
        except OSError as error:
            if error.errno == errno.ENODEV and stat.S_ISDIR(os.fstat(self._fd).st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.path) from error
            error.filename = self.path
            raise

    def map_write(self) -> MappedForWriting:
        """
        Map a complete file whose blocks are reserved, for writing. The file stays open as long as it is mapped.

        `sync` of the mapping is `sync_data` of this file.
        """
        try:
            write = None if self._platform.has_separate_mappings else self.pwrite
            return map_descriptor_for_writing(self._fd, os.fstat(self._fd).st_size, self._sync_pages, write)
        except OSError as error:
            error.filename = self.path
            raise

    def _sync_pages(self, pages: mmap.mmap | bytearray) -> None:
        if self._platform.has_separate_mappings and isinstance(pages, mmap.mmap):
            pages.flush()
        self.sync_data()

    def sync_data(self) -> None:
        """Make contents and length durable. After an error nothing may be assumed: never retry."""
        try:
            self._platform.sync_data(self._fd)
        except OSError as error:
            error.filename = self.path
            raise

    def sync(self) -> None:
        """Make contents and metadata durable. After an error nothing may be assumed: never retry."""
        try:
            self._platform.sync(self._fd)
        except OSError as error:
            error.filename = self.path
            raise

    def set_mode(self, mode: int) -> None:
        """Set permission bits, regardless of the umask. A disk without them (SMB, FAT) stays unchanged."""
        try:
            self._platform.set_mode(self._fd, self.path, mode)
        except OSError as error:
            if error.errno in _NO_MODES:
                return
            error.filename = self.path
            raise

    def close(self) -> None:
        """Release the descriptor. Idempotent. Makes nothing durable."""
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            RESERVE.close(fd)

    def __del__(self) -> None:
        if self._fd != _CLOSED:
            warnings.warn(f"{self.path} was never closed", ResourceWarning, source=self, stacklevel=2)
            self.close()


class RealLock:
    """A held lock: an open descriptor that the kernel closes when the process dies."""

    __slots__ = ("__weakref__", "_fd", "_platform")

    def __init__(self, fd: int, platform: Platform) -> None:
        self._fd = fd
        self._platform = platform

    def release(self) -> None:
        """Release the lock. Idempotent. The file stays: otherwise two holders could lock two files of one name."""
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            try:
                self._platform.unlock(fd)
            finally:
                os.close(fd)

    def __del__(self) -> None:
        if self._fd != _CLOSED:
            warnings.warn("a lock was never released", ResourceWarning, source=self, stacklevel=2)
            self.release()

    def forget(self) -> None:
        """Close the descriptor without unlocking: in a forked child the lock is still the parent's."""
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            os.close(fd)


_open_locks: weakref.WeakSet[RealLock] = weakref.WeakSet()
_open_locks_guard = threading.Lock()


def _forget_inherited_locks() -> None:
    # A flock belongs to the open file, which a forked child shares: if the parent dies and the child lives on,
    # the directory would stay locked by a process that never requested it.
    for lock in list(_open_locks):
        lock.forget()
    _open_locks.clear()


call_at_fork(
    before=_open_locks_guard.acquire,
    after_in_parent=_open_locks_guard.release,
    after_in_child=_open_locks_guard.release,
)
call_at_fork(after_in_child=_forget_inherited_locks)


def _not_regular(path: str) -> NotRegularFileError:
    return NotRegularFileError(errno.ENXIO, "not a regular file", path)


def _require_regular(found: os.stat_result, path: str) -> None:
    # A directory may be opened; the kernel refuses to read it, and `RealFile.map` refuses to map it.
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise _not_regular(path)


class RealFileSystem:
    """The operations of the machine's file system. Stateless; one instance serves all threads."""

    def __init__(self, platform: Platform = PLATFORM) -> None:
        self._platform = platform

    def _open_descriptor(self, path: str, flags: int, mode: int) -> int:
        """
        Open *path* if it is a regular file or a directory, without waiting.

        An ordinary open of a pipe waits for its other end, and reading a device may never end.
        """
        flags |= self._platform.open_flags
        try:
            fd = os.open(path, flags, mode)
        except BlockingIOError:
            # A file server has a lease on the file. It was asked to return it; an ordinary open waits for that.
            _require_regular(os.lstat(path), path)
            fd = os.open(path, flags & ~getattr(os, "O_NONBLOCK", 0), mode)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket, or a device without a driver
                raise _not_regular(path) from error
            raise
        try:
            _require_regular(os.fstat(fd), path)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _open(self, path: str, flags: int, mode: int = 0o600) -> RealFile:
        if flags & os.O_RDWR:
            fd = RESERVE.open(lambda: self._open_descriptor(path, flags, mode))
        else:
            fd = self._open_descriptor(path, flags, mode)
        file = RealFile(path, fd, self._platform)
        if flags & os.O_CREAT:
            try:
                file.set_mode(mode)  # the umask removed bits
            except OSError:
                file.close()
                raise
        return file

    def open_read(self, path: str) -> RealFile:
        """Open an existing file for reading."""
        return self._open(path, os.O_RDONLY)

    def open_write(self, path: str) -> RealFile:
        """Open an existing file for reading and writing."""
        return self._open(path, os.O_RDWR)

    def create(self, path: str, *, mode: int = 0o600) -> RealFile:
        """
        Create a new file for reading and writing; FileExistsError if it exists.

        The name is durable only after `sync_dir` of its directory.
        """
        return self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def create_or_truncate(self, path: str, *, mode: int = 0o600) -> RealFile:
        """Open for reading and writing, emptied; created if missing. For temporary files."""
        return self._open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    def map_read(self, path: str) -> ReadMapping:
        """Map an existing, immutable file read-only. An empty file maps to an empty view."""
        file = self.open_read(path)
        try:
            return file.map()
        finally:
            file.close()

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing *target*. Atomic for readers; durable only after `sync_dir`."""
        self._platform.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """
        Give the file *source*, which is never written to again, the additional name *target*.

        FileExistsError if that name exists; another OSError if files cannot have two names.
        """
        os.link(source, target)

    def remove(self, path: str) -> None:
        """Unlink. Durable only after `sync_dir`."""
        self._platform.remove(path)

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory. Durable only after `sync_dir` of its parent."""
        os.rmdir(path)  # noqa: PTH106

    def sync_dir(self, path: str) -> None:
        """Make the names in directory *path* durable."""
        try:
            RESERVE.open(lambda: self._platform.sync_directory(path or ".", RESERVE.close))
        except OSError as error:
            if is_out_of_descriptors(error) and self._platform.sync_all is not None:
                # A rename cannot be undone, so its sync must not fail for lack of a descriptor.
                self._platform.sync_all()
                return
            error.filename = path
            raise

    def make_dirs(self, path: str, *, mode: int = 0o700) -> None:
        """Create *path* and its missing parents, each durable on return. Existing ones stay unchanged."""
        missing = []
        deepest = os.path.abspath(path)  # noqa: PTH100
        while not self.exists(deepest):
            missing.append(deepest)
            deepest = os.path.dirname(deepest)  # noqa: PTH120
        # 1. An earlier run created a directory and was killed before it synced the parent. 2. This run finds it.
        # 3. A power loss removes it with everything in it. So the deepest existing one is synced, too.
        parent = os.path.dirname(deepest)  # noqa: PTH120
        try:
            self.sync_dir(parent)
        except OSError as error:
            # A parent that we may not read, or that cannot be changed, is not one that we wrote into.
            if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
                raise
        for directory in reversed(missing):
            try:
                os.mkdir(directory, mode)  # noqa: PTH102
                os.chmod(directory, mode)  # noqa: PTH101 - the umask took bits away
            except FileExistsError:
                pass  # another process created it just now; its name is synced below anyway
            except OSError as error:
                if error.errno not in _NO_MODES or not os.path.isdir(directory):  # noqa: PTH112
                    raise
            self.sync_dir(os.path.dirname(directory))  # noqa: PTH120
        if not os.path.isdir(path):  # noqa: PTH112
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)

    def list_dir(self, path: str) -> list[str]:
        """Return the names in *path*, sorted."""
        return sorted(RESERVE.open(lambda: os.listdir(path)))  # noqa: PTH208

    def stat(self, path: str) -> FileStat:
        """Return size, times, inode and mode; FileNotFoundError if missing."""
        found = os.stat(path)  # noqa: PTH116
        return FileStat(found.st_size, found.st_mtime_ns, found.st_ino, found.st_mode & 0o7777)

    def exists(self, path: str) -> bool:
        """Return whether *path* names a file or directory."""
        try:
            os.stat(path)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read_all(self, path: str, *, size_max: int) -> bytes:
        """Return the contents of a small file; an OSError (EFBIG) if it is larger than *size_max*."""
        file = self.open_read(path)
        try:
            # The size is checked first, or a file that is too large would be read up to the limit. Kernel files
            # have size 0, and any file may grow, so the bytes read are checked as well.
            size = file.size()
            # A block of `size_max` would be mapped for each call, page by page; one of the file's size is often reused.
            data = file.pread(size + 1, 0) if size <= size_max else b""
            if len(data) > size:
                data += file.pread(size_max + 1 - len(data), len(data))
        finally:
            file.close()
        if max(size, len(data)) > size_max:
            raise OSError(errno.EFBIG, f"larger than {size_max} bytes", path)
        return data

    def try_lock(self, path: str, *, note: str) -> RealLock | None:
        """
        Take the exclusive lock *path* (created if missing) or return None if another holder has it.

        The kernel releases it when the holder dies. The file contains ``pid <number> <note>``, for the operator. A
        forked child does not hold its parent's locks.
        """
        flags = os.O_RDWR | os.O_CREAT
        for _ in range(_LOCK_ATTEMPTS_MAX):
            # A thread that forks between the open and the registration would leave the lock to the child.
            with _open_locks_guard:
                fd = self._open_descriptor(path, flags, 0o600)
                lock = self._try_lock_descriptor(fd, path)
                if lock is None:
                    return None
                _open_locks.add(lock)
            RESERVE.keep(KEPT_WITH_A_LOG)  # every process that takes a lock writes
            if not self._still_named(fd, path):
                lock.release()  # the file was removed between the open and the lock: that lock protects nothing
                continue
            try:
                os.ftruncate(fd, 0)
                self._platform.pwrite(fd, f"pid {os.getpid()} {note}\n".encode(), 0)
            except OSError as error:
                lock.release()
                error.filename = path
                raise
            return lock
        raise OSError(errno.EBUSY, "the lock file is being replaced again and again", path)

    def _try_lock_descriptor(self, fd: int, path: str) -> RealLock | None:
        try:
            is_locked = self._platform.lock(fd)
        except OSError as error:
            os.close(fd)
            error.filename = path
            raise
        if not is_locked:
            os.close(fd)
            return None
        return RealLock(fd, self._platform)

    def _still_named(self, fd: int, path: str) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(path))  # noqa: PTH116
        except FileNotFoundError:
            return False

    def free_bytes(self, path: str) -> int:
        """Return the bytes that an ordinary user may still write below *path*; `sys.maxsize` if unknown."""
        usage = shutil.disk_usage(path)
        return usage.free if usage.total else sys.maxsize  # some user-space file systems report nothing


REAL_FILES = RealFileSystem()
"""The file system of this machine."""
