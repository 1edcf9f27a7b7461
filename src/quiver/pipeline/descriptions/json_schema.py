"""The JSON schema of a pipeline file, with a description of every key, for editors and for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from quiver.pipeline.config.base import Config
from quiver.pipeline.config.limits import DiskConfig, MemoryConfig
from quiver.pipeline.config.receiver import StatusConfig
from quiver.pipeline.config.shapes import VERSION
from quiver.pipeline.config.spark import SparkConfig
from quiver.pipeline.config.values import DURATION_SCHEMA, SIZE_SCHEMA
from quiver.pipeline.descriptions.key_descriptions import describe_keys, first_sentence, store_keys
from quiver.pipeline.graph import LOG_LEVELS
from quiver.pipeline.plugins import PLUGINS, MetricsConfig, Plugin, spellings
from quiver.settings import Settings

__all__ = ["pipeline_schema", "plugin_schema"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SIGNALS = {"type": "array", "items": {"enum": ["logs", "traces", "metrics"]}, "minItems": 1}
_EDGE_KEYS: dict[str, Any] = {
    "dispatch_strategy": {
        "enum": ["round_robin", "broadcast"],
        "description": "How the destinations share Spark: they take turns, or first come, first served.",
    },
    "signals": {**_SIGNALS, "description": "The signals that pass; all if it is left out."},
}
_OUT_PORTS: dict[str, Any] = {
    "type": "object",
    "description": "The nodes that this node feeds, by port. The names of ports are free.",
    "additionalProperties": {
        "type": "object",
        "properties": {
            "destinations": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Names of nodes. Each of them receives everything.",
            },
            **_EDGE_KEYS,
        },
        "required": ["destinations"],
        "additionalProperties": False,
    },
}
_NODE_OR_NODES = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_CONNECTION: dict[str, Any] = {
    "type": "object",
    "properties": {
        "from": {**_NODE_OR_NODES, "description": "The node that sends, or a list of them."},
        "to": {**_NODE_OR_NODES, "description": "The node that receives, or a list of them."},
        **_EDGE_KEYS,
    },
    "required": ["from", "to"],
    "additionalProperties": False,
}


def pipeline_schema() -> dict[str, Any]:
    """Return the schema of a pipeline file in either of its two forms."""
    definitions: dict[str, Any] = {}
    for plugin in PLUGINS.values():
        definitions[_definition_name(plugin)] = plugin_schema(plugin)
    common = {
        "metrics": _section(MetricsConfig),
        "status": _section(StatusConfig),
        "memory": _section(MemoryConfig),
        "disk": _section(DiskConfig),
        "spark": _section(SparkConfig),
        "cores": {"type": "integer", "minimum": 1, "description": "The number of ingest processes."},
        "log_level": {"enum": list(LOG_LEVELS), "description": "The level of the logs of all processes."},
    }
    nodes = {"type": "object", "minProperties": 1, "description": "The nodes of the pipeline by name."}
    pipeline = {
        "type": "object",
        "properties": {
            "nodes": {**nodes, "additionalProperties": {"oneOf": [_later_node(one) for one in PLUGINS.values()]}},
            "connections": {"type": "array", "items": _CONNECTION, "description": "Which node feeds which."},
        },
        "required": ["nodes"],
        "additionalProperties": False,
    }
    pipelines = {
        "type": "object",
        "description": "Groups of pipelines by name.",
        "additionalProperties": {
            "type": "object",
            "properties": {
                "pipelines": {
                    "type": "object",
                    "description": "Pipelines by name.",
                    "additionalProperties": pipeline,
                }
            },
            "required": ["pipelines"],
            "additionalProperties": False,
        },
    }
    first_form = {
        "type": "object",
        "properties": {
            "nodes": {**nodes, "additionalProperties": {"oneOf": [_node(one) for one in PLUGINS.values()]}},
            **common,
        },
        "required": ["nodes"],
        "additionalProperties": False,
    }
    later_form = {
        "type": "object",
        "properties": {
            "version": {"const": VERSION, "description": "The version of this form."},
            "groups": pipelines,
            "pipeline_groups": {**pipelines, "description": "The older name of groups."},
            **common,
        },
        "required": ["version"],
        "additionalProperties": False,
    }
    return {
        "$schema": _DIALECT,
        "title": "A pipeline file of quiver run",
        "oneOf": [first_form, later_form],
        "$defs": definitions,
    }


def plugin_schema(plugin: Plugin) -> dict[str, Any]:
    """Return the schema of the `config` of a plugin."""
    if plugin.model is None:
        return _store_schema()
    return _of_model(plugin.model)


def _definition_name(plugin: Plugin) -> str:
    return f"{plugin.name}_{plugin.kind}"


def _node(plugin: Plugin) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "kind": {"const": plugin.kind, "description": "What the node does with data."},
            "plugin_urn": {"enum": spellings(plugin), "description": "The plugin of the node."},
            "out_ports": _OUT_PORTS,
            "config": {"$ref": f"#/$defs/{_definition_name(plugin)}"},
        },
        "required": ["kind", "plugin_urn"],
        "additionalProperties": False,
    }


def _later_node(plugin: Plugin) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "type": {"enum": spellings(plugin), "description": "The plugin of the node."},
            "config": {"$ref": f"#/$defs/{_definition_name(plugin)}"},
        },
        "required": ["type"],
        "additionalProperties": False,
    }


def _section(model: type[Config]) -> dict[str, Any]:
    return _of_model(model)


# ── models ───────────────────────────────────────────────────────────────────────────────────────────


def _of_model(model: type[Config]) -> dict[str, Any]:
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    return _inlined(schema, definitions, model)


def _inlined(schema: Any, definitions: Mapping[str, Any], model: type[BaseModel] | None) -> Any:
    """Return *schema* with the definitions that it refers to in place, and with descriptions of the keys of *model*."""
    if isinstance(schema, list):
        return [_inlined(one, definitions, model) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        inner = definitions[schema["$ref"].removeprefix("#/$defs/")]
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return {**_inlined(inner, definitions, model), **rest}
    found = {
        key: _inlined(value, definitions, model) for key, value in schema.items() if key not in {"title", "properties"}
    }
    if "properties" in schema:
        found["properties"] = _properties(schema["properties"], definitions, model)
    if isinstance(model, type) and "properties" in schema and issubclass(model, Config):
        found["description"] = first_sentence(model)
    return found


def _properties(
    properties: Mapping[str, Any], definitions: Mapping[str, Any], model: type[BaseModel] | None
) -> dict[str, Any]:
    described = describe_keys(model) if model is not None and issubclass(model, Config) else {}
    found = {}
    for key, schema in properties.items():
        inner = None if model is None else _model_of(model.model_fields[key].annotation)
        found[key] = _inlined(schema, definitions, inner)
        if key in described:
            found[key]["description"] = described[key]
    return found


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation such as ``Model``, ``Model | None`` or ``tuple[Model, ...]``."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation if issubclass(annotation, BaseModel) else None
    return next((found for one in get_args(annotation) if (found := _model_of(one)) is not None), None)


# ── the persistence node ─────────────────────────────────────────────────────────────────────────────


def _store_schema() -> dict[str, Any]:
    hints = get_type_hints(Settings)
    root: dict[str, Any] = {
        "type": "object",
        "description": "Buffers data on disk until every exporter has it.",
        "properties": {"path": {"type": "string", "minLength": 1, "description": "The directory of the store."}},
        "required": ["path"],
        "additionalProperties": False,
    }
    for key, (field, description) in store_keys().items():
        *groups, last = key.split(".")
        inside = root["properties"]
        for index, group in enumerate(groups):
            section = inside.setdefault(
                group,
                {
                    "type": "object",
                    "description": f"The keys {'.'.join(groups[: index + 1])}.*",
                    "properties": {},
                    "additionalProperties": False,
                },
            )
            inside = section["properties"]
        inside[last] = {**_of_hint(field, hints[field]), "description": description}
    return root


def _of_hint(field: str, hint: Any) -> dict[str, Any]:
    """Return the schema of a field of `Settings` as it is written in YAML."""
    words = field.split("_")
    is_nullable = type(None) in get_args(hint)
    kind = next((one for one in get_args(hint) if one is not type(None)), hint) if is_nullable else hint
    schema: dict[str, Any]
    if "bytes" in words:
        schema = SIZE_SCHEMA
    elif "s" in words:
        schema = DURATION_SCHEMA
    elif get_origin(kind) is Literal:
        schema = {"enum": list(get_args(kind))}
    elif kind is bool:
        schema = {"type": "boolean"}
    elif kind is int:
        schema = {"type": "integer"}
    elif kind is str:
        schema = {"type": "string"}
    elif field == "fleet_labels":
        schema = {"type": "object", "additionalProperties": {"type": "string"}}
    elif field == "fleet_subscribers":
        schema = {"type": "array", "items": {"type": "string"}}
    else:
        schema = {"anyOf": [{"type": "string"}, {"type": "object"}]}
    return {"anyOf": [schema, {"type": "null"}]} if is_nullable else dict(schema)
