"""The views against hand-written requests, stored requests of real programs, and a slow reference implementation."""

from pathlib import Path

import otap_oracle as oracle
import pyarrow as pa
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otap_random import random_request

from quiver.bundle import OTLP_SCHEMA, Bundle
from quiver.errors import InvalidBundleError, UsageError
from quiver.otap import VIEW_SLOTS, VIEWS, decode_groups, decode_requests, view, view_schema

VECTORS = Path(__file__).parents[2] / "vectors" / "otlp"
FILES = sorted(VECTORS.glob("*.pb"))


def view_of(path: Path) -> str:
    signal = path.name.partition("_")[0]
    return "spans" if signal == "traces" else signal


def one_log(**fields) -> bytes:
    request = ExportLogsServiceRequest()
    request.resource_logs.add().scope_logs.add().log_records.add(**fields)
    return request.SerializeToString()


def first_row(data: bytes, signal: str) -> dict:
    decoded = decode_requests([data], signal)
    assert decoded.bad == ()
    decoded.batch.validate(full=True)
    return decoded.batch.to_pylist()[0]


def raw(data: bytes) -> pa.RecordBatch:
    return pa.record_batch([pa.array([data], pa.binary())], schema=OTLP_SCHEMA)


# -- complete views -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_requests_of_real_programs_agree_with_the_reference(path):
    decoded = decode_requests([path.read_bytes()], view_of(path))
    expected = oracle.rows(path.read_bytes(), view_of(path))
    decoded.batch.validate(full=True)
    assert decoded.batch.to_pylist() == expected
    assert decoded.rows == (len(expected),)


@pytest.mark.parametrize("name", VIEWS)
def test_random_requests_agree_with_the_reference(name):
    for seed in range(0, 60, 6):
        requests = [random_request(name, seed + step) for step in range(6)]
        decoded = decode_requests(requests, name)
        decoded.batch.validate(full=True)
        per_request = [oracle.rows(data, name) for data in requests]
        assert decoded.batch.to_pylist() == [row for rows in per_request for row in rows]
        assert decoded.rows == tuple(len(rows) for rows in per_request)
        assert decoded.bad == ()


@pytest.mark.parametrize("name", VIEWS)
def test_no_requests_and_empty_requests_give_all_columns_without_rows(name):
    for requests in ([], [b""], [b"", b""]):
        decoded = decode_requests(requests, name)
        assert decoded.batch.num_rows == 0
        assert decoded.batch.schema.equals(view_schema(name), check_metadata=True)
        assert decoded.rows == (0,) * len(requests)


@pytest.mark.parametrize("name", VIEWS)
def test_requested_columns_are_returned_in_order(name):
    data = next(path.read_bytes() for path in FILES if view_of(path) == name)
    complete = decode_requests([data], name).batch
    for column in complete.schema.names:
        assert decode_requests([data], name, columns=[column]).batch.equals(complete.select([column]))
    backwards = complete.schema.names[::-1]
    assert decode_requests([data], name, columns=backwards).batch.schema.names == backwards


def test_rows_are_counted_without_columns():
    data = (VECTORS / "logs_sdk_000.pb").read_bytes()
    assert decode_requests([data, data], "logs", columns=[]).batch.num_rows == 30


def test_unknown_views_and_columns_are_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="use one of logs, spans, metrics"):
        decode_requests([], "profiles")
    with pytest.raises(UsageError, match="no column 'boddy'; it has time"):
        decode_requests([], "logs", columns=["boddy"])
    with pytest.raises(UsageError, match="twice"):
        decode_requests([], "logs", columns=["body", "body"])


def test_traces_is_another_name_for_spans():
    data = (VECTORS / "traces_sdk_000.pb").read_bytes()
    assert decode_requests([data], "traces").batch.equals(decode_requests([data], "spans").batch)


# -- invalid and large requests -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", VIEWS)
def test_an_invalid_request_is_reported_by_index_and_does_not_affect_others(name):
    good = next(path.read_bytes() for path in FILES if view_of(path) == name and path.stat().st_size > 300)
    deep = b"\x0b" * 150_000  # groups in groups
    decoded = decode_requests([good, b"\xff\xff", good, deep, good[:-1]], name)
    assert [index for index, _ in decoded.bad] == [1, 3, 4]
    assert all("not an Export" in reason for _, reason in decoded.bad)
    count = len(oracle.rows(good, name))
    assert decoded.rows == (count, 0, count, 0, 0)
    assert decoded.batch.num_rows == 2 * count


@pytest.mark.parametrize("name", VIEWS)
def test_truncated_and_flipped_requests_do_not_raise(name):
    data = min((path.read_bytes() for path in FILES if view_of(path) == name and path.stat().st_size > 80), key=len)
    changed = [data[:end] for end in range(len(data))]
    changed += [data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :] for at in range(len(data))]
    decoded = decode_requests(changed, name)
    decoded.batch.validate(full=True)
    bad = {index for index, _ in decoded.bad}
    expected = [row for index, item in enumerate(changed) if index not in bad for row in oracle.rows(item, name)]
    assert decoded.batch.num_rows == len(expected)


def test_a_request_whose_rows_would_not_fit_into_memory_is_reported():
    request = ExportLogsServiceRequest()
    resource_logs = request.resource_logs.add()
    resource_logs.resource.attributes.add(key="k").value.string_value = "x" * 1_000_000
    records = resource_logs.scope_logs.add().log_records
    for _ in range(1000):
        records.add()
    decoded = decode_requests([request.SerializeToString()], "logs")
    assert decoded.batch.num_rows == 0
    assert "1000 rows, with resource and scope on each, take 1001" in decoded.bad[0][1]


def test_a_metric_with_a_long_name_and_many_points_counts_its_name_for_each():
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="x" * 1_000_000)
    for _ in range(1000):
        metric.gauge.data_points.add()
    assert "1000 rows" in decode_requests([request.SerializeToString()], "metrics").bad[0][1]


def test_groups_have_every_request_once_and_stay_small():
    good = (VECTORS / "logs_sdk_000.pb").read_bytes()
    requests = [good, b"\xff", good, b"", good, good]
    groups = list(decode_groups(iter(requests), "logs", group_bytes=20_000))
    assert len(groups) > 1
    assert [group.first for group in groups] == [sum(len(g.rows) for g in groups[:i]) for i in range(len(groups))]
    assert [count for group in groups for count in group.rows] == [15, 0, 15, 0, 15, 15]
    assert [group.first + index for group in groups for index, _ in group.bad] == [1]
    together = pa.Table.from_batches([group.batch for group in groups])
    assert together.to_pylist() == pa.Table.from_batches([decode_requests(requests, "logs").batch]).to_pylist()
    assert list(decode_groups([], "logs")) == []


def test_too_many_requests_for_one_batch_are_refused():
    request = ExportLogsServiceRequest()
    resource_logs = request.resource_logs.add()
    resource_logs.resource.attributes.add(key="k").value.string_value = "x" * 1_000_000
    records = resource_logs.scope_logs.add().log_records
    for _ in range(200):
        records.add()
    with pytest.raises(UsageError, match="fewer at a time"):
        decode_requests([request.SerializeToString()] * 2, "logs")


def test_memoryviews_are_accepted():
    data = (VECTORS / "logs_sdk_000.pb").read_bytes()
    assert decode_requests([memoryview(data)], "logs").batch.equals(decode_requests([data], "logs").batch)


# -- view ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VIEWS)
def test_a_bundle_and_its_slot_have_the_same_view(name):
    data = next(path.read_bytes() for path in FILES if view_of(path) == name)
    table = view(Bundle({VIEW_SLOTS[name]: raw(data)}), name)
    assert table.to_pylist() == oracle.rows(data, name)
    assert table.schema.equals(view_schema(name))
    assert view(raw(data), name).equals(table)
    assert view(raw(data), name, columns=["flags"]).equals(table.select(["flags"]))


def test_a_bundle_of_another_signal_has_no_rows():
    table = view(Bundle({61: raw(b"")}), "logs")
    assert table.num_rows == 0
    assert table.schema.equals(view_schema("logs"))


def test_a_bundle_with_an_invalid_request_is_refused_with_its_index():
    with pytest.raises(InvalidBundleError, match="request 0 of the bundle: not an ExportLogs"):
        view(raw(b"\xff"), "logs")


def test_a_batch_without_requests_is_refused():
    with pytest.raises(UsageError, match="named data"):
        view(pa.record_batch([pa.array([1])], names=["data"]), "logs")


# -- meaning of values --------------------------------------------------------------------------------------

UNSET = dict.fromkeys(("string_value", "bool_value", "int_value", "double_value", "bytes_value", "json_value"))


def attributes_of(fill) -> dict:
    request = ExportLogsServiceRequest()
    fill(request.resource_logs.add().scope_logs.add().log_records.add().attributes)
    return dict(first_row(request.SerializeToString(), "logs")["attributes"])


def test_every_kind_of_value_keeps_its_type():
    def fill(attributes):
        attributes.add(key="s").value.string_value = "text"
        attributes.add(key="b").value.bool_value = False
        attributes.add(key="i").value.int_value = -(2**63)
        attributes.add(key="d").value.double_value = 0.0
        attributes.add(key="y").value.bytes_value = b"\0\xff"
        attributes.add(key="a").value.array_value.values.add().int_value = 2**63 - 1
        entry = attributes.add(key="m").value.kvlist_value.values.add(key="k")
        entry.value.bytes_value = b"\0\xff"

    assert attributes_of(fill) == {
        "s": UNSET | {"string_value": "text"},
        "b": UNSET | {"bool_value": False},
        "i": UNSET | {"int_value": -(2**63)},
        "d": UNSET | {"double_value": 0.0},
        "y": UNSET | {"bytes_value": b"\0\xff"},
        "a": UNSET | {"json_value": "[9223372036854775807]"},
        "m": UNSET | {"json_value": '{"k":"AP8="}'},
    }


def test_missing_and_empty_values_are_unset_but_an_empty_string_is_a_string():
    def fill(attributes):
        attributes.add(key="missing")
        attributes.add(key="empty").value.SetInParent()
        attributes.add(key="text").value.string_value = ""
        attributes.add(key="array").value.array_value.SetInParent()
        attributes.add().value.int_value = 1

    assert attributes_of(fill) == {
        "missing": UNSET,
        "empty": UNSET,
        "text": UNSET | {"string_value": ""},
        "array": UNSET | {"json_value": "[]"},
        "": UNSET | {"int_value": 1},
    }


def test_of_two_attributes_with_one_key_the_last_is_kept():
    def fill(attributes):
        attributes.add(key="k").value.string_value = "first"
        attributes.add(key="other").value.int_value = 1
        attributes.add(key="k").value.int_value = 2

    assert attributes_of(fill) == {"k": UNSET | {"int_value": 2}, "other": UNSET | {"int_value": 1}}


def test_json_has_strings_for_values_it_cannot_represent():
    def fill(attributes):
        values = attributes.add(key="a").value.array_value.values
        for number in (float("nan"), float("inf"), float("-inf"), 1.5):
            values.add().double_value = number
        values.add().string_value = 'ü"'
        values.add().bool_value = True
        values.add()
        values.add().kvlist_value.SetInParent()

    assert attributes_of(fill)["a"]["json_value"] == '["NaN","Infinity","-Infinity",1.5,"ü\\"",true,null,{}]'


def block(field: int, data: bytes) -> bytes:
    assert len(data) < 128
    return bytes([field << 3 | 2, len(data)]) + data


def log_with(record: bytes) -> bytes:
    return block(1, block(2, block(2, record)))


def test_a_oneof_that_is_set_twice_on_the_wire_takes_the_last():
    text, number = block(1, b"text"), b"\x18\x05"
    assert first_row(log_with(block(5, text + number)), "logs")["body"] == UNSET | {"int_value": 5}
    assert first_row(log_with(block(5, number + text)), "logs")["body"] == UNSET | {"string_value": "text"}


def test_a_message_that_comes_in_two_parts_is_merged():
    text, number = block(1, b"text"), b"\x18\x05"
    merged = first_row(log_with(block(5, text) + block(5, number)), "logs")["body"]
    assert merged == UNSET | {"int_value": 5}
    half = block(5, block(1, b"\x18\x01"))  # array_value with one number
    assert first_row(log_with(block(5, half) * 2), "logs")["body"] == UNSET | {"json_value": "[1,1]"}


def test_a_resource_encoded_after_its_scopes_applies_to_them():
    resource = block(1, block(1, block(1, b"k") + block(2, block(1, b"v"))))
    scopes = block(2, block(2, b"\x10\x09"))
    row = first_row(block(1, scopes + resource), "logs")
    assert dict(row["resource_attributes"]) == {"k": UNSET | {"string_value": "v"}}
    assert row["severity_number"] == 9


def test_unknown_fields_and_known_fields_of_another_wire_type_are_skipped():
    unknown = b"\x98\x06\x01" + b"\xa1\x06" + bytes(8) + block(15, b"junk") + b"\x9b\x06\x08\x01\x9c\x06"
    mistyped = b"\x18\x01"  # severity_text (3) as a varint
    row = first_row(log_with(unknown + mistyped + b"\x10\x09") + unknown, "logs")
    assert row["severity_number"] == 9
    assert row["severity_text"] is None


def test_times_are_truncated_to_microseconds_and_exact_in_nanoseconds():
    row = first_row(one_log(time_unix_nano=1_700_000_000_123_456_789), "logs")
    assert row["time"].isoformat() == "2023-11-14T22:13:20.123456+00:00"
    assert row["time_unix_nano"] == 1_700_000_000_123_456_789
    assert row["observed_time"] is None
    assert row["observed_time_unix_nano"] == 0


def test_times_beyond_the_year_2262_keep_the_time_and_lose_the_nanoseconds():
    row = first_row(one_log(time_unix_nano=2**64 - 1), "logs")
    assert row["time"].year == 2554
    assert row["time_unix_nano"] is None


def test_ids_are_hex_of_any_length_and_null_when_empty():
    row = first_row(one_log(trace_id=b"\xab\xcd", span_id=b""), "logs")
    assert (row["trace_id"], row["span_id"]) == ("abcd", None)


def test_enumerations_are_names_and_unknown_numbers_are_digits():
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    spans.add(kind=2).status.code = 2
    spans.add(kind=77).status.code = 78
    rows = decode_requests([request.SerializeToString()], "spans").batch.to_pylist()
    assert [(row["kind"], row["status_code"]) for row in rows] == [("SERVER", "ERROR"), ("77", "78")]


def test_a_duration_needs_both_ends_and_may_be_negative():
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for start, end in ((5, 9), (9, 5), (0, 5), (5, 0), (5, 2**63)):
        spans.add(start_time_unix_nano=start, end_time_unix_nano=end)
    durations = decode_requests([request.SerializeToString()], "spans").batch.column("duration_nano")
    assert durations.to_pylist() == [4, -4, None, None, None]


def test_absent_values_of_a_data_point_are_null_and_zeros_are_zero():
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    metrics.add(name="none")
    metrics.add(name="no points").gauge.SetInParent()
    gauge = metrics.add(name="g").gauge.data_points
    gauge.add()
    gauge.add(as_int=0)
    gauge.add(as_double=0.0)
    histogram = metrics.add(name="h").histogram.data_points
    histogram.add()
    histogram.add(sum=0, min=0, max=0)
    metrics.add(name="s").summary.data_points.add()
    exponential = metrics.add(name="e").exponential_histogram.data_points
    exponential.add()
    exponential.add().positive.offset = 0
    batch = decode_requests([request.SerializeToString()], "metrics").batch
    rows = batch.select(["name", "int_value", "double_value", "count", "sum", "min", "positive_offset"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("g", None, None, None, None, None, None),
        ("g", 0, None, None, None, None, None),
        ("g", None, 0.0, None, None, None, None),
        ("h", None, None, 0, None, None, None),
        ("h", None, None, 0, 0.0, 0.0, None),
        ("s", None, None, 0, 0.0, None, None),
        ("e", None, None, 0, None, None, None),
        ("e", None, None, 0, None, None, 0),
    ]
    assert batch.column("bucket_counts").to_pylist() == [None] * 3 + [[], []] + [None] * 3


def test_temporality_and_monotonicity_are_set_only_for_kinds_that_have_them():
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    metrics.add().gauge.data_points.add()
    total = metrics.add().sum
    total.is_monotonic = True
    total.aggregation_temporality = 2
    total.data_points.add()
    metrics.add().sum.data_points.add()
    metrics.add().histogram.data_points.add()
    batch = decode_requests([request.SerializeToString()], "metrics").batch
    assert batch.column("is_monotonic").to_pylist() == [None, True, False, None]
    assert batch.column("temporality").to_pylist() == [None, "CUMULATIVE", "UNSPECIFIED", "UNSPECIFIED"]
