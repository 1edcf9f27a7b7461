"""How many connections the ports of an ingest process may take: no more than it can have files open."""

from __future__ import annotations

from quiver.pipeline.config.receiver import ReceiverConfig
from quiver.pipeline.model import Pipeline

__all__ = ["KEPT_FOR_LOGS", "connection_share", "too_many_connections"]

OWN_DESCRIPTORS = 256
"""What an ingest process opens beside connections: logs, segments that are read, exporters, libraries."""

KEPT_FOR_LOGS = 64
"""Of these, so many are kept for the logs, whoever takes the others."""


def connection_share(pipeline: Pipeline, limit: int | None) -> float:
    """Return which part of each port's `max_connections` fits into a process that may open *limit* files; at most 1."""
    wanted = _wanted(pipeline)
    if limit is None or wanted + OWN_DESCRIPTORS <= limit:
        return 1.0
    return max(limit - OWN_DESCRIPTORS, limit // 2) / wanted


def too_many_connections(pipeline: Pipeline, limit: int | None) -> str | None:
    """
    Say that the ports may take more connections than a process that may open *limit* files; None
    when they may not.
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
