"""The driver, the JVM and the tasks of an exporter are killed while data arrive: every row is exported once."""

import os
import random
import signal
import subprocess
import sys

import pyarrow.dataset as ds
import pytest

pytestmark = [pytest.mark.kill, pytest.mark.spark, pytest.mark.timeout(600)]

SCRIPT = """
import sys, quiver.spark
store, out, checkpoint, now = sys.argv[1:]
spark = quiver.spark.session()
trigger = {"availableNow": True} if now == "now" else {"processingTime": "0 seconds"}
query = quiver.spark.run_exporter(
    spark, store, "exp", out, checkpoint, trigger=trigger, options={"maxBundlesPerTrigger": "3"}
)
print("started", flush=True)
query.awaitTermination()
spark.stop()
"""

KILLS = 3
BUNDLES_BETWEEN = 60


def start(store, tmp_path, when):
    arguments = [store.root, str(tmp_path / "out"), str(tmp_path / "ck"), when]
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments], start_new_session=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def logs_in(tmp_path):
    directory = tmp_path / "out" / "logs"
    return sorted(ds.dataset(str(directory), format="parquet").to_table(columns=["time_unix_nano"])[0].to_pylist())


def test_three_kills_lose_and_duplicate_nothing(store, tmp_path):
    """At random moments; between the kills, no reader sees a row twice."""
    chance = random.Random(os.environ.get("QUIVER_TEST_SEED", "1"))
    for _ in range(KILLS):
        store.otlp(BUNDLES_BETWEEN)
        process = start(store, tmp_path, "ever")
        try:
            assert process.stdout.readline() == "started\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=chance.uniform(1.0, 5.0))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
        if (tmp_path / "out" / "logs").exists():
            seen = logs_in(tmp_path)
            assert len(seen) == len(set(seen))
    process = start(store, tmp_path, "now")
    process.communicate(timeout=300)
    assert process.returncode == 0
    total = KILLS * BUNDLES_BETWEEN
    expected = [i for bundle in range(0, total, 3) for i in range(bundle * 5, bundle * 5 + 5)]
    assert logs_in(tmp_path) == expected
