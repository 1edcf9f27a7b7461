"""An exporter to a bucket, and a compaction of it, in processes that are killed at random moments."""

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


def logs_in(files: pyarrow.fs.FileSystem, url: str) -> list[int]:
    """Return the times of all rows below *url*, sorted, as a reader sees them that only lists the bucket."""
    place = f"{url.partition('://')[2]}/logs"
    if files.get_file_info(place).type == pyarrow.fs.FileType.NotFound:
        return []
    found = ds.dataset(place, filesystem=files, format="parquet", partitioning="hive")
    return sorted(found.to_table(columns=["time_unix_nano"])[0].to_pylist())


def export_with_kills(store, tmp_path, url, options, files):
    """Export to *url* and kill driver, JVM and tasks. *files* never has a row twice, and has all rows at the end."""
    chance = random.Random(os.environ.get("QUIVER_TEST_SEED", "1"))
    arguments = [store.root, url, json.dumps(options), str(tmp_path / "ck")]
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
        seen = logs_in(files, url)
        assert len(seen) == len(set(seen))
    subprocess.run([sys.executable, "-c", SCRIPT, *arguments, "now"], check=True, timeout=300, capture_output=True)
    total = KILLS * BUNDLES_BETWEEN
    assert logs_in(files, url) == [i for bundle in range(0, total, 3) for i in range(bundle * 5, bundle * 5 + 5)]


def compact_with_kills(url, options, files):
    """Kill a compaction until it is done. The list of current files has each row once after every kill."""
    chance = random.Random(os.environ.get("QUIVER_TEST_SEED", "1"))
    objects = open_objects(ObjectLocation.from_url(url, options))
    for number in range(SMALL_FILES):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"n": [number]}), sink)
        objects.put(f"logs/part={number // 3:02}/c5026f74-{number:010}-0.parquet", sink.getvalue().to_pybytes())
    given = [f"--option={key}={value}" for key, value in options.items()]
    command = [sys.executable, "-m", "quiver.cli.main", "lake", "compact", url, "--older-than", "0s", *given]

    def rows():
        found = [f"{url.partition('://')[2]}/{one.key}" for one in CompactionLog(objects).current_files()]
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
    assert len(list(objects.list_below("logs"))) == SMALL_FILES // 3
