"""
Messages of large batches whose buffers cannot change: the buffers themselves, in the order of the message.

A store without a log has to keep a bundle until its segment is written. For a large bundle, a copy costs more than
everything else that `ingest` does. No copy is needed if a producer cannot change the bytes: buffers over `bytes`, over
IPC messages and over memory that another library exported are read-only for Python.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from quiver.bundle import batch_bytes

__all__ = ["PIECES_BYTES_MIN", "PiecedMessage", "pieced"]

PIECES_BYTES_MIN = 64 * 1024
"""Batches below this size are serialized: for them a copy costs less than to collect the pieces."""

_JOIN_BYTES_MAX = 2048


class PiecedMessage:
    """
    The message of *batch* in pieces, the same bytes as ``batch.serialize()``. It keeps the buffers of *batch* alive.

    Args:
        schema_bytes: the length of the schema's message, which the writer puts before it.

    Attributes:
        batch: the batch.
        pieces: bytes and buffers, in order.
        nbytes: length of the message.
        prefix: its first 8 bytes: the marker, and the length of the metadata.
    """

    __slots__ = ("batch", "nbytes", "pieces", "prefix")

    def __init__(self, batch: pa.RecordBatch, schema_bytes: int) -> None:
        sink = _Pieces(schema_bytes)
        with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), batch.schema) as writer:
            writer.write_batch(batch)
            self.pieces = sink.taken()
        self.batch = batch
        self.nbytes = sum(map(len, self.pieces))
        self.prefix = bytes(memoryview(self.pieces[0])[:8])

    def __len__(self) -> int:
        return self.nbytes

    def join(self) -> bytes:
        """Return the message in one piece."""
        return b"".join(self.pieces)


def pieced(batch: pa.RecordBatch, schema_bytes: int) -> PiecedMessage | None:
    """
    Return the message of *batch* without copying its buffers; None if that would be unsafe or would waste memory.

    Unsafe is a buffer that can be changed. Wasteful is one that keeps alive more than half as much again as the batch
    needs: a slice of a large batch, or one column of many.
    """
    nbytes = batch_bytes(batch)
    alive: dict[int, int] = {}
    for column in batch.columns:
        for buffer in column.buffers():
            owner = buffer
            while owner is not None and not owner.is_mutable and owner.parent is not None:
                owner = owner.parent
            if owner is None:
                continue  # no nulls, so no bitmap
            if owner.is_mutable:
                return None
            alive[owner.address] = owner.size
    return PiecedMessage(batch, schema_bytes) if sum(alive.values()) <= nbytes * 3 // 2 else None


class _Pieces:
    """The part of a Python file that Arrow's writer needs. Small pieces are joined, large ones kept as they are."""

    closed = False

    def __init__(self, skip_bytes: int) -> None:
        self._skip_bytes = skip_bytes
        self._pieces: list[Any] = []
        self._small = bytearray()

    def write(self, piece: Any) -> int:
        size = len(piece)
        if self._skip_bytes:
            self._skip_bytes -= size
        elif size < _JOIN_BYTES_MAX:
            self._small += piece
        else:
            self._end_small()
            self._pieces.append(piece)
        return size

    def _end_small(self) -> None:
        if self._small:
            self._pieces.append(bytes(self._small))
            self._small.clear()

    def taken(self) -> list[Any]:
        self._end_small()
        return self._pieces

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        """Everything is in memory."""

    def close(self) -> None:
        """Everything is in memory."""
