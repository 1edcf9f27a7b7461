"""`quiver run` as a process, for tests: started on a file, fed over HTTP, stopped, with its output."""

import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
import urllib.request
from pathlib import Path

import quiver
from ports import free_port
from quiver.clock import SYSTEM_CLOCK
from quiver.otap import view
from quiver.pipeline.processes.run import read_state

EXAMPLES = Path(__file__).parents[2] / "examples"
BUFFER_ONLY = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out_port: {destinations: [persistence]}}
    config: {protocols: {http: {listening_addr: "127.0.0.1:{{port}}"}}}
  persistence:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    config: {path: "{{directory}}/buffer"}
"""
"""A pipeline of one process: a receiver and its buffer."""


def command_line(directory):
    """Write `BUFFER_ONLY` below *directory*, and return the command line that runs it there on a free port."""
    file = directory / "p.yaml"
    file.write_text(BUFFER_ONLY, encoding="utf-8")
    argv = [sys.executable, "-m", "quiver.cli.main", "run", str(file)]
    return [*argv, "--set", f"port={free_port()}", "--set", f"directory={directory}"]


def with_processor(site, source=EXAMPLES / "custom_processor"):
    """Make *site* a directory in which the package of the example is installed."""
    site.mkdir()
    (site / "acme_tenant.py").write_bytes((source / "acme_tenant.py").read_bytes())
    info = site / "acme_tenant-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tenant\nVersion: 1.0\n")
    points = tomllib.loads((source / "pyproject.toml").read_text())["project"]["entry-points"]["quiver.processors"]
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[quiver.processors]", *lines, ""]))
    return site


def request(*numbers, severity=9, **resource):
    """Return an export request with a log record for each number, of a resource with these attributes."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    made = ExportLogsServiceRequest()
    group = made.resource_logs.add()
    for key, value in resource.items():
        attribute = group.resource.attributes.add(key=key)
        attribute.value.string_value = value
    scope = group.scope_logs.add()
    for number in numbers:
        record = scope.log_records.add()
        record.severity_number = severity
        record.body.string_value = f"record {number}"
    return made.SerializeToString()


def bodies(directory):
    """Return the bodies of all log records in a store, for any storage format."""
    with quiver.read(directory) as reader:
        found = [body for _, bundle in reader.bundles() for body in view(bundle, "logs").column("body").to_pylist()]
        return sorted(body["string_value"] for body in found)


class Run:
    """`quiver run` on *file* with *values* for its placeholders."""

    def __init__(self, directory, file, values=(), *options, site=None):
        self.directory = directory
        self.run_dir = directory / "run"
        self.argv = [sys.executable, "-m", "quiver.cli.main", "run", str(file), "--run-dir", str(self.run_dir)]
        for name, value in dict(values).items():
            self.argv += ["--set", f"{name}={value}"]
        self.argv += options
        self.environment = os.environ | ({"PYTHONPATH": str(site)} if site else {})
        self.said = ""

    def __enter__(self):
        self.process = subprocess.Popen(
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            env=self.environment,
        )
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        self.until(self.is_listening)
        return self

    def _read(self):
        for line in self.process.stdout:
            self.said += line

    def __exit__(self, *_exception):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.reader.join()
        self.process.stdout.close()

    def logs(self):
        return self.said + "".join(path.read_text() for path in self.run_dir.glob("*.log"))

    def until(self, true, seconds=60):
        deadline = SYSTEM_CLOCK.monotonic() + seconds
        pause = threading.Event()
        while not true():
            assert self.process.poll() is None, self.logs()
            assert SYSTEM_CLOCK.monotonic() < deadline, self.logs()
            pause.wait(0.05)

    def children(self):
        return read_state(self.run_dir).get("children", {})

    def is_listening(self):
        """Return whether every current ingest process listens."""
        ingests = {name: child for name, child in self.children().items() if name.startswith("ingest")}
        return bool(ingests) and all(self._has_said(name, child["pid"]) for name, child in ingests.items())

    def _has_said(self, name, pid):
        ready = self.run_dir / f"{name}.json"
        return ready.exists() and json.loads(ready.read_bytes())["pid"] == pid

    def post(self, port, data):
        headers = {"Content-Type": "application/x-protobuf"}
        url = f"http://127.0.0.1:{port}/v1/logs"
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=20) as answer:
            assert answer.status == 200

    def reload(self):
        """Send SIGHUP, wait for the response, and return it."""
        before = self.said.count("reloaded")
        os.kill(self.process.pid, signal.SIGHUP)
        self.until(lambda: self.said.count("reloaded") > before and self.said.endswith("\n"))
        return next(line for line in reversed(self.said.splitlines()) if "reloaded" in line)

    def stop(self, seconds=60):
        """Stop in order, and return the output."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(seconds) == 0, self.logs()
        self.reader.join()
        return self.said
