"""
Load and validate a pipeline file before any process starts: its nodes, its buffers, and the routes between them.

Every exporter is a subscriber, named like its node, and receives everything. A persistence node without destinations
only buffers. `config.flow` adds the implicit buffers.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path as FilePath
from typing import Any

from quiver.errors import SettingsError, UsageError
from quiver.exporters.settings import shown
from quiver.pipeline.companion_stores import sibling_directory
from quiver.pipeline.config.exporter import (
    FileExporterConfig,
    ParquetExporterConfig,
    QueryExporterConfig,
    QuiverExporterConfig,
    SparkExporterConfig,
    TableFormatConfig,
    is_given,
)
from quiver.pipeline.config.flow import BufferPlan, plan_buffers
from quiver.pipeline.config.limits import DiskConfig, MemoryConfig
from quiver.pipeline.config.parse import Document, Path, Problems, load_document, nearest
from quiver.pipeline.config.polled import PolledReceiverConfig
from quiver.pipeline.config.receiver import ReceiverConfig, StatusConfig
from quiver.pipeline.config.route_signals import Signals, route_signals
from quiver.pipeline.config.route_tables import check_tables
from quiver.pipeline.config.shapes import RawNode, mapping, read_nodes
from quiver.pipeline.config.spark import SparkConfig
from quiver.pipeline.config.store import StoreReceiverConfig
from quiver.pipeline.disk import too_small
from quiver.pipeline.model import Buffer, Node, Pipeline, Route, lead_into
from quiver.pipeline.plugins import MetricsConfig, PersistenceConfig, checked
from quiver.receivers.settings import overlap, split_address
from quiver.store.format.cores import CORE_MAX

__all__ = ["check_cores", "load_pipeline"]

LOG_LEVELS = ("debug", "info", "warning", "error")
"""The log levels of the child processes."""

PORT_MAX = 65_535


def check_cores(pipeline: Pipeline, cores: int) -> None:
    """
    Refuse too many *cores*: above the limit, too many for the size cap of a buffer, or so many that the consecutive
    ports of their metrics collide with another port.

    Raises:
        UsageError: with the limit, or the port and its user.
    """
    if cores > CORE_MAX + 1:
        raise UsageError(f"{cores} cores are too many: at most {CORE_MAX + 1}")
    for buffer in pipeline.buffers:
        cap = buffer.config.settings.size_cap_bytes
        try:
            replace(buffer.config.settings, size_cap_bytes=None if cap is None else cap // cores)
        except SettingsError as error:
            raise UsageError(f"{buffer.name}: for each of {cores} cores, {error}") from error
    problem = too_small(pipeline, cores)
    if problem is not None:
        raise UsageError(problem)
    if pipeline.metrics is None:
        return
    receivers = {
        split_address(address)[1]: name for name, config in pipeline.receivers for address in config.addresses.values()
    }
    if pipeline.status is not None:
        receivers[split_address(pipeline.status.listen)[1]] = "status"
    first = split_address(pipeline.metrics.listen)[1]
    for core in range(cores):
        port = first + core
        problem = (
            f"where {receivers[port]} listens" if port in receivers else "which is invalid" if port > PORT_MAX else ""
        )
        if problem:
            raise UsageError(f"with {cores} cores, the metrics of core {core} would use port {port}, {problem}")


# ── loading ──────────────────────────────────────────────────────────────────────────────────────────


def load_pipeline(text: str, *, source: str, values: Mapping[str, str]) -> tuple[Pipeline, frozenset[str]]:
    """
    Parse and validate *text*; return the pipeline and the names of its placeholders.

    Raises:
        PipelineError: all errors, each with its line and a suggestion. Relations between nodes are checked only when
            each node is valid on its own.
    """
    document = load_document(text, source=source, values=values)
    problems = Problems()
    raw = read_nodes(document, problems)
    plans = [] if problems else _plans(document, raw, problems)
    nodes = _nodes(document, raw, plans, problems)
    metrics = _optional_section(document, "metrics", MetricsConfig, problems)
    status = _optional_section(document, "status", StatusConfig, problems)
    memory = _optional_section(document, "memory", MemoryConfig, problems)
    disk = _optional_section(document, "disk", DiskConfig, problems)
    spark = _optional_section(document, "spark", SparkConfig, problems) or SparkConfig()
    log_level, cores = _log_level(document, problems), _cores(document, problems)
    problems.raise_found()
    _check_limits(document, plans, problems)
    problems.raise_found()
    signals = route_signals(document, raw, plans, nodes)
    if disk is not None:
        nodes = {name: _under_budget(node) for name, node in nodes.items()}
    buffers = tuple(_buffer(plan, nodes, memory or MemoryConfig(), signals) for plan in plans)
    paths = {buffer.name: buffer.config.path or f"{buffer.name}/" for buffer in buffers}
    buffers = tuple(lead_into(buffer, paths) for buffer in buffers)
    pipeline = Pipeline(source, nodes, buffers, metrics, log_level, disk, cores, text, spark.settings(), status)
    _check_together(document, raw, pipeline, problems)
    problems.raise_found()
    return pipeline, document.placeholders


def _plans(document: Document, raw: Mapping[str, RawNode], problems: Problems) -> list[BufferPlan]:
    with problems:
        _check_acyclic(document, raw)
        plans = plan_buffers(document, raw)
        _check_fed(document, raw)
        return plans
    return []


def _check_limits(document: Document, plans: list[BufferPlan], problems: Problems) -> None:
    kinds = {plan.kind for plan in plans}
    if "memory" in document.value and "memory" not in kinds:
        reason = "memory has no effect: the persistence node holds what waits"
        problems.add(document.invalid(("memory",), reason))
    if "disk" in document.value and kinds == {"memory"}:
        reason = "disk has no effect: nothing is kept on the disk; write memory.size_cap"
        problems.add(document.invalid(("disk",), reason))


def _check_together(document: Document, raw: Mapping[str, RawNode], pipeline: Pipeline, problems: Problems) -> None:
    """Check what no two nodes may share, and what would have no effect."""
    if "spark" in document.value and not pipeline.queries:
        problems.add(document.invalid(("spark",), "spark has no effect: no node runs on Spark; leave it out"))
    _check_addresses(document, raw, pipeline, problems)
    _check_positions(document, raw, pipeline, problems)
    _check_directories(document, raw, pipeline, problems)
    _check_bounds(document, raw, pipeline, problems)
    _check_tiers(document, raw, pipeline, problems)
    with problems:
        check_tables(document, raw, pipeline)
    problem = too_small(pipeline)
    if problem is not None:
        problems.add(document.invalid(("disk", "size_cap"), problem))
    elif pipeline.cores is not None:
        try:
            check_cores(pipeline, pipeline.cores)
        except UsageError as error:
            problems.add(document.invalid(("cores",), str(error)))


def _optional_section(document: Document, key: str, model: Any, problems: Problems) -> Any:
    top = document.value
    if key in top:
        with problems:
            return checked(model, document, (key,), mapping(document, (key,), top[key], key))
    return None


def _log_level(document: Document, problems: Problems) -> str:
    level = document.value.get("log_level", "info")
    if level not in LOG_LEVELS:
        reason = f"log_level: {level!r} is not available{nearest(str(level), LOG_LEVELS)}"
        problems.add(document.invalid(("log_level",), reason))
    return str(level)


def _cores(document: Document, problems: Problems) -> int | None:
    cores = document.value.get("cores")
    if cores is None or (isinstance(cores, int) and not isinstance(cores, bool) and cores >= 1):
        return cores
    reason = f"cores: {cores!r} is not the number of ingest processes; write for example 4"
    problems.add(document.invalid(("cores",), reason))
    return None


def _check_acyclic(document: Document, nodes: Mapping[str, RawNode]) -> None:
    sorter = TopologicalSorter({name: tuple(node.edges) for name, node in nodes.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = list(reversed(error.args[1]))
        reason = f"the nodes form a cycle: {' → '.join(cycle)}"
        raise document.invalid(nodes[cycle[0]].edges[cycle[1]].path, reason) from error


def _check_fed(document: Document, nodes: Mapping[str, RawNode]) -> None:
    fed = {name for node in nodes.values() for name in node.edges}
    for node in nodes.values():
        if node.plugin.kind != "receiver" and node.name not in fed:
            raise document.invalid(node.path, f"no node feeds {node.name}: add it to the destinations of one")
    if not any(node.plugin.kind == "receiver" for node in nodes.values()):
        raise document.invalid((), "there is no receiver")


def _nodes(
    document: Document, raw: Mapping[str, RawNode], plans: list[BufferPlan], problems: Problems
) -> dict[str, Node]:
    """Return the nodes with valid configs, including the defaults that a persistence node has for its neighbors."""
    stores: dict[str, Node] = {}
    for name, node in raw.items():
        if node.plugin.is_store:
            with problems:
                stores[name] = _node(document, node, {})
    defaults: dict[str, Mapping[str, Any]] = {}
    for plan in plans:
        if plan.derived_from not in stores:
            continue
        config: PersistenceConfig = stores[plan.derived_from].config
        defaults |= dict.fromkeys(plan.receivers, config.receiver_defaults)
        defaults |= {route.name: config.exporter_defaults for route in plan.routes if route.into is None}
    found: dict[str, Node] = {}
    for name, node in raw.items():
        with problems:
            if not node.plugin.is_store:
                found[name] = _node(document, node, defaults.get(name, {}))
            elif name in stores:
                found[name] = stores[name]
    return found


def _node(document: Document, raw: RawNode, defaults: Mapping[str, Any]) -> Node:
    fields = () if raw.plugin.model is None else raw.plugin.model.model_fields
    # Keys of the node itself take precedence, in any spelling.
    inside = {key: value for key, value in defaults.items() if key in fields and not is_given(raw.config, key)}
    inside |= dict(raw.config)
    config = raw.plugin.config(document, (*raw.path, "config"), inside)
    if raw.plugin.is_store:
        try:
            sibling_directory(config.path, "run")
        except UsageError as error:
            raise document.invalid((*raw.path, "config", "path"), str(error)) from error
    return Node(raw.name, raw.plugin, config, raw.edges)


def _under_budget(node: Node) -> Node:
    """Return *node* without a default cap: the budget of the pipeline limits its store."""
    return replace(node, config=node.config.without_default_cap()) if node.plugin.is_store else node


def _buffer(
    plan: BufferPlan, nodes: Mapping[str, Node], memory: MemoryConfig, signals: Mapping[str, Signals]
) -> Buffer:
    if plan.kind == "memory" or plan.derived_from is None:
        config = PersistenceConfig("", memory.settings())
    else:
        config = nodes[plan.derived_from].config
        if plan.kind != "persistence":
            config = replace(config, path=str(sibling_directory(config.path, plan.suffix)))
    routes = tuple(
        Route(
            route.name,
            tuple(nodes[name] for name in route.processors),
            QuiverExporterConfig.model_validate({"path": "-"}) if route.into is not None else nodes[route.name].config,
            route.into,
            route.strategy,
            signals[route.name],
        )
        for route in plan.routes
    )
    receivers = tuple(nodes[name] for name in plan.receivers)
    return Buffer(plan.name, plan.kind, config, receivers, routes, plan.pipeline)


# ── what no two may share ────────────────────────────────────────────────────────────────────────────


def _check_addresses(document: Document, raw: Mapping[str, RawNode], pipeline: Pipeline, problems: Problems) -> None:
    taken: dict[str, str] = {} if pipeline.metrics is None else {pipeline.metrics.listen: "metrics"}
    if pipeline.status is not None:
        listen = pipeline.status.listen
        if any(overlap(one, listen) for one in taken):
            problems.add(document.invalid(("status", "listen"), f"status and metrics cannot both listen on {listen}"))
        taken[listen] = "status"
    for node in pipeline.nodes.values():
        if not isinstance(node.config, ReceiverConfig):
            continue
        for address in node.config.addresses.values():
            other = next((one for one in taken if overlap(one, address)), None)
            if other is not None:
                theirs = "" if other == address else f", and {other} is that port, too"
                reason = f"{node.name} and {taken[other]} cannot both listen on {address}{theirs}"
                problems.add(document.invalid((*raw[node.name].path, "config"), reason))
            taken[address] = node.name


def _check_positions(document: Document, raw: Mapping[str, RawNode], pipeline: Pipeline, problems: Problems) -> None:
    """Refuse a second reader of one position: it could never acquire it."""
    taken: dict[str, str] = {}
    for node in pipeline.nodes.values():
        if not isinstance(node.config, PolledReceiverConfig):
            continue
        position = node.config.position
        if position in taken:
            reason = f"{node.name} and {taken[position]} cannot both be {position}: use another name for one of them"
            problems.add(document.invalid((*raw[node.name].path, "config"), reason))
        taken[position] = node.name


def _check_tiers(document: Document, raw: Mapping[str, RawNode], pipeline: Pipeline, problems: Problems) -> None:
    for buffer in pipeline.buffers:
        for node in buffer.receivers:
            if getattr(node.config, "durable", None) == "tier" and buffer.config.settings.cold_objects is None:
                reason = f"durable: tier waits for the object tier of {buffer.name}, which has none: set cold.objects"
                problems.add(document.invalid((*raw[node.name].path, "config"), reason))


def _check_directories(document: Document, raw: Mapping[str, RawNode], pipeline: Pipeline, problems: Problems) -> None:
    """Refuse nodes that would write to the same directory: output files, a store, or Spark's checkpoint."""
    taken: dict[str, str] = {}
    stores: dict[str, str] = {}
    for buffer in pipeline.buffers:
        if buffer.kind != "memory":
            stores[posixpath.abspath(buffer.config.path)] = buffer.name
    for node in pipeline.nodes.values():
        with problems:
            _check_directories_of(document, raw[node.name], node, stores, taken)


def _check_directories_of(
    document: Document, raw: RawNode, node: Node, stores: Mapping[str, str], taken: dict[str, str]
) -> None:
    """Refuse directories of *node* that *stores* or *taken* have, each with a node; add the others to *taken*."""
    _check_local(document, raw, node)
    if isinstance(node.config, StoreReceiverConfig):
        mine = _own_store(node.config.settings().directory, stores)
        if mine is not None:
            reason = f"{node.name} would read what {mine} of this pipeline keeps: name the store of another program"
            raise document.invalid((*raw.path, "config", "store"), reason)
    for key in ("path", "checkpoint"):
        directory = getattr(node.config, key, None)
        if not isinstance(directory, str) or not directory:
            continue
        where: Path = (*raw.path, "config", key)
        path = posixpath.abspath(directory)
        own = path if node.plugin.is_store else None
        if own is not None and FilePath(path).exists() and not FilePath(path).is_dir():
            raise document.invalid(where, f"{directory} is a file, and the place of a store is a directory")
        around = next((root for root in stores if root != own and f"{path}/".startswith(f"{root}/")), None)
        if around is not None:
            reason = f"{node.name} and {stores[around]} cannot both write to {directory}"
            raise document.invalid(where, f"{reason}: that is, or lies in, the directory of a store")
        if key == "path" and node.plugin.name == "spark":
            continue  # a Spark format may support several writers
        if path in taken:
            raise document.invalid(where, f"{node.name} and {taken[path]} cannot both write to {directory}")
        taken[path] = node.name
    if isinstance(node.config, ParquetExporterConfig) and node.config.checkpoint_path is not None:
        taken.setdefault(posixpath.abspath(node.config.checkpoint_path), node.name)


def _check_local(document: Document, raw: RawNode, node: Node) -> None:
    """Refuse a URL in place of a directory: a local directory of that name would be created."""
    for key in ("path", "store", "topics"):
        directory = getattr(node.config, key, None)
        if isinstance(directory, str) and "://" in directory and not isinstance(node.config, SparkExporterConfig):
            if isinstance(node.config, ParquetExporterConfig | TableFormatConfig):
                continue  # its settings refuse other addresses than those of buckets
            are_files = isinstance(node.config, FileExporterConfig)
            hint = "; urn:quiver:spark:exporter writes wherever Spark can" if are_files else ""
            reason = f"{key}: {shown(directory)} is an address; name a directory of this machine{hint}"
            raise document.invalid((*raw.path, "config", key), reason)


def _own_store(directory: str, stores: Mapping[str, str]) -> str | None:
    """Return the store that *directory* names or is inside of, with symbolic links resolved; None if there is none."""
    path = os.path.realpath(directory)
    return next((name for own, name in stores.items() if f"{path}/".startswith(f"{os.path.realpath(own)}/")), None)


# ── what would have no effect ────────────────────────────────────────────────────────────────────────


def _check_bounds(document: Document, raw: Mapping[str, RawNode], pipeline: Pipeline, problems: Problems) -> None:
    """Refuse limits on attempts where they would have no effect."""
    for route in pipeline.routes.values():
        if not isinstance(route.config, QueryExporterConfig) or route.processors or route.into is not None:
            continue
        for key in ("max_attempts", "max_elapsed"):
            if getattr(route.config.retry, key) is not None:
                reason = (
                    f"retry.{key} has no effect here: Spark commits one batch after another, so a failed batch is "
                    "retried until it succeeds, and no processor can fail on a single bundle; leave it out"
                )
                problems.add(document.invalid((*raw[route.name].path, "config", "retry", key), reason))
