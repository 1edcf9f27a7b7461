"""Batches with empty arrays without offsets, as Arrow in Java writes them before version 19."""

from __future__ import annotations

import pyarrow as pa

TEXTS = pa.list_(pa.string())
KINDS = {
    "lists of texts": TEXTS,
    "maps": pa.map_(pa.string(), pa.string()),
    "large lists": pa.large_list(TEXTS),
    "structs of lists": pa.struct([("n", pa.int32()), ("texts", pa.large_list(pa.large_binary()))]),
    "pairs of lists": pa.list_(TEXTS, 2),
    "texts": pa.string(),
}


def without_offsets(kind: pa.DataType) -> pa.Array:
    """Return an empty array of *kind*; no array in it has offsets."""
    nothing = pa.py_buffer(b"")
    children = [without_offsets(kind.field(at).type) for at in range(kind.num_fields)]
    if pa.types.is_struct(kind) or pa.types.is_fixed_size_list(kind):
        return pa.Array.from_buffers(kind, 0, [None], children=children)
    if children:
        return pa.Array.from_buffers(kind, 0, [None, nothing], children=children)
    buffers = [None, nothing] if pa.types.is_integer(kind) else [None, nothing, nothing]
    return pa.Array.from_buffers(kind, 0, buffers)


def received(kind: pa.DataType) -> pa.RecordBatch:
    """Return a batch of two rows with an empty list of *kind*, as it is read from a stream."""
    offsets = pa.py_buffer(bytes(12))
    lists = pa.Array.from_buffers(pa.list_(kind), 2, [None, offsets], children=[without_offsets(kind)])
    sink = pa.BufferOutputStream()
    sent = pa.record_batch({"id": [1, 2], "lists": lists})
    with pa.ipc.new_stream(sink, sent.schema) as writer:
        writer.write_batch(sent)
    batch = pa.ipc.open_stream(sink.getvalue()).read_next_batch()
    batch.validate(full=True)
    return batch
