"""Bundles with one large slot: they stay in the log until their segment is written, and come back unchanged."""

from __future__ import annotations

import errno
from functools import partial

import pyarrow as pa
import pytest

from quiver import Bundle, CapacityError, Settings, Store, StoreFailedError
from quiver.bundle import BundleRef
from quiver.store.store import REREAD_BYTES_MIN
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from store_rig import open_manual

ROOT = "/large"
ROWS = REREAD_BYTES_MIN // 8
SETTINGS = Settings(segment_bytes_max=64 << 20, delete_grace_s=0.0)
KINDS = {
    "plain": lambda values: pa.array(values, pa.int64()),
    "times": lambda values: pa.array(values, pa.timestamp("ns")),
    "dictionary": lambda values: pa.array([str(value % 7) for value in values]).dictionary_encode(),
}
opened = partial(open_manual, settings=SETTINGS, root=ROOT)


def large(number: int, kind: str = "plain") -> pa.RecordBatch:
    values = range(number, number + ROWS)
    column = "time_unix_nano" if kind == "times" else "value"
    return pa.record_batch({column: KINDS[kind](values), "pad": pa.array(values, pa.int64())})


def plain(batch: pa.RecordBatch) -> list[pa.Array]:
    return [column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in batch]


def contents(store: Store) -> list[pa.RecordBatch]:
    return [
        store.internals.catalog.bundle(BundleRef(info.seq, index))[30]
        for info in store.internals.catalog.segments()
        for index in range(info.bundle_count)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_large_bundles_come_back_unchanged(kind: str, compression: str) -> None:
    """Between small ones, over several log files, for all columns and compressions."""
    fs = CrashFileSystem()
    settings = Settings(segment_bytes_max=64 << 20, wal_rotate_bytes=REREAD_BYTES_MIN, segment_compression=compression)
    given = []
    with opened(fs, settings=settings) as store:
        for number in range(4):
            given += [large(number, kind), large(number, kind).slice(0, 3)]
            for batch in given[-2:]:
                store.ingest(Bundle({30: batch}))
        assert store.stats()["wal_files"] > 2
        store.seal()
        found = contents(store)
    # Dictionaries of one stream are unified: only types and values are equal.
    assert [batch.schema for batch in found] == [batch.schema for batch in given]
    assert [plain(batch) for batch in found] == [plain(batch) for batch in given]


def test_large_bundles_use_no_memory_until_their_segment_is_written() -> None:
    """The open segment has their position in the log, not their data."""
    with opened(CrashFileSystem()) as store:
        before = pa.total_allocated_bytes()
        for number in range(20):
            store.ingest(Bundle({30: large(number)}))
        assert pa.total_allocated_bytes() - before < REREAD_BYTES_MIN
        assert store._sealing.arena._end == 0


def test_damage_in_the_log_fails_the_store_and_costs_one_bundle() -> None:
    """Data that cannot be read again is never written as valid; the next open quarantines the one entry."""
    fs = CrashFileSystem()
    store = opened(fs)
    for number in range(3):
        end = store.ingest(Bundle({30: large(number)})).wal_position
    file = fs.open_write(f"{ROOT}/wal/quiver.wal")
    file.pwrite(b"\xa5\x5a\xa5", end - REREAD_BYTES_MIN // 2)
    file.sync_data()
    file.close()
    with pytest.raises(StoreFailedError, match="is not what was written"):
        store.seal()
    store.close()
    with opened(fs) as store:
        store.seal()
        assert contents(store) == [large(0), large(1)]


def test_a_full_disk_only_delays_the_segment_of_large_bundles() -> None:
    """The segment is written later from the same log."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, error=errno.ENOSPC)
    clock = ManualClock()
    with opened(fs, clock=clock) as store:
        given = [large(number) for number in range(3)]
        for batch in given:
            store.ingest(Bundle({30: batch}))
        fs.fail_on("create")
        with pytest.raises(CapacityError, match="full"):
            store.seal()
        clock.advance(2.0)
        store.seal()
        assert contents(store) == given
