"""
The figures of a fleet as Prometheus text, for a job that runs `quiver fleet metrics` and stores its output.

A node exports its own metrics as every store does. These are for what only the bucket shows: nodes that are silent, and
readers that do not run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["FLEET_GAUGES", "prometheus_text"]

FLEET_GAUGES: dict[str, str] = {
    "quiver_fleet_nodes": "Nodes of the fleet, by state.",
    "quiver_fleet_reader_lag_segments": "Segments in the bucket that the reader has not acknowledged.",
    "quiver_fleet_reader_lag_bytes": "Their size.",
    "quiver_fleet_reader_oldest_seconds": "Age of the oldest of them.",
    "quiver_fleet_reader_blocked_nodes": "Nodes whose chain has a hole or a fork.",
    "quiver_fleet_node_seen_seconds": "Age of the record of the node.",
    "quiver_fleet_node_clock_difference_seconds": "How far its clock is ahead of that of the object store.",
    "quiver_fleet_node_waiting_bytes": "Sealed segments that the node had not uploaded.",
    "quiver_fleet_node_disk_bytes": "Space that its store uses.",
}
"""Name and meaning of each gauge."""

_OF_NODE = {"seen_s": "seen_seconds", "clock_difference_s": "clock_difference_seconds"}
_OF_READER = {"oldest_s": "oldest_seconds"}


def prometheus_text(nodes: Iterable[Mapping[str, Any]], readers: Iterable[Mapping[str, Any]]) -> str:
    """Return the figures of `figures.py` as Prometheus text. A figure that is unknown is left out."""
    lines: dict[str, list[str]] = {name: [] for name in FLEET_GAUGES}
    for name, labels, value in _samples(list(nodes), readers):
        if value is not None:
            described = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            number = f"{value:.3f}" if isinstance(value, float) else str(value)
            lines[name].append(f"{name}{{{described}}} {number}\n")
    return "".join(
        f"# HELP {name} {FLEET_GAUGES[name]}\n# TYPE {name} gauge\n{''.join(found)}" for name, found in lines.items()
    )


def _samples(
    nodes: list[Mapping[str, Any]], readers: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[str, dict[str, str], float | None]]:
    for state, count in sorted(Counter(node["state"] for node in nodes).items()):
        yield "quiver_fleet_nodes", {"state": state}, count
    for reader in readers:
        for key in ("lag_segments", "lag_bytes", "oldest_s", "blocked_nodes"):
            yield f"quiver_fleet_reader_{_OF_READER.get(key, key)}", {"subscriber": reader["subscriber"]}, reader[key]
    for node in nodes:
        labels = {"node": node["name"], "identity": node["identity"]}
        for key in ("seen_s", "clock_difference_s", "waiting_bytes", "disk_bytes"):
            yield f"quiver_fleet_node_{_OF_NODE.get(key, key)}", labels, node[key]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
