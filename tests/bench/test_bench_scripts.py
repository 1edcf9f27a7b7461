"""The benchmark scripts complete with tiny sizes, and print every row."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUST_ENGINE = ROOT / "bench" / "rivals" / "rust_engine" / "target" / "release" / "rust-engine"

PURE = {"Quiver, pure", "Quiver, pure, runs of 256"}
"""Only beside a compiled kernel."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(960)]

TIMEOUT_S = 900
"""Beside other work, the longest script takes several minutes."""


def run(script: str, page: Path, *words: str) -> str:
    """Run one script, or a module of figures, with --quick in an empty directory, and return the section it wrote."""
    page.write_text(f"# Page\n\n<!-- {Path(script).stem} -->\nold\n<!-- end {Path(script).stem} -->\n\nafter\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / script), "--quick", "--write", str(page), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT / "bench")}, cwd=page.parent,
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(page.parent.iterdir()) == [page]
    text = page.read_text()
    assert "old" not in text
    assert text.endswith("after\n")
    return text


def column(text: str, number: int) -> list[str]:
    return [line.split("|")[number].strip() for line in text.splitlines() if line.startswith("| ")][1:]


def test_ingest_shows_all_contenders(tmp_path):
    """Each setting shows the store, the log alone, and three alternatives."""
    text = run("ingest.py", tmp_path / "page.md", "--rows", "100")

    assert {"Quiver", "bare log", "LMDB", "RocksDB", "SQLite queue"} <= set(column(text, 3))


def test_overhead_shows_the_buffer_on_and_off(tmp_path):
    """In both figures, next to a proxy that stores nothing."""
    text = run("overhead.py", tmp_path / "page.md")

    assert column(text, 2) == ["off", "on", "sealed", "proxy"] * 2


def test_early_delivery_shows_both_deliveries(tmp_path):
    """With an exporter that keeps up, and with one that does not."""
    text = run("figures/early_delivery.py", tmp_path / "page.md", "--seconds", "2")

    assert column(text, 2) == ["unsealed", "sealed"] * 6


def test_forward_shows_every_size_of_requests(tmp_path):
    """As received, combined and divided, in requests, bytes and records a second, and in processor time."""
    assert len(column(run("forward.py", tmp_path / "page.md"), 2)) == 12


def test_engines_shows_every_row(tmp_path):
    """Three modes, delivery, replay, sealing and reopening, for each installed engine."""
    text = run("engines.py", tmp_path / "page.md", "--rows", "10")

    what = set(column(text, 1))
    assert len(what) == 9
    rival = {"Rust engine"} if RUST_ENGINE.exists() else set()
    assert set(column(text, 3)) - PURE == {"Quiver", "Quiver, runs of 256"} | rival


@pytest.mark.parametrize(
    "goals", [["P1", "P2", "P3", "P4", "P5"], ["P6", "P7", "P8", "P9"], ["P10", "P11", "P12", "P14"]]
)
def test_goals_shows_the_store_next_to_its_lower_bound(tmp_path, goals):
    """Every goal has a row of the store and a row of its lower bound, which is 1.00."""
    text = run("goals.py", tmp_path / "page.md", "--goals", *goals)

    assert set(column(text, 1)) == set(goals)
    for goal in goals:
        lines = [line for line in text.splitlines() if line.startswith(f"| {goal} |")]
        assert any("| Quiver |" in line for line in lines)
        assert any(re.search(r"\| 1\.00 \| 1\.00 to 1\.00 \|", line) for line in lines)


def test_rotation_latency_shows_both_ways(tmp_path):
    """Each has a time of the calls that rotate the log."""
    ways = column(run("figures/rotation_latency.py", tmp_path / "page.md"), 1)
    assert ways == ["in the call", "prepared"]


def test_seal_latency_shows_every_percentile(tmp_path):
    """Of calls during a seal beside the others."""
    assert column(run("figures/seal_latency.py", tmp_path / "page.md"), 2) == ["50", "90", "99", "99.9"]


def test_startup_shows_every_case(tmp_path):
    """All three kinds of directory are opened."""
    assert len(column(run("startup.py", tmp_path / "page.md"), 1)) == 3


@pytest.mark.spark
def test_record_steps_shows_every_step(tmp_path):
    """Of the receiver, the tasks and Spark, and their total."""
    steps = column(run("figures/record_steps.py", tmp_path / "page.md"), 1)
    assert [step.partition(":")[0] for step in steps] == ["receiver"] * 4 + ["task"] * 3 + ["Spark"] * 2 + ["all"]


def test_tables_shows_every_format(tmp_path):
    """Beside pyarrow alone."""
    text = run("figures/tables.py", tmp_path / "page.md")
    names = column(text, 1)
    assert names[0] == "pyarrow alone"
    assert {"Parquet exporter", "Delta exporter", "Iceberg exporter"} < set(names)


def test_table_commits_shows_five_parts_of_each_format(tmp_path):
    """Their latencies grow with the table."""
    text = run("figures/table_commits.py", tmp_path / "page.md")
    assert column(text, 1) == ["Delta"] * 5 + ["Iceberg"] * 5


@pytest.mark.spark
def test_spark_tables_shows_every_format(tmp_path):
    """Beside Spark's Parquet writer; Delta's writer for Spark needs another version of Spark."""
    names = column(run("figures/spark_tables.py", tmp_path / "page.md"), 1)
    assert names == ["Spark's Parquet writer", "Parquet exporter", "Delta exporter", "Iceberg exporter"]


def test_flight_shows_every_call(tmp_path):
    """Beside the same calls in the process."""
    text = run("figures/flight.py", tmp_path / "page.md")
    assert set(column(text, 1)) == {
        *("scan, rows counted", "scan, values summed", "scan of a view"), *("put", "subscribe"),
    }  # fmt: skip
    assert {"in the process", "Flight", "pyarrow's Flight server"} < set(column(text, 2))


@pytest.mark.spark
def test_pipeline_shows_stages_and_latencies(tmp_path):
    """Each stage and latency next to Spark's own file source, which is 1.00."""
    text = run("pipeline.py", tmp_path / "page.md")
    assert set(column(text, 2)) == {"taken in", "to Parquet", "end to end", "p50", "p95"}
    assert {"Quiver", "Quiver, small segments", "Spark's file source"} == set(column(text, 3))
    floor = [line for line in text.splitlines() if "| Spark's file source | 1.00 |" in line]
    assert len(floor) == 5
