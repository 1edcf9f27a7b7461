"""
Mapped files with an owned lifetime.

`mmap.close()` fails while views of it exist, and a view kept past the unmapping would crash the process.
Here nobody unmaps: the map is dropped by its last reference, be that the mapping, a view, or an Arrow
buffer made from a view. The file may be closed and unlinked long before; its pages stay until then.
Only files that never change may be mapped: a file cut short under its map kills the process by signal.
"""

from __future__ import annotations

import mmap

from quiver.errors import StoreClosed

__all__ = ["ReadMapping", "map_descriptor"]


class ReadMapping:
    """
    A read-only mapping of a whole file. Not for files that may still shrink.
    """

    __slots__ = ("_pages",)

    def __init__(self, pages: mmap.mmap | bytes) -> None:
        self._pages: mmap.mmap | bytes | None = pages

    def view(self) -> memoryview:
        """
        Return the whole file as a read-only view, without copying. It outlives `close`.

        Raises:
            StoreClosed: after `close`.
        """
        if self._pages is None:
            raise StoreClosed("the mapping was closed")
        return memoryview(self._pages)

    def close(self) -> None:
        """
        Drop this reference; the pages go when the last view goes. Idempotent.
        """
        self._pages = None


def map_descriptor(fd: int, size: int) -> ReadMapping:
    """
    Map *size* bytes of the open file *fd* read-only; *fd* may be closed as soon as this returns.

    Raises:
        OSError: the file cannot be mapped.
    """
    if size == 0:
        return ReadMapping(b"")  # an empty map is refused by the kernel
    return ReadMapping(mmap.mmap(fd, size, access=mmap.ACCESS_READ))
