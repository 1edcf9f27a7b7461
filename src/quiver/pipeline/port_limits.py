"""Limits on the connections of an ingest process: no more than the files it may open."""

from __future__ import annotations

from quiver.pipeline.config.receiver import ReceiverConfig
from quiver.pipeline.model import Pipeline

__all__ = ["KEPT_FOR_LOGS", "connection_share", "too_many_connections"]

OWN_DESCRIPTORS = 256
"""The descriptors that an ingest process needs for other purposes: logs, segments, exporters, libraries."""

KEPT_FOR_LOGS = 64
"""The number of descriptors that are reserved for the logs."""


def connection_share(pipeline: Pipeline, limit: int | None) -> float:
    """Return the fraction of each port's `max_connections` that fits into a process with at most *limit* open files."""
    wanted = _wanted(pipeline)
    if limit is None or wanted + OWN_DESCRIPTORS <= limit:
        return 1.0
    return max(limit - OWN_DESCRIPTORS, limit // 2) / wanted


def too_many_connections(pipeline: Pipeline, limit: int | None) -> str | None:
    """
    Return a warning if the ports accept more connections than fit into a process with at most *limit* open files; None
    otherwise.
    """
    share = connection_share(pipeline, limit)
    if share == 1.0:
        return None
    return (
        f"max_connections of all ports add up to {_wanted(pipeline)}, and a process here may open {limit} files: each "
        f"port takes {share:.0%} of its connections. Raise the hard limit (ulimit -Hn), or lower max_connections."
    )


def _wanted(pipeline: Pipeline) -> int:
    return sum(
        node.config.settings(address).connections_max
        for buffer in pipeline.buffers
        for node in buffer.receivers
        if isinstance(node.config, ReceiverConfig)
        for address in node.config.addresses.values()
    )
