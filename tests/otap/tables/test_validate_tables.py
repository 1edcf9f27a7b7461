"""Valid tables convert to a request and rows; everything that is refused later is refused by validation."""

import pyarrow as pa
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from otap_oracle import REQUESTS
from otap_ways import CASES, bytes_of, weighed

from quiver.otap import ArrowBatch, StreamDecoder
from quiver.otap.request import measure_request
from quiver.otap.tables.cbor import encode_value
from quiver.otap.tables.from_otlp import Converted, tables_of_message
from quiver.otap.tables.to_otlp import request_of_tables
from quiver.otap.tables.validation import check_tables
from quiver.primitives.scan import Damage


def readable(tables, signal: str) -> bool:
    """Return whether the tables convert to a request and a view."""
    restored = request_of_tables(tables, signal)
    return not isinstance(restored, Damage) and not isinstance(measure_request(restored.data, signal), Damage)


@pytest.mark.parametrize("case", weighed("logs_dict_reset", "metrics_growing"))
def test_recorded_tables_are_valid(case):
    decoder = StreamDecoder(case["signal"])
    for name in case["otap"]:
        assert check_tables(decoder.try_decode(bytes_of(name)).tables, case["signal"]) is None


@pytest.mark.parametrize("name", ["logs_headers", "rust_traces_rich", "metrics_zero_bounds", "logs_no_ipc_compression"])
def test_tables_with_flipped_bytes_are_refused_or_readable(name):
    case = CASES[name]
    data = bytearray(bytes_of(case["otap"][0]))
    for at in range(0, len(data), 1 + len(data) // 40):
        data[at] ^= 0x15
        found = StreamDecoder(case["signal"]).try_decode(bytes(data))
        data[at] ^= 0x15
        if isinstance(found, ArrowBatch) and check_tables(found.tables, case["signal"]) is None and found.tables:
            assert readable(found.tables, case["signal"])


def attributes(*rows: tuple[int, str, int, bytes | None]) -> pa.RecordBatch:
    parents, keys, kinds, nested = zip(*rows, strict=True)
    plain = pa.field("parent_id", pa.uint16(), metadata={b"encoding": b"plain"})
    return pa.RecordBatch.from_arrays(
        [pa.array(parents, pa.uint16()), pa.array(keys), pa.array(kinds, pa.uint8()), pa.array(nested, pa.binary())],
        schema=pa.schema([plain, ("key", pa.string()), ("type", pa.uint8()), ("ser", pa.binary())]),
    )


def logs(**columns) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"severity_text": ["a", "b"], **columns})


ARRAY = encode_value(AnyValue(array_value={"values": [AnyValue(int_value=1)]}))


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ({31: attributes((0, "k", 1, None))}, "the table LOGS is missing"),
        ({30: logs(), 11: logs()}, "payload types [11] do not belong to logs"),
        ({30: logs(severity_number=["x", "y"])}, "column severity_number is string, not int32"),
        ({30: logs(id=pa.array([1, 0], pa.uint16()))}, "LOGS: two rows have the same id"),
        ({30: logs(), 31: attributes((0, "k", 8, None))}, "LOG_ATTRS: unknown type 8"),
        ({30: logs(), 31: attributes((0, "k", 5, ARRAY))}, "a value of type 5 has another kind"),
        ({30: logs(), 31: attributes((0, "k", 6, ARRAY[:-1]))}, "CBOR: 1 bytes needed"),
        ({30: logs(), 31: attributes((0, "k", 6, b"\x9f" * 120))}, "CBOR: nested too deep"),
    ],
)
def test_invalid_tables_are_refused(tables, reason):
    refused = check_tables(tables, "logs")
    assert isinstance(refused, Damage)
    assert reason in refused.reason


def tables_by_object(message, signal: str):
    """Return the tables of a request that is refused because of the size of its rows."""
    converted = tables_of_message(message, signal)
    assert isinstance(converted, Converted)
    (tables,) = converted.tables
    return tables


def test_tables_without_rows_are_valid():
    assert check_tables({}, "metrics") is None


@pytest.mark.parametrize(("size", "sound"), [(1_000, True), (200_000, False)])
def test_a_long_resource_on_many_records_is_refused_like_its_request(size, sound):
    request = REQUESTS["logs"]()
    items = request.resource_logs.add()
    items.resource.attributes.add(key="k", value=AnyValue(string_value="x" * size))
    records = items.scope_logs.add().log_records
    for _ in range(2_000):
        records.add(severity_number=1, attributes=[KeyValue(key="k")])
    tables = tables_by_object(request, "logs")
    assert (check_tables(tables, "logs") is None) == sound == readable(tables, "logs")


def test_a_long_resource_on_many_points_is_refused_like_its_request():
    request = REQUESTS["metrics"]()
    items = request.resource_metrics.add()
    items.resource.attributes.add(key="k", value=AnyValue(string_value="x" * 300_000))
    metric = items.scope_metrics.add().metrics.add(name="m")
    for at in range(1_000):
        metric.gauge.data_points.add(as_int=at)
    tables = tables_by_object(request, "metrics")
    assert "with resource and scope on each" in check_tables(tables, "metrics").reason
    assert not readable(tables, "metrics")


def test_a_scope_shared_very_often_is_refused_like_its_request():
    rows = 5_000
    ids = pa.array(range(rows), pa.uint16())
    plain = {b"encoding": b"plain"}
    resource = pa.StructArray.from_arrays([ids], fields=[pa.field("id", pa.uint16(), metadata=plain)])
    shared = pa.array([0] * rows, pa.uint16())
    scope = pa.StructArray.from_arrays([shared], fields=[pa.field("id", pa.uint16(), metadata=plain)])
    root = pa.RecordBatch.from_arrays([resource, scope], names=["resource", "scope"])
    scopes = attributes((0, "k" * 40_000, 0, None))
    refused = check_tables({30: root, 2: scopes}, "logs")
    assert refused.reason == "resources and scopes are shared so often that the request would become too large"
    assert not readable({30: root, 2: scopes}, "logs")
