"""Commands on the directory of a pipeline's store include the companion buffers next to it."""

import json

import pyarrow as pa
import pytest

import quiver
from quiver.bundle import OTLP_SCHEMA, Bundle, BundleRef
from quiver.delivery.dead_letters import DeadLetters
from quiver.pipeline.companion_stores import find_companion_stores
from quiver.pipeline.graph import load_pipeline
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.subscribers.retry_set import RetrySet

PIPELINE = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out_port: {destinations: [before]}}
    config: {protocols: {http: {listening_addr: "127.0.0.1:4318"}}}
  before: {kind: processor, plugin_urn: "urn:quiver:sample:processor", config: {ratio: 0.5},
           out_ports: {out_port: {destinations: [store]}}}
  store: {kind: processor, plugin_urn: "urn:otap:processor:persistence", config: {path: "{{directory}}"},
          out_ports: {out_port: {destinations: [thin]}}}
  thin: {kind: processor, plugin_urn: "urn:quiver:sample:processor", config: {ratio: 0.5},
         out_ports: {out_port: {destinations: [out]}}}
  out: {kind: exporter, plugin_urn: "urn:otel:otlp:exporter", config: {grpc_endpoint: "http://127.0.0.1:9"}}
"""


def bundle():
    return Bundle({60: pa.record_batch([pa.array([b""], pa.binary())], schema=OTLP_SCHEMA)})


def fill(directory, subscriber, cores=None):
    with quiver.open(directory, **({} if cores is None else {"cores": cores})) as store:
        store.register(subscriber, start="earliest")
        store.ingest(bundle())
        store.seal()


@pytest.fixture(params=[None, 2], ids=["one", "cores"])
def directory(request, tmp_path):
    """Return a directory with all stores of a pipeline; in the last one, an exporter has a dead letter and a retry."""
    pipeline, _ = load_pipeline(PIPELINE, source="p.yaml", values={"directory": str(tmp_path / "buffer")})
    for buffer in pipeline.buffers:
        fill(buffer.config.path, buffer.routes[0].name, request.param)
    root = str(tmp_path / "buffer.staged-out") + ("" if request.param is None else "/core_0")
    with DeadLetters(root, "out", background=False) as dead_letters:
        dead_letters.add(BundleRef(2, 0), bundle(), reason="HTTP 403")
    with RetrySet.open(REAL_FILES, root, "out") as retries:
        retries.failed(BundleRef(0, 0), delay_s=3600.0, reason="HTTP 503")
    (tmp_path / "buffer.staged-of-mine").mkdir()
    (tmp_path / "buffer.intake-notes").write_text("no store")
    fill(tmp_path / "buffer.other", "stranger")
    return tmp_path / "buffer"


def test_companion_buffers_are_found_by_name(directory, monkeypatch):
    """Other files and directories with similar names are ignored."""
    found = {f"{directory}.intake", f"{directory}.staged-out"}
    assert set(find_companion_stores(REAL_FILES, directory)) == found
    assert find_companion_stores(REAL_FILES, f"{directory}.intake") == {}
    assert find_companion_stores(REAL_FILES, "/") == {}
    monkeypatch.chdir(directory)
    assert set(find_companion_stores(REAL_FILES, ".")) == found


def test_dead_letters_of_companion_buffers_are_listed_and_dropped(directory, call):
    """The list contains the directory of each dead letter."""
    (letter,) = json.loads(call("dead-letters", "list", directory, "--json").output)
    assert (letter["exporter"], letter["reason"]) == ("out", "HTTP 403")
    assert letter["directory"].startswith(f"{directory}.staged-out")
    assert "buffer.staged-out" in call("dead-letters", "list", directory).output
    assert json.loads(call("dead-letters", "show", directory, "out", "--json").output)[0]["bundle"] == "2:0"
    assert "1 dead letter dropped" in call("dead-letters", "drop", directory, "out").output
    assert json.loads(call("dead-letters", "list", f"{directory}.staged-out", "--json").output) == []


def test_subscribers_of_companion_buffers_are_listed_and_dropped(directory, call):
    """With their retries and dead letters; a subscriber is dropped in the buffer that it reads."""
    listed = json.loads(call("subscribers", directory, "--json").output)
    assert {one["subscriber"] for one in listed} == {"store", "staged-out", "out"}
    assert sum(one["dead_letters"] for one in listed if one["subscriber"] == "out") == 1
    assert max(one["retrying"] for one in listed if one["subscriber"] == "out") == 1
    assert "buffer.staged-out" in call("subscribers", directory).output
    assert call("subscribers", directory, "rewind", "out", "--to", "earliest").exit_code == 0
    assert call("subscribers", directory, "drop", "out").exit_code == 0
    assert "out" not in {one["subscriber"] for one in json.loads(call("subscribers", directory, "--json").output)}
    removed = call("subscribers", directory, "drop", "out")
    assert (removed.exit_code, "no subscriber 'out'" in removed.stderr) == (2, True)


def test_a_subscriber_of_the_store_itself_is_dropped_first(directory, call):
    """
    An exporter that read the store before, and now reads the output of a processor: only its old subscriber is
    dropped.
    """
    cores = 2 if (directory / "core_0").exists() else None
    fill(directory, "out", cores)
    assert call("subscribers", directory, "drop", "out").exit_code == 0
    left = {
        one["directory"]
        for one in json.loads(call("subscribers", directory, "--json").output)
        if one["subscriber"] == "out"
    }
    assert left
    assert all(one.startswith(f"{directory}.staged-out") for one in left)


def test_top_shows_companion_buffers(directory, call):
    """The lag of their subscribers, and their retries."""
    found = json.loads(call("top", directory, "--count", "1", "--json").output)
    lags = {one["subscriber"]: one["lag_bundles"] for one in found["subscribers"]}
    assert lags == {"store": 1, "staged-out": 1, "out": 1}
    assert found["waiting"]["out"]["last_failure"] == "HTTP 503"
