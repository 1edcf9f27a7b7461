"""
The output of `quiver top`: from the metrics port of a real store, its directory, and the state and logs of its
pipeline.
"""

import http.server
import json
import threading

import pytest

import quiver
from quiver.bundle import BundleRef
from quiver.cli.stats.top_figures import PipelineSnapshot, Received, Sample, fetch_samples, parse_samples, showing
from quiver.delivery.exporter_stats import ExporterStats
from quiver.errors import TransientError
from quiver.observe import InMemoryObserver
from quiver.pipeline.metrics_endpoint import MetricsEndpoint
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.subscribers.retry_set import RetrySet


@pytest.fixture
def served(tmp_path, make_bundle):
    """Yield a store with one subscriber that has two of three bundles, and its metrics port."""
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


def write_run_files(run_dir, **told):
    """Write the files that the supervisor and one of its children leave in the run directory."""
    run_dir.mkdir()
    child = {"pid": 7, "state": "running", "starts": 2, "last_exit": "signal 9", "log": "ingest.log"}
    (run_dir / "state.json").write_text(json.dumps({"children": {"ingest": child}, **told}))
    (run_dir / "ingest.log").write_text("10:00 INFO fine\n10:01 WARNING the far side is away\n10:02 INFO fine\n")


def test_top_shows_processes_flows_lag_and_disk(served, call):
    """With the last warning of each process; as tables and as JSON."""
    directory, address = served
    write_run_files(directory.with_name("buffer.run"))
    found = json.loads(call("top", directory, "--endpoint", address, "--count", "1", "--json").output)
    assert found["nodes"] == [{"name": "ingest", "state": "running", "pid": 7, "starts": 2, "last_exit": "signal 9"}]
    assert found["errors"] == ["ingest: 10:01 WARNING the far side is away"]
    assert [(one["subscriber"], one["lag_bundles"]) for one in found["subscribers"]] == [("lake", 1)]
    flows = {(flow["what"], flow["of"]): flow["total"] for flow in found["flows"]}
    assert flows["acknowledged", "lake"] == 2
    assert flows["segments sealed", ""] == 1
    assert found["disk"]["segments"] == 1
    assert isinstance(found["disk"]["segments"], int)
    assert found["problem"] == ""

    shown = call("top", directory, "--endpoint", address, "--count", "1")
    assert shown.exit_code == 0
    assert all(word in shown.output for word in ("ingest", "signal 9", "lake", "the far side is away"))


def test_the_disk_figures_are_those_of_the_directory():
    """If the pipeline has several buffers; flows are of all of them."""
    samples = tuple(
        Sample(name, (("buffer", buffer),), value)
        for buffer, value in (("a", 2.0), ("b", 5.0))
        for name in ("quiver_segment_files", "quiver_core_cap_fraction", "quiver_segment_sealed_total")
    )
    found = showing(PipelineSnapshot(0.0, samples, (), 0, (), (), buffer="a"), None)
    assert (found.disk["segments"], found.disk["of_the_cap"]) == (2.0, 2.0)
    assert [(flow.what, flow.total) for flow in found.flows] == [("segments sealed", 7)]


def test_reports_of_all_buffers_are_shown(served, tmp_path, call):
    """Exporters of each buffer of the pipeline, with their last success."""
    directory, address = served
    with quiver.open(tmp_path / "other", background=False) as store:
        store.register("second", start="earliest")
    for name, root in (("lake", directory), ("second", tmp_path / "other")):
        stats = ExporterStats(name, InMemoryObserver(), roots=[str(root)])
        stats.delivered(1, 10)
        stats.save(is_last=True)
    write_run_files(directory.with_name("buffer.run"), buffers={"a": str(directory), "b": str(tmp_path / "other")})
    found = json.loads(call("top", directory, "--endpoint", address, "--count", "1", "--json").output)
    assert set(found["reports"]) == {"lake", "second"}


def test_top_works_without_the_metrics_port(served, call):
    """Lag and disk usage come from the files; the report names the part that is unknown, with the reason."""
    directory, _ = served
    found = json.loads(call("top", directory, "--endpoint", "127.0.0.1:9", "--count", "1", "--json").output)
    assert found["flows"] == []
    assert found["disk"]["bytes"] > 0
    assert [(one["subscriber"], one["lag_bundles"]) for one in found["subscribers"]] == [("lake", 1)]
    assert "no metrics from 127.0.0.1:9" in found["problem"]


@pytest.mark.parametrize("named", [True, False])
def test_top_queries_the_port_of_every_core(served, call, named):
    """The state file records the port of the first core; each other core uses the next higher one."""
    directory, address = served
    host, port = address.split(":")
    write_run_files(directory.with_name("buffer.run"), cores=2, metrics=address)
    endpoint = ["--endpoint", address] if named else []
    found = json.loads(call("top", directory, *endpoint, "--count", "1", "--json").output)
    assert {(flow["what"], flow["of"]): flow["total"] for flow in found["flows"]}["acknowledged", "lake"] == 2
    assert f"no metrics from {host}:{int(port) + 1}" in found["problem"]


def test_a_directory_without_a_pipeline_is_refused(tmp_path, call):
    """A mistyped name is an error immediately; `top` does not wait for it forever."""
    result = call("top", tmp_path / "nothing", "--count", "1")
    assert (result.exit_code, "neither" in result.output) == (2, True)
    assert call("top", tmp_path, "--every", "0s").exit_code == 2
    assert call("top", "/").exit_code == 2


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9464/metrics", "9464", "localhost"])
def test_an_endpoint_is_a_host_and_a_port(served, call, endpoint):
    """Anything else is refused with a message."""
    result = call("top", served[0], "--endpoint", endpoint, "--count", "1")

    assert (result.exit_code, "is not host:port" in result.output) == (2, True)


def test_all_buffers_of_a_pipeline_are_shown_once(served, call, tmp_path):
    """
    Wherever they are stored: a second persistence node is included, and so is a buffer in memory, which has no
    file.
    """
    directory, _ = served
    buffers = {"memory": str(directory), "again": f"{directory}/", "relative": "buffer"}
    write_run_files(tmp_path / "p.run", buffers=buffers)
    options = ("--run-dir", tmp_path / "p.run", "--endpoint", "127.0.0.1:9", "--count", "1", "--json")

    def look(named):
        return json.loads(call("top", named, *options).output)

    for named in (tmp_path / "p", directory):
        assert [(one["subscriber"], one["lag_bundles"]) for one in look(named)["subscribers"]] == [("lake", 1)]
        assert look(named)["disk"]["bytes"] > 0


def test_a_pipeline_that_is_starting_can_be_watched(call, tmp_path):
    """Its directory may exist before it contains a store; without a pipeline, such a directory is refused."""
    (tmp_path / "buffer").mkdir()
    arguments = ("top", tmp_path / "buffer", "--count", "1", "--json")
    assert call(*arguments).exit_code == 2
    write_run_files(tmp_path / "buffer.run")
    found = json.loads(call(*arguments).output)

    assert [one["name"] for one in found["nodes"]] == ["ingest"]
    assert "not yet" in found["problem"]


def test_json_in_a_pipe_ends(served, call):
    """Like the tables: one update without a terminal, so that `quiver top --json | jq` returns."""
    directory, address = served[:2]
    assert len(call("top", directory, "--endpoint", address, "--json").output.splitlines()) == 1


def test_top_works_from_within_the_store_directory(served, call, monkeypatch):
    """It finds logs and state next to the directory, for any spelling of the path."""
    directory, address = served
    write_run_files(directory.with_name("buffer.run"))
    monkeypatch.chdir(directory)
    found = json.loads(call("top", ".", "--endpoint", address, "--count", "1", "--json").output)
    assert [one["name"] for one in found["nodes"]] == ["ingest"]


def test_retries_of_an_exporter_are_shown(served, call):
    """The number of bundles, the most attempts, the next retry and its reason; a halt; a damaged retry set."""
    directory, address = served
    with RetrySet.open(REAL_FILES, str(directory), "lake") as retries:
        retries.failed(BundleRef(0, 0), delay_s=3600.0, reason="HTTP 503")
        retries.failed(BundleRef(0, 0), delay_s=3600.0, reason="HTTP 503")
        retries.failed(BundleRef(0, 1), delay_s=7200.0, reason="HTTP 500")
        retries.save()
    arguments = ("top", directory, "--endpoint", address, "--count", "1")
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


def test_messages_of_quiver_are_shown_first(tmp_path, call):
    """Spark's log has a hundred lines about the same failure."""
    write_run_files(tmp_path / "buffer.run")
    noise = "".join(f"26/11/22 ERROR Executor: task {number}\n" for number in range(9))
    ours = "10:01 ERROR   quiver.pipeline csv failed, starts again in 1.6 s: no such format\n"
    (tmp_path / "buffer.run" / "ingest.log").write_text(f"{noise}{ours}{noise}")
    errors = json.loads(call("top", tmp_path / "buffer", "--count", "1", "--json").output)["errors"]
    assert (len(errors), errors[0]) == (5, f"ingest: {ours.strip()}")
    (tmp_path / "buffer.run" / "ingest.log").write_text(ours * 7)
    assert len(json.loads(call("top", tmp_path / "buffer", "--count", "1", "--json").output)["errors"]) == 5


def test_undelivered_bundles_are_counted():
    """By exporter, and by what happened to them."""
    labels = (("exporter", "out"), ("how", "halt"))
    found = showing(
        PipelineSnapshot(1.0, (Sample("quiver_exporter_given_up_total", labels, 2.0),), (), 0, (), ()), None
    )
    assert [(flow.what, flow.of, flow.total) for flow in found.flows] == [("given up", "out halt", 2)]


def look(at_s, **counters):
    samples = tuple(Sample(f"quiver_{name}", (), value) for name, value in counters.items())
    return PipelineSnapshot(at_s, samples, (), 0, (), ())


def rate_of(now, before):
    return {flow.what: flow.per_second for flow in showing(now, before).flows}


def test_rates_are_differences_to_the_previous_snapshot():
    """A counter that decreased was restarted: its value is the difference. The first snapshot has no rates."""
    first, second = look(10.0, segment_sealed_total=5.0), look(12.0, segment_sealed_total=9.0)
    assert rate_of(first, None) == {"segments sealed": None}
    assert rate_of(second, first) == {"segments sealed": 2.0}
    assert rate_of(look(14.0, segment_sealed_total=4.0), second) == {"segments sealed": 2.0}
    unreachable = look(13.0)
    assert rate_of(second, unreachable) == {"segments sealed": None}


def test_receivers_are_counted_one_by_one():
    """Over their signals; the counts of the only receiver do not name it. A rate needs two snapshots."""

    def received(at_s, **names):
        samples = []
        for name, values in names.items():
            for signal, (records, size) in values.items():
                labels = (("receiver", name),) if name != "only" else ()
                labels = (*labels, ("signal", signal))
                samples.append(Sample("quiver_receiver_items_total", labels, records))
                samples.append(Sample("quiver_receiver_bytes_total", labels, size))
        return PipelineSnapshot(at_s, tuple(samples), (), 0, (), ())

    first = received(1.0, a={"logs": (10.0, 100.0)}, b={"logs": (1.0, 10.0)})
    second = received(3.0, a={"logs": (16.0, 160.0), "traces": (4.0, 40.0)}, b={"logs": (1.0, 10.0)})
    assert showing(first, None).received["a"] == Received(10, None, 100, None)
    assert showing(second, first).received == {"a": Received(20, 5.0, 200, 50.0), "b": Received(1, 0.0, 10, 0.0)}
    assert showing(received(1.0, only={"logs": (3.0, 30.0)}), None).received == {"": Received(3, None, 30, None)}
    assert showing(look(1.0, segment_sealed_total=1.0), None).received == {}


class _Other(http.server.BaseHTTPRequestHandler):
    """The port of another program."""

    def do_GET(self):
        self.send_response(200 if self.server.body is not None else 404)
        self.end_headers()
        self.wfile.write(self.server.body or b"")

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("body", [b"<html>{</html>", None])
def test_an_endpoint_without_metrics_is_an_error(body):
    """For any response; the error is not an unexpected exception."""
    with http.server.HTTPServer(("127.0.0.1", 0), _Other) as server:
        server.body = body
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(TransientError):
            fetch_samples(f"127.0.0.1:{server.server_port}")
        thread.join()


def test_metrics_of_other_programs_are_ignored():
    """The labels of a sample are sorted."""
    text = '# TYPE quiver_x counter\nquiver_x_total{b="2",a="1"} 3.0\nprocess_y 4\n'
    assert parse_samples(text) == (Sample("quiver_x_total", (("a", "1"), ("b", "2")), 3.0),)
