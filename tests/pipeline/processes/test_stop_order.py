"""A pipeline stops in the order of its graph, within one deadline."""

import errno
import json
import os
import socket
import threading
import urllib.request
from functools import partial
from types import SimpleNamespace

import pyarrow as pa
import pytest
from run_process import bodies, request

import quiver
from ports import free_ports
from quiver.bundle import OTLP_SCHEMA
from quiver.clock import SYSTEM_CLOCK
from quiver.delivery.dead_letter_policy import DeadLetterPolicy
from quiver.delivery.policy import RetryPolicy
from quiver.errors import CapacityError
from quiver.pipeline import export
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.ingest import ingest
from quiver.pipeline.processes import child, parent_watchdog
from quiver.pipeline.processes.child import INGEST_READY, ChildContext, has_closed, write_closed, write_ready
from quiver.pipeline.processes.parent_watchdog import ParentWatchdog
from quiver.pipeline.queries import RunningQuery
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.receivers.otlp.http_receiver import OtlpHttpReceiver
from quiver.receivers.settings import OtlpSettings
from quiver.spark.store.sink_options import SinkOptions
from quiver.store.staging.batches import commit_batch, stage
from quiver.store.store import Store
from quiver.testing.clock import ManualClock
from stub_watchdog import StubWatchdog

LETTERS = partial(DeadLetterPolicy, replay="manual")
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
    out_ports: {out_port: {destinations: [out]}}
    config: {path: "{{directory}}/buffer", segment: {max_open_duration: 1h}}
  out:
    kind: exporter
    plugin_urn: "urn:otel:otlp:exporter"
    config: {http_endpoint: "http://127.0.0.1:{{far}}", initial_retry_interval: 50ms}
"""


def commit(root, number):
    """Commit a batch to the buffer, as a query does."""
    options = SinkOptions(path=root, slot=60)
    rows = pa.record_batch([pa.array([request(number)], pa.binary())], schema=OTLP_SCHEMA)
    names = {"writer": "query", "batch": number}
    staged = stage(REAL_FILES, root, [{60: rows}], partition=0, attempt="a", options=options, **names)
    commit_batch(REAL_FILES, root, staged=[staged], **names)


def post(port, data):
    headers = {"Content-Type": "application/x-protobuf"}
    url = f"http://127.0.0.1:{port}/v1/logs"
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=20) as answer:
        assert answer.status == 200


class Ingest:
    """The function of the ingest process in a thread, with a destination that accepts everything."""

    def __init__(self, directory):
        self.directory = directory
        (directory / "run").mkdir()
        self.port, far = free_ports(2)
        values = {"directory": str(directory), "port": str(self.port), "far": str(far)}
        pipeline = load_pipeline(PIPELINE, source="p.yaml", values=values)[0]
        self.far = OtlpSettings(listening_addr=f"127.0.0.1:{far}", workers=2)
        self.watchdog = StubWatchdog()
        context = ChildContext(pipeline, directory / "run", self.watchdog)
        self.thread = threading.Thread(target=ingest, args=(context,))

    def __enter__(self):
        self.thread.start()
        self.until("listening")
        return self

    def until(self, fact):
        note = self.directory / "run" / INGEST_READY
        deadline = SYSTEM_CLOCK.monotonic() + 60
        while not (note.exists() and fact in json.loads(note.read_bytes())):
            assert SYSTEM_CLOCK.monotonic() < deadline
            self.watchdog.gone.wait(0.01)

    def __exit__(self, *_exception):
        self.watchdog.gone.set()
        self.thread.join()


def test_data_written_to_a_closing_buffer_are_sent(tmp_path):
    """On stop, it accepts no requests and seals; batches that queries commit afterwards are delivered, too."""
    inside = Ingest(tmp_path)
    with quiver.open(tmp_path / "far") as store, OtlpHttpReceiver(store, inside.far), inside:
        post(inside.port, request(0))
        inside.watchdog.closing.set()
        inside.until("closed")
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", inside.port), timeout=5)
        commit(str(tmp_path / "buffer"), 1)
    assert bodies(tmp_path / "far") == ["record 0", "record 1"]


def test_a_store_that_cannot_seal_sends_its_sealed_data(tmp_path, monkeypatch, caplog):
    """The failure is logged and the process ends in order; the next start delivers the data in the log."""

    def full(_store):
        raise CapacityError("the disk is full")

    with Ingest(tmp_path) as inside:
        post(inside.port, request(0))
        with monkeypatch.context() as patched:
            patched.setattr(Store, "seal", full)
            inside.watchdog.closing.set()
            inside.until("closed")
        inside.watchdog.gone.set()
        inside.thread.join()
    assert "persistence is not sealed yet: at capacity: the disk is full" in caplog.text
    assert bodies(tmp_path / "buffer") == ["record 0"]


def test_a_closed_ingest_process_is_known_on_a_full_disk(tmp_path, monkeypatch):
    """From the missing ready file. An earlier process, or one that listens, does not count as closed."""
    pid = os.getpid()
    write_ready(tmp_path, INGEST_READY, {"listening": []})
    assert not has_closed(tmp_path, INGEST_READY, pid)
    with monkeypatch.context() as patched:
        patched.setattr(child, "replace_file", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        write_closed(tmp_path, INGEST_READY)
    assert has_closed(tmp_path, INGEST_READY, pid)
    write_closed(tmp_path, INGEST_READY)
    assert has_closed(tmp_path, INGEST_READY, pid)
    assert not has_closed(tmp_path, INGEST_READY, pid + 1)


# ── the queries ──────────────────────────────────────────────────────────────────────────────────────


class Query:
    """A query whose `processAllAvailable` records its call and waits for *gate*."""

    def __init__(self, name, said, gate):
        self.isActive = True
        self.name, self.said, self.gate = name, said, gate

    def processAllAvailable(self):  # noqa: N802 - as Spark calls it
        self.said.append(f"{self.name} begins")
        assert self.gate.wait(60)
        self.said.append(f"{self.name} ends")


@pytest.fixture
def exports(tmp_path, monkeypatch):
    """Return a query into a buffer, a query out of it, their calls, and the gate of the first."""
    messages, gate, open_gate = [], threading.Event(), threading.Event()
    open_gate.set()
    buffer = str(tmp_path / "buffer")
    queries = {"into": Query("into", messages, gate), "behind": Query("behind", messages, open_gate)}
    isolation = SimpleNamespace(halted=None, failed=None, close=lambda: None)
    monkeypatch.setattr(
        export, "start_query", lambda _spark, plan, _observer, *, stats: RunningQuery(queries[plan.name], isolation)
    )

    def plan(name, path, into, destination):
        config = SimpleNamespace(destination=destination, policy=RetryPolicy, dead_letter_policy=LETTERS)
        return SimpleNamespace(name=name, store_path=path, stores=(), route=SimpleNamespace(config=config, into=into))

    # In the reverse order of the data flow.
    plans = [plan("behind", buffer, None, "lake/"), plan("into", str(tmp_path / "intake"), "buffer", buffer)]
    made = export.linked([export._Export(None, one) for one in plans])
    for one in made:
        one.look()
    return SimpleNamespace(made=made, said=messages, gate=gate, buffer=buffer)


def test_readers_of_a_buffer_wait_for_its_writers(exports):
    """And until the store has sealed their last batches."""
    with quiver.open(exports.buffer, background=False) as store:
        drain = threading.Thread(target=export._drain, args=(exports.made, 60.0))
        drain.start()
        commit(exports.buffer, 0)
        exports.gate.set()
        pause = threading.Event()
        deadline = SYSTEM_CLOCK.monotonic() + 60
        while "into ends" not in exports.said:
            assert SYSTEM_CLOCK.monotonic() < deadline
            pause.wait(0.01)
        assert exports.said == ["into begins", "into ends"]
        store.maintain()
        drain.join()
    assert exports.said == ["into begins", "into ends", "behind begins", "behind ends"]


def test_a_blocked_query_does_not_delay_others_beyond_the_deadline(exports, caplog):
    """Its remaining data are reported."""
    export._drain(exports.made, 0.0)
    exports.gate.set()
    assert "into still had data to write; it continues at the next start" in caplog.text


def test_a_query_with_a_long_trigger_runs_once_more(tmp_path, monkeypatch):
    """Its next trigger may be hours later: it is stopped, and started for the available data."""
    messages = []

    class Rare:
        def __init__(self, once):
            self.once, self.isActive, self.status = once, True, {"isTriggerActive": False}

        def stop(self):
            messages.append("stopped")

        def awaitTermination(self, timeout):  # noqa: N802 - as Spark calls it
            messages.append(("takes all" if self.once else "never ends", 0 < timeout <= 60))

    isolation = SimpleNamespace(halted=None, close=lambda: messages.append("closed"))
    start = lambda _spark, _plan, _observer, *, stats, once=False: RunningQuery(Rare(once), isolation)
    monkeypatch.setattr(export, "start_query", start)
    config = SimpleNamespace(destination="lake/", policy=RetryPolicy, dead_letter_policy=LETTERS, trigger=300.0)
    plan = SimpleNamespace(name="out", store_path="b", stores=(), route=SimpleNamespace(config=config, into=None))
    one = export._Export(None, plan)
    one.look()
    export._drain([one], 60.0)

    assert messages == ["stopped", "closed", ("takes all", True)]


# ── the deadline ─────────────────────────────────────────────────────────────────────────────────────


def watchdog_at(clock):
    """Return a watchdog without signals, which only the main thread can receive."""
    line = object.__new__(ParentWatchdog)
    line._clock, line._stop_requested_at, line._is_orphan, line._deadline_s = clock, None, False, 20.0
    line._requests = SimpleNamespace(put=lambda _: None)
    return line


def test_a_child_without_a_supervisor_stops_in_order(monkeypatch):
    """The watchdog kills it after 20 s, so it drains for less."""
    line = watchdog_at(ManualClock())
    monkeypatch.setattr(parent_watchdog, "os", SimpleNamespace(read=lambda *_: b"", _exit=lambda _code: None))
    monkeypatch.setattr(
        parent_watchdog, "threading", SimpleNamespace(Event=lambda: SimpleNamespace(wait=lambda _s: None))
    )
    line._stdin_fd = 0
    line._watch()
    assert line.left_s(25.0) == 10.0
    assert line.left_s(8.0) == 8.0


def test_the_drain_time_starts_with_the_stop_of_the_pipeline():
    """Not when the child is stopped."""
    clock = ManualClock()
    line = watchdog_at(clock)
    assert line.left_s(8.0) == 8.0
    line._end("close")
    clock.advance(5.0)
    line._end("stop")
    assert line.left_s(8.0) == 3.0
    clock.advance(5.0)
    assert line.left_s(8.0) == 0.0
