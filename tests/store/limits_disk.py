"""A disk of a few kilobytes: it refuses writes that do not fit, after writing a part, as file systems do."""

from __future__ import annotations

import errno
import os

from quiver.primitives.disk.file_system import Buffer
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFile, FaultFileSystem

BLOCK = 16
"""The size of an empty file."""


class SmallDisk(FaultFileSystem):
    """A file system with space for `capacity` bytes. Removed files free their space at once."""

    def __init__(self, capacity: int) -> None:
        self.inner = CrashFileSystem()
        self.capacity = capacity
        super().__init__(self.inner)

    def used(self, path: str = "/") -> int:
        try:
            names = self.inner.list_dir(path)
        except NotADirectoryError:
            return self.inner.stat(path).size_bytes + BLOCK
        return sum(self.used(f"{path.rstrip('/')}/{name}") for name in names)

    def need(self, nbytes: int, path: str) -> None:
        if nbytes > 0 and self.used() + nbytes > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def open_write(self, path: str) -> SmallFile:
        return SmallFile(self.inner.open_write(path), self)

    def create(self, path: str, *, mode: int = 0o600) -> SmallFile:
        self.need(BLOCK, path)
        return SmallFile(self.inner.create(path, mode=mode), self)

    def create_or_truncate(self, path: str, *, mode: int = 0o600) -> SmallFile:
        if not self.inner.exists(path):
            self.need(BLOCK, path)
        return SmallFile(self.inner.create_or_truncate(path, mode=mode), self)


class SmallFile(FaultFile):
    """An open file of a `SmallDisk`."""

    def __init__(self, inner, fs: SmallDisk) -> None:
        super().__init__(inner, fs)
        self._disk = fs

    def pwrite(self, data: Buffer, offset: int) -> None:
        view = memoryview(data).cast("B")
        growth = offset + len(view) - self._inner.size()
        try:
            self._disk.need(growth, self.path)
        except OSError:
            fits = self._disk.capacity - self._disk.used() + len(view) - growth
            if 0 < fits < len(view):
                self._inner.pwrite(view[:fits], offset)
            raise
        self._inner.pwrite(view, offset)

    def reserve(self, start: int, length: int) -> None:
        self._disk.need(start + length - self._inner.size(), self.path)
        super().reserve(start, length)
