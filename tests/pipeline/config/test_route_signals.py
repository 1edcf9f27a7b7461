"""`signals` of exporters and connections: which signals take which route, and what `--check` reports about it."""

import pytest
import yaml

from quiver.errors import PipelineError
from quiver.pipeline.explain import describe
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.processes.reload import changed_queries, needs_restart

REMOTE = {"grpc_endpoint": "http://127.0.0.1:14317"}


def document(connections, **signals):
    """Return a file with these connections; *signals* are those of exporters."""
    nodes = {
        "in": {"type": "receiver:otlp", "config": {"listening_addr": "127.0.0.1:4317"}},
        "topic": {"type": "receiver:topic", "config": {"topics": "topics", "topic": "a/b"}},
        "buffer": {"type": "processor:persistence", "config": {"path": "data/buffer"}},
        "sql": {"type": "processor:sql", "config": {"query": "SELECT * FROM spans"}},
        "errors": {"type": "processor:filter", "config": {"keep": "true", "signals": ["logs"]}},
        "remote": {"type": "exporter:otlp", "config": REMOTE},
        "other": {"type": "exporter:otlp", "config": REMOTE},
        "files": {"type": "exporter:parquet", "config": {"path": "out"}},
    }
    for name, listed in signals.items():
        nodes[name]["config"] = nodes[name]["config"] | {"signals": listed}
    used = {
        name
        for one in connections
        for name in (one["from"], *([one["to"]] if isinstance(one["to"], str) else one["to"]))
    }
    pipeline = {"nodes": {name: node for name, node in nodes.items() if name in used}, "connections": connections}
    return {"version": "otel_dataflow/v1", "groups": {"a": {"pipelines": {"b": pipeline}}}}


def edge(start, end, *signals):
    return {"from": start, "to": end} | ({"signals": list(signals)} if signals else {})


def load(*connections, **signals):
    return load_pipeline(yaml.safe_dump(document(list(connections), **signals)), source="p.yaml", values={})[0]


def routes(pipeline):
    return {name: route.signals for name, route in pipeline.routes.items()}


def test_an_exporter_receives_its_signals():
    """The others of the same buffer are not affected; the description names them."""
    pipeline = load(edge("in", "buffer"), edge("buffer", ["remote", "files"]), remote=["traces", "logs"])

    assert routes(pipeline) == {"remote": ("logs", "traces"), "files": None}
    described = describe(pipeline)
    assert {one["node"]: one["receives"] for one in described["exporters"]} == {
        "remote": "logs and traces",
        "files": "everything",
    }
    assert described["says"] == ["remote receives only logs and traces.", "files receives everything."]


def test_a_connection_filters_too():
    """Connections in a row, and the exporter at their end, intersect."""
    pipeline = load(
        edge("in", "buffer"),
        edge("buffer", "errors", "logs", "metrics"),
        edge("errors", "files", "logs"),
        edge("buffer", "remote", "traces", "metrics"),
        remote=["metrics"],
    )

    assert routes(pipeline) == {"files": ("logs",), "remote": ("metrics",)}


def test_both_halves_of_a_staged_route_filter():
    """The processors get only these signals, and so does the buffer after them."""
    pipeline = load(edge("in", "buffer"), edge("buffer", "errors"), edge("errors", "remote"), remote=["logs"])

    assert routes(pipeline) == {"staged-remote": ("logs",), "remote": ("logs",)}


def test_a_port_has_signals():
    """In the older form of the file."""
    text = """
nodes:
  in: {kind: receiver, plugin_urn: "urn:otel:otlp:receiver", config: {listening_addr: "127.0.0.1:4317"},
       out_ports: {out: {destinations: [buffer]}}}
  buffer:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    config: {path: data/buffer}
    out_ports:
      logs: {destinations: [remote], signals: [logs]}
      rest: {destinations: [other], signals: [traces, metrics]}
  remote: {kind: exporter, plugin_urn: "urn:otel:otlp:exporter", config: {grpc_endpoint: "http://127.0.0.1:1"}}
  other: {kind: exporter, plugin_urn: "urn:otel:otlp:exporter", config: {grpc_endpoint: "http://127.0.0.1:2"}}
"""
    pipeline = load_pipeline(text, source="p.yaml", values={})[0]

    assert routes(pipeline) == {"remote": ("logs",), "other": ("traces", "metrics")}
    with pytest.raises(PipelineError, match=r"p.yaml:10: signals: there is no signal log; known are logs") as caught:
        load_pipeline(text.replace("signals: [logs]", "signals: [log]"), source="p.yaml", values={})
    assert caught.value.line == 10


def test_a_signal_that_no_exporter_receives_is_reported():
    """A warning: another program may read the buffer. A receiver that may get any signal, or none, is not blamed."""
    pipeline = load(edge("in", "buffer"), edge("buffer", ["remote", "other"]), remote=["logs"], other=["metrics"])

    (warning,) = [one for one in describe(pipeline)["says"] if one.startswith("Warning")]
    assert warning.startswith(
        "Warning: no exporter after buffer receives traces, which in accepts: this data is stored"
    )
    complete = load(edge("in", "buffer"), edge("buffer", ["remote", "other"]), remote=["logs"])
    from_topic = load(edge("topic", "buffer"), edge("buffer", "remote"), remote=["logs"])
    without_exporter = load(edge("in", "buffer"))
    for quiet in (complete, from_topic, without_exporter):
        assert not [one for one in describe(quiet)["says"] if "no exporter after" in one]


def test_a_processor_may_turn_one_signal_into_another():
    """So what follows it is not counted as missing."""
    pipeline = load(edge("in", "buffer"), edge("buffer", "errors"), edge("errors", "remote"), remote=["logs"])

    (warning,) = [one for one in describe(pipeline)["says"] if one.startswith("Warning")]
    assert "receives traces and metrics" in warning


@pytest.mark.parametrize(
    ("connections", "signals", "reason"),
    [
        ([edge("in", "buffer"), edge("buffer", "remote", "logs")], {"remote": ["traces"]},
         "remote receives traces, but its connections let pass only logs"),
        ([edge("in", "buffer"), edge("buffer", "errors", "logs"), edge("errors", "files", "traces")], {},
         "no signal passes from buffer to files: files would receive only logs"),
        ([edge("in", "buffer", "logs"), edge("buffer", "remote")], {},
         "in stores all that it receives: write signals on a connection that leaves buffer"),
        ([edge("in", "buffer"), edge("buffer", "sql"), edge("sql", "files")], {"files": ["logs"]},
         "query: there is no table spans here"),
        ([edge("in", "buffer"), edge("buffer", "remote")], {"remote": "logs"}, "signals must be a list"),
        ([edge("in", "buffer"), edge("buffer", "remote")], {"remote": ["spans"]}, "no signal spans; did you mean"),
        ([edge("in", "buffer"), edge("buffer", "remote")], {"remote": []}, "an empty list would deliver nothing"),
    ],
)  # fmt: skip
def test_a_route_that_delivers_nothing_is_refused(connections, signals, reason):
    """With the line of the key."""
    with pytest.raises(PipelineError, match=reason) as caught:
        load(*connections, **signals)
    assert caught.value.line > 1


def test_receivers_with_different_filters_have_different_buffers():
    """Without a persistence node, a connection that leaves a receiver is the start of a route."""
    pipeline = load(edge("in", "errors", "logs"), edge("errors", "remote"), edge("topic", "files"))

    assert {buffer.name: [route.signals for route in buffer.routes] for buffer in pipeline.buffers} == {
        "memory-in": [("logs",)],
        "memory-topic": [None],
        "staged-remote": [None],
    }


def test_signals_change_without_a_restart():
    """SIGHUP applies them; only queries whose route changed are restarted."""
    both = edge("in", "buffer"), edge("buffer", ["remote", "files"])
    old, other, query = load(*both), load(*both, remote=["logs"]), load(*both, files=["logs"])

    assert needs_restart(old, other) == needs_restart(old, query) == []
    assert (changed_queries(old, other), changed_queries(old, query)) == (False, True)
