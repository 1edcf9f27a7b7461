"""`quiver lake`: a lake in a directory, with the real command."""

from __future__ import annotations

import json
import os
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from quiver.cli.main import build_app


def quiver(*arguments):
    return CliRunner().invoke(build_app(), ["lake", *map(str, arguments)])


@pytest.fixture
def lake(tmp_path):
    """A directory of three small, old files of one day."""
    directory = tmp_path / "lake" / "logs" / "day=2026-01-31"
    directory.mkdir(parents=True)
    then = time.time() - 7200
    for number in range(3):
        path = directory / f"c5026f74-{number:010}-0.parquet"
        pq.write_table(pa.table({"n": [number]}), path)
        path.chmod(0o640)
        os.utime(path, (then, then))
    return tmp_path / "lake"


def rows(files):
    return sorted(value for path in files for value in pq.read_table(path, partitioning=None)["n"].to_pylist())


def test_files_are_combined_and_listed(lake):
    """A dry run changes nothing; the new file has the mode of the old ones."""
    planned = json.loads(quiver("compact", lake, "--dry-run", "--json").output)
    assert planned["groups"][0] | {"bytes": 0} == {"directory": "logs/day=2026-01-31", "files": 3, "bytes": 0}
    assert len(list(lake.rglob("*.parquet"))) == 3
    assert "would become 1" in quiver("compact", lake, "--dry-run").output
    done = json.loads(quiver("compact", lake, "--json").output)["groups"]
    assert [(one["files"], one["rows"]) for one in done] == [(3, 3)]
    (path,) = lake.rglob("*.parquet")
    assert path == lake / done[0]["output"]
    assert path.stat().st_mode & 0o777 == 0o640
    assert rows([path]) == [0, 1, 2]
    assert quiver("files", lake).output.split() == [str(path)]
    assert [one["file"] for one in json.loads(quiver("files", lake, "--json").output)] == [str(path)]
    assert "nothing to compact" in quiver("compact", lake, "--older-than", "0s").output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["compact", "missing"], "missing is not a directory"),
        (["files", "ftp://x/y"], "no backend for ftp"),
        (["compact", ".", "--target-size", "many"], "--target-size"),
        (["compact", ".", "--older-than", "soon"], "--older-than"),
        (["compact", ".", "--compression", "lzo"], "is not zstd"),
        (["files", ".", "--option", "region"], "takes key=value"),
    ],
)
def test_impossible_arguments_are_refused(arguments, reason, tmp_path, monkeypatch):
    """In one line."""
    monkeypatch.chdir(tmp_path)
    found = quiver(*arguments)
    assert found.exit_code in {1, 2}
    assert reason in found.output
    assert "Traceback" not in found.output
