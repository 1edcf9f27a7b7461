"""Rows of a task become files of the target size, in a directory or a bucket, and an error leaves none complete."""

from __future__ import annotations

import io
import os
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiver.errors import ObjectsUnavailableError, UsageError
from quiver.objects import ObjectLocation
from quiver.objects.memory import MemoryObjects
from quiver.primitives.checksum import crc32
from quiver.spark.lake import part_files
from quiver.spark.lake.layout import FileLayout, PartitionBy
from quiver.spark.lake.part_files import PartFiles
from quiver.spark.lake.staging import BucketStaging, DirectoryStaging, send_file
from quiver.testing.faultobjects import FaultObjects


def rows(count, start=0):
    """Return rows that do not compress."""
    return pa.record_batch({"n": list(range(start, start + count)), "data": [os.urandom(100) for _ in range(count)]})


def staging_in(tmp_path, kind):
    if kind == "directory":
        return DirectoryStaging(str(tmp_path / "out"), "p-")
    return pickle.loads(pickle.dumps(BucketStaging(ObjectLocation.from_url(str(tmp_path / "out")), "query", "p-")))


@pytest.mark.parametrize("kind", ["directory", "bucket"])
def test_files_are_closed_at_the_target_size(tmp_path, kind):
    """Each has about that size, and every row is in one of them, in order."""
    files = PartFiles(staging_in(tmp_path, kind), FileLayout("none", file_bytes_max=64 << 10), "00000-1")
    for start in range(0, 4000, 100):
        files.add("logs", rows(100, start))
    found = files.finish()
    files.close()
    paths = {path.name: path for path in (tmp_path / "out").rglob("*.part")}
    assert len(found) > 4
    assert all(path.stat().st_size < 140 << 10 for path in paths.values())
    assert {part.name: part.size_bytes for part in found} == {n: path.stat().st_size for n, path in paths.items()}
    assert [n for part in found for n in pq.read_table(paths[part.name])["n"].to_pylist()] == list(range(4000))
    assert sum(part.rows for part in found) == 4000


@pytest.mark.parametrize("kind", ["directory", "bucket"])
def test_schemas_and_partitions_have_their_own_files(tmp_path, kind):
    """Batches without rows have none."""
    files = PartFiles(staging_in(tmp_path, kind), FileLayout(partition_by=PartitionBy(("k",))), "00000-1")
    files.add("t", pa.record_batch({"k": ["a", "b", "a"]}))
    files.add("t", pa.record_batch({"k": ["a"], "more": [1]}))
    files.add("slots/x", pa.record_batch({"y": pa.array([], pa.int64())}))
    found = [(part.table, part.rows) for part in files.finish()]
    assert found == [("t/k=a", 2), ("t/k=b", 1), ("t/k=a", 1)]


def test_memory_is_bounded_over_all_partitions(tmp_path, monkeypatch):
    """The partition with the most rows gets its row group."""
    monkeypatch.setattr(part_files, "_WAITING_BYTES_MAX", 40_000)
    files = PartFiles(staging_in(tmp_path, "directory"), FileLayout(partition_by=PartitionBy(("k",))), "t")
    for number in range(100):
        files.add("t", pa.record_batch({"k": [str(number % 3)] * 10, "data": [os.urandom(100) for _ in range(10)]}))
        assert sum(one.writer.waiting_bytes for one in files._open.values()) == files._waiting_bytes <= 40_000
    assert sum(part.rows for part in files.finish()) == 1000


def test_more_partitions_than_the_limit_are_refused(tmp_path):
    """The error names the setting."""
    layout = FileLayout(partition_by=PartitionBy(("k",)), partitions_max=2)
    files = PartFiles(staging_in(tmp_path, "bucket"), layout, "t")
    with pytest.raises(UsageError, match="more than 2 partitions, the last one t/k=c.*max_partitions"):
        files.add("t", pa.record_batch({"k": ["a", "b", "c"]}))
    files.close()
    files.close()
    assert not list((tmp_path / "out").rglob("*.part"))


@pytest.mark.parametrize("size", [0, 1, 20 << 20])
def test_a_file_is_sent_completely(size):
    """In one request, or in several parts."""
    objects = MemoryObjects()
    data = os.urandom(size)
    assert send_file(objects, "k", io.BytesIO(data)) == size
    assert crc32(objects.get("k", size_max=size)) == crc32(data)


def test_an_object_with_other_bytes_is_not_accepted():
    """It is read back unless the object store returned its digest."""
    objects = FaultObjects(MemoryObjects())
    objects.fail_on("get_range", 1, how="truncate")
    with pytest.raises(ObjectsUnavailableError, match="differs"):
        send_file(objects, "k", io.BytesIO(b"rows"))
    objects.fail_on("put_parts", 1)
    with pytest.raises(ObjectsUnavailableError, match="injected"):
        send_file(objects, "k", io.BytesIO(b"rows"))
