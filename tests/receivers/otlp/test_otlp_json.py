"""OTLP/JSON becomes equivalent protobuf, by the rules of the OTLP specification."""

import json
import tracemalloc

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from quiver.primitives.scan import Damage
from quiver.receivers.otlp.json_requests import request_from_json

TRACE, SPAN = "5B8EFFF798038103D269B633813FC60C", "eee19b7ec3c1b174"


def logs(record: dict, **more) -> bytes:
    scope = {"logRecords": [record]}
    return json.dumps({"resourceLogs": [{"scopeLogs": [scope]}], **more}).encode()


def read(data: bytes):
    written = request_from_json(data, "logs")
    assert isinstance(written, bytes), written
    return ExportLogsServiceRequest.FromString(written).resource_logs[0].scope_logs[0].log_records[0]


def test_the_span_example_of_the_specification_is_converted():
    span = {
        "traceId": TRACE, "spanId": SPAN, "parentSpanId": "EEE19B7EC3C1B173", "name": "I'm a server span",
        "startTimeUnixNano": "1544712660000000000", "endTimeUnixNano": 1544712661000000000, "kind": 2,
        "attributes": [{"key": "my.span.attr", "value": {"stringValue": "some value"}}],
        "links": [{"traceId": TRACE, "spanId": SPAN}], "status": {"code": 2},
    }  # fmt: skip
    document = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    found = ExportTraceServiceRequest.FromString(request_from_json(json.dumps(document).encode(), "traces"))
    read_span = found.resource_spans[0].scope_spans[0].spans[0]
    assert read_span.trace_id.hex().upper() == TRACE
    assert (read_span.span_id.hex(), read_span.parent_span_id.hex()) == (SPAN, "eee19b7ec3c1b173")
    assert (read_span.links[0].trace_id.hex().upper(), read_span.links[0].span_id.hex()) == (TRACE, SPAN)
    assert (read_span.kind, read_span.status.code) == (2, 2)
    assert read_span.end_time_unix_nano - read_span.start_time_unix_nano == 10**9


def test_ids_of_exemplars_are_hexadecimal_in_every_kind_of_metric():
    exemplar = {"traceId": TRACE, "spanId": SPAN, "asDouble": "NaN"}
    points = {"dataPoints": [{"exemplars": [exemplar]}]}
    kinds = ("gauge", "sum", "histogram", "exponentialHistogram")
    document = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": kind, kind: points} for kind in kinds]}]}]}
    found = ExportMetricsServiceRequest.FromString(request_from_json(json.dumps(document).encode(), "metrics"))
    for metric in found.resource_metrics[0].scope_metrics[0].metrics:
        (point,) = getattr(metric, metric.WhichOneof("data")).data_points
        assert point.exemplars[0].trace_id.hex().upper() == TRACE
        assert point.exemplars[0].as_double != point.exemplars[0].as_double


def test_values_of_every_kind_are_converted():
    values = [
        {"stringValue": "ü"}, {"boolValue": True}, {"intValue": "-9223372036854775808"}, {"intValue": 5},
        {"doubleValue": 0.5}, {"doubleValue": "-Infinity"}, {"bytesValue": "AAH/"}, {},
        {"arrayValue": {"values": [{"intValue": 1}]}},
        {"kvlistValue": {"values": [{"key": "traceId", "value": {"stringValue": "not an id"}}]}},
    ]  # fmt: skip
    record = read(logs({"body": {"arrayValue": {"values": values}}, "severityNumber": 9}))
    found = record.body.array_value.values
    assert [value.WhichOneof("value") for value in found] == [
        "string_value", "bool_value", "int_value", "int_value", "double_value", "double_value", "bytes_value", None,
        "array_value", "kvlist_value",
    ]  # fmt: skip
    assert found[2].int_value == -(2**63)
    assert found[6].bytes_value == b"\x00\x01\xff"
    assert found[9].kvlist_value.values[0].value.string_value == "not an id"


def test_unknown_keys_are_ignored_at_any_depth_with_any_value():
    record = {"body": {"stringValue": "x"}, "new": {"traceId": "no hex", "deep": [1, None]}, "severityText": None}
    record["attributes"] = [
        {"key": "k", "value": {"stringValue": "v", "newBytes": "?"}, "bytesValue": "?", "kind": "?"}
    ]
    assert read(logs(record, alsoNew=[{"spanId": "zz"}])).body.string_value == "x"
    assert read(logs({"traceId": None, "spanId": ""})).trace_id == b""


@pytest.mark.parametrize("value", [9, "SEVERITY_NUMBER_INFO", "9", 9.0])
def test_an_enum_is_a_number_or_its_protobuf_name(value):
    assert read(logs({"severityNumber": value})).severity_number == 9
    assert read(logs({"severity_number": -1})).severity_number == -1


@pytest.mark.parametrize(("text", "expected"), [
    ("AAH_", b"\0\1\xff"), ("AAH/", b"\0\1\xff"), ("AAE=", b"\0\1"), ("AAE", b"\0\1"), ("AA==", b"\0"), ("AA", b"\0"),
    ("", b""),
])  # fmt: skip
def test_bytes_are_base64_of_either_alphabet_padded_or_not(text, expected):
    body = read(logs({"body": {"bytesValue": text}})).body
    assert (body.WhichOneof("value"), body.bytes_value) == ("bytes_value", expected)


@pytest.mark.parametrize(("text", "expected"), [
    ("1544712660300000001.0", 1544712660300000001), ("18446744073709551615.0", 2**64 - 1),
    ("1544712660300000001", 1544712660300000001), ("1.544712660300000001e18", 1544712660300000001),
    ("9007199254740993.00", 2**53 + 1), ("1000e-3", 1), ("1E3", 1000), ("-0.0", 0), ("0e999999999", 0),
    ("1" + "0" * 300 + "e-299", 10),
])  # fmt: skip
@pytest.mark.parametrize("quote", ['"', ""])
def test_an_integer_is_exact_in_any_notation(text, expected, quote):
    data = logs({"timeUnixNano": "?"}).replace(b'"?"', f"{quote}{text}{quote}".encode())
    assert read(data).time_unix_nano == expected


def test_numbers_in_lists_are_exact():
    point = {"bucketCounts": ["9007199254740993.0", 9007199254740995, "3"], "explicitBounds": [0.5, "1e3"]}
    document = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"histogram": {"dataPoints": [point]}}]}]}]}
    found = ExportMetricsServiceRequest.FromString(request_from_json(json.dumps(document).encode(), "metrics"))
    (metric,) = found.resource_metrics[0].scope_metrics[0].metrics
    assert metric.histogram.data_points[0].bucket_counts == [2**53 + 1, 2**53 + 3, 3]
    assert metric.histogram.data_points[0].explicit_bounds == [0.5, 1000.0]
    point["bucketCounts"][1] = "1_0"
    assert isinstance(request_from_json(json.dumps(document).encode(), "metrics"), Damage)


@pytest.mark.parametrize("text", ["1.0000000000000000001", "9007199254740993.5", "1e-99999999999999999999", "1e400"])
@pytest.mark.parametrize("quote", ['"', ""])
@pytest.mark.parametrize("field", ["timeUnixNano", "severityNumber"])
def test_a_fraction_is_not_an_integer_even_if_a_float_cannot_represent_it(text, quote, field):
    answer = request_from_json(logs({field: "?"}).replace(b'"?"', f"{quote}{text}{quote}".encode()), "logs")
    assert isinstance(answer, Damage)


@pytest.mark.parametrize(("value", "expected"), [
    ("1544712660300000001.0", 1.5447126603e18), ("-1.5e3", -1500.0), (9007199254740993, 2.0**53), ("1.", 1.0),
    ("1e-999", 0.0), ("Infinity", float("inf")), ("inf", float("inf")), ("-Infinity", float("-inf")),
])  # fmt: skip
def test_a_float_is_the_nearest_one(value, expected):
    assert read(logs({"body": {"doubleValue": value}})).body.double_value == expected


def test_protobuf_field_names_are_accepted():
    data = {"resource_logs": [{"scope_logs": [{"log_records": [{"trace_id": TRACE, "severity_number": 9}]}]}]}
    record = read(json.dumps(data).encode())
    assert (record.trace_id.hex().upper(), record.severity_number) == (TRACE, 9)


@pytest.mark.parametrize("data", [
    b"", b"[]", b"null", b"1", b"{", b"\xff", b'{"resourceLogs": 5}', b'{"resourceLogs": [5]}',
    b'{"resourceLogs": [{"scopeLogs": {"logRecords": []}}]}',
    logs({"traceId": "xyz"}), logs({"traceId": "abc"}), logs({"traceId": 5}), logs({"spanId": [SPAN]}),
    logs({"timeUnixNano": -1}), logs({"timeUnixNano": "x"}), logs({"timeUnixNano": 2**64}), logs({"flags": 0.5}),
    *(logs({"timeUnixNano": text}) for text in ("1_000", "\u0661\u0662", "5\n", "1e", "", "NaN", "1e1000000000")),
    *(logs({"body": {"intValue": text}}) for text in ("1_0", "\u0661", "9223372036854775807.5", True)),
    *(logs({"body": {"doubleValue": text}}) for text in ("1e999", "-1e999", "1_0.5", "\u0661", "1.5\n", "", True)),
    logs({"body": {"doubleValue": 10**400}}), logs({"body": "text"}), logs({"body": ["text"]}),
    logs({"attributes": ["text"]}), logs({"body": {"arrayValue": "text"}}),
    logs({"body": {"stringValue": "a", "intValue": 1}}), logs({"body": {"bytesValue": "A"}}),
    logs({"body": {"stringValue": "\ud800"}}), logs({"body": {"stringValue": 5}}),
    *(logs({"body": {"bytesValue": text}}) for text in ("!!!!", "AAE=more", "AA%=", "A A A A", "AA==AA==", "\u00e9")),
    logs({"attributes": [{"value": {"kvlistValue": {"values": [{"value": {"bytesValue": "?"}}]}}}]}),
    *(logs({"severityNumber": value}) for value in ("INFO", "info", "", 9.5, True, [9], {"a": 9})),
    b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"timeUnixNano": NaN}]}]}]}',
    b'{"a":' * 100_000, b"[" * 1_000_000, b'{"a": ' + b"1" * 10_000 + b"}",
    logs({"body": json.loads('{"arrayValue": {"values": [' * 200 + "]}}" * 200)}),
])  # fmt: skip
def test_other_json_is_damage(data):
    answer = request_from_json(data, "logs")
    assert isinstance(answer, Damage), answer
    assert answer.reason.startswith("not an ExportLogsServiceRequest in JSON: ")
    assert len(answer.reason) < 300


def test_a_repeated_key_in_an_object_is_damage():
    """The first value would be lost silently; protobuf's own parser refuses it, too."""
    data = b'{"resourceLogs": [{"scopeLogs": [{"logRecords": []}], "scopeLogs": []}]}'
    answer = request_from_json(data, "logs")
    assert isinstance(answer, Damage)
    assert answer.reason.endswith("'scopeLogs' is repeated in an object")


@pytest.mark.parametrize("piece", [b"{},", b"[],", b'{"scopeLogs":[]},'])
def test_a_small_text_cannot_request_much_memory(piece):
    bomb = b'{"resourceLogs": [' + piece * 200_000 + b"{}]}"
    answer = request_from_json(bomb, "logs")
    assert isinstance(answer, Damage)
    assert "more than 200000 objects and lists" in answer.reason


@pytest.mark.parametrize(
    "record", ['{"traceId": "%s"}', '{"body": {"bytesValue": "%s"}}', '{"body": {"stringValue": "%s"}}']
)
def test_a_long_text_takes_a_few_times_its_length(record):
    data = b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [%s]}]}]}' % (record % ("ab" * 1_000_000)).encode()
    tracemalloc.start()
    try:
        assert isinstance(request_from_json(data, "logs"), bytes)
        assert tracemalloc.get_traced_memory()[1] < 8 * len(data)
    finally:
        tracemalloc.stop()


def test_truncated_json_is_damage_and_changed_bytes_give_an_answer():
    data = logs({"traceId": TRACE, "body": {"stringValue": "x"}, "timeUnixNano": "5"})
    for end in range(len(data)):
        assert isinstance(request_from_json(data[:end], "logs"), Damage)
    for at in range(len(data)):
        for byte in b'"{}[]:,0 \\\x00\xff':
            changed = data[:at] + bytes([byte]) + data[at + 1 :]
            assert isinstance(request_from_json(changed, "logs"), (bytes, Damage))


def test_protobuf_json_with_hexadecimal_ids_round_trips():
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add(schema_url="u").scope_logs.add().log_records.add()
    record.attributes.add(key="k").value.double_value = float("inf")
    record.observed_time_unix_nano = 2**64 - 1
    record.dropped_attributes_count = 3
    data = json_format.MessageToJson(request).encode()
    assert ExportLogsServiceRequest.FromString(request_from_json(data, "logs")) == request
