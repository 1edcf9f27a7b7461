"""Several pipelines in one file, or several independent graphs: each has its own ports, buffers and exporters."""

from itertools import pairwise

import pytest
import yaml

from quiver.errors import PipelineError
from quiver.pipeline.diagram import as_mermaid, as_text
from quiver.pipeline.explain import describe
from quiver.pipeline.graph import load_pipeline


def pipeline(name, port, *way, exporter=None):
    """Return a pipeline from `receiver` over *way* to an exporter."""
    nodes = {
        "receiver": {"type": "receiver:otlp", "config": {"listening_addr": f"127.0.0.1:{port}"}},
        "mask": {"type": "processor:redact", "config": {"keys": ["password"]}},
        f"{name}_buffer": {"type": "processor:persistence", "config": {"path": f"data/{name}"}},
        exporter or f"{name}_out": {"type": "exporter:otlp", "config": {"grpc_endpoint": "http://127.0.0.1:9"}},
    }
    names = ["receiver", *way, exporter or f"{name}_out"]
    connections = [{"from": one, "to": other} for one, other in pairwise(names)]
    return {"nodes": {one: nodes[one] for one in names}, "connections": connections}


def load(groups):
    value = {"version": "otel_dataflow/v1", "groups": {name: {"pipelines": inside} for name, inside in groups.items()}}
    return load_pipeline(yaml.safe_dump(value, sort_keys=False), source="p.yaml", values={})[0]


def paths(found):
    return {buffer.name: buffer.config.path for buffer in found.buffers}


def test_pipelines_are_independent():
    """Each has its nodes; a receiver of another one may have the same name."""
    found = load({"default": {"app": pipeline("app", 1, "app_buffer"), "host": pipeline("host", 2, "host_buffer")}})
    assert [
        (
            buffer.pipeline,
            buffer.name,
            [node.name for node in buffer.receivers],
            [route.name for route in buffer.routes],
        )
        for buffer in found.buffers
    ] == [
        ("app", "app_buffer", ["receiver"], ["app_out"]),
        ("host", "host_buffer", ["host-receiver"], ["host_out"]),
    ]
    assert [buffer["pipeline"] for buffer in describe(found)["buffers"]] == ["app", "host"]
    assert as_text(found).splitlines()[::3] == ["app:", "host:"]
    assert 'subgraph pn_host["host"]' in as_mermaid(found)


def test_one_pipeline_has_no_label():
    """A file with one pipeline is described as before."""
    found = load({"default": {"app": pipeline("app", 1, "app_buffer")}})
    assert [buffer.pipeline for buffer in found.buffers] == [""]
    assert describe(found)["buffers"][0]["pipeline"] is None
    assert as_text(found).startswith("receiver ──▶ [app_buffer]")


def test_pipelines_of_two_groups_may_have_one_name():
    """Then the name of the group is a part of the label."""
    found = load({"a": {"main": pipeline("app", 1, "app_buffer")}, "b": {"main": pipeline("host", 2, "host_buffer")}})
    assert [buffer.pipeline for buffer in found.buffers] == ["a-main", "b-main"]
    assert [name for name, _ in found.receivers] == ["receiver", "b-main-receiver"]


def test_directories_do_not_depend_on_other_pipelines():
    """Data in the directory of an implicit buffer is found again when a pipeline is added or removed."""
    app, host = pipeline("app", 1, "mask", "app_buffer"), pipeline("host", 2, "mask", "host_buffer")
    both = paths(load({"default": {"app": app, "host": host}}))
    assert both == {
        "app-intake": "data/app.intake",
        "app_buffer": "data/app",
        "host-intake": "data/host.intake",
        "host_buffer": "data/host",
    }
    assert set(paths(load({"default": {"app": app}})).values()) == {"data/app", "data/app.intake"}
    assert set(paths(load({"default": {"host": host}})).values()) == {"data/host", "data/host.intake"}


def test_pipelines_in_memory_have_directories_of_their_own(tmp_path):
    """Each has the size cap of `memory`."""
    found = load({"default": {"app": pipeline("app", 1), "host": pipeline("host", 2)}}).placed(tmp_path)
    assert [buffer.name for buffer in found.buffers] == ["app-memory", "host-memory"]
    assert len(set(paths(found).values())) == 2


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (pipeline("host", 2, "host_buffer", exporter="app_out"), "app has a node app_out, too: rename one"),
        (pipeline("app", 2, "app_buffer", exporter="other"), "app has a node app_buffer, too: rename one"),
        (pipeline("host", 1, "host_buffer"), "host-receiver and receiver cannot both listen on 127.0.0.1:1"),
        ({"nodes": {}}, "there are no nodes"),
        ({"connections": []}, "nodes is missing"),
    ],
)
def test_what_would_be_shared_is_refused(second, said):
    """Names of positions and buffers, and ports."""
    with pytest.raises(PipelineError, match=said):
        load({"default": {"app": pipeline("app", 1, "app_buffer"), "host": second}})


def test_a_connection_stays_in_its_pipeline():
    """A node of another pipeline is unknown."""
    host = pipeline("host", 2, "host_buffer")
    host["connections"].append({"from": "host_buffer", "to": "app_out"})
    with pytest.raises(PipelineError, match="there is no node named app_out"):
        load({"default": {"app": pipeline("app", 1, "app_buffer"), "host": host}})


def test_a_name_that_a_node_would_get_is_refused():
    """Two nodes with one name would be one."""
    app = pipeline("app", 1, "app_buffer")
    app["nodes"]["host-receiver"] = {"type": "receiver:otlp", "config": {"listening_addr": "127.0.0.1:3"}}
    app["connections"].append({"from": "host-receiver", "to": "app_buffer"})
    with pytest.raises(PipelineError, match="has the name that a node of host would get; rename it"):
        load({"default": {"app": app, "host": pipeline("host", 2, "host_buffer")}})


def test_the_other_form_may_have_independent_graphs():
    """Nodes that no connection joins."""
    text = """
nodes:
  a: {kind: receiver, plugin_urn: "urn:otel:otlp:receiver", out_ports: {o: {destinations: [one]}},
      config: {listening_addr: "127.0.0.1:1"}}
  one: {kind: processor, plugin_urn: "urn:otap:processor:persistence", config: {path: data/one}}
  b: {kind: receiver, plugin_urn: "urn:otel:otlp:receiver", out_ports: {o: {destinations: [two]}},
      config: {listening_addr: "127.0.0.1:2"}}
  two: {kind: processor, plugin_urn: "urn:otap:processor:persistence", config: {path: data/two}}
"""
    found = load_pipeline(text, source="p.yaml", values={})[0]
    assert paths(found) == {"one": "data/one", "two": "data/two"}
    assert as_text(found) == "a ──▶ [one]\nb ──▶ [two]"
