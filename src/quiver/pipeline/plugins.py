"""
What a `plugin_urn` stands for, and the shape of its `config`.

One table, `PLUGINS`. A URN that other pipelines know and this version does not have is refused in words that say
what there is. Keys are the documents' own; sizes and durations may be written for people ("16MiB", "10m").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from quiver.errors import SettingsInvalid
from quiver.pipeline.parse import Document, Path, nearest
from quiver.receivers.settings import OtlpSettings, split_address
from quiver.settings import MIB, Settings, parse_duration_s, parse_size_bytes

__all__ = [
    "NOT_YET",
    "PLUGINS",
    "Kind",
    "OtlpReceiverConfig",
    "ParquetExporterConfig",
    "PersistenceConfig",
    "Plugin",
]

Kind = Literal["receiver", "processor", "exporter"]

RUN_SEGMENT_OPEN_S = 1.0
"""Under `quiver run` an exporter should not wait 5 s for a slow trickle, as the library's default would have it."""


def _address(value: object) -> object:
    if isinstance(value, str):
        try:
            _, port = split_address(value)
        except SettingsInvalid as error:
            raise ValueError(str(error)) from error
        if port == 0:
            raise ValueError("port 0 is any port; a restarted receiver must come back at the same one")
    return value


def _size(value: object) -> int:
    try:
        return parse_size_bytes(value)
    except SettingsInvalid as error:
        raise ValueError(str(error).removeprefix("size: ")) from error


def _duration(value: object) -> float:
    if value is False or (isinstance(value, str) and value.lower() in {"off", "none"}):
        return 0.0  # YAML reads a bare `off` as false
    try:
        return parse_duration_s(value)
    except SettingsInvalid as error:
        raise ValueError(str(error).removeprefix("duration: ")) from error


SETTINGS_NOT_YET = {
    "retention.max_retain_after_ingestion_hours": (
        "retention.max_retain_after_ingestion_hours is not available in this version: nothing expires by age; "
        "leave it out, and what every exporter has finished with goes at once"
    ),
    "retention.steady_state_headroom": (
        "retention.steady_state_headroom is not available in this version; retention.delete_grace keeps finished "
        "segments for a time"
    ),
}
"""Keys of the architecture document that the store does not have yet, and what there is instead."""

IN_FLIGHT_BYTES_MIN = 64 * MIB

Address = Annotated[str, BeforeValidator(_address)]
Size = Annotated[int, BeforeValidator(_size), Field(ge=1)]
Duration = Annotated[float, BeforeValidator(_duration)]


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Endpoint(_Config):
    listening_addr: Address


class _Protocols(_Config):
    grpc: _Endpoint | None = None
    http: _Endpoint | None = None


class OtlpReceiverConfig(_Config):
    """
    `urn:otel:otlp:receiver`. `listening_addr` is gRPC; `protocols` names gRPC and HTTP each.

    Attributes:
        response_stream_channel_size: requests that may wait for their confirmation at once.
        dedupe_window: a byte-identical request within this time is confirmed and not stored again; 0 is off.
        ack: `synced` confirms after a group fsync, `logged` when the request is in the log.
        max_request_bytes: the most a request may take on the wire.
        max_decompressed_bytes: the most it may take once decompressed.
    """

    listening_addr: Address | None = None
    protocols: _Protocols = _Protocols()
    response_stream_channel_size: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    dedupe_window: Duration = 0.0
    ack: Literal["synced", "logged"] = "synced"
    max_request_bytes: Size = 16 * MIB
    max_decompressed_bytes: Size = 16 * MIB

    def model_post_init(self, _context: Any, /) -> None:
        """
        Refuse a receiver that listens nowhere, or twice for the same protocol.
        """
        if self.listening_addr is not None and self.protocols.grpc is not None:
            raise ValueError("listening_addr and protocols.grpc both say where gRPC listens; keep one")
        if self.grpc_address is None and self.http_address is None:
            raise ValueError("the receiver listens nowhere; give listening_addr or protocols")
        if self.grpc_address == self.http_address:
            raise ValueError(f"gRPC and HTTP cannot both listen on {self.grpc_address}")
        try:
            for address in (self.grpc_address, self.http_address):
                if address is not None:
                    self.settings(address)
        except SettingsInvalid as error:
            raise ValueError(str(error)) from error

    def settings(self, address: str) -> OtlpSettings:
        """
        Return the settings of the receiver that listens on *address*.

        Raises:
            SettingsInvalid: two of the settings contradict each other.
        """
        return OtlpSettings(
            listening_addr=address,
            max_request_bytes=self.max_request_bytes,
            max_decompressed_bytes=self.max_decompressed_bytes,
            ack=self.ack,
            dedupe_window_s=self.dedupe_window,
            in_flight_bytes_max=max(IN_FLIGHT_BYTES_MIN, self.max_decompressed_bytes),
            requests_waiting_max=self.response_stream_channel_size,
        )

    @property
    def grpc_address(self) -> str | None:
        """
        Where gRPC listens, or None.
        """
        return self.protocols.grpc.listening_addr if self.protocols.grpc else self.listening_addr

    @property
    def http_address(self) -> str | None:
        """
        Where HTTP listens, or None.
        """
        return self.protocols.http.listening_addr if self.protocols.http else None


class ParquetExporterConfig(_Config):
    """
    `urn:quiver:parquet:exporter`: one directory of Parquet files a signal, right for any reader at every moment.

    Attributes:
        path: the output directory.
        trigger: how often a batch is written.
        compression: of the Parquet pages.
        checkpoint: Spark's own notes; `<path>/_checkpoint` when not given, a name that readers of Parquet pass over.
    """

    path: Annotated[str, Field(min_length=1)]
    trigger: Duration = 1.0
    compression: Literal["zstd", "snappy", "none"] = "zstd"
    checkpoint: str | None = None

    @property
    def checkpoint_path(self) -> str:
        """
        Where Spark keeps its notes.
        """
        return self.checkpoint or f"{self.path}/_checkpoint"


@dataclass(frozen=True, slots=True)
class PersistenceConfig:
    """
    `urn:otap:processor:persistence`: the directory, and the store's settings with their documented keys.
    """

    path: str
    settings: Settings


@dataclass(frozen=True, slots=True)
class Plugin:
    """
    One row of the table: what kind of node the URN is, and the model of its `config` (None: the store's settings).
    """

    urn: str
    kind: Kind
    model: type[_Config] | None

    def config(self, document: Document, path: Path, value: Mapping[str, Any]) -> object:
        """
        Return the checked config at *path*.

        Raises:
            PipelineInvalid: with the line of the key that is wrong.
        """
        if self.model is None:
            return _persistence(document, path, value)
        try:
            return self.model.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where: Path = tuple(first["loc"])
            raise document.invalid((*path, *where), _explain(self.model, where, first)) from error


PLUGINS = {
    plugin.urn: plugin
    for plugin in (
        Plugin("urn:otel:otlp:receiver", "receiver", OtlpReceiverConfig),
        Plugin("urn:otap:processor:persistence", "processor", None),
        Plugin("urn:quiver:parquet:exporter", "exporter", ParquetExporterConfig),
    )
}

NOT_YET = frozenset(
    {
        "urn:otel:otap:receiver",
        "urn:quiver:qwp:receiver",
        "urn:quiver:sql:processor",
        "urn:otel:otap:exporter",
        "urn:otel:otlp:exporter",
    }
)
"""URNs that are known by name and not available in this version."""


def _explain(model: type[BaseModel], where: Path, error: Any) -> str:
    name = ".".join(str(part) for part in where)
    if error["type"] == "extra_forbidden":
        known = _fields(model, where[:-1])
        return f"unknown key {name}{nearest(str(where[-1]), known)}"
    if error["type"] == "missing":
        return f"{name} is missing"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", "")))
        return f"{name}: {error['input']!r} is not available{nearest(str(error['input']), allowed)}"
    # What a parser of ours refused already begins with the key.
    return f"{name}: {message.removeprefix(f'{where[-1]}: ')}" if name else message


def _fields(model: type[BaseModel], where: Path) -> list[str]:
    for part in where:
        annotation = model.model_fields[str(part)].annotation
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
    if "segment.max_open_duration" not in rest and (segment is None or isinstance(segment, Mapping)):
        rest["segment"] = {"max_open_duration": RUN_SEGMENT_OPEN_S, **(segment or {})}
    try:
        return PersistenceConfig(directory, Settings.from_mapping(rest))
    except SettingsInvalid as error:
        where = _blamed(value, str(error))
        later = SETTINGS_NOT_YET.get(".".join(str(part) for part in where))
        reason = later if later is not None and str(error).startswith("unknown setting") else str(error)
        raise document.invalid((*path, *where), reason) from error


def _blamed(value: Mapping[str, Any], message: str) -> Path:
    """
    Return the path of the first key that *message* names; settings know their keys, not their lines.
    """
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
