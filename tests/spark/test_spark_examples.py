"""The examples run unchanged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def run(name, *words):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words], capture_output=True, text=True, timeout=170, check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_analysis_prints_results():
    """Each cell prints something."""
    printed = run("analyse_spark.py")
    assert "| shop|" in printed.replace("  ", "")
    assert "millis" in printed
    assert "sum(bytes)" in printed


def test_the_processor_example_writes_redacted_rows_once(tmp_path, monkeypatch):
    """A second run with the same directory writes nothing."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from sample_telemetry import fill

    fill(str(tmp_path / "buffer"))
    first = run("processor_spark.py", str(tmp_path / "buffer"))
    assert "slow_errors: 10 rows" in first
    assert "logs: 10 rows" in first
    assert "example.org" not in first
    assert run("processor_spark.py", str(tmp_path / "buffer")) == first


def test_the_topic_example_writes_one_line_per_order(tmp_path):
    """A second run with the same directory adds only its own."""
    assert "|customer-0|    4|" in run("topics_spark.py", str(tmp_path))
    assert "|customer-0|    8|" in run("topics_spark.py", str(tmp_path))
