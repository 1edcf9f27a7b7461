"""The example runs with and without a destination."""

import re
import subprocess
import sys
from pathlib import Path

from destination import destination, rows, value

EXAMPLE = Path(__file__).parents[2] / "examples" / "otel_sdk.py"


def run(directory, port):
    argv = [sys.executable, str(EXAMPLE), "--directory", str(directory), "--seconds", "0.2"]
    done = subprocess.run(
        [*argv, "--to", f"http://127.0.0.1:{port}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return re.fullmatch(
        r"(\d+) orders; (\d+) requests confirmed, (\d+) bundles left for the next start\n(.*)", done.stdout, re.DOTALL
    )


def test_the_example_runs_twice(tmp_path):
    """First without a destination: all data are left, and the reason is reported. Then with one: everything arrives."""
    first = run(tmp_path / "local", 1)
    assert (int(first[1]) > 0, first[2]) == (True, "0")
    assert int(first[3]) > 0
    assert first[4].startswith("problem of the destination: UNAVAILABLE")
    with destination(tmp_path / "far") as receiver:
        second = run(tmp_path / "local", receiver.port)
    assert (second[3], second[4]) == ("0", "")
    numbers = [value(row["attributes"], "order.number") for row in rows(tmp_path / "far", "spans")]
    assert sorted(numbers) == sorted([*range(int(first[1])), *range(int(second[1]))])
    names = {row["name"] for row in rows(tmp_path / "far", "metrics")}
    assert names == {"orders"}
