"""
Which changes of a pipeline file can be applied while it runs, and which need a restart. Pure.

Exporters, processors, the settings of Spark and the log level can change. Ports, directories and store settings
cannot: they are in use. Certificates and token files are reread automatically and need no change of the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from quiver.pipeline.model import Buffer, Node, Pipeline, Route

__all__ = ["changed_queries", "describe_changes", "needs_restart"]


def needs_restart(old: Pipeline, new: Pipeline) -> list[str]:
    """Return the changes from *old* to *new* that need a restart; empty if there are none."""
    found = []
    before, after = ({buffer.name: buffer for buffer in one.buffers} for one in (old, new))
    changed = before.keys() ^ after.keys()
    found += [f"{name} {'comes' if name in after else 'goes'}, which is a store of its own" for name in changed]
    for name in before.keys() & after.keys():
        found += _of_buffer(before[name], after[name])
    if old.metrics != new.metrics:
        found.append("metrics changed")
    if old.status != new.status:
        found.append("status changed")
    if old.disk != new.disk:
        found.append("disk changed")
    if old.cores != new.cores:
        found.append("cores changed")
    return sorted(found)


def _of_buffer(old: Buffer, new: Buffer) -> Iterator[str]:
    if old.kind != new.kind:
        yield f"{old.name} becomes {new.kind}"
    if old.config.path != new.config.path:
        yield f"{old.name}: path changed"
    for one in dataclasses.fields(old.config.settings):
        if getattr(old.config.settings, one.name) != getattr(new.config.settings, one.name):
            yield f"{old.name}: {one.name} changed"
    before, after = ({node.name: node for node in one.receivers} for one in (old, new))
    for name in before.keys() ^ after.keys():
        yield f"receiver {name} {'comes' if name in after else 'goes'}"
    for name in before.keys() & after.keys():
        if before[name].config != after[name].config:
            yield f"receiver {name}: {', '.join(_changed_keys(before[name], after[name]))} changed"


def _changed_keys(old: Node, new: Node) -> list[str]:
    if type(old.config) is not type(new.config):
        return ["plugin_urn"]
    return [key for key in type(old.config).model_fields if getattr(old.config, key) != getattr(new.config, key)]


def changed_queries(old: Pipeline, new: Pipeline) -> bool:
    """Return whether the Spark process changes: its queries, or its settings, which a new process gets."""
    return _queries(old) != _queries(new) or old.spark != new.spark


def _queries(pipeline: Pipeline) -> dict[str, Any]:
    return {name: _definition(route) for name, route in pipeline.routes.items() if route.is_query}


def _definition(route: Route) -> tuple[Any, ...]:
    return (
        route.config,
        route.strategy,
        route.signals,
        [(node.name, node.plugin.urn, node.config) for node in route.processors],
    )


def describe_changes(old: Pipeline, new: Pipeline) -> str:
    """Describe the applied changes."""
    before, after = old.routes, new.routes
    words = [f"{name} comes" for name in after if name not in before]
    words += [f"{name} goes; it stays a subscriber until it is dropped" for name in before if name not in after]
    words += [
        f"{name} changed" for name in after if name in before and _definition(before[name]) != _definition(after[name])
    ]
    if old.spark != new.spark:
        words.append("spark changed")
    if old.log_level != new.log_level:
        words.append(f"log_level is {new.log_level}")
    return "; ".join(words) or "nothing changed in the file; certificates and credentials were read again"
