"""`quiver run` as a process: it says what it does in its state file, and leaves nothing behind."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

import quiver
from quiver.bundle import OTLP_SCHEMA, Bundle
from quiver.clock import SYSTEM_CLOCK
from quiver.errors import DirectoryInUseError, QuiverError
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.processes.child import INGEST_READY, write_ready
from quiver.pipeline.processes.run import RunOptions, _Running, left_behind, not_sealed, read_state, run_pipeline

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


def pipeline_of(tmp_path):
    """The same, read and checked."""
    return load_pipeline(PIPELINE, source="p.yaml", values={"directory": str(tmp_path), "port": "4318"})[0]


def test_data_kept_for_an_exporter_of_another_name_is_told(tmp_path):
    """One that was renamed would fill the buffer, and nobody would know for whom. Without a store there is none."""
    pipeline = pipeline_of(tmp_path)
    assert left_behind(pipeline) == []
    with quiver.open(tmp_path / "buffer") as store:
        for name in ("old_name", "done"):
            store.register(name, start="earliest")
        store.ingest(Bundle({60: pa.record_batch([pa.array([b""], pa.binary())], schema=OTLP_SCHEMA)}))
        store.seal()
        store.register("done").next_bundle().ack()

    assert left_behind(pipeline) == [("old_name", 1, f"{tmp_path}/buffer")]


def test_a_directory_that_is_no_store_yet_is_nothing_to_speak_of(tmp_path, caplog):
    """Somebody made it, or mounted a volume there: nothing is kept in it, and nothing is wrong."""
    (tmp_path / "buffer").mkdir()

    assert (left_behind(pipeline_of(tmp_path)), not_sealed(pipeline_of(tmp_path))) == ([], [])
    assert caplog.messages == []


def test_what_could_not_be_sealed_is_told(tmp_path):
    """It is in the log, and no lag of an exporter speaks of it: a store that was killed, or a disk that was full."""
    pipeline = pipeline_of(tmp_path)
    assert not_sealed(pipeline) == []
    batch = pa.record_batch([pa.array([b""], pa.binary())], schema=OTLP_SCHEMA)
    with quiver.open(tmp_path / "buffer", background=False) as store:
        store.ingest(Bundle({60: batch}))
        store.seal()
        assert not_sealed(pipeline) == []
        store.ingest(Bundle({60: batch}))
        store.ingest(Bundle({60: batch}))
        assert not_sealed(pipeline) == [("persistence", 2, f"{tmp_path}/buffer")]
    assert not_sealed(pipeline) == []


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
        with pytest.raises(DirectoryInUseError, match=f"is in use by pid {running.pid}"):
            run_pipeline(pipeline_of(tmp_path), RunOptions([], run_dir), reread=None, say=None)
        running.stdin.close()
        assert running.wait(30) == 0, running.stdout.read()

    assert read_state(run_dir)["state"] == "stopped"
    assert not is_running(child["pid"])


def test_a_child_that_starts_again_does_not_read_what_somebody_is_writing(command, tmp_path):
    """The file is half written, and nobody asked for a reload: what runs goes on as it was checked."""
    run_dir = tmp_path / "buffer.run"

    def pid():
        return read_state(run_dir)["children"]["ingest"]["pid"]

    def ready_as():
        return json.loads((run_dir / INGEST_READY).read_bytes())["pid"]

    with start([*command, "--stop-with-stdin"]) as running:
        wait_until((run_dir / INGEST_READY).exists)
        first = pid()
        (tmp_path / "p.yaml").write_text("nodes: [")
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: running.poll() is not None or ready_as() != first)
        running.stdin.close()
        assert running.wait(30) == 0, running.stdout.read()


@pytest.mark.slow
def test_no_child_outlives_a_killed_supervisor(command, tmp_path):
    """SIGKILL to `quiver run`: its child notices and stops by itself."""
    run_dir = tmp_path / "buffer.run"
    with start(command) as running:
        wait_until((run_dir / INGEST_READY).exists)
        pid = read_state(run_dir)["children"]["ingest"]["pid"]
        running.send_signal(signal.SIGKILL)

    wait_until(lambda: not is_running(pid))
    assert (run_dir / "ingest.log").read_text().rstrip().endswith("stopped")


def test_it_says_when_its_ports_are_open(tmp_path):
    """Not of an earlier life, and not when it is about to stop."""
    pipeline = pipeline_of(tmp_path)
    said = []
    running = _Running(pipeline, RunOptions([], tmp_path), tmp_path, lambda: pipeline, said.append)
    (child,) = running.supervisor.children
    child.process, child.state = SimpleNamespace(pid=7), "running"
    write_ready(tmp_path, INGEST_READY, {"listening": ["127.0.0.1:4318"]})
    running.supervisor.state = "stopping"
    running.tell_when_ready()
    assert said == []
    running.supervisor.state = "running"
    child.process = SimpleNamespace(pid=os.getpid())
    running.tell_when_ready()
    assert said == ["ready: listens on 127.0.0.1:4318"]


CONSOLE = """\
  screen:
    kind: exporter
    plugin_urn: "urn:quiver:console:exporter"
"""


def test_a_reload_that_cannot_be_ends_nothing(tmp_path, monkeypatch):
    """Not for want of Java, of a package, or of the right to look at a directory: it is told, and all goes on."""
    pipeline = pipeline_of(tmp_path)
    config = 'config: {path: "{{directory}}/buffer"}\n'
    text = PIPELINE.replace(config, f"out_ports: {{o: {{destinations: [screen]}}}}\n    {config}{CONSOLE}")
    with_spark = load_pipeline(text, source="p.yaml", values={"directory": str(tmp_path), "port": "4318"})[0]
    said = []

    def fails(error):
        def reread():
            raise error

        return reread

    def no_java():
        raise QuiverError("there is no Java")

    monkeypatch.setattr("quiver.spark.java.find_java_home", no_java)
    rereads = [
        lambda: with_spark,
        fails(ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")),
        fails(PermissionError(errno.EACCES, "Permission denied", "/there/buffer")),
    ]
    for reread in rereads:
        running = _Running(pipeline, RunOptions([], tmp_path), tmp_path, reread, said.append)
        running._on_reload(running.supervisor)
        assert (running.pipeline, len(running.supervisor.children)) == (pipeline, 1)

    assert said == [
        "not reloaded: there is no Java",
        "not reloaded: No module named 'pyarrow'",
        f"not reloaded: [Errno {errno.EACCES}] Permission denied: '/there/buffer'",
    ]


def test_neither_a_full_disk_nor_a_closed_pipe_ends_what_runs(tmp_path):
    """Whoever read what it says has gone, and its own notes find no room: that is no reason to kill the children."""
    pipeline = pipeline_of(tmp_path)
    (tmp_path / "state.json").mkdir()  # what root cannot replace either
    said = []

    def say(what):
        said.append(what)
        raise BrokenPipeError(errno.EPIPE, "nobody reads any more")

    running = _Running(pipeline, RunOptions([], tmp_path), tmp_path, lambda: pipeline, say)
    running.supervisor.request_stop()
    running.supervisor.children.clear()
    assert running.supervisor.run() == 0
    running._on_change(running.supervisor, "ingest died")
    assert said == ["ingest died"]
