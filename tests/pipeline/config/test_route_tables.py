"""Processors and exporters of a table that never reaches them are refused, because they would have no effect."""

from itertools import pairwise

import pytest

from quiver.errors import PipelineError
from quiver.pipeline.config.processor import PROCESSORS_GROUP
from quiver.pipeline.graph import load_pipeline

FILE = """\
version: otel_dataflow/v1
groups:
  a:
    pipelines:
      b:
        nodes:
          in: {type: receiver:otlp, config: {listening_addr: "127.0.0.1:4317"}}
          store: {type: processor:persistence, config: {path: buffer}}
NODES
        connections:
          - {from: in, to: store}
WAYS
"""

ERRORS = "{type: processor:sql, config: {query: SELECT * FROM logs, output: errors}}"
CONSOLE = "{type: exporter:console}"


def load(nodes, *ways):
    """Return the pipeline of *nodes*, connected by *ways*: `store > step > out`."""
    found = [way.split(" > ") for way in ways or ("store > step > out",)]
    pairs = dict.fromkeys(pair for way in found for pair in pairwise(way))
    lines = [f"          {name}: {node}" for name, node in nodes.items()]
    text = FILE.replace("NODES", "\n".join(lines))
    text = text.replace("WAYS", "\n".join(f"          - {{from: {one}, to: {other}}}" for one, other in pairs))
    return load_pipeline(text, source="p.yaml", values={})[0]


def redact(more):
    return f"{{type: processor:redact, config: {{value_patterns: [secret], {more}}}}}"


def spark(tables):
    return f'{{type: exporter:spark, config: {{format: json, path: "out/{{table}}", tables: {tables}}}}}'


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (redact("signals: [traces]"), "signals: there is no table traces here; did you mean spans?"),
        (redact("signals: [logs, log]"), "signals: there is no table log here; did you mean logs?"),
        ("{type: processor:sample, config: {ratio: 0.5, signals: [x]}}", "x here; known are logs, metrics, spans"),
        ("{type: processor:sql, config: {query: SELECT 1 FROM input, signals: [errors]}}", "no table errors here"),
        (redact("columns: [statusmessage]"), "no column of text statusmessage here; did you mean status_message?"),
        (redact("columns: [severity_number]"), "no column of text severity_number here"),
    ],
)
def test_a_processor_for_an_unknown_table_is_refused(step, says):
    """Otherwise, data that must be redacted would pass unchanged."""
    with pytest.raises(PipelineError) as caught:
        load({"step": step, "out": CONSOLE})

    assert (caught.value.line, says in caught.value.reason) == (9, True)


def test_an_exporter_of_an_unknown_table_is_refused():
    """Otherwise, it would receive all data and write nothing."""
    with pytest.raises(PipelineError, match="tables: there is no table traces here; did you mean spans?"):
        load({"out": spark("[traces]")}, "store > out")
    assert load({"out": spark("[spans]")}, "store > out").routes["out"].config.tables == ("spans",)


def test_the_output_of_a_query_is_a_table_after_it():
    """Neither before it nor on another route."""
    late = redact("signals: [errors]")
    assert load({"step": ERRORS, "late": late, "out": spark("[errors]")}, "store > step > late > out")
    with pytest.raises(PipelineError, match="there is no table errors here"):
        load({"step": ERRORS, "late": late, "out": CONSOLE}, "store > late > step > out")
    with pytest.raises(PipelineError, match="there is no table errors here"):
        load({"step": ERRORS, "a": CONSOLE, "out": spark("[errors]")}, "store > step > a", "store > out")


def test_a_node_on_several_routes_may_use_the_tables_of_all():
    """On one of them it may have no effect."""
    nodes = {"step": ERRORS, "late": redact("signals: [errors]"), "a": CONSOLE, "out": CONSOLE}
    assert load(nodes | {"other": redact("signals: [logs]")}, "store > step > late > out", "store > other > a")


def test_columns_after_a_query_or_user_processor_are_not_checked(monkeypatch):
    """They are unknown before it runs."""

    class Entry:
        name, value = "urn:acme:tenant:processor", "acme:tenant"

    monkeypatch.setattr(
        "quiver.pipeline.config.processor.entry_points", lambda group: [Entry] if group == PROCESSORS_GROUP else []
    )
    text = redact("signals: [mine], columns: [mine]")
    own = '{type: "urn:acme:tenant:processor"}'
    assert load({"step": own, "late": text, "out": CONSOLE}, "store > step > late > out")
    assert load({"step": ERRORS, "late": redact("columns: [mine]"), "out": CONSOLE}, "store > step > late > out")
    columns = "severity_text, event_name, name, status_message, trace_state, scope_name"
    assert load({"step": redact(f"columns: [{columns}]"), "out": CONSOLE})
