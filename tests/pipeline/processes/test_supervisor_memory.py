"""The supervisor of `quiver run` never loads Arrow or PySpark, which would take memory as long as the pipeline runs."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from run_process import Run, request

import quiver
from quiver.bundle import OTLP_SCHEMA, Bundle
from quiver.pipeline.processes.run import read_state

PIPELINE = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {{out_port: {{destinations: [buffer]}}}}
    config: {{protocols: {{http: {{listening_addr: "127.0.0.1:{port}"}}}}}}
  buffer:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {{out_port: {{destinations: [{destination}]}}}}
    config: {{path: "{directory}/buffer"}}
{rest}
"""

FORWARD = """\
  out:
    kind: exporter
    plugin_urn: "urn:otel:otlp:exporter"
    config: {grpc_endpoint: "http://127.0.0.1:1"}
"""

ON_SPARK = """\
  redact:
    kind: processor
    plugin_urn: "urn:quiver:redact:processor"
    out_ports: {out_port: {destinations: [out]}}
    config: {keys: ["^password$"], value_patterns: ["[0-9]{16}"], columns: [event_name]}
  out:
    kind: exporter
    plugin_urn: "urn:quiver:parquet:exporter"
    config: {path: "LAKE", partition_by: [day, signal]}
"""

WITHOUT_ARROW = """\
import sys
sys.modules["pyarrow"] = None  # importing it fails
from quiver.cli.main import main
main()
"""


def pipeline_file(directory, rest, destination):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = directory / "p.yaml"
    rest = rest.replace("LAKE", f"{directory}/lake")
    path.write_text(PIPELINE.format(port=port, directory=directory, destination=destination, rest=rest))
    return path, port


def mapped(pid):
    """Return the libraries of Arrow and Spark that the process *pid* has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    return [line for line in maps.splitlines() if "libarrow" in line or "pyarrow" in line or "pyspark" in line]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs the files of Linux in /proc")
def test_the_supervisor_never_loads_arrow(tmp_path):
    """Not at the start, where it finds an unknown subscriber, nor for a reload, nor for the report at the end."""
    path, port = pipeline_file(tmp_path, FORWARD, "out")
    with quiver.open(tmp_path / "buffer") as store:
        store.register("former", start="earliest")
        store.ingest(Bundle({60: pa.record_batch([pa.array([request(0)])], schema=OTLP_SCHEMA)}))
    run = Run(tmp_path, path, (), "--drain", "1s")
    run.argv[1:3] = ["-c", WITHOUT_ARROW]
    with run:
        assert f"{tmp_path}/buffer keeps 1 bundle for former, which is no exporter here" in run.said
        run.post(port, request(1))
        path.write_text(path.read_text().replace("127.0.0.1:1", "127.0.0.1:2"))
        assert run.reload().startswith("reloaded: ")
        assert mapped(run.process.pid) == []
        ingest = run.children()["ingest"]["pid"]
        assert mapped(ingest)
        output = run.stop()
    assert f"out: 2 bundles left in {tmp_path}/buffer, for the next start" in output


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs the files of Linux in /proc")
def test_the_supervisor_of_a_pipeline_on_spark_loads_neither(tmp_path):
    """Although the patterns of a redaction, the columns it may name, and the version of PySpark are checked."""
    path, _ = pipeline_file(tmp_path, ON_SPARK, "redact")
    run = Run(tmp_path, path, (), "--drain", "1s")
    run.argv[1:3] = ["-c", WITHOUT_ARROW]
    with run:
        assert set(run.children()) == {"ingest", "spark"}
        assert mapped(run.process.pid) == []
        run.process.send_signal(signal.SIGTERM)
        run.until(lambda: read_state(run.run_dir)["state"] == "stopping")
        run.process.send_signal(signal.SIGTERM)  # kills Spark, which is still starting
        run.process.wait(60)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('{keys: ["("]}', "keys: '(' is not a valid pattern (RE2): "),
        ('{value_patterns: ["a*"]}', "value_patterns: 'a*' matches the empty string"),
        ("{value_patterns: [a], columns: [evnt_name]}", "columns: there is no column of text evnt_name here"),
    ],
)
def test_mistakes_are_found_in_the_same_way(tmp_path, config, reason):
    """With the same message as in a process that has loaded Arrow."""
    path, _ = pipeline_file(tmp_path, ON_SPARK, "redact")
    lines = path.read_text().splitlines()
    at = next(at for at, line in enumerate(lines) if "password" in line)
    lines[at] = f"    config: {config}"
    path.write_text("\n".join(lines))
    argv = [sys.executable, "-c", WITHOUT_ARROW, "run", str(path), "--check"]
    found = subprocess.run(argv, capture_output=True, text=True, check=False, env=os.environ, timeout=60)
    assert (found.returncode, reason in found.stderr) == (2, True), found.stderr
