"""Large batches whose buffers cannot change are kept without a copy until their segment is written."""

from __future__ import annotations

import errno

import numpy as np
import pyarrow as pa
import pytest

from quiver import Bundle, CapacityError, Settings, Store
from quiver import open as open_store
from quiver.bundle import BundleRef
from quiver.store.segment.pieced import PIECES_BYTES_MIN, PiecedMessage, pieced
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

ROWS = PIECES_BYTES_MIN // 4
COLUMNS = {
    "numbers": pa.array(range(ROWS)),
    "nulls": pa.array([None, True, False, None] * (ROWS // 4)),
    "texts": pa.array([f"text {number}" for number in range(ROWS)]),
    "views": pa.array([f"a text that is not inlined {number}" for number in range(ROWS)], pa.string_view()),
    "lists": pa.array([[1, 2], None, [], [3]] * (ROWS // 4)),
    "structs": pa.array([{"a": 1, "b": "x"}, None] * (ROWS // 2)),
    "maps": pa.array([[("k", 1)], []] * (ROWS // 2), pa.map_(pa.string(), pa.int64())),
    "time_unix_nano": pa.array(range(ROWS), pa.timestamp("ns")),
}
SETTINGS = Settings(durability="segment_only", segment_bytes_max=64 << 20)


def unchangeable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same batch over bytes, as a receiver gets it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(pa.py_buffer(sink.getvalue().to_pybytes())).read_next_batch()


def schema_bytes(batch: pa.RecordBatch) -> int:
    return len(batch.schema.serialize())


def opened(fs: CrashFileSystem | FaultFileSystem, settings: Settings = SETTINGS) -> Store:
    return open_store("/pieced", settings, fs=fs, clock=ManualClock(), background=False)


def contents(store: Store) -> list[pa.RecordBatch]:
    catalog = store.internals.catalog
    refs = [BundleRef(info.seq, index) for info in catalog.segments() for index in range(info.bundle_count)]
    return [catalog.bundle(ref)[30] for ref in refs]


def kept_in_pieces(store: Store) -> list[bool]:
    (stream,) = store._sealing.open._streams
    return [isinstance(chunk, PiecedMessage) for chunk in stream.chunks]


@pytest.mark.parametrize("names", [[name] for name in COLUMNS] + [list(COLUMNS)], ids=str)
@pytest.mark.parametrize("rows", [slice(None), slice(3, ROWS - 5), slice(0, 0)], ids=str)
def test_the_pieces_are_the_bytes_of_the_serialized_batch(names: list[str], rows: slice) -> None:
    """Also of a slice, whose bitmaps do not start at a byte."""
    batch = pa.record_batch({name: COLUMNS[name] for name in names})
    batch = batch.slice(rows.start or 0, None if rows.stop is None else rows.stop - (rows.start or 0))
    message = PiecedMessage(batch, schema_bytes(batch))
    serialized = batch.serialize().to_pybytes()
    assert message.join() == serialized
    assert (len(message), message.prefix) == (len(serialized), serialized[:8])


def test_only_buffers_that_cannot_change_are_kept() -> None:
    """A flag of the buffer, or of the one that it is a slice of, shows that a producer can change it."""
    batch = unchangeable(pa.record_batch({"n": COLUMNS["numbers"]}))
    assert pieced(batch, schema_bytes(batch)) is not None
    array = np.arange(ROWS)
    hidden = pa.Array.from_buffers(pa.int64(), ROWS - 1, [None, pa.py_buffer(array).slice(8)])
    for column in (pa.array(array), hidden, COLUMNS["numbers"]):
        assert pieced(pa.record_batch({"n": column}), 0) is None


def test_a_small_part_of_a_large_batch_is_not_kept() -> None:
    """Its buffers would keep the memory of all rows and columns."""
    batch = unchangeable(pa.record_batch({"n": COLUMNS["numbers"], "t": COLUMNS["texts"]}))
    assert pieced(batch, schema_bytes(batch)) is not None
    assert pieced(batch.slice(0, ROWS // 2), 0) is None
    assert pieced(batch.select(["n"]), 0) is None


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_kept_and_copied_bundles_are_read_as_they_were_given(compression: str) -> None:
    """Both kinds in one segment, with event times, small ones between them."""
    given = []
    settings = Settings(durability="segment_only", segment_bytes_max=64 << 20, segment_compression=compression)
    with opened(CrashFileSystem(), settings) as store:
        for offset in range(3):
            columns = {name: column.slice(offset) for name, column in COLUMNS.items()}
            for batch in (pa.record_batch(columns), unchangeable(pa.record_batch(columns))):
                given += [batch, batch.slice(0, 2)]
                for one in given[-2:]:
                    store.ingest(Bundle({30: one}))
        assert kept_in_pieces(store) == [False, False, True, False] * 3
        store.seal()
        assert contents(store) == given


def test_a_producer_that_reuses_its_array_changes_no_bundle() -> None:
    """Its buffers can change, so they were copied at ingest."""
    array = np.arange(ROWS)
    with opened(CrashFileSystem()) as store:
        store.ingest(Bundle({30: pa.record_batch({"n": pa.array(array)})}))
        array[:] = -1
        store.seal()
        assert contents(store) == [pa.record_batch({"n": COLUMNS["numbers"]})]


def test_a_full_disk_only_delays_the_segment_of_kept_bundles() -> None:
    """They stay in memory, and the segment is written later."""
    fs = FaultFileSystem(CrashFileSystem(), error=errno.ENOSPC)
    batch = unchangeable(pa.record_batch({"n": COLUMNS["numbers"]}))
    with opened(fs) as store:
        store.ingest(Bundle({30: batch}))
        fs.fail_on("create")
        with pytest.raises(CapacityError):
            store.seal()
        fs.heal()
        store.seal()
        assert contents(store) == [batch]
