"""On a cluster: tasks run in their own processes on two workers with a shared directory. Run by `make test-cluster`."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import quiver
from spark_cluster import environment, running_cluster

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Yield one cluster for all tests, because it takes about ten seconds to start."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def buffer(tmp_path, monkeypatch):
    """Return a buffer of sample telemetry: twelve orders of three services."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from sample_telemetry import fill

    fill(str(tmp_path / "buffer"))
    return tmp_path / "buffer"


def test_the_example_runs_on_both_workers(cluster, buffer, tmp_path):
    """Once, and again with the data that arrived in between; every record is exported once."""
    for orders in (12, 24):
        printed = cluster.submit(EXAMPLES / "cluster_spark.py", str(buffer), str(tmp_path / "out"))
        assert f"exported {4 * orders} log records" in printed
        assert "service shop:" in printed
        from sample_telemetry import fill

        fill(str(buffer))
    assert pq.read_table(tmp_path / "out" / "spans").num_rows == 24
    for worker in cluster.workers:
        worker.await_line("Asked to launch executor")


SINK = """
import sys
from pyspark.sql import SparkSession
import quiver.spark
from quiver.spark.processors.settings import RedactSettings
from quiver.spark.processors.chain import build
source, target, checkpoint = sys.argv[1:4]
spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
quiver.spark.register(spark)
logs = spark.readStream.format("quiver").options(path=source, subscriber="sink", view="logs", minPartitions="4").load()
clean = build(RedactSettings(value_patterns=("[^ ]+@[^ ]+",)))(logs)
query = clean.writeStream.format("quiver").options(path=target, view="logs", checkpointLocation=checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
spark.range(1000).repartition(4).write.format("quiver").mode("append").option("slot", "30").save(target)
spark.stop()
"""


def test_sinks_commit_the_data_of_both_workers(cluster, buffer, tmp_path):
    """Rows are processed in tasks, staged by each of them, and committed once."""
    script = tmp_path / "sink.py"
    script.write_text(SINK)
    target = tmp_path / "target"
    for _ in range(2):
        cluster.submit(script, str(buffer), str(target), str(tmp_path / "checkpoint"))
    bundles = [bundle for _, bundle in quiver.read(target).bundles()]
    rows = sorted(i for bundle in bundles if 30 in bundle.slots for i in bundle[30].column("id").to_pylist())
    assert rows == sorted([*range(1000)] * 2)
    from quiver.otap import view

    lines = [
        body["string_value"]
        for bundle in bundles
        if 60 in bundle.slots
        for body in view(bundle[60], "logs").column("body").to_pylist()
    ]
    assert len(lines) == 48
    assert all(text.endswith("of ****") for text in lines)


SESSION = """
import quiver.spark
spark = quiver.spark.session("mine", config={"spark.sql.shuffle.partitions": "7"})
for key in ("master", "driver.host", "sql.shuffle.partitions", "sql.session.timeZone", "log.level"):
    print(key, spark.sparkContext.getConf().get("spark." + key))
print("rows", spark.range(100).repartition(4).count())
spark.stop()
"""


def test_a_session_takes_its_master_from_spark_submit(cluster, tmp_path):
    """And its other properties; those of the program precede them, and both precede the defaults."""
    script = tmp_path / "session.py"
    script.write_text(SESSION)
    printed = cluster.submit(script)
    for line in (
        f"master {cluster.url}", "driver.host 127.0.0.1", "sql.shuffle.partitions 7", "sql.session.timeZone UTC",
        "log.level ERROR", "rows 100",
    ):  # fmt: skip
        assert line in printed.splitlines()


CONNECT = """
import sys
from pyspark.sql import SparkSession
import quiver.spark
from quiver.spark.processors.settings import FilterSettings, RedactSettings
from quiver.spark.processors.chain import build
buffer, target, checkpoint = sys.argv[1:4]
spark = SparkSession.builder.remote("local[2]").config("spark.sql.session.timeZone", "UTC").getOrCreate()
quiver.spark.register(spark)
reader = spark.read.format("quiver").option("path", buffer)
print("view", reader.option("view", "logs").load().count())
bundles = spark.read.format("quiver").option("path", buffer).option("mode", "bundles").load()
rows = quiver.spark.map_bundles(bundles, lambda ref, bundle: None, "id long")
print("map", rows.count())
logs = spark.readStream.format("quiver").options(path=buffer, subscriber="connect", view="logs").load()
chain = build(RedactSettings(keys=("user",)))(build(FilterSettings(keep="severity_number >= 17"))(logs))
query = chain.writeStream.format("quiver").options(path=target, view="logs", checkpointLocation=checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
print("sunk", spark.read.format("quiver").option("view", "logs").load(target).count())
spark.range(10).write.format("quiver").mode("append").option("slot", "30").save(target)
print("written", spark.read.format("quiver").option("slot", "30").load(target).count())
try:
    quiver.spark.run_exporter(
        spark, buffer, "export", target + ".out", checkpoint + "2", trigger={"availableNow": True}
    ).awaitTermination()
    print("exported")
except Exception as error:
    print("refused", str(error).splitlines()[0][:200])
spark.stop()
"""


@pytest.mark.skipif(find_spec("grpc_status") is None or find_spec("zstandard") is None, reason="needs pyspark[connect]")
def test_spark_connect_supports_reads_streams_and_sinks(buffer, tmp_path):
    """And `map_bundles`, and processors of one frame; exporters need the driver."""
    script = tmp_path / "connect.py"
    script.write_text(CONNECT)
    done = subprocess.run(
        [sys.executable, str(script), str(buffer), str(tmp_path / "target"), str(tmp_path / "checkpoint")],
        env=environment(), capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()
    for expected in ("view 48", "map 0", "sunk 10", "written 10"):
        assert expected in lines
    assert any(line.startswith("refused") for line in lines)
