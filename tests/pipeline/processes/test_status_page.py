"""The section `status` of a pipeline file: the page is a process of its own, which nothing else depends on."""

import json
import os
import signal
import urllib.error
import urllib.request

import pytest
from run_process import Run, request

from ports import free_port
from quiver.errors import PipelineError
from quiver.pipeline.diagram import as_graph
from quiver.pipeline.graph import check_cores, load_pipeline
from quiver.pipeline.processes.reload import needs_restart
from quiver.pipeline.processes.run import read_state

TOKEN = "not-in-any-file-or-argument"
PIPELINE = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out_port: {destinations: [buffer]}}
    config: {protocols: {http: {listening_addr: "127.0.0.1:{{port}}"}}}
  buffer:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {out_port: {destinations: [strict]}}
    config: {path: "{{directory}}/buffer"}
  strict:
    kind: exporter
    plugin_urn: "urn:otel:otlp:exporter"
    config: {http_endpoint: "http://127.0.0.1:{{out}}", initial_retry_interval: 10ms, retry: {max_attempts: 1}}
metrics: {listen: "127.0.0.1:{{metrics}}"}
status:
  listen: "127.0.0.1:{{status}}"
  auth: {bearer: {token: "${STATUS_TOKEN}"}}
"""


def loaded(text=PIPELINE, **values):
    known = {"port": "4318", "directory": "/d", "out": "1", "metrics": "9464", "status": "4321", "STATUS_TOKEN": TOKEN}
    return load_pipeline(text, source="p.yaml", values=known | values)[0]


def test_the_graph_names_every_node_and_connection():
    graph = as_graph(loaded())
    assert [(node["name"], node["kind"]) for node in graph["nodes"]] == [
        ("buffer", "buffer"),
        ("otlp", "receiver"),
        ("strict", "exporter"),
    ]
    assert graph["edges"] == [("otlp", "buffer"), ("buffer", "strict")]
    assert TOKEN not in json.dumps(graph)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("127.0.0.1:{{status}}", "0.0.0.0:4321", "others can reach 0.0.0.0"),
        ("127.0.0.1:{{status}}", "127.0.0.1:9464", "status and metrics cannot both listen on 127.0.0.1:9464"),
        ("127.0.0.1:{{status}}", "127.0.0.1:4318", "cannot both listen on 127.0.0.1:4318"),
        ('{bearer: {token: "${STATUS_TOKEN}"}}', "{basic: {username: a, password: b}}", "auth.basic has no effect"),
        ('{bearer: {token: "${STATUS_TOKEN}"}}', "{}", "set a token"),
        ("  auth:", "  page: nice\n  auth:", "unknown key page"),
    ],
)
def test_an_invalid_section_is_refused(old, new, reason):
    with pytest.raises(PipelineError, match=reason):
        loaded(PIPELINE.replace(old, new))


def test_the_token_is_not_shown():
    assert TOKEN not in repr(loaded().status)


def test_the_ports_of_several_cores_leave_that_of_the_page():
    with pytest.raises(Exception, match="port 4321, where status listens"):
        check_cores(loaded(metrics="4319"), 3)


def test_a_change_of_the_section_needs_a_restart():
    assert needs_restart(loaded(), loaded(status="4322")) == ["status changed"]


@pytest.fixture
def running(tmp_path, monkeypatch):
    monkeypatch.setenv("STATUS_TOKEN", TOKEN)
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE)
    ports = {name: str(free_port()) for name in ("port", "out", "metrics", "status")}
    with Run(tmp_path, file, {**ports, "directory": str(tmp_path)}) as run:
        run.ports = ports
        run.until(lambda: "ready: listens on" in run.said)
        yield run


def fetch(run, path, body=None, token=None):
    headers = {"Content-Type": "application/json", **({} if token is None else {"Authorization": f"Bearer {token}"})}
    data = None if body is None else json.dumps(body).encode()
    url = f"http://127.0.0.1:{run.ports['status']}{path}"
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as answer:
        return json.loads(answer.read())


def exporter(run):
    return fetch(run, "/api/status")["exporters"][0]


def test_the_page_follows_the_pipeline_and_survives_a_kill(running):
    """
    Dead letters are dropped with the token only. After kill -9 of its process the page is served again, and reports
    the restart.
    """
    run = running
    assert f"http://127.0.0.1:{run.ports['status']}/" in run.said
    run.post(run.ports["port"], request(1, 2))
    run.until(lambda: exporter(run)["dead_letters"] == 1)
    (receiver,) = fetch(run, "/api/status")["receivers"]
    assert (receiver["name"], receiver["records"], receiver["bytes"]) == ("otlp", 2, len(request(1, 2)))
    (letter,) = fetch(run, "/api/dead-letters?exporter=strict")
    change = {"action": "replay", "exporter": "strict", "bundles": [letter["bundle"]]}
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        fetch(run, "/api/dead-letters", change)
    refused.value.close()
    (replayed,) = fetch(run, "/api/dead-letters", change, TOKEN)
    assert not replayed["delivered"]  # nothing listens there
    assert fetch(run, "/api/dead-letters", change | {"action": "drop"}, TOKEN) == {"dropped": 1}

    os.kill(run.children()["status"]["pid"], signal.SIGKILL)
    run.until(lambda: run.children()["status"]["starts"] == 2)

    def is_served():
        try:
            return fetch(run, "/api/status")
        except (urllib.error.URLError, ConnectionError):
            return None

    run.until(is_served)
    found = is_served()
    assert [one["what"].split(" after")[0] for one in found["events"]][:1] == ["status died (signal 9)"]
    assert {one["name"]: one["starts"] for one in found["processes"]} == {"ingest": 1, "status": 2}
    assert [node["name"] for node in found["graph"]["nodes"]] == ["buffer", "otlp", "strict"]
    assert TOKEN not in json.dumps(read_state(run.run_dir))
    assert "reloaded" in run.reload()
    assert run.children()["status"]["starts"] == 2
    run.stop()
    assert TOKEN not in run.logs()
