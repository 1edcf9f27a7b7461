"""`capture_headers` applies to OTAP streams, too: the stored data equal those of an OTLP request with these headers."""

import pytest
from otap_client import Client, KeptTables
from otap_equal import merged
from otap_oracle import REQUESTS
from otap_ways import CASES, bytes_of, parsed

import quiver
from quiver.otap import StatusCode, StreamEncoder, from_otlp, to_otlp
from quiver.receivers.header_capture import add_headers
from quiver.receivers.otap.receiver import OtapGrpcReceiver
from quiver.receivers.settings import OtlpSettings

NAMES = ("x-tenant", "X-Zone")
HEADERS = (("x-tenant", "ada"), ("x-other", "no"))
CAPTURING = OtlpSettings(
    listening_addr="127.0.0.1:0", workers=2, capture_headers=NAMES, dedupe_window_s=600.0, ack="synced"
)


@pytest.mark.parametrize("name", ["logs_sdk", "traces_rich", "metrics_all_kinds"])
def test_the_headers_of_a_stream_are_on_each_resource(name):
    case, store = CASES[name], KeptTables()
    with OtapGrpcReceiver(store, CAPTURING) as receiver, Client(receiver.port, case["signal"], metadata=HEADERS) as one:
        one.send(*map(bytes_of, case["otap"]))
        one.half_close()
        reported = one.statuses()

    assert {status.code for status in reported} == {StatusCode.OK}
    assert len(store.kept) == len(case["otap"])
    losses = frozenset(case["losses"]) | {"empty_attributes", "map_order", "empty_buckets"}
    for kept, otlp in zip(store.kept, case["otlp"], strict=True):
        meant = add_headers(bytes_of(otlp), case["signal"], HEADERS, names=NAMES)
        came = parsed(to_otlp(kept, case["signal"]), case["signal"])
        assert merged(came, losses) == merged(parsed(meant, case["signal"]), losses)


def log_with(**attributes):
    request = REQUESTS["logs"]()
    items = request.resource_logs.add()
    for key, value in attributes.items():
        items.resource.attributes.add(key=key.replace("__", ".").replace("_", "-")).value.string_value = value
    items.scope_logs.add().log_records.add(severity_text="INFO")
    return request


def message_of(request) -> bytes:
    bundle = from_otlp(request.SerializeToString(), "logs")
    (batch,) = StreamEncoder("logs").encode(bundle.batches)
    return batch.message


def test_the_attribute_replaces_one_in_the_data_and_is_added_to_empty_resources():
    store = KeptTables()
    with OtapGrpcReceiver(store, CAPTURING) as receiver:
        for request in (log_with(http__request__header__x_tenant="eve", service="a"), log_with()):
            with Client(receiver.port, metadata=HEADERS) as one:
                one.send(message_of(request))
                assert one.status().code == StatusCode.OK
        with Client(receiver.port) as one:
            one.send(message_of(log_with(http__request__header__x_zone="eve")))
            assert one.status().code == StatusCode.OK

    came = [parsed(to_otlp(kept, "logs"), "logs").resource_logs[0].resource.attributes for kept in store.kept]
    assert [{pair.key: pair.value.string_value for pair in pairs} for pairs in came] == [
        {"service": "a", "http.request.header.x-tenant": "ada"},
        {"http.request.header.x-tenant": "ada"},
        {},
    ]


def test_a_repeated_batch_is_recognized_also_after_a_restart(tmp_path):
    """With the same header it is a repetition, with another one it is not."""
    message = message_of(log_with(service="a"))
    for tenants in (("ada", "ada"), ("ada", "bob")):
        with quiver.open(tmp_path) as store, OtapGrpcReceiver(store, CAPTURING) as receiver:
            for tenant in tenants:
                with Client(receiver.port, metadata=(("x-tenant", tenant),)) as one:
                    one.send(message)
                    assert one.status().code == StatusCode.OK
    with quiver.read(tmp_path) as reader:
        kept = [parsed(to_otlp(bundle, "logs"), "logs") for _, bundle in reader.bundles()]
    tenants = [
        {pair.key: pair.value.string_value for pair in one.resource_logs[0].resource.attributes}[
            "http.request.header.x-tenant"
        ]
        for one in kept
    ]
    assert tenants == ["ada", "bob"]
