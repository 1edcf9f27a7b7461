"""
Bundles as record batches: one row for each slot, with its batch as a complete Arrow IPC stream.

A stream of Flight has one schema, but the slots of bundles have many, which may also change from bundle to bundle.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from quiver.bundle import Adapter, Bundle, batch_bytes
from quiver.errors import InvalidBundleError
from quiver.receivers.flight.batches import BatchLimits, decode_ipc_stream

__all__ = ["BUNDLE_SCHEMA", "bundle_of_rows", "rows_of_bundle"]

BUNDLE_SCHEMA = pa.schema([
    pa.field("slot", pa.uint8(), nullable=False),
    pa.field("name", pa.string()),
    pa.field("ipc", pa.binary(), nullable=False),
])  # fmt: skip


def rows_of_bundle(bundle: Bundle, adapter: Adapter) -> pa.RecordBatch:
    """Return a row for each slot of *bundle*, ascending."""
    slots = bundle.slots
    names = [adapter.slots.get(slot) for slot in slots]
    streams = [_ipc_stream(bundle.batches[slot]) for slot in slots]
    columns = [pa.array(slots, pa.uint8()), pa.array(names, pa.string()), pa.array(streams, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=BUNDLE_SCHEMA)


def bundle_of_rows(rows: pa.RecordBatch, adapter: Adapter, limits: BatchLimits) -> Bundle:
    """
    Return the bundle of *rows* with the columns `slot` (number or name) and `ipc`.

    Raises:
        InvalidBundleError: the columns are others, or a row is not a slot with one record batch.
    """
    names = rows.schema.names
    if "slot" not in names or "ipc" not in names:
        raise InvalidBundleError(f"a bundle has the columns slot and ipc, not {', '.join(names)[:200] or 'none'}")
    slots: dict[int | str, pa.RecordBatch] = {}
    left = limits.inflated_bytes_max
    for slot, data in zip(rows["slot"].to_pylist(), rows["ipc"].to_pylist(), strict=True):
        if not isinstance(slot, int | str) or not isinstance(data, bytes):
            raise InvalidBundleError("a bundle has a slot, as number or name, and binary ipc in each row")
        if slot in slots:
            raise InvalidBundleError(f"slot {slot} is repeated")
        batch = decode_ipc_stream(data, BatchLimits(left, limits.dictionaries_bytes_max))
        if not isinstance(batch, pa.RecordBatch):
            raise InvalidBundleError(f"slot {slot}: {batch.reason}")
        left -= batch_bytes(batch)
        slots[slot] = batch
    return Bundle(slots, adapter=adapter)


def _ipc_stream(batch: pa.RecordBatch) -> Any:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()
