"""Small files become one; readers of the current list see each row once at any request, and no row is ever lost."""

from __future__ import annotations

import functools
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from disk_files import PowerCut
from quiver.bundle import BundleRef
from quiver.errors import CorruptionError, InvariantError, ObjectsUnavailableError, TransientError
from quiver.objects.memory import MemoryObjects
from quiver.spark.exporters.parquet_commit import StagedFile
from quiver.spark.lake.compaction import LakeCompactor
from quiver.spark.lake.compaction_log import RECORDS_KEPT, CompactionLog, CompactionRecord, LakeFile
from quiver.spark.lake.object_commit import ObjectCommitter
from quiver.testing.clock import ManualClock
from quiver.testing.faultobjects import FaultObjects

QUERY = "c5026f74-7f8b-4a17-8beb-a452f78be02a"
DAY = "logs/day=2026-01-31"
USED = ("copy", "delete", "get", "get_range", "head", "list", "put", "put_parts")


def parquet(values, column="n"):
    buffer = io.BytesIO()
    pq.write_table(pa.table({column: values}), buffer)
    return buffer.getvalue()


def name(batch):
    return f"{DAY}/c5026f74-{batch:010}-0.parquet"


def lake(count=4, clock=None):
    """Return objects with *count* files of two rows each in one partition, an hour ago, and a file in another one."""
    clock = clock or ManualClock()
    objects = MemoryObjects(clock=clock)
    for batch in range(count):
        objects.put(name(batch), parquet([2 * batch, 2 * batch + 1]))
    objects.put("spans/day=2026-01-31/c5026f74-0000000000-1.parquet", parquet([100]))
    clock.advance(3601)
    return objects, clock


@functools.cache
def values_of(data):
    return tuple(pq.read_table(io.BytesIO(data))[0].to_pylist())


def rows_of(objects, keys):
    return sorted(value for key in keys for value in values_of(bytes(objects.get(key, size_max=1 << 20))))


def listed(objects):
    """Return the rows that a reader of ``**/*.parquet`` sees."""
    return rows_of(objects, [i.key for i in objects.list_below("") if i.key.endswith(".parquet")])


def current(objects):
    return rows_of(objects, [one.key for one in CompactionLog(objects).current_files()])


def run(objects, clock, **settings):
    return list(LakeCompactor(objects, clock=clock, **settings).run())


ALL = [*range(8), 100]


def test_small_files_of_a_partition_become_one():
    """In the order of their names; a file alone stays, and a second run has nothing to do."""
    objects, clock = lake()
    (done,) = run(objects, clock)
    assert (done.directory, done.rows, len(done.inputs)) == (DAY, 8, 4)
    assert pq.read_table(io.BytesIO(objects.get(done.output.key, size_max=1 << 20)))["n"].to_pylist() == list(range(8))
    assert listed(objects) == current(objects) == ALL
    assert [i.key for i in objects.list_below("_compaction")] == ["_compaction/0000000000.json"]
    clock.advance(3601)
    assert run(objects, clock) == []


def test_compacted_files_are_compacted_again():
    """With those that arrived since, until they are large enough."""
    objects, clock = lake()
    run(objects, clock)
    objects.put(name(9), parquet([8]))
    clock.advance(3601)
    (done,) = run(objects, clock)
    assert [one.key.rpartition("/")[2][:9] for one in done.inputs] == ["c5026f74-", "compacted"]
    assert listed(objects) == current(objects) == sorted([*ALL, 8])


def test_young_large_and_foreign_files_stay():
    """And those of other programs, also small ones."""
    objects, clock = lake()
    size = objects.head(name(0)).size_bytes
    assert LakeCompactor(objects, clock=clock, target_bytes=size).plan() == []
    assert [len(one.files) for one in LakeCompactor(objects, clock=clock, target_bytes=2 * size).plan()] == [2, 2]
    assert LakeCompactor(objects, clock=clock, older_than_s=7200).plan() == []
    for number in range(3):
        objects.put(f"{DAY}/mine-{number}.parquet", parquet([7]))
        objects.put(f"_quiver/{number}/c5026f74-0000000000-0.parquet", parquet([7]))
    clock.advance(3601)
    assert [len(one.files) for one in LakeCompactor(objects, clock=clock).plan()] == [4]


def test_files_with_other_columns_are_not_combined():
    """Each schema has its own file."""
    objects, clock = lake()
    for batch in (7, 8):
        objects.put(name(batch), parquet(["a"], column="other"))
    clock.advance(3601)
    assert sorted((done.rows, len(done.inputs)) for done in run(objects, clock)) == [(2, 2), (8, 4)]
    assert len(CompactionLog(objects).current_files()) == 3


def test_a_plan_changes_nothing():
    """Also when a compaction was interrupted."""
    objects, clock = lake()
    before = list(objects.list_below(""))
    assert [(one.directory, len(one.files)) for one in LakeCompactor(objects, clock=clock).plan()] == [(DAY, 4)]
    assert list(objects.list_below("")) == before


def half_done():
    """Return a lake of which a part was compacted before."""
    objects, clock = lake(2)
    run(objects, clock)
    for batch in (2, 3):
        objects.put(name(batch), parquet([2 * batch, 2 * batch + 1]))
    clock.advance(3601)
    return objects, clock


def requests():
    inner, clock = half_done()
    objects = FaultObjects(inner)
    run(objects, clock)
    return dict(objects.calls)


def test_a_kill_at_any_request_loses_nothing():
    """The current list has each row once at every request; a plain listing has no row less; the next run finishes."""
    total = sum(requests().values())
    assert total > 20
    for stop in range(total):
        for is_answer_lost in (False, True):
            inner, clock = half_done()
            objects = FaultObjects(inner)
            seen = []

            def cut(operation, _key, objects=objects, inner=inner, seen=seen, stop=stop, lost=is_answer_lost):
                seen.append(operation)
                assert current(inner) == ALL
                if len(seen) == stop + 1 and lost:
                    objects.fail_on(operation, 1, how="lose_answer")
                if len(seen) == stop + (2 if lost else 1):
                    raise PowerCut

            objects.on_call = cut
            with pytest.raises((PowerCut, ObjectsUnavailableError)):
                run(objects, clock)
                raise PowerCut  # the last answer was not needed
            assert current(inner) == ALL
            assert set(listed(inner)) == set(ALL)
            run(inner, clock)
            assert listed(inner) == current(inner) == ALL
            assert not [i.key for i in inner.list_below("_compaction") if "staged" in i.key]


@pytest.mark.parametrize("operation", USED)
def test_a_request_that_fails_stops_the_compaction(operation):
    """The next run continues."""
    for call in range(1, requests()[operation] + 1):
        inner, clock = half_done()
        objects = FaultObjects(inner)
        objects.fail_on(operation, call)
        with pytest.raises(ObjectsUnavailableError):
            run(objects, clock)
        assert current(inner) == ALL
        objects.heal()
        run(objects, clock)
        assert listed(inner) == ALL


def test_of_two_compactors_one_continues():
    """The other one stops and removes its part."""
    objects, clock = lake()
    slow = FaultObjects(objects)
    slow.on_call = lambda operation, _key: run(objects, clock) if operation == "put_parts" else None
    with pytest.raises(TransientError, match="another compaction"):
        run(slow, clock)
    assert listed(objects) == current(objects) == ALL
    assert not [i.key for i in objects.list_below("_compaction") if "staged" in i.key]


def test_a_compactor_that_was_overtaken_brings_nothing_back():
    """It continues after another process finished its compaction and compacted the result."""
    objects, clock = lake()
    run(objects, clock)
    first = CompactionLog(objects).last()
    objects.put(name(9), parquet([8]))
    clock.advance(3601)
    run(objects, clock)
    CompactionLog(objects).finish(first)
    assert listed(objects) == current(objects) == sorted([*ALL, 8])


def test_files_of_a_batch_that_is_being_published_stay():
    """Otherwise, the exporter would copy its part to the name of a deleted file, and rows would be visible twice."""
    objects, clock = lake(1)
    made = ObjectCommitter(objects, query_id=QUERY, stores=["5c0f"], subscriber="exp", clock=clock)
    made.recover()
    with made.writing(1) as prefix:
        data = parquet([2, 3])
        objects.put(f"_quiver/{QUERY}/staged/{prefix}0.part", data)
    faults = FaultObjects(objects)
    made._objects = faults
    faults.fail_on("delete", 1)
    with pytest.raises(ObjectsUnavailableError):
        made.commit(1, [StagedFile(DAY, f"{prefix}0.part", 2, len(data))], {"5c0f": BundleRef(1, 0)})
    clock.advance(3601)
    assert run(objects, clock) == []
    assert made.is_committed(1)
    clock.advance(3601)
    assert len(run(objects, clock)) == 1
    assert listed(objects) == [0, 1, 2, 3, 100]


def test_a_file_that_disappeared_is_left_out():
    """A retention rule of the bucket may remove old files at any time."""
    objects, clock = lake()
    faults = FaultObjects(objects)
    faults.on_call = lambda operation, _key: objects.delete([name(0)]) if operation == "get_range" else None
    (done,) = run(faults, clock)
    assert len(done.inputs) == 3
    assert listed(objects) == [*range(2, 8), 100]


@pytest.mark.parametrize("data", [b"", b"PAR1 not Parquet PAR1"])
def test_a_damaged_file_is_reported_and_stays(data):
    """With its name."""
    objects, clock = lake()
    objects.put(name(2), data)
    clock.advance(3601)
    with pytest.raises(CorruptionError, match="0000000002"):
        run(objects, clock)
    assert len(CompactionLog(objects).current_files()) == 5


def test_inputs_stay_when_the_output_is_missing():
    """It was deleted: the rows of the inputs are all that is left."""
    objects, clock = lake()
    log = CompactionLog(objects)
    inputs = tuple(LakeFile(name(batch), 1) for batch in range(2))
    record = CompactionRecord(0, log.staged_key(0, "x"), LakeFile(f"{DAY}/compacted-0000000000.parquet", 9), 4, inputs)
    assert log.commit(record)
    with pytest.raises(CorruptionError, match="its inputs stay"):
        run(objects, clock)
    assert listed(objects) == current(objects) == ALL


def test_an_output_is_never_an_input():
    """It would be deleted as soon as it is visible."""
    objects, _ = lake()
    log = CompactionLog(objects)
    output = LakeFile(name(0), objects.head(name(0)).size_bytes)
    with pytest.raises(InvariantError, match="after its output is visible"):
        log.finish(CompactionRecord(0, log.staged_key(0, "x"), output, 4, (output,)))


def test_rows_that_are_missing_are_not_committed(monkeypatch):
    """A reader that returns fewer rows than the file says would lose them."""
    objects, clock = lake()
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: iter(()))
    with pytest.raises(InvariantError, match="all rows of its inputs"):
        run(objects, clock)
    assert listed(objects) == ALL


def test_records_round_trip_and_damage_is_found():
    """Old records are removed; every flipped byte and a later version is reported."""
    record = CompactionRecord(7, "p", LakeFile("o", 1), 2, (LakeFile("i", 3), LakeFile("j", 4)))
    data = record.encode()
    assert CompactionRecord.decode(data, "k") == record
    for bad in (data[:-1], data.replace(b'"rows": 2', b'"rows": 3'), b"[]", b"", data + b"x"):
        with pytest.raises(CorruptionError):
            CompactionRecord.decode(bad, "k")
    objects = MemoryObjects()
    log = CompactionLog(objects)
    objects.put("o", b"1")
    for number in range(RECORDS_KEPT + 2):
        log.finish(CompactionRecord(number, "p", LakeFile("o", 1), 2, ()))
        log.commit(CompactionRecord(number, "p", LakeFile("o", 1), 2, ()))
    assert log.last().number == RECORDS_KEPT + 1
    log.finish(log.last())
    assert len(list(objects.list_below("_compaction"))) == RECORDS_KEPT
