"""Spark's files in the temporary directory are removed with the pipeline, after any kind of end."""

import os
import signal
import subprocess
import sys

from ports import free_ports
from quiver.pipeline.processes.run import read_state
from waiting import wait_until

PIPELINE = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out_port: {destinations: [persistence]}}
    config: {protocols: {http: {listening_addr: "127.0.0.1:{{port}}"}}}
  persistence:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {out_port: {destinations: [console]}}
    config: {path: buffer}
  console: {kind: exporter, plugin_urn: "urn:quiver:console:exporter"}
"""


def test_a_killed_spark_process_leaves_no_files(tmp_path):
    """After a second signal the supervisor kills it, so it cannot clean up by itself."""
    (tmp_path / "p.yaml").write_text(PIPELINE, encoding="utf-8")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    argv = [sys.executable, "-m", "quiver.cli.main", "run", "p.yaml", "--set", f"port={free_ports(1)[0]}"]
    environment = os.environ | {"TMPDIR": str(temporary)}
    run = subprocess.Popen(argv, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: list(temporary.glob("quiver-spark-*/*/*")))
    finally:
        run.send_signal(signal.SIGTERM)
        # Two signals at once count as one, so the second is sent later.
        wait_until(lambda: read_state(tmp_path / "buffer.run").get("state") == "stopping")
        run.send_signal(signal.SIGTERM)
        run.wait(30)
    assert list(temporary.glob("quiver-spark-*")) == []
