"""`quiver status`: the content for every kind of log, from files alone, and the served page."""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest

import quiver
from quiver.aof import AofManager
from quiver.bundle import BundleRef
from quiver.cli.status.dead_letters import DeadLetterCommands
from quiver.cli.status.snapshot import StatusReader, StatusSource
from quiver.cli.status.tracks import CELLS_MAX, store_tracks
from quiver.delivery.dead_letters import DeadLetters
from quiver.errors import TransientError, UsageError
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.qwp.slots.ring import RingSettings
from quiver.qwp.slots.slot import open_slot
from quiver.testing.clock import ManualClock
from quiver.topics.store import TopicStore


class _Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_):
        pass


@pytest.fixture
def metrics_port():
    """Yield a server whose `body` is the answer to every request."""
    with http.server.HTTPServer(("127.0.0.1", 0), _Metrics) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def status_of(call, path, *options):
    result = call("status", path, "--json", *options)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_a_store_is_shown_with_its_segments_and_positions(any_dir, call):
    """One track for each core; `fast` has resolved five of twelve sealed bundles, `slow` none."""
    found = status_of(call, any_dir)
    lags = {one["name"]: one["lag_bundles"] for one in found["exporters"]}
    assert lags == {"fast": 7, "slow": 12}
    assert found["kind"] == "a store"
    assert found["problems"] == []
    assert {node["name"] for node in found["graph"]["nodes"]} >= {"fast", "slow"}
    for track in found["tracks"]:
        sealed = [cell for cell in track["cells"] if cell["state"] == "sealed"]
        assert track["cells"][-1]["name"] == "log"
        cursors = {one["name"]: one for one in track["cursors"]}
        assert cursors["slow"]["resolved"] == [0.0] * len(sealed)
        assert cursors["slow"]["lag"] == sum(cell["entries"] for cell in sealed)
    assert sum(one["lag"] for track in found["tracks"] for one in track["cursors"] if one["name"] == "fast") == 7


def test_topics_are_shown_with_their_subscriptions(tmp_path, call):
    with TopicStore.open(tmp_path / "topics", background=False) as topics:
        log = topics.topic("default/orders")
        consumer = topics.subscribe("default/orders", "billing", start="earliest").consumer("worker")
        for n in range(4):
            log.append(b"%d" % n)
        log.flush()
        for _ in range(3):
            consumer.receive(timeout=5).ack()
    (track,) = status_of(call, tmp_path / "topics")["tracks"]
    assert (track["name"], track["unit"], track["head"]) == ("default/orders", "messages", 4)
    assert [(one["name"], one["position"], one["lag"]) for one in track["cursors"]] == [("billing", 3, 1)]
    assert track["cursors"][0]["resolved"] == [0.75]


def test_a_slot_is_shown_with_what_the_server_has(tmp_path, call):
    """Also below the directory of slots."""
    slot = open_slot(
        REAL_FILES, str(tmp_path / "slots"), "edge", RingSettings(4096, 1 << 20, 1.0), observer=InMemoryObserver()
    )
    for _ in range(3):
        slot.ring.append(b"frame")
    slot.close()
    for path in (tmp_path / "slots", tmp_path / "slots" / "edge"):
        (track,) = status_of(call, path)["tracks"]
        assert (track["name"], track["unit"], track["head"]) == ("edge", "frames", 3)
        assert [(one["position"], one["lag"], one["resolved"]) for one in track["cursors"]] == [(0, 3, [0.0])]


def test_an_append_only_log_is_shown_with_its_durable_position(tmp_path, call):
    with AofManager.open(str(tmp_path / "aof"), background=False) as manager:
        log = manager.log("orders")
        log.append_records([b"1", b"2"])
        log.force_rollover(timeout=5)
        log.flush_until(log.append_record(b"3"))
    (track,) = status_of(call, tmp_path / "aof")["tracks"]
    assert (track["name"], track["unit"]) == ("orders", "bytes")
    assert len(track["cells"]) == 2
    assert [(one["name"], one["lag"]) for one in track["cursors"]] == [("durable", 0)]


def test_a_directory_of_another_program_is_refused(tmp_path, call):
    (tmp_path / "mine").mkdir()
    assert call("status", tmp_path / "mine", "--json").exit_code == 2
    missing = call("status", tmp_path / "missing", "--json")
    assert (missing.exit_code, "neither" in missing.output) == (2, True)
    assert call("status", tmp_path / "mine", "--set", "a=b", "--json").exit_code == 2


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "example.com:80"])
def test_a_public_address_needs_insecure(store_dir, call, listen):
    result = call("status", store_dir, "--listen", listen)
    assert (result.exit_code, "--insecure" in result.output) == (2, True)
    assert call("status", store_dir, "--listen", "4321").exit_code == 2


def test_many_segments_are_drawn_as_fewer_cells(tmp_path, make_bundle):
    """No bundle is lost between the cells."""
    settings = quiver.Settings(segment_bytes_max=2000)
    with quiver.open(tmp_path / "d", settings, background=False) as store:
        reader = store.register("reader", start="earliest")
        for n in range(CELLS_MAX + 30):
            store.ingest(make_bundle(n))
            store.seal()
        for _ in range(100):
            reader.next_bundle(timeout=0).ack()
        store.maintain()
    (track,) = store_tracks(str(tmp_path / "d"))
    *sealed, _log = track.cells
    assert len(sealed) == CELLS_MAX
    assert sum(cell.entries for cell in sealed) == track.head
    (cursor,) = track.cursors
    assert len(cursor.resolved) == CELLS_MAX
    resolved = sum(cell.entries * share for cell, share in zip(sealed, cursor.resolved, strict=True))
    assert round(resolved) == track.head - cursor.lag


def test_a_damaged_progress_file_is_reported(store_dir):
    path = store_dir / "quiver.sub.slow"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    found = StatusReader(StatusSource(str(store_dir), f"{store_dir}.run")).current()
    (slow,) = (one for one in found["exporters"] if one["name"] == "slow")
    assert slow["lag_bundles"] is None
    assert "damaged" in slow["problem"]
    (cursor,) = (one for track in found["tracks"] for one in track["cursors"] if one["name"] == "slow")
    assert "repair" in cursor["problem"]


def test_rates_come_from_two_readings(tmp_path, make_bundle):
    """Between two readings that are a second apart; until then, all clients get the same reading."""
    clock = ManualClock()
    directory = tmp_path / "d"
    with quiver.open(directory, background=False) as store:
        store.register("reader", start="earliest")
        store.ingest(make_bundle(0))
        store.seal()
        reader = StatusReader(StatusSource(str(directory), f"{directory}.run"), clock=clock)
        first = reader.current()
        for n in range(1, 5):
            store.ingest(make_bundle(n))
        store.seal()
        assert reader.current() is first
        clock.advance(2.0)
        second = reader.current()
    assert first["tracks"][0]["per_second"] is None
    assert second["tracks"][0]["per_second"] == 2.0
    assert second["tracks"][0]["cursors"][0]["per_second"] == 0.0


def test_the_state_file_of_a_pipeline_gives_graph_and_events(store_dir, call):
    """An older one, without them, gives the graph of the store."""
    run_dir = store_dir.with_name("store.run")
    run_dir.mkdir()
    graph = {
        "nodes": [
            {"name": "otlp", "kind": "receiver", "note": "otlp"},
            {"name": "buffer", "kind": "buffer", "note": str(store_dir)},
            {"name": "fast", "kind": "exporter", "note": "otlp"},
        ],
        "edges": [["otlp", "buffer"], ["buffer", "fast"]],
    }
    state = {
        "pipeline": "p.yaml",
        "state": "running",
        "children": {"ingest": {"pid": 1, "state": "running", "starts": 2, "last_exit": "signal 9"}},
        "graph": graph,
        "events": [{"at_ns": 5, "what": "ingest died"}],
        "size_caps": {"buffer": 1000, "other": None},
    }
    (run_dir / "state.json").write_text(json.dumps(state))
    found = status_of(call, store_dir)
    assert found["kind"] == "a pipeline"
    assert found["events"] == [{"at_ns": 5, "what": "ingest died"}]
    assert found["disk"]["cap_bytes"] == 1000
    assert {node["name"]: node["lag"] for node in found["graph"]["nodes"]} == {"otlp": None, "buffer": None, "fast": 7}
    (run_dir / "state.json").write_text(json.dumps({"pipeline": "p.yaml", "state": "running", "children": {}}))
    assert {node["name"] for node in status_of(call, store_dir)["graph"]["nodes"]} == {"store", "fast", "slow"}


@pytest.mark.parametrize("is_only", [True, False])
def test_receivers_have_the_rates_of_their_counters(store_dir, metrics_port, is_only):
    """Those of the only receiver do not name it. A receiver without counters, which polls a log, has no rates."""
    run_dir = store_dir.with_name("store.run")
    run_dir.mkdir()
    names = ["otlp"] if is_only else ["otlp", "poll"]
    nodes = [{"name": name, "kind": "receiver", "note": "otlp"} for name in names]
    state = {"pipeline": "p.yaml", "state": "running", "children": {}, "graph": {"nodes": nodes, "edges": []}}
    (run_dir / "state.json").write_text(json.dumps(state | {"metrics": f"127.0.0.1:{metrics_port.server_port}"}))
    label = "" if is_only else '{receiver="otlp"}'
    clock = ManualClock()
    reader = StatusReader(StatusSource(str(store_dir), str(run_dir)), clock=clock)
    metrics_port.body = f"quiver_receiver_items_total{label} 10\nquiver_receiver_bytes_total{label} 100\n".encode()
    first = reader.current()["receivers"]
    metrics_port.body = f"quiver_receiver_items_total{label} 30\nquiver_receiver_bytes_total{label} 500\n".encode()
    clock.advance(2.0)
    second = reader.current()
    figures = [
        {"records": 10, "records_per_second": None, "bytes": 100, "bytes_per_second": None},
        {"records": 30, "records_per_second": 10.0, "bytes": 500, "bytes_per_second": 200.0},
    ]
    assert [{"name": "otlp", "note": "otlp", **one} for one in figures] == [first[0], second["receivers"][0]]
    assert (second["graph"]["nodes"][0]["per_second"], second["graph"]["nodes"][0]["unit"]) == (10.0, "records")
    assert [one["records"] for one in second["receivers"]] == [30, None][: len(names)]


@pytest.mark.parametrize(
    "state",
    [
        "{",
        "null",
        '{"graph": {"nodes": 3}}',
        '{"graph": {"nodes": [{"name": 1}], "edges": []}}',
        '{"graph": {"nodes": [], "edges": [[1]]}}',
        '{"children": [1]}',
        '{"children": {"ingest": {"starts": "x"}}}',
        '{"events": 7}',
        '{"events": [{"at_ns": "now", "what": 1}]}',
        '{"size_caps": [1], "disk_cap": "x", "buffers": 3}',
        '{"metrics": 5}',
        '{"metrics": "x", "cores": "y"}',
    ],
)
def test_a_state_file_of_another_form_is_ignored(store_dir, call, state):
    """The rest is shown: what is in the directory."""
    run_dir = store_dir.with_name("store.run")
    run_dir.mkdir()
    (run_dir / "state.json").write_text(state)
    assert {one["name"] for one in status_of(call, store_dir)["exporters"]} == {"fast", "slow"}


# ---- dead letters -------------------------------------------------------------------------------------


@pytest.fixture
def with_dead_letters(tmp_path, make_bundle):
    root = str(tmp_path / "buffer")
    with quiver.open(root) as store:
        store.register("out", start="earliest")
        store.ingest(make_bundle(0))
    with DeadLetters(root, "out", background=False) as dead_letters:
        for index in range(3):
            dead_letters.add(BundleRef(2, index), make_bundle(index), reason="<b>no</b>", attempts=1)
    return root


def test_dead_letters_are_listed_shown_and_dropped(with_dead_letters):
    commands = DeadLetterCommands(with_dead_letters)
    assert [one["bundle"] for one in commands.run("list", "out")] == ["2:0", "2:1", "2:2"]
    (shown,) = commands.run("show", "out", ["2:1"])
    assert shown["reason"] == "<b>no</b>"
    assert commands.run("drop", "out", ["2:0", "2:2"]) == {"dropped": 2}
    assert [one["bundle"] for one in commands.run("list", "out")] == ["2:1"]


def test_names_that_are_options_are_refused(with_dead_letters, tmp_path):
    """An exporter may begin with a dash, and is no option of the command; a bundle may not."""
    commands = DeadLetterCommands(with_dead_letters)
    assert commands.run("list", "--help") == []
    for bundle in ("--pipeline", "1", "1:", "a:b", "1:2; rm", "¹:²"):
        with pytest.raises(UsageError):
            commands.run("drop", "out", [bundle])
    with pytest.raises(UsageError):
        commands.run("list", "../out")
    with pytest.raises(UsageError, match="pipeline file"):
        commands.run("replay", "out", ["2:0"])
    with pytest.raises(TransientError, match="no dead letter 9:9"):
        commands.run("show", "out", ["9:9"])


# ---- the process --------------------------------------------------------------------------------------


def test_the_page_is_served_until_standard_input_ends(store_dir, tmp_path):
    """As for a parent process that dies. A token permits to drop a dead letter."""
    (tmp_path / "tokens").write_text("the-token\n")
    argv = [sys.executable, "-m", "quiver", "status", str(store_dir), "--listen", "127.0.0.1:0"]
    argv += ["--token-file", str(tmp_path / "tokens"), "--stop-with-stdin"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        url = line.split(" at ")[1].split(" ")[0]
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert b"<title>Quiver status</title>" in answer.read()
        with urllib.request.urlopen(f"{url}api/status", timeout=20) as answer:
            found = json.loads(answer.read())
        assert found["may_change"]
        assert len(found["exporters"]) == 2
        process.stdin.close()
        assert process.wait(20) == 0


def test_the_page_stops_on_sigterm(store_dir):
    argv = [sys.executable, "-m", "quiver", "status", str(store_dir), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert "read-only" in process.stdout.readline()
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) == 0
