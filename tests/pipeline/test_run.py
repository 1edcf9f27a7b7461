"""
`quiver run` as a process: it says what it does in its state file, and leaves nothing behind.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from quiver.clock import SYSTEM_CLOCK
from quiver.pipeline.child import INGEST_READY
from quiver.pipeline.run import read_state

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
    config: {path: "{{directory}}/buffer"}
"""


@pytest.fixture
def command(tmp_path):
    """The command line of a pipeline that only buffers."""
    path = tmp_path / "p.yaml"
    path.write_text(PIPELINE, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "quiver.cli.main", "run", str(path)]
    return [*argv, "--set", f"port={port}", "--set", f"directory={tmp_path}"]


def start(argv):
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_until(true):
    deadline = SYSTEM_CLOCK.monotonic() + 30
    pause = threading.Event()
    while not true():
        assert SYSTEM_CLOCK.monotonic() < deadline
        pause.wait(0.02)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that nobody has reaped yet has ended all the same.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_it_runs_until_standard_input_ends(command, tmp_path):
    """State while it runs, a second one refused, a clean end with whoever started it."""
    run_dir = tmp_path / "buffer.run"
    with start([*command, "--stop-with-stdin"]) as running:
        wait_until((run_dir / INGEST_READY).exists)
        state = read_state(run_dir)
        child = state["children"]["ingest"]
        assert (state["pid"], state["state"]) == (running.pid, "running")
        assert (child["state"], child["starts"]) == ("running", 1)
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        running.stdin.close()
        assert running.wait(30) == 0, running.stdout.read()

    assert second.returncode == 1
    assert f"is in use by pid {running.pid}" in second.stderr
    assert read_state(run_dir)["state"] == "stopped"
    assert not is_running(child["pid"])


def test_no_child_outlives_a_killed_supervisor(command, tmp_path):
    """SIGKILL to `quiver run`: its child notices and stops by itself."""
    run_dir = tmp_path / "buffer.run"
    with start(command) as running:
        wait_until((run_dir / INGEST_READY).exists)
        pid = read_state(run_dir)["children"]["ingest"]["pid"]
        running.send_signal(signal.SIGKILL)

    wait_until(lambda: not is_running(pid))
    assert (run_dir / "ingest.log").read_text().rstrip().endswith("stopped")
