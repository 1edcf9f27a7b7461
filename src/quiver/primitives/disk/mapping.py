"""
Mapped files with an owned lifetime.

`mmap.close()` fails while views of it exist, and a view kept past the unmapping would crash the process.
So nothing here unmaps: the map is released with its last reference, which may be the mapping, a view, or an Arrow
buffer made from a view. The file may be closed and unlinked long before; its pages stay until then.
Only files that never change may be mapped for reading: truncating a mapped file kills the process by a signal.
A file that is mapped for writing must also have its blocks: a store into a hole on a full disk ends the same way.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Callable

from quiver.errors import StoreClosedError
from quiver.primitives.disk.file_system import Buffer

__all__ = ["MappedForWriting", "ReadMapping", "map_descriptor", "map_descriptor_for_writing", "release_pages"]

_TOUCH_BYTES = 1 << 20
_WRITE_BYTES = 16 << 10


class ReadMapping:
    """A read-only mapping of a complete file. Not for files that may still shrink."""

    __slots__ = ("_pages",)

    def __init__(self, pages: mmap.mmap | bytes) -> None:
        self._pages: mmap.mmap | bytes | None = pages

    def view(self) -> memoryview:
        """
        Return the whole file as a read-only view, without copying. It outlives `close`.

        Raises:
            StoreClosedError: after `close`.
        """
        if self._pages is None:
            raise StoreClosedError("the mapping was closed")
        return memoryview(self._pages)

    def close(self) -> None:
        """Drop this reference; the pages are released with the last view. Idempotent."""
        self._pages = None


def map_descriptor(fd: int, size: int) -> ReadMapping:
    """
    Map *size* bytes of the open file *fd* read-only; *fd* may be closed as soon as this returns.

    Raises:
        OSError: the file cannot be mapped.
    """
    if size == 0:
        return ReadMapping(b"")  # the kernel refuses an empty map
    return ReadMapping(mmap.mmap(fd, size, access=mmap.ACCESS_READ))


def release_pages(view: memoryview) -> None:
    """Release the memory of the mapping that *view* belongs to. It stays valid and reads from the file again."""
    pages = view.obj
    if sys.platform != "win32" and isinstance(pages, mmap.mmap):
        with contextlib.suppress(OSError):  # then the kernel reclaims the memory when it is needed
            pages.madvise(mmap.MADV_DONTNEED)


class MappedForWriting:
    """
    A writable mapping of a complete file. *sync* makes stores durable, given the pages.

    *write* writes bytes at an offset of the same file if the mapping shows them immediately; None if it does not.
    """

    __slots__ = ("_pages", "_sync", "_write")

    def __init__(
        self,
        pages: mmap.mmap | bytearray,
        sync: Callable[[mmap.mmap | bytearray], None],
        write: Callable[[Buffer, int], None] | None = None,
    ) -> None:
        self._pages: mmap.mmap | bytearray | None = pages
        self._sync = sync
        self._write = write

    def _require(self) -> mmap.mmap | bytearray:
        if self._pages is None:
            raise StoreClosedError("the mapping was closed")
        return self._pages

    def view(self) -> memoryview:
        """
        Return the whole file as a writable view, without copying. It outlives `close`.

        Raises:
            StoreClosedError: after `close`.
        """
        return memoryview(self._require())

    def store(self, start: int, data: Buffer) -> None:
        """
        Store *data* at *start*: as through the view, but many pages in one call if that costs less.

        Raises:
            StoreClosedError: after `close`.
        """
        pages = self._require()
        if self._write is not None and len(data) >= _WRITE_BYTES:
            # After each sync the first store into a page is a fault, which costs more than the copy.
            with contextlib.suppress(OSError):  # a part that was written is written again
                self._write(data, start)
                return
        pages[start : start + len(data)] = data

    def touch(self, start: int, end: int) -> None:
        """
        Write the bytes from *start* to *end* again unchanged, so that the next `sync` writes them to the disk.

        Raises:
            StoreClosedError: after `close`.
        """
        pages = self._require()
        for at in range(start, end, _TOUCH_BYTES):
            stop = min(at + _TOUCH_BYTES, end)
            pages[at:stop] = pages[at:stop]

    def sync(self) -> None:
        """
        Make all stores durable. After an error nothing may be assumed: `touch`, then check, then sync.

        Raises:
            OSError: the disk refused.
            StoreClosedError: after `close`.
        """
        self._sync(self._require())

    def close(self) -> None:
        """Drop this reference; the pages are released with the last view. Idempotent. Makes nothing durable."""
        self._pages = None


def map_descriptor_for_writing(
    fd: int,
    size: int,
    sync: Callable[[mmap.mmap | bytearray], None],
    write: Callable[[Buffer, int], None] | None = None,
) -> MappedForWriting:
    """
    Map *size* bytes of the open file *fd* for writing; *sync* makes its pages durable, *write* writes to the file.

    Raises:
        OSError: the file cannot be mapped.
        ValueError: the file is empty.
    """
    return MappedForWriting(mmap.mmap(fd, size, access=mmap.ACCESS_WRITE), sync, write)
