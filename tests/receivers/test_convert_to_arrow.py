"""Requests stored as equivalent OTAP tables; the answer lists the parts that tables cannot represent."""

import json
import urllib.request
from dataclasses import replace

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import quiver
from quiver.errors import SettingsError
from quiver.observe import InMemoryObserver
from quiver.otap import to_otlp, view
from quiver.receivers.intake import OtlpIntake
from quiver.receivers.otlp.grpc_receiver import SERVICES, OtlpGrpcReceiver
from quiver.receivers.otlp.http_receiver import JSON, OtlpHttpReceiver
from quiver.receivers.settings import OtlpSettings

SETTINGS = OtlpSettings(listening_addr="127.0.0.1:0", otlp_handling="convert_to_arrow")
ROOTS = {"logs": 30, "traces": 40, "metrics": 10}


def request(signal: str, *, rows: int = 3):
    if signal == "logs":
        made = ExportLogsServiceRequest()
        items = made.resource_logs.add().scope_logs.add().log_records
    elif signal == "traces":
        made = ExportTraceServiceRequest()
        items = made.resource_spans.add().scope_spans.add().spans
    else:
        made = ExportMetricsServiceRequest()
        items = made.resource_metrics.add().scope_metrics.add().metrics
    for number in range(rows):
        item = items.add()
        if signal == "metrics":
            item.name = f"m{number}"
            item.sum.data_points.add(as_int=number).attributes.add(key="k").value.string_value = "v"
        else:
            item.attributes.add(key="number").value.int_value = number
    return made


def kept(path) -> list[quiver.Bundle]:
    return [bundle for _, bundle in quiver.read(str(path)).bundles()]


@pytest.mark.parametrize("signal", list(ROOTS))
def test_a_request_is_stored_as_equivalent_tables(tmp_path, signal):
    data = request(signal).SerializeToString()
    with quiver.open(str(tmp_path / "tables")) as tables, quiver.open(str(tmp_path / "whole")) as complete:
        assert OtlpIntake(tables, SETTINGS).accept(signal, data).outcome == "stored"
        assert OtlpIntake(complete, OtlpSettings()).accept(signal, data).outcome == "stored"
        (bundle,), (raw,) = kept(tmp_path / "tables"), kept(tmp_path / "whole")
    assert ROOTS[signal] in bundle.slots
    assert not {60, 61, 62} & set(bundle.slots)
    assert type(request(signal)).FromString(to_otlp(bundle, signal)) == request(signal)
    shown = "spans" if signal == "traces" else signal
    assert view(bundle, shown).equals(view(raw, shown))


class Spy:
    """Counts bundles, and which of them are waited for."""

    def __init__(self) -> None:
        self.bundles, self.durable, self.failures = [], [], []

    def ingest(self, bundle, *, durable=False, timeout=None):
        if self.failures:
            raise self.failures.pop()
        self.bundles.append(bundle)
        self.durable.append(durable)

    def sync(self):
        """Nothing is ever open."""

    def recent_wal_entries(self):
        return iter(())


def test_the_last_bundle_of_a_large_request_is_waited_for():
    store = Spy()
    data = request("logs", rows=70_000).SerializeToString()
    assert OtlpIntake(store, SETTINGS).accept("logs", data).confirmed
    assert len(store.bundles) == 2
    assert store.durable == [False, True]
    assert sum(bundle[30].num_rows for bundle in store.bundles) == 70_000


def test_garbage_and_oversized_ids_are_refused_and_store_nothing():
    store = Spy()
    intake = OtlpIntake(store, SETTINGS)
    bad = request("logs")
    bad.resource_logs[0].scope_logs[0].log_records[2].trace_id = b"short"
    for data in (b"\xff", bad.SerializeToString()):
        assert intake.accept("logs", data).outcome == "invalid"
    assert intake.accept("logs", b"").outcome == "empty"
    assert store.bundles == []


def test_a_request_without_records_is_confirmed_with_a_warning_and_stores_nothing():
    store = Spy()
    observer = InMemoryObserver()
    made = ExportLogsServiceRequest()
    made.resource_logs.add().resource.attributes.add(key="k").value.string_value = "v"
    verdict = OtlpIntake(store, SETTINGS, observer=observer).accept("logs", made.SerializeToString())
    assert verdict.confirmed
    assert "1 empty_resources" in verdict.warning
    assert store.bundles == []
    assert observer.total("quiver.receiver.left_out_total") == 1


def test_a_repeated_request_is_stored_once_while_the_receiver_runs():
    store = Spy()
    intake = OtlpIntake(store, replace(SETTINGS, dedupe_window_s=60))
    data = request("logs").SerializeToString()
    assert [intake.accept("logs", data).outcome for _ in range(2)] == ["stored", "duplicate"]
    assert len(store.bundles) == 1


def with_entity() -> ExportLogsServiceRequest:
    made = request("logs")
    made.resource_logs[0].resource.entity_refs.add(type="host")
    return made


def test_parts_that_tables_cannot_represent_are_a_warning_in_the_reply():
    store = Spy()
    complete = request("logs").SerializeToString()
    with OtlpGrpcReceiver(store, SETTINGS) as receiver, grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel:
        export = channel.unary_unary(f"/{SERVICES['logs']}/Export")
        assert export(complete, timeout=10) == b""
        answer = ExportLogsServiceResponse.FromString(export(with_entity().SerializeToString(), timeout=10))
    assert answer.partial_success.rejected_log_records == 0
    assert "1 entity_refs" in answer.partial_success.error_message
    document = {
        "resourceLogs": [
            {"resource": {"entityRefs": [{"type": "host"}]}, "scopeLogs": [{"logRecords": [{"flags": 1}]}]}
        ]
    }
    with OtlpHttpReceiver(store, SETTINGS) as receiver:
        url = f"http://127.0.0.1:{receiver.port}/v1/logs"
        sent = urllib.request.Request(url, json.dumps(document).encode(), {"Content-Type": JSON})
        with urllib.request.urlopen(sent, timeout=10) as reply:
            decoded = json.load(reply)
    assert "1 entity_refs" in decoded["partialSuccess"]["errorMessage"]
    assert len(store.bundles) == 3


def test_another_handling_is_refused():
    with pytest.raises(SettingsError, match="otlp_handling"):
        OtlpSettings(otlp_handling="convert")
