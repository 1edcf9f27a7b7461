"""The generic `spark` exporter with the jars of Delta, which need PySpark 4.2. Run by `make test-delta-jars`."""

import json
import os
import signal

import pyarrow.parquet as pq
import pytest
from run_process import EXAMPLES, Run, request
from spark_packages import from_maven_central, is_delivered

from ports import free_port

pytestmark = [pytest.mark.delta_jars, pytest.mark.spark, pytest.mark.timeout(900)]


def versions(table):
    """Return the files of the log of a Delta table, in order."""
    return sorted((table / "_delta_log").glob("*.json"))


def rows(table):
    """Return the numbers of the log records in a Delta table, in order."""
    files = set()
    for version in versions(table):
        for action in map(json.loads, version.read_text().splitlines()):
            if "add" in action:
                files.add(action["add"]["path"])
            files.discard(action.get("remove", {}).get("path"))
    bodies = [body for file in files for body in pq.read_table(table / file)["body"].to_pylist()]
    return sorted(int(body["string_value"].split()[1]) for body in bodies)


def test_each_record_is_in_the_delta_table_once_although_spark_is_killed(tmp_path):
    """The process is killed as soon as a batch is in the table, three times; each batch is repeated, and skipped."""
    port, table = free_port(), tmp_path / "delta" / "logs"
    text = (EXAMPLES / "delta-export.yaml").read_text()
    (tmp_path / "pipeline.yaml").write_text(text + from_maven_central(tmp_path))
    values = {"directory": str(tmp_path), "http_addr": f"127.0.0.1:{port}"}
    with Run(tmp_path, tmp_path / "pipeline.yaml", values) as run:
        for first in (0, 10, 20):
            before = len(versions(table))
            run.post(port, request(*range(first, first + 10)))
            run.until(lambda before=before: len(versions(table)) > before, 240)
            os.kill(run.children()["spark"]["pid"], signal.SIGKILL)
        run.post(port, request(*range(30, 40)))
        run.until(lambda: is_delivered(tmp_path / "buffer"), 240)
        run.stop(120)
    assert rows(table) == list(range(40))
