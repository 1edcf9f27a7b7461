"""Every key of a pipeline file has an effect: each one changes the settings of some part of the running system."""

import copy
from itertools import pairwise
from pathlib import Path
from typing import get_origin

import pytest
import yaml
from pydantic import BaseModel

from quiver.errors import PipelineError, UsageError
from quiver.pipeline.config.exporter import QueryExporterConfig
from quiver.pipeline.config.limits import DiskConfig, MemoryConfig
from quiver.pipeline.config.polled import PolledReceiverConfig
from quiver.pipeline.config.receiver_place import ReceiverPlace
from quiver.pipeline.descriptions.words import in_words
from quiver.pipeline.disk import budget_of
from quiver.pipeline.explain import describe
from quiver.pipeline.graph import check_cores, load_pipeline
from quiver.pipeline.plugins import PLUGINS, MetricsConfig, find_plugin
from quiver.pipeline.processes.reload import needs_restart
from quiver.pipeline.queries import chain_of, plan_queries, spark_settings
from quiver.settings import Settings

RETRY = {
    "signals": ["logs"],
    "retry.initial_interval": "2s",
    "retry.max_interval": "50s",
    "retry.multiplier": 3,
    "retry.jitter": 0.1,
    "retry.max_attempts": 5,
    "retry.max_elapsed": "1h",
    "retry.on_exhausted": "halt",
    "initial_retry_interval": "2s",
    "max_retry_interval": "50s",
    "retry_multiplier": 3,
    "dead_letters.size_cap": "9MiB",
    "dead_letters.size_cap_policy": "drop_oldest",
    "dead_letters.max_age": "9d",
    "dead_letters.replay": "manual",
}
"""The signals of an exporter, and the keys of its retry policy."""

SENDER = {
    **RETRY,
    "order": "newest",
    "grpc_endpoint": "http://127.0.0.1:2",
    "http_endpoint": ("http://127.0.0.1:2", {"grpc_endpoint": None}),
    "compression_method": "gzip",
    "timeout": "3s",
    "tls.ca_file": ("ca.pem", {"grpc_endpoint": "https://127.0.0.1:1"}),
    "tls.cert_file": ("cert.pem", {"grpc_endpoint": "https://127.0.0.1:1", "tls.key_file": "k.pem"}),
    "tls.key_file": ("key.pem", {"grpc_endpoint": "https://127.0.0.1:1", "tls.cert_file": "c.pem"}),
    "tls.insecure": (True, {"grpc_endpoint": "127.0.0.1:1"}),
    "headers": {"x-tenant": "a"},
    "max_in_flight": 9,
    "denied": "retry",
    "max_request_bytes": "1MiB",
    "min_batch": "9KiB",
    "max_delay": ("9s", {"min_batch": "9KiB"}),
}
"""The keys that configure the requests to a destination."""

BOUNDS = ("retry.max_attempts", "retry.max_elapsed")
"""Limits for a bundle. A query has batches, which are retried without a limit, and bundles only after processors."""

QUERY = {key: value for key, value in RETRY.items() if key not in BOUNDS} | {"trigger": "9s", "checkpoint": "notes"}
"""The interval of a query, and the directory of its checkpoint."""

TABLES = {
    "path": "s3://bucket/other",
    "options": {"region": "eu-west-1"},
    "compression": "none",
    "partition_by": ["day(time)"],
    "schema_changes": "refuse",
    "maintenance_interval": "1h",
    "target_file_size": ("64MiB", {"maintenance_interval": "1h"}),
    "retention": ("2d", {"maintenance_interval": "1h"}),
    "records": "s3://bucket/records",
}
"""Keys of an exporter to a table format."""

LISTENER = {
    "listening_addr": "127.0.0.1:5",
    "protocols.grpc.listening_addr": ("127.0.0.1:5", {"listening_addr": None}),
    "protocols.http.listening_addr": "127.0.0.1:5",
    "response_stream_channel_size": 7,
    "dedupe_window": "10m",
    "ack": "logged",
    "max_request_bytes": "1MiB",
    "max_decompressed_bytes": "20MiB",
    "max_connections": 3,
    "request_timeout": "3s",
    "handshake_timeout": "3s",
    "otlp_handling": "convert_to_arrow",
    "grpc_transport": "grpcio",
    "capture_headers": ["x-tenant"],
    "insecure": True,
    "tls.cert_file": ("cert.pem", {"tls.key_file": "key.pem"}),
    "tls.key_file": ("key.pem", {"tls.cert_file": "cert.pem"}),
    "tls.client_ca_file": ("ca.pem", {"tls.cert_file": "cert.pem", "tls.key_file": "key.pem"}),
    "auth.bearer.token": "t",
    "auth.bearer.tokens": ["t"],
    "auth.bearer.file": "tokens",
    "auth.basic.username": ("u", {"auth.basic.password": "p"}),
    "auth.basic.password": ("p", {"auth.basic.username": "u"}),
    "auth.basic.users": {"u": "p"},
    "auth.basic.file": "users",
    "keepalive.max_connection_idle": "9s",
    "keepalive.max_connection_age": "9s",
    "keepalive.max_connection_age_grace": "9s",
    "keepalive.ping_interval": "9s",
    "keepalive.ping_timeout": "9s",
    "keepalive.ping_interval_min": "9s",
}
"""Keys of a receiver for OTLP or OTAP."""

QWP_LISTENER = {
    "listening_addr": "127.0.0.1:5",
    "dedupe_window": "9m",
    "dedupe_bytes": "2GiB",
    "max_table_bytes": "256MiB",
    "max_dictionary_bytes": "90MiB",
    "durable_timeout": "9s",
    "listening_cores": "all",
} | {
    key: LISTENER[key]
    for key in LISTENER
    if key in {"ack", "max_request_bytes", "max_connections", "request_timeout", "handshake_timeout", "insecure"}
    or (key.startswith(("tls.", "auth.", "keepalive.")) and key != "keepalive.ping_interval_min")
}
"""Keys of the QWP receiver."""

TOPIC = {"topics": "elsewhere", "topic": "c/d", "objects": "cold", "metadata": ("sqlite:///m.db", {"objects": "cold"})}
"""Keys of the topic."""

BASE = {
    "urn:otel:otlp:receiver": {"listening_addr": "127.0.0.1:4"},
    "urn:otel:otap:receiver": {"listening_addr": "127.0.0.1:4"},
    "urn:quiver:qwp:receiver": {"listening_addr": "127.0.0.1:4"},
    "urn:otel:durable_buffer:processor": {"path": "buffer"},
    "urn:quiver:sql:processor": {"query": "SELECT * FROM input"},
    "urn:quiver:filter:processor": {"keep": "true"},
    "urn:quiver:attributes:processor": {"actions": [{"action": "delete", "key": "a"}]},
    "urn:quiver:sample:processor": {"ratio": 0.5},
    "urn:quiver:redact:processor": {"value_patterns": ["[0-9]{16}"]},
    "urn:quiver:parquet:exporter": {"path": "out"},
    "urn:otel:otlp:exporter": {"grpc_endpoint": "http://127.0.0.1:1"},
    "urn:otel:otap:exporter": {"grpc_endpoint": "http://127.0.0.1:1"},
    "urn:quiver:console:exporter": {},
    "urn:quiver:file:exporter": {"path": "out"},
    "urn:quiver:spark:exporter": {"format": "csv"},
    "urn:quiver:quiver:exporter": {"path": "other"},
    "urn:quiver:topic:exporter": {"topics": "topics", "topic": "a/b"},
    "urn:quiver:questdb:exporter": {"conf": "ws::addr=127.0.0.1:9;sf_dir=sf;"},
    "urn:quiver:delta:exporter": {"path": "s3://bucket/lake"},
    "urn:quiver:iceberg:exporter": {"path": "s3://bucket/lake", "catalog": "https://catalog"},
    "urn:quiver:topic:receiver": {"topics": "topics", "topic": "a/b"},
    "urn:quiver:store:receiver": {"store": "theirs"},
    "urn:quiver:fleet:receiver": {"objects": "s3://bucket/fleet", "subscriber": "lake"},
}
"""The smallest valid config of each plugin."""

ONE = [{"action": "upsert", "key": "b", "value": 1}]

CHANGES = {
    "urn:otel:otlp:receiver": LISTENER,
    "urn:otel:otap:receiver": LISTENER
    | {
        "max_streams": 3,
        "max_batches_in_flight": 3,
        "stream_idle_timeout": "9s",
        "max_dictionary_bytes": "90MiB",
        "max_stream_dictionary_bytes": "9MiB",
        "max_inflated_bytes": "99MiB",
    },
    "urn:quiver:qwp:receiver": QWP_LISTENER,
    "urn:otel:durable_buffer:processor": {
        "path": "elsewhere",
        "retention_size_cap": "1GiB",
        "max_age": "1h",
        "size_cap_policy": "drop_oldest",
        "poll_interval": "1s",
        "otlp_handling": "convert_to_arrow",
        "max_segment_open_duration": "9s",
        "initial_retry_interval": "2s",
        "max_retry_interval": "50s",
        "retry_multiplier": 3,
        "max_in_flight": 9,
    },
    "urn:quiver:sql:processor": {
        "query": "SELECT 1 FROM input",
        "output": ("errors", {"query": "SELECT * FROM logs"}),
        "signals": ["logs"],
    },
    "urn:quiver:filter:processor": {"keep": "false", "drop": ("true", {"keep": None}), "signals": ["logs"]},
    "urn:quiver:attributes:processor": {
        "actions": ONE,
        "apply_to": ["resource"],
        "signals": ["logs"],
        "hash_salt": "salt",
    },
    "urn:quiver:sample:processor": {"ratio": 0.1, "signals": ["logs"]},
    "urn:quiver:redact:processor": {
        "keys": ["password"],
        "value_patterns": ["secret"],
        "replacement": "-",
        "columns": ["name"],
        "signals": ["logs"],
    },
    "urn:quiver:parquet:exporter": QUERY
    | {
        "path": "elsewhere",
        "compression": "none",
        "file_mode": "0640",
        "options": ({"region": "eu-west-1"}, {"path": "s3://bucket/lake"}),
        "partition_by": ["day", "service.name"],
        "target_file_size": "64MiB",
        "max_file_age": "9m",
        "max_partitions": 9,
    },
    "urn:otel:otlp:exporter": SENDER,
    "urn:otel:otap:exporter": {key: value for key, value in SENDER.items() if key != "http_endpoint"}
    | {
        "compression_method": ("zstd", {"arrow.payload_compression": "none"}),
        "arrow.payload_compression": "none",
        "payload_compression": "none",
        "stream_lifetime": "9s",
        "max_message_bytes": "1MiB",
        "metric_metadata": True,
    },
    "urn:quiver:console:exporter": QUERY | {"rows_max": 3, "truncate": 9, "format": "jsonl"},
    "urn:quiver:file:exporter": QUERY
    | {"path": "elsewhere", "format": "otlp", "compression": "gzip", "file_mode": "0640"},
    "urn:quiver:spark:exporter": QUERY
    | {
        "format": "json",
        "options": {"a": 1},
        "path": "elsewhere",
        "mode": ("overwrite", {"path": "out/{query}/{batch}/{table}"}),
        "tables": ["logs"],
    },
    "urn:quiver:quiver:exporter": QUERY | {"path": "elsewhere", "slot": 40},
    "urn:quiver:topic:exporter": QUERY | TOPIC | {"format": "json"},
    "urn:quiver:questdb:exporter": QUERY
    | {
        "conf": "ws::addr=127.0.0.1:8;sf_dir=sf;",
        "table": "otel_{table}",
        "tables": ["logs"],
        "symbols": ["name"],
        "at": "last",
    },
    "urn:quiver:delta:exporter": QUERY | TABLES,
    "urn:quiver:iceberg:exporter": QUERY
    | TABLES
    | {"catalog": "https://other", "catalog_options": {"warehouse": "w"}, "namespace": "otel.prod"},
    "urn:quiver:topic:receiver": TOPIC
    | {"subscription": "other", "start": "latest", "signal": "logs", "poll_interval": "9s"},
    "urn:quiver:store:receiver": {
        "store": "others",
        "subscriber": "other",
        "start": "latest",
        "poll_interval": "9s",
    },
    "urn:quiver:fleet:receiver": {
        "objects": "s3://bucket/other",
        "subscriber": "other",
        "start": "latest",
        "list_interval": "9s",
        "max_batch_size": "9MiB",
        "max_segment_size": "9MiB",
        "fail_on_data_loss": False,
        "accept_data_loss_of": ["3e0b6f0a-5d3c-4f63-9a43-0c9d6c0c5a11"],
    },
}
"""For each key a value other than its default, with the keys that it requires."""

REFUSED = {
    ("urn:quiver:qwp:receiver", "durable"): ("tier", "durable: tier waits for the object tier"),
    ("urn:otel:otap:exporter", "http_endpoint"): ("http://127.0.0.1:2", "OTAP needs gRPC"),
    **{
        (urn, key): (RETRY[key], f"{key} has no effect here")
        for urn, plugin in PLUGINS.items()
        if plugin.model is not None and issubclass(plugin.model, QueryExporterConfig)
        for key in BOUNDS
    },
    **{
        (urn, "order"): ("newest", "order: newest has no effect on Spark")
        for urn, plugin in PLUGINS.items()
        if plugin.model is not None and issubclass(plugin.model, QueryExporterConfig)
    },
}
"""Keys that can have no effect, with the expected error."""


def document(urn, config):
    """Return a pipeline with one node of *urn*."""
    plugin = find_plugin(urn)
    nodes = {
        "in": {"type": "receiver:otlp", "config": {"listening_addr": "127.0.0.1:9"}},
        "store": {"type": "processor:persistence", "config": {"path": "buffer"}},
        "out": {"type": "exporter:otlp", "config": {"grpc_endpoint": "http://127.0.0.1:8"}},
    }
    way = ["in", "store", "out"]
    if plugin.is_store:
        nodes["store"] = {"type": urn, "config": config}
    elif plugin.kind == "processor":
        nodes["step"] = {"type": urn, "config": config}
        nodes["out"] = {"type": "exporter:console"}
        way = ["in", "store", "step", "out"]
    else:
        nodes["in" if plugin.kind == "receiver" else "out"] = {"type": urn, "config": config}
    connections = [{"from": one, "to": other} for one, other in pairwise(way)]
    pipeline = {"nodes": nodes, "connections": connections}
    return {"version": "otel_dataflow/v1", "groups": {"a": {"pipelines": {"b": pipeline}}}}


def load(value):
    return load_pipeline(yaml.safe_dump(value), source="p.yaml", values={})[0]


def settings_of(value):
    """Return the settings of all parts of the running system."""
    pipeline = load(value)
    place = ReceiverPlace(None, None, cores=2)
    parts = pipeline.parts()
    return {
        "listening": [(config.settings_at(place), config.otap() if hasattr(config, "otap") else None)
                      for _, config in pipeline.receivers if not isinstance(config, PolledReceiverConfig)],
        "polled": [config.settings() for _, config in pipeline.receivers if isinstance(config, PolledReceiverConfig)],
        "stores": [(part.persistence.path, part.persistence.settings) for part in parts],
        "routes": [(route.signals, route.config.order) for route in pipeline.routes.values()],
        "senders": [(name, config.settings(), config.sizes(), config.otap() if hasattr(config, "otap") else None)
                    for name, config in pipeline.forwarders],
        "policies": [(name, config.policy(), config.dead_letter_policy()) for name, config in pipeline.exporters],
        "queries": [(plan.name, plan.checkpoint, getattr(plan.route.config, "trigger", None), destination(plan))
                    for plan in plan_queries(pipeline, Path("run"))],
        "processors": [chain_of(route) for route in pipeline.routes.values()],
        "spark": spark_settings(pipeline),
    }  # fmt: skip


def destination(plan):
    config = plan.route.config
    return config.settings() if hasattr(config, "settings") else (config.path, config.compression, config.file_mode)


def put(config, key, value):
    inside = config
    *parents, last = key.split(".")
    for parent in parents:
        inside = inside.setdefault(parent, {})
    if value is None:
        inside.pop(last, None)
    else:
        inside[last] = value


def keys_of(model, prefix=""):
    """Yield the dotted names of all keys of a model."""
    for name, field in model.model_fields.items():
        kinds = [one for one in (field.annotation, *getattr(field.annotation, "__args__", ())) if isinstance(one, type)]
        inner = [one for one in kinds if issubclass(one, BaseModel)]
        if inner and get_origin(field.annotation) is not tuple:
            yield from keys_of(inner[0], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


CASES = [(urn, key) for urn, keys in CHANGES.items() for key in keys]


@pytest.mark.parametrize(("urn", "key"), CASES)
def test_each_key_changes_some_setting(urn, key):
    """The pipelines with the key and without it differ."""
    change = CHANGES[urn][key]
    value, needed = change if isinstance(change, tuple) else (change, {})
    before = copy.deepcopy(BASE[urn])
    for other, its_value in needed.items():
        put(before, other, its_value)
    after = copy.deepcopy(before)
    put(after, key, value)
    try:
        settings_before = settings_of(document(urn, before))
    except PipelineError:
        # The keys that it requires may be invalid without it: then compare with the smallest valid config.
        settings_before = settings_of(document(urn, BASE[urn]))

    assert settings_of(document(urn, after)) != settings_before


@pytest.mark.parametrize(
    "action",
    [
        {"action": "insert", "key": "a", "value": 1},
        {"action": "insert", "key": "b", "value": 1},
        {"action": "insert", "key": "a", "value": True},
        {"action": "insert", "key": "a", "from_attribute": "c"},
        {"action": "rename", "key": "a", "new_key": "b"},
    ],
)
def test_each_key_of_an_action_changes_the_processor(action):
    """Five actions and the one of the base are six different processors; a mistyped key is refused."""
    urn = "urn:quiver:attributes:processor"
    base = settings_of(document(urn, BASE[urn]))["processors"]

    (found,) = settings_of(document(urn, {"actions": [action]}))["processors"]
    assert [found] != base
    assert found[0].actions[0].value is action.get("value")
    with pytest.raises(PipelineError, match="unknown key actions.0.kee; did you mean key"):
        load(document(urn, {"actions": [action | {"kee": 1}]}))


@pytest.mark.parametrize("urn", [urn for urn, plugin in PLUGINS.items() if plugin.model is not None])
def test_the_table_lists_every_key(urn):
    """Of every plugin."""
    refused = {key for one, key in REFUSED if one == urn}

    assert set(CHANGES[urn]) | refused == set(keys_of(PLUGINS[urn].model))


@pytest.mark.parametrize(("urn", "key"), REFUSED)
def test_a_key_without_effect_is_refused(urn, key):
    """It is not ignored."""
    value, reason = REFUSED[urn, key]
    config = {} if key == "http_endpoint" else copy.deepcopy(BASE[urn])
    put(config, key, value)
    with pytest.raises(PipelineError, match=reason):
        load(document(urn, config))


@pytest.mark.parametrize("key", BOUNDS)
def test_a_retry_limit_applies_after_a_processor(key):
    """There, single bundles are retried; without a configured limit, there is a default."""

    def retry(config):
        value = document("urn:quiver:console:exporter", config)
        inside = value["groups"]["a"]["pipelines"]["b"]
        inside["nodes"]["step"] = {"type": "processor:sample", "config": {"ratio": 0.5}}
        inside["connections"][1:] = [{"from": "store", "to": "step"}, {"from": "step", "to": "out"}]
        return in_words(describe(load(value))["exporters"][0])["retry"]

    bounded: dict[str, object] = {}
    put(bounded, key, RETRY[key])
    assert "for at most 5 attempts; permanently refused" in retry({})
    assert ("for at most 1 h" if "elapsed" in key else "for at most 5 attempts") in retry(bounded)
    assert retry({}) != retry({"retry": {"max_attempts": 7}})


STORE = {
    "durability": "segment_only", "format_profile": "otap",
    "segment.target_size": "1MiB", "segment.max_open_duration": "9s", "segment.max_stream_count": 9,
    "segment.max_bundle_count": 9, "segment.compression": "zstd",
    "wal.max_size": "1GiB", "wal.rotation_target": "1MiB", "wal.max_rotated_files": 9, "wal.flush_interval": "9ms",
    "retention.size_cap": "9GiB", "retention.size_cap_policy": "drop_oldest", "retention.max_segments": 9,
    "retention.max_age": "9h", "retention.max_retain_after_ingestion_hours": 9, "retention.delete_grace": "9s",
    "retention.steady_state_headroom": "9MiB", "subscriber.on_corrupt_progress": "fail",
    "subscriber.orphan_max_age": "9h", "subscriber.audit.max_size": "9MiB",
    "subscriber.deliver_unsealed": False, "maintain_interval": "9s",
    "cold.objects": "file:///cold", "cold.local_size": "9MiB", "cold.local_age": "9s", "cold.max_age": "9h",
    "cold.keep_finished": "9s",
    "cold.fleet.name": "edge-17", "cold.fleet.subscribers": ["lake"], "cold.fleet.seal": "9s",
    "cold.fleet.ack_poll": "9s", "cold.fleet.labels": {"site": "Graz"},
}  # fmt: skip
"""All keys of the persistence node besides `path`."""
NODE = {"cold.fleet.name": "other", "cold.fleet.subscribers": ["one"]}
"""Keys that every other key of a fleet needs."""


@pytest.mark.parametrize("key", STORE)
def test_each_key_of_the_persistence_node_changes_the_store(key):
    """Nested or dotted; both forms of the same key are refused."""
    urn = "urn:otap:processor:persistence"
    least = {"path": "buffer"}
    needed = {}
    if key.startswith("cold.") and key != "cold.objects":
        needed["cold.objects"] = STORE["cold.objects"]
    if key.startswith("cold.fleet."):
        needed |= NODE
    for one, value in needed.items():
        put(least, one, value)
    nested = copy.deepcopy(least)
    put(nested, key, STORE[key])
    before = settings_of(document(urn, least))["stores"]

    changed = settings_of(document(urn, nested))["stores"]
    assert changed != before
    flat = {"path": "buffer"} | needed | {key: STORE[key]}
    assert settings_of(document(urn, flat))["stores"] == changed


def test_the_table_lists_every_key_of_the_store():
    """The error about an unknown key lists the known ones."""
    with pytest.raises(PipelineError) as caught:
        load(document("urn:otap:processor:persistence", {"path": "b", "nothing.like.it.at.all": 1}))

    assert sorted(caught.value.reason.partition("known are ")[2].split(", ")) == sorted(STORE)
    together = {key: STORE[key] for key in STORE if "hours" not in key and not key.startswith("cold.fleet.")}
    assert Settings.from_mapping(together | {"durability": "wal"})
    assert Settings.from_mapping({key: value for key, value in together.items() if not key.startswith("wal.")})
    others = STORE.keys() - {"segment.max_open_duration", "cold.keep_finished"}
    in_a_fleet = {key: STORE[key] for key in others if "hours" not in key}
    assert Settings.from_mapping(in_a_fleet | {"durability": "wal"})


@pytest.mark.parametrize("key", ["size_cap", "size_cap_policy"])
def test_each_key_of_memory_changes_the_store(key):
    """They limit a pipeline without a persistence node."""
    value = document("urn:quiver:console:exporter", {})
    inside = value["groups"]["a"]["pipelines"]["b"]
    del inside["nodes"]["store"]
    inside["connections"] = [{"from": "in", "to": "out"}]
    before = settings_of(value)["stores"]
    value["memory"] = {"size_cap": "64MiB"} if key == "size_cap" else {"size_cap_policy": "drop_oldest"}

    assert settings_of(value)["stores"] != before
    assert set(MemoryConfig.model_fields) == {"size_cap", "size_cap_policy"}


def test_the_disk_budget_is_checked():
    """It applies to all processes; a budget that is too small is refused, and so is one without anything on disk."""
    value = document("urn:otel:otlp:exporter", {"grpc_endpoint": "http://127.0.0.1:1"})
    plain = load(value)
    value["disk"] = {"size_cap": "1GiB"}
    capped = load(value)

    assert (budget_of(plain, None), budget_of(capped, None).cap_bytes) == (None, 1 << 30)
    assert needs_restart(plain, capped) == ["disk changed", "store: size_cap_bytes changed"]
    assert "together use at most 1 GiB" in " ".join(describe(capped)["says"])
    check_cores(capped, 8)
    with pytest.raises(UsageError, match="disk.size_cap must hold .* of each buffer and core: 1.1 GiB; it is 1 GiB"):
        check_cores(capped, 9)
    value["disk"] = {"size_cap": "100MiB"}
    with pytest.raises(PipelineError, match="disk.size_cap must hold"):
        load(value)
    pipeline = value["groups"]["a"]["pipelines"]["b"]
    del pipeline["nodes"]["store"]
    pipeline["connections"] = [{"from": "in", "to": "out"}]
    with pytest.raises(PipelineError, match="disk has no effect"):
        load(value)
    assert set(DiskConfig.model_fields) == {"size_cap"}


def test_metrics_have_an_address():
    """A public address requires `insecure`."""
    value = document("urn:quiver:console:exporter", {})
    plain = load(value)
    value["metrics"] = {"listen": "127.0.0.1:9464"}
    with_metrics = load(value)

    assert (plain.metrics, with_metrics.metrics.listen) == (None, "127.0.0.1:9464")
    assert needs_restart(plain, with_metrics) == ["metrics changed"]
    value["metrics"] = {"listen": "0.0.0.0:9464"}
    with pytest.raises(PipelineError, match="others can reach"):
        load(value)
    value["metrics"] = {"listen": "0.0.0.0:9464", "insecure": True}
    assert load(value).metrics.insecure
    assert set(MetricsConfig.model_fields) == {"listen", "insecure"}


def test_the_strategy_of_a_port_selects_the_scheduler_of_spark():
    """`round_robin`: queries take turns. `broadcast`: in order of arrival. All receive all data with either."""
    value = document("urn:quiver:console:exporter", {})
    connections = value["groups"]["a"]["pipelines"]["b"]["connections"]

    found = {}
    for strategy in ("round_robin", "broadcast"):
        connections[1]["dispatch_strategy"] = strategy
        found[strategy] = spark_settings(load(value))["spark.scheduler.mode"]
        assert describe(load(value))["exporters"][0]["receives"] == "everything"
    assert found == {"round_robin": "FAIR", "broadcast": "FIFO"}


def test_log_level_is_one_of_four():
    """Another value is refused."""
    value = document("urn:quiver:console:exporter", {})

    assert load(value).log_level == "info"
    assert load(value | {"log_level": "debug"}).log_level == "debug"
    with pytest.raises(PipelineError, match="'inf' is not available; did you mean info"):
        load(value | {"log_level": "inf"})
