"""A reload can change exporters, processors and the log level; settings of open stores and ports need a restart."""

import pytest

from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.processes.reload import changed_queries, describe_changes, needs_restart

TEXT = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out_port: {destinations: [persistence]}}
    config: {listening_addr: "127.0.0.1:4317"}
  persistence:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {out_port: {destinations: [remote, errors]}}
    config: {path: buffer, retention: {size_cap: 4GiB}}
  errors:
    kind: processor
    plugin_urn: "urn:quiver:filter:processor"
    out_ports: {out_port: {destinations: [console]}}
    config: {keep: "severity_number >= 17"}
  console: {kind: exporter, plugin_urn: "urn:quiver:console:exporter"}
  remote:
    kind: exporter
    plugin_urn: "urn:otel:otlp:exporter"
    config: {grpc_endpoint: "http://127.0.0.1:14317"}
"""

MORE = """\
  more: {kind: exporter, plugin_urn: "urn:quiver:console:exporter"}
"""


def load(text):
    return load_pipeline(text, source="p.yaml", values={})[0]


def changed(old, new):
    assert TEXT.count(old) == 1, old
    return load(TEXT.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "words", "queries"),
    [
        ("14317", "14318", "remote changed", False),
        ('14317"', '14317", retry: {max_attempts: 3}', "remote changed", False),
        (">= 17", ">= 13", "console changed", True),
        ("[console]", "[console, more]", "more comes", True),
        ("[remote, errors]", "[remote, more, errors]", "more comes", True),
        ("nodes:", "log_level: debug\nnodes:", "log_level is debug", False),
        ("nodes:", "spark: {config: {spark.executor.memory: 2g}}\nnodes:", "spark changed", True),
        ("nodes:", "nodes:", "nothing changed in the file; certificates and credentials were read again", False),
    ],
)
def test_these_changes_need_no_restart(old, new, words, queries):
    """And `changed_queries` indicates whether the Spark process is affected."""
    text = TEXT.replace(old, new) + (MORE if "more" in new else "")
    before, after = load(TEXT), load(text)

    assert needs_restart(before, after) == []
    assert describe_changes(before, after) == words
    assert changed_queries(before, after) is queries


def test_a_removed_exporter_remains_a_subscriber():
    """Its pending data are kept until a user drops it."""
    without = TEXT.replace("[remote, errors]", "[errors]")
    after = load(without[: without.index("  remote:")])

    assert needs_restart(load(TEXT), after) == []
    assert describe_changes(load(TEXT), after) == "remote goes; it stays a subscriber until it is dropped"


@pytest.mark.parametrize(
    ("old", "new", "reasons"),
    [
        ("127.0.0.1:4317", "127.0.0.1:4318", ["receiver otlp: listening_addr changed"]),
        ("path: buffer", "path: other", ["persistence: path changed"]),
        ("size_cap: 4GiB", "size_cap: 5GiB", ["persistence: size_cap_bytes changed"]),
        ("nodes:", 'metrics: {listen: "127.0.0.1:9464"}\nnodes:', ["metrics changed"]),
        ("[console]", "[console, remote]", None),
    ],
)
def test_changes_that_need_a_restart_are_listed(old, new, reasons):
    """All of them at once."""
    text = TEXT.replace(old, new)
    if reasons is None:
        # After a processor, the exporter reads from its own store.
        text = text.replace("[remote, errors]", "[errors]")
        reasons = ["staged-remote comes, which is a store of its own"]

    assert needs_restart(load(TEXT), load(text)) == reasons
