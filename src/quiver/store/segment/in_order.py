"""
A stream's chunks in sequence. An Arrow file consists of messages in order, followed by a table of their places: reading
message after message costs less than looking each one up, and has the same result.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["InOrder"]

_ALIGNMENT = 8
_CONTINUATION = b"\xff\xff\xff\xff"
_HEAD_BYTES_MAX = 128
"""The first message of an Arrow file starts within this many bytes: after 8 by the format, after 64 in ours."""


class InOrder:
    """
    The read position in each of some streams. Not thread-safe. Only for bytes whose checksum is verified.

    It never raises: if it cannot read a chunk, it returns None, and the caller uses the file's own table.
    """

    __slots__ = ("_places",)

    def __init__(self) -> None:
        # By stream: the number of the next chunk, and its reader.
        self._places: dict[int, list[Any]] = {}

    def next(self, stream_id: int, chunk_index: int) -> pa.RecordBatch | None:
        """
        Return chunk *chunk_index* of a stream if it follows the last one that was requested; None
        otherwise.
        """
        place = self._places.get(stream_id)
        if place is None or place[0] != chunk_index:
            return None
        place[0] = chunk_index + 1
        try:
            batch: pa.RecordBatch = place[1]()
        except (pa.ArrowException, OSError, StopIteration):
            del self._places[stream_id]
            return None
        return batch

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
            self._places[stream_id] = [1, messages.read_next_batch]

    def clear(self) -> None:
        """Release all streams."""
        self._places.clear()
