"""What `quiver top` shows: the metrics port of a real store, its directory, the state and the logs of its pipeline."""

import http.server
import json
import threading

import pytest

import quiver
from quiver.bundle import BundleRef
from quiver.cli.stats.top_figures import Sample, Snapshot, fetch_samples, parse_samples, showing
from quiver.errors import TransientError
from quiver.pipeline.metrics_endpoint import MetricsEndpoint
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.subscribers.retry_set import RetrySet


@pytest.fixture
def served(tmp_path, make_bundle):
    """A store with one subscriber that has two of three bundles, and its metrics port."""
    endpoint = MetricsEndpoint("127.0.0.1:0")
    with quiver.open(tmp_path / "buffer", background=False, observer=endpoint.observer) as store:
        subscriber = store.register("lake", start="earliest")
        for first in range(3):
            store.ingest(make_bundle(first))
        store.seal()
        for _ in range(2):
            subscriber.next_bundle(timeout=0).ack()
        store.maintain()
        endpoint.start()
        endpoint.observe(store)
        try:
            yield tmp_path / "buffer", endpoint.address
        finally:
            endpoint.stop()


def pipeline_left(run_dir, **told):
    """What the supervisor and a child of it leave behind."""
    run_dir.mkdir()
    child = {"pid": 7, "state": "running", "starts": 2, "last_exit": "signal 9", "log": "ingest.log"}
    (run_dir / "state.json").write_text(json.dumps({"children": {"ingest": child}, **told}))
    (run_dir / "ingest.log").write_text("10:00 INFO fine\n10:01 WARNING the far side is away\n10:02 INFO fine\n")


def test_everything_is_shown_in_one_look(served, call):
    """Processes and their last trouble, flows, lag, disk; in the table and in JSON."""
    directory, address = served
    pipeline_left(directory.with_name("buffer.run"))
    found = json.loads(call("top", directory, "--endpoint", address, "--looks", "1", "--json").output)
    assert found["nodes"] == [{"name": "ingest", "state": "running", "pid": 7, "starts": 2, "last_exit": "signal 9"}]
    assert found["errors"] == ["ingest: 10:01 WARNING the far side is away"]
    assert [(one["subscriber"], one["lag_bundles"]) for one in found["subscribers"]] == [("lake", 1)]
    flows = {(flow["what"], flow["of"]): flow["total"] for flow in found["flows"]}
    assert flows["acknowledged", "lake"] == 2
    assert flows["segments sealed", ""] == 1
    assert found["disk"]["segments"] == 1
    assert found["problem"] == ""

    shown = call("top", directory, "--endpoint", address, "--looks", "1")
    assert shown.exit_code == 0
    assert all(word in shown.output for word in ("ingest", "signal 9", "lake", "the far side is away"))


def test_without_the_port_the_directory_is_enough(served, call):
    """Lag and disk come from the files; it says what is not known, and why."""
    directory, _ = served
    found = json.loads(call("top", directory, "--endpoint", "127.0.0.1:9", "--looks", "1", "--json").output)
    assert found["flows"] == []
    assert found["disk"]["bytes"] > 0
    assert [(one["subscriber"], one["lag_bundles"]) for one in found["subscribers"]] == [("lake", 1)]
    assert "no metrics from 127.0.0.1:9" in found["problem"]


@pytest.mark.parametrize("named", [True, False])
def test_the_ports_of_all_cores_are_asked(served, call, named):
    """The run wrote down where the first is; each core tells its own one port above the one before."""
    directory, address = served
    host, port = address.split(":")
    pipeline_left(directory.with_name("buffer.run"), cores=2, metrics=address)
    endpoint = ["--endpoint", address] if named else []
    found = json.loads(call("top", directory, *endpoint, "--looks", "1", "--json").output)
    assert {(flow["what"], flow["of"]): flow["total"] for flow in found["flows"]}["acknowledged", "lake"] == 2
    assert f"no metrics from {host}:{int(port) + 1}" in found["problem"]


def test_what_is_no_pipeline_is_refused(tmp_path, call):
    """A name mistyped is told at once, not watched for ever."""
    result = call("top", tmp_path / "nothing", "--looks", "1")
    assert (result.exit_code, "neither" in result.output) == (2, True)
    assert call("top", tmp_path, "--every", "0s").exit_code == 2
    assert call("top", "/").exit_code == 2


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9464/metrics", "9464", "localhost"])
def test_an_endpoint_is_host_and_port(served, call, endpoint):
    """Anything else is said in words."""
    result = call("top", served[0], "--endpoint", endpoint, "--looks", "1")

    assert (result.exit_code, "is not host:port" in result.output) == (2, True)


def test_all_buffers_of_the_pipeline_are_shown(served, call, tmp_path):
    """Wherever they lie, each once: a second persistence node, and what is in memory and stands in no file."""
    directory, _ = served
    buffers = {"memory": str(directory), "again": f"{directory}/", "relative": "buffer"}
    pipeline_left(tmp_path / "p.run", buffers=buffers)
    options = ("--run-dir", tmp_path / "p.run", "--endpoint", "127.0.0.1:9", "--looks", "1", "--json")

    def look(named):
        return json.loads(call("top", named, *options).output)

    for named in (tmp_path / "p", directory):
        assert [(one["subscriber"], one["lag_bundles"]) for one in look(named)["subscribers"]] == [("lake", 1)]
        assert look(named)["disk"]["bytes"] > 0


def test_a_pipeline_that_has_just_begun_is_watched(call, tmp_path):
    """Its directory may be there before it is a store; without a pipeline it is no store's."""
    (tmp_path / "buffer").mkdir()
    arguments = ("top", tmp_path / "buffer", "--looks", "1", "--json")
    assert call(*arguments).exit_code == 2
    pipeline_left(tmp_path / "buffer.run")
    found = json.loads(call(*arguments).output)

    assert [one["name"] for one in found["nodes"]] == ["ingest"]
    assert "not yet" in found["problem"]


def test_it_may_be_asked_from_within_the_store(served, call, monkeypatch):
    """Logs and state lie beside the directory, whatever it is called by."""
    directory, address = served
    pipeline_left(directory.with_name("buffer.run"))
    monkeypatch.chdir(directory)
    found = json.loads(call("top", ".", "--endpoint", address, "--looks", "1", "--json").output)
    assert [one["name"] for one in found["nodes"]] == ["ingest"]


def test_backoff_is_shown(served, call):
    """How many wait, how often the worst was tried, when the next is due, and why; who halted; a damaged set."""
    directory, address = served
    with RetrySet.open(REAL_FILES, str(directory), "lake") as retries:
        retries.failed(BundleRef(0, 0), delay_s=3600.0, reason="HTTP 503")
        retries.failed(BundleRef(0, 0), delay_s=3600.0, reason="HTTP 503")
        retries.failed(BundleRef(0, 1), delay_s=7200.0, reason="HTTP 500")
        retries.save()
    arguments = ("top", directory, "--endpoint", address, "--looks", "1")
    waiting = json.loads(call(*arguments, "--json").output)["waiting"]["lake"]
    assert (waiting["retrying"], waiting["attempts"], waiting["last_failure"]) == (2, 2, "HTTP 503")
    assert 3500 < waiting["next_retry_s"] <= 3600
    shown = call(*arguments).output
    assert all(word in shown for word in ("retrying", "attempts", "next retry", "in 59 m", "! lake waits: HTTP 503"))
    with RetrySet.open(REAL_FILES, str(directory), "lake") as retries:
        retries.failed(BundleRef(0, 1), delay_s=0.0, reason="HTTP 400", is_halted=True)
    assert "! lake halted until it is restarted: HTTP 400" in call(*arguments).output

    (directory / "quiver.retry.lake").write_bytes(b"no retry set")
    assert "quiver.retry.lake" in json.loads(call(*arguments, "--json").output)["problem"]


def test_what_we_say_of_a_failure_is_not_crowded_out(tmp_path, call):
    """Spark's log tells the same in a hundred lines."""
    pipeline_left(tmp_path / "buffer.run")
    noise = "".join(f"26/11/22 ERROR Executor: task {number}\n" for number in range(9))
    ours = "10:01 ERROR   quiver.pipeline csv failed, starts again in 1.6 s: no such format\n"
    (tmp_path / "buffer.run" / "ingest.log").write_text(f"{noise}{ours}{noise}")
    errors = json.loads(call("top", tmp_path / "buffer", "--looks", "1", "--json").output)["errors"]
    assert (len(errors), errors[0]) == (5, f"ingest: {ours.strip()}")
    (tmp_path / "buffer.run" / "ingest.log").write_text(ours * 7)
    assert len(json.loads(call("top", tmp_path / "buffer", "--looks", "1", "--json").output)["errors"]) == 5


def test_what_was_given_up_is_shown():
    """By exporter, and by what became of it."""
    labels = (("exporter", "out"), ("how", "halt"))
    found = showing(Snapshot(1.0, (Sample("quiver_exporter_given_up_total", labels, 2.0),), (), 0, (), ()), None)
    assert [(flow.what, flow.of, flow.total) for flow in found.flows] == [("given up", "out halt", 2)]


def look(at_s, **counters):
    samples = tuple(Sample(f"quiver_{name}", (), value) for name, value in counters.items())
    return Snapshot(at_s, samples, (), 0, (), ())


def rate_of(now, before):
    return {flow.what: flow.per_second for flow in showing(now, before).flows}


def test_rates_are_what_came_since_the_look_before():
    """A counter that fell was begun anew: what it says came since then. The first look knows no rate."""
    first, second = look(10.0, segment_sealed_total=5.0), look(12.0, segment_sealed_total=9.0)
    assert rate_of(first, None) == {"segments sealed": None}
    assert rate_of(second, first) == {"segments sealed": 2.0}
    assert rate_of(look(14.0, segment_sealed_total=4.0), second) == {"segments sealed": 2.0}
    unreachable = look(13.0)
    assert rate_of(second, unreachable) == {"segments sealed": None}


class _Other(http.server.BaseHTTPRequestHandler):
    """Some other program's port."""

    def do_GET(self):
        self.send_response(200 if self.server.body is not None else 404)
        self.end_headers()
        self.wfile.write(self.server.body or b"")

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("body", [b"<html>{</html>", None])
def test_what_answers_but_is_no_metrics_port_is_told(body):
    """Whatever it says, it is a sentence, not a traceback."""
    with http.server.HTTPServer(("127.0.0.1", 0), _Other) as server:
        server.body = body
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(TransientError):
            fetch_samples(f"127.0.0.1:{server.server_port}")
        thread.join()


def test_only_our_own_lines_are_read():
    """Labels come sorted; what others put on the same port is left out."""
    text = '# TYPE quiver_x counter\nquiver_x_total{b="2",a="1"} 3.0\nprocess_y 4\n'
    assert parse_samples(text) == (Sample("quiver_x_total", (("a", "1"), ("b", "2")), 3.0),)
