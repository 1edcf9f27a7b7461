"""
A stream's Arrow IPC file → the same file with compressed bodies.

Arrow compresses buffer by buffer and records it in each message, so every Arrow reader decompresses it transparently,
and a reader of a few columns decompresses only those. The price is that batches no longer point into the mapped file.
The log is never compressed: a message is decoded and written again only here, off the ingest path, one stream at a
time.
"""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa

from quiver.bundle import has_unions
from quiver.store.segment.ipc_file import HEAD_ALIGNMENT, IpcFile, assemble

__all__ = ["Compression", "compressed", "split_messages"]

Compression = Literal["none", "lz4", "zstd"]
"""How the bodies of a segment are compressed; `lz4` is LZ4's frame format. Arrow has no others."""


def compressed(file: IpcFile, compression: Compression) -> IpcFile:
    """
    Return *file* with its bodies compressed; return *file* itself if that would not be smaller, if it has unions,
    or for `none`.

    The same *file* always gives the same bytes.
    """
    if compression == "none":
        return file
    # One thread: ingest, which runs at the same time, needs the other cores.
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    source = pa.ipc.open_file(pa.py_buffer(b"".join(file.parts())))
    if has_unions(source.schema):
        return file  # Arrow crashes the process on a compressed empty union
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, source.schema, options=options) as writer:
        for index in range(source.num_record_batches):
            writer.write_batch(source.get_batch(index))
    dictionaries, batches = split_messages(sink.getvalue())
    smaller = assemble(file.head[HEAD_ALIGNMENT:], dictionaries, batches)
    # Arrow's framing of many small buffers can cost more than compression saves.
    return smaller if smaller.nbytes < file.nbytes else file


def split_messages(stream: pa.Buffer) -> tuple[list[Any], list[Any]]:
    """Return the dictionary messages and the batch messages of one Arrow stream."""
    dictionaries: list[Any] = []
    batches: list[Any] = []
    for message in pa.ipc.MessageReader.open_stream(stream):
        if message.type == "dictionary":
            dictionaries.append(message.serialize())
        elif message.type == "record batch":
            batches.append(message.serialize())
    return dictionaries, batches
