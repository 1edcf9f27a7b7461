"""Diagrams of a pipeline: as text, for Mermaid, and as nodes and edges."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from quiver.pipeline.model import Buffer, Pipeline, Route

__all__ = ["as_graph", "as_mermaid", "as_text"]

_SHAPES = {"receiver": ("([", "])"), "buffer": ("[(", ")]"), "processor": ("[", "]"), "exporter": (">", "]")}
"""The Mermaid shape of each kind: pill, drum, box, flag."""


def as_text(pipeline: Pipeline) -> str:
    """Draw the graph as text, by pipeline: each buffer with its receivers on the left, and its routes below."""
    lines: list[str] = []
    for name, buffers in _pipelines(pipeline).items():
        if name:
            lines.append(f"{name}:")
        lines += [line for buffer in buffers for line in _drawn(buffer, [node.name for node in buffer.receivers])]
    return "\n".join(lines)


def _pipelines(pipeline: Pipeline) -> dict[str, list[Buffer]]:
    """Return the buffers by pipeline, in the order of the flow."""
    found: dict[str, list[Buffer]] = {}
    for buffer in pipeline.buffers:
        found.setdefault(buffer.pipeline, []).append(buffer)
    return found


def _drawn(buffer: Buffer, receivers: list[str]) -> Iterator[str]:
    width = max(map(len, receivers), default=0)
    title = f"[{buffer.name}]" if buffer.kind == "persistence" else f"({buffer.name})"
    for number, name in enumerate(receivers[:-1]):
        yield f"{name:<{width}} ─{'┐' if number == 0 else '┤'}"
    if receivers:
        joint = "─" if len(receivers) == 1 else "┴"
        yield f"{receivers[-1]:<{width}} ─{joint}▶ {title}"
        margin = " " * (width + 5)
    else:
        yield title
        margin = "  "
    for number, route in enumerate(buffer.routes):
        corner = "└" if number == len(buffer.routes) - 1 else "├"
        yield f"{margin}{corner}─▶ {' ─▶ '.join(_stations(route))}"


def _stations(route: Route) -> list[str]:
    end = route.name if route.into is None else f"[{route.into}]"
    return [*(node.name for node in route.processors), end]


def as_mermaid(pipeline: Pipeline) -> str:
    """Return the graph as a Mermaid flowchart."""
    lines = ["flowchart LR"]
    seen: set[str] = set()

    def box(name: str, kind: str, note: str = "") -> str:
        made = _identifier(name)
        if made in seen:
            return made
        seen.add(made)
        begin, end = _SHAPES[kind]
        label = name if not note else f"{name}<br/>{note}"
        return f'{made}{begin}"{label}"{end}'

    for name, buffers in _pipelines(pipeline).items():
        part = [line for buffer in buffers for line in _boxes(buffer, box)]
        if name:
            part = [f'    subgraph p{_identifier(name)}["{name}"]', *(f"    {line}" for line in part), "    end"]
        lines += part
    return "\n".join(lines)


def as_graph(pipeline: Pipeline) -> dict[str, Any]:
    """
    Return the graph as plain values: `nodes`, each with its name, its kind and a note, and `edges`, as pairs of names.

    The note of a buffer is its directory.
    """
    nodes: dict[str, dict[str, str]] = {}
    edges: dict[tuple[str, str], None] = {}

    def add(name: str, kind: str, note: str) -> str:
        nodes.setdefault(name, {"name": name, "kind": kind, "note": note})
        return name

    for buffer in pipeline.buffers:
        add(buffer.name, "buffer", str(Path(buffer.config.path).absolute()))
        for receiver in buffer.receivers:
            edges[add(receiver.name, "receiver", receiver.plugin.name), buffer.name] = None
        for route in buffer.routes:
            way = [buffer.name, *(add(node.name, "processor", node.plugin.name) for node in route.processors)]
            end = pipeline.nodes.get(route.name)
            way.append(
                route.into if route.into is not None else add(route.name, "exporter", end.plugin.name if end else "")
            )
            edges |= dict.fromkeys(pairwise(way))
    return {"nodes": list(nodes.values()), "edges": list(edges)}


def _boxes(buffer: Buffer, box: Callable[..., str]) -> list[str]:
    """Return the lines of one buffer; *box* draws a node the first time, and names it afterwards."""
    note = {"memory": "in memory", "intake": "waits to be processed", "staged": "waits to be sent"}
    lines = [f"    {box(buffer.name, 'buffer', note.get(buffer.kind, buffer.config.path))}"]
    lines += [f"    {box(node.name, 'receiver')} --> {_identifier(buffer.name)}" for node in buffer.receivers]
    for route in buffer.routes:
        way = [_identifier(buffer.name)]
        way += [box(node.name, "processor") for node in route.processors]
        way.append(box(route.name, "exporter") if route.into is None else _identifier(route.into))
        lines.append(f"    {' --> '.join(way)}")
    return list(dict.fromkeys(lines))


def _identifier(name: str) -> str:
    # Some words, such as `end`, are keywords of Mermaid.
    return f"n_{re.sub(r'[^A-Za-z0-9_]', '_', name)}"
