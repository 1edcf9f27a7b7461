"""
The plugins: which node a `plugin_urn` or a `type` names, and the shape of its `config`.

`PLUGINS` is the table; each row has several spellings (`find_plugin`). An unknown URN is refused with the nearest known
one. Keys are those of the documents; sizes and durations may have units ("16MiB", "10m"). Other packages add processors
through entry points.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from quiver.errors import SettingsError
from quiver.pipeline.config.base import Config
from quiver.pipeline.config.exporter import (
    ConsoleExporterConfig,
    DeltaExporterConfig,
    FileExporterConfig,
    IcebergExporterConfig,
    OtapExporterConfig,
    OtlpExporterConfig,
    ParquetExporterConfig,
    QueryExporterConfig,
    QuestdbExporterConfig,
    QuiverExporterConfig,
    SparkExporterConfig,
)
from quiver.pipeline.config.otap import OtapReceiverConfig
from quiver.pipeline.config.parse import Document, Path, Problems, nearest
from quiver.pipeline.config.processor import (
    PROCESSOR_CONFIGS,
    RUN_SEGMENT_OPEN_S,
    DurableBufferConfig,
    PersistenceConfig,
    UserProcessorConfig,
    find_user_processor,
    with_default_cap,
)
from quiver.pipeline.config.qwp import QwpReceiverConfig
from quiver.pipeline.config.receiver import MetricsConfig, OtlpReceiverConfig
from quiver.pipeline.config.store import FleetReceiverConfig, StoreReceiverConfig
from quiver.pipeline.config.topic import TopicExporterConfig, TopicReceiverConfig
from quiver.settings import Settings

__all__ = [
    "PLUGINS",
    "MetricsConfig",
    "NodeKind",
    "OtapExporterConfig",
    "OtapReceiverConfig",
    "OtlpExporterConfig",
    "OtlpReceiverConfig",
    "ParquetExporterConfig",
    "PersistenceConfig",
    "Plugin",
    "checked",
    "find_plugin",
    "known_urns",
    "spellings",
]

NodeKind = Literal["receiver", "processor", "exporter"]

_Checked = TypeVar("_Checked", bound=Config)


@dataclass(frozen=True, slots=True)
class Plugin:
    """
    One row of the table.

    Attributes:
        urn: the URN as in the documents.
        kind: the kind of node.
        model: the model of its `config`; None for a persistence node and for processors of other packages.
    """

    urn: str
    kind: NodeKind
    model: type[Config] | None

    @property
    def name(self) -> str:
        """The part of the URN that is neither the namespace nor the kind."""
        return _parts(self.urn)[1]

    @property
    def is_store(self) -> bool:
        """Whether it is a persistence node."""
        return self.urn == PERSISTENCE or self.model is DurableBufferConfig

    @property
    def takes_rows(self) -> bool:
        """
        Whether it is an exporter of rows, so that processors may feed it directly; other exporters take complete
        bundles.
        """
        return self.model is not None and issubclass(self.model, QueryExporterConfig)

    def config(self, document: Document, path: Path, value: Mapping[str, Any]) -> Any:
        """
        Return the validated config at *path*.

        Raises:
            PipelineError: with the line of the invalid key.
        """
        if self.urn == PERSISTENCE:
            return _persistence(document, path, value)
        if self.model is None:
            found = find_user_processor(self.urn)
            if found is None:
                raise document.invalid(path, f"no installed package has the processor {self.urn}")
            return UserProcessorConfig(found, dict(value))
        found_config = checked(self.model, document, path, value)
        if not isinstance(found_config, DurableBufferConfig):
            return found_config
        try:
            return found_config.persistence()
        except SettingsError as error:
            raise document.invalid(path, str(error)) from error


def checked(model: type[_Checked], document: Document, path: Path, value: Mapping[str, Any]) -> _Checked:
    """
    Validate *value*, which is at *path* in the file, as *model*.

    Raises:
        PipelineError: with the lines of all invalid keys.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = Problems()
        seen: set[Path] = set()
        for one in _worth_reporting(model, error.errors(include_url=False)):
            key = tuple(one["loc"])
            where: Path = key or _blamed(value, str(one["msg"]))
            # Each alternative of a key with several types reports an error of its own.
            place = where if one["type"] == "missing" else where[: _written(value, where)]
            if place in seen:
                continue
            seen.add(place)
            problems.add(document.invalid((*path, *where), _explain(model, key, one)))
        problems.raise_found()
        raise


def _worth_reporting(model: type[BaseModel], errors: Sequence[Any]) -> list[Any]:
    """Return *errors* without keys that are only missing because they are misspelled, unknown ones first."""
    unknown = [one for one in errors if one["type"] == "extra_forbidden"]
    meant = {
        (*one["loc"][:-1], *get_close_matches(str(one["loc"][-1]), _fields(model, one["loc"][:-1]), n=1))
        for one in unknown
    }
    others = [one for one in errors if one["type"] != "extra_forbidden"]
    return [*unknown, *(one for one in others if one["type"] != "missing" or tuple(one["loc"]) not in meant)]


def _written(value: Any, where: Path) -> int:
    """Return how many parts of *where* are in the file."""
    for number, part in enumerate(where):
        try:
            value = value[part]
        except (LookupError, TypeError):
            return number
    return len(where)


PERSISTENCE = "urn:otap:processor:persistence"

PLUGINS = {
    plugin.urn: plugin
    for plugin in (
        Plugin("urn:otel:otlp:receiver", "receiver", OtlpReceiverConfig),
        Plugin("urn:otel:otap:receiver", "receiver", OtapReceiverConfig),
        Plugin("urn:quiver:qwp:receiver", "receiver", QwpReceiverConfig),
        Plugin("urn:quiver:topic:receiver", "receiver", TopicReceiverConfig),
        Plugin("urn:quiver:store:receiver", "receiver", StoreReceiverConfig),
        Plugin("urn:quiver:fleet:receiver", "receiver", FleetReceiverConfig),
        Plugin(PERSISTENCE, "processor", None),
        Plugin("urn:otel:durable_buffer:processor", "processor", DurableBufferConfig),
        *(Plugin(f"urn:quiver:{name}:processor", "processor", model) for name, model in PROCESSOR_CONFIGS.items()),
        Plugin("urn:quiver:parquet:exporter", "exporter", ParquetExporterConfig),
        Plugin("urn:otel:otlp:exporter", "exporter", OtlpExporterConfig),
        Plugin("urn:otel:otap:exporter", "exporter", OtapExporterConfig),
        Plugin("urn:quiver:console:exporter", "exporter", ConsoleExporterConfig),
        Plugin("urn:quiver:file:exporter", "exporter", FileExporterConfig),
        Plugin("urn:quiver:spark:exporter", "exporter", SparkExporterConfig),
        Plugin("urn:quiver:quiver:exporter", "exporter", QuiverExporterConfig),
        Plugin("urn:quiver:topic:exporter", "exporter", TopicExporterConfig),
        Plugin("urn:quiver:questdb:exporter", "exporter", QuestdbExporterConfig),
        Plugin("urn:quiver:delta:exporter", "exporter", DeltaExporterConfig),
        Plugin("urn:quiver:iceberg:exporter", "exporter", IcebergExporterConfig),
    )
}

_OTHER_NAMES = {
    "urn:otel:persistence:processor": PERSISTENCE,
    "urn:otel:otlp_grpc:exporter": "urn:otel:otlp:exporter",
    "urn:otel:otlp_http:exporter": "urn:otel:otlp:exporter",
    "urn:otel:parquet:exporter": "urn:quiver:parquet:exporter",
    "urn:otel:console:exporter": "urn:quiver:console:exporter",
}
"""URNs in other versions of the same file → URN here."""


def _parts(urn: str) -> tuple[str, str, str]:
    """Return namespace, name and kind of a URN, for either order of the last two; the namespace may be empty."""
    parts = urn.removeprefix("urn:").split(":")
    space = parts[0] if len(parts) == 3 else ""
    name, kind = (*parts[-2:], "")[:2]
    if name in get_args(NodeKind) and kind not in get_args(NodeKind):
        name, kind = kind, name
    return space, name, kind


_BY_PARTS = {_parts(urn): PLUGINS[known] for urn, known in [*((urn, urn) for urn in PLUGINS), *_OTHER_NAMES.items()]}
_BY_NAME = {(name, kind): plugin for (_, name, kind), plugin in _BY_PARTS.items()}


def find_plugin(text: str) -> Plugin | None:
    """
    Return the plugin that *text* names, or None: a URN with name and kind in either order, name and kind alone, or a
    processor of another package.
    """
    space, name, kind = _parts(text)
    found = _BY_PARTS.get((space, name, kind)) if space else _BY_NAME.get((name, kind))
    if found is None and kind == "processor" and find_user_processor(text) is not None:
        return Plugin(text, "processor", None)
    return found


def spellings(plugin: Plugin) -> list[str]:
    """Return all texts that name *plugin*, its URN first."""
    found = [plugin.urn]
    for urn in (plugin.urn, *(other for other, known in _OTHER_NAMES.items() if known == plugin.urn)):
        space, name, kind = _parts(urn)
        for first, second in ((name, kind), (kind, name)):
            found += [f"urn:{space}:{first}:{second}", f"{first}:{second}"]
    return list(dict.fromkeys(found))


def known_urns(kind: str | None = None) -> Iterator[str]:
    """Yield all known URNs, or those of one kind."""
    return (urn for urn, plugin in PLUGINS.items() if kind in {None, plugin.kind})


_SHAPES = {"tuple_type": "a list, such as [a, b]", "dict_type": "a mapping of keys to values"}


def _explain(model: type[BaseModel], where: Path, error: Any) -> str:
    name = ".".join(str(part) for part in where)
    if error["type"] == "extra_forbidden":
        known = _fields(model, where[:-1])
        return f"unknown key {name}{nearest(str(where[-1]), known)}"
    if error["type"] == "missing":
        return f"{name} is missing"
    if error["type"] in _SHAPES:
        return f"{name} must be {_SHAPES[error['type']]}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", "")))
        return f"{name}: {error['input']!r} is not available{nearest(str(error['input']), allowed)}"
    # Messages of our own parsers already start with the key.
    return f"{name}: {message.removeprefix(f'{where[-1]}: ')}" if name else message


def _fields(model: type[BaseModel], where: Path) -> list[str]:
    for part in where:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        models = [item for item in (annotation, *get_args(annotation)) if isinstance(item, type)]
        inner = [item for item in models if issubclass(item, BaseModel)]
        if not inner:
            return []
        model = inner[0]
    return list(model.model_fields)


def _persistence(document: Document, path: Path, value: Mapping[str, Any]) -> PersistenceConfig:
    rest = dict(value)
    directory = rest.pop("path", None)
    if not isinstance(directory, str) or not directory:
        reason = "path is missing" if directory is None else "path must name a directory"
        raise document.invalid((*path, "path"), reason)
    segment = rest.get("segment")
    is_given = "segment.max_open_duration" in rest or (isinstance(segment, Mapping) and "max_open_duration" in segment)
    retention = rest.get("retention")
    has_cap = "retention.size_cap" in rest or (isinstance(retention, Mapping) and "size_cap" in retention)
    try:
        settings = Settings.from_mapping(rest)
        if not is_given and settings.fleet_name is None:
            settings = replace(settings, segment_open_s_max=RUN_SEGMENT_OPEN_S)
        config = PersistenceConfig(directory, settings)
        return config if has_cap else with_default_cap(config)
    except SettingsError as error:
        problems = Problems()
        for one in Settings.errors_in(rest) or [error]:
            problems.add(document.invalid((*path, *_blamed(value, str(one))), str(one)))
        problems.raise_found()
        raise


def _blamed(value: Mapping[str, Any], message: str) -> Path:
    """Return the path of the first key that *message* names: settings know their keys but not their lines."""
    found: list[tuple[int, Path]] = []

    def walk(inside: Mapping[str, Any], path: Path) -> None:
        for key, item in inside.items():
            here = (*path, key)
            dotted = ".".join(str(part) for part in here)
            match = re.search(rf"(?<![\w.]){re.escape(dotted)}(?![\w])(?!\.\w)", message)
            if match is not None:
                found.append((match.start(), here))
            if isinstance(item, Mapping):
                walk(item, here)

    walk(value, ())
    return min(found, default=(0, ()))[1]
