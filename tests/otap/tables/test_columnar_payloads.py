"""Conversion by column and by object return the same tables, including dictionaries and metadata."""

import sys

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from otap_random import carried_request
from otap_ways import CASES, VECTORS, VIEW_OF, bytes_of, parsed

from quiver.otap.arrays import FallbackNeededError
from quiver.otap.request import parse_request
from quiver.otap.tables.columnar_payloads import tables_of_columns
from quiver.otap.tables.from_otlp import Converted, tables_of_message, tables_of_request
from quiver.otap.tables.payload_arrays import array_of, default_array, lists_of
from quiver.otap.tables.payload_schema import TABLES
from quiver.primitives.scan import Damage

SIGNALS = list(VIEW_OF)
SAMPLES = sorted((VECTORS / "otlp").glob("*.pb"))


def by_object(data: bytes, signal: str) -> Converted:
    converted = tables_of_message(parsed(data, signal), signal)
    assert isinstance(converted, Converted), converted
    return converted


def check(data: bytes, signal: str) -> None:
    fast, left_out = tables_of_columns(data, signal)
    slow = by_object(data, signal)
    assert dict(left_out) == dict(slow.left_out)
    (expected,) = slow.tables or ({},)
    assert list(fast) == list(expected)
    for payload, batch in fast.items():
        batch.validate(full=True)
        assert batch.schema.equals(expected[payload].schema, check_metadata=True)
        assert repr(batch.to_pydict()) == repr(
            expected[payload].to_pydict()
        )  # by this comparison NaN equals itself, and -0.0 differs from 0.0
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_dictionary(column.type):
                assert column.dictionary.equals(expected[payload].column(name).dictionary)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_sample_requests_convert_equally(path):
    signal = path.name.partition("_")[0]
    try:
        check(path.read_bytes(), signal)
    except FallbackNeededError:
        assert isinstance(tables_of_request(path.read_bytes(), signal), Converted | Damage)


@pytest.mark.parametrize("case", [case for case in CASES.values() if case["producer"] == "go"], ids=lambda c: c["name"])
def test_recorded_requests_convert_equally(case):
    check(bytes_of(case["otlp"][0]), case["signal"])


@pytest.mark.parametrize("signal", SIGNALS)
def test_random_requests_convert_equally(signal):
    done = 0
    for seed in range(120):
        data = carried_request(VIEW_OF[signal], seed)
        try:
            check(data, signal)
        except FallbackNeededError:
            continue
        done += 1
    assert done > 90, "nearly all requests were left to the objects"


def logs(*records) -> bytes:
    request = ExportLogsServiceRequest()
    request.resource_logs.add().scope_logs.add().log_records.extend(records)
    return request.SerializeToString()


def record(**values):
    return ExportLogsServiceRequest().resource_logs.add().scope_logs.add().log_records.add(**values)


def nested(number: int) -> AnyValue:
    """Return a map of arrays with every kind, different from all others."""
    value = AnyValue()
    pair = value.kvlist_value.values.add(key=f"key {number}")
    values = pair.value.array_value.values
    # The head of a CBOR item has 1, 2, 3, 5 or 9 bytes.
    for end in (24, 2**8, 2**16, 2**32):
        for complete in (end - 1, end, -end, -end - 1):
            values.add(int_value=complete)
    for complete in (number, -number - 1, 300, 70_000, 2**40, -(2**63), 2**63 - 1):
        values.add(int_value=complete)
    for text in ("", "é" * number, "x" * 300):
        values.add(string_value=text)
    values.add(double_value=-0.0)
    values.add(double_value=float("nan"))
    values.add(bool_value=bool(number % 2))
    values.add(bytes_value=b"\xff" * number)
    values.add()
    values.add().array_value.SetInParent()
    values.add().kvlist_value.SetInParent()
    value.kvlist_value.values.add(key="unset")
    value.kvlist_value.values.add(key="unset")
    return value


@pytest.mark.parametrize("count", [3, 200])
def test_few_and_many_nested_values_have_the_same_cbor(count):
    check(logs(*(record(body=nested(number)) for number in range(count))), "logs")


@pytest.mark.parametrize("levels", [10, 60])
def test_values_nested_beyond_the_limit_are_refused(levels):
    """The decoder only sees bytes; the parser of requests counts levels, two for each array."""
    body = b"\x18\x01"
    for _ in range(levels):
        array = b"\x0a" + _length(body) + body
        body = b"\x2a" + _length(array) + array
    data = b"\x2a" + _length(body) + body  # the body of a record
    for tag in (b"\x12", b"\x12", b"\x0a"):
        data = tag + _length(data) + data
    assert isinstance(tables_of_request(data, "logs"), Converted if levels == 10 else Damage)


def _length(data: bytes) -> bytes:
    left, out = len(data), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def test_an_id_of_invalid_length_is_refused():
    refused = tables_of_request(logs(record(trace_id=b"short")), "logs")
    assert refused == Damage(0, "a trace_id has 5 bytes; OTAP requires 16")


def field(tag: bytes, content: bytes) -> bytes:
    return tag + bytes([len(content)]) + content


def long_tag(number: int, size: int) -> bytes:
    return bytes([number << 3 | 2 | 0x80]) + b"\x80" * (size - 2) + b"\0"


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("size", [2, 5, 6, 8, 10, 11])
def test_a_tag_of_more_than_five_bytes_is_refused_anywhere(signal, size):
    """Like the protobuf library does, and a receiver that stores requests."""
    record = field(b"\x12", field(b"\x12", b""))
    of_resource = field(b"\x0a", field(b"\x0a", field(long_tag(1, size), field(b"\x0a", b"k"))) + record)
    of_scope = field(b"\x0a", field(b"\x12", field(b"\x0a", field(long_tag(1, size), b"n")) + field(b"\x12", b"")))
    without_records = field(b"\x0a", field(b"\x0a", field(b"\x0a", field(long_tag(1, size), b"k"))))
    for data in (of_resource, of_scope, without_records):
        refused = isinstance(parse_request(data, signal), Damage)
        assert refused is (size > 5)
        assert isinstance(tables_of_request(data, signal), Damage) is refused


@pytest.mark.parametrize("signal", SIGNALS)
def test_data_that_tables_cannot_represent_are_still_validated(signal):
    bad = field(b"\x0a", b"\xff")  # the key of an attribute
    of_resource = field(b"\x0a", field(b"\x0a", field(b"\x0a", bad)))
    of_scope = field(b"\x0a", field(b"\x12", field(b"\x0a", field(b"\x1a", bad))))
    sound = field(b"\x0a", field(b"\x12", field(b"\x12", b"")))
    for data in (of_resource, of_scope, sound + of_resource, of_scope + sound):
        assert isinstance(tables_of_request(data, signal), Damage)


def test_without_the_decoder_objects_are_used(monkeypatch):
    from quiver.otap.wire_schema import narrow_handler

    data = logs(record(body=nested(1)), record(severity_text="x"))
    narrow_handler.cache_clear()
    monkeypatch.setitem(sys.modules, "ptars", None)
    try:
        converted = tables_of_request(data, "logs")
    finally:
        narrow_handler.cache_clear()
    assert isinstance(converted, Converted)
    assert converted.tables[0][30].equals(by_object(data, "logs").tables[0][30])


@pytest.mark.parametrize("signal", SIGNALS)
def test_requests_without_records_have_no_tables(signal):
    assert tables_of_request(b"", signal) == Converted((), {})


@pytest.mark.parametrize("rows", [0, 3])
def test_an_omitted_column_has_its_defaults(rows):
    nothing = pa.RecordBatch.from_pydict({"unknown": pa.nulls(rows)})
    for table in TABLES.values():
        defaults = lists_of(table, nothing)
        for column in table.columns:
            absent = default_array(column, rows)
            absent.validate(full=True)
            assert absent.equals(array_of(column, defaults[column.name]))
