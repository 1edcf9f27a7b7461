"""`quiver run` as a process: its state file describes it, and it leaves no process."""

import errno
import json
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from run_process import BUFFER_ONLY, command_line

import quiver
from quiver.bundle import OTLP_SCHEMA, Bundle
from quiver.errors import DirectoryInUseError, QuiverError
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.processes.buffer_contents import (
    BufferPlace,
    count_in_short_process,
    has_other_subscribers,
    not_sealed,
    places_of,
    remaining,
    undelivered,
)
from quiver.pipeline.processes.child import INGEST_READY, ingest_ready, write_ready
from quiver.pipeline.processes.run import RunOptions, _Running, read_state, run_pipeline
from waiting import wait_until


@pytest.fixture
def command(tmp_path):
    """Return the command line of a pipeline that only buffers."""
    return command_line(tmp_path)


def pipeline_of(tmp_path):
    """Return its validated pipeline."""
    return load_pipeline(BUFFER_ONLY, source="p.yaml", values={"directory": str(tmp_path), "port": "4318"})[0]


def test_pending_data_of_an_unknown_exporter_are_reported(tmp_path):
    """A renamed exporter would otherwise fill the buffer unnoticed. A missing store is not reported."""
    places = places_of(pipeline_of(tmp_path))
    assert (undelivered(places), has_other_subscribers(places)) == ([], False)
    with quiver.open(tmp_path / "buffer") as store:
        for name in ("old_name", "done"):
            store.register(name, start="earliest")
        store.ingest(Bundle({60: pa.record_batch([pa.array([b""], pa.binary())], schema=OTLP_SCHEMA)}))
        store.seal()
        store.register("done").next_bundle().ack()

    assert undelivered(places) == [("old_name", 1, f"{tmp_path}/buffer")]
    assert has_other_subscribers(places)
    known = [BufferPlace("buffer", f"{tmp_path}/buffer", ["done"], is_durable=True, fleet=["old_name"])]
    assert (undelivered(known), has_other_subscribers(known)) == ([], False)


def test_subscribers_of_a_fleet_are_no_unknown_exporters(tmp_path):
    """They acknowledge in the bucket: a node that restarts while it is offline must not suggest dropping them."""
    cold = f"cold: {{objects: '{tmp_path}', fleet: {{name: graz, subscribers: [center]}}}}"
    text = BUFFER_ONLY.replace('/buffer"', f'/buffer", {cold}')
    pipeline, _ = load_pipeline(text, source="p.yaml", values={"directory": str(tmp_path), "port": "4318"})
    (place,) = places_of(pipeline)
    assert (list(place.exporters), list(place.fleet)) == ([], ["center"])


def test_a_short_process_counts_the_same(tmp_path):
    """The supervisor does not count itself: that loads Arrow."""
    with quiver.open(tmp_path / "buffer", background=False) as store:
        store.register("exporter", start="earliest")
        for _ in range(3):
            store.ingest(Bundle({60: pa.record_batch([pa.array([b""], pa.binary())], schema=OTLP_SCHEMA)}))
            store.seal()
    places = [BufferPlace("buffer", f"{tmp_path}/buffer", ["exporter"], is_durable=True)]

    found = count_in_short_process(places, "remaining", "undelivered")

    assert found == [remaining(places), []]
    assert found[0] == [("exporter", 3, f"{tmp_path}/buffer")]


def test_a_failing_count_does_not_change_how_the_run_ends(monkeypatch, tmp_path):
    """It is reported."""

    def failing(function, *_):
        raise QuiverError(f"{function}: no memory")

    monkeypatch.setattr("quiver.pipeline.processes.buffer_contents.call_in_short_process", failing)
    messages = []
    pipeline = pipeline_of(tmp_path)
    _Running(pipeline, RunOptions([], tmp_path), tmp_path, lambda: pipeline, messages.append).report_remaining()
    (message,) = messages
    assert message.startswith("the buffers could not be counted: ")
    assert message.endswith(": no memory")


def test_an_empty_directory_is_not_reported(tmp_path, caplog):
    """A user may have created it or mounted a volume there: it contains no data, and is valid."""
    (tmp_path / "buffer").mkdir()
    places = places_of(pipeline_of(tmp_path))

    assert (undelivered(places), not_sealed(places)) == ([], [])
    assert caplog.messages == []


def test_bundles_that_could_not_be_sealed_are_reported(tmp_path):
    """They are only in the log, after a kill or on a full disk, and the lag of an exporter does not include them."""
    places = places_of(pipeline_of(tmp_path))
    assert not_sealed(places) == []
    batch = pa.record_batch([pa.array([b""], pa.binary())], schema=OTLP_SCHEMA)
    with quiver.open(tmp_path / "buffer", background=False) as store:
        store.ingest(Bundle({60: batch}))
        store.seal()
        assert not_sealed(places) == []
        store.ingest(Bundle({60: batch}))
        store.ingest(Bundle({60: batch}))
        assert not_sealed(places) == [("persistence", 2, f"{tmp_path}/buffer")]
    assert not_sealed(places) == []


def start(argv):
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended, too.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_run_continues_until_standard_input_ends(command, tmp_path):
    """The state file is current, a second run is refused, and the run ends cleanly with its parent."""
    run_dir = tmp_path / "buffer.run"
    with start([*command, "--stop-with-stdin"]) as running:
        wait_until((run_dir / INGEST_READY).exists)
        state = read_state(run_dir)
        child = state["children"]["ingest"]
        assert (state["pid"], state["state"]) == (running.pid, "running")
        assert (child["state"], child["starts"]) == ("running", 1)
        with pytest.raises(DirectoryInUseError, match=f"is in use by pid {running.pid}"):
            run_pipeline(pipeline_of(tmp_path), RunOptions([], run_dir), reread=None, report=None)
        running.stdin.close()
        assert running.wait(30) == 0, running.stdout.read()

    assert read_state(run_dir)["state"] == "stopped"
    assert not is_running(child["pid"])


def test_the_file_gives_the_number_of_ingest_processes(command, tmp_path):
    """`cores` in the file is the number; `--cores` would override it."""
    (tmp_path / "p.yaml").write_text(f"{BUFFER_ONLY}cores: 2\n", encoding="utf-8")
    run_dir = tmp_path / "buffer.run"
    with start([*command, "--stop-with-stdin"]) as running:
        wait_until(lambda: all((run_dir / ingest_ready(core)).exists() for core in (0, 1)))
        state = read_state(run_dir)
        running.stdin.close()
        assert running.wait(30) == 0, running.stdout.read()
    assert (state["cores"], sorted(state["children"])) == (2, ["ingest-0", "ingest-1"])
    assert {path.name for path in (tmp_path / "buffer").glob("core_*")} == {"core_0", "core_1"}


def test_a_restarted_child_does_not_read_a_changed_file(command, tmp_path):
    """The file is incomplete and no reload was requested: the child continues with the validated pipeline."""
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
def test_no_child_survives_a_killed_supervisor(command, tmp_path):
    """After SIGKILL to `quiver run`, its child stops by itself."""
    run_dir = tmp_path / "buffer.run"
    with start(command) as running:
        wait_until((run_dir / INGEST_READY).exists)
        pid = read_state(run_dir)["children"]["ingest"]["pid"]
        running.send_signal(signal.SIGKILL)

    wait_until(lambda: not is_running(pid))
    assert (run_dir / "ingest.log").read_text().rstrip().endswith("stopped")


def test_run_reports_when_its_ports_are_open(tmp_path):
    """Not for the ready file of an earlier process, and not while it stops."""
    pipeline = pipeline_of(tmp_path)
    messages = []
    running = _Running(pipeline, RunOptions([], tmp_path), tmp_path, lambda: pipeline, messages.append)
    (child,) = running.supervisor.children
    child.process, child.state = SimpleNamespace(pid=7), "running"
    write_ready(tmp_path, INGEST_READY, {"listening": ["127.0.0.1:4318"]})
    running.supervisor.state = "stopping"
    running.report_when_ready()
    assert messages == []
    running.supervisor.state = "running"
    child.process = SimpleNamespace(pid=os.getpid())
    running.report_when_ready()
    assert messages == ["ready: listens on 127.0.0.1:4318"]


CONSOLE = """\
  screen:
    kind: exporter
    plugin_urn: "urn:quiver:console:exporter"
"""


def test_a_failed_reload_changes_nothing(tmp_path, monkeypatch):
    """
    Without Java, without a package, or without permission for a directory: it is reported, and the pipeline
    continues.
    """
    pipeline = pipeline_of(tmp_path)
    config = 'config: {path: "{{directory}}/buffer"}\n'
    text = BUFFER_ONLY.replace(config, f"out_ports: {{o: {{destinations: [screen]}}}}\n    {config}{CONSOLE}")
    with_spark = load_pipeline(text, source="p.yaml", values={"directory": str(tmp_path), "port": "4318"})[0]
    messages = []

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
        running = _Running(pipeline, RunOptions([], tmp_path), tmp_path, reread, messages.append)
        running._on_reload(running.supervisor)
        assert (running.pipeline, len(running.supervisor.children)) == (pipeline, 1)

    assert messages == [
        "not reloaded: there is no Java",
        "not reloaded: No module named 'pyarrow'",
        f"not reloaded: [Errno {errno.EACCES}] Permission denied: '/there/buffer'",
    ]


def test_a_full_disk_or_a_closed_pipe_does_not_stop_the_pipeline(tmp_path):
    """Nothing reads its output, or its state file cannot be written: neither is a reason to stop the children."""
    pipeline = pipeline_of(tmp_path)
    (tmp_path / "state.json").mkdir()  # Not even root can replace a directory.
    messages = []

    def say(what):
        messages.append(what)
        raise BrokenPipeError(errno.EPIPE, "nobody reads any more")

    running = _Running(pipeline, RunOptions([], tmp_path), tmp_path, lambda: pipeline, say)
    running.supervisor.request_stop()
    running.supervisor.children.clear()
    assert running.supervisor.run() == 0
    running._on_change(running.supervisor, "ingest died")
    assert messages == ["ingest died"]
