"""The Parquet exporter with partitions and buckets in a real Spark session, against a real S3 server."""

from __future__ import annotations

import os
import pathlib

import polars as pl
import pyarrow.dataset as ds
import pyarrow.fs
import pytest
from needed import needs
from stores import logs_request, seal_requests

from quiver.objects import ObjectLocation, open_objects
from quiver.spark.bundle_query import start_bundle_query
from quiver.spark.exporters.parquet import ParquetExporter
from quiver.spark.exporters.query import start_export
from quiver.spark.lake.layout import FileLayout, PartitionBy
from quiver.spark.lake.output import BucketOutput, configured_output
from quiver.spark.lake.settings import ParquetTables
from quiver.spark.processors.settings import FilterSettings
from quiver.spark.spark_features import EXPORTERS
from s3_server import S3Server

pytestmark = pytest.mark.spark

HOUR_NS = 3_600_000_000_000
NOW = {"availableNow": True}
LAYOUT = FileLayout(partition_by=PartitionBy(("day", "hour")))


def hourly(store, first, count):
    """Store one log record for each hour, and return their times."""
    times = [hour * HOUR_NS for hour in range(first, first + count)]
    seal_requests(store, *(logs_request([time]) for time in times))
    return times


def run(query):
    try:
        query.awaitTermination(90)
    finally:
        query.stop()


def export(spark, store, tmp_path, output, layout=LAYOUT, checkpoint="ck"):
    exporter = ParquetExporter(store.root, "exp", output, layout=layout)
    run(start_bundle_query(spark, store.root, "exp", exporter, checkpoint=str(tmp_path / checkpoint), trigger=NOW,
                           options={}))  # fmt: skip


def bucket_of(tmp_path):
    """Return objects as files: the same committer, and readers need no server."""
    return BucketOutput(ObjectLocation.from_url(str(tmp_path / "lake")))


def logs_in(tmp_path):
    root = tmp_path / "lake" / "logs"
    return sorted(ds.dataset(str(root), format="parquet").to_table(columns=["time_unix_nano"])[0].to_pylist())


@needs(EXPORTERS)
def test_partitions_in_a_bucket_of_a_real_server(spark, store, tmp_path, s3_server: S3Server):
    """Tasks send the files; Polars and pyarrow read them; a query with a new checkpoint exports nothing again."""
    url = s3_server.url()
    settings = ParquetTables(url, options=s3_server.options(), partition_by=("day", "hour"))
    times = hourly(store, 22, 4)
    store.rows(2)
    export(spark, store, tmp_path, configured_output(settings), settings.layout())
    times += hourly(store, 30, 2)
    export(spark, store, tmp_path, configured_output(settings), settings.layout())
    export(spark, store, tmp_path, configured_output(settings), settings.layout(), checkpoint="lost")
    options = {
        "aws_endpoint_url": s3_server.endpoint, "aws_access_key_id": s3_server.access_key,
        "aws_secret_access_key": s3_server.secret_key, "aws_region": "us-east-1", "aws_allow_http": "true",
    }  # fmt: skip
    logs = pl.scan_parquet(f"{url}/logs/**/*.parquet", hive_partitioning=True, storage_options=options).collect()
    assert sorted(logs["time_unix_nano"]) == times
    assert sorted(zip(logs["day"].cast(pl.String), logs["hour"], strict=True)) == [
        ("1970-01-01", 22), ("1970-01-01", 23), ("1970-01-02", 0), ("1970-01-02", 1), ("1970-01-02", 6),
        ("1970-01-02", 7),
    ]  # fmt: skip
    files = pyarrow.fs.S3FileSystem(
        access_key=s3_server.access_key, secret_key=s3_server.secret_key, region="us-east-1",
        endpoint_override=s3_server.endpoint.removeprefix("http://"), scheme="http",
    )  # fmt: skip
    place = f"{url.removeprefix('s3://')}/logs"
    table = ds.dataset(place, filesystem=files, format="parquet", partitioning="hive").to_table()
    assert sorted(table["time_unix_nano"].to_pylist()) == times
    names = [info.key for info in open_objects(ObjectLocation.from_url(url, s3_server.options())).list_below("")]
    assert not [name for name in names if name.endswith(".part")]
    assert any(name.startswith("slots/logs/") for name in names)


CUTS = {
    "before the record": "quiver.spark.lake.object_commit.ObjectCommitter.commit",
    "after the record": "quiver.spark.lake.object_commit.ObjectCommitter._publish",
    "before the parts are removed": "quiver.spark.lake.object_commit.staged_batch_of",
}
SLOW_CUTS = {"before the record", "before the parts are removed"}
"""`test_lake_object_commit.py` has all cuts without Spark."""


class DriverCrash(Exception):
    """The driver dies in a callback of Spark. Only an `Exception` reaches Java; with another one the query hangs."""


@needs(EXPORTERS)
@pytest.mark.parametrize("cut", [pytest.param(cut, marks=[pytest.mark.slow] * (cut in SLOW_CUTS)) for cut in CUTS])
def test_a_crash_of_the_driver_during_a_commit_duplicates_nothing(spark, store, tmp_path, monkeypatch, cut):
    """The next run finishes the batch or writes it again."""

    def die(*_args, **_kwargs):
        raise DriverCrash

    times = hourly(store, 0, 3)
    with monkeypatch.context() as patch:
        patch.setattr(CUTS[cut], die)
        with pytest.raises(Exception, match="DriverCrash"):
            export(spark, store, tmp_path, bucket_of(tmp_path))
    assert (tmp_path / "lake" / "logs").exists() == (cut == "before the parts are removed")
    times += hourly(store, 3, 1)
    export(spark, store, tmp_path, bucket_of(tmp_path))
    assert logs_in(tmp_path) == times
    assert not list((tmp_path / "lake").rglob("*.part"))


@needs(EXPORTERS)
def test_tables_after_processors_are_partitioned_too(spark, store, tmp_path):
    """On a disk; a batch of a new checkpoint is not written again."""
    times = hourly(store, 22, 4)
    settings = ParquetTables(str(tmp_path / "lake"), partition_by=("signal", "day"), target_file_size_bytes=1 << 20)
    for checkpoint in ("ck", "lost"):
        chain = [FilterSettings(keep=f"time_unix_nano != {times[0]}")]
        place = str(tmp_path / checkpoint)
        run(start_export(spark, store.root, "exp", settings, checkpoint=place, chain=chain, trigger=NOW))
    files = {path.parent.relative_to(tmp_path / "lake").parts for path in (tmp_path / "lake").rglob("*.parquet")}
    assert files == {("signal=logs", "day=1970-01-01"), ("signal=logs", "day=1970-01-02")}
    found = ds.dataset(str(tmp_path / "lake"), format="parquet", partitioning="hive").to_table()
    assert sorted(found["time_unix_nano"].to_pylist()) == times[1:]
    assert {*found["signal"].to_pylist()} == {"logs"}


@needs(EXPORTERS)
def test_a_query_waits_for_more_data(spark, store, tmp_path):
    """One file instead of one for each segment, when the data is old enough."""
    exporter = ParquetExporter(store.root, "exp", bucket_of(tmp_path))
    options = {"maxTriggerDelay": "1h"}
    query = start_bundle_query(
        spark, store.root, "exp", exporter, checkpoint=str(tmp_path / "ck"), options=options,
        trigger={"processingTime": "0 seconds"},
    )  # fmt: skip
    try:
        times = hourly(store, 0, 1)
        query.processAllAvailable()
        assert not (tmp_path / "lake" / "logs").exists()
        times += hourly(store, 1, 1)
        for path in pathlib.Path(store.root, "segments").iterdir():
            os.utime(path, (1, 1))
        query.processAllAvailable()
        assert logs_in(tmp_path) == times
        assert len(list((tmp_path / "lake" / "logs").iterdir())) == 1
    finally:
        query.stop()


@needs(EXPORTERS)
def test_too_many_partitions_fail_the_batch_and_lose_nothing(spark, store, tmp_path):
    """With another layout the same query continues."""
    times = hourly(store, 0, 5)
    narrow = FileLayout(partition_by=PartitionBy(("day", "hour")), partitions_max=3)
    with pytest.raises(Exception, match="raise max_partitions"):
        export(spark, store, tmp_path, bucket_of(tmp_path), narrow)
    assert not [path for path in (tmp_path / "lake").rglob("*.*") if path.suffix in {".parquet", ".part"}]
    export(spark, store, tmp_path, bucket_of(tmp_path))
    assert logs_in(tmp_path) == times
