"""
Read bytes one field at a time, never past the end; and the padding between fields.

`Cursor` is for decoders of small complete records: it checks every step against the end of its view, so a length read
from disk cannot lead outside. A decoder turns `ShortageError` into `NeedMore` or `Damage`; the error never leaves it.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from quiver.errors import QuiverError
from quiver.primitives.disk.file_system import Buffer

__all__ = ["Cursor", "ShortageError", "align_up", "padding"]


class ShortageError(QuiverError):
    """A field would end `missing` bytes after the end of the view; the cursor has not moved."""

    def __init__(self, offset: int, missing: int) -> None:
        super().__init__(f"{missing} bytes are missing at offset {offset}")
        self.offset = offset
        self.missing = missing


class Cursor:
    """
    A position in a view that only moves forward, and only within the view.

    Args:
        data: any contiguous buffer; it is not copied.
        offset: where to start; at most the buffer's length.
    """

    __slots__ = ("_end", "_view", "offset")

    def __init__(self, data: Buffer, offset: int = 0) -> None:
        self._view = memoryview(data).cast("B").toreadonly()
        self._end = len(self._view)
        self.offset = 0
        self.skip(offset)

    @property
    def remaining(self) -> int:
        """Bytes between the position and the end."""
        return self._end - self.offset

    def skip(self, size: int) -> None:
        """
        Move *size* bytes forward.

        Raises:
            ShortageError: there are not that many, or *size* is negative.
        """
        if size < 0 or size > self._end - self.offset:
            raise ShortageError(self.offset, max(1, size - self.remaining))
        self.offset += size

    def take(self, layout: Struct) -> tuple[Any, ...]:
        """
        Return the fields of *layout* and move past them.

        Raises:
            ShortageError: they would end after the view.
        """
        start = self.offset
        self.skip(layout.size)
        return layout.unpack_from(self._view, start)

    def view(self, size: int) -> memoryview:
        """
        Return the next *size* bytes as a read-only view, without copying, and move past them.

        Raises:
            ShortageError: there are not that many, or *size* is negative.
        """
        start = self.offset
        self.skip(size)
        return self._view[start : self.offset]

    def skip_padding(self, alignment: int) -> bool:
        """
        Move to the next multiple of *alignment*; return whether every skipped byte was zero.

        Raises:
            ShortageError: the view ends before it.
        """
        return not any(self.view(padding(self.offset, alignment)))


def padding(size: int, alignment: int) -> int:
    """Return how many bytes are missing from *size* to the next multiple of *alignment*."""
    return -size % alignment


def align_up(size: int, alignment: int) -> int:
    """Return the smallest multiple of *alignment* that is at least *size*."""
    return size + -size % alignment
