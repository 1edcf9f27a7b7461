"""
How many log records a second Spark reads from a fleet, by the number of nodes, each with one waiting segment.

    PYTHONPATH=bench:tests .venv/bin/python bench/figures/fleet_throughput.py [--cluster] [--write docs/howto/fleet.md]

The segments are real ones, the same bytes for every node, in a real S3 server on this machine. Spark runs in one
process with two task threads, or with --cluster as a master and two workers with one core each; server, driver and
tasks share the cores of this machine.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter

import pyarrow as pa
from pyspark.sql import SparkSession

import quiver
import quiver.spark
from quiver.bundle import OTLP_SCHEMA
from quiver.objects.location import ObjectLocation
from quiver.objects.opening import open_objects
from quiver.store.format.fleet.names import segment_key
from report import BenchParser, Quick, Report, machine
from s3_server import prepare_weed, start_weed, stop
from spark_cluster import running_cluster
from telemetry import log_request

NODES = (100, 300, 1_000)
RECORDS = 1_000
WRITERS = 8
LOGS = 60


def segment(directory: Path) -> bytes:
    """Return the bytes of a segment with one request."""
    data = pa.record_batch({"data": [log_request(1, RECORDS)]}, schema=OTLP_SCHEMA)
    with quiver.open(directory, background=False) as store:
        store.ingest(quiver.Bundle({LOGS: data}))
        store.seal()
    (path,) = (directory / "segments").glob("*.qseg")
    return path.read_bytes()


def fill(location: ObjectLocation, data: bytes, count: int) -> None:
    """Let *count* nodes have this segment."""
    tier = open_objects(location)
    crc32 = int.from_bytes(data[-4:], "little")
    keys = [segment_key(str(uuid.uuid5(uuid.NAMESPACE_URL, str(number))), 0, crc32) for number in range(count)]
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda key: tier.put(key, data), keys))


@contextlib.contextmanager
def session(scratch: Path, *, is_cluster: bool) -> Iterator[SparkSession]:
    """Yield a session with two task threads, or one on a cluster of two workers."""
    with contextlib.ExitStack() as stack:
        config = {"spark.master": "local[2]"}
        if is_cluster:
            (scratch / "cluster").mkdir()
            cluster = stack.enter_context(running_cluster(scratch / "cluster"))
            config = {
                "spark.master": cluster.url,
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.executor.memory": "600m",
                "spark.pyspark.python": sys.executable,
            }
        spark = quiver.spark.session("fleet-throughput", config=config)
        quiver.spark.register(spark)
        try:
            yield spark
        finally:
            spark.stop()


def main() -> None:
    parser = BenchParser(__doc__, rounds=2, quick=Quick(share=10))
    parser.add_argument("--cluster", action="store_true", help="on a master and two workers with one core each")
    options = parser.options()
    where = "on a master and two workers with one core each" if options.cluster else "with two task threads"
    report = Report(
        "fleet_throughput_cluster" if options.cluster else "fleet_throughput",
        f"Measured by `bench/figures/fleet_throughput.py{' --cluster' * options.cluster}` ({machine()}; "
        f"{options.rounds} rounds; Spark {where}, and SeaweedFS on the same cores). All columns of the view `logs`, "
        f"{RECORDS:,} records of about 380 bytes in one segment of each node, read in a batch and discarded; medians.",
        "nodes", "segments", "MB", "seconds", "segments a second", "records a second",
    )  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="bench-fleet-", dir=Path.cwd()) as scratch,
        session(Path(scratch), is_cluster=options.cluster) as spark,
    ):
        data = segment(Path(scratch) / "store")
        binary, server, ports = prepare_weed(Path(scratch) / "s3")
        process = start_weed(binary, Path(scratch) / "s3", server, ports)
        try:
            for size in [count // options.share for count in NODES]:
                url = server.url()
                fill(ObjectLocation.from_url(url, server.options()), data, size)
                path = json.dumps({"backend": "s3", "root": url, "options": server.options()})
                logs = spark.read.format("quiver-fleet").option("path", path).option("view", "logs").load()
                times = []
                for _ in range(options.rounds + 1):  # the first one warms up
                    began = perf_counter()
                    logs.write.format("noop").mode("overwrite").save()
                    times.append(perf_counter() - began)
                seconds = median(times[1:])
                megabytes = size * len(data) / 1e6
                rates = f"{size / seconds:,.0f} | {size * RECORDS / seconds:,.0f}"
                report.add([f"| {size:,} | {size:,} | {megabytes:.0f} | {seconds:.1f} | {rates} |"])
        finally:
            stop(process)
    report.finish(options.write)


if __name__ == "__main__":
    main()
