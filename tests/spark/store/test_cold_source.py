"""Spark queries read segments that are stored only in the object tier."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import quiver
from quiver.errors import CorruptionError
from quiver.objects.location import ObjectLocation
from quiver.settings import Settings
from quiver.spark.store.read_partition import open_checked
from quiver.store.reading.segments import store_root

ROWS = 40


@pytest.fixture
def cold_store(tmp_path: Path) -> Path:
    """Return a store with four segments of ten rows, all in the object tier, none on disk."""
    root = tmp_path / "buffer"
    settings = Settings(cold_objects=ObjectLocation.from_url(str(tmp_path / "cold")), cold_local_bytes=0)
    with quiver.open(root, settings, background=False) as store:
        for start in range(0, ROWS, 10):
            store.ingest(quiver.Bundle({30: pa.record_batch({"n": pa.array(range(start, start + 10))})}))
            store.seal()
            for _ in range(2):
                store.maintain()
    assert list((root / "segments").glob("*.qseg")) == []
    return root


def test_a_batch_query_reads_the_object_tier(spark, cold_store):
    """Schema, plan and every row."""
    frame = spark.read.format("quiver").option("path", str(cold_store)).option("slot", "30").load()
    assert sorted(row["n"] for row in frame.collect()) == list(range(ROWS))


@pytest.mark.slow
def test_a_streaming_query_reads_the_object_tier_and_acknowledges(spark, cold_store, tmp_path):
    """As a subscriber: the next maintenance of the store deletes resolved segments from the tier."""
    frame = spark.readStream.format("quiver").option("path", str(cold_store)).option("slot", "30")
    frame = frame.option("startingOffsets", "earliest").option("subscriber", "spark").load()
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "check"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.exception() is None
    assert sorted(row["n"] for row in spark.read.parquet(str(tmp_path / "out")).collect()) == list(range(ROWS))


def test_a_task_names_a_damaged_object(cold_store, tmp_path):
    """The error has the key of the object; with `failOnDataLoss` off, the object is skipped."""
    first = min((tmp_path / "cold").rglob("*.qseg"))
    first.chmod(0o600)
    first.write_bytes(first.read_bytes()[:-1] + b"\0")
    path = f"{cold_store}/segments/{0:016}.qseg"
    assert store_root(path) == str(cold_store)
    with pytest.raises(CorruptionError, match=first.name):
        open_checked(path, fail_on_data_loss=True)
    assert open_checked(path, fail_on_data_loss=False) is None
