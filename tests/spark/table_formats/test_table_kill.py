"""The driver, the JVM and the tasks of an exporter to tables are killed: every row is exported once."""

import os
import random
import signal
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.kill, pytest.mark.spark, pytest.mark.timeout(900)]

SCRIPT = """
import sys, quiver.spark
from quiver.spark.exporters.query import start_export
from quiver.spark.table_formats import settings
store, out, checkpoint, kind, now = sys.argv[1:]
trigger = {"availableNow": True} if now == "now" else {"processingTime": "0 seconds"}
query = start_export(
    quiver.spark.session(), store, "exp", getattr(settings, kind)(path=out), checkpoint=checkpoint, trigger=trigger,
    options={"maxBundlesPerTrigger": "3"},
)
print("started", flush=True)
query.awaitTermination()
"""

KILLS = 3
BUNDLES = 30
"""Before each kill: ten batches, each with three commits."""


def start(store, lake, checkpoint, when):
    arguments = [store.root, str(lake.root), str(checkpoint), type(lake.settings()).__name__, when]
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments], start_new_session=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def test_kills_lose_and_duplicate_nothing(store, lake, tmp_path):
    """The last run has a new checkpoint, so it must know what earlier queries have exported."""
    chance = random.Random(os.environ.get("QUIVER_TEST_SEED", "1"))
    for number in range(KILLS):
        store.otlp(BUNDLES)
        process = start(store, lake, tmp_path / "checkpoint", "ever")
        try:
            assert process.stdout.readline() == "started\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=chance.uniform(2.0, 2.0 + 4 * (number + 1)))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
    process = start(store, lake, tmp_path / "new", "now")
    process.communicate(timeout=600)
    assert process.returncode == 0
    total = KILLS * BUNDLES
    assert lake.numbers("logs") == [i for bundle in range(0, total, 3) for i in range(bundle * 5, bundle * 5 + 5)]
    assert lake.read("spans").num_rows == lake.read("metrics").num_rows == total // 3 * 5
