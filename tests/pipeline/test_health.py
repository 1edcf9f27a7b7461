"""Readiness of a running pipeline: over HTTP, by `grpc.health.v1`, and to systemd."""

import os
import signal
import socket
import urllib.error
import urllib.request

import grpc
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from run_process import Run

import quiver
from ports import free_ports
from quiver.pipeline.health import Health
from quiver.pipeline.metrics_endpoint import MetricsEndpoint
from quiver.pipeline.processes.sd_notify import notify
from quiver.receivers.otlp.grpc_receiver import SERVICES, OtlpGrpcReceiver
from quiver.receivers.settings import OtlpSettings
from quiver.store.opening import open_store

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING

PIPELINE = """\
metrics: {listen: "127.0.0.1:{{metrics}}"}
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out_port: {destinations: [persistence]}}
    config: {protocols: {grpc: {listening_addr: "127.0.0.1:{{grpc}}"}, http: {listening_addr: "127.0.0.1:{{http}}"}}}
  persistence:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    config: {path: "{{directory}}/buffer"}
"""


def fetch(address, path, method="GET"):
    """Return the status and the text of a response."""
    request = urllib.request.Request(f"http://{address}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def bundle(nbytes):
    return quiver.Bundle({30: pa.record_batch({"x": pa.array([b"x" * nbytes])})})


@pytest.fixture
def endpoint():
    made = MetricsEndpoint("127.0.0.1:0")
    made.start()
    yield made
    made.stop()


def test_each_path_has_its_response(endpoint, tmp_path):
    """Readiness depends on the process and its store; other paths do not exist."""
    assert fetch(endpoint.address, "/livez") == (200, "ok\n")
    assert fetch(endpoint.address, "/readyz") == (503, "[-] ports: the ports are not open yet\nnot ready\n")
    for path in ("/", "/health", "/metrics/", "/readyz/x"):
        assert fetch(endpoint.address, path)[0] == 404
    assert fetch(endpoint.address, "/livez", "POST")[0] == 405
    assert fetch(endpoint.address, "/metrics")[0] == 200

    with open_store(tmp_path / "d", background=False) as store:
        endpoint.health.watch("main", store)
        endpoint.health.phase = "listening"
        assert fetch(endpoint.address, "/readyz") == (200, "[+] ports\n[+] buffer main\nready\n")
        assert fetch(endpoint.address, "/readyz", "HEAD") == (200, "")
    status, text = fetch(endpoint.address, "/readyz")
    assert status == 503
    assert "[-] buffer main: " in text
    assert "is closed" in text


def test_a_silent_client_does_not_block_others(endpoint):
    with socket.create_connection(endpoint.address.split(":")):
        assert fetch(endpoint.address, "/livez") == (200, "ok\n")


def test_a_store_at_its_cap_is_not_ready(tmp_path):
    """It is ready again when there is space. With `drop_oldest` there always is."""
    for policy, is_ready in (("backpressure", False), ("drop_oldest", True)):
        settings = quiver.Settings(
            size_cap_bytes=500_000, size_cap_policy=policy, segment_bytes_max=100_000, wal_rotate_bytes=100_000
        )
        with open_store(tmp_path / policy, settings, background=False) as store:
            assert store.problems() == ()
            subscriber = store.register("slow", start="earliest")
            try:
                for _ in range(20):
                    store.ingest(bundle(30_000))
            except quiver.errors.CapacityError:
                assert policy == "backpressure"
            assert (store.problems() == ()) == is_ready, store.problems()
            if not is_ready:
                assert "retention.size_cap" in store.problems()[0]
                store.seal()
                while (handle := subscriber.next_bundle(timeout=0)) is not None:
                    handle.ack()
                store.maintain()
                assert store.problems() == ()


def test_a_failed_log_is_not_ready(tmp_path):
    health = Health()
    store = open_store(tmp_path / "d", background=False)
    health.watch("main", store)
    health.phase = "listening"
    assert list(health.problems()) == []
    store.internals.poison(OSError(5, "the disk is broken"))
    (problem,) = health.problems()
    assert problem.startswith("buffer main: the log failed: ")
    assert "the disk is broken" in problem
    store.close()


def test_grpc_health_follows_the_store(tmp_path):
    """For the server and each of its services, to a check and to a watch; unknown services are NOT_FOUND."""
    problems = []
    with open_store(tmp_path / "d") as store:
        settings = OtlpSettings(listening_addr="127.0.0.1:0")
        receiver = OtlpGrpcReceiver(store, settings, problems=lambda: problems)
        with receiver, grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)

            def check(service=""):
                return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status

            assert {check(service) for service in ("", *SERVICES.values())} == {SERVING}
            with pytest.raises(grpc.RpcError) as error:
                check("unknown")
            assert error.value.code() is grpc.StatusCode.NOT_FOUND
            watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=30)
            assert next(watch).status == SERVING
            problems.append("the log failed")
            assert check() == NOT_SERVING
            assert next(watch).status == NOT_SERVING
            problems.clear()
            assert check() == SERVING
            watch.cancel()


@pytest.mark.parametrize("is_abstract", [False, True])
def test_notify_sends_one_datagram(tmp_path, is_abstract):
    name = f"@quiver-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name[1:]}" if is_abstract else name)
        notify(name, "READY=1", "STATUS=ready")
        assert systemd.recv(1000) == b"READY=1\nSTATUS=ready"
    notify(None, "READY=1")
    notify(str(tmp_path / "nobody"), "READY=1")  # logged, without an exception


def test_a_pipeline_notifies_systemd_and_answers_probes(tmp_path, monkeypatch):
    """Ready when every port listens; stopping after SIGTERM."""
    metrics, over_grpc, over_http = free_ports(3)
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE, encoding="utf-8")
    values = {"metrics": metrics, "grpc": over_grpc, "http": over_http, "directory": tmp_path}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with Run(tmp_path, file, values) as run:
            message = systemd.recv(1000).decode()
            assert message.startswith("READY=1\nSTATUS=ready: listens on ")
            assert fetch(f"127.0.0.1:{metrics}", "/readyz") == (200, "[+] ports\n[+] buffer persistence\nready\n")
            with grpc.insecure_channel(f"127.0.0.1:{over_grpc}") as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                assert stub.Check(health_pb2.HealthCheckRequest(), timeout=10).status == SERVING
            run.process.send_signal(signal.SIGTERM)
            assert systemd.recv(1000) == b"STOPPING=1"
