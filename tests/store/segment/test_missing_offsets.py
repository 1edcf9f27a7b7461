"""
Empty arrays without offsets, as Arrow in Java writes them before version 19. Arrow reads and validates them.

`RecordBatch.nbytes` ends the process on some of them: it takes what is in memory there for offsets.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import quiver
from missing_offsets import KINDS, TEXTS, received, without_offsets
from quiver.bundle import batch_bytes, complete_batch, lacks_offsets


@pytest.fixture(params=KINDS)
def batch(request: pytest.FixtureRequest) -> pa.RecordBatch:
    return received(KINDS[request.param])


def test_the_size_is_that_of_the_buffers(batch: pa.RecordBatch) -> None:
    """Also of slices, which have the same buffers."""
    assert lacks_offsets(batch)
    assert batch_bytes(batch) == batch_bytes(batch.slice(0, 1)) == 16 + 12
    assert lacks_offsets(batch.slice(0, 0))


def test_a_complete_copy_has_the_same_rows(batch: pa.RecordBatch) -> None:
    """And the sizes that Arrow counts."""
    copy = complete_batch(batch)
    assert copy.equals(batch)
    assert not lacks_offsets(copy)
    assert batch_bytes(copy) == copy.nbytes
    assert complete_batch(copy) is copy


def test_columns_of_an_empty_batch_count(batch: pa.RecordBatch) -> None:
    """At the top, too: a text column, or a list without rows."""
    empty = pa.record_batch({"texts": without_offsets(batch.column(1).type), "more": without_offsets(pa.string())})
    assert lacks_offsets(empty)
    assert batch_bytes(empty) == 0
    assert not lacks_offsets(complete_batch(empty))


def test_complete_batches_are_recognized() -> None:
    """Among them all that pyarrow makes: dictionaries, extension types, and what has no elements."""
    lists = pa.array([[], []], pa.list_(TEXTS))
    words = pa.array(["a", "a"]).dictionary_encode()
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * 2, pa.binary(16)))
    complete = pa.record_batch({"lists": lists, "words": words, "ids": ids, "maps": pa.nulls(2, KINDS["maps"])})
    assert not lacks_offsets(complete)
    assert complete_batch(complete) is complete
    assert batch_bytes(complete) == complete.nbytes


def test_they_are_stored_and_delivered(tmp_path: Path, batch: pa.RecordBatch) -> None:
    """Logged, sealed, delivered, scanned and counted."""
    with quiver.open(tmp_path, background=False) as store:
        subscriber = store.register("one", start="earliest")
        store.ingest(quiver.Bundle({30: batch}))
        store.seal()
        with subscriber.next_bundle(timeout=0) as handle:
            assert handle.bundle.nbytes > 0
            handle.ack()
        assert store.scan(30).to_table().num_rows == 2
    ((_, again),) = quiver.read(tmp_path).bundles()
    assert again[30].equals(batch)
