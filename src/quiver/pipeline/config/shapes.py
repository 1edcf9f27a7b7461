"""
Read the two shapes of a pipeline file into one model: nodes, their plugins, and the edges between them.

In the shape of the architecture document, each node lists its destinations::

    nodes:
      otlp_receiver:
        kind: receiver
        plugin_urn: "urn:otel:otlp:receiver"
        out_ports: {out_port: {destinations: [persistence], dispatch_strategy: round_robin}}
        config: {}

The later shape has a version, puts the nodes of a pipeline into a group, and lists the connections separately::

    version: otel_dataflow/v1
    groups:
      default:
        pipelines:
          main:
            nodes:
              receiver: {type: receiver:otlp, config: {}}
            connections:
              - {from: receiver, to: durable_buffer}

A file of the later shape may have several pipelines. They are independent: no connection leads from one to another, and
the names of exporters and persistence nodes, which name subscribers and buffers, are unique in the file.

A `type` or `plugin_urn` may be written as any of `receiver:otlp`, `otlp:receiver`, `urn:otel:otlp:receiver` and
`urn:otel:receiver:otlp`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, NamedTuple, get_args

from quiver.errors import UsageError
from quiver.pipeline.config.parse import Document, Path, Problems, nearest
from quiver.pipeline.config.values import read_signals
from quiver.pipeline.plugins import NodeKind, Plugin, find_plugin, known_urns
from quiver.store.format.names import check_subscriber_id

__all__ = ["VERSION", "Edge", "RawNode", "Strategy", "read_nodes"]

VERSION = "otel_dataflow/v1"
NODES_MAX = 200

Strategy = str
"""How the instances of a destination share its input: `round_robin` or `broadcast`."""

_STRATEGIES = ("round_robin", "broadcast")
_COMMON_KEYS = ("metrics", "status", "memory", "disk", "cores", "log_level", "spark")
_TOP_KEYS = ("nodes", *_COMMON_KEYS)
_REFUSED_KEYS = ("settings", "policies")
_LATER_KEYS = ("version", "groups", "pipeline_groups", *_REFUSED_KEYS, *_COMMON_KEYS)
_GROUP_KEYS = ("pipelines", "policies")
_PIPELINE_KEYS = ("nodes", "connections", *_REFUSED_KEYS)
_NODE_KEYS = ("kind", "plugin_urn", "out_ports", "config")
_LATER_NODE_KEYS = ("type", "config")
_PORT_KEYS = ("destinations", "dispatch_strategy", "signals")
_CONNECTION_KEYS = ("from", "to", "dispatch_strategy", "signals")


class Edge(NamedTuple):
    """An edge between two nodes: its place in the file, the dispatch strategy, and the signals that pass; None: all."""

    path: Path
    strategy: Strategy = "round_robin"
    signals: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class RawNode:
    """
    A node as written in the file; its config is not validated yet.

    Attributes:
        name: a valid subscriber id.
        path: its place in the file.
        plugin: the plugin that its URN or type names.
        config: as written.
        edges: the nodes that it feeds, in file order.
        pipeline: the name of its pipeline if the file has several; empty otherwise.
        local_name: its name in its pipeline, if another pipeline has a node of that name, too; empty otherwise.
    """

    name: str
    path: Path
    plugin: Plugin
    config: Mapping[str, Any]
    edges: dict[str, Edge] = field(default_factory=dict)
    pipeline: str = ""
    local_name: str = ""


def read_nodes(document: Document, problems: Problems) -> dict[str, RawNode]:
    """
    Return the nodes of *document*, in either shape; the errors of single nodes and connections are added to *problems*.

    Raises:
        PipelineError: the file has no nodes that could be read.
    """
    top = mapping(document, (), document.value, "the pipeline")
    if {"version", "groups", "pipeline_groups"} & top.keys():
        return _later(document, top, problems)
    _known(document, (), top, _TOP_KEYS, problems)
    if "nodes" not in top:
        raise document.invalid((), "nodes is missing")
    raw = _nodes(document, ("nodes",), top["nodes"])
    found: dict[str, RawNode] = {}
    for name, value in raw.items():
        path: Path = ("nodes", name)
        with problems:
            inside = mapping(document, path, value, f"node {name}")
            _known(document, path, inside, _NODE_KEYS, problems)
            with problems:
                found[name] = _node(document, name, path, inside, _plugin(document, path, inside))
            edges = _ports(document, path, inside.get("out_ports"), raw, problems)
            if name in found:
                found[name].edges.update(edges)
    return found


def mapping(document: Document, path: Path, value: Any, what: str) -> dict[str, Any]:
    """
    Return *value* if it is a mapping.

    Raises:
        PipelineError: it is not a mapping; *what* names the value in the message.
    """
    if not isinstance(value, dict):
        raise document.invalid(path, f"{what} must be a mapping of keys to values")
    return value


def _known(document: Document, path: Path, value: Mapping[str, Any], keys: tuple[str, ...], problems: Problems) -> None:
    known = {*keys}
    unknown = Problems()
    for key in value:
        if key not in known:
            unknown.add(document.invalid((*path, key), f"unknown key {key}{nearest(key, known)}"))
    if any(get_close_matches(key, known - value.keys(), n=1) for key in value.keys() - known):
        unknown.raise_found()  # a key is misspelled: without it, the rest cannot be judged
    with problems:
        unknown.raise_found()


def _nodes(document: Document, path: Path, value: Any) -> dict[str, Any]:
    raw = mapping(document, path, value, "nodes")
    if not raw:
        raise document.invalid(path, "there are no nodes")
    if len(raw) > NODES_MAX:
        raise document.invalid(path, f"there are {len(raw)} nodes; a pipeline has at most {NODES_MAX}")
    return raw


def _node(document: Document, name: str, path: Path, raw: Mapping[str, Any], plugin: Plugin) -> RawNode:
    try:
        check_subscriber_id(name)
    except UsageError as error:
        raise document.invalid(path, f"a node cannot be named {name!r}: {error}") from error
    config = raw.get("config")
    inside = mapping(document, (*path, "config"), {} if config is None else config, "config")
    return RawNode(name, path, plugin, inside)


# ── the document's shape ─────────────────────────────────────────────────────────────────────────────


def _plugin(document: Document, path: Path, raw: Mapping[str, Any]) -> Plugin:
    for key in ("kind", "plugin_urn"):
        if not isinstance(raw.get(key), str):
            raise document.invalid((*path, key), f"{key} is missing" if key not in raw else f"{key} must be a word")
    kind, urn = raw["kind"], raw["plugin_urn"]
    kinds = get_args(NodeKind)
    if kind not in kinds:
        raise document.invalid((*path, "kind"), f"unknown kind {kind}{nearest(kind, kinds)}")
    plugin = _found(document, (*path, "plugin_urn"), "plugin_urn", urn)
    if plugin.kind != kind:
        raise document.invalid((*path, "kind"), f"{urn} is of kind {plugin.kind}, not {kind}")
    return plugin


def _found(document: Document, path: Path, key: str, urn: str) -> Plugin:
    plugin = find_plugin(urn)
    if plugin is not None:
        return plugin
    raise document.invalid(path, f"unknown {key} {urn}{nearest(urn, known_urns())}")


def _ports(document: Document, path: Path, ports: Any, names: Mapping[str, Any], problems: Problems) -> dict[str, Edge]:
    if ports is None:
        return {}
    found: dict[str, Edge] = {}
    here: Path = (*path, "out_ports")
    for port, value in mapping(document, here, ports, "out_ports").items():
        inside = mapping(document, (*here, port), value, f"port {port}")
        _known(document, (*here, port), inside, _PORT_KEYS, problems)
        strategy = _strategy(document, (*here, port), inside)
        signals = _signals(document, (*here, port), inside)
        listed = inside.get("destinations")
        if not isinstance(listed, list):
            raise document.invalid((*here, port, "destinations"), "destinations must be a list of node names")
        for index, destination in enumerate(listed):
            spot: Path = (*here, port, "destinations", index)
            with problems:
                _add_edge(document, found, destination, Edge(spot, strategy, signals), {name: name for name in names})
    return found


def _strategy(document: Document, path: Path, raw: Mapping[str, Any]) -> Strategy:
    strategy = raw.get("dispatch_strategy", "round_robin")
    if strategy not in _STRATEGIES:
        reason = f"unknown dispatch_strategy {strategy}{nearest(str(strategy), _STRATEGIES)}"
        raise document.invalid((*path, "dispatch_strategy"), reason)
    return str(strategy)


def _signals(document: Document, path: Path, raw: Mapping[str, Any]) -> tuple[str, ...] | None:
    try:
        return read_signals(raw.get("signals"))
    except ValueError as error:
        raise document.invalid((*path, "signals"), str(error)) from error


def _add_edge(
    document: Document, found: dict[str, Edge], destination: Any, edge: Edge, names: Mapping[str, str]
) -> None:
    """Add an edge to *destination*; *names* are the names of nodes in the file, each with its name in the model."""
    if not isinstance(destination, str) or destination not in names:
        reason = f"there is no node named {destination}{nearest(str(destination), names)}"
        raise document.invalid(edge.path, reason)
    if names[destination] in found:
        raise document.invalid(edge.path, f"{destination} is listed twice; a node receives everything once")
    found[names[destination]] = edge


# ── the later shape ──────────────────────────────────────────────────────────────────────────────────


def _later(document: Document, top: Mapping[str, Any], problems: Problems) -> dict[str, RawNode]:
    _known(document, (), top, _LATER_KEYS, problems)
    if "version" not in top:
        raise document.invalid((), f"version is missing; write version: {VERSION}")
    if top["version"] != VERSION:
        raise document.invalid(("version",), f"version {top['version']} is not known; this version reads {VERSION}")
    _refuse_settings(document, (), top)
    _refuse_policies(document, (), top)
    pipelines = _pipelines(document, top, problems)
    found: dict[str, RawNode] = {}
    for label, path, pipeline in pipelines:
        with problems:
            found |= _pipeline(document, path, pipeline, label if len(pipelines) > 1 else "", found, problems)
    return found


def _pipeline(
    document: Document,
    path: Path,
    pipeline: Mapping[str, Any],
    label: str,
    others: Mapping[str, RawNode],
    problems: Problems,
) -> dict[str, RawNode]:
    """Return the nodes of one pipeline; *others* are those of the pipelines before it."""
    _known(document, path, pipeline, _PIPELINE_KEYS, problems)
    _refuse_settings(document, path, pipeline)
    _refuse_policies(document, path, pipeline)
    if "nodes" not in pipeline:
        raise document.invalid(path, "nodes is missing")
    raw = _nodes(document, (*path, "nodes"), pipeline["nodes"])
    full_names = {name: f"{label}-{name}" if name in others else name for name in raw}
    if len({*full_names.values()}) < len(raw) or others.keys() & full_names.values():
        raise document.invalid(
            path, f"a node of another pipeline has the name that a node of {label} would get; rename it"
        )
    found: dict[str, RawNode] = {}
    for name, value in raw.items():
        with problems:
            here: Path = (*path, "nodes", name)
            node = _later_node(document, here, name, full_names[name], value, others, problems)
            found[node.name] = replace(node, pipeline=label, local_name=name if name in others else "")
    connections = _connections(document, (*path, "connections"), pipeline.get("connections"), problems)
    for source, destination, edge in connections:
        with problems:
            if not isinstance(source, str) or source not in full_names:
                reason = f"there is no node named {source}{nearest(str(source), full_names)}"
                raise document.invalid((*edge.path[: len(path) + 2], "from"), reason)
            origin = found.get(full_names[source])
            _add_edge(document, {} if origin is None else origin.edges, destination, edge, full_names)
    return found


def _later_node(
    document: Document,
    path: Path,
    name: str,
    full_name: str,
    value: Any,
    others: Mapping[str, RawNode],
    problems: Problems,
) -> RawNode:
    inside = mapping(document, path, value, f"node {name}")
    _known(document, path, inside, _LATER_NODE_KEYS, problems)
    if not isinstance(inside.get("type"), str):
        reason = "type must be a word" if "type" in inside else "type is missing"
        raise document.invalid((*path, "type"), reason)
    plugin = _found(document, (*path, "type"), "type", inside["type"])
    if name in others and (plugin.kind == "exporter" or plugin.is_store):
        what = "an exporter is that of its position" if plugin.kind == "exporter" else "a buffer is in its metrics"
        reason = f"{others[name].pipeline} has a node {name}, too: rename one, because the name of {what}"
        raise document.invalid(path, reason)
    return _node(document, full_name, path, inside, plugin)


def _refuse_settings(document: Document, path: Path, raw: Mapping[str, Any]) -> None:
    """Refuse channel sizes: nodes are connected by stores and Spark queries, which have no channels."""
    settings = raw.get("settings")
    if settings:
        first = next(iter(mapping(document, (*path, "settings"), settings, "settings")))
        reason = f"settings.{first} has no effect here: there are no channels between nodes; leave settings out"
        raise document.invalid((*path, "settings", first), reason)


def _refuse_policies(document: Document, path: Path, raw: Mapping[str, Any]) -> None:
    """Refuse the policies of other engines, with the key to write instead of a number of cores."""
    policies = raw.get("policies")
    if not policies:
        return
    here: Path = (*path, "policies")
    inside = mapping(document, here, policies, "policies")
    resources = inside.get("resources")
    if isinstance(resources, dict) and "core_allocation" in resources:
        allocation = resources["core_allocation"]
        count = allocation.get("count", "N") if isinstance(allocation, dict) else "N"
        reason = (
            f"policies.resources.core_allocation has no effect here; write cores: {count} next to version, for all"
            " pipelines of the file"
        )
        raise document.invalid((*here, "resources", "core_allocation"), reason)
    first = next(iter(inside))
    raise document.invalid((*here, first), f"policies.{first} has no effect here; leave policies out")


def _pipelines(
    document: Document, top: Mapping[str, Any], problems: Problems
) -> list[tuple[str, Path, dict[str, Any]]]:
    """Return name, place and content of each pipeline. The name has that of its group if another group has it, too."""
    if "groups" in top and "pipeline_groups" in top:
        raise document.invalid(("pipeline_groups",), "pipeline_groups is the older name of groups; keep one of them")
    key = "pipeline_groups" if "pipeline_groups" in top else "groups"
    found: list[tuple[str, str, Any]] = []
    for group, value in mapping(document, (key,), top.get(key), key).items():
        here: Path = (key, group)
        inside = mapping(document, here, value, f"group {group}")
        _known(document, here, inside, _GROUP_KEYS, problems)
        _refuse_policies(document, here, inside)
        pipelines = mapping(document, (*here, "pipelines"), inside.get("pipelines"), "pipelines")
        found += [(group, name, pipeline) for name, pipeline in pipelines.items()]
    if not found:
        raise document.invalid((key,), "there is no pipeline")
    groups_of = Counter(name for _, name, _ in found)
    return [
        (
            name if groups_of[name] == 1 else f"{group}-{name}",
            (key, group, "pipelines", name),
            mapping(document, (key, group, "pipelines", name), pipeline, f"pipeline {name}"),
        )
        for group, name, pipeline in found
    ]


def _connections(document: Document, path: Path, value: Any, problems: Problems) -> Iterator[tuple[Any, Any, Edge]]:
    """Yield source, destination and edge of each connection; either end may be a list of nodes."""
    if value is None:
        return
    if not isinstance(value, list):
        raise document.invalid(path, "connections must be a list of from and to")
    for index, one in enumerate(value):
        here: Path = (*path, index)
        with problems:
            yield from _ends(document, here, mapping(document, here, one, "a connection"), problems)


def _ends(document: Document, here: Path, inside: Mapping[str, Any], problems: Problems) -> list[tuple[Any, Any, Edge]]:
    _known(document, here, inside, _CONNECTION_KEYS, problems)
    for key in ("from", "to"):
        if key not in inside:
            raise document.invalid(here, f"{key} is missing")
    edge = Edge((*here, "to"), _strategy(document, here, inside), _signals(document, here, inside))
    sources = inside["from"] if isinstance(inside["from"], list) else [inside["from"]]
    targets = inside["to"] if isinstance(inside["to"], list) else [inside["to"]]
    return [(source, target, edge) for source in sources for target in targets]
