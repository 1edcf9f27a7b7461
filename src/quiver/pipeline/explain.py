"""Describes a validated pipeline, as plain values and in sentences: the output of `quiver run --check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from quiver.delivery.policy import RetryPolicy
from quiver.errors import UsageError
from quiver.exporters.settings import shown
from quiver.pipeline.config.formatting import duration_words, size_words
from quiver.pipeline.config.polled import PolledReceiverConfig
from quiver.pipeline.config.processor import UserProcessorConfig
from quiver.pipeline.config.receiver import ReceiverConfig
from quiver.pipeline.config.route_signals import undelivered_signals
from quiver.pipeline.model import Buffer, Node, Pipeline, Route
from quiver.pipeline.port_limits import too_many_connections
from quiver.primitives.disk.descriptors import descriptor_limit
from quiver.receivers.security import is_loopback
from quiver.receivers.settings import split_address
from quiver.settings import Settings
from quiver.spark.session_settings import LOCAL_MASTER, MASTER, SessionSettings

__all__ = ["describe", "promises"]

_WORDS_MAX = 160

_ORDERS = {"newest": "the newest first; every fourth bundle is the oldest, until there is no backlog"}

_WHEN_FULL = {"drop_oldest": "the oldest data is dropped", "backpressure": "senders are asked to retry later"}


def describe(
    pipeline: Pipeline, *, cores: int | None = None, spark_defaults: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """
    Describe what would run, as plain values: nodes in the order of the flow, and what each exporter receives.

    *spark_defaults* are the properties of `spark-defaults.conf`.
    """
    main = pipeline.main
    return {
        "receivers": [
            _receiver(name, config, buffer) for buffer in pipeline.buffers for name, config in _receivers(buffer)
        ],
        "persistence": {
            "path": None if main.kind == "memory" else main.config.path,
            "durability": _durability(main),
            "cores": cores,
        },
        "buffers": [_buffer(buffer) for buffer in pipeline.buffers],
        "processors": [
            {"node": node.name, "does": _does(node)}
            for node in pipeline.nodes.values()
            if node.kind == "processor" and not node.plugin.is_store
        ],
        "exporters": [_exporter(buffer, route) for buffer in pipeline.buffers for route in buffer.routes],
        "metrics": None if pipeline.metrics is None else {"listen": pipeline.metrics.listen},
        "status": _status(pipeline),
        "disk": None if pipeline.disk is None else {"holds_at_most_bytes": pipeline.disk.size_cap},
        "spark": _spark(pipeline.spark, spark_defaults) if pipeline.queries else None,
        "says": promises(pipeline, cores=cores),
    }


def promises(pipeline: Pipeline, *, cores: int | None = None) -> list[str]:
    """Describe in sentences which guarantees the pipeline gives, and which it does not."""
    sentences = []
    exporters = [route for buffer in pipeline.buffers for route in buffer.routes if route.into is None]
    if not exporters:
        sentences.append("No exporter: received data is kept until another program reads it.")
    sentences += _received(exporters)
    for buffer in pipeline.buffers:
        if buffer.kind == "intake":
            ends = _listed(route.name for route in buffer.routes)
            sentences.append(
                f"Received data waits in {buffer.config.path}, with the same durability as in {ends}, "
                "until it is processed."
            )
        elif buffer.kind == "staged":
            sentences.append(
                f"{buffer.routes[0].name} sends bundles, not rows: the output of the processors before it waits in "
                f"{buffer.config.path}."
            )
    if not pipeline.is_durable:
        cap = size_words(
            next(one.config.settings.size_cap_bytes or 0 for one in pipeline.buffers if one.kind == "memory")
        )
        sentences.append(
            f"There is no persistence node: up to {cap} wait in memory. When this pipeline stops or dies, data that "
            "was not exported is lost, even if it was confirmed."
        )
        kept = [one.config.path or f"of {one.name}" for one in pipeline.buffers if _keeps_dead_letters_in_memory(one)]
        if kept:
            sentences.append(
                "Dead letters are in memory, too, and are lost with it: list or replay them while the pipeline runs "
                f"(quiver dead-letters list {' and '.join(kept)})."
            )
    if pipeline.disk is not None:
        sentences.append(
            f"All buffers and dead letters together use at most {size_words(pipeline.disk.size_cap)} of the disk."
        )
    sentences += [
        f"Warning: {text}"
        for text in (
            *_unrouted(pipeline),
            *_exposed(pipeline),
            *_loops(pipeline),
            *_unlogged(pipeline),
            *_too_many(pipeline),
            *_missing_files(pipeline),
        )
    ]
    if cores is not None and cores > 1:
        sentences.append(
            f"{cores} ingest processes share each port, each with its own store; exporters read all of them."
        )
    return sentences


def _received(exporters: Sequence[Route]) -> list[str]:
    """Return what the exporters receive, in sentences."""
    everything = [route for route in exporters if route.signals is None]
    sentences = [f"{route.name} receives only {_listed(route.signals)}." for route in exporters if route.signals]
    if not sentences and len(exporters) > 1:
        count = len(exporters)
        sentences = [f"Each of the {count} exporters receives everything; data is not divided between them."]
    elif everything:
        who = "The exporter" if len(exporters) == 1 else _listed(route.name for route in everything)
        sentences.append(f"{who} {'receive' if len(everything) > 1 else 'receives'} everything.")
    return sentences


def _unrouted(pipeline: Pipeline) -> list[str]:
    """Return a warning for each signal that is received and that no exporter wants."""
    return [
        f"no exporter after {buffer.name} receives {_listed(signals)}, which "
        f"{_listed(node.name for node in receivers)} {'accept' if len(receivers) > 1 else 'accepts'}: this data is "
        "stored, acknowledged without being sent, counted in quiver.exporter.skipped_bundles_total, and deleted."
        for buffer, receivers, signals in undelivered_signals(pipeline)
    ]


def _keeps_dead_letters_in_memory(buffer: Buffer) -> bool:
    return buffer.kind == "memory" and any(
        route.config.policy().on_exhausted == "dead_letter" for route in buffer.routes
    )


def _exposed(pipeline: Pipeline) -> list[str]:
    """Return a warning for each port that others can reach without TLS or authentication."""
    ports = [
        (name, address, config.security.missing())
        for name, config in pipeline.receivers
        if isinstance(config, ReceiverConfig)
        for address in config.addresses.values()
    ]
    if pipeline.metrics is not None:
        ports.append(("metrics", pipeline.metrics.listen, "tls and auth"))
    if pipeline.status is not None:
        ports.append(("status", pipeline.status.listen, "tls and auth"))
    return [
        f"{name} listens on {address}, which other machines can reach, without {lacks}, as insecure: true allows."
        for name, address, lacks in ports
        if lacks and not is_loopback(split_address(address)[0])
    ]


def _status(pipeline: Pipeline) -> dict[str, Any] | None:
    if pipeline.status is None:
        return None
    changes = "nothing" if pipeline.status.auth is None else "dead letters, with a bearer token"
    return {"listen": pipeline.status.listen, "changes": changes}


def _too_many(pipeline: Pipeline) -> list[str]:
    warning = too_many_connections(pipeline, descriptor_limit(raised=True))
    return [] if warning is None else [warning]


def _missing_files(pipeline: Pipeline) -> list[str]:
    try:
        pipeline.spark.check_files()
    except (UsageError, OSError) as error:
        return [f"{error}. The Spark process would not start."]
    return []


def _unlogged(pipeline: Pipeline) -> list[str]:
    """Return a warning for each receiver that confirms data that is only in memory."""
    return [
        f"{node.name} confirms requests that are in memory only (ack: logged), because {buffer.name} keeps no log "
        "(durability: segment_only): a crash loses them until their segment is sealed."
        for buffer in pipeline.buffers
        if buffer.kind != "memory" and buffer.config.settings.durability == "segment_only"
        for node in buffer.receivers
        if getattr(node.config, "ack", None) == "logged"
    ]


def _loops(pipeline: Pipeline) -> list[str]:
    """
    Return a warning for each exporter that sends to a port, topic or store that this pipeline reads: the data loops
    forever.
    """
    ports: dict[int, str] = {}
    for name, config in pipeline.receivers:
        for address in config.addresses.values():
            ports[split_address(address)[1]] = name
    found = []
    for name, exporter in pipeline.forwarders:
        target = exporter.settings().target
        if target.port in ports and is_loopback(target.host):
            found.append(
                f"{name} sends to {exporter.destination}, where {ports[target.port]} listens: the data forms a loop."
            )
    sources = {
        config.settings().listening_addr: name
        for name, config in pipeline.receivers
        if isinstance(config, PolledReceiverConfig)
    }
    for name, config in pipeline.exporters:
        reader = sources.get(config.destination) or sources.get(f"store {config.destination.rstrip('/')}")
        if reader is not None:
            found.append(f"{name} writes to {config.destination}, which {reader} reads: the data forms a loop.")
    return found


def _receivers(buffer: Buffer) -> list[tuple[str, ReceiverConfig | PolledReceiverConfig]]:
    return [(node.name, node.config) for node in buffer.receivers]


def _receiver(name: str, config: ReceiverConfig | PolledReceiverConfig, buffer: Buffer) -> dict[str, Any]:
    described = config.describe()
    if buffer.kind == "memory" and "ack" in described:
        described["ack"] = "logged"  # there is nothing to sync
    return {"node": name, **described, "into": buffer.name}


def _spark(settings: SessionSettings, defaults: Mapping[str, str]) -> dict[str, Any]:
    """Describe where Spark runs. Of `config` only the keys are shown: a value may be a secret."""
    origin = "" if settings.master is not None or MASTER not in defaults else " (spark-defaults.conf)"
    return {
        "master": shown(settings.master or defaults.get(MASTER) or LOCAL_MASTER) + origin,
        "config": sorted(settings.config),
        "packages": list(settings.packages),
        **{key: [shown(one) for one in getattr(settings, key)] for key in ("jars", "files", "archives")},
        "python_archive": settings.python_archive,
    }


def _durability(buffer: Buffer) -> str:
    return "none" if buffer.kind == "memory" else buffer.config.settings.durability


def _buffer(buffer: Buffer) -> dict[str, Any]:
    settings = buffer.config.settings
    return {
        "node": buffer.name,
        "pipeline": buffer.pipeline or None,
        "kind": buffer.kind,
        "path": buffer.config.path or None,
        "durability": _durability(buffer),
        "survives": _survives(buffer, settings),
        "seals_at_bytes": settings.segment_bytes_max,
        "seals_after_s": settings.seal_age_s,
        "log_at_most_bytes": settings.wal_bytes_max if settings.durability == "wal" else None,
        "holds_at_most_bytes": settings.size_cap_bytes,
        "has_default_cap": buffer.config.has_default_cap,
        "when_full": _WHEN_FULL[settings.size_cap_policy],
        "keeps_at_most_s": settings.max_age_s,
        "object_tier": _tier(settings),
        "subscribers": [route.name for route in buffer.routes],
    }


def _tier(settings: Settings) -> dict[str, Any] | None:
    if settings.cold_objects is None:
        return None
    return {
        "url": str(settings.cold_objects),
        "also_on_disk_bytes": settings.cold_local_bytes,
        "also_on_disk_s": settings.cold_local_age_s,
        "deleted_after_s": settings.cold_max_age_s,
        "node_of_a_fleet": settings.fleet_name,
        "read_by": list(settings.fleet_subscribers),
    }


def _survives(buffer: Buffer, settings: Settings) -> str:
    if buffer.kind == "memory":
        return "nothing: it is in memory"
    if settings.durability == "segment_only":
        return "sealed segments, with everything confirmed by ack: synced; a crash loses the open segment"
    if settings.wal_flush_interval_s == 0:
        return "a crash and a power loss"
    return f"a crash; a power loss except for the last {duration_words(settings.wal_flush_interval_s)}"


def _does(node: Node) -> str:
    if isinstance(node.config, UserProcessorConfig):
        return f"{node.plugin.urn} of {node.config.entry_point.value}"
    keys = {
        key: getattr(node.config, key) for key in type(node.config).model_fields if key in node.config.model_fields_set
    }
    # A salt or a value may be a secret.
    described = ", ".join(f"{key}: {_shown(value)}" for key, value in keys.items() if "salt" not in key)
    return f"{node.plugin.name}: {described}" if described else node.plugin.name


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        text = ", ".join(
            f"{one.action} {one.key or repr(one.key)}" if hasattr(one, "action") else str(one) for one in value
        )
    else:
        text = " ".join(str(value).split())
    return text if len(text) <= _WORDS_MAX else f"{text[:_WORDS_MAX]}…"


def _exporter(buffer: Buffer, route: Route) -> dict[str, Any]:
    return {
        "node": route.name,
        "is": "exporter" if route.into is None else "into a buffer",
        "subscriber": route.name,
        "to": route.config.destination,
        "receives": "everything" if route.signals is None else _listed(route.signals),
        "of": buffer.name,
        "through": [node.name for node in route.processors],
        "runs_in": "spark" if route.is_query else "ingest",
        "sends": route.config.sends,
        "order": _ORDERS.get(route.config.order),
        "retry": _retry(buffer, route),
        "dead_letters": _dead_letters(route),
    }


def _dead_letters(route: Route) -> dict[str, Any] | None:
    if route.config.policy().on_exhausted != "dead_letter":
        return None
    policy = route.config.dead_letter_policy()
    return {
        "holds_at_most_bytes": policy.size_cap_bytes,
        "when_full": policy.size_cap_policy,
        "keeps_at_most_s": policy.max_age_s,
        "replay": policy.replay,
    }


def _retry(buffer: Buffer, route: Route) -> dict[str, Any]:
    policy = route.config.policy()
    if not route.is_query:
        return _retry_values(policy, buffer)
    values = _retry_values(replace(policy, max_attempts=None, max_elapsed_s=None), buffer)
    alone = _retry_values(policy.for_processors(), buffer) if route.processors else None
    return values | {"of_one_bundle": alone}


def _retry_values(policy: RetryPolicy, buffer: Buffer) -> dict[str, Any]:
    return {
        "initial_interval_s": policy.initial_interval_s,
        "max_interval_s": policy.max_interval_s,
        "max_attempts": policy.max_attempts,
        "max_elapsed_s": policy.max_elapsed_s,
        "on_exhausted": policy.on_exhausted,
        "dead_letters_in_memory": buffer.kind == "memory",
    }


def _listed(names: Any) -> str:
    return " and ".join(names)
