"""The messages of a stream that a client reads: a schema, then batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from quiver.receivers.flight.batches import BatchEncoder, Parts, slices_of

__all__ = ["messages_of", "next_messages"]


def messages_of(schema: pa.Schema, batches: Iterable[pa.RecordBatch], message_bytes: int) -> Iterator[Parts]:
    """
    Yield the messages of *batches*, each with about *message_bytes*, but at least one row.

    Raises:
        QuiverError, OSError: as the iteration over *batches*.
    """
    encoder = BatchEncoder(schema)
    yield encoder.schema()
    for batch in batches:
        for piece in slices_of(batch, message_bytes):
            yield from encoder.batch(piece)


def next_messages(messages: Iterator[Parts], bytes_min: int) -> list[Parts]:
    """Return the next messages, at least *bytes_min* bytes unless it is the end. Empty after the last one."""
    found: list[Parts] = []
    size = 0
    while size < bytes_min:
        message = next(messages, None)
        if message is None:
            break
        found.append(message)
        size += sum(map(len, message))
    return found
