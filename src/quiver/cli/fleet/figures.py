"""The figures of a fleet: numbers with their unit in the name, as `--json` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quiver.store.reading.fleet.lag import NodeLag, lag_of
from quiver.store.reading.fleet.survey import FleetSurvey, ReaderPositions, SurveyedNode

__all__ = ["lag_figures", "node_figures", "node_lag_figures", "state_of"]


def state_of(node: SurveyedNode, now_ns: int, silent_s: float) -> str:
    """Return the state that a node reports; `silent` if it should have reported since, `unknown` without a record."""
    if node.record is None:
        return "unknown"
    if node.record.state == "running" and node.is_silent(now_ns, silent_s):
        return "silent"
    return node.record.state


def node_figures(node: SurveyedNode, *, now_ns: int, silent_s: float) -> dict[str, Any]:
    """Return the figures of one node: those of its record, and what of it is in the bucket."""
    record = node.record
    segments = [one for one, _ in node.objects if not one.is_gone]
    figures: dict[str, Any] = {
        "name": node.name,
        "identity": node.identity,
        "state": state_of(node, now_ns, silent_s),
        "seen_s": node.seen_s(now_ns),
        "clock_difference_s": node.clock_difference_s,
        "version": None if record is None else record.version,
        "next_segment": None if record is None else record.next_segment,
        "inbox_segments": len(segments),
        "inbox_bytes": sum(one.size_bytes for one in segments),
        "gone_records": len(node.objects) - len(segments),
        "other_objects": len(node.others),
    }
    for name in ("waiting_segments", "waiting_bytes", "disk_bytes", "disk_cap_bytes", "disk_free_bytes"):
        figures[name] = None if record is None else getattr(record, name)
    oldest_ns = None if record is None else record.oldest_waiting_ns
    # By the node's clock, as both times are; since then, time has passed by ours.
    age_s = None if record is None or oldest_ns is None else (record.written_at_ns - oldest_ns) / 1e9
    figures["oldest_waiting_s"] = None if age_s is None else max(0.0, age_s) + (node.seen_s(now_ns) or 0.0)
    figures["subscribers"] = [] if record is None else list(record.subscribers)
    figures["labels"] = {} if record is None else dict(record.labels)
    figures["problem"] = node.problem if record is None else record.problem
    return figures


def node_lag_figures(node: SurveyedNode, reader: ReaderPositions, *, now_ns: int) -> dict[str, Any]:
    """Return the lag of one reader in one node."""
    lag = lag_of(node.objects, reader.nodes.get(node.identity))
    return {"subscriber": reader.subscriber, "name": node.name, "identity": node.identity, **_of(lag, now_ns)}


def lag_figures(found: FleetSurvey, *, now_ns: int) -> list[dict[str, Any]]:
    """Return the lag of each reader: its sum, and one entry for each node, the largest first."""
    of_reader: dict[str, list[dict[str, Any]]] = {name: [] for name in found.readers}
    for node in found.nodes.values():
        for reader in found.readers_of(node):
            of_reader[reader.subscriber].append(node_lag_figures(node, reader, now_ns=now_ns))
    return [_sum(found.readers[name], nodes) for name, nodes in of_reader.items()]


def _of(lag: NodeLag, now_ns: int) -> dict[str, Any]:
    return {
        "position": lag.position,
        "lag_segments": lag.segments,
        "lag_bytes": lag.size_bytes,
        "gone_segments": lag.gone_segments,
        "oldest_s": None if lag.oldest_ns is None else max(0, now_ns - lag.oldest_ns) / 1e9,
        "problem": lag.problem,
        "unread_after_problem": lag.unread_after_problem,
    }


def _sum(reader: ReaderPositions, nodes: list[dict[str, Any]]) -> dict[str, Any]:
    ages = [one["oldest_s"] for one in nodes if one["oldest_s"] is not None]
    sums: Mapping[str, int] = {
        key: sum(one[key] for one in nodes) for key in ("lag_segments", "lag_bytes", "gone_segments")
    }
    return {
        "subscriber": reader.subscriber,
        "epoch": reader.epoch,
        "nodes": len(nodes),
        "nodes_behind": sum(one["lag_segments"] > 0 for one in nodes),
        **sums,
        "oldest_s": max(ages, default=None),
        "blocked_nodes": sum(one["problem"] is not None for one in nodes),
        "unreadable_positions": list(reader.problems),
        "of_nodes": sorted(nodes, key=lambda one: (-one["lag_bytes"], one["name"], one["identity"])),
    }
