"""
A fleet for minutes, with kills: 200 stores in 4 processes, a real S3 server whose proxy counts requests and
answers 30 ms later, and one Spark query. Nodes, driver and server are killed in turn.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from soak_nodes import confirmed

from counting_proxy import CountingProxy
from quiver.clock import SYSTEM_CLOCK
from quiver.objects.location import ObjectLocation
from quiver.objects.opening import open_objects
from s3_server import BUCKET, S3Server, prepare_weed, start_weed, stop
from waiting import wait_until

pytestmark = [pytest.mark.fleet_soak, pytest.mark.spark, pytest.mark.timeout(0)]

QUERY = """
import sys, quiver.spark
path, out, checkpoint = sys.argv[1:]
spark = quiver.spark.session()
quiver.spark.register(spark)
frame = spark.readStream.format("quiver-fleet").option("path", path).option("subscriber", "lake")
frame = frame.option("slot", "30").option("listInterval", "2s").schema("node string, number bigint").load()
writer = frame.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
query = writer.trigger(processingTime="2 seconds").start()
query.awaitTermination()
"""

NODES = 200
PROCESSES = 4
EACH = NODES // PROCESSES
DELAY_S = 0.03
BETWEEN_KILLS_S = (8.0, 20.0)
DRAIN_S = 1800.0


class Soak:
    """The processes of the run: four with nodes, the query, and the S3 server."""

    def __init__(self, folder: Path, server: S3Server, proxy: CountingProxy) -> None:
        self.folder = folder
        options = {**server.options(), "endpoint": proxy.endpoint}
        self.place = [f"s3://{BUCKET}/fleet", options]
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.kills: Counter[str] = Counter()

    def start(self, name: str) -> None:
        """Start one process."""
        if name == "query":
            path = json.dumps({"backend": "s3", "root": self.place[0], "options": self.place[1]})
            arguments = ["-c", QUERY, path, str(self.folder / "out"), str(self.folder / "check")]
        else:
            script = Path(__file__).with_name("soak_nodes.py")
            first = int(name.removeprefix("nodes-")) * EACH
            arguments = [str(script), str(self.folder), json.dumps(self.place), str(first), str(EACH)]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, *arguments], stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, name: str) -> None:
        """Kill one process, with those that it started."""
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Kill what still runs."""
        for name in list(self.running):
            if self.running[name].poll() is None:
                self.kill(name)

    def require_running(self) -> None:
        """No process ended by itself."""
        ended = [name for name, process in self.running.items() if process.poll() not in {None, 0}]
        assert not ended, "\n".join((self.folder / f"{name}.log").read_text()[-3000:] for name in ended)


def test_a_fleet_with_kills_loses_and_duplicates_nothing(
    tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    """In the end each confirmed bundle is in the Parquet files once, and disks and bucket are empty."""
    seconds = float(request.config.getoption("--fleet-soak-seconds"))
    chance = random.Random(os.environ.get("QUIVER_TEST_SEED", "1"))
    folder = tmp_path / "s3"
    binary, server, ports = prepare_weed(folder)
    weed = start_weed(binary, folder, server, ports)
    pause = threading.Event()
    names = [f"nodes-{number}" for number in range(PROCESSES)]
    with CountingProxy(server.endpoint, delay_s=DELAY_S).running() as proxy:
        soak = Soak(tmp_path, server, proxy)
        try:
            for name in (*names, "query"):
                soak.start(name)
            end_s = SYSTEM_CLOCK.monotonic() + seconds
            while SYSTEM_CLOCK.monotonic() < end_s:
                pause.wait(chance.uniform(*BETWEEN_KILLS_S))
                victim = chance.choice([*names, "query", "server"])
                soak.require_running()
                soak.kills[victim] += 1
                if victim == "server":
                    stop(weed)
                    pause.wait(chance.uniform(0.5, 3.0))
                    weed = start_weed(binary, folder, server, ports)
                else:
                    soak.kill(victim)
                    soak.start(victim)
            (tmp_path / "stop").touch()

            def is_drained() -> bool:
                soak.require_running()
                return all(soak.running[name].poll() == 0 for name in names)

            wait_until(is_drained, timeout=DRAIN_S)
            soak.kill("query")
        finally:
            soak.stop()
        tier = open_objects(ObjectLocation.from_url(soak.place[0], server.options()), writable=False)
        objects = [info.key for info in tier.list_below("inbox") if "/quarantine/" not in info.key]
    stop(weed)
    rows = Counter((row[0], row[1]) for row in spark.read.parquet(str(tmp_path / "out")).collect())
    expected = {(f"edge-{node}", number) for node in range(NODES) for number in confirmed(tmp_path, node)}
    figures = {
        "confirmed": len(expected),
        "lost": len(expected - rows.keys()),
        "duplicated": sum(count - 1 for count in rows.values()),
        "not confirmed, and read": len(rows.keys() - expected),
        "objects left": len(objects),
        "kills": dict(soak.kills),
        "requests": dict(proxy.requests),
    }
    print(json.dumps(figures))
    assert (figures["lost"], figures["duplicated"], figures["objects left"]) == (0, 0, 0), figures
    assert figures["confirmed"] > NODES
