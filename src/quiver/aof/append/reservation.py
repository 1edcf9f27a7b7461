"""A record at the end of a log that the caller fills in place."""

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
    A reserved record: fill `payload`, then `commit` or `cancel`. Meanwhile other appends raise
    `WouldBlockError("tail")`.

    Leaving the ``with`` block without `commit` cancels the reservation. A crash before `commit` leaves nothing. A
    reservation that is garbage-collected is cancelled by the next append. Arrays that refer to `payload` must not
    outlive the reservation.

    Attributes:
        payload: the writable memory of the record, in the mapped segment.
        record_id: the id of the committed record; None before.
    """

    _open = False  # for `__del__`, when the constructor raised

    def __init__(self, tail: Tail, size: int) -> None:
        if not isinstance(size, int) or size < 0:
            raise InvalidRecordError(f"a reservation has an integer size from 0 on, not {size!r}; nothing was reserved")
        segment, offset = tail.reserve(size)
        start = offset + RECORD_HEAD_BYTES
        self._tail = tail
        self._size = size
        self._open = True
        self.payload = segment.view[start : start + size]
        self.record_id: int | None = None

    def commit(self, size: int | None = None, *, ext_id: int | None = None) -> int:
        """
        Make the first *size* bytes (None: all) a record and return its id. It is written but not yet durable.

        Raises:
            InvalidRecordError: the reservation was committed or cancelled before, or *size* is not between 1 and the
                reserved size.
        """
        if not self._open:
            raise InvalidRecordError("the reservation was committed or cancelled before; reserve again")
        kept = self._size if size is None else size
        self.record_id = self._tail.complete(kept, self._size, ext_id)
        self._close()
        return self.record_id

    def cancel(self) -> None:
        """Release the reserved bytes. Idempotent; does nothing after `commit`."""
        if self._open:
            self._close()
            self._tail.cancel(self._size)

    def __del__(self) -> None:
        # The garbage collector may run in a thread that holds the tail's lock: only setting a flag is safe here.
        if self._open:
            self._close()
            self._tail.abandoned = self._size

    def _close(self) -> None:
        self._open = False
        with suppress(BufferError):  # an array still refers to it; the record does not depend on that
            self.payload.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
