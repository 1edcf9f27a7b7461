"""The driver, the JVM and the tasks of a query over a fleet are killed: every row is written once."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter

import pytest
from nodes import Node

pytestmark = [pytest.mark.kill, pytest.mark.spark, pytest.mark.timeout(3600)]

SCRIPT = """
import sys, quiver.spark
bucket, out, checkpoint, now = sys.argv[1:]
spark = quiver.spark.session()
quiver.spark.register(spark)
frame = spark.readStream.format("quiver-fleet").option("path", bucket).option("subscriber", "lake")
frame = frame.option("view", "logs").option("maxBytesPerTrigger", "20000").option("listInterval", "100ms").load()
trigger = {"availableNow": True} if now == "now" else {"processingTime": "0 seconds"}
writer = frame.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
query = writer.trigger(**trigger).start()
print("started", flush=True)
query.awaitTermination()
spark.stop()
"""

KILLS_MIN = 3
CYCLES_EACH = 1000
"""Starting a driver takes as long as this many cycles of the kill lane."""
NODES = 4
SEGMENTS_BETWEEN = 20


def start(tmp_path, when):
    arguments = [str(tmp_path / name) for name in ("bucket", "out", "check")]
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments, when], start_new_session=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def test_kills_lose_and_duplicate_nothing(tmp_path, spark, request):
    """At random moments. Then the nodes are empty."""
    kills = max(KILLS_MIN, request.config.getoption("--kill-cycles") // CYCLES_EACH)
    chance = random.Random(os.environ.get("QUIVER_TEST_SEED", "1"))
    nodes = [Node(tmp_path / f"node{k}", f"edge-{k}", str(tmp_path / "bucket")) for k in range(NODES)]
    sent = 0
    for _ in range(kills):
        for node in nodes:
            node.send(*([sent + k] for k in range(SEGMENTS_BETWEEN)))
            sent += SEGMENTS_BETWEEN
        process = start(tmp_path, "ever")
        try:
            assert process.stdout.readline() == "started\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=chance.uniform(2.0, 6.0))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
    process = start(tmp_path, "now")
    process.communicate(timeout=300)
    assert process.returncode == 0
    rows = Counter(row[0] for row in spark.read.parquet(str(tmp_path / "out")).select("time_unix_nano").collect())
    figures = {
        "kills": kills,
        "sent": sent,
        "lost": sent - len(rows),
        "duplicated": rows.total() - len(rows),
        "segments left": sum(node.left() for node in nodes),
    }
    print(json.dumps(figures))
    assert set(rows) == set(range(sent)), figures
    assert (figures["duplicated"], figures["segments left"]) == (0, 0), figures
