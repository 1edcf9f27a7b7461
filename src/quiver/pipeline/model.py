"""A pipeline, checked: its nodes, its buffers, and the routes between them."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

from quiver.pipeline.config.exporter import (
    ExporterConfig,
    OtlpExporterConfig,
    QueryExporterConfig,
    QuiverExporterConfig,
)
from quiver.pipeline.config.flow import BufferKind
from quiver.pipeline.config.limits import DiskConfig
from quiver.pipeline.config.polled import PolledReceiverConfig
from quiver.pipeline.config.receiver import ReceiverConfig, StatusConfig
from quiver.pipeline.config.shapes import Edge
from quiver.pipeline.plugins import MetricsConfig, NodeKind, PersistenceConfig, Plugin
from quiver.spark.session_settings import SessionSettings

__all__ = ["Buffer", "Node", "Pipeline", "Route", "lead_into", "memory_directory"]


@dataclass(frozen=True, slots=True)
class Node:
    """A node: its name, its plugin, its validated config, and its edges with their places in the file."""

    name: str
    plugin: Plugin
    config: Any
    edges: Mapping[str, Edge]

    @property
    def destinations(self) -> tuple[str, ...]:
        """The names of the nodes it feeds, in file order."""
        return tuple(self.edges)

    @property
    def kind(self) -> NodeKind:
        """Receiver, processor or exporter."""
        return self.plugin.kind


@dataclass(frozen=True, slots=True)
class Route:
    """
    A route out of a buffer; each route is a subscriber.

    Attributes:
        name: the subscriber id: the name of the node at its end.
        processors: the processors on the route, in order.
        config: the config of the exporter at its end.
        into: the buffer at its end; None if it ends at an exporter.
        strategy: `round_robin`: queries of one buffer take turns in Spark; `broadcast`: first come, first served.
        signals: the signals that take it; None for all. The others are acknowledged at its start, and counted.
    """

    name: str
    processors: tuple[Node, ...]
    config: ExporterConfig
    into: str | None = None
    strategy: str = "round_robin"
    signals: tuple[str, ...] | None = None

    @property
    def is_query(self) -> bool:
        """Whether the route runs in the Spark process; otherwise it runs in the ingest process."""
        return bool(self.processors) or isinstance(self.config, QueryExporterConfig)


@dataclass(frozen=True, slots=True)
class Buffer:
    """
    A store of the pipeline: the receivers that fill it, and the routes out of it.

    Attributes:
        name: the name of the persistence node; a generated one for implicit buffers.
        kind: `persistence`, or an implicit kind: `intake`, `memory`, `staged`.
        config: directory and settings. The directory of a `memory` buffer is empty until `Pipeline.placed` sets it.
        receivers: the receivers that fill it directly.
        routes: the routes out of it.
        pipeline: the name of its pipeline if the file has several; empty otherwise.
    """

    name: str
    kind: BufferKind
    config: PersistenceConfig
    receivers: tuple[Node, ...]
    routes: tuple[Route, ...]
    pipeline: str = ""


@dataclass(frozen=True)
class Pipeline:
    """A validated pipeline file, or the part of it around one buffer."""

    source: str
    nodes: Mapping[str, Node]
    buffers: tuple[Buffer, ...]
    metrics: MetricsConfig | None = None
    log_level: str = "info"
    disk: DiskConfig | None = None
    cores: int | None = None
    """The number of ingest processes, which the option `--cores` overrides; None for a single one without cores."""
    text: str = field(default="", repr=False)
    """The text of the file, with placeholders."""
    spark: SessionSettings = field(default_factory=SessionSettings)
    """The section `spark`; the defaults without it."""
    status: StatusConfig | None = None

    @property
    def receivers(self) -> list[tuple[str, ReceiverConfig | PolledReceiverConfig]]:
        """Name and config of each receiver."""
        return [(node.name, node.config) for buffer in self.buffers for node in buffer.receivers]

    @property
    def main(self) -> Buffer:
        """The buffer whose directory names the pipeline: that of the first persistence node, if there is one."""
        return next((buffer for buffer in self.buffers if buffer.kind == "persistence"), self.buffers[0])

    @property
    def persistence(self) -> PersistenceConfig:
        """Directory and settings of the main buffer."""
        return self.main.config

    @property
    def is_durable(self) -> bool:
        """Whether received data is stored on disk."""
        return all(buffer.kind != "memory" for buffer in self.buffers)

    @cached_property
    def routes(self) -> dict[str, Route]:
        """All routes by name."""
        return {route.name: route for buffer in self.buffers for route in buffer.routes}

    @property
    def exporters(self) -> list[tuple[str, Any]]:
        """
        Name (which is the subscriber id) and config of the end of each route: exporters, and buffers that processors
        fill.
        """
        return [(route.name, route.config) for route in self.routes.values()]

    @property
    def queries(self) -> list[tuple[str, Any]]:
        """The exporters that are queries of the Spark process."""
        return [(route.name, route.config) for route in self.routes.values() if route.is_query]

    @property
    def forwarders(self) -> list[tuple[str, OtlpExporterConfig]]:
        """The exporters that run in the ingest process."""
        return [
            (route.name, route.config)
            for route in self.routes.values()
            if not route.is_query and isinstance(route.config, OtlpExporterConfig)
        ]

    def parts(self) -> list[Pipeline]:
        """Return the pipeline around each buffer alone, in the order of the flow."""
        return [replace(self, buffers=(buffer,)) for buffer in self.buffers]

    def placed(self, run_dir: FilePath) -> Pipeline:
        """Return the pipeline with directories for its memory buffers, which depend only on *run_dir*."""
        if self.is_durable:
            return self
        root = memory_directory(run_dir)
        buffers = tuple(
            replace(one, config=replace(one.config, path=f"{root}/{one.name}")) if one.kind == "memory" else one
            for one in self.buffers
        )
        paths = {buffer.name: buffer.config.path for buffer in buffers}
        return replace(self, buffers=tuple(lead_into(buffer, paths) for buffer in buffers))


def memory_directory(run_dir: FilePath) -> FilePath:
    """Return the directory for the buffers of a pipeline in memory: on a memory file system if there is one."""
    memory = FilePath("/dev/shm")  # noqa: S108 - the name is derived from run_dir, and only the user can access it
    name = hashlib.blake2b(str(run_dir.absolute()).encode(), digest_size=8).hexdigest()
    return (memory if memory.is_dir() else FilePath(tempfile.gettempdir())) / f"quiver-memory-{name}"


def lead_into(buffer: Buffer, paths: Mapping[str, str]) -> Buffer:
    """Return *buffer* with routes that end at the directory of the buffer each leads into."""
    routes = tuple(
        route
        if route.into is None
        else replace(route, config=QuiverExporterConfig.model_validate({"path": paths[route.into]}))
        for route in buffer.routes
    )
    return replace(buffer, routes=routes)
