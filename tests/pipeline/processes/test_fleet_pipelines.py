"""A fleet in a whole pipeline: from nodes through the bucket to tables, to an OTLP server, and on a cluster."""

import os
import signal

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from pyiceberg.catalog import load_catalog
from run_process import Run, request

import quiver
from ports import free_port
from quiver.bundle import OTLP_SCHEMA
from quiver.objects.location import ObjectLocation
from quiver.receivers.otlp.grpc_receiver import OtlpGrpcReceiver
from quiver.receivers.settings import OtlpSettings
from quiver.settings import Settings
from spark_cluster import running_cluster

pytestmark = pytest.mark.timeout(900)

PIPELINE = """\
nodes:
  fleet:
    kind: receiver
    plugin_urn: "urn:quiver:fleet:receiver"
    out_ports: {{out_port: {{destinations: [buffer]}}}}
    config: {{objects: {directory}/bucket, subscriber: lake, list_interval: 200ms}}
  buffer:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {{out_port: {{destinations: [{first}]}}}}
    config: {{path: {directory}/buffer}}
{others}
  out:
    kind: exporter
    plugin_urn: "{urn}"
    config: {config}
"""
NAMED = """\
  named:
    kind: processor
    plugin_urn: "urn:quiver:attributes:processor"
    out_ports: {out_port: {destinations: [out]}}
    config: {actions: [{action: insert, key: site, value: Graz}]}
"""


class Nodes:
    """Two nodes of a fleet, which are opened for each step."""

    def __init__(self, directory):
        self.directory = directory
        self.settings = [
            Settings(
                cold_objects=ObjectLocation.from_url(str(directory / "bucket")),
                fleet_name=f"edge-{number}",
                fleet_subscribers=("lake",),
                delete_grace_s=0.0,
            )
            for number in range(2)
        ]
        self.sent = 0

    def _opened(self, number):
        return quiver.open(self.directory / f"node-{number}", self.settings[number], background=False)

    def send(self, segments):
        """Let each node upload this many segments with ten records each, numbered consecutively."""
        for number in range(len(self.settings)):
            with self._opened(number) as store:
                for _ in range(segments):
                    data = request(*range(self.sent, self.sent + 10))
                    store.ingest(quiver.Bundle({60: pa.record_batch({"data": [data]}, schema=OTLP_SCHEMA)}))
                    store.seal()
                    self.sent += 10
                store.maintain()

    def left(self):
        """Look for acknowledgements, and return how many segments the nodes still have."""
        left = 0
        for number in range(len(self.settings)):
            with self._opened(number) as store:
                for _ in range(2):
                    store.maintain()
                left += store.stats()["segments"]
        return left


def pipeline(directory, urn, config, others="", more=""):
    """Write the file of a pipeline from the fleet to one exporter, and return its path."""
    first = "named" if others else "out"
    text = PIPELINE.format(directory=directory, urn=urn, config=config, others=others, first=first)
    (directory / "pipeline.yaml").write_text(text + more)
    return directory / "pipeline.yaml"


def numbers(bodies):
    return sorted(int(body["string_value"].split()[1]) for body in bodies)


def from_delta(directory):
    path = directory / "lake" / "logs"
    if not any((path / "_delta_log").glob("*.json")):
        return []
    return numbers(DeltaTable(path).to_pyarrow_table(columns=["body"])["body"].to_pylist())


def from_iceberg(directory):
    if not (directory / "lake" / "_catalog.db").exists():
        return []
    catalog = load_catalog("quiver", type="sql", uri=f"sqlite:///{directory}/lake/_catalog.db")
    if not catalog.table_exists("telemetry.logs"):
        return []
    return numbers(catalog.load_table("telemetry.logs").scan().to_arrow()["body"].to_pylist())


def from_parquet(directory):
    place = directory / "lake" / "logs"
    files = [str(path) for path in place.iterdir() if path.name[0] not in "._"] if place.is_dir() else []
    return numbers(ds.dataset(files).to_table(columns=["body"])["body"].to_pylist()) if files else []


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "read"), [("delta", from_delta), ("iceberg", from_iceberg)])
def test_a_fleet_in_tables(tmp_path, kind, read):
    """Each row once, although the process that reads the bucket is killed; then the nodes are empty."""
    nodes = Nodes(tmp_path)
    nodes.send(3)
    file = pipeline(tmp_path, f"urn:quiver:{kind}:exporter", f"{{path: {tmp_path}/lake}}")
    with Run(tmp_path, file) as run:
        run.until(lambda: read(tmp_path) == list(range(nodes.sent)), 240)
        nodes.send(3)
        os.kill(run.children()["ingest"]["pid"], signal.SIGKILL)
        nodes.send(1)
        run.until(lambda: read(tmp_path) == list(range(nodes.sent)), 240)
        run.until(lambda: nodes.left() == 0)
        run.stop(120)
    assert read(tmp_path) == list(range(nodes.sent))


def test_a_fleet_that_is_forwarded(tmp_path):
    """Without Spark: the OTLP server gets each record once."""
    nodes = Nodes(tmp_path)
    nodes.send(3)
    port = free_port()
    config = f'{{grpc_endpoint: "http://127.0.0.1:{port}"}}'

    def received():
        with quiver.read(tmp_path / "far") as reader:
            found = [data for _, bundle in reader.bundles() for data in bundle["otlp_logs"].column("data").to_pylist()]
        requests = map(ExportLogsServiceRequest.FromString, found)
        groups = (group for one in requests for resource in one.resource_logs for group in resource.scope_logs)
        return sorted(int(record.body.string_value.split()[1]) for group in groups for record in group.log_records)

    with (
        quiver.open(tmp_path / "far") as far,
        OtlpGrpcReceiver(far, OtlpSettings(listening_addr=f"127.0.0.1:{port}", workers=2)),
        Run(tmp_path, pipeline(tmp_path, "urn:otel:otlp:exporter", config)) as run,
    ):
        run.until(lambda: received() == list(range(nodes.sent)))
        nodes.send(2)
        run.until(lambda: received() == list(range(nodes.sent)))
        run.until(lambda: nodes.left() == 0)
        run.stop()
        assert received() == list(range(nodes.sent))


@pytest.mark.spark
@pytest.mark.cluster
def test_a_fleet_on_a_cluster(tmp_path):
    """With a processor, on a master and two workers, of which one is lost. Each row is exported once."""
    nodes = Nodes(tmp_path)
    nodes.send(3)
    (tmp_path / "cluster").mkdir()
    with running_cluster(tmp_path / "cluster") as cluster:
        spark = f"""\
spark:
  master: "{cluster.url}"
  config:
    spark.driver.host: 127.0.0.1
    spark.driver.bindAddress: 127.0.0.1
    spark.executor.memory: 600m
"""
        config = f"{{path: {tmp_path}/lake}}"
        with Run(tmp_path, pipeline(tmp_path, "urn:quiver:parquet:exporter", config, NAMED, spark)) as run:
            run.until(lambda: from_parquet(tmp_path) == list(range(nodes.sent)), 240)
            for worker in cluster.workers:
                worker.await_line("Asked to launch executor")
            cluster.workers[0].stop()
            nodes.send(3)
            run.until(lambda: from_parquet(tmp_path) == list(range(nodes.sent)), 240)
            run.until(lambda: nodes.left() == 0)
            run.stop(120)
    assert from_parquet(tmp_path) == list(range(nodes.sent))
