"""OTLP → OTAP tables → OTLP returns the same request in the same order, and counts what tables cannot represent."""

import math
import random

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from otap_equal import said
from otap_oracle import REQUESTS
from otap_random import carried_request
from otap_strategies import requests
from otap_ways import CASES, VECTORS, VIEW_OF, Line, bytes_of, parsed, restored, tables_of

from quiver.otap.tables.from_otlp import Converted, tables_of_request
from quiver.otap.tables.to_otlp import request_of_tables
from quiver.primitives.scan import Damage

SIGNALS = ["logs", "traces", "metrics"]
SAMPLES = sorted((VECTORS / "otlp").glob("*.pb"))
TOGETHER = range(30)
QUICK = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))


def both_ways(message, line: Line) -> None:
    data = message.SerializeToString()
    tables = tables_of(data, line.signal)
    assert said(restored(tables, line.signal)) == said(message)
    assert said(line.send(tables), ordered=False) == said(message, ordered=False)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_checklist_17_sample_requests_round_trip(path):
    signal = path.name.partition("_")[0]
    both_ways(parsed(path.read_bytes(), signal), Line(signal))


@pytest.mark.parametrize("case", [case for case in CASES.values() if case["producer"] == "go"], ids=lambda c: c["name"])
def test_checklist_17_data_that_recorded_producers_lose_are_kept(case):
    """Zero sums, metadata and empty bytes are kept, also over one stream."""
    line = Line(case["signal"])
    for name in case["otlp"][:2]:
        both_ways(parsed(bytes_of(name), case["signal"]), line)


def random_ones(signal: str, seeds: range) -> None:
    """Thirty messages in each request, all on one stream, to share the fixed cost of a request."""
    line = Line(signal)
    for start in seeds[:: len(TOGETHER)]:
        data = b"".join(carried_request(VIEW_OF[signal], start + at) for at in TOGETHER)
        both_ways(parsed(data, signal), line)


def any_ones(signal: str, count: int) -> None:
    """Requests of Hypothesis, each on its own stream."""

    @settings(QUICK, max_examples=count)
    @given(requests(VIEW_OF[signal]))
    def each(message):
        both_ways(message, Line(signal))

    each()


@pytest.mark.parametrize("signal", SIGNALS)
def test_checklist_17_random_requests_on_one_stream_round_trip(signal):
    """With `any_ones`, eight hundred messages in the default suite."""
    start = random.randrange(1 << 30)
    random_ones(signal, range(start, start + 210))


@pytest.mark.parametrize("signal", SIGNALS)
def test_checklist_17_any_request_of_the_schema_round_trips(signal):
    any_ones(signal, 50)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("signal", SIGNALS)
def test_a_hundred_thousand_requests_round_trip(signal):
    start = random.randrange(1 << 30)
    random_ones(signal, range(start, start + 30_000))
    any_ones(signal, 4_000)


def log_request(*values: AnyValue):
    request = REQUESTS["logs"]()
    records = request.resource_logs.add().scope_logs.add().log_records
    for value in values:
        record = records.add(body=value)
        record.attributes.add(key="k", value=value)
    return request


def nested(depth: int, *, maps: bool) -> AnyValue:
    value = AnyValue(int_value=1)
    for _ in range(depth):
        if maps:
            value = AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key="k", value=value)]))
        else:
            value = AnyValue(array_value=ArrayValue(values=[value]))
    return value


def test_checklist_13_every_kind_round_trips_as_body_and_as_attribute():
    plain = [
        AnyValue(), AnyValue(string_value=""), AnyValue(string_value="é"), AnyValue(int_value=0),
        AnyValue(int_value=-(2**63)), AnyValue(double_value=-0.0), AnyValue(double_value=math.nan),
        AnyValue(bool_value=False), AnyValue(bool_value=True), AnyValue(bytes_value=b""), AnyValue(bytes_value=b"\xff"),
        AnyValue(array_value=ArrayValue()), AnyValue(kvlist_value=KeyValueList()),
    ]  # fmt: skip
    array = AnyValue(array_value=ArrayValue(values=plain))
    pairs = [KeyValue(key=key, value=value) for key in ("", "same") for value in (*plain, array)]
    both_ways(log_request(*plain, array, AnyValue(kvlist_value=KeyValueList(values=pairs))), Line("logs"))


@pytest.mark.parametrize("maps", [False, True])
def test_checklist_13_values_nest_up_to_the_limit_of_protobuf_readers(maps):
    """Requests with deeper nesting cannot be parsed, so none is lost."""
    cost = 3 if maps else 2
    attribute = [KeyValue(key="k", value=nested(92 // cost, maps=maps))]
    logs, spans, metrics = (REQUESTS[view]() for view in ("logs", "spans", "metrics"))
    items = logs.resource_logs.add()
    items.resource.attributes.add(key="k", value=nested(96 // cost, maps=maps))
    items.scope_logs.add().log_records.add(body=nested(96 // cost, maps=maps), attributes=attribute)
    span = spans.resource_spans.add().scope_spans.add().spans.add(attributes=attribute)
    span.events.add(attributes=attribute)
    span.links.add(attributes=attribute)
    point = metrics.resource_metrics.add().scope_metrics.add().metrics.add(metadata=attribute).gauge.data_points.add()
    point.exemplars.add(filtered_attributes=attribute)
    point.attributes.extend(attribute)
    for request, signal in ((logs, "logs"), (spans, "traces"), (metrics, "metrics")):
        both_ways(request, Line(signal))
    with pytest.raises(DecodeError):
        parsed(log_request(nested(98 // cost, maps=maps)).SerializeToString(), "logs")


def test_equal_resources_stay_separate():
    request = REQUESTS["logs"]()
    for value in (AnyValue(int_value=1), AnyValue(string_value="1"), AnyValue(string_value="1")):
        items = request.resource_logs.add(resource=Resource(attributes=[KeyValue(key="a", value=value)]))
        items.scope_logs.add().log_records.add()
        items.scope_logs.add().log_records.add()
    back = Line("logs").send(tables_of(request.SerializeToString(), "logs"))
    assert said(back) == said(request)
    assert [len(items.scope_logs) for items in back.resource_logs] == [2, 2, 2]


def test_checklist_14_unset_and_zero_optionals_are_different():
    request = REQUESTS["metrics"]()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    for kind in ("histogram", "exponential_histogram"):
        points = getattr(metrics.add(name=kind), kind).data_points
        points.add()
        points.add(sum=0.0, min=0.0, max=0.0)
        doubles = [{"as_double": value} for value in (0.0, -0.0, math.nan, math.nan)]
        points.add(sum=-0.0, exemplars=[{"as_int": 0}, {}, *doubles])
    metrics[1].exponential_histogram.data_points.add().positive.SetInParent()
    for kind in ("gauge", "sum"):
        points = getattr(metrics.add(name=kind), kind).data_points
        for value in ({"as_int": 0}, {"as_double": 0.0}, {}):
            points.add(**value)
    metrics.add(name="none")
    metrics.add(name="no points").summary.SetInParent()
    metrics.add(name="told", metadata=[KeyValue(key="m", value=AnyValue(bool_value=True))])
    both_ways(request, Line("metrics"))


def test_data_that_tables_cannot_represent_are_counted():
    request = REQUESTS["logs"]()
    request.resource_logs.add().scope_logs.add()
    request.resource_logs.add().resource.entity_refs.add(type="host")
    converted = tables_of_request(request.SerializeToString(), "logs")
    assert isinstance(converted, Converted)
    assert converted.left_out == {"empty_resources": 2, "empty_scopes": 1, "entity_refs": 1}
    assert converted.tables == ()


def test_an_id_of_invalid_length_is_refused():
    request = REQUESTS["logs"]()
    request.resource_logs.add().scope_logs.add().log_records.add(trace_id=b"short")
    refused = tables_of_request(request.SerializeToString(), "logs")
    assert refused == Damage(0, "a trace_id has 5 bytes; OTAP requires 16")


@pytest.mark.parametrize("most", [100, pytest.param(65_535, marks=[pytest.mark.slow])])
def test_more_records_than_ids_become_several_sets_of_tables(most, monkeypatch):
    for module in ("from_otlp", "columnar_payloads"):
        monkeypatch.setattr(f"quiver.otap.tables.{module}.ROOT_ROWS_MAX", most)
    request = REQUESTS["logs"]()
    items = request.resource_logs.add()
    items.resource.attributes.add(key="a")
    records = items.scope_logs.add().log_records
    for at in range(most + 1):
        records.add(severity_number=at % 24, attributes=[{"key": "n"}])
    converted = tables_of_request(request.SerializeToString(), "logs")
    assert isinstance(converted, Converted)
    assert [tables[30].num_rows for tables in converted.tables] == [most, 1]
    complete = REQUESTS["logs"]()
    for tables in converted.tables:
        complete.MergeFrom(restored(tables, "logs"))
    assert len(complete.resource_logs) == 2
    assert complete.resource_logs[1].scope_logs[0].log_records[0] == records[-1]


@pytest.mark.parametrize("signal", SIGNALS)
def test_every_prefix_of_a_request_is_refused_or_valid(signal):
    data = carried_request(VIEW_OF[signal], 5)[:600]
    for end in range(len(data)):
        made = tables_of_request(data[:end], signal)
        assert isinstance(made, Converted) or made.reason


# -- tables of other programs -----------------------------------------------------------------------------


def simple_logs(**columns):
    resource = pa.StructArray.from_arrays([pa.array([0, 0], pa.uint16())], ["id"])
    return {30: pa.RecordBatch.from_pydict({"id": pa.array([0, 1], pa.uint16()), "resource": resource, **columns})}


def test_checklist_12_nulls_in_required_columns_are_defaults():
    body = pa.array([{"type": 1, "str": None}, None], pa.struct([("type", pa.uint8()), ("str", pa.string())]))
    tables = simple_logs(time_unix_nano=pa.array([None, 5], pa.timestamp("ns")), body=body)
    key_and_type = {"key": pa.array([None], pa.string()), "type": pa.array([2], pa.uint8())}
    tables[31] = pa.RecordBatch.from_pydict({"parent_id": pa.array([0], pa.uint16()), **key_and_type})
    first, second = restored(tables, "logs").resource_logs[0].scope_logs[0].log_records
    assert first.body.string_value == ""
    assert first.body.HasField("string_value")
    assert not second.HasField("body")
    assert second.time_unix_nano == 5
    assert first.attributes == [KeyValue(key="", value=AnyValue(int_value=0))]


def test_checklist_12_null_items_of_lists_are_zeros():
    resource = pa.StructArray.from_arrays([pa.array([0], pa.uint16())], ["id"])
    tables = {
        10: pa.RecordBatch.from_pydict(
            {"id": pa.array([0], pa.uint16()), "resource": resource, "metric_type": pa.array([3], pa.uint8())}
        ),
        13: pa.RecordBatch.from_pydict(
            {
                "parent_id": pa.array([0], pa.uint16()),
                "explicit_bounds": pa.array([[None, 1.0]], pa.list_(pa.float64())),
                "bucket_counts": pa.array([[1, None, 0]], pa.list_(pa.uint64())),
            }
        ),
    }
    metric = restored(tables, "metrics").resource_metrics[0].scope_metrics[0].metrics[0]
    assert isinstance(metric, Metric)
    assert list(metric.histogram.data_points[0].explicit_bounds) == [0.0, 1.0]
    assert list(metric.histogram.data_points[0].bucket_counts) == [1, 0, 0]


def test_checklist_15_records_stay_with_their_resource_when_scopes_share_an_id():
    scope = pa.StructArray.from_arrays([pa.array([0, 0], pa.uint16()), pa.array(["s", "s"])], ["id", "name"])
    tables = simple_logs(scope=scope, severity_number=pa.array([1, 2], pa.int32()))
    resource = pa.StructArray.from_arrays([pa.array([0, 1], pa.uint16())], ["id"])
    tables[30] = tables[30].set_column(1, "resource", resource)
    attributes = {"key": ["k"], "type": pa.array([1], pa.uint8()), "str": ["v"]}
    tables[2] = pa.RecordBatch.from_pydict({"parent_id": pa.array([0], pa.uint16()), **attributes})
    for request in (restored(tables, "logs"), Line("logs").send(tables)):
        assert len(request.resource_logs) == 2
        assert [items.scope_logs[0].scope.name for items in request.resource_logs] == ["s", "s"]
        assert [items.scope_logs[0].scope.attributes[0].key for items in request.resource_logs] == ["k", "k"]
        numbers = [items.scope_logs[0].log_records[0].severity_number for items in request.resource_logs]
        assert numbers == [1, 2]


def test_rows_without_a_parent_are_counted():
    tables = simple_logs()
    attributes = {"key": ["k", "l"], "type": pa.array([0, 0], pa.uint8())}
    tables[31] = pa.RecordBatch.from_pydict({"parent_id": pa.array([0, 9], pa.uint16()), **attributes})
    assert request_of_tables(tables, "logs").orphans == 1


def test_a_long_text_of_many_rows_is_refused_before_decoding():
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.uint8()), ["x" * 100_000])
    refused = request_of_tables({30: pa.RecordBatch.from_pydict({"event_name": text})}, "logs")
    assert refused == Damage(0, "LOGS: column event_name takes 200000000 bytes; the limit is 134217728")


def shared_resource(rows: int, text: str) -> dict:
    """Records of one resource id with a different schema URL each."""
    ids = pa.array([0] * rows, U16)
    urls = pa.array([str(at) for at in range(rows)])
    resource = pa.StructArray.from_arrays([ids, urls], ["id", "schema_url"])
    attributes = {"key": ["k"], "type": pa.array([1], pa.uint8()), "str": [text]}
    return {
        1: pa.RecordBatch.from_pydict({"parent_id": pa.array([0], U16), **attributes}),
        30: pa.RecordBatch.from_pydict({"resource": resource}),
    }


def test_a_long_resource_shared_very_often_is_refused():
    assert len(restored(shared_resource(10, "x"), "logs").resource_logs) == 10
    refused = request_of_tables(shared_resource(3000, "x" * 100_000), "logs")
    assert refused == Damage(0, "resources and scopes are shared so often that the request would become too large")


def test_a_long_scope_shared_very_often_is_not_sent():
    """Each pair of a resource and a scope is sent with its own attributes."""
    made = shared_resource(6000, "x" * 100_000)
    own = pa.StructArray.from_arrays([pa.array(range(6000), U16)], fields=[pa.field("id", U16, metadata=PLAIN)])
    scope = pa.StructArray.from_arrays([pa.array([0] * 6000, U16)], ["id"])
    tables = {2: made[1], 30: pa.RecordBatch.from_pydict({"resource": own, "scope": scope})}
    refused = Line("logs").encoder.try_encode(tables)
    assert refused == Damage(0, "resources and scopes share 1 attributes so often that there would be 6000")


U16 = pa.uint16()
PLAIN = {"encoding": "plain"}
PLAIN_ID = pa.field("id", pa.uint16(), metadata={"encoding": "plain"})


@pytest.mark.parametrize(
    ("payload", "columns", "reason"),
    [
        (30, {"trace_id": pa.array(["x"])}, "LOGS: column trace_id is string, not fixed_size_binary[16]"),
        (30, {"severity_text": pa.array(["x"], pa.large_string())}, "LOGS: column severity_text is large_string"),
        (30, {"resource": pa.array([1])}, "LOGS: column resource is int64, not a struct"),
        (40, {"id": pa.array([1], pa.uint16())}, "payload types [40] do not belong to logs"),
        (31, {"type": pa.array([8], pa.uint8()), "parent_id": pa.array([0], pa.uint16())}, "unknown value type 8"),
    ],
)
def test_invalid_tables_are_refused(payload, columns, reason):
    ids = pa.RecordBatch.from_arrays([pa.array([0], pa.uint16())], schema=pa.schema([PLAIN_ID]))
    tables = {30: ids, payload: pa.RecordBatch.from_pydict(columns)}
    refused = request_of_tables(tables, "logs")
    assert isinstance(refused, Damage)
    assert reason in refused.reason


def test_two_records_with_the_same_id_are_refused():
    ids = pa.RecordBatch.from_arrays([pa.array([3, 3], pa.uint16())], schema=pa.schema([PLAIN_ID]))
    assert request_of_tables({30: ids}, "logs") == Damage(0, "LOGS: two rows have the same id")
