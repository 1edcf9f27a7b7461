"""`quiver run --foreground`: logs on standard output, one process where possible, and messages to systemd."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from run_process import command_line

from ports import free_port
from quiver.pipeline.health import HANG_S, Health
from quiver.pipeline.processes.run import fits_one_process, read_state
from quiver.pipeline.processes.sd_notify import watchdog_interval_s


@pytest.fixture
def started(tmp_path):
    """Return a function that starts `quiver run` with a real notify socket; yields the process and the socket."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(60)
    running = []

    def start(*options, **environment):
        argv = [*command_line(tmp_path), "--run-dir", str(tmp_path / "run"), *options]
        environment = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify")} | environment
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        running.append(process)
        return process, manager

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()
    manager.close()


def until(manager, text):
    """Return all messages up to one that has *text*."""
    found = []
    while not any(text in one for one in found):
        found.append(manager.recv(4096).decode())
    return found


def ended(process):
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    return output


def children_of(process):
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def test_one_process_logs_json_and_notifies(started, tmp_path):
    """It is ready when it listens, tells the watchdog that it works, and stops with exit code 0."""
    process, manager = started("--foreground", "--log-format", "json", WATCHDOG_USEC="2000000")
    messages = until(manager, "READY=1")
    assert any("STATUS=ready: listens on 127.0.0.1:" in one for one in messages)
    until(manager, "WATCHDOG=1")
    assert children_of(process) == []
    state = read_state(tmp_path / "run")
    assert (state["pid"], state["children"]["ingest"]["pid"]) == (process.pid, process.pid)

    lines = [json.loads(line) for line in ended(process).splitlines()]
    assert process.returncode == 0
    assert {line["process"] for line in lines} == {"ingest"}
    assert any(line["message"].startswith("listening on") for line in lines)
    assert lines[-1]["message"] == "stopped"
    until(manager, "STOPPING=1")
    assert read_state(tmp_path / "run")["state"] == "stopped"
    assert (tmp_path / "buffer" / "quiver.id").exists()


def test_cores_have_a_supervisor_whose_output_has_all_logs(started):
    """Each line with its process, and the events of the supervisor."""
    process, manager = started("--foreground", "--cores", "1", WATCHDOG_USEC="2000000")
    until(manager, "READY=1")
    until(manager, "WATCHDOG=1")
    assert len(children_of(process)) == 1
    output = ended(process)
    assert process.returncode == 0
    assert "ingest-0 2" in output
    assert "listening on 127.0.0.1:" in output
    assert "ingest-0 stopped" in output


def test_json_is_all_that_is_printed_without_foreground_too(started):
    process, manager = started("--log-format", "json")
    until(manager, "READY=1")
    lines = [json.loads(line) for line in ended(process).splitlines()]
    assert any(line["message"] == "ingest stopped" for line in lines), lines


def test_warnings_of_children_are_printed_without_foreground(started, tmp_path):
    """A port in use: the reason is on standard output, and not only in the log of the child."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        process, _ = started("--set", f"port={port}")
        line = ""
        while "ingest: " not in line or "ERROR" not in line:
            line = process.stdout.readline()
            assert line, "the process ended"
    assert str(port) in line
    ended(process)


def test_a_running_directory_is_refused(started):
    """Also in one process: two would write to one store."""
    _, manager = started("--foreground")
    until(manager, "READY=1")
    second, _ = started("--foreground")
    output, _ = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "in use" in output or "quiver run" in output


def test_kill_leaves_a_directory_that_starts_again(started, tmp_path):
    process, manager = started("--foreground")
    until(manager, "READY=1")
    process.kill()
    process.wait()
    process.stdout.close()
    again, _ = started("--foreground")
    until(manager, "READY=1")
    assert read_state(tmp_path / "run")["pid"] == again.pid
    ended(again)
    assert again.returncode == 0


def test_the_watchdog_is_told_twice_in_its_time():
    """Only if it watches this process."""
    assert watchdog_interval_s({"WATCHDOG_USEC": "60000000"}) == 30.0
    assert watchdog_interval_s({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}) == 30.0
    for environment in (
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "x"},
        {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"},
    ):
        assert watchdog_interval_s(environment) is None


def test_spark_cores_and_a_status_page_need_more_processes():
    class Pipeline:
        queries = ()
        status = None

    assert fits_one_process(Pipeline(), None)
    assert not fits_one_process(Pipeline(), 1)
    Pipeline.status = "127.0.0.1:4321"
    assert not fits_one_process(Pipeline(), None)
    Pipeline.status, Pipeline.queries = None, ("lake",)
    assert not fits_one_process(Pipeline(), None)


def test_only_a_process_that_listens_can_hang():
    """Recovery may take long, and a stop is about to end. A full buffer is not a hang."""
    health = Health()
    assert health.hang(1e9) is None
    health.phase = "listening"
    health.alive(100.0)
    assert health.hang(100.0 + HANG_S) is None
    assert health.hang(101.0 + HANG_S) == "the main thread has made no progress for 61 s"
    health.phase = "stopping"
    assert health.hang(1e9) is None
