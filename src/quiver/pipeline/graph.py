"""
Nodes and who feeds whom, checked before anything starts.

A pipeline of this version is receivers → one persistence node → exporters. Every exporter is a subscriber of its
own, named like its node, and receives everything; a persistence node without destinations only buffers.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, get_args

from quiver.errors import WrongUse
from quiver.pipeline.parse import Document, Path, load_document, nearest
from quiver.pipeline.plugins import (
    NOT_YET,
    PLUGINS,
    Kind,
    MetricsConfig,
    OtlpExporterConfig,
    OtlpReceiverConfig,
    ParquetExporterConfig,
    PersistenceConfig,
    Plugin,
    checked,
)
from quiver.store.format.names import check_subscriber_id

__all__ = ["Node", "Pipeline", "load_pipeline"]

_TOP_KEYS = ("nodes", "metrics")
_NODE_KEYS = ("kind", "plugin_urn", "out_ports", "config")
_PORT_KEYS = ("destinations", "dispatch_strategy")
_STRATEGIES = ("round_robin", "broadcast")


@dataclass(frozen=True, slots=True)
class Node:
    """
    One node: its name, what it is, its checked config, and where in the file it says which nodes it feeds.
    """

    name: str
    plugin: Plugin
    config: Any
    edges: Mapping[str, Path]

    @property
    def destinations(self) -> tuple[str, ...]:
        """
        The names of the nodes it feeds, in file order.
        """
        return tuple(self.edges)

    @property
    def kind(self) -> Kind:
        """
        Receiver, processor or exporter.
        """
        return self.plugin.kind


@dataclass(frozen=True, slots=True)
class Pipeline:
    """
    A checked pipeline file.
    """

    source: str
    nodes: Mapping[str, Node]
    metrics: MetricsConfig | None = None

    @property
    def receivers(self) -> list[tuple[str, OtlpReceiverConfig]]:
        """
        Name and config of each receiver.
        """
        return [(node.name, node.config) for node in self._of("receiver")]

    @property
    def persistence(self) -> PersistenceConfig:
        """
        Config of the persistence node.
        """
        config: PersistenceConfig = next(self._of("processor")).config
        return config

    @property
    def exporters(self) -> list[tuple[str, ParquetExporterConfig | OtlpExporterConfig]]:
        """
        Name (which is the subscriber id) and config of each exporter that is fed.
        """
        return [(node.name, node.config) for node in self._of("exporter")]

    @property
    def queries(self) -> list[tuple[str, ParquetExporterConfig]]:
        """
        Those of the exporters that are queries of the Spark process.
        """
        return [(name, config) for name, config in self.exporters if isinstance(config, ParquetExporterConfig)]

    @property
    def forwarders(self) -> list[tuple[str, OtlpExporterConfig]]:
        """
        Those of the exporters that run in the ingest process.
        """
        return [(name, config) for name, config in self.exporters if isinstance(config, OtlpExporterConfig)]

    def _of(self, kind: Kind) -> Iterator[Node]:
        return (node for node in self.nodes.values() if node.kind == kind)


def load_pipeline(text: str, *, source: str, values: Mapping[str, str]) -> tuple[Pipeline, frozenset[str]]:
    """
    Parse and check *text*; return the pipeline and the names of the placeholders in it.

    Raises:
        PipelineInvalid: the first thing that is wrong, with its line and what to write instead.
    """
    document = load_document(text, source=source, values=values)
    top = _mapping(document, (), document.value, "the pipeline")
    _known(document, (), top, _TOP_KEYS)
    if "nodes" not in top:
        raise document.invalid((), "nodes is missing")
    raw = _mapping(document, ("nodes",), top["nodes"], "nodes")
    if not raw:
        raise document.invalid(("nodes",), "there are no nodes")
    nodes = {name: _node(document, name, value, raw) for name, value in raw.items()}
    _check_acyclic(document, nodes)
    metrics = _metrics(document, top)
    _check_shape(document, nodes, metrics)
    return Pipeline(source, nodes, metrics), document.placeholders


def _metrics(document: Document, top: Mapping[str, Any]) -> MetricsConfig | None:
    if "metrics" not in top:
        return None
    inside = _mapping(document, ("metrics",), top["metrics"], "metrics")
    return checked(MetricsConfig, document, ("metrics",), inside)


def _mapping(document: Document, path: Path, value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise document.invalid(path, f"{what} must be a mapping of keys to values")
    return value


def _known(document: Document, path: Path, value: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in value:
        if key not in known:
            raise document.invalid((*path, key), f"unknown key {key}{nearest(key, known)}")


def _node(document: Document, name: str, value: Any, names: Mapping[str, Any]) -> Node:
    path: Path = ("nodes", name)
    try:
        check_subscriber_id(name)
    except WrongUse as error:
        raise document.invalid(path, f"a node cannot be named {name!r}: {error}") from error
    raw = _mapping(document, path, value, f"node {name}")
    _known(document, path, raw, _NODE_KEYS)
    plugin = _plugin(document, path, raw)
    edges = _edges(document, path, raw.get("out_ports"), names)
    config = raw.get("config")
    inside = _mapping(document, (*path, "config"), {} if config is None else config, "config")
    checked = plugin.config(document, (*path, "config"), inside)
    return Node(name, plugin, checked, edges)


def _plugin(document: Document, path: Path, raw: Mapping[str, Any]) -> Plugin:
    for key in ("kind", "plugin_urn"):
        if not isinstance(raw.get(key), str):
            raise document.invalid((*path, key), f"{key} is missing" if key not in raw else f"{key} must be a word")
    kind, urn = raw["kind"], raw["plugin_urn"]
    kinds = get_args(Kind)
    if kind not in kinds:
        raise document.invalid((*path, "kind"), f"unknown kind {kind}{nearest(kind, kinds)}")
    plugin = PLUGINS.get(urn)
    if plugin is None:
        if urn in NOT_YET:
            available = ", ".join(known for known, one in PLUGINS.items() if one.kind == kind)
            reason = f"{urn} is not available in this version; for kind {kind} there is {available}"
        else:
            reason = f"unknown plugin_urn {urn}{nearest(urn, PLUGINS)}"
        raise document.invalid((*path, "plugin_urn"), reason)
    if plugin.kind != kind:
        raise document.invalid((*path, "kind"), f"{urn} is of kind {plugin.kind}, not {kind}")
    return plugin


def _edges(document: Document, path: Path, ports: Any, names: Mapping[str, Any]) -> dict[str, Path]:
    if ports is None:
        return {}
    found: dict[str, Path] = {}
    here: Path = (*path, "out_ports")
    for port, value in _mapping(document, here, ports, "out_ports").items():
        inside = _mapping(document, (*here, port), value, f"port {port}")
        _known(document, (*here, port), inside, _PORT_KEYS)
        strategy = inside.get("dispatch_strategy", "round_robin")
        if strategy not in _STRATEGIES:
            reason = f"unknown dispatch_strategy {strategy}{nearest(str(strategy), _STRATEGIES)}"
            raise document.invalid((*here, port, "dispatch_strategy"), reason)
        listed = inside.get("destinations")
        if not isinstance(listed, list):
            raise document.invalid((*here, port, "destinations"), "destinations must be a list of node names")
        for index, destination in enumerate(listed):
            spot: Path = (*here, port, "destinations", index)
            if destination not in names:
                reason = f"there is no node named {destination}{nearest(str(destination), names)}"
                raise document.invalid(spot, reason)
            if destination in found:
                raise document.invalid(spot, f"{destination} is listed twice; a node receives everything once")
            found[destination] = spot
    return found


def _check_acyclic(document: Document, nodes: Mapping[str, Node]) -> None:
    sorter = TopologicalSorter({name: node.destinations for name, node in nodes.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = list(reversed(error.args[1]))
        reason = f"the nodes feed each other in a circle: {' → '.join(cycle)}"
        raise document.invalid(nodes[cycle[0]].edges[cycle[1]], reason) from error


def _check_shape(document: Document, nodes: Mapping[str, Node], metrics: MetricsConfig | None) -> None:
    stores = [node for node in nodes.values() if node.kind == "processor"]
    if not stores:
        raise document.invalid(("nodes",), "there is no persistence node (urn:otap:processor:persistence)")
    if len(stores) > 1:
        reason = f"{stores[1].name} is a second persistence node; a pipeline has one: {stores[0].name}"
        raise document.invalid(("nodes", stores[1].name), reason)
    for node in nodes.values():
        _check_destinations(document, node, nodes, stores[0].name)
    fed = {destination for node in nodes.values() for destination in node.destinations}
    for node in nodes.values():
        if node.kind != "receiver" and node.name not in fed:
            raise document.invalid(("nodes", node.name), f"nobody feeds {node.name}: no node has it as a destination")
    _check_addresses(document, nodes, metrics)
    _check_outputs(document, nodes)


def _check_destinations(document: Document, node: Node, nodes: Mapping[str, Node], store: str) -> None:
    path: Path = ("nodes", node.name)
    ports: Path = (*path, "out_ports")
    if node.kind == "receiver" and not node.destinations:
        reason = f"{node.name} has no destinations; what it receives would be lost. Send it to {store}"
        raise document.invalid(path, reason)
    if node.kind == "exporter" and node.destinations:
        raise document.invalid(ports, f"{node.name} is an exporter; it is the end of the line and feeds nobody")
    wanted: Kind = "processor" if node.kind == "receiver" else "exporter"
    for name in node.destinations:
        if nodes[name].kind != wanted:
            instead = f"; a receiver feeds the persistence node {store}" if node.kind == "receiver" else ""
            reason = f"{node.name} is {_a(node.kind)} and cannot feed {name}, {_a(nodes[name].kind)}{instead}"
            raise document.invalid(node.edges[name], reason)


def _a(kind: Kind) -> str:
    return f"an {kind}" if kind == "exporter" else f"a {kind}"


def _check_addresses(document: Document, nodes: Mapping[str, Node], metrics: MetricsConfig | None) -> None:
    taken: dict[str, str] = {} if metrics is None else {metrics.listen: "metrics"}
    for node in nodes.values():
        if not isinstance(node.config, OtlpReceiverConfig):
            continue
        for address in (node.config.grpc_address, node.config.http_address):
            if address is None:
                continue
            if address in taken:
                reason = f"{node.name} and {taken[address]} cannot both listen on {address}"
                raise document.invalid(("nodes", node.name, "config"), reason)
            taken[address] = node.name


def _check_outputs(document: Document, nodes: Mapping[str, Node]) -> None:
    taken: dict[str, str] = {}
    for node in nodes.values():
        if not isinstance(node.config, ParquetExporterConfig):
            continue
        path = posixpath.normpath(node.config.path)
        if path in taken:
            reason = f"{node.name} and {taken[path]} cannot both write to {node.config.path}"
            raise document.invalid(("nodes", node.name, "config", "path"), reason)
        taken[path] = node.name
