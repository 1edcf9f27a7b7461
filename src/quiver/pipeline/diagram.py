"""Diagrams of a pipeline: as text, and for Mermaid."""

from __future__ import annotations

import re
from collections.abc import Iterator

from quiver.pipeline.model import Buffer, Pipeline, Route

__all__ = ["as_mermaid", "as_text"]

_SHAPES = {"receiver": ("([", "])"), "buffer": ("[(", ")]"), "processor": ("[", "]"), "exporter": (">", "]")}
"""The Mermaid shape of each kind: pill, drum, box, flag."""


def as_text(pipeline: Pipeline) -> str:
    """Draw the graph as text: each buffer with its receivers on the left, and its routes below."""
    fed: dict[str, list[str]] = {}
    for buffer in pipeline.buffers:
        fed.setdefault(buffer.name, []).extend(node.name for node in buffer.receivers)
    return "\n".join(line for buffer in pipeline.buffers for line in _drawn(buffer, fed[buffer.name]))


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

    for buffer in pipeline.buffers:
        note = {"memory": "in memory", "intake": "waits to be processed", "staged": "waits to be sent"}
        store = box(buffer.name, "buffer", note.get(buffer.kind, buffer.config.path))
        lines.append(f"    {store}")
        lines += [f"    {box(node.name, 'receiver')} --> {_identifier(buffer.name)}" for node in buffer.receivers]
        for route in buffer.routes:
            way = [_identifier(buffer.name)]
            way += [box(node.name, "processor") for node in route.processors]
            way.append(box(route.name, "exporter") if route.into is None else _identifier(route.into))
            lines.append(f"    {' --> '.join(way)}")
    return "\n".join(dict.fromkeys(lines))


def _identifier(name: str) -> str:
    # Some words, such as `end`, are keywords of Mermaid.
    return f"n_{re.sub(r'[^A-Za-z0-9_]', '_', name)}"
