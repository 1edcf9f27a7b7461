"""Views of OTLP requests as tables: the rows of the view, ranges of both kinds of time, other engines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from query_stores import ROOT, CountingFiles, opened

import quiver
from otlp_requests import LOGS, METRICS, TRACES, log_request, metric_request, otlp_bundle, span_request
from quiver.bundle import Bundle
from quiver.errors import CorruptionError, StoreClosedError, UsageError
from quiver.otap import from_otlp, view, view_schema
from quiver.store.reading.read import read
from quiver.store.segment.reader import SegmentReader

NOON = int(datetime(2026, 1, 5, 12, tzinfo=UTC).timestamp()) * 10**9
REQUESTS = {"logs": (LOGS, log_request), "spans": (TRACES, span_request), "metrics": (METRICS, metric_request)}
NAMES = {"logs": "time_unix_nano", "spans": "start_time_unix_nano", "metrics": "time_unix_nano"}


def filled(signal="logs"):
    """Times 0 to 5 after noon: two segments with two bundles and one, and a bundle that is only in the log."""
    store, disk, clock = opened()
    slot, request = REQUESTS[signal]
    for number, bundle in enumerate([(0, 1), (2,), (3, 4), (5,)]):
        store.ingest(otlp_bundle(request(*(NOON + time for time in bundle)), slot=slot))
        clock.advance(1)
        if number in {1, 2}:
            store.seal()
    return store, disk, clock


def times_of(scan, signal="logs"):
    return [time - NOON for time in scan.to_table()[NAMES[signal]].to_pylist()]


@pytest.mark.parametrize("signal", REQUESTS)
def test_a_view_has_the_rows_of_all_requests(signal):
    """By the store itself and by a reader of its directory; a new scan includes new bundles."""
    store, disk, _ = filled(signal)
    for source in (store, read(ROOT, fs=disk)):
        scan = source.scan(view=signal)
        assert scan.schema == view_schema(signal)
        assert times_of(scan, signal) == times_of(scan, signal) == [0, 1, 2, 3, 4, 5]
        slot = REQUESTS[signal][0]
        expected = [view(bundle[slot], signal) for _, bundle in read(ROOT, fs=disk).bundles()]
        assert scan.to_table() == pa.concat_tables(expected).combine_chunks()
    slot, request = REQUESTS[signal]
    store.ingest(otlp_bundle(request(NOON + 6), slot=slot))
    assert times_of(scan, signal) == [0, 1, 2, 3, 4, 5]
    assert times_of(store.scan(view=signal), signal) == [0, 1, 2, 3, 4, 5, 6]
    store.close()
    with pytest.raises(StoreClosedError):
        store.scan(view=signal)


@pytest.mark.parametrize("signal", REQUESTS)
def test_a_range_of_event_times_is_exact(signal):
    """Within bundles, across segments, with one bound or both; the time is not among the columns."""
    store, _, _ = filled(signal)
    for start in (None, *range(-1, 8)):
        for end in (None, *range(-1, 8)):
            bounds = [None if bound is None else NOON + bound for bound in (start, end)]
            expected = [time for time in range(6) if (start is None or time >= start) and (end is None or time < end)]
            scan = store.scan(None, None, *bounds, view=signal, by="event")
            assert times_of(scan, signal) == expected
            assert store.scan(None, ["attributes"], *bounds, view=signal, by="event").to_table().shape == (
                len(expected),
                1,
            )
    store.close()


@pytest.mark.parametrize("by", ["ingested", "ingest"])
def test_a_range_of_ingestion_times_selects_bundles(by):
    """One second passes between two bundles."""
    store, disk, clock = filled()
    now = datetime.fromtimestamp(clock.now_ns() / 1e9, UTC)
    for source in (store, read(ROOT, fs=disk)):
        recent = source.scan(view="logs", start=now - timedelta(seconds=3), by=by)
        assert times_of(recent) == [2, 3, 4, 5]
        assert times_of(source.scan(view="logs", end=now - timedelta(seconds=1), by=by)) == [0, 1, 2, 3, 4]
    store.close()


@pytest.mark.parametrize("signal", REQUESTS)
def test_a_range_of_event_times_opens_no_other_segment(signal, monkeypatch):
    """The range of each segment and of each bundle is recorded when the segment is sealed."""
    store, disk, _ = filled(signal)
    fs = CountingFiles(disk)
    reader = read(ROOT, fs=fs)
    reader.scan(view=signal)
    fs.opened.clear()
    decoded = []
    bundle = SegmentReader.bundle
    monkeypatch.setattr(
        SegmentReader, "bundle", lambda self, index, *args: decoded.append(index) or bundle(self, index, *args)
    )
    scan = reader.scan(view=signal, start=NOON + 2, end=NOON + 3, by="event")
    assert times_of(scan, signal) == [2]
    assert fs.opened == {0: 1}
    assert decoded == [1]
    assert times_of(reader.scan(view=signal, start=NOON + 5, by="event"), signal) == [5]
    assert fs.opened == {0: 1}
    store.close()


def test_a_segment_without_a_recorded_range_is_read_and_filtered(monkeypatch):
    """An older version, another engine, or one request that cannot be read."""
    with monkeypatch.context() as patch:
        patch.setattr("quiver.store.segment.accumulator.stream_events", lambda *_: None)
        store, disk, _ = filled()
    assert [found.event_range_ns for found in read(ROOT, fs=disk).statistics()] == [None, None]
    store.ingest(otlp_bundle(log_request(NOON + 9), b"\x0a\xff"))
    store.seal()
    last = read(ROOT, fs=disk).statistics()[-1]
    assert (last.event_range_ns, last.items()) == (None, None)
    scan = store.scan(view="logs", start=NOON + 1, end=NOON + 4, by="event")
    assert times_of(scan) == [1, 2, 3]
    assert len(scan.problems) == 1
    store.close()


def test_a_segment_has_the_range_and_the_number_of_its_items():
    """Of all requests, next to the rows of other slots."""
    store, disk, _ = filled()
    store.ingest(otlp_bundle(metric_request(NOON + 7, NOON + 8), slot=METRICS))
    store.ingest(Bundle({30: pa.record_batch({"id": [1, 2, 3]})}))
    store.seal()
    first, second, third = read(ROOT, fs=disk).statistics()
    assert (first.event_range_ns, first.items()) == ((NOON, NOON + 2), 3)
    assert (second.event_range_ns, second.items()) == ((NOON + 3, NOON + 4), 2)
    assert (third.event_range_ns, third.items()) == ((NOON + 5, NOON + 8), 6)
    assert third.streams[0].event_column == "data"
    store.close()


def test_the_event_time_of_a_log_record_without_time_is_the_observed_one():
    """Without both, a record is in no range; times after 2262 are in every range without an end."""
    store, _, _ = opened()
    store.ingest(otlp_bundle(log_request(0, 100, 0, 2**63 + 5, observed=(50, 7, 0, 0))))

    def numbers(**bounds):
        found = store.scan(view="logs", columns=["time_unix_nano"], by="event", **bounds)
        return found.to_table()["time_unix_nano"].to_pylist()

    assert numbers() == [0, 100, 0, None]
    assert numbers(start=1) == [0, 100, None]
    assert numbers(start=8, end=100) == [0]
    assert numbers(end=51) == [0]
    assert numbers(start=2**70) == []
    store.close()


def test_tables_of_otap_are_part_of_the_view():
    """Requests and OTAP tables in one store."""
    store, _, _ = filled()
    store.ingest(from_otlp(log_request(NOON + 6, NOON + 7), "logs"))
    store.seal()
    store.ingest(from_otlp(log_request(NOON + 8, NOON + 9), "logs"))
    assert times_of(store.scan(view="logs")) == list(range(10))
    assert times_of(store.scan(view="logs", start=NOON + 5, end=NOON + 9, by="event")) == [5, 6, 7, 8]
    store.close()


def test_an_unreadable_request_is_reported_and_all_others_are_returned():
    """In a segment and in the log; a strict reader raises."""
    store, disk, _ = filled()
    store.ingest(otlp_bundle(log_request(NOON + 6), b"\x0a\xff", log_request(NOON + 7)))
    store.seal()
    store.ingest(otlp_bundle(b"\x0a\xff"))
    store.ingest(Bundle({LOGS: pa.record_batch({"other": [1]})}))
    scan = store.scan(view="logs")
    assert times_of(scan) == times_of(scan) == [0, 1, 2, 3, 4, 5, 6, 7]
    sealed, logged, foreign = (damage.reason for damage in scan.problems)
    assert sealed.startswith("a request of bundle 2:1 cannot be decoded: not an ExportLogsServiceRequest")
    assert logged.startswith("a request of this entry cannot be decoded")
    assert foreign.endswith("slot 60 has no column data")
    with pytest.raises(CorruptionError, match="bundle 2:1"):
        read(ROOT, fs=disk, strict=True).scan(view="logs").to_table()
    store.close()


def test_duckdb_and_polars_and_pandas_query_a_view():
    """In place, with nested columns."""
    store, _, _ = filled()
    logs = store.scan(view="logs", columns=["time", "body"], start=NOON + 1, by="event")
    assert duckdb.sql("SELECT count(*), max(body.string_value) FROM logs").fetchall() == [(5, f"record {NOON + 5}")]
    frame = pl.DataFrame(logs)
    assert frame.select(pl.col("body").struct.field("string_value").n_unique()).item() == 5
    assert frame["time"][0] == datetime(2026, 1, 5, 12, tzinfo=UTC)
    pandas = store.scan(view="logs", columns=["severity_text"]).to_table().to_pandas()
    assert pandas["severity_text"].tolist() == ["INFO"] * 6
    every = store.scan(view="logs")
    assert duckdb.sql("SELECT count(*) FROM every").fetchall() == [(6,)]
    assert pl.DataFrame(every).height == 6
    store.close()


def test_cores_are_one_view(tmp_path):
    """One core after the other, in the range."""
    with quiver.open(tmp_path, cores=2, background=False) as store:
        for time in range(4):
            store.ingest(otlp_bundle(log_request(NOON + time)), core=time % 2)
        store.core(1).seal()
        for source in (store, quiver.read(tmp_path)):
            assert times_of(source.scan(view="logs")) == [0, 2, 1, 3]
            assert times_of(source.scan(view="logs", start=NOON + 2, by="event")) == [2, 3]


def test_wrong_arguments_are_refused():
    """With what to write instead; a store without the signal has no rows."""
    store, _, _ = filled()
    for arguments in ({}, {"slot": "logs", "view": "logs"}, {"view": "logs", "table": "t"}):
        with pytest.raises(UsageError, match="give either a slot"):
            store.scan(**arguments)
    with pytest.raises(UsageError, match="no column 'absent'"):
        store.scan(view="logs", columns=["absent"])
    with pytest.raises(UsageError, match="is one text"):
        store.scan(view="logs", columns="body")
    with pytest.raises(UsageError, match="neither ingested nor event"):
        store.scan(view="logs", by="arrival")
    with pytest.raises(UsageError, match="no time zone"):
        store.scan(view="logs", start=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the mistake
    with pytest.raises(UsageError):
        store.scan(view="events")
    assert store.scan(view="spans").to_table().num_rows == 0
    assert (
        repr(store.scan(view="logs", columns=["body"]))
        == "Scan(view=logs, segments=2, log_entries=1, columns=['body'])"
    )
    store.close()
