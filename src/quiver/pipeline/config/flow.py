"""
Plan the data flow: the buffers of a pipeline, the receivers that fill each, and the routes out of it.

A buffer is a store. The nodes of a file become buffers and routes. A route leads from a buffer through processors to an
exporter or into another buffer. Each route is a subscriber of its buffer, named like the node at its end, and receives
everything. Three kinds of buffers are implicit::

    receiver → processor → persistence → exporter          intake: received data waits durably to be processed
    receiver → exporter                                    memory: the file has no persistence node
    persistence → processor → otlp_exporter                staged: the exporter takes bundles, not rows; rows are
                                                           converted back to requests and wait here

Pure: names in, names out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from quiver.pipeline.config.parse import Document, Path
from quiver.pipeline.config.shapes import RawNode

__all__ = ["BufferKind", "BufferPlan", "RoutePlan", "plan_buffers"]

BufferKind = Literal["persistence", "intake", "memory", "staged"]


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """
    A route out of a buffer.

    Attributes:
        name: the name of the node at its end, which is the subscriber id.
        processors: the processors on the route, in order.
        into: the buffer at its end; None if it ends at an exporter.
        strategy: the dispatch strategy of the port where it starts.
        signals: the signals that all of its edges let pass; None for all.
    """

    name: str
    processors: tuple[str, ...] = ()
    into: str | None = None
    strategy: str = "round_robin"
    signals: tuple[str, ...] | None = None


@dataclass(slots=True)
class BufferPlan:
    """
    A buffer.

    Attributes:
        name: the name of the persistence node; a generated one for implicit buffers.
        kind: see the diagram above.
        derived_from: for an implicit buffer, the persistence node whose directory and settings it uses with changes;
            None for memory.
        receivers: the nodes that fill it directly.
        routes: the routes out of it.
        pipeline: the name of its pipeline if the file has several; empty otherwise.
        suffix: for an implicit buffer, the end of the name of its directory. It does not depend on other pipelines of
            the file: data would stay in the previous directory otherwise.
    """

    name: str
    kind: BufferKind
    derived_from: str | None = None
    receivers: list[str] = field(default_factory=list)
    routes: list[RoutePlan] = field(default_factory=list)
    pipeline: str = ""
    suffix: str = ""


def plan_buffers(document: Document, nodes: Mapping[str, RawNode]) -> list[BufferPlan]:
    """
    Return the buffers of *nodes*, which must not form a cycle, in the order of the flow.

    Raises:
        PipelineError: a node feeds a node that it cannot feed, or is reached over two routes.
    """
    for node in nodes.values():
        _check_destinations(document, node, nodes)
    plans: list[BufferPlan] = []
    direct = {
        node.name: BufferPlan(node.name, "persistence", node.name, pipeline=node.pipeline)
        for node in nodes.values()
        if _is_store(node)
    }
    groups: dict[frozenset[tuple[str, tuple[str, ...] | None]], BufferPlan] = {}
    for node in nodes.values():
        if node.plugin.kind != "receiver":
            continue
        store = next((name for name in node.edges if name in direct), None)
        if store is not None:
            direct[store].receivers.append(node.name)
            continue
        group = frozenset((name, edge.signals) for name, edge in node.edges.items())
        plan = groups.get(group)
        if plan is None:
            origin = _first_store(nodes, node.edges)
            kind: BufferKind = "memory" if origin is None else "intake"
            plan = groups[group] = BufferPlan(kind, kind, origin, pipeline=node.pipeline)
        plan.receivers.append(node.name)
    in_pipeline = Counter(plan.pipeline for plan in groups.values())
    for plan in groups.values():
        first = nodes[plan.receivers[0]]
        plan.suffix = plan.kind
        if in_pipeline[plan.pipeline] > 1:
            plan.suffix = f"{plan.kind}-{first.local_name or first.name}"[:64]
        plan.name = f"{plan.pipeline}-{plan.suffix}"[:64] if plan.pipeline else plan.suffix
    reached: dict[str, Path] = {}
    for plan in groups.values():
        plans += [plan, *_lead_out(document, nodes, plan, nodes[plan.receivers[0]], reached)]
    for name, plan in direct.items():
        plans += [plan, *_lead_out(document, nodes, plan, nodes[name], reached)]
    _check_made_names(document, nodes, plans)
    return _in_order(plans)


def _check_made_names(document: Document, nodes: Mapping[str, RawNode], plans: Sequence[BufferPlan]) -> None:
    """Refuse duplicate names of buffers and nodes: directories and subscribers are named after them."""
    taken: dict[str, RawNode | None] = dict(nodes)
    for plan in plans:
        if plan.kind == "persistence":
            continue
        if plan.name in taken:
            node = nodes.get(plan.name) or nodes[plan.receivers[0] if plan.receivers else plan.routes[0].name]
            reason = f"an implicit buffer is named {plan.name} here; rename {node.name}"
            raise document.invalid(node.path, reason)
        taken[plan.name] = None


def _is_store(node: RawNode) -> bool:
    return node.plugin.is_store


def _check_destinations(document: Document, node: RawNode, nodes: Mapping[str, RawNode]) -> None:
    kind = node.plugin.kind
    if kind == "exporter":
        if node.edges:
            first = next(iter(node.edges.values())).path
            raise document.invalid(first, f"{node.name} is an exporter and cannot have destinations")
        return
    if not node.edges and not _is_store(node):
        stores = [one.name for one in nodes.values() if _is_store(one)]
        hint = f". Send it to {stores[0]}" if stores else ""
        raise document.invalid(node.path, f"{node.name} has no destinations; its data would be lost{hint}")
    for name, edge in node.edges.items():
        other = nodes[name]
        if other.plugin.kind == "receiver":
            raise document.invalid(edge.path, f"{node.name} is {_a(node)} and cannot feed {name}, a receiver")
        if _is_store(node) and _is_store(other):
            raise document.invalid(edge.path, f"{node.name} and {name} are both persistence nodes; one is enough here")
        if kind == "receiver" and _is_store(other) and len(node.edges) > 1:
            more = next(one for one in node.edges if one != name)
            reason = f"{node.name} feeds {name} and {more}; feed {more} from {name}, which delivers to each destination"
            raise document.invalid(node.edges[more].path, reason)
        if kind == "receiver" and edge.signals is not None and _is_store(other):
            reason = f"{node.name} stores all that it receives: write signals on a connection that leaves {name}"
            raise document.invalid(edge.path, reason)
        if kind == "receiver" and edge.strategy == "broadcast":
            reason = "broadcast would store a copy for each core; write round_robin: every exporter gets everything"
            raise document.invalid(edge.path, reason)


def _a(node: RawNode) -> str:
    return f"an {node.plugin.kind}" if node.plugin.kind == "exporter" else f"a {node.plugin.kind}"


def _ways(nodes: Mapping[str, RawNode], first: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the processors and the end of each route that starts with one of *first*."""
    for name in first:
        node = nodes[name]
        if node.plugin.kind == "exporter" or _is_store(node):
            yield (), name
            continue
        for between, end in _ways(nodes, node.edges):
            yield (name, *between), end


def _first_store(nodes: Mapping[str, RawNode], first: Mapping[str, object]) -> str | None:
    """Return the first persistence node that can be reached from *first*."""
    waiting = list(first)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        if _is_store(nodes[name]):
            return name
        waiting += nodes[name].edges
    return None


def _lead_out(
    document: Document, nodes: Mapping[str, RawNode], plan: BufferPlan, start: RawNode, reached: dict[str, Path]
) -> Iterator[BufferPlan]:
    """Fill the routes of *plan*; yield the buffers at the end of some of them."""
    for between, end in _ways(nodes, start.edges):
        last = nodes[between[-1]] if between else start
        path = last.edges[end].path
        strategy = start.edges[between[0] if between else end].strategy
        if end in reached and (not _is_store(nodes[end]) or any(route.name == end for route in plan.routes)):
            line = document.line(reached[end])
            reason = f"{end} is reached over two routes, first on line {line}; give each route its own node"
            raise document.invalid(path, reason)
        reached[end] = path
        node = nodes[end]
        signals = _passing(document, nodes, (start.name, *between, end))
        if _is_store(node):
            plan.routes.append(RoutePlan(end, between, end, strategy, signals))
        elif between and not node.plugin.takes_rows:
            name = f"staged-{end}"[:64]
            kind: BufferKind = "memory" if plan.kind == "memory" else "staged"
            staged = BufferPlan(name, kind, plan.derived_from, pipeline=plan.pipeline, suffix=name)
            staged.routes.append(RoutePlan(end, (), None, strategy))
            plan.routes.append(RoutePlan(staged.name, between, staged.name, strategy, signals))
            yield staged
        else:
            plan.routes.append(RoutePlan(end, between, None, strategy, signals))


def _passing(document: Document, nodes: Mapping[str, RawNode], way: Sequence[str]) -> tuple[str, ...] | None:
    """Return the signals that every edge of *way* lets pass; None for all."""
    passing: tuple[str, ...] | None = None
    for name, following in pairwise(way):
        edge = nodes[name].edges[following]
        if edge.signals is None:
            continue
        before = passing
        passing = edge.signals if before is None else tuple(one for one in before if one in edge.signals)
        if not passing:
            reason = f"no signal passes from {way[0]} to {way[-1]}: {following} would receive only {_listed(before)}"
            raise document.invalid(edge.path, reason)
    return passing


def _listed(signals: Iterable[str] | None) -> str:
    return " and ".join(signals or ())


def _in_order(plans: Sequence[BufferPlan]) -> list[BufferPlan]:
    """Return *plans* in topological order."""
    rest = list(plans)
    found: list[BufferPlan] = []
    while rest:
        ahead = {route.into for plan in rest for route in plan.routes}
        first = next(plan for plan in rest if plan.name not in ahead)
        rest.remove(first)
        found.append(first)
    return found
