"""`quiver export --view`: rows of OTLP requests, restricted by ingestion or event times."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

import quiver
from otlp_requests import TRACES, log_request, otlp_bundle, span_request

NOON_NS = 1_767_614_400_000_000_000
HOUR_NS = 3_600_000_000_000


@pytest.fixture
def buffer(tmp_path):
    with quiver.open(tmp_path / "buffer", background=False) as store:
        store.ingest(otlp_bundle(log_request(NOON_NS, NOON_NS + HOUR_NS)))
        store.seal()
        store.ingest(otlp_bundle(log_request(NOON_NS + 2 * HOUR_NS)))
        store.ingest(otlp_bundle(span_request(NOON_NS + HOUR_NS), slot=TRACES))
        yield tmp_path / "buffer"


def test_rows_by_event_time(buffer, tmp_path, call):
    """Sealed ones and those that are only in the log; --start and --end are the same options."""
    to = tmp_path / "logs.parquet"
    found = call("export", buffer, "--view", "logs", "--by", "event", "--since", "2026-01-05T13:00:00Z", "--to", to)
    assert found.exit_code == 0, found.output
    assert pq.read_table(to)["time_unix_nano"].to_pylist() == [NOON_NS + HOUR_NS, NOON_NS + 2 * HOUR_NS]
    bounds = "--start", "2026-01-05T12:00:00Z", "--end", "2026-01-05T13:00:00Z"
    found = call("export", buffer, "--view", "logs", "--by", "event", *bounds, "--to", to, "--force")
    assert found.exit_code == 0, found.output
    assert pq.read_table(to)["time_unix_nano"].to_pylist() == [NOON_NS]


def test_rows_by_ingestion_time(buffer, tmp_path, call):
    """The default; an empty range writes an empty file, a view without any data is refused."""
    to = tmp_path / "spans.jsonl"
    assert call("export", buffer, "--view", "spans", "--columns", "name", "--since", "1h", "--to", to).exit_code == 0
    assert json.loads(to.read_text()) == {"name": f"span {NOON_NS + HOUR_NS}"}
    empty = call("export", buffer, "--view", "spans", "--until", "1h", "--to", to, "--force", "--json")
    assert json.loads(empty.stdout)["rows"] == 0
    none = call("export", buffer, "--view", "metrics", "--to", tmp_path / "metrics.jsonl")
    assert none.exit_code == 2
    assert "no bundle has OpenTelemetry metrics" in none.output
    assert not (tmp_path / "metrics.jsonl").exists()
    wrong = call("export", buffer, "--view", "logs", "--by", "arrival", "--to", tmp_path / "x.jsonl")
    assert wrong.exit_code == 2
    assert "neither ingested nor event" in wrong.output


def test_an_unreadable_request_is_reported(tmp_path, call):
    """All other rows are written, and the exit code is 1."""
    with quiver.open(tmp_path / "other", background=False) as store:
        store.ingest(otlp_bundle(log_request(NOON_NS), b"\x0a\xff"))
    to = tmp_path / "logs.jsonl"
    found = call("export", tmp_path / "other", "--view", "logs", "--to", to)
    assert found.exit_code == 1
    assert "cannot be decoded" in found.output
    assert len(to.read_text().splitlines()) == 1
