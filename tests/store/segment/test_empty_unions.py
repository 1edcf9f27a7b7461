"""
Unions without rows: Arrow omits their buffers on reading, and parts of it access them nevertheless.

An error here crashes the whole process.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import quiver
from quiver.bundle import batch_bytes

ONE = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array(["x" * 500])])
NONE = ONE.slice(0, 0)
SHAPES = {
    "none": NONE,
    "one": ONE,
    "below empty lists": pa.ListArray.from_arrays(pa.array([0, 0, 0], pa.int32()), NONE),
    "in a struct": pa.StructArray.from_arrays([NONE], ["u"]),
    "sparse": pa.UnionArray.from_sparse(pa.array([], pa.int8()), [pa.array([], pa.int8())]),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_empty_unions_are_stored_and_delivered(tmp_path: Path, shape: str, compression: str) -> None:
    """Logged, replayed, sealed, delivered, scanned and counted."""
    batch = pa.record_batch([SHAPES[shape]], names=["u"])
    settings = quiver.Settings.from_mapping({"segment.compression": compression})
    with quiver.open(tmp_path, settings, background=False) as store:
        subscriber = store.register("one", start="earliest")
        store.ingest(quiver.Bundle({30: batch}))
        store.seal()
        with subscriber.next_bundle(timeout=0) as handle:
            assert handle.bundle[30].num_rows == batch.num_rows
            assert handle.bundle.nbytes >= 0
            handle.ack()
        assert store.scan(30).schema.names == ["u"]
        assert store.scan(30).to_table().num_rows == batch.num_rows
    ((_, again),) = quiver.read(tmp_path).bundles()
    assert again[30].equals(batch)
    assert again.nbytes > 500 or shape != "one"


def test_bytes_of_a_batch() -> None:
    """For a slice only the visible bytes, where Arrow can compute them."""
    complete = pa.record_batch({"n": list(range(100))})
    assert (batch_bytes(complete), batch_bytes(complete.slice(0, 10))) == (800, 80)
    words = pa.array([SHAPES["one"].field(0)[0].as_py()] * 3).dictionary_encode()
    assert batch_bytes(pa.record_batch({"w": words})) == pa.record_batch({"w": words}).nbytes
