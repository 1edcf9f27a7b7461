"""The OTLP exporter of a pipeline, from the ingest process to a real receiver, with outages and SIGKILL."""

import contextlib
import gzip
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

import quiver
from ports import free_ports
from quiver.bundle import OTLP_SCHEMA
from quiver.delivery.dead_letters import count_dead_letters
from quiver.errors import PipelineError, UsageError
from quiver.exporters.settings import ExporterSettings
from quiver.observe import InMemoryObserver
from quiver.pipeline.explain import describe
from quiver.pipeline.forwarding import Forwarding
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.plugins import OtlpExporterConfig
from quiver.pipeline.processes.child import read_pipeline
from quiver.primitives.backoff import Backoff
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.receivers.otlp.grpc_receiver import OtlpGrpcReceiver
from quiver.receivers.settings import OtlpSettings
from waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "otlp-forward.yaml"


def request(number):
    made = ExportLogsServiceRequest()
    record = made.resource_logs.add().scope_logs.add().log_records.add()
    record.body.string_value = f"record {number}"
    return made.SerializeToString()


class Ingest:
    """`python -m quiver.pipeline.ingest` on the example, with this test as its supervisor."""

    def __init__(self, directory, far_port):
        self.log = directory / "ingest.log"
        self.ready = directory / "run" / "ingest.json"
        self.ready.parent.mkdir(exist_ok=True)
        grpc_port, self.port = free_ports(2)
        self.argv = [sys.executable, "-m", "quiver.pipeline.ingest", str(EXAMPLE), "--run-dir", str(self.ready.parent)]
        for name, value in {
            "directory": directory,
            "grpc_addr": f"127.0.0.1:{grpc_port}",
            "http_addr": f"127.0.0.1:{self.port}",
            "endpoint": f"http://127.0.0.1:{far_port}",
            "first_retry": "50ms",
        }.items():
            self.argv += ["--set", f"{name}={value}"]

    def __enter__(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.argv, stdin=subprocess.PIPE, stdout=log, stderr=log)
        wait_until(self._is_ready, describe=self.log.read_text)
        return self

    def _is_ready(self):
        assert self.process.poll() is None, self.log.read_text()
        return self.ready.exists() and json.loads(self.ready.read_bytes())["pid"] == self.process.pid

    def __exit__(self, *_exception):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()

    def post(self, data):
        headers = {"Content-Type": "application/x-protobuf"}
        url = f"http://127.0.0.1:{self.port}/v1/logs"
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=20) as answer:
            assert answer.status == 200


def arrived(directory):
    with quiver.read(directory) as reader:
        return [data for _, bundle in reader.bundles() for data in bundle["otlp_logs"].column("data").to_pylist()]


@pytest.mark.slow
def test_confirmed_data_reach_the_destination(tmp_path):
    """It is down at the start; the process is killed; then it is up, and a clean stop sends all remaining data."""
    (far_port,) = free_ports(1)
    with Ingest(tmp_path, far_port) as ingest:
        for number in range(5):
            ingest.post(request(number))
        os.kill(ingest.process.pid, signal.SIGKILL)
        ingest.process.wait()
    settings = OtlpSettings(listening_addr=f"127.0.0.1:{far_port}", workers=2)
    with (
        quiver.open(tmp_path / "far") as store,
        OtlpGrpcReceiver(store, settings),
        Ingest(tmp_path, far_port) as ingest,
    ):
        wait_until(lambda: set(arrived(tmp_path / "far")) >= set(map(request, range(5))), describe=ingest.log.read_text)
        ingest.post(request(5))
        ingest.process.send_signal(signal.SIGTERM)
        assert ingest.process.wait(30) == 0, ingest.log.read_text()

    assert set(arrived(tmp_path / "far")) == set(map(request, range(6)))
    with quiver.open(tmp_path / "buffer") as store:
        assert store.register("otlp_exporter", start="latest").lag().pending_bundles == 0


def many_lives(tmp_path, lives, random):
    """Kill the running ingest process several times; the destination is up every other time."""
    (far_port,) = free_ports(1)
    settings = OtlpSettings(listening_addr=f"127.0.0.1:{far_port}", workers=2)
    confirmed = []
    for life in range(lives):
        with contextlib.ExitStack() as otlp_server:
            if life % 2:
                store = otlp_server.enter_context(quiver.open(tmp_path / "far"))
                otlp_server.enter_context(OtlpGrpcReceiver(store, settings))
            with Ingest(tmp_path, far_port) as ingest:
                for _ in range(random.randrange(5, 200)):
                    ingest.post(request(len(confirmed)))
                    confirmed.append(request(len(confirmed)))
                os.kill(ingest.process.pid, signal.SIGKILL)
                ingest.process.wait()
    with (
        quiver.open(tmp_path / "far") as store,
        OtlpGrpcReceiver(store, settings),
        Ingest(tmp_path, far_port) as ingest,
    ):
        wait_until(lambda: set(arrived(tmp_path / "far")) >= set(confirmed), describe=ingest.log.read_text)
    return len(confirmed)


@pytest.mark.kill
@pytest.mark.timeout(900)
def test_confirmed_data_reach_the_destination_after_many_kills(tmp_path):
    """Of fifteen ingest processes."""
    assert many_lives(tmp_path, 15, Random()) >= 15 * 5


def test_the_example_without_spark_is_valid():
    """Its description has the destination of all data."""
    pipeline = read_pipeline(EXAMPLE, ["endpoint=https://far:1"], {})

    assert pipeline.queries == []
    ((name, config),) = pipeline.forwarders
    assert (name, config.settings()) == (
        "otlp_exporter",
        ExporterSettings(
            "https://far:1",
            compression_method="gzip",
            timeout_s=15.0,
            retry=Backoff(first_s=1.0, cap_s=30.0, factor=2.0),
        ),
    )
    (row,) = describe(pipeline)["exporters"]
    assert (row["to"], row["receives"]) == ("https://far:1", "everything")


def test_the_page_has_a_valid_file_and_every_key():
    """The file of the how-to is accepted, and its table lists exactly the keys of the node."""
    page = (EXAMPLE.parents[1] / "docs" / "howto" / "forward.md").read_text()
    text = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]  # the next ones are parts of a file
    ((_, config),) = load_pipeline(text, source="p.yaml", values={})[0].forwarders
    table = page.partition("## Settings")[2].partition("## What")[0]
    named = {key for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}

    assert config.destination == "http://127.0.0.1:14317"
    assert named == set(OtlpExporterConfig.model_fields)


def changed(old, new):
    text = EXAMPLE.read_text()
    assert text.count(old) == 1, old
    return load_pipeline(text.replace(old, new), source="p.yaml", values={})[0]


GRPC = 'grpc_endpoint: "{{endpoint:-http://127.0.0.1:14317}}"'


def test_every_key_is_a_setting_of_the_sender():
    """With the value in the file."""
    keys = """http_endpoint: "https://far:1/base"
      tls: {ca_file: ca.pem, cert_file: c.pem, key_file: k.pem}
      headers: {authorization: "Bearer x"}
      denied: retry
      retry_multiplier: 3"""
    settings = changed(GRPC, keys).forwarders[0][1].settings()

    assert settings == ExporterSettings(
        "https://far:1/base",
        protocol="http",
        compression_method="gzip",
        timeout_s=15.0,
        ca_file="ca.pem",
        cert_file="c.pem",
        key_file="k.pem",
        headers={"authorization": "Bearer x"},
        denied="retry",
        in_flight_max=4,
        retry=Backoff(first_s=1.0, cap_s=30.0, factor=3.0),
    )
    assert changed(GRPC, "grpc_endpoint: far:1\n      tls: {insecure: true}").forwarders[0][1].settings().insecure


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (GRPC, "{}", "give grpc_endpoint or http_endpoint, one of them"),
        (GRPC, f'{GRPC}\n      http_endpoint: "http://x"', "give grpc_endpoint or http_endpoint, one of them"),
        (GRPC, 'grpc_endpoint: "ftp://x"', "'ftp://x' is not one; write for example http://127.0.0.1:4317"),
        ("compression_method: gzip", "compression_method: snappy", "compression_method: 'snappy' is not available"),
        ("timeout: 15s", "timeout: 0", "timeout must be above 0"),
        ("max_in_flight: 4", "max_in_flight: 0", "max_in_flight: Input should be greater than or equal to 1"),
        ("max_retry_interval: 30s", "max_retry_interval: 1ms", "initial_retry_interval must be above 0"),
        ("timeout: 15s", "tls: {ca_fiel: x}", "unknown key tls.ca_fiel; did you mean ca_file?"),
    ],
)
def test_invalid_settings_are_refused_before_the_start(old, new, reason):
    """The error names the key."""
    with pytest.raises(PipelineError, match=f".*{reason.replace('(', '.').replace('?', '.')}"):
        changed(old, "" if new == "{}" else new)


def test_a_failing_exporter_does_not_block_another(tmp_path, caplog):
    """Both receive all data; the pending data of the failing one are kept, and reported at the end."""
    dead, alive = free_ports(2)
    second = EXAMPLE.read_text().partition("  otlp_exporter:\n")[2].replace("14317", str(alive))
    text = EXAMPLE.read_text().replace("          - otlp_exporter\n", "          - otlp_exporter\n          - second\n")
    text = text.replace("14317", str(dead)) + "\n  second:\n" + second
    pipeline = load_pipeline(text, source="p.yaml", values={})[0]
    settings = OtlpSettings(listening_addr=f"127.0.0.1:{alive}", workers=2)
    caplog.set_level(logging.INFO, "quiver.pipeline")
    with (
        quiver.open(tmp_path / "far") as far,
        OtlpGrpcReceiver(far, settings),
        quiver.open(tmp_path / "buffer") as store,
    ):
        with Forwarding(pipeline, store, InMemoryObserver()):
            for number in range(20):
                batch = pa.record_batch([pa.array([request(number)], pa.binary())], schema=OTLP_SCHEMA)
                store.ingest(quiver.Bundle({60: batch}))
            store.seal()
        assert store.register("second").lag().pending_bundles == 0
        assert store.register("otlp_exporter").lag().pending_bundles == 20

    assert set(arrived(tmp_path / "far")) == set(map(request, range(20)))
    (lines,) = [
        record.message for record in caplog.records if record.levelno == logging.WARNING and "stay" in record.message
    ]
    assert lines.startswith(f"otlp_exporter → http://127.0.0.1:{dead}: 20 bundles stay in the store: UNAVAILABLE")


def test_a_missing_certificate_is_a_usage_error(tmp_path):
    """A restart cannot help; the error names the node before a port opens."""
    pipeline = changed(GRPC, 'grpc_endpoint: "https://far:1"\n      tls: {ca_file: none.pem}')
    with quiver.open(tmp_path) as store, pytest.raises(UsageError, match="otlp_exporter: tls.ca_file: .*none.pem"):
        Forwarding(pipeline, store, InMemoryObserver())


def test_denied_data_are_replayed_when_accepted(tmp_path):
    """With `denied: drop`, a wrong token produces dead letters; the first accepted request starts their replay."""
    tokens = {"right": False}

    class Far(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(gzip.decompress(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if tokens["right"] else 401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments):
            pass

    def ingest(number):
        batch = pa.record_batch([pa.array([request(number)], pa.binary())], schema=OTLP_SCHEMA)
        store.ingest(quiver.Bundle({60: batch}))
        store.seal()

    got = []
    observer = InMemoryObserver()
    with HTTPServer(("127.0.0.1", 0), Far) as server, quiver.open(tmp_path / "buffer") as store:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        config = f'http_endpoint: "http://127.0.0.1:{server.server_port}"\n      denied: drop'
        with Forwarding(changed(GRPC, config), store, observer):
            for number in range(3):
                ingest(number)
            wait_until(lambda: observer.total("quiver.exporter.given_up_total") == 3)
            del got[:]
            tokens["right"] = True
            ingest(3)
            wait_until(lambda: observer.total("quiver.exporter.replayed_total") == 3)
        assert count_dead_letters(REAL_FILES, store.path, "otlp_exporter") == 0
        server.shutdown()
        thread.join()

    assert sorted(got) == sorted(map(request, range(4)))
