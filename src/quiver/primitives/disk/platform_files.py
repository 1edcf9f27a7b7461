"""
The differences between operating systems, behind one interface, chosen at import.

================  ============================  =========================  ==============================
operation         Linux                         macOS                      Windows
================  ============================  =========================  ==============================
`sync_data`       fdatasync                     fcntl F_FULLFSYNC          FlushFileBuffers (`os.fsync`)
`sync_directory`  fsync of the directory        F_FULLFSYNC of it          nothing: NTFS logs its names
`lock`            flock                         flock                      byte-range lock beyond the end
`reserve`         posix_fallocate               F_PREALLOCATE, truncate    unsupported
positioned I/O    pread, pwrite, pwritev        the same                   seek and write under a lock
rename, remove    unchanged                     unchanged                  clear the read-only attribute first
================  ============================  =========================  ==============================

The system modules (`fcntl`, `msvcrt`) are parameters, so that each class can be tested on any machine.
"""

from __future__ import annotations

import errno
import importlib
import os
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.kernel import KERNEL

__all__ = ["PLATFORM", "LinuxFiles", "MacFiles", "Platform", "WindowsFiles", "call_at_fork", "choose_platform"]


def _call(name: str) -> Any:
    # Some names exist only on some systems; on the others they are never used.
    return getattr(os, name, None)


class Platform(Protocol):
    """The operations that `RealFileSystem` needs from the operating system. Errors are plain `OSError`."""

    open_flags: int
    """Added to the flags of every open: not inherited, no symbolic links, no waiting, no text mode."""

    iov_max: int
    """The maximum number of parts of one gathered write."""

    sync_all: Callable[[], None] | None
    """Make everything on all disks durable, without a descriptor; None if the call does not wait."""

    has_separate_mappings: bool
    """Whether stores into a mapping reach the file only after the mapping is flushed."""

    def pread(self, fd: int, size: int, offset: int, /) -> bytes:
        """Read up to *size* bytes at *offset*."""

    def pwrite(self, fd: int, data: Buffer, offset: int, /) -> int:
        """Write at *offset*; return how many bytes were written."""

    def pwritev(self, fd: int, parts: Sequence[Buffer], offset: int, /) -> int:
        """Write *parts* consecutively at *offset*; return how many bytes were written."""

    def sync_data(self, fd: int) -> None:
        """Make contents and length durable, through the drive's own cache."""

    def sync(self, fd: int) -> None:
        """Make contents and all metadata durable, through the drive's own cache."""

    def sync_directory(self, path: str, close: Callable[[int], None] = os.close) -> None:
        """Make the names in *path* durable. *close* closes a descriptor."""

    def set_mode(self, fd: int, path: str, mode: int) -> None:
        """Set the permission bits of an open file."""

    def lock(self, fd: int) -> bool:
        """Take the exclusive lock of an open file; False if another holder has it."""

    def unlock(self, fd: int) -> None:
        """Release the lock."""

    def reserve(self, fd: int, start: int, length: int) -> None:
        """Reserve blocks, growing the file to ``start + length``; an OSError (ENOTSUP) if that is impossible."""

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing *target*."""

    def remove(self, path: str) -> None:
        """Unlink, even if the file is read-only."""


class LinuxFiles:
    """Linux and other POSIX systems."""

    open_flags = (
        getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    )  # fmt: skip
    sync_all: Callable[[], None] | None = _call("sync") if sys.platform == "linux" else None  # elsewhere asynchronous
    has_separate_mappings = False  # one page cache: fdatasync includes the pages that a mapping has modified
    iov_max = os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in getattr(os, "sysconf_names", {}) else 16

    # Without a wrapper: this is the hottest path of every log.
    pread = staticmethod(_call("pread"))
    pwrite = staticmethod(_call("pwrite"))
    pwritev = staticmethod(_call("pwritev") if KERNEL is None else KERNEL.pwritev)
    rename = staticmethod(os.replace)  # noqa: TID251
    remove = staticmethod(os.remove)

    def __init__(self, fcntl: Any) -> None:
        self._fcntl = fcntl

    def sync_data(self, fd: int) -> None:
        """Make contents and length durable: fdatasync."""
        os.fdatasync(fd)

    def sync(self, fd: int) -> None:
        """Make contents and metadata durable: fsync."""
        os.fsync(fd)  # noqa: TID251

    def sync_directory(self, path: str, close: Callable[[int], None] = os.close) -> None:
        """Make the names in *path* durable: fsync of the directory."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(fd)
        finally:
            close(fd)

    def set_mode(self, fd: int, path: str, mode: int) -> None:  # noqa: ARG002
        """Set the permission bits exactly, regardless of the umask."""
        os.fchmod(fd, mode)

    def lock(self, fd: int) -> bool:
        """Take the exclusive flock of an open file; False if another holder has it."""
        try:
            self._fcntl.flock(fd, self._fcntl.LOCK_EX | self._fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, fd: int) -> None:
        """Release the flock."""
        self._fcntl.flock(fd, self._fcntl.LOCK_UN)

    def reserve(self, fd: int, start: int, length: int) -> None:
        """Reserve blocks: posix_fallocate. glibc writes real blocks where the file system cannot reserve."""
        os.posix_fallocate(fd, start, length)


class MacFiles(LinuxFiles):
    """macOS: fsync reaches the drive but not the platter, and posix_fallocate is missing."""

    sync_all = None
    has_separate_mappings = True
    F_FULLFSYNC = 51
    F_PREALLOCATE = 42
    F_ALLOCATEALL = 4
    F_PEOFPOSMODE = 3
    FSTORE = struct.Struct("=IiqqQ")
    """fst_flags, fst_posmode, fst_offset, fst_length, fst_bytesalloc."""

    def sync_data(self, fd: int) -> None:
        """Make contents and metadata durable; macOS does not distinguish the two."""
        self.sync(fd)

    def sync(self, fd: int) -> None:
        """Make contents and metadata durable: F_FULLFSYNC, or fsync on volumes that do not support it."""
        try:
            self._fcntl.fcntl(fd, self.F_FULLFSYNC)
        except OSError as error:
            # Network volumes refuse the request itself. Any other error is a failed sync and stays one.
            if error.errno not in {errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}:
                raise
            os.fsync(fd)  # noqa: TID251

    def reserve(self, fd: int, start: int, length: int) -> None:
        """Reserve blocks after the end of the file, then grow it: F_PREALLOCATE and ftruncate."""
        size = os.fstat(fd).st_size
        missing = start + length - size
        if missing > 0:
            request = self.FSTORE.pack(self.F_ALLOCATEALL, self.F_PEOFPOSMODE, 0, missing, 0)
            self._fcntl.fcntl(fd, self.F_PREALLOCATE, request)
            os.ftruncate(fd, size + missing)


class WindowsFiles:
    """Windows: no positioned I/O, no directory handles to sync, mandatory byte-range locks."""

    LOCK_OFFSET = 1 << 30
    """Range locks are mandatory: a byte far after the end is locked, so that the note stays readable."""

    sync_all: Callable[[], None] | None = None
    has_separate_mappings = True
    open_flags = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOINHERIT", 0)
    iov_max = 1024

    def __init__(self, msvcrt: Any) -> None:
        self._msvcrt = msvcrt
        self._position = threading.Lock()

    def pread(self, fd: int, size: int, offset: int, /) -> bytes:
        """Read up to *size* bytes at *offset*; the descriptor's position is shared, hence the lock."""
        with self._position:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.read(fd, size)

    def pwrite(self, fd: int, data: Buffer, offset: int, /) -> int:
        """Write at *offset*; return how many bytes were written."""
        with self._position:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.write(fd, data)

    def pwritev(self, fd: int, parts: Sequence[Buffer], offset: int, /) -> int:
        """Join *parts* and write them at *offset* in one call: a concurrent reader must never see half of them."""
        return self.pwrite(fd, b"".join(parts), offset)

    def sync_data(self, fd: int) -> None:
        """Make contents and metadata durable: `os.fsync` is FlushFileBuffers."""
        self.sync(fd)

    def sync(self, fd: int) -> None:
        """Make contents and metadata durable: `os.fsync` is FlushFileBuffers."""
        os.fsync(fd)  # noqa: TID251

    def sync_directory(self, path: str, close: Callable[[int], None] = os.close) -> None:
        """Do nothing: a directory cannot be opened for syncing, and NTFS logs changes of names in order."""

    def set_mode(self, fd: int, path: str, mode: int) -> None:  # noqa: ARG002
        """Set or clear the read-only attribute; there are no other bits."""
        os.chmod(path, mode)  # noqa: PTH101

    def lock(self, fd: int) -> bool:
        """Lock one byte after the end; False if another holder has it."""
        with self._position:
            os.lseek(fd, self.LOCK_OFFSET, os.SEEK_SET)
            try:
                self._msvcrt.locking(fd, self._msvcrt.LK_NBLCK, 1)
            except OSError as error:
                if error.errno not in {errno.EACCES, errno.EDEADLK}:
                    raise
                return False
            return True

    def unlock(self, fd: int) -> None:
        """Unlock that byte."""
        with self._position:
            os.lseek(fd, self.LOCK_OFFSET, os.SEEK_SET)
            self._msvcrt.locking(fd, self._msvcrt.LK_UNLCK, 1)

    def reserve(self, fd: int, start: int, length: int) -> None:  # noqa: ARG002
        """
        Refuse: only writing would reserve the blocks.

        Raises:
            OSError: ENOTSUP, always.
        """
        raise OSError(errno.ENOTSUP, "this system cannot reserve blocks")

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing *target*, which may be read-only."""
        self._make_writable(target)
        os.replace(source, target)  # noqa: PTH105, TID251

    def remove(self, path: str) -> None:
        """Unlink, even if the file is read-only."""
        self._make_writable(path)
        os.remove(path)  # noqa: PTH107

    def _make_writable(self, path: str) -> None:
        # Sealed files have the read-only attribute; Windows then refuses to replace or delete them.
        try:
            os.chmod(path, 0o600)  # noqa: PTH101
        except FileNotFoundError:
            return


def choose_platform(name: str) -> Platform:
    """Return the `Platform` for a `sys.platform` name."""
    if name == "win32":
        return WindowsFiles(importlib.import_module("msvcrt"))
    fcntl = importlib.import_module("fcntl")
    return MacFiles(fcntl) if name == "darwin" else LinuxFiles(fcntl)


def call_at_fork(**functions: Callable[[], object]) -> None:
    """Register functions for `os.fork` (``before``, ``after_in_parent``, ``after_in_child``), if it exists."""
    register = _call("register_at_fork")
    if register is not None:
        register(**functions)


PLATFORM = choose_platform(sys.platform)
"""The system this process runs on."""
