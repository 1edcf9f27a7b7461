"""Maintenance of tables: fewer files, the same rows, and readers of older snapshots are not disturbed."""

import time
from dataclasses import replace

import pyarrow as pa
import pytest

from quiver.spark.table_formats.batch_record import BatchRecord
from quiver.spark.table_formats.data_files import WriteTask, data_file
from quiver.spark.table_formats.place import TablePlace
from quiver.spark.table_formats.settings import MaintenanceLimits
from quiver.testing.clock import ManualClock

BATCHES = 8
HOUR_S = 3600.0
LIMITS = MaintenanceLimits(target_bytes=1 << 20, retention_s=HOUR_S)


def written(tables, place, number, schema, rows):
    """Write and commit a batch without Spark."""
    layout = tables.prepare("t", schema)
    place.prepare(f"t/{layout.folder}")
    task = WriteTask(
        place=place, table="t", folder=layout.folder, prefix=f"q-{number:010}-", schema=layout.schema,
        partitions=layout.partitions, omitted=layout.omitted, compression="zstd",
    )  # fmt: skip
    found = task([pa.RecordBatch.from_pylist(rows, schema=schema)])
    files = tuple(data_file(row) for one in found for row in one.to_pylist())
    tables.commit("t", BatchRecord("q", number, "s", {}, files))


@pytest.fixture
def clock():
    """Return a clock that starts now: the libraries use the time of the system for what they write."""
    return ManualClock(now_ns=time.time_ns())


def filled(lake, clock, batches=BATCHES):
    settings = lake.settings(partition_by=("kind",))
    place = TablePlace(settings.location)
    place.prepare("")
    tables = lake.tables(settings, place, clock=clock)
    narrow = pa.schema([("n", pa.int64()), ("kind", pa.string())])
    wide = narrow.append(pa.field("more", pa.string()))
    for number in range(batches):
        row = {"n": number, "kind": "ab"[number % 2], "more": "x"}
        written(tables, place, number, wide if number >= batches // 2 else narrow, [row, {"n": -number, "kind": "a"}])
    return tables


def rows_of(lake):
    return sorted(lake.read("t").select(["n", "kind", "more"]).to_pylist(), key=str)


def test_small_files_are_combined_and_removed_after_the_retention(lake, clock):
    """Before it, readers of older snapshots find their files; batches are still recognized."""
    tables = filled(lake, clock)
    before, files = rows_of(lake), set(lake.data_files("t"))
    tables.maintain("t", LIMITS)
    assert rows_of(lake) == before
    assert files < set(lake.data_files("t"))
    assert tables.has("t", "q", BATCHES - 1)
    tables.maintain("t", LIMITS)
    combined = set(lake.data_files("t")) - files
    assert combined
    clock.advance(HOUR_S)  # the files have the time of the system
    tables.maintain("t", replace(LIMITS, retention_s=0.0))
    left = set(lake.data_files("t"))
    assert combined <= left
    assert len(left) < len(files)
    assert rows_of(lake) == before
    assert tables.has("t", "q", BATCHES - 1)


def test_a_batch_may_be_committed_while_files_are_combined(lake, clock):
    """Either the batch or the combination is repeated; no row is lost."""
    tables = filled(lake, clock)
    other = lake.tables(lake.settings(partition_by=("kind",)), TablePlace(lake.settings().location), clock=clock)
    place = TablePlace(lake.settings().location)
    tables.maintain("t", LIMITS)
    written(other, place, BATCHES, pa.schema([("n", pa.int64()), ("kind", pa.string())]), [{"n": 99, "kind": "b"}])
    tables.maintain("t", LIMITS)
    assert len(rows_of(lake)) == 2 * BATCHES + 1
