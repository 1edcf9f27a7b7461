"""A real Collector between our exporters and our receivers: data arrive at the other end, with and without kills."""

import contextlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from collector_process import CHILD, COLLECTOR, collector_to
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import quiver
from ports import free_port
from quiver.bundle import OTLP_SCHEMA, OTLP_SLOTS
from quiver.exporters.forward import BundleForwarder
from quiver.exporters.otlp_grpc import OtlpGrpcSender
from quiver.exporters.otlp_http import OtlpHttpSender
from quiver.exporters.settings import ExporterSettings
from quiver.otap import to_otlp
from quiver.receivers.otlp.grpc_receiver import OtlpGrpcReceiver
from quiver.receivers.settings import OtlpSettings

pytestmark = [
    pytest.mark.collector,
    pytest.mark.skipif(not COLLECTOR.exists(), reason="the Collector is not built: run `make rival-collector`"),
    pytest.mark.timeout(600),
]
MESSAGES = {
    "logs": ExportLogsServiceRequest,
    "traces": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
}
ROOTS = {"logs": 30, "traces": 40, "metrics": 10}
VECTORS = Path(__file__).parents[1] / "vectors" / "otlp"
KILLS = 6
ROWS = 20


def items(request) -> list[bytes]:
    """Every record, span or metric with its resource and scope, in any order."""
    found = []
    for resource in getattr(request, request.DESCRIPTOR.fields[0].name):
        for scope in getattr(resource, resource.DESCRIPTOR.fields[1].name):
            found += [
                resource.resource.SerializeToString() + scope.scope.SerializeToString() + item.SerializeToString()
                for item in getattr(scope, scope.DESCRIPTOR.fields[1].name)
            ]
    return sorted(found)


def kept(directory, signal_name: str):
    complete = MESSAGES[signal_name]()
    for _, bundle in quiver.read(str(directory)).bundles():
        if {OTLP_SLOTS[signal_name], ROOTS[signal_name]} & set(bundle.slots):
            complete.MergeFromString(to_otlp(bundle, signal_name))
    return complete


def until(condition, timeout_s: float = 120.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("signal_name", list(MESSAGES))
def test_data_pass_from_our_exporters_through_the_collector_to_our_receivers(tmp_path, protocol, signal_name):
    request = MESSAGES[signal_name].FromString((VECTORS / f"{signal_name}_sdk_000.pb").read_bytes())
    with (
        quiver.open(str(tmp_path / "store")) as store,
        OtlpGrpcReceiver(store, OtlpSettings(listening_addr="127.0.0.1:0")) as receiver,
        collector_to(receiver.port, tmp_path) as ports,
    ):
        port = ports.grpc if protocol == "grpc" else ports.http
        sender_type = OtlpGrpcSender if protocol == "grpc" else OtlpHttpSender
        sender = sender_type(ExporterSettings(f"http://127.0.0.1:{port}", protocol=protocol))
        assert sender.send(signal_name, request.SerializeToString()).outcome == "confirmed"
        sender.close()
        until(lambda: items(kept(tmp_path / "store", signal_name)) == items(request))


def numbered(number: int) -> bytes:
    made = ExportLogsServiceRequest()
    records = made.resource_logs.add().scope_logs.add().log_records
    for _ in range(ROWS):
        records.add(severity_text=str(number)).attributes.add(key="k").value.int_value = number
    return made.SerializeToString()


def counts(directory) -> dict[int, int]:
    """Number → count of records with it."""
    found: dict[int, int] = {}
    for resource in kept(directory, "logs").resource_logs:
        for record in resource.scope_logs[0].log_records:
            found[int(record.severity_text)] = found.get(int(record.severity_text), 0) + 1
    return found


@contextlib.contextmanager
def receiving(directory, port: int, handling: str):
    """Our receiver in a separate process, killed with -9 at the end."""
    command = [sys.executable, str(CHILD), str(directory), str(port), handling]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "listens\n"
        try:
            yield
        finally:
            child.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_our_exporters_send_zstd_to_the_collector(tmp_path, protocol):
    request = numbered(1) * 2_000
    with (
        quiver.open(str(tmp_path / "store")) as store,
        OtlpGrpcReceiver(store, OtlpSettings(listening_addr="127.0.0.1:0")) as receiver,
        collector_to(receiver.port, tmp_path) as ports,
    ):
        sender_type = OtlpGrpcSender if protocol == "grpc" else OtlpHttpSender
        port = ports.grpc if protocol == "grpc" else ports.http
        how = ExporterSettings(f"http://127.0.0.1:{port}", protocol=protocol, compression_method="zstd")
        sender = sender_type(how)
        assert sender.send("logs", request).outcome == "confirmed"
        refused = sender.send("logs", b"\xff\xff")
        assert (refused.outcome, refused.reason) in {("refused", "INTERNAL"), ("refused", "HTTP 400")}, refused
        sender.close()
        until(lambda: counts(tmp_path / "store") == {1: 2_000 * ROWS})


@pytest.mark.parametrize("transport", ["asyncio", "grpcio"])
@pytest.mark.parametrize("compression", ["none", "gzip", "zstd", "snappy"])
def test_each_compression_of_the_collector_is_accepted_or_refused(tmp_path, compression, transport):
    request = MESSAGES["traces"].FromString((VECTORS / "traces_sdk_000.pb").read_bytes())
    settings = OtlpSettings(listening_addr="127.0.0.1:0", transport=transport)
    accepted = {"none", "gzip"} if transport == "grpcio" else {"none", "gzip", "zstd"}
    with (
        quiver.open(str(tmp_path / "store")) as store,
        OtlpGrpcReceiver(store, settings) as receiver,
        collector_to(receiver.port, tmp_path, compression=compression) as ports,
    ):
        sender = OtlpGrpcSender(ExporterSettings(f"http://127.0.0.1:{ports.grpc}"))
        assert sender.send("traces", request.SerializeToString()).outcome == "confirmed"
        sender.close()
        if compression in accepted:
            until(lambda: items(kept(tmp_path / "store", "traces")) == items(request))
        else:
            until(lambda: "grpc-encoding" in (tmp_path / "collector.log").read_text())
            assert items(kept(tmp_path / "store", "traces")) == []


@pytest.mark.parametrize(("handling", "compression"), [
    ("pass_through", "gzip"), ("pass_through", "zstd"), ("convert_to_arrow", "zstd"),
])  # fmt: skip
def test_kill_9_of_the_receiver_under_load_loses_nothing(tmp_path, handling, compression):
    """The Collector discards a request once our receiver has confirmed it: every accepted one must be in the store."""
    chance, port, store = random.Random(3), free_port(), tmp_path / "store"
    number = 0
    with collector_to(port, tmp_path, compression=compression) as ports:
        sender = OtlpGrpcSender(ExporterSettings(f"http://127.0.0.1:{ports.grpc}"))
        for _ in range(KILLS):
            with receiving(store, port, handling):
                for _ in range(chance.randrange(40, 160)):
                    assert sender.send("logs", numbered(number)).outcome == "confirmed"
                    number += 1
                time.sleep(chance.random() / 5)
        with receiving(store, port, handling):
            until(lambda: set(counts(store)) == set(range(number)))
        sender.close()
    found = counts(store)
    assert all(count % ROWS == 0 for count in found.values()), "half a request"
    assert number > KILLS * 40


def six_megabytes() -> bytes:
    """Larger than the default limit of a gRPC server."""
    made = ExportLogsServiceRequest()
    scope = made.resource_logs.add().scope_logs.add()
    for number in range(20_000):
        scope.log_records.add(severity_text=str(number)).body.string_value = f"{number} ".ljust(310, "x")
    return made.SerializeToString()


def test_the_collector_gets_all_of_a_request_above_its_default_limit(tmp_path):
    """Split between records: nothing is dropped or repeated, and each part keeps its order."""
    request = six_megabytes()
    assert len(request) > 6.2 * 1024 * 1024
    bundle = quiver.Bundle({60: pa.record_batch([pa.array([request], pa.binary())], schema=OTLP_SCHEMA)})
    with (
        quiver.open(str(tmp_path / "store")) as store,
        OtlpGrpcReceiver(store, OtlpSettings(listening_addr="127.0.0.1:0")) as receiver,
        collector_to(receiver.port, tmp_path) as ports,
        quiver.open(str(tmp_path / "before")) as before,
    ):
        subscriber = before.register("out", start="earliest")
        before.ingest(bundle)
        before.seal()
        sender = OtlpGrpcSender(ExporterSettings(f"http://127.0.0.1:{ports.grpc}", compression_method="gzip"))
        with BundleForwarder(subscriber, sender) as forwarder:
            assert forwarder.drained(60.0)
            assert (forwarder.state().confirmed, forwarder.state().refused) == (2, 0)
        until(lambda: sum(counts(tmp_path / "store").values()) >= 20_000)
        requests = [
            ExportLogsServiceRequest.FromString(to_otlp(one, "logs"))
            for _, one in quiver.read(str(tmp_path / "store")).bundles()
        ]
        parts = [
            [int(record.severity_text) for items in one.resource_logs for record in items.scope_logs[0].log_records]
            for one in requests
        ]
    assert [number for part in sorted(parts) for number in part] == list(range(20_000))
