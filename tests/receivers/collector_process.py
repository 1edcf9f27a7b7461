"""A real Collector, started with a given configuration and killed at the end.

Build it with `make rival-collector`, which needs the compiler `go`.
"""

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ports import free_port

COLLECTOR = Path(__file__).resolve().parents[2] / "build" / "bin" / "otelcol-rival"
CHILD = Path(__file__).with_name("collector_child.py")
READY_S = 60.0

CONFIG = """\
extensions:
  file_storage: {{directory: {directory}/queue, create_directory: true, fsync: true}}
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: 127.0.0.1:{grpc}}}, http: {{endpoint: 127.0.0.1:{http}}}}}}}
exporters:
  otlp_grpc/out:
    endpoint: 127.0.0.1:{far}
    compression: {compression}
    tls: {{insecure: true}}
    retry_on_failure: {{initial_interval: 100ms, max_interval: 500ms, max_elapsed_time: 0}}
    sending_queue: {{enabled: true, storage: file_storage, block_on_overflow: true, num_consumers: 4}}
service:
  extensions: [file_storage]
  telemetry: {{metrics: {{level: none}}, logs: {{level: error, sampling: {{enabled: false}}}}}}
  pipelines:
    logs: {{receivers: [otlp], exporters: [otlp_grpc/out]}}
    traces: {{receivers: [otlp], exporters: [otlp_grpc/out]}}
    metrics: {{receivers: [otlp], exporters: [otlp_grpc/out]}}
"""


@dataclass
class Ports:
    grpc: int
    http: int


def wait_for_port(port: int, process: subprocess.Popen, log: Path) -> None:
    until = time.monotonic() + READY_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None or time.monotonic() > until:
            pytest.fail(f"the Collector did not start: {log.read_text()}")
        time.sleep(0.05)


@contextlib.contextmanager
def collector_to(far: int, directory: Path, *, compression: str = "gzip") -> Iterator[Ports]:
    """A Collector that sends its data to the port *far*, and stores them in a file until that port accepts them."""
    ports = Ports(free_port(), free_port())
    config, log = directory / "collector.yaml", directory / "collector.log"
    text = CONFIG.format(directory=directory, grpc=ports.grpc, http=ports.http, far=far, compression=compression)
    config.write_text(text)
    with (
        log.open("w") as out,
        subprocess.Popen([str(COLLECTOR), "--config", str(config)], stdout=out, stderr=out) as process,
    ):
        try:
            for port in (ports.grpc, ports.http):
                wait_for_port(port, process, log)
            yield ports
        finally:
            process.kill()
