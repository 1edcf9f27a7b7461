"""
OTAP streams between this package and the Rust crates, in both directions, as bytes and over gRPC.

`make test-otap` builds the driver; without it these tests are skipped.
"""

from __future__ import annotations

import otap_driver
import pytest
from otap_client import KeptTables
from otap_equal import merged
from otap_oracle import REQUESTS
from otap_ways import CASES, VIEW_OF, bytes_of, parsed, restored, tables_of

from quiver.exporters.otap_grpc import OtapGrpcSender
from quiver.exporters.settings import ExporterSettings
from quiver.otap import ArrowBatch, StatusCode, StreamDecoder, StreamEncoder, decode_status, to_otlp
from quiver.otap.stream.arrow_message import decode_records
from quiver.receivers.otap.receiver import OtapGrpcReceiver
from quiver.receivers.settings import OtlpSettings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not otap_driver.DRIVER.exists(), reason="the Rust driver is not built: run `make rival-otap`"),
]

LOSSES = frozenset({"zero_min", "zero_max", "zero_sum", "empty_attributes", "map_order", "empty_buckets", "metadata"})
SENT = {name: case for name, case in CASES.items() if case["producer"] == "go"}
NOT_SENT_BY_THE_CRATES = {
    "traces_empty_values": "a link without ids: the crates refuse their own batch",
    "logs_empty_values": "attributes of a resource without records go to the next resource",
}
BY_NAME = pytest.mark.parametrize("case", SENT.values(), ids=SENT)


def together(requests, signal: str):
    """Return the content of *requests*, unordered, without what the crates lose."""
    complete = REQUESTS[VIEW_OF[signal]]()
    for request in requests:
        complete.MergeFrom(parsed(request, signal))
    for resource in complete.resource_spans if signal == "traces" else ():
        for link in (link for scope in resource.scope_spans for span in scope.spans for link in span.links):
            link.ClearField("dropped_attributes_count")  # the crates write it under the field number of spans
    return merged(complete, LOSSES)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.xfail(reason=NOT_SENT_BY_THE_CRATES[name])])
        if name in NOT_SENT_BY_THE_CRATES
        else pytest.param(case, id=name)
        for name, case in SENT.items()
    ],
)
def test_streams_of_the_crates_decode_to_their_requests(case):
    signal = case["signal"]
    requests = [bytes_of(name) for name in case["otlp"]]
    decoder = StreamDecoder(signal)
    arrived = []
    for message in otap_driver.run("encode", signal, messages=requests):
        batch = decoder.try_decode(message)
        assert isinstance(batch, ArrowBatch), batch
        arrived.append(restored(batch.tables, signal).SerializeToString())
    assert together(arrived, signal) == together(requests, signal)


@BY_NAME
def test_the_crates_decode_our_streams_to_their_requests(case):
    signal = case["signal"]
    requests = [bytes_of(name) for name in case["otlp"]]
    encoder = StreamEncoder(signal)
    messages = [batch.message for data in requests for batch in encoder.encode(tables_of(data, signal))]
    arrived = otap_driver.run("decode", signal, messages=messages)
    assert together(arrived, signal) == together(requests, signal)


def distinct_request(signal: str, number: int, rows: int = 400):
    """Return a request in which few values of a column are the same."""
    request = REQUESTS[VIEW_OF[signal]]()
    if signal == "logs":
        records = request.resource_logs.add().scope_logs.add().log_records
    elif signal == "traces":
        records = request.resource_spans.add().scope_spans.add().spans
    else:
        metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="requests", unit="1")
        records = metric.gauge.data_points
    for row in range(number * rows, (number + 1) * rows):
        item = records.add()
        if signal != "traces":
            item.time_unix_nano = 1_700_000_000_000_000_000 + row
        item.attributes.add(key="path").value.string_value = f"/items/{row}"
        if signal == "metrics":
            item.as_double = row / 2
            continue
        item.attributes.add(key="length").value.int_value = row
        item.attributes.add(key="kind").value.string_value = "read"
        item.trace_id, item.span_id = row.to_bytes(16, "big"), row.to_bytes(8, "big")
        if signal == "logs":
            item.body.string_value = f"item {row} was read"
        else:
            item.name = f"read {row}"
            item.start_time_unix_nano, item.end_time_unix_nano = row + 1, row + 2
    return request


@pytest.mark.parametrize("signal", VIEW_OF)
def test_the_crates_decode_columns_that_became_plain_within_a_stream(signal):
    """Columns that hardly repeat are dictionaries in the first message, and plain from the second on."""
    requests = [distinct_request(signal, number).SerializeToString() for number in range(1, 4)]
    encoder = StreamEncoder(signal)
    messages = [batch.message for data in requests for batch in encoder.encode(tables_of(data, signal))]
    schemas = [{payload.schema_id for payload in decode_records(message).payloads} for message in messages]
    assert schemas[0] != schemas[1] == schemas[2]
    arrived = otap_driver.run("decode", signal, messages=messages)
    assert together(arrived, signal) == together(requests, signal)


@pytest.mark.parametrize("name", ["logs_sdk", "traces_sdk", "metrics_sdk"])
def test_our_receiver_stores_a_stream_of_the_crates(name):
    case, store = CASES[name], KeptTables()
    requests = [bytes_of(data) for data in case["otlp"]]
    with OtapGrpcReceiver(store, OtlpSettings(listening_addr="127.0.0.1:0")) as receiver:
        reported = otap_driver.run("send", case["signal"], f"http://127.0.0.1:{receiver.port}", messages=requests)
    assert {decode_status(status).code for status in reported} == {StatusCode.OK}
    assert len(reported) == len(requests)
    arrived = [to_otlp(bundle, case["signal"]) for bundle in store.kept]
    assert together(arrived, case["signal"]) == together(requests, case["signal"])


@pytest.mark.parametrize("name", ["logs_sdk", "traces_sdk", "metrics_sdk"])
def test_a_receiver_of_the_crates_accepts_our_streams(name):
    case = CASES[name]
    requests = [bytes_of(data) for data in case["otlp"]]
    with otap_driver.Serving() as serving:
        sender = OtapGrpcSender(ExporterSettings(f"http://127.0.0.1:{serving.port}"))
        for request in requests:
            assert sender.send(case["signal"], request).outcome == "confirmed"
        sender.close()
    assert together(serving.requests, case["signal"]) == together(requests, case["signal"])
