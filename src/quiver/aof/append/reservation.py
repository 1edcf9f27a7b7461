"""Room at the end of a log that the caller fills in place."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

from quiver.aof.append.tail import Tail
from quiver.aof.format.record import RECORD_HEAD_BYTES
from quiver.errors import InvalidRecordError

__all__ = ["Reservation"]


class Reservation:
    """
    A record to be: fill `payload`, then `commit`, or `cancel`. Nobody else appends meanwhile; they are refused with
    `WouldBlockError("tail")`.

    Leaving it as a context without `commit` cancels, with an error or without. A crash before `commit` leaves nothing.
    One that is dropped without either is cancelled by the next who appends; arrays made of `payload` must not outlive
    it.

    Attributes:
        payload: the writable memory of the record, in the mapped segment.
        record_id: the id, once it is committed.
    """

    _open = False  # also of one that was refused

    def __init__(self, tail: Tail, size: int) -> None:
        if not isinstance(size, int) or size < 0:
            raise InvalidRecordError(f"a reservation is of a whole number of bytes, not {size!r}; nothing was reserved")
        segment, offset = tail.reserve(size)
        start = offset + RECORD_HEAD_BYTES
        self._tail = tail
        self._size = size
        self._open = True
        self.payload = segment.view[start : start + size]
        self.record_id: int | None = None

    def commit(self, size: int | None = None, *, ext_id: int | None = None) -> int:
        """
        Make the first *size* bytes (None: all) a record; return its id. It is written, not yet durable.

        Raises:
            InvalidRecordError: it was committed or cancelled before, or *size* is not 1 to what was reserved.
        """
        if not self._open:
            raise InvalidRecordError("the reservation was committed or cancelled before; reserve again")
        kept = self._size if size is None else size
        self.record_id = self._tail.complete(kept, self._size, ext_id)
        self._close()
        return self.record_id

    def cancel(self) -> None:
        """Give the room back. Idempotent, and nothing happens after `commit`."""
        if self._open:
            self._close()
            self._tail.cancel(self._size)

    def __del__(self) -> None:
        # Collecting may happen anywhere, also in a thread that holds the lock of the tail: only a mark is safe.
        if self._open:
            self._close()
            self._tail.forsaken = self._size

    def _close(self) -> None:
        self._open = False
        with suppress(BufferError):  # an array refers to it; what becomes of the record does not depend on that
            self.payload.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
