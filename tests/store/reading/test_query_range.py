"""Ranges of time: exactly the rows in them, and no reads of segments that cannot contain any."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from query_stores import LOGS, ROOT, CountingFiles, filled, opened

from quiver.bundle import Bundle
from quiver.errors import UsageError
from quiver.store.reading.read import read
from quiver.store.segment.reader import SegmentReader

UTC_NS = pa.timestamp("ns", "UTC")


def batch(*times: int | None, kind: pa.DataType = UTC_NS, name: str = "time") -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(times, pa.int64()).cast(kind), "id": list(range(len(times)))})


def times_of(scan, name="time"):
    return [time for found in scan for time in found.column(name).cast(pa.int64()).to_pylist()]


@pytest.fixture
def served(monkeypatch):
    """The batches read from segments, as (segment, stream, chunk)."""
    found = []

    def note(name):
        method = getattr(SegmentReader, name)

        def call(self, stream_id, chunk_index, *args):
            found.append((self.info.seq, stream_id, chunk_index))
            return method(self, stream_id, chunk_index, *args)

        monkeypatch.setattr(SegmentReader, name, call)

    note("batch")
    return found


def test_a_range_of_event_times_opens_no_other_segment(served):
    """Ten segments with a hundred times each: the range is in two of them, in one chunk each."""
    parts = [[batch(100 * part, 100 * part + 40), batch(100 * part + 50, 100 * part + 90)] for part in range(10)]
    store, disk = filled([*parts, []])
    fs = CountingFiles(disk)
    reader = read(ROOT, fs=fs)
    reader.scan("logs")
    assert sorted(fs.opened) == list(range(10))  # the end of each, once
    fs.opened.clear()
    scan = reader.scan("logs", start=350, end=450, by="event")
    assert times_of(scan) == [350, 390, 400, 440]
    assert fs.opened == {3: 1, 4: 1}
    assert served == [(3, 0, 1), (4, 0, 0)]
    store.close()


def test_a_range_of_ingestion_times_opens_no_other_segment(served):
    """There is a second between two bundles, and two bundles in a segment."""
    store, disk = filled([[batch(1), batch(2)], [batch(3), batch(4)], [batch(5), batch(6)], [batch(7), batch(8)]])
    stamps = [bundle.ingested_at_ns for _, bundle in read(ROOT, fs=disk).bundles()]
    fs = CountingFiles(disk)
    reader = read(ROOT, fs=fs)
    reader.scan("logs")
    fs.opened.clear()
    assert times_of(reader.scan("logs", start=stamps[3], end=stamps[4] + 1)) == [4, 5]
    assert fs.opened == {1: 1, 2: 1}
    assert served == [(1, 0, 1), (2, 0, 0)]
    fs.opened.clear()
    assert times_of(reader.scan("logs", start=stamps[6])) == [7, 8]  # only in the log
    assert not fs.opened
    store.close()


def test_a_segment_without_the_slot_is_not_opened(served):
    """The directory of the segment shows that."""
    store, disk, _ = opened()
    for slot in (LOGS, 40):
        store.ingest(Bundle({slot: batch(1)}))
        store.seal()
    fs = CountingFiles(disk)
    reader = read(ROOT, fs=fs)
    scan = reader.scan("logs")
    fs.opened.clear()
    assert times_of(scan) == [1]
    assert fs.opened == {0: 1}
    assert {seq for seq, _, _ in served} == {0}
    store.close()


def test_a_checksum_is_computed_once(monkeypatch):
    """For any number of reads by one reader; a new reader computes it again."""
    from quiver.store.segment import reader as module

    computed = []

    def check(view):
        computed.append(len(view))

    store, disk = filled([[batch(1)], [batch(2)], []])
    monkeypatch.setattr(module, "check_segment_checksum", check)
    one = read(ROOT, fs=disk)
    for _ in range(3):
        assert times_of(one.scan("logs")) == [1, 2]
        assert len(list(one.bundles())) == 2
    assert len(computed) == 2
    list(read(ROOT, fs=disk).bundles())
    assert len(computed) == 4
    store.close()


def test_a_store_computes_a_checksum_once_for_delivery_and_scan(monkeypatch):
    """Before the first byte is returned, and never again."""
    from quiver.store.segment import reader as module

    computed = []
    store, _ = filled([[batch(1)], [batch(2)], []])
    monkeypatch.setattr(module, "check_segment_checksum", lambda view: computed.append(len(view)))
    subscriber = store.register("s", start="earliest")
    while (handle := subscriber.next_bundle(timeout=0)) is not None:
        assert handle.bundle.slots == (LOGS,)
        handle.ack()
    assert times_of(store.scan("logs")) == [1, 2]
    assert len(computed) == 2
    store.close()


UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@st.composite
def stores(draw):
    """Bundles with event times of any unit, with nulls, without the column, without rows."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        batches = []
        for _ in range(draw(st.integers(0, 4))):
            unit = rng.choice(list(UNITS))
            times = [rng.choice([None, rng.randrange(-50, 50)]) for _ in range(rng.choice([0, 1, 2, 5]))]
            kind = pa.timestamp(unit, "UTC")
            if rng.random() < 0.15:
                batches.append(pa.record_batch({"id": times}, schema=pa.schema([("id", pa.int64())])))
            else:
                batches.append(batch(*times, kind=kind))
        parts.append(batches)
    return parts


BOUND = st.none() | st.integers(-60, 60).flatmap(lambda n: st.sampled_from([n, n * 1000, n * 10**6 + 1, n * 10**9]))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stores(), BOUND, BOUND)
def test_a_range_returns_exactly_its_rows(parts, start, end):
    """For each unit; a row without a time and a bundle without the column are in no bounded range."""
    store, disk = filled(parts)
    expected = []
    has_column = any("time" in one.schema.names for part in parts for one in part)
    for one in (one for part in parts for one in part):
        step = UNITS[one.schema.field("time").type.unit] if "time" in one.schema.names else 1
        values = (
            one.column("time").cast(pa.int64()).to_pylist() if "time" in one.schema.names else [None] * one.num_rows
        )
        for value, row in zip(values, one.column("id").to_pylist(), strict=True):
            inside = (
                value is not None and (start is None or value * step >= start) and (end is None or value * step < end)
            )
            if inside or (start is None and end is None):
                expected.append(row)
    if has_column or (start is None and end is None) or not any(parts):
        for source in (store, read(ROOT, fs=disk, strict=True)):
            found = source.scan("logs", start=start, end=end, by="event")
            ids = [row for one in found for row in one.column("id").to_pylist()] if "id" in found.schema.names else []
            assert ids == expected
            chosen = source.scan("logs", ["id"] if "id" in found.schema.names else [], start, end, by="event")
            assert sum(one.num_rows for one in chosen) == len(expected)
    else:
        with pytest.raises(UsageError, match="no column of event times"):
            store.scan("logs", start=start, end=end, by="event")
    store.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 9), st.integers(0, 9))
def test_a_range_of_ingestion_times_returns_its_bundles(sizes, low, high):
    """By bundle, since bundles are ingested: from start on, and before end."""
    store, disk = filled([[batch(0) for _ in range(size)] for size in sizes])
    stamps = [bundle.ingested_at_ns for _, bundle in read(ROOT, fs=disk).bundles()]
    if stamps:
        start, end = (stamps[0] + bound * 10**9 for bound in (low, high))
        found = store.scan("logs", start=start, end=end)
        assert sum(one.num_rows for one in found) == sum(start <= stamp < end for stamp in stamps)
    store.close()


def test_times_need_a_time_zone():
    """A datetime of any zone is an instant; one without a zone is refused, and so are other types."""
    noon = datetime(2026, 1, 5, 12, tzinfo=UTC)
    noon_ns = int(noon.timestamp()) * 10**9
    store, _ = filled([[batch(noon_ns - 1, noon_ns, noon_ns + 1000)], []])
    for start in (noon, noon.astimezone(timezone(timedelta(hours=5))), noon_ns):
        assert times_of(store.scan("logs", start=start, by="event")) == [noon_ns, noon_ns + 1000]
    assert times_of(store.scan("logs", start=noon, end=noon + timedelta(microseconds=1), by="event")) == [noon_ns]
    for wrong in (datetime(2026, 1, 5), "2026-01-05", 1.5, True):  # noqa: DTZ001
        with pytest.raises(UsageError, match="start="):
            store.scan("logs", start=wrong)
    with pytest.raises(UsageError, match="by='seen'"):
        store.scan("logs", by="seen")
    store.close()


@pytest.mark.parametrize("bound", [-(2**70), -(2**63) - 1, -(2**63), 2**63 - 1, 2**63, 2**70])
def test_bounds_beyond_all_times(bound):
    """Such bounds do not overflow; they select everything or nothing."""
    store, _ = filled([[batch(-5, 5), batch(1, kind=pa.timestamp("s", "UTC"))], []])
    total = 3
    assert sum(one.num_rows for one in store.scan("logs", start=bound, by="event")) == (total if bound < 0 else 0)
    assert sum(one.num_rows for one in store.scan("logs", end=bound, by="event")) == (0 if bound < 0 else total)
    store.close()


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["ts", "time_unix_nano"], "time_unix_nano"), (["when", "ts"], "ts"), (["b", "a"], "b"),
        (["@timestamp", "timestamp"], "timestamp"), (["event_time", "start_time_unix_nano"], "start_time_unix_nano"),
    ],
)  # fmt: skip
def test_the_column_of_event_times(names, chosen):
    """The best known name; without one of them the first timestamp."""
    columns = {
        name: pa.array([1 if name == chosen else 1000], pa.int64() if name.endswith("_unix_nano") else UTC_NS)
        for name in names
    }
    store, _ = filled([[pa.record_batch(columns)], []])
    assert sum(one.num_rows for one in store.scan("logs", end=10, by="event")) == 1
    assert sum(one.num_rows for one in store.scan("logs", start=10, by="event")) == 0
    store.close()


def test_times_out_of_the_nanosecond_range_are_found_without_an_index():
    """After the year 2262, a time has no number of nanoseconds in 64 bits."""
    far = 2**40
    store, disk = filled(
        [[batch(5, far, kind=pa.timestamp("s", "UTC"))], [batch(6, kind=pa.timestamp("s", "UTC"))], []]
    )
    first, second = (statistics.streams[0] for statistics in read(ROOT, fs=disk).statistics())
    assert (first.event_column, second.event_column) == (None, "time")
    assert times_of(store.scan("logs", start=far * 10**9, by="event")) == [far]
    store.close()


def test_a_column_that_is_text_in_some_bundles_has_no_event_times():
    """The column has no common type and is not used for times."""
    store, _ = filled([[batch(1)], [pa.record_batch({"time": ["today"], "id": [1]})], []])
    with pytest.raises(UsageError, match="no column of event times"):
        store.scan("logs", ["id"], start=0, by="event")
    assert sum(one.num_rows for one in store.scan("logs", ["id"])) == 2
    store.close()
