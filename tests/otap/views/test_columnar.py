"""The columnar decoder returns exactly the rows that protobuf objects return, or needs the fallback."""

import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint
from otap_random import random_request

from quiver.otap import decode_requests, view_schema
from quiver.otap import request as requests_module
from quiver.otap.arrays import FallbackNeededError
from quiver.otap.request import RequestSize, measure_request, parse_request
from quiver.otap.request_nesting import nested_items_in_python
from quiver.otap.views import view as module
from quiver.otap.views.columnar import decode_columnar
from quiver.primitives.scan import Damage


def is_columnar(data: bytes, view: str) -> bool:
    """Return whether the columnar decoder supports every column of a request."""
    try:
        found = decode_columnar([data], view)
        for make in found.makers.values():
            make()
    except FallbackNeededError:
        return False
    return True


def columnar(requests: list[bytes], view: str) -> tuple[pa.RecordBatch, list[int]]:
    found = decode_columnar(requests, view)
    schema = view_schema(view)
    return pa.RecordBatch.from_arrays([found.makers[f.name]() for f in schema], schema=schema), found.per_request


def by_object(requests: list[bytes], view: str, monkeypatch) -> tuple[pa.RecordBatch, list[int]]:
    def refuse(*_):
        raise FallbackNeededError

    with monkeypatch.context() as patched:
        patched.setattr(module, "decode_columnar", refuse)
        decoded = decode_requests(requests, view)
    return decoded.batch, list(decoded.rows)


@pytest.mark.parametrize("view", ["logs", "spans", "metrics"])
def test_both_decoders_return_equal_rows(view, monkeypatch):
    """Values are compared by their text, so NaN equals itself and -0.0 differs from 0.0."""
    requests = [random_request(view, seed) for seed in range(150)]
    taken = [data for data in requests if is_columnar(data, view)]
    assert len(taken) > 15, "nearly all requests were left to the objects"
    fast, fast_rows = columnar(taken, view)
    slow, slow_rows = by_object(taken, view, monkeypatch)
    fast.validate(full=True)
    assert fast_rows == slow_rows
    assert repr(fast.to_pylist()) == repr(slow.to_pylist())


@pytest.mark.parametrize("view", ["logs", "spans", "metrics"])
def test_no_requests_and_empty_requests_give_an_empty_batch_with_the_schema(view):
    for requests in ([], [b""], [b"", b""]):
        batch, rows = columnar(requests, view)
        assert batch.num_rows == 0
        assert batch.schema == view_schema(view)
        assert rows == [0] * len(requests)


def nested_request() -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for text in ("plain", 'quo"ted\\', "line\nü\x01", ""):
        values = scope.log_records.add().body.array_value.values
        values.add().string_value = text
        values.add().int_value = -(2**63)
        values.add().bool_value = True
        for number in (0.1, -0.0, 1e20, float("nan"), float("inf"), float("-inf")):
            values.add().double_value = number
        values.add().bytes_value = b"\x00\xff"
        values.add()
        values.add().array_value.SetInParent()
        inner = values.add().kvlist_value.values.add()
        inner.key = text
        inner.value.array_value.values.add().string_value = text
    scope.log_records.add().body.kvlist_value.SetInParent()
    scope.log_records.add().body.string_value = "not nested"
    return request


def test_nested_values_have_the_same_text_as_from_objects(monkeypatch):
    data = nested_request().SerializeToString()
    fast, _ = columnar([data], "logs")
    slow, _ = by_object([data], "logs", monkeypatch)
    assert fast.column("body").to_pylist() == slow.column("body").to_pylist()
    assert fast.column("body").to_pylist()[4]["json_value"] == "{}"


@pytest.mark.parametrize("distinct", [3, 200])
def test_a_duplicate_key_needs_the_fallback(distinct):
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for index in range(distinct):
        record = records.add()
        for key in ("same", f"other {index}"):
            entry = record.attributes.add()
            entry.key, entry.value.int_value = key, index
    assert is_columnar(request.SerializeToString(), "logs")
    records[1].attributes.add().key = "same"
    assert not is_columnar(request.SerializeToString(), "logs")
    decoded = decode_requests([request.SerializeToString()], "logs")
    assert dict(decoded.batch.column("attributes")[1].as_py())["same"]["int_value"] is None


@pytest.mark.usefixtures("measured_by")
def test_deeply_nested_groups_are_refused_before_decoding():
    """150,000 open groups in a record would exhaust the stack of a decoder without a limit and end the process."""
    groups = b"\x4b" * 150_000

    def block(field: int, data: bytes) -> bytes:
        length, left = bytearray(), len(data)
        while left > 0x7F:
            length.append(left & 0x7F | 0x80)
            left >>= 7
        return bytes([field << 3 | 2]) + bytes([*length, left]) + data

    for data in (block(1, block(2, block(2, groups))), block(1, block(1, groups)), block(1, groups), groups):
        assert isinstance(measure_request(data, "logs"), Damage)
        assert decode_requests([data], "logs").bad


@pytest.fixture(params=["kernel", "python", "protobuf"])
def measured_by(request, monkeypatch):
    """Requests are measured in the kernel, by its twin, and by the protobuf library."""
    if request.param == "kernel" and requests_module.KERNEL is None:
        pytest.skip("the compiled kernel is not in use")
    if request.param == "python":
        monkeypatch.setattr(requests_module, "KERNEL", SimpleNamespace(nested_items=nested_items_in_python))
    if request.param == "protobuf":
        monkeypatch.setattr(requests_module, "KERNEL", None)


@pytest.mark.usefixtures("measured_by")
def test_a_metric_with_two_kinds_has_the_points_of_the_last_one():
    """A oneof that is set twice has its last value; both have points."""
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add()
    metric.gauge.data_points.add()
    twice = metric.SerializeToString()
    metric.sum.data_points.extend([NumberDataPoint(), NumberDataPoint()])
    twice += metric.SerializeToString()
    scope = b"\x12" + bytes([len(twice)]) + twice
    resource = b"\x12" + bytes([len(scope)]) + scope
    measured = measure_request(b"\x0a" + bytes([len(resource)]) + resource, "metrics")
    assert isinstance(measured, RequestSize)
    assert measured.rows == 2


@pytest.mark.usefixtures("measured_by")
@pytest.mark.parametrize("view", ["logs", "spans", "metrics"])
def test_measuring_agrees_with_parsing(view):
    for seed in range(100):
        data = random_request(view, seed)
        measured, parsed = measure_request(data, view), parse_request(data, view)
        assert isinstance(measured, RequestSize)
        assert not isinstance(parsed, Damage)
        assert measured.rows == parsed.rows
        # One counts the bytes of a schema URL, the other its characters.
        assert parsed.rows_bytes <= measured.rows_bytes <= 2 * parsed.rows_bytes


def test_one_invalid_request_does_not_affect_the_others(monkeypatch):
    good = nested_request().SerializeToString()
    bad_text = ExportLogsServiceRequest()
    bad_text.resource_logs.add().scope_logs.add().log_records.add().severity_text = "ok"
    broken = bad_text.SerializeToString().replace(b"ok", b"\xff\xff")
    decoded = decode_requests([good, broken, good], "logs")
    assert [index for index, _ in decoded.bad] == [1]
    assert decoded.rows == (6, 0, 6)


def test_without_the_decoder_objects_are_used(monkeypatch):
    from quiver.otap.wire_schema import narrow_handler

    data = nested_request().SerializeToString()
    with_it = decode_requests([data], "logs").batch
    narrow_handler.cache_clear()
    monkeypatch.setitem(sys.modules, "ptars", None)
    try:
        assert repr(decode_requests([data], "logs").batch.to_pylist()) == repr(with_it.to_pylist())
    finally:
        narrow_handler.cache_clear()


def test_a_decoder_with_another_interface_is_not_used(monkeypatch):
    """A later version may rename methods or columns: the decoder of objects is used, with the same result."""
    from quiver.otap.wire_schema import narrow_handler

    class Renamed:
        def __init__(self, files):
            pass

        def get_for_message(self, descriptor):
            return self

    class Changed(Renamed):
        def list_to_record_batch(self, requests):
            return pa.record_batch({"resourceLogs": pa.nulls(len(requests))})

        array_to_record_batch = list_to_record_batch

    data = nested_request().SerializeToString()
    with_it = decode_requests([data], "logs").batch
    for pool in (Renamed, Changed):
        narrow_handler.cache_clear()
        monkeypatch.setitem(sys.modules, "ptars", SimpleNamespace(HandlerPool=pool))
        try:
            with pytest.raises(ImportError, match="cannot be used"):
                narrow_handler("logs")
            assert repr(decode_requests([data], "logs").batch.to_pylist()) == repr(with_it.to_pylist())
        finally:
            narrow_handler.cache_clear()


def many_attributes(records: int) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    for number in range(2):
        resource = request.resource_logs.add()
        resource.resource.attributes.add(key="host").value.string_value = f"ü{number}"
        scope = resource.scope_logs.add()
        scope.scope.attributes.add(key="flag").value.bool_value = True
        for row in range(records):
            attributes = scope.log_records.add().attributes
            for key in range(10):
                value = attributes.add(key=f"key {key}").value
                if key % 2:
                    value.string_value = f"ü{row}" if row % 5 == 0 else ""
                elif key:
                    value.int_value = (row - 100) << 7 * (row % 8)
                else:
                    value.double_value = row / 7
    return request


@pytest.mark.parametrize("records", [1, 20, 500])
def test_few_and_many_attributes_of_all_levels_are_decoded(records, monkeypatch):
    data = many_attributes(records).SerializeToString()
    fast, _ = columnar([data], "logs")
    slow, _ = by_object([data], "logs", monkeypatch)
    fast.validate(full=True)
    assert fast.equals(slow)


def test_an_unusual_attribute_of_one_level_does_not_affect_the_others():
    request = many_attributes(3)
    value_first = b"\x12\x02\x18\x01\x0a\x01k"
    resource = b"\x0a" + bytes([len(value_first)]) + value_first
    data = (
        request.SerializeToString() + b"\x0a" + bytes([len(resource) + 2]) + b"\x0a" + bytes([len(resource)]) + resource
    )
    found = decode_columnar([data], "logs")
    assert len(found.makers["attributes"]()) == 6
    assert len(found.makers["scope_attributes"]()) == 6
    with pytest.raises(FallbackNeededError):
        found.makers["resource_attributes"]()
