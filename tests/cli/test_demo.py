"""The demo's parts, and the demo itself at a small scale."""

import json
import subprocess
import sys
from array import array

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiver.cli.demo import MARKER, _problems
from quiver.demo.names import ID_KEY, SIGNALS, ids_path
from quiver.demo.report import exported_rows, settle
from quiver.demo.runner import Conductor, DemoPlan

VALUE = pa.struct([("string_value", pa.string()), ("int_value", pa.int64())])
SCHEMA = pa.schema([("attributes", pa.map_(pa.string(), VALUE))])


def write_rows(path, ids):
    rows = [
        {"attributes": [("x", {"int_value": 7})] + ([] if one is None else [(ID_KEY, {"int_value": one})])}
        for one in ids
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)


def write_ids(directory, worker, signal, ids):
    directory.mkdir(exist_ok=True)
    (directory / ids_path(worker, signal)).write_bytes(array("q", ids).tobytes())


def test_the_report_counts_missing_and_duplicated_rows(tmp_path):
    """
    A confirmed row that is in no file is missing; a second row with the same id, or a row without an id, is
    duplicated.
    """
    out, load = tmp_path / "parquet", tmp_path / "load"
    write_rows(out / "logs" / "a.parquet", [1, 2, 3])
    write_rows(out / "logs" / "b.parquet", [3, 4, None])
    write_rows(out / "logs" / ".hidden.parquet", [5])
    write_ids(load, 0, "logs", [1, 2])
    write_ids(load, 1, "logs", [3, 5, 6])
    write_rows(out / "spans" / "a.parquet", [1, 2])
    write_ids(load, 0, "spans", [1])
    logs, spans, metrics = settle(out, load, {"logs": 9, "spans": 2, "metrics": 0})

    assert (logs.sent, logs.confirmed, logs.exported, logs.missing, logs.duplicated) == (9, 5, 6, 2, 2)
    assert not logs.right
    assert (spans.confirmed, spans.exported, spans.missing, spans.duplicated) == (1, 2, 0, 0)
    assert spans.right
    assert (metrics.exported, metrics.right) == (0, False)
    assert exported_rows(out) == {"logs": 6, "spans": 2, "metrics": 0}


def row(signal, *, confirmed=10, missing=0):
    exported = confirmed - missing
    return {"signal": signal, "confirmed": confirmed, "exported": exported, "missing": missing, "duplicated": 0}


def test_rows_exported_during_shutdown_are_not_a_problem(tmp_path):
    """A row that is missing when the demo ends, or that was never sent, is one."""
    course = Conductor(tmp_path, tmp_path / "p.yaml", DemoPlan(kills=()), report=print)
    complete, short = [row(name) for name in SIGNALS], [row("logs", missing=3)]

    assert _problems(course, complete, ended=False, load_ended=True, code=0) == []
    assert "nothing was exported for 90 s" in _problems(course, complete, ended=False, load_ended=False, code=0)[0]
    late, gave_up = _problems(course, short, ended=False, load_ended=True, code=0)
    assert late == "logs: 3 not exported yet, 0 duplicated"
    assert gave_up.startswith("nothing was exported for 90 s")


def test_a_process_that_is_ready_again_resets_the_stall_timer(tmp_path, monkeypatch):
    """The time that a slow restart takes does not count as time without exports."""
    course = Conductor(tmp_path, tmp_path / "p.yaml", DemoPlan(), report=print)
    monkeypatch.setattr(course, "_moved", float("-inf"))
    monkeypatch.setattr(course, "_children", lambda: {"spark": {"starts": 2, "pid": 7}})

    monkeypatch.setattr(course, "_ready_pids", set)
    course._note_restarts()
    assert course.stalled_s == float("inf")
    monkeypatch.setattr(course, "_ready_pids", lambda: {7})
    course._note_restarts()
    assert course.stalled_s < 60


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_the_demo_loses_nothing(tmp_path):
    """The complete demo with a tenth of the load: three kills, and every confirmed record is exported exactly once."""
    where = tmp_path / "demo"
    argv = [sys.executable, "-m", "quiver.cli.main", "demo", str(where), "--scale", "0.1", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)

    assert done.returncode == 0, done.stdout + done.stderr
    assert found["problems"] == []
    assert [row["signal"] for row in found["signals"]] == list(SIGNALS)
    assert all(row["confirmed"] == row["exported"] > 0 for row in found["signals"])
    assert (where / MARKER).exists()
