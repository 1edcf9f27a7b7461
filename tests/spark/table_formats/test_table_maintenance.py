"""Maintenance of tables: fewer files, the same rows, and readers of older snapshots are not disturbed."""

import contextlib
import time
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake.table import TableOptimizer
from pyiceberg.exceptions import CommitFailedException

from quiver.spark.exporters.table_exporter import BatchOf
from quiver.spark.table_formats import iceberg
from quiver.spark.table_formats.batch_record import BatchRecord
from quiver.spark.table_formats.data_files import WriteTask, data_file
from quiver.spark.table_formats.export import TableFormatExporter, TableLayout
from quiver.spark.table_formats.place import TablePlace
from quiver.spark.table_formats.settings import DeltaSettings, MaintenanceLimits
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


def another_writer(lake, clock):
    """Return a function that commits one more row, as another process that has loaded the table now."""
    place = TablePlace(lake.settings().location)
    other = lake.tables(lake.settings(partition_by=("kind",)), place, clock=clock)
    assert not other.has("t", "q", BATCHES)
    columns = pa.schema([("n", pa.int64()), ("kind", pa.string())])
    return lambda: written(other, place, BATCHES, columns, [{"n": 99, "kind": "b"}])


def test_a_batch_may_be_committed_after_files_were_combined(lake, clock):
    """The writer has loaded the table before; its commit fails, and is repeated."""
    tables = filled(lake, clock)
    commit = another_writer(lake, clock)
    tables.maintain("t", LIMITS)
    commit()
    assert len(rows_of(lake)) == 2 * BATCHES + 1
    assert tables.has("t", "q", BATCHES)


def test_a_batch_may_be_committed_while_files_are_combined(lake, clock, monkeypatch):
    """Delta combines the files that it has read; Iceberg refuses, and the next maintenance combines them."""
    tables = filled(lake, clock)
    commit = another_writer(lake, clock)
    before = set(lake.data_files("t"))
    commits = []
    target, name = (iceberg, "rows_of") if lake.files else (TableOptimizer, "compact")
    real = getattr(target, name)

    def overtaken(*arguments, **others):
        if not commits:
            commits.append(commit())
        return real(*arguments, **others)

    monkeypatch.setattr(target, name, overtaken)
    with pytest.raises(CommitFailedException) if lake.files else contextlib.nullcontext():
        tables.maintain("t", LIMITS)
    assert commits
    assert len(rows_of(lake)) == 2 * BATCHES + 1
    tables.maintain("t", LIMITS)
    assert len(rows_of(lake)) == 2 * BATCHES + 1
    clock.advance(HOUR_S)  # the files have the time of the system
    tables.maintain("t", replace(LIMITS, retention_s=0.0))
    assert not before <= set(lake.data_files("t"))
    assert len(rows_of(lake)) == 2 * BATCHES + 1


class Schedule:
    """Tables that only record their maintenance."""

    def __init__(self, tmp_path, clock):
        self.maintained = []
        self.broken = set()
        settings = DeltaSettings(path=str(tmp_path), maintenance_interval_s=HOUR_S)
        place = TablePlace(settings.location)
        self.exporter = TableFormatExporter(self, place, subscriber="exp", settings=settings, clock=clock)
        self.exporter._written = lambda *_: ()
        self.number = 0

    def has(self, *_):
        return False

    def prepare(self, _table, schema):
        return TableLayout(schema, ())

    def maintain(self, table, limits):
        assert limits.retention_s == 7 * 24 * HOUR_S
        self.maintained.append(table)
        if table in self.broken:
            raise OSError("no space left")

    def batch(self, *tables):
        """Export a batch with rows of *tables*; return the tables that were maintained after it."""
        self.maintained = []
        frame = SimpleNamespace(mapInArrow=lambda *_: None)
        view = SimpleNamespace(descriptors=frame, decode=None, schema=pa.schema([("n", pa.int64())]))
        self.exporter.export_views(dict.fromkeys(tables, view), BatchOf("query", self.number, ("store",), {}))
        self.number += 1
        return self.maintained


def test_maintenance_runs_after_a_batch_when_its_interval_has_passed(tmp_path, caplog):
    """Of all tables that got rows since the last one. A failure fails no batch, and is tried again."""
    clock = ManualClock()
    schedule = Schedule(tmp_path, clock)
    assert schedule.batch("logs", "spans") == []
    clock.advance(HOUR_S - 1)
    assert schedule.batch("logs") == []
    clock.advance(1)
    assert schedule.batch("metrics") == ["logs", "metrics", "spans"]
    assert schedule.batch("logs") == []
    clock.advance(HOUR_S)
    schedule.broken = {"logs"}
    assert schedule.batch("spans") == ["logs", "spans"]
    assert "table_maintenance_failed table=logs reason=no space left" in caplog.text
    clock.advance(HOUR_S)
    assert schedule.batch("metrics") == ["logs", "metrics"]
