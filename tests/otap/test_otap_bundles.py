"""Requests become bundles of tables, are stored, and are converted back."""

import inspect

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from otap_equal import said
from otap_ways import CASES, bytes_of, parsed, tables_of

import quiver
from quiver import otap
from quiver.bundle import OTLP_SCHEMA, Bundle
from quiver.errors import InvalidBundleError, UsageError

RICH = {"logs": "logs_anyvalue", "traces": "traces_rich", "metrics": "metrics_all_kinds"}


@pytest.mark.parametrize("signal", RICH)
def test_a_request_round_trips_through_a_store(signal, tmp_path):
    """Sealed into a segment, which merges the dictionaries of several bundles."""
    requests = [bytes_of(CASES[RICH[signal]]["otlp"][0])] * 3
    with quiver.open(tmp_path / "store") as store:
        for request in requests:
            for bundle in otap.iter_bundles(request, signal):
                store.ingest(bundle)
        store.seal()
    stored = [bundle for _, bundle in quiver.read(tmp_path / "store").bundles()]
    for request, bundle in zip(requests, stored, strict=True):
        assert said(parsed(otap.to_otlp(bundle, signal), signal)) == said(parsed(request, signal))


@pytest.mark.parametrize("signal", RICH)
def test_bundles_have_the_tables_of_the_conversion(signal):
    request = bytes_of(CASES[RICH[signal]]["otlp"][0])
    bundle = otap.from_otlp(request, signal, ingested_at_ns=5)
    assert dict(bundle.batches) == tables_of(request, signal)
    assert bundle.ingested_at_ns == 5
    assert said(parsed(otap.to_otlp(bundle, signal), signal)) == said(parsed(request, signal))


def test_a_stored_request_is_returned_unchanged():
    request = bytes_of(CASES["traces_sdk"]["otlp"][0])
    slot = pa.RecordBatch.from_arrays([pa.array([request, request], pa.binary())], schema=OTLP_SCHEMA)
    assert otap.to_otlp(Bundle({61: slot}), "spans") == request * 2


def numbered_logs(count):
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for number in range(count):
        record = records.add(time_unix_nano=number)
        record.attributes.add(key="n").value.int_value = number
    return request.SerializeToString()


def test_a_request_without_records_gives_a_bundle_without_slots():
    bundle = otap.from_otlp(b"", "logs")
    assert bundle.slots == ()
    assert otap.to_otlp(bundle, "logs") == b""
    assert list(otap.iter_bundles(b"", "logs")) == []


def test_a_request_with_more_records_than_ids_needs_iter_bundles():
    request = numbered_logs(70_000)
    with pytest.raises(InvalidBundleError, match="needs 2 bundles: use otap.iter_bundles"):
        otap.from_otlp(request, "logs")
    bundles = list(otap.iter_bundles(request, "logs", ingested_at_ns=5))
    assert [bundle[30].num_rows for bundle in bundles] == [65_535, 4_465]
    assert {bundle.ingested_at_ns for bundle in bundles} == {5}
    views = pa.concat_tables([otap.view(bundle, "logs") for bundle in bundles])
    assert [row[0][1]["int_value"] for row in views.column("attributes").to_pylist()] == list(range(70_000))


def test_iter_bundles_raises_before_the_first_bundle():
    with pytest.raises(InvalidBundleError, match="not an ExportLogsServiceRequest"):
        otap.iter_bundles(b"\xff", "logs")


def test_streams_raise_instead_of_returning_damage():
    tables = otap.from_otlp(bytes_of(CASES["logs_anyvalue"]["otlp"][0]), "logs").batches
    decoder = otap.StreamDecoder("logs")
    for batch in otap.StreamEncoder("logs").encode(tables):
        assert 30 in decoder.decode(batch.message).tables
    with pytest.raises(InvalidBundleError, match="not a BatchArrowRecords"):
        decoder.decode(b"\xff")
    with pytest.raises(InvalidBundleError, match="not a BatchArrowRecords"):  # the stream has ended
        decoder.decode(b"")
    with pytest.raises(InvalidBundleError, match="do not belong to metrics"):
        otap.StreamEncoder("metrics").encode(tables)


def test_no_public_function_returns_damage():
    for name in otap.__all__:
        public = getattr(otap, name)
        members = vars(public).items() if inspect.isclass(public) else [(name, public)]
        for member, value in members:
            if inspect.isfunction(value) and not member.startswith(("_", "try_")):
                assert "Damage" not in str(inspect.signature(value).return_annotation), f"{name}: {member}"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: otap.from_otlp(b"\xff", "logs"), "not an ExportLogsServiceRequest"),
        (lambda: otap.to_otlp(Bundle({10: pa.RecordBatch.from_pydict({"id": [1]})}), "logs"), "the bundle has no logs"),
        (lambda: otap.to_otlp(Bundle({30: pa.RecordBatch.from_pydict({"id": ["a"]})}), "logs"), "column id is string"),
    ],
)
def test_invalid_input_is_refused(call, reason):
    with pytest.raises(InvalidBundleError, match=reason):
        call()


def test_an_unknown_signal_is_a_usage_error():
    with pytest.raises(UsageError, match="profiles"):
        otap.from_otlp(b"", "profiles")
