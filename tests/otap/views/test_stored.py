"""Stored requests and tables have the same rows of a view."""

import pyarrow as pa
import pytest
from otap_oracle import REQUESTS
from otap_random import carried_request, random_request
from otap_ways import CASES, VECTORS, VIEW_OF, bytes_of, weighed

from quiver.bundle import OTLP_SCHEMA, OTLP_SLOTS, Bundle
from quiver.errors import InvalidBundleError
from quiver.otap import (
    StreamDecoder,
    decode_groups,
    from_otlp,
    iter_bundles,
    slots_of_view,
    view,
)
from quiver.otap.stored import StoredTables, split_stored, stored_requests
from quiver.otap.tables.from_otlp import tables_of_request
from quiver.otap.tables.validation import validate_tables
from quiver.otap.views.columnar_tables import decode_tables
from quiver.primitives.scan import Damage

SAMPLES = sorted((VECTORS / "otlp").glob("*.pb"))


def whole(data: bytes, signal: str) -> Bundle:
    return Bundle({OTLP_SLOTS[signal]: pa.RecordBatch.from_arrays([pa.array([data])], schema=OTLP_SCHEMA)})


def same_rows(data: bytes, signal: str) -> int:
    requests = view(whole(data, signal), signal)
    bundles = list(iter_bundles(data, signal))
    stored = [StoredTables(bundle.batches, signal) for bundle in bundles]
    for groups in (
        decode_groups([tables.try_request() for tables in stored], signal),
        decode_groups(stored, signal),
    ):
        batches = [group.batch for group in groups if not group.bad]
        assert pa.Table.from_batches(batches, requests.schema).to_pylist() == requests.to_pylist()
    return requests.num_rows


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_have_equal_rows(path):
    same_rows(path.read_bytes(), path.name.partition("_")[0])


@pytest.mark.parametrize("case", ["logs_anyvalue", "traces_rich", "metrics_all_kinds", "logs_sdk", "metrics_sdk"])
def test_recorded_requests_have_equal_rows(case):
    for name in CASES[case]["otlp"][:3]:
        assert same_rows(bytes_of(name), CASES[case]["signal"])


@pytest.mark.parametrize("case", ["logs_anyvalue", "logs_sdk", "traces_rich", "traces_sdk"])
def test_views_of_tables_need_no_request(case):
    """For any values; only a duplicate key in a map needs the fallback."""
    for name in CASES[case]["otlp"]:
        for bundle in iter_bundles(bytes_of(name), CASES[case]["signal"]):
            sound = validate_tables(bundle.batches, CASES[case]["signal"])
            found = decode_tables([sound], VIEW_OF[CASES[case]["signal"]])
            for column in found.makers.values():
                column()


@pytest.mark.parametrize("case", weighed("logs_dict_reset", "metrics_growing", "logs_schema_changes"))
def test_tables_of_a_stream_have_the_rows_of_their_request(case):
    """The tables come from other programs, with nulls and shared scope ids."""
    decoder = StreamDecoder(case["signal"])
    for name in case["otap"]:
        stored = StoredTables(decoder.try_decode(bytes_of(name)).tables, case["signal"])
        (direct,), (around,) = (list(decode_groups([what], case["signal"])) for what in (stored, stored.try_request()))
        assert sorted(map(repr, direct.batch.to_pylist())) == sorted(map(repr, around.batch.to_pylist()))


@pytest.mark.parametrize("signal", ["logs", "traces", "metrics"])
def test_random_requests_have_equal_rows(signal):
    compared = 0
    for seed in range(60):
        data = random_request("spans" if signal == "traces" else signal, seed)
        if not isinstance(tables_of_request(data, signal), Damage):
            compared += same_rows(data, signal)
    assert compared


@pytest.mark.parametrize("signal", ["logs", "traces", "metrics"])
def test_ids_of_zeros_are_unset_in_requests_and_in_tables(signal):
    """Some senders write zeros for an unset id; an id that only starts with zeros is set."""
    request = REQUESTS[VIEW_OF[signal]]()
    ids = [(bytes(16), bytes(8)), (b"", b""), (bytes(15) + b"\1", bytes(7) + b"\1"), (b"\2" * 16, b"")]
    for trace_id, span_id in ids:
        if signal == "logs":
            scope = request.resource_logs.add().scope_logs.add()
            scope.log_records.add(trace_id=trace_id, span_id=span_id)
        elif signal == "traces":
            span = request.resource_spans.add().scope_spans.add().spans.add(trace_id=trace_id, span_id=span_id)
            span.parent_span_id = span_id
            span.links.add(trace_id=trace_id, span_id=span_id)
        else:
            metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
            metric.sum.data_points.add(as_int=1).exemplars.add(trace_id=trace_id, span_id=span_id)
    assert same_rows(request.SerializeToString(), signal) == 4
    first, *_, last = view(whole(request.SerializeToString(), signal), signal).to_pylist()
    assert "0000" not in repr(first)
    assert "02" * 16 in repr(last)


def rows_of(group) -> list[dict]:
    assert not group.bad
    return group.batch.to_pylist()


@pytest.mark.parametrize("signal", ["logs", "traces"])
def test_sets_of_tables_are_decoded_together_and_stay_separate(signal):
    """The ids of records, resources and scopes start at 0 in each."""
    view_name = "spans" if signal == "traces" else signal
    requests = [carried_request(view_name, seed) for seed in range(40)]
    stored = [StoredTables(bundle.batches, signal) for data in requests for bundle in iter_bundles(data, signal)]
    expected = [
        row for one in stored for (group,) in [decode_groups([one.try_request()], signal)] for row in rows_of(group)
    ]
    for group_bytes in (1, 200_000, 1 << 30):
        groups = list(decode_groups(stored, signal, group_bytes=group_bytes))
        assert [group.first for group in groups] == [sum(len(g.rows) for g in groups[:at]) for at in range(len(groups))]
        assert repr([row for group in groups for row in rows_of(group)]) == repr(expected)
        assert [rows for group in groups for rows in group.rows] == [
            one.tables[30 if signal == "logs" else 40].num_rows for one in stored
        ]


def test_an_invalid_set_is_reported_and_the_others_have_rows():
    tables = from_otlp(bytes_of(CASES["logs_sdk"]["otlp"][0]), "logs")
    broken = {30: pa.RecordBatch.from_pydict({"id": ["a"], "resource": [{"id": 0}]})}
    good = StoredTables(tables.batches, "logs")
    (group,) = decode_groups([good, StoredTables(broken, "logs"), good], "logs")
    assert [index for index, _ in group.bad] == [1]
    assert group.rows == (tables[30].num_rows, 0, tables[30].num_rows)
    assert group.batch.num_rows == 2 * tables[30].num_rows


def test_a_bundle_of_both_kinds_has_the_rows_of_both():
    data = bytes_of(CASES["logs_sdk"]["otlp"][0])
    tables = from_otlp(data, "logs")
    rows = view(whole(data, "logs"), "logs").to_pylist()
    both = Bundle({**tables.batches, **whole(data, "logs").batches})
    assert view(both, "logs").to_pylist() == rows + rows


def test_slots_without_a_view_are_returned_unchanged():
    data = bytes_of(CASES["logs_sdk"]["otlp"][0])
    tables = from_otlp(data, "logs")
    other = pa.RecordBatch.from_pydict({"id": [1]})
    shown, rest = split_stored({**tables.batches, 7: other, 40: other, 61: whole(b"", "traces")[61]})
    assert rest == {7: other, 40: other}
    assert {view: len(found) for view, found in shown.items()} == {"logs": 1, "spans": 1}


def test_tables_of_another_signal_are_skipped():
    tables = from_otlp(bytes_of(CASES["logs_sdk"]["otlp"][0]), "logs")
    assert list(stored_requests(tables.batches, "metrics")) == []
    assert view(tables, "spans").num_rows == 0
    assert set(tables.slots) <= set(slots_of_view("logs"))


def test_invalid_tables_are_reported_and_the_others_have_rows():
    data = bytes_of(CASES["logs_sdk"]["otlp"][0])
    broken = Bundle({30: pa.RecordBatch.from_pydict({"id": ["a"], "resource": [{"id": 0}]})})
    with pytest.raises(InvalidBundleError, match="request 0 of the bundle: LOGS: column id is string"):
        view(broken, "logs")
    good = list(stored_requests(whole(data, "logs").batches, "logs"))
    (group,) = decode_groups([*stored_requests(broken.batches, "logs"), *good], "logs")
    assert [index for index, _ in group.bad] == [0]
    assert group.batch.num_rows == group.rows[1] > 0
    before, reported, after = decode_groups([*good, StoredTables(broken.batches, "logs"), *good], "logs")
    assert (before.first, reported.first, after.first) == (0, 1, 2)
    assert "column id is string" in reported.bad[0][1]
    assert reported.batch.num_rows == 0
    assert before.batch.equals(after.batch)
