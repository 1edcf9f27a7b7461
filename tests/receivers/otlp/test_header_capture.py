"""Selected headers become attributes of every resource; clients cannot forge them."""

import urllib.request

import grpc
import pytest
from fake_store import FakeStore, log_request
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from quiver.errors import SettingsError
from quiver.otap import decode_requests
from quiver.primitives.scan import Damage
from quiver.receivers.header_capture import add_headers
from quiver.receivers.intake import OtlpIntake
from quiver.receivers.otlp.grpc_receiver import SERVICES, OtlpGrpcReceiver
from quiver.receivers.otlp.http_receiver import PROTOBUF, OtlpHttpReceiver
from quiver.receivers.settings import OtlpSettings

NAMES = ("X-Tenant", "user-agent")


def kept(data: bytes, headers, names=NAMES) -> list[dict]:
    written = add_headers(data, "logs", headers, names=names)
    found = []
    for resource in ExportLogsServiceRequest.FromString(written).resource_logs:
        attributes = resource.resource.attributes
        assert len({item.key for item in attributes}) == len(attributes)
        found.append({item.key: item.value for item in attributes})
    return found


def test_chosen_headers_are_on_every_resource_and_others_are_not():
    request = ExportLogsServiceRequest.FromString(log_request())
    request.resource_logs.add().resource.attributes.add(key="service.name").value.string_value = "shop"
    headers = [("x-tenant", "a"), ("X-Other", "b"), ("User-Agent", "sdk"), ("X-TENANT", "c")]
    first, second = kept(request.SerializeToString(), headers)
    assert [item.string_value for item in first["http.request.header.x-tenant"].array_value.values] == ["a", "c"]
    assert first["http.request.header.user-agent"].string_value == "sdk"
    assert set(second) == {*first, "service.name"}
    assert len(first) == 2


def test_attributes_of_the_client_with_these_names_are_removed_even_without_the_header():
    request = ExportLogsServiceRequest.FromString(log_request())
    for _ in range(2):
        forged = request.resource_logs[0].resource.attributes.add(key="http.request.header.x-tenant")
        forged.value.string_value = "admin"
    data = request.SerializeToString()
    (found,) = kept(data, [("x-tenant", "me")])
    assert found["http.request.header.x-tenant"].string_value == "me"
    assert kept(data, []) == [{}]


def test_unusual_values_become_text():
    (found,) = kept(log_request(), [("x-tenant", "\udcff"), ("user-agent", b"\xffu")])
    assert found["http.request.header.x-tenant"].string_value == "�"
    assert found["http.request.header.user-agent"].string_value == "�u"


def test_unknown_fields_stay_and_garbage_is_damage():
    unknown = b"\xf2\x3f\x03new"
    written = add_headers(log_request() + unknown, "logs", [("x-tenant", "a")], names=NAMES)
    assert written.endswith(unknown)
    assert isinstance(add_headers(b"\xff", "logs", [], names=NAMES), Damage)


def test_an_intake_stores_headers_and_recognizes_the_request():
    store = FakeStore()
    settings = OtlpSettings(capture_headers=NAMES, dedupe_window_s=60)
    intake = OtlpIntake(store, settings)
    assert intake.accept("logs", log_request(), headers=[("x-tenant", "a")]).outcome == "stored"
    assert intake.accept("logs", log_request(), headers=[("x-tenant", "a")]).outcome == "duplicate"
    assert intake.accept("logs", log_request(), headers=[("x-tenant", "b")]).outcome == "stored"
    assert intake.accept("logs", b"\xff", headers=[("x-tenant", "b")]).outcome == "invalid"
    rows = decode_requests([data for _, data in store.kept], "logs").batch.to_pylist()
    shown = [dict(row["resource_attributes"])["http.request.header.x-tenant"]["string_value"] for row in rows]
    assert shown == ["a", "b"]


def test_both_protocols_pass_their_headers():
    store = FakeStore()
    settings = OtlpSettings(listening_addr="127.0.0.1:0", capture_headers=NAMES)
    with OtlpGrpcReceiver(store, settings) as receiver, grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel:
        export = channel.unary_unary(f"/{SERVICES['logs']}/Export")
        export(log_request(), timeout=10, metadata=[("x-tenant", "by grpc"), ("x-other", "no")])
    with OtlpHttpReceiver(store, settings) as receiver:
        headers = {"Content-Type": PROTOBUF, "X-Tenant": "by http", "X-Other": "no"}
        sent = urllib.request.Request(f"http://127.0.0.1:{receiver.port}/v1/logs", log_request(), headers)
        with urllib.request.urlopen(sent, timeout=10) as reply:
            assert reply.status == 200
    found = [kept(data, [], names=()) for _, data in store.kept]
    assert [one["http.request.header.x-tenant"].string_value for (one,) in found] == ["by grpc", "by http"]
    assert all("http.request.header.user-agent" in one and len(one) == 2 for (one,) in found)


def test_a_request_that_exceeds_the_limit_with_headers_is_too_large():
    limits = OtlpSettings(
        max_request_bytes=1000, max_decompressed_bytes=1000, in_flight_bytes_max=1000, capture_headers=NAMES
    )
    verdict = OtlpIntake(FakeStore(), limits).accept("logs", log_request(size=900), headers=[("x-tenant", "a" * 200)])
    assert verdict.outcome == "too_large"


@pytest.mark.parametrize("name", ["authorization", "Cookie", "Proxy-Authorization", "two words", "", "a:b", "x" * 101])
def test_credentials_and_invalid_headers_are_not_captured(name):
    with pytest.raises(SettingsError, match="capture_headers"):
        OtlpSettings(capture_headers=("ok", name))
