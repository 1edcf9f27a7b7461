"""Which buffers a graph of nodes becomes, and which routes lead out of each."""

from itertools import pairwise
from pathlib import Path

import pytest

from quiver.errors import PipelineError
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
    """The file of a graph: each way is `a > b > c`."""
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
    """Kind, who fills it, and the routes of each buffer."""
    return {
        buffer.name: (
            buffer.kind,
            [node.name for node in buffer.receivers],
            {route.name: [node.name for node in route.processors] for route in buffer.routes},
        )
        for buffer in pipeline.buffers
    }


def test_one_buffer_and_two_exporters():
    """Early persistence: each exporter is a route of its own."""
    pipeline = load("otlp > persistence > parquet", "second > persistence > remote")

    assert shape(pipeline) == {"persistence": ("persistence", ["otlp", "second"], {"parquet": [], "remote": []})}
    assert [name for name, _ in pipeline.queries] == ["parquet"]
    assert [name for name, _ in pipeline.forwarders] == ["remote"]


def test_processors_stand_between():
    """They belong to the routes that pass them; another exporter gets everything all the same."""
    pipeline = load("otlp > persistence > errors > redact > console", "persistence > parquet", "errors > files")

    assert shape(pipeline)["persistence"][2] == {"console": ["errors", "redact"], "files": ["errors"], "parquet": []}
    assert len(pipeline.queries) == 3


def test_what_takes_bundles_gets_a_buffer_behind_processors():
    """Rows become requests again and wait in a store beside the first one."""
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


def test_late_persistence():
    """What is received waits durably until it is processed; what is processed is buffered again."""
    pipeline = load("otlp > redact > persistence > remote")

    assert shape(pipeline) == {
        "intake": ("intake", ["otlp"], {"persistence": ["redact"]}),
        "persistence": ("persistence", [], {"remote": []}),
    }
    assert pipeline.buffers[0].config.path == "data/buffer.intake"
    assert pipeline.persistence.path == "data/buffer"
    assert pipeline.is_durable
    assert "as durable as persistence" in " ".join(promises(pipeline))


def test_early_and_late_persistence():
    """One store before the processors, one behind them."""
    pipeline = load("otlp > persistence > redact > late > remote", "persistence > parquet")

    assert shape(pipeline) == {
        "persistence": ("persistence", ["otlp"], {"late": ["redact"], "parquet": []}),
        "late": ("persistence", [], {"remote": []}),
    }


def test_without_a_persistence_node_all_is_in_memory(tmp_path):
    """Bounded, and said so; its place hangs on the run directory alone."""
    pipeline = load("otlp > console", "otlp > redact > remote", more="memory: {size_cap: 64MiB}")

    assert {name: kind for name, (kind, _, _) in shape(pipeline).items()} == {
        "memory": "memory",
        "staged-remote": "memory",
    }
    assert not pipeline.is_durable
    settings = pipeline.buffers[0].config.settings
    assert (settings.durability, settings.size_cap_bytes) == ("segment_only", 64 * 1024 * 1024)
    (said,) = [one for one in promises(pipeline) if "no persistence node" in one]
    assert "up to 64 MiB wait in memory" in said
    placed = pipeline.placed(tmp_path)
    assert [Path(one.config.path).parent for one in placed.buffers] == [memory_directory(tmp_path)] * 2
    assert placed.routes["staged-remote"].config.path == placed.buffers[1].config.path
    assert memory_directory(tmp_path) != memory_directory(tmp_path / "other")


def test_receivers_with_other_destinations_have_other_buffers():
    """They are not mixed."""
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
def test_graphs_that_make_no_sense_are_refused(ways, reason):
    """In words that name the nodes."""
    with pytest.raises(PipelineError, match=reason):
        load(*ways)


def diamonds(count, end):
    """A chain of processors that is passed in 2 to the power of *count* ways."""
    ways = [f"otlp > a0 > b0 > a{count} > {end}"]
    for at in range(count):
        ways += [f"a{at} > b{at} > a{at + 1}", f"a{at} > c{at} > a{at + 1}"]
    return ways


def test_a_graph_with_more_ways_than_can_be_counted_is_refused_at_once(monkeypatch):
    """Nobody walks them all."""
    step = CONFIGS["errors"]
    for name in (f"{letter}{at}" for letter in "abc" for at in range(61)):
        monkeypatch.setitem(CONFIGS, name, step)

    with pytest.raises(PipelineError, match="console is reached over two routes"):
        load(*diamonds(60, "console"))


def test_a_graph_has_an_end(monkeypatch):
    """A chain longer than anybody writes by hand is refused, and does not exhaust the stack."""
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
def test_a_node_is_not_called_like_a_buffer_that_is_made(ways, like, named, monkeypatch):
    """Both would have one directory, or be one subscriber: what is for one would be lost to the other."""
    long = {"{a}": "x" * 63 + "a", "{b}": "x" * 63 + "b"}
    for name, other in like.items():
        monkeypatch.setitem(CONFIGS, long.get(name, name), CONFIGS[other])
    for short, name in long.items():
        ways = [way.replace(short, name) for way in ways]

    with pytest.raises(PipelineError, match=f"is named {named or 'staged-'}.* here; rename"):
        load(*ways)


def test_memory_beside_a_persistence_node_is_refused():
    """It would have no effect."""
    with pytest.raises(PipelineError, match="memory has no effect"):
        load("otlp > persistence > console", more="memory: {size_cap: 64MiB}")


def test_the_graph_is_drawn_as_text():
    """What fills a buffer on the left, the routes below."""
    drawn = as_text(load("otlp > persistence > errors > console", "second > persistence > parquet"))

    assert drawn == (
        "otlp   ─┐\n"
        "second ─┴▶ [persistence]\n"
        "           ├─▶ errors ─▶ console\n"
        "           └─▶ parquet"
    )  # fmt: skip


def test_the_graph_of_several_buffers_is_drawn_one_after_the_other():
    """Those that stand in no file are in round brackets."""
    assert as_text(load("otlp > redact > persistence > remote")) == (
        "otlp ──▶ (intake)\n"
        "         └─▶ redact ─▶ [persistence]\n"
        "[persistence]\n"
        "  └─▶ remote"
    )  # fmt: skip


def test_the_graph_is_drawn_for_mermaid():
    """Each node once, with its shape; each arrow once."""
    drawn = as_mermaid(load("otlp > persistence > errors > console", "errors > files"))

    assert drawn.splitlines() == [
        "flowchart LR",
        '    n_persistence[("persistence<br/>data/buffer")]',
        '    n_otlp(["otlp"]) --> n_persistence',
        '    n_persistence --> n_errors["errors"] --> n_console>"console"]',
        '    n_persistence --> n_errors --> n_files>"files"]',
    ]


def test_what_each_node_does_is_told():
    """Addresses and security, limits and durability, processors, subscribers and retries."""
    told = describe(load("otlp > persistence > errors > console", "persistence > remote"))

    (receiver,) = told["receivers"]
    assert (receiver["grpc"], receiver["security"]) == ("127.0.0.1:4317", "plain text, this machine only")
    (buffer,) = told["buffers"]
    assert (buffer["holds_at_most"], buffer["durability"], buffer["seals"]) == (
        "1 GiB",
        "wal",
        "at 32 MiB or after 1 s",
    )
    assert told["processors"] == [{"node": "errors", "does": "filter: keep: severity_number >= 17"}]
    assert [(one["subscriber"], one["through"], one["runs_in"], one["receives"]) for one in told["exporters"]] == [
        ("console", ["errors"], "spark", "everything"),
        ("remote", [], "ingest", "everything"),
    ]
    assert told["exporters"][1]["retry"].startswith("after 1 s, up to 30 s")


def test_an_exporter_that_sends_back_is_warned_of():
    """A pipeline that feeds itself fills its disk; the architecture document's own example does."""
    text = written("otlp > persistence > remote").replace("127.0.0.1:14317", "localhost:4317")
    pipeline, _ = load_pipeline(text, source="p.yaml", values={})

    assert "Beware: remote sends to http://localhost:4317, where otlp listens" in " ".join(promises(pipeline))


def test_a_port_that_others_reach_unprotected_is_warned_of():
    """By `insecure: true`; not one on this machine, nor one that lacks nothing."""
    tls = "tls: {cert_file: a, key_file: b}, auth: {bearer: {token: c}}"
    metrics = 'metrics: {listen: "0.0.0.0:9000", insecure: true}'
    text = written("otlp > persistence", "second > persistence", more=metrics)
    text = text.replace('"127.0.0.1:4317"', '"0.0.0.0:4317", insecure: true')
    said = promises(load_pipeline(text, source="p.yaml", values={})[0])
    safe = text.replace("insecure: true}", f"insecure: true, {tls}}}", 1)

    reach = "where others can reach it, without tls and auth"
    assert [one for one in said if one.startswith("Beware")] == [
        f"Beware: otlp listens on 0.0.0.0:4317, {reach} (or tls.client_ca_file), as insecure: true allows.",
        f"Beware: metrics listens on 0.0.0.0:9000, {reach}, as insecure: true allows.",
    ]
    assert "otlp listens" not in " ".join(promises(load_pipeline(safe, source="p.yaml", values={})[0]))
