"""Rows of a view are converted to a request that has the same rows."""

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from quiver.bundle import OTLP_SCHEMA
from quiver.errors import UsageError
from quiver.otap import view, view_schema
from quiver.receivers.otlp.json_requests import request_from_json
from quiver.spark.otlp_rows import is_view, json_of_rows, request_of_rows

VECTORS = sorted((Path(__file__).parents[2] / "vectors" / "otlp").glob("*.pb"))


def view_of(path):
    name = path.name.partition("_")[0]
    return "spans" if name == "traces" else name


def rows_of(data, name):
    return view(pa.record_batch({"data": [data]}, schema=OTLP_SCHEMA), name).combine_chunks().to_batches()[0]


def as_set(batch):
    return Counter(map(repr, batch.to_pylist()))


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_recorded_requests_round_trip(path):
    """Row by row, for any order of resources and scopes."""
    name = view_of(path)
    batch = rows_of(path.read_bytes(), name)
    again = rows_of(request_of_rows(batch, name).SerializeToString(), name)
    assert as_set(again) == as_set(batch)
    assert batch.num_rows > 0


def test_json_follows_the_otlp_specification():
    """Ids in hex, enumerations as numbers, one line; our own receiver accepts it."""
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id, span.name, span.kind = bytes(range(16)), bytes(range(8)), "a\nb", 2
    span.attributes.add(key="traceId").value.string_value = "not an id"
    text = json_of_rows(rows_of(request.SerializeToString(), "spans"), "spans")
    assert b"\n" not in text
    found = json.loads(text)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert found["traceId"] == bytes(range(16)).hex()
    assert found["spanId"] == bytes(range(8)).hex()
    assert found["kind"] == 2
    assert found["attributes"][0] == {"key": "traceId", "value": {"stringValue": "not an id"}}


def test_rows_are_grouped():
    """There is one resource, scope and metric each, for any order of the rows."""
    request = ExportMetricsServiceRequest()
    for _ in range(2):
        for service in ("a", "b"):
            resource = request.resource_metrics.add()
            resource.resource.attributes.add(key="service.name").value.string_value = service
            metric = resource.scope_metrics.add().metrics.add()
            metric.name = "requests"
            metric.sum.is_monotonic = True
            metric.sum.aggregation_temporality = 2
            metric.sum.data_points.add().as_int = 1
    made = request_of_rows(rows_of(request.SerializeToString(), "metrics"), "metrics")
    assert len(made.resource_metrics) == 2
    for resource in made.resource_metrics:
        [scope] = resource.scope_metrics
        [metric] = scope.metrics
        assert len(metric.sum.data_points) == 2


def test_values_keep_their_type():
    """Also nested ones: an integer remains an integer, a float a float."""
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    values = record.body.kvlist_value.values
    values.add(key="int").value.int_value = 1
    values.add(key="float").value.double_value = 1.5
    values.add(key="bool").value.bool_value = True
    values.add(key="list").value.array_value.values.add().string_value = "x"
    values.add(key="unset").value.SetInParent()
    made = request_of_rows(rows_of(request.SerializeToString(), "logs"), "logs")
    assert made.resource_logs[0].scope_logs[0].log_records[0].body == record.body


def test_columns_may_be_missing():
    """Fields that the query did not select are absent; one timestamp is enough for a time."""
    batch = pa.RecordBatch.from_pylist(
        [{"time": datetime(2026, 1, 31, 12, tzinfo=UTC), "severity_text": "INFO"}],
        schema=pa.schema([view_schema("logs").field("time"), pa.field("severity_text", pa.string())]),
    )
    assert is_view(batch.schema, "logs")
    [record] = request_of_rows(batch, "logs").resource_logs[0].scope_logs[0].log_records
    assert record.time_unix_nano == 1_769_860_800_000_000_000
    assert record.severity_text == "INFO"
    assert not record.HasField("body")


def test_rows_with_other_columns_are_refused():
    """The error names the unknown column."""
    batch = pa.record_batch({"service": ["a"], "count": [1]})
    assert not is_view(batch.schema, "logs")
    assert not is_view(batch.schema, "errors")
    with pytest.raises(UsageError, match="the view has no column count, service"):
        request_of_rows(batch, "logs")
    with pytest.raises(UsageError, match="these rows are not spans"):
        request_of_rows(pa.record_batch({"trace_id": ["no hex"]}), "spans")
    with pytest.raises(UsageError, match="a data point of type None"):
        request_of_rows(pa.record_batch({"name": ["x"]}), "metrics")


def test_our_receiver_reads_the_output():
    """It decodes OTLP/JSON to the same request."""
    path = next(path for path in VECTORS if path.name.startswith("traces_rich"))
    batch = rows_of(path.read_bytes(), "spans")
    parsed = request_from_json(json_of_rows(batch, "spans"), "spans")
    assert as_set(rows_of(parsed, "spans")) == as_set(batch)
