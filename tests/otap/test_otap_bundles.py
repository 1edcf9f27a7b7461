"""
Requests become bundles of tables, go through a store, and come back.
"""

import pyarrow as pa
import pytest
from otap_equal import said
from otap_ways import CASES, bytes_of, parsed, tables_of

import quiver
from quiver import otap
from quiver.bundle import OTLP_SCHEMA, Bundle
from quiver.errors import BundleInvalid, WrongUse

RICH = {"logs": "logs_anyvalue", "traces": "traces_rich", "metrics": "metrics_all_kinds"}


@pytest.mark.parametrize("signal", RICH)
def test_a_request_comes_back_from_a_store(signal, tmp_path):
    """Sealed into a segment, where dictionaries of several bundles become one."""
    requests = [bytes_of(CASES[RICH[signal]]["otlp"][0])] * 3
    with quiver.open(tmp_path / "store") as store:
        for request in requests:
            for bundle in otap.from_otlp(request, signal):
                store.ingest(bundle)
        store.flush()
    stored = [bundle for _, bundle in quiver.read(tmp_path / "store").bundles()]
    for request, bundle in zip(requests, stored, strict=True):
        assert said(parsed(otap.to_otlp(bundle, signal), signal)) == said(parsed(request, signal))


@pytest.mark.parametrize("signal", RICH)
def test_tables_are_those_of_the_conversion(signal):
    request = bytes_of(CASES[RICH[signal]]["otlp"][0])
    (bundle,) = otap.from_otlp(request, signal, ingested_at_ns=5)
    assert dict(bundle.batches) == tables_of(request, signal)
    assert bundle.ingested_at_ns == 5
    assert said(parsed(otap.to_otlp(bundle, signal), signal)) == said(parsed(request, signal))


def test_a_request_kept_whole_comes_back_as_it_is():
    request = bytes_of(CASES["traces_sdk"]["otlp"][0])
    slot = pa.RecordBatch.from_arrays([pa.array([request, request], pa.binary())], schema=OTLP_SCHEMA)
    assert otap.to_otlp(Bundle({61: slot}), "spans") == request * 2


def test_a_request_without_records_is_no_bundle():
    assert otap.from_otlp(b"", "logs") == ()


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: otap.from_otlp(b"\xff", "logs"), "not an ExportLogsServiceRequest"),
        (lambda: otap.to_otlp(Bundle({}), "logs"), "the bundle has no logs"),
        (lambda: otap.to_otlp(Bundle({30: pa.RecordBatch.from_pydict({"id": ["a"]})}), "logs"), "column id is string"),
    ],
)
def test_what_is_none_is_refused(call, reason):
    with pytest.raises(BundleInvalid, match=reason):
        call()


def test_an_unknown_signal_is_wrong_use():
    with pytest.raises(WrongUse, match="profiles"):
        otap.from_otlp(b"", "profiles")
