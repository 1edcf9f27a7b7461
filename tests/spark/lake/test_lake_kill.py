"""An exporter to a bucket and a compaction are killed: every row is visible once, in a bucket of a real S3 server."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from quiver.objects import ObjectLocation, open_objects
from quiver.spark.lake.compaction_log import CompactionLog
from s3_server import S3Server

pytestmark = [pytest.mark.kill, pytest.mark.spark, pytest.mark.timeout(600)]

SCRIPT = """
import json, sys, quiver.spark
from quiver.spark.lake.layout import FileLayout, PartitionBy
from quiver.spark.lake.output import output_of
store, url, options, checkpoint, now = sys.argv[1:]
spark = quiver.spark.session()
trigger = {"availableNow": True} if now == "now" else {"processingTime": "0 seconds"}
query = quiver.spark.run_exporter(
    spark, store, "exp", output_of(url, json.loads(options)), checkpoint, trigger=trigger,
    options={"maxBundlesPerTrigger": "3"}, layout=FileLayout(partition_by=PartitionBy(("day", "hour")))
)
print("started", flush=True)
query.awaitTermination()
spark.stop()
"""
KILLS = 3
BUNDLES_BETWEEN = 60
SMALL_FILES = 240


def files_of(server: S3Server):
    return pyarrow.fs.S3FileSystem(
        access_key=server.access_key, secret_key=server.secret_key, region="us-east-1",
        endpoint_override=server.endpoint.removeprefix("http://"), scheme="http",
    )  # fmt: skip


def logs_in(server, url):
    place = f"{url.removeprefix('s3://')}/logs"
    files = files_of(server)
    if files.get_file_info(place).type == pyarrow.fs.FileType.NotFound:
        return []
    found = ds.dataset(place, filesystem=files, format="parquet", partitioning="hive")
    return sorted(found.to_table(columns=["time_unix_nano"])[0].to_pylist())


def test_kills_of_an_exporter_lose_and_duplicate_nothing(store, tmp_path, s3_server):
    """Driver, JVM and tasks, at random moments; between the kills, no reader sees a row twice."""
    chance = random.Random(os.environ.get("QUIVER_TEST_SEED", "1"))
    url = s3_server.url()
    arguments = [store.root, url, json.dumps(s3_server.options()), str(tmp_path / "ck")]
    for _ in range(KILLS):
        store.otlp(BUNDLES_BETWEEN)
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *arguments, "ever"], start_new_session=True, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert process.stdout.readline() == "started\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=chance.uniform(2.0, 8.0))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
        seen = logs_in(s3_server, url)
        assert len(seen) == len(set(seen))
    subprocess.run([sys.executable, "-c", SCRIPT, *arguments, "now"], check=True, timeout=300, capture_output=True)
    total = KILLS * BUNDLES_BETWEEN
    assert logs_in(s3_server, url) == [i for bundle in range(0, total, 3) for i in range(bundle * 5, bundle * 5 + 5)]


def test_kills_of_a_compaction_lose_nothing(s3_server):
    """The list of current files has each row once after every kill; the last run leaves one file for each partition."""
    chance = random.Random(os.environ.get("QUIVER_TEST_SEED", "1"))
    url = s3_server.url()
    objects = open_objects(ObjectLocation.from_url(url, s3_server.options()))
    for number in range(SMALL_FILES):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"n": [number]}), sink)
        objects.put(f"logs/part={number // 3:02}/c5026f74-{number:010}-0.parquet", sink.getvalue().to_pybytes())
    options = [f"--option={key}={value}" for key, value in s3_server.options().items()]
    command = [sys.executable, "-m", "quiver.cli.main", "lake", "compact", url, "--older-than", "0s", *options]
    files = files_of(s3_server)

    def rows():
        found = [f"{url.removeprefix('s3://')}/{one.key}" for one in CompactionLog(objects).current_files()]
        return sorted(
            n for one in found for n in pq.read_table(one, filesystem=files, partitioning=None)[0].to_pylist()
        )

    killed = 0
    for _ in range(100):
        try:
            subprocess.run(command, timeout=chance.uniform(0.8, 2.5), check=True, capture_output=True)
            break
        except subprocess.TimeoutExpired:  # it was killed
            killed += 1
            assert rows() == list(range(SMALL_FILES))
    assert killed
    assert rows() == list(range(SMALL_FILES))
    visible = [info.key for info in objects.list_below("logs")]
    assert len(visible) == SMALL_FILES // 3
