"""The connections of all ports fit into the limit of open files, and a process ends when its store has failed."""

import resource
import socket
import sys
import threading
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest
import yaml
from run_process import Run, bodies, request

from ports import free_ports
from quiver.errors import StoreFailedError
from quiver.pipeline import explain, ingest
from quiver.pipeline.config.receiver_place import ReceiverPlace
from quiver.pipeline.explain import promises
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.port_limits import OWN_DESCRIPTORS, connection_share, too_many_connections
from quiver.pipeline.processes.child import ChildContext
from quiver.primitives.disk.descriptors import raise_descriptor_limit
from quiver.primitives.worker import WorkerDiedError
from stub_watchdog import StubWatchdog
from waiting import TIMEOUT_S


def load(tmp_path):
    grpc, http, rows = (f"127.0.0.1:{port}" for port in free_ports(3))
    otlp = {
        "protocols": {"grpc": {"listening_addr": grpc}, "http": {"listening_addr": http}},
        "max_connections": 500,
    }
    qwp = {"listening_addr": rows, "max_connections": 200}
    nodes = {
        "in": {"type": "receiver:otlp", "config": otlp},
        "rows": {"type": "urn:quiver:qwp:receiver", "config": qwp},
        "store": {"type": "processor:persistence", "config": {"path": str(tmp_path / "buffer")}},
    }
    connections = [{"from": "in", "to": "store"}, {"from": "rows", "to": "store"}]
    inside = {"nodes": nodes, "connections": connections}
    value = {"version": "otel_dataflow/v1", "groups": {"a": {"pipelines": {"b": inside}}}}
    return load_pipeline(yaml.safe_dump(value), source="p.yaml", values={})[0]


def receivers(pipeline, share):
    place = ReceiverPlace(None, None, connection_share=share)
    return [
        settings.connections_max for _, config in pipeline.receivers for settings in config.settings_at(place).values()
    ]


@pytest.mark.parametrize(
    ("limit", "each"),
    [
        (None, [500, 500, 200]),
        (1200 + OWN_DESCRIPTORS, [500, 500, 200]),
        (1024, [320, 320, 128]),
        (100, [20, 20, 8]),
    ],
)
def test_ports_share_the_available_descriptors(tmp_path, limit, each):
    """
    All of them get their limit, or each a share; some descriptors, at most half, are reserved for the process
    itself.
    """
    pipeline = load(tmp_path)
    share = connection_share(pipeline, limit)
    assert receivers(pipeline, share) == each
    warning = too_many_connections(pipeline, limit)
    assert (warning is None) == (share == 1.0)
    assert warning is None or f"add up to 1200, and a process here may open {limit} files" in warning


def test_check_warns_about_a_low_limit(tmp_path, monkeypatch):
    pipeline = load(tmp_path)
    monkeypatch.setattr(explain, "descriptor_limit", lambda *, raised: 4096 if raised else 1024)
    assert not [one for one in promises(pipeline) if "max_connections" in one]
    monkeypatch.setattr(explain, "descriptor_limit", lambda *, raised: 1024)
    (warning,) = [one for one in promises(pipeline) if "max_connections" in one]
    assert warning.startswith("Warning: max_connections of all ports add up to 1200")
    assert "64%" in warning


def test_an_ingest_process_ends_when_its_store_has_failed(tmp_path, monkeypatch, caplog):
    """Then another process can open it. Before, it answered 503 forever, and the supervisor considered it alive."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    watchdog, ended, failed, opened = StubWatchdog(), threading.Event(), [], []
    open_path = ingest.open_path
    monkeypatch.setattr(
        ingest, "open_path", lambda *given, **named: opened.append(open_path(*given, **named)) or opened[0]
    )
    monkeypatch.setattr(ingest, "descriptor_limit", lambda: 1024)

    def run():
        try:
            ingest.ingest(ChildContext(load(tmp_path), run_dir, watchdog))
        except StoreFailedError as error:
            failed.append(error)
        finally:
            ended.set()

    child = threading.Thread(target=run)
    child.start()
    try:
        while not (run_dir / "ingest.json").exists():
            assert not ended.wait(0.01)
        opened[0].internals.poison(WorkerDiedError("nobody thought of this"))
        assert ended.wait(TIMEOUT_S)
    finally:
        watchdog.gone.set()
        child.join()
    assert "nobody thought of this" in str(failed[0])
    assert "each port takes 64% of its connections" in caplog.text


PIPELINE = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out_port: {destinations: [persistence]}}
    config: {protocols: {grpc: {listening_addr: "127.0.0.1:{{grpc}}"}, http: {listening_addr: "127.0.0.1:{{http}}"}}}
  persistence:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    config:
      path: "{{directory}}/buffer"
      segment: {target_size: 64KiB, max_open_duration: 1s}
      wal: {rotation_target: 256KiB}
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc, and changes the limits of another process")
def test_silent_connections_do_not_stop_a_pipeline(tmp_path):
    """
    About a thousand of them, without credentials, once stopped a pipeline permanently.

    The file of a segment could not be opened, the log failed, and the process did not end.
    """
    if (raise_descriptor_limit() or 4096) < 2048:
        pytest.skip("this process may not open so many connections itself")
    grpc, http = free_ports(2)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    run = Run(tmp_path, tmp_path / "pipeline.yaml", {"grpc": grpc, "http": http, "directory": tmp_path})
    run.argv = ["bash", "-c", 'ulimit -n 1024; exec "$@"', "quiver", *run.argv]
    sent = 0
    with run, ExitStack() as kept, ExitStack() as strangers:
        pid = run.children()["ingest"]["pid"]
        client = kept.enter_context(closing(HTTPConnection("127.0.0.1", http, timeout=20)))

        def post(through, count):
            nonlocal sent
            for _ in range(count):
                headers = {"Content-Type": "application/x-protobuf"}
                through.request("POST", "/v1/logs", request(*range(sent, sent + 100)), headers)
                answer = through.getresponse()
                answer.read()
                assert answer.status == 200
                sent += 100

        def connect(count):
            for number in range(count):
                with suppress(OSError):  # Refused: then it uses no descriptor.
                    address = ("127.0.0.1", (grpc, http)[number % 2])
                    strangers.enter_context(socket.create_connection(address, timeout=1))

        post(client, 5)
        connect(1000)
        post(client, 50)
        # Now all of them: the maximum number is open.
        used = max(int(one.name) for one in Path(f"/proc/{pid}/fd").iterdir())
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 1, 1024))
        connect(20)
        segments = len(list((tmp_path / "buffer" / "segments").glob("*.qseg")))
        post(client, 50)
        assert len(list((tmp_path / "buffer" / "segments").glob("*.qseg"))) > segments
        strangers.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, 1024))
        post(kept.enter_context(closing(HTTPConnection("127.0.0.1", http, timeout=20))), 5)
        assert run.children()["ingest"]["pid"] == pid
        run.stop()
    assert len(bodies(tmp_path / "buffer")) == sent
