"""The receiving process under load, killed with SIGKILL: confirmed requests are stored, completely."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

import quiver
from ports import free_port
from quiver.clock import SYSTEM_CLOCK
from quiver.otap.stored import stored_requests
from quiver.receivers.otlp.grpc_receiver import SERVICES

RECORDS = 20
START_PROCESSOR_S = 60.0
HANG_S = 60.0
LOAD_S = 30.0
PIPELINE = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out: {destinations: [store]}}
    config:
      protocols: {grpc: {listening_addr: "127.0.0.1:{{grpc}}"}, http: {listening_addr: "127.0.0.1:{{http}}"}}
      otlp_handling: "{{handling}}"
      ack: "{{ack}}"
  store:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    config: {path: "{{directory}}/buffer"}
"""


def request(number: int) -> ExportLogsServiceRequest:
    made = ExportLogsServiceRequest()
    resource = made.resource_logs.add()
    resource.resource.attributes.add(key="request").value.int_value = number
    records = resource.scope_logs.add().log_records
    for index in range(RECORDS):
        record = records.add(time_unix_nano=index + 1)
        record.body.string_value = f"{number}-{index}"
        record.attributes.add(key="index").value.int_value = index
    return made


class Load:
    """Requests from several threads over both protocols, until the receiver is killed."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.confirmed: set[int] = set()
        self.sent: set[int] = set()

    def over_http(self, port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
        headers = {"Content-Type": "application/x-protobuf"}
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                number = next(self.numbers)
                self.sent.add(number)
                connection.request("POST", "/v1/logs", body=request(number).SerializeToString(), headers=headers)
                answer = connection.getresponse()
                answer.read()
                if answer.status == 200:
                    self.confirmed.add(number)

    def over_grpc(self, port: int) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            export = channel.unary_unary(f"/{SERVICES['logs']}/Export")
            with contextlib.suppress(grpc.RpcError):
                while True:
                    number = next(self.numbers)
                    self.sent.add(number)
                    export(request(number).SerializeToString(), timeout=HANG_S)
                    self.confirmed.add(number)


def cycles(directory: Path, *, count: int, handling: str, ack: str = "synced") -> Load:
    """Start, load and kill *count* times; return what was sent and confirmed."""
    load = Load()
    ports = {"grpc": free_port(), "http": free_port()}
    run = directory / "run"
    run.mkdir()
    (directory / "p.yaml").write_text(PIPELINE)
    argv = [sys.executable, "-m", "quiver.pipeline.ingest", str(directory / "p.yaml"), "--run-dir", str(run)]
    for name, value in {**ports, "handling": handling, "ack": ack, "directory": directory}.items():
        argv += ["--set", f"{name}={value}"]
    pause = threading.Event()
    for _ in range(count):
        wanted = len(load.confirmed) + random.randrange(1, 60)
        log = directory / "ingest.log"
        with (
            log.open("ab") as out,
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out, stderr=out) as process,
            ThreadPoolExecutor(4) as pool,
        ):
            try:
                until_ready(run / "ingest.json", process, log)
                clients = [pool.submit(load.over_http, ports["http"]) for _ in range(2)]
                clients += [pool.submit(load.over_grpc, ports["grpc"]) for _ in range(2)]
                before, begun = len(load.confirmed), SYSTEM_CLOCK.monotonic()
                while len(load.confirmed) < wanted:
                    passed = SYSTEM_CLOCK.monotonic() - begun
                    if passed > LOAD_S and len(load.confirmed) > before:  # slow, and enough to be killed
                        break
                    assert passed < LOAD_S + HANG_S, f"nothing was confirmed\n{log.read_text()}"
                    assert process.poll() is None, log.read_text()
                    pause.wait(0.001)
            finally:
                process.send_signal(signal.SIGKILL)
            for client in clients:
                client.result(2 * HANG_S)
    return load


def processor_s(pid: int) -> float:
    """Return the CPU seconds of a process, which are few on a busy machine."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until_ready(ready: Path, process: subprocess.Popen, log: Path) -> None:
    """Wait while the process makes progress: one that hangs uses no CPU time, one that loops uses much."""
    pause = threading.Event()
    used, since = 0.0, SYSTEM_CLOCK.monotonic()
    while not (ready.exists() and json.loads(ready.read_bytes())["pid"] == process.pid):
        assert process.poll() is None, log.read_text()
        now, before = SYSTEM_CLOCK.monotonic(), used
        used = processor_s(process.pid)
        since = now if used > before else since
        assert used < START_PROCESSOR_S, f"not ready after {used:.1f} s of processor\n{log.read_text()}"
        assert now - since < HANG_S, f"it used no CPU time for {HANG_S} s\n{log.read_text()}"
        pause.wait(0.02)


def check(directory: Path, load: Load, *, tables: bool) -> None:
    found: list[int] = []
    for _, bundle in quiver.read(str(directory / "buffer")).bundles():
        assert (30 in bundle.slots) is tables
        for data in stored_requests(bundle.batches, "logs"):
            assert isinstance(data, bytes), data
            kept = ExportLogsServiceRequest.FromString(data)
            number = kept.resource_logs[0].resource.attributes[0].value.int_value
            assert kept == request(number)  # complete, or missing
            found.append(number)
    assert len(found) == len(set(found))
    assert load.confirmed <= set(found) <= load.sent
    assert load.confirmed


def test_requests_confirmed_as_tables_survive_kill_9(tmp_path: Path) -> None:
    """One kill in every run of the tests."""
    check(tmp_path, cycles(tmp_path, count=1, handling="convert_to_arrow"), tables=True)


@pytest.mark.kill
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ack", ["synced", "logged"])
@pytest.mark.parametrize("handling", ["pass_through", "convert_to_arrow"])
def test_confirmed_requests_survive_many_kills(tmp_path: Path, handling: str, ack: str) -> None:
    """Forty kills of each kind, at random moments."""
    load = cycles(tmp_path, count=40, handling=handling, ack=ack)
    check(tmp_path, load, tables=handling == "convert_to_arrow")
