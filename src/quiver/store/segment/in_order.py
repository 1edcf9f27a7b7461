"""
A stream's chunks one behind the other. An Arrow file is its messages in order, with a table of where they are behind
them: going on from message to message costs less than looking each up, and gives the same.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["InOrder"]

_ALIGNMENT = 8
_CONTINUATION = b"\xff\xff\xff\xff"
_HEAD_BYTES_MAX = 128
"""Within so many bytes the first message of an Arrow file begins: behind 8 by the format, behind 64 in ours."""


class InOrder:
    """
    Where each of some streams is read on. Not thread-safe. Only for bytes whose checksum is right.

    What it cannot do it leaves to the file's own table: it never raises, and answers None.
    """

    __slots__ = ("_places",)

    def __init__(self) -> None:
        # By stream: the next chunk, and what reads it.
        self._places: dict[int, list[Any]] = {}

    def next(self, stream_id: int, chunk_index: int) -> pa.RecordBatch | None:
        """
        Return chunk *chunk_index* of a stream, when it is the one behind the last that was asked for; None
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
        """Go on behind *first*, chunk 0 of the stream whose Arrow file is *data*."""
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
        """Let go of all streams."""
        self._places.clear()
