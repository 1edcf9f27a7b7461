"""
A stream's chunks in sequence. An Arrow file consists of messages in order, followed by a table of their places: reading
message after message costs less than looking each one up, and has the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

__all__ = ["InOrder"]

_ALIGNMENT = 8
_CONTINUATION = b"\xff\xff\xff\xff"
_CHUNK_BITS = 32
_PLACES_MAX = 256
_HEAD_BYTES_MAX = 128
"""The first message of an Arrow file starts within this many bytes: after 8 by the format, after 64 in ours."""


class InOrder:
    """
    The read position in each of some streams. Not thread-safe. Only for bytes whose checksum is verified.

    It never raises: if it cannot read a chunk, it returns None, and the caller uses the file's own table.
    """

    __slots__ = ("_places",)

    def __init__(self) -> None:
        # By stream and number of the next chunk: its reader. Two consumers read one stream at two places.
        self._places: dict[int, Any] = {}

    def next(self, stream_id: int, chunk_index: int) -> pa.RecordBatch | None:
        """Return chunk *chunk_index* of a stream if it follows one that was requested; None otherwise."""
        key = stream_id << _CHUNK_BITS | chunk_index
        read_next = self._places.pop(key, None)
        if read_next is None:
            return None
        try:
            batch: pa.RecordBatch = read_next()
        except (pa.ArrowException, OSError, StopIteration):
            return None
        self._places[key + 1] = read_next
        return batch

    def lend(self, stream_id: int, chunk_index: int) -> Callable[[], pa.RecordBatch] | None:
        """
        Return a function that reads chunk *chunk_index* and, called again, the following ones; None if there is none.

        It belongs to the caller until `give_back`. It raises an Arrow error, `OSError` or `StopIteration` when it
        cannot read a chunk.
        """
        found: Callable[[], pa.RecordBatch] | None = self._places.pop(stream_id << _CHUNK_BITS | chunk_index, None)
        return found

    def give_back(self, stream_id: int, chunk_index: int, read_next: Callable[[], pa.RecordBatch]) -> None:
        """Return a function of `lend` that reads *chunk_index* next. The only method that needs no lock."""
        self._places[stream_id << _CHUNK_BITS | chunk_index] = read_next

    def begin(self, stream_id: int, data: memoryview, first: pa.RecordBatch) -> None:
        """Continue after *first*, chunk 0 of the stream whose Arrow file is *data*."""
        head = bytes(data[:_HEAD_BYTES_MAX])
        at = next((at for at in range(_ALIGNMENT, len(head), _ALIGNMENT) if head.startswith(_CONTINUATION, at)), None)
        if at is None:
            return
        try:
            messages = pa.ipc.open_stream(pa.py_buffer(data[at:]))
            again = messages.read_next_batch()
        except (pa.ArrowException, OSError, StopIteration):
            return
        if again.num_rows == first.num_rows and again.schema.equals(first.schema, check_metadata=True):
            # Those not used for longest. A copy: `give_back` may add one at any moment.
            for key in list(self._places)[: max(len(self._places) + 1 - _PLACES_MAX, 0)]:
                del self._places[key]
            self._places[stream_id << _CHUNK_BITS | 1] = messages.read_next_batch

    def clear(self) -> None:
        """Release all streams."""
        self._places.clear()
