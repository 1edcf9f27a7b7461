"""The ingest process registers subscribers before it listens, survives SIGKILL, and ends with its supervisor."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

import quiver
from quiver.clock import SYSTEM_CLOCK

PIPELINE = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out_port: {destinations: [persistence]}}
    config:
      protocols: {http: {listening_addr: "127.0.0.1:{{port}}"}}
      dedupe_window: 10m
  persistence:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {out_port: {destinations: [out]}}
    config: {path: "{{directory}}/buffer"}
  out:
    kind: exporter
    plugin_urn: "urn:quiver:parquet:exporter"
    config: {path: "{{directory}}/parquet"}
"""


def request(number):
    made = ExportLogsServiceRequest()
    record = made.resource_logs.add().scope_logs.add().log_records.add()
    record.body.string_value = f"record {number}"
    return made.SerializeToString()


class Child:
    """`python -m quiver.pipeline.ingest`, with this test as its supervisor."""

    def __init__(self, directory, port):
        self.directory, self.port = directory, port
        self.ready = directory / "run" / "ingest.json"
        self.log = directory / "ingest.log"
        path = directory / "p.yaml"
        path.write_text(PIPELINE, encoding="utf-8")
        self.ready.parent.mkdir(exist_ok=True)
        self.argv = [sys.executable, "-m", "quiver.pipeline.ingest", str(path), "--run-dir", str(self.ready.parent)]
        self.argv += ["--set", f"port={port}", "--set", f"directory={directory}"]

    def __enter__(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.argv, stdin=subprocess.PIPE, stdout=log, stderr=log)
        return self

    def __exit__(self, *_exception):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()

    def until_ready(self):
        deadline = SYSTEM_CLOCK.monotonic() + 30
        pause = threading.Event()
        while not (self.ready.exists() and json.loads(self.ready.read_bytes())["pid"] == self.process.pid):
            assert self.process.poll() is None, self.log.read_text()
            assert SYSTEM_CLOCK.monotonic() < deadline, self.log.read_text()
            pause.wait(0.02)

    def post(self, data):
        headers = {"Content-Type": "application/x-protobuf"}
        url = f"http://127.0.0.1:{self.port}/v1/logs"
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=20) as answer:
            assert answer.status == 200


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def stored(directory):
    with quiver.open(directory / "buffer") as store:
        reader = store.register("out", start="latest")
        found = []
        while (handle := reader.next_bundle(timeout=0)) is not None:
            found += handle.bundle["otlp_logs"].column("data").to_pylist()
            handle.ack()
        return found


def test_confirmed_requests_survive_sigkill_and_are_stored_once(tmp_path, port):
    """
    After a kill, a confirmed request is in the store; when it is sent again, it is confirmed and not stored again.

    The end of standard input, which indicates the end of the supervisor, stops the process cleanly and seals the
    open segment.
    """
    with Child(tmp_path, port) as child:
        child.until_ready()
        assert (tmp_path / "buffer" / "quiver.sub.out").exists()
        child.post(request(1))
        os.kill(child.process.pid, signal.SIGKILL)
        child.process.wait()
    with Child(tmp_path, port) as child:
        child.until_ready()
        child.post(request(1))
        child.post(request(2))
        child.process.stdin.close()
        assert child.process.wait(30) == 0, child.log.read_text()

    assert list((tmp_path / "buffer" / "segments").glob("*.qseg"))
    assert stored(tmp_path) == [request(1), request(2)]


def test_a_startup_error_is_the_last_line_of_the_log(tmp_path, port):
    """For an address in use: exit code 1, because a restart may help."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with Child(tmp_path, port) as child:
            assert child.process.wait(30) == 1

    last = child.log.read_text().strip().splitlines()[-1]
    assert f"cannot listen on 127.0.0.1:{port}" in last
