"""The buffers and routes that result from a graph of nodes."""

from itertools import pairwise
from pathlib import Path

import pytest

from quiver.errors import PipelineError
from quiver.pipeline.descriptions.words import in_words
from quiver.pipeline.diagram import as_mermaid, as_text
from quiver.pipeline.explain import describe, promises
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.model import memory_directory

CONFIGS = {
    "otlp": ("receiver", "urn:otel:otlp:receiver", '{listening_addr: "127.0.0.1:4317"}'),
    "second": ("receiver", "urn:otel:otlp:receiver", '{listening_addr: "127.0.0.1:4318"}'),
    "persistence": ("processor", "urn:otap:processor:persistence", "{path: data/buffer, retention: {size_cap: 1GiB}}"),
    "late": ("processor", "urn:otap:processor:persistence", "{path: data/late}"),
    "errors": ("processor", "urn:quiver:filter:processor", '{keep: "severity_number >= 17"}'),
    "redact": ("processor", "urn:quiver:redact:processor", '{keys: ["password"]}'),
    "parquet": ("exporter", "urn:quiver:parquet:exporter", "{path: out}"),
    "console": ("exporter", "urn:quiver:console:exporter", "{}"),
    "files": ("exporter", "urn:quiver:file:exporter", "{path: files}"),
    "remote": ("exporter", "urn:otel:otlp:exporter", '{grpc_endpoint: "http://127.0.0.1:14317"}'),
}


def written(*ways, more=""):
    """Return the pipeline file of a graph; each path is `a > b > c`."""
    edges = {}
    for way in ways:
        names = [name.strip() for name in way.split(">")]
        for name in names:
            edges.setdefault(name, [])
        for here, there in pairwise(names):
            if there not in edges[here]:
                edges[here].append(there)
    lines = ["nodes:"]
    for name, destinations in edges.items():
        kind, urn, config = CONFIGS[name]
        ports = f", out_ports: {{out_port: {{destinations: [{', '.join(destinations)}]}}}}" if destinations else ""
        lines.append(f'  {name}: {{kind: {kind}, plugin_urn: "{urn}"{ports}, config: {config}}}')
    return "\n".join([*lines, more])


def load(*ways, more=""):
    return load_pipeline(written(*ways, more=more), source="p.yaml", values={})[0]


def shape(pipeline):
    """Return the kind, the inputs and the routes of each buffer."""
    return {
        buffer.name: (
            buffer.kind,
            [node.name for node in buffer.receivers],
            {route.name: [node.name for node in route.processors] for route in buffer.routes},
        )
        for buffer in pipeline.buffers
    }


def test_one_buffer_feeds_two_exporters():
    """Early persistence: each exporter has its own route."""
    pipeline = load("otlp > persistence > parquet", "second > persistence > remote")

    assert shape(pipeline) == {"persistence": ("persistence", ["otlp", "second"], {"parquet": [], "remote": []})}
    assert [name for name, _ in pipeline.queries] == ["parquet"]
    assert [name for name, _ in pipeline.forwarders] == ["remote"]


def test_processors_belong_to_routes():
    """To those through them; another exporter receives all data unprocessed."""
    pipeline = load("otlp > persistence > errors > redact > console", "persistence > parquet", "errors > files")

    assert shape(pipeline)["persistence"][2] == {"console": ["errors", "redact"], "files": ["errors"], "parquet": []}
    assert len(pipeline.queries) == 3


def test_exporters_of_bundles_have_a_buffer_after_processors():
    """Rows are converted back to requests and stored in a companion store."""
    pipeline = load("otlp > persistence > redact > remote", "redact > parquet")

    assert shape(pipeline) == {
        "persistence": (
            "persistence",
            ["otlp"],
            {"staged-remote": ["redact"], "parquet": ["redact"]},
        ),
        "staged-remote": ("staged", [], {"remote": []}),
    }
    staged = pipeline.buffers[1]
    assert staged.config.path == "data/buffer.staged-remote"
    assert pipeline.routes["staged-remote"].config.path == "data/buffer.staged-remote"
    assert staged.config.settings == pipeline.persistence.settings


def test_late_persistence_has_two_buffers():
    """Received data are durable until they are processed; processed data are buffered again."""
    pipeline = load("otlp > redact > persistence > remote")

    assert shape(pipeline) == {
        "intake": ("intake", ["otlp"], {"persistence": ["redact"]}),
        "persistence": ("persistence", [], {"remote": []}),
    }
    assert pipeline.buffers[0].config.path == "data/buffer.intake"
    assert pipeline.persistence.path == "data/buffer"
    assert pipeline.is_durable
    assert "with the same durability as in persistence" in " ".join(promises(pipeline))


def test_early_and_late_persistence_can_be_combined():
    """One store before the processors, one after them."""
    pipeline = load("otlp > persistence > redact > late > remote", "persistence > parquet")

    assert shape(pipeline) == {
        "persistence": ("persistence", ["otlp"], {"late": ["redact"], "parquet": []}),
        "late": ("persistence", [], {"remote": []}),
    }


def test_without_a_persistence_node_the_buffer_is_in_memory(tmp_path):
    """It has a cap, and the description mentions it; its path depends only on the run directory."""
    pipeline = load("otlp > console", "otlp > redact > remote", more="memory: {size_cap: 64MiB}")

    assert {name: kind for name, (kind, _, _) in shape(pipeline).items()} == {
        "memory": "memory",
        "staged-remote": "memory",
    }
    assert not pipeline.is_durable
    settings = pipeline.buffers[0].config.settings
    assert (settings.durability, settings.size_cap_bytes) == ("segment_only", 64 * 1024 * 1024)
    (lines,) = [one for one in promises(pipeline) if "no persistence node" in one]
    assert "up to 64 MiB wait in memory" in lines
    placed = pipeline.placed(tmp_path)
    assert [Path(one.config.path).parent for one in placed.buffers] == [memory_directory(tmp_path)] * 2
    assert placed.routes["staged-remote"].config.path == placed.buffers[1].config.path
    assert memory_directory(tmp_path) != memory_directory(tmp_path / "other")


def test_receivers_with_different_destinations_have_different_buffers():
    """Their data are not mixed."""
    pipeline = load("otlp > console", "second > files")

    assert shape(pipeline) == {
        "memory-otlp": ("memory", ["otlp"], {"console": []}),
        "memory-second": ("memory", ["second"], {"files": []}),
    }


@pytest.mark.parametrize(
    ("ways", "reason"),
    [
        (
            ["otlp > persistence > errors > console", "persistence > redact > console"],
            "console is reached over two routes",
        ),
        (["otlp > persistence > errors > redact > console", "errors > console"], "console is reached over two routes"),
        (["otlp > persistence > console", "otlp > parquet"], "feed parquet from persistence"),
        (["otlp > persistence > late > console"], "are both persistence nodes"),
        (["otlp > persistence > errors"], "errors has no destinations; its data would be lost"),
        (["otlp"], "otlp has no destinations; its data would be lost"),
        (["otlp > persistence > parquet > console"], "parquet is an exporter and cannot have destinations"),
        (["persistence > console"], "no node feeds persistence"),
        (["otlp > errors > second"], "errors is a processor and cannot feed second, a receiver"),
        (["otlp > errors > redact > errors"], "form a cycle: errors → redact → errors"),
    ],
)
def test_invalid_graphs_are_refused(ways, reason):
    """The error names the nodes."""
    with pytest.raises(PipelineError, match=reason):
        load(*ways)


def diamonds(count, end):
    """Return a chain of processors with 2 to the power of *count* paths."""
    ways = [f"otlp > a0 > b0 > a{count} > {end}"]
    for at in range(count):
        ways += [f"a{at} > b{at} > a{at + 1}", f"a{at} > c{at} > a{at + 1}"]
    return ways


def test_a_graph_with_too_many_paths_is_refused_immediately(monkeypatch):
    """The paths are not enumerated."""
    step = CONFIGS["errors"]
    for name in (f"{letter}{at}" for letter in "abc" for at in range(61)):
        monkeypatch.setitem(CONFIGS, name, step)

    with pytest.raises(PipelineError, match="console is reached over two routes"):
        load(*diamonds(60, "console"))


def test_a_graph_with_too_many_nodes_is_refused(monkeypatch):
    """Without exhausting the stack."""
    names = [f"step{at}" for at in range(250)]
    for name in names:
        monkeypatch.setitem(CONFIGS, name, CONFIGS["errors"])

    with pytest.raises(PipelineError, match="there are 252 nodes; a pipeline has at most 200"):
        load(" > ".join(["otlp", *names, "console"]))


@pytest.mark.parametrize(
    ("ways", "like", "named"),
    [
        (["otlp > errors > intake > console"], {"intake": "persistence"}, "intake"),
        (["otlp > persistence > errors > remote", "persistence > staged-remote"], {"staged-remote": "console"}, None),
        (["otlp > persistence > errors > {a}", "persistence > redact > {b}"], {"{a}": "remote", "{b}": "remote"}, None),
    ],
)
def test_a_node_may_not_have_the_name_of_a_generated_buffer(ways, like, named, monkeypatch):
    """They would share a directory or a subscriber, so one would lose data to the other."""
    long = {"{a}": "x" * 63 + "a", "{b}": "x" * 63 + "b"}
    for name, other in like.items():
        monkeypatch.setitem(CONFIGS, long.get(name, name), CONFIGS[other])
    for short, name in long.items():
        ways = [way.replace(short, name) for way in ways]

    with pytest.raises(PipelineError, match=f"is named {named or 'staged-'}.* here; rename"):
        load(*ways)


def test_memory_with_a_persistence_node_is_refused():
    """It would have no effect."""
    with pytest.raises(PipelineError, match="memory has no effect"):
        load("otlp > persistence > console", more="memory: {size_cap: 64MiB}")


def test_a_graph_is_drawn_as_text():
    """The inputs of a buffer are on the left, its routes below it."""
    drawn = as_text(load("otlp > persistence > errors > console", "second > persistence > parquet"))

    assert drawn == (
        "otlp   ─┐\n"
        "second ─┴▶ [persistence]\n"
        "           ├─▶ errors ─▶ console\n"
        "           └─▶ parquet"
    )  # fmt: skip


def test_several_buffers_are_drawn_one_after_the_other():
    """Those that were not configured are in parentheses."""
    assert as_text(load("otlp > redact > persistence > remote")) == (
        "otlp ──▶ (intake)\n"
        "         └─▶ redact ─▶ [persistence]\n"
        "[persistence]\n"
        "  └─▶ remote"
    )  # fmt: skip


def test_a_graph_is_drawn_for_mermaid():
    """Each node once, with its shape; each arrow once."""
    drawn = as_mermaid(load("otlp > persistence > errors > console", "errors > files"))

    assert drawn.splitlines() == [
        "flowchart LR",
        '    n_persistence[("persistence<br/>data/buffer")]',
        '    n_otlp(["otlp"]) --> n_persistence',
        '    n_persistence --> n_errors["errors"] --> n_console>"console"]',
        '    n_persistence --> n_errors --> n_files>"files"]',
    ]


def test_the_description_covers_every_node():
    """Addresses and security, limits and durability, processors, subscribers and retries."""
    described = describe(load("otlp > persistence > errors > console", "persistence > remote"))

    (receiver,) = described["receivers"]
    assert (receiver["grpc"], receiver["security"]) == ("127.0.0.1:4317", "plain text, this machine only")
    (buffer,) = described["buffers"]
    assert (buffer["holds_at_most_bytes"], buffer["durability"]) == (1024**3, "wal")
    assert (buffer["seals_at_bytes"], buffer["seals_after_s"]) == (32 * 1024**2, 1.0)
    assert in_words(buffer)["seals at"] == "32 MiB"
    assert "kind" in in_words(buffer)
    assert described["processors"] == [{"node": "errors", "does": "filter: keep: severity_number >= 17"}]
    assert [(one["subscriber"], one["through"], one["runs_in"], one["receives"]) for one in described["exporters"]] == [
        ("console", ["errors"], "spark", "everything"),
        ("remote", [], "ingest", "everything"),
    ]
    assert in_words(described["exporters"][1])["retry"].startswith("after 1 s, later up to 30 s")


def test_a_loop_through_an_exporter_is_a_warning():
    """A pipeline that feeds itself fills its disk; the example of the architecture document does that."""
    text = written("otlp > persistence > remote").replace("127.0.0.1:14317", "localhost:4317")
    pipeline, _ = load_pipeline(text, source="p.yaml", values={})

    assert "Warning: remote sends to http://localhost:4317, where otlp listens" in " ".join(promises(pipeline))


def test_an_unprotected_public_port_is_a_warning():
    """If `insecure: true` allows it; neither for a local port nor for a protected one."""
    tls = "tls: {cert_file: a, key_file: b}, auth: {bearer: {token: c}}"
    metrics = 'metrics: {listen: "0.0.0.0:9000", insecure: true}'
    text = written("otlp > persistence", "second > persistence", more=metrics)
    text = text.replace('"127.0.0.1:4317"', '"0.0.0.0:4317", insecure: true')
    reported = promises(load_pipeline(text, source="p.yaml", values={})[0])
    safe = text.replace("insecure: true}", f"insecure: true, {tls}}}", 1)

    reach = "which other machines can reach, without tls and auth"
    assert [one for one in reported if one.startswith("Warning")] == [
        f"Warning: otlp listens on 0.0.0.0:4317, {reach} (or tls.client_ca_file), as insecure: true allows.",
        f"Warning: metrics listens on 0.0.0.0:9000, {reach}, as insecure: true allows.",
    ]
    assert "otlp listens" not in " ".join(promises(load_pipeline(safe, source="p.yaml", values={})[0]))
