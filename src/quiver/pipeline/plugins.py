"""
What a `plugin_urn` stands for, and the shape of its `config`.

One table, `PLUGINS`. A URN that other pipelines know and this version does not have is refused in words that say
what there is. Keys are the documents' own; sizes and durations may be written for people ("16MiB", "10m").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError

from quiver.errors import SettingsInvalid
from quiver.exporters.settings import ExporterSettings, OtapSenderSettings
from quiver.pipeline.config_values import Config, Duration, Size
from quiver.pipeline.otap_config import OtapReceiverConfig
from quiver.pipeline.parse import Document, Path, nearest
from quiver.pipeline.receiver_config import MetricsConfig, OtlpReceiverConfig
from quiver.primitives.backoff import Backoff
from quiver.settings import MIB, Settings

__all__ = [
    "NOT_YET",
    "PLUGINS",
    "Kind",
    "MetricsConfig",
    "OtapExporterConfig",
    "OtapReceiverConfig",
    "OtlpExporterConfig",
    "OtlpReceiverConfig",
    "ParquetExporterConfig",
    "PersistenceConfig",
    "Plugin",
    "checked",
]

Kind = Literal["receiver", "processor", "exporter"]

RUN_SEGMENT_OPEN_S = 1.0
"""Under `quiver run` an exporter should not wait 5 s for a slow trickle, as the library's default would have it."""


_Checked = TypeVar("_Checked", bound=Config)


class ParquetExporterConfig(Config):
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
    def destination(self) -> str:
        """
        Where it writes.
        """
        return self.path

    @property
    def checkpoint_path(self) -> str:
        """
        Where Spark keeps its notes.
        """
        return self.checkpoint or f"{self.path}/_checkpoint"


class _ClientTls(Config):
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    insecure: bool = False


class OtlpExporterConfig(Config):
    """
    `urn:otel:otlp:exporter`: each bundle to an OTLP endpoint, from the ingest process; Spark is not needed.

    Attributes:
        grpc_endpoint: ``http://host:port``, or ``https://`` for TLS.
        http_endpoint: the same for OTLP/HTTP, without ``/v1/logs`` and the like; one of the two is given.
        compression_method: of the requests.
        timeout: of one request.
        tls: whom to trust, what to show, or `insecure` for plain text.
        headers: sent with every request.
        max_in_flight: requests on their way at once.
        initial_retry_interval: how long a bundle waits after its first failure.
        max_retry_interval: it never waits longer than this, unless the far side asks for it.
        retry_multiplier: each time so many times as long.
        denied: `drop` gives up what is refused for who sent it or where to, `retry` keeps it.
    """

    grpc_endpoint: str | None = None
    http_endpoint: str | None = None
    compression_method: Literal["none", "gzip"] = "none"
    timeout: Duration = 10.0
    tls: _ClientTls = _ClientTls()
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    max_in_flight: Annotated[int, Field(ge=1, le=256)] = 4
    initial_retry_interval: Duration = 1.0
    max_retry_interval: Duration = 30.0
    retry_multiplier: float = 2.0
    denied: Literal["drop", "retry"] = "drop"

    def model_post_init(self, _context: Any, /) -> None:
        """
        Refuse an exporter that sends nowhere, or to two places.
        """
        if (self.grpc_endpoint is None) == (self.http_endpoint is None):
            raise ValueError("give grpc_endpoint or http_endpoint, one of them")
        if not 0 < self.initial_retry_interval <= self.max_retry_interval:
            raise ValueError("initial_retry_interval must be above 0 and not above max_retry_interval")
        try:
            self.settings()
        except SettingsInvalid as error:
            raise ValueError(str(error)) from error

    @property
    def destination(self) -> str:
        """
        Where it sends.
        """
        return self.grpc_endpoint or self.http_endpoint or ""

    def settings(self) -> ExporterSettings:
        """
        Return the settings of the sender.

        Raises:
            SettingsInvalid: one is out of range, or two contradict each other.
        """
        return ExporterSettings(
            endpoint=self.destination,
            protocol="http" if self.grpc_endpoint is None else "grpc",
            compression_method=self.compression_method,
            timeout_s=self.timeout,
            ca_file=self.tls.ca_file,
            cert_file=self.tls.cert_file,
            key_file=self.tls.key_file,
            insecure=self.tls.insecure,
            headers=self.headers,
            denied=self.denied,
            in_flight_max=self.max_in_flight,
            retry=Backoff(self.initial_retry_interval, self.max_retry_interval, self.retry_multiplier),
        )


class OtapExporterConfig(OtlpExporterConfig):
    """
    `urn:otel:otap:exporter`: each bundle as batches on OTAP streams; the keys of `urn:otel:otlp:exporter`, too.

    Attributes:
        payload_compression: of the tables in a batch.
        stream_lifetime: a stream is followed by another after this.
        max_message_bytes: no batch is longer; receivers refuse more than 4 MiB unless told otherwise.
        metric_metadata: send `Metric.metadata`, which one implementation refuses.
    """

    payload_compression: Literal["zstd", "none"] = "zstd"
    stream_lifetime: Duration = 30.0
    max_message_bytes: Size = 4 * MIB
    metric_metadata: bool = False

    def model_post_init(self, context: Any, /) -> None:
        """
        Refuse what an exporter of OTLP requests refuses, and HTTP, over which OTAP is not spoken.
        """
        super().model_post_init(context)
        if self.http_endpoint is not None:
            raise ValueError("OTAP is spoken over gRPC only; give grpc_endpoint")
        try:
            self.otap()
        except SettingsInvalid as error:
            raise ValueError(str(error)) from error

    def otap(self) -> OtapSenderSettings:
        """
        Return what only OTAP has.

        Raises:
            SettingsInvalid: out of range.
        """
        return OtapSenderSettings(
            payload_compression=self.payload_compression,
            stream_lifetime_s=self.stream_lifetime,
            metric_metadata=self.metric_metadata,
            message_bytes_max=self.max_message_bytes,
        )


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
    model: type[Config] | None

    def config(self, document: Document, path: Path, value: Mapping[str, Any]) -> object:
        """
        Return the checked config at *path*.

        Raises:
            PipelineInvalid: with the line of the key that is wrong.
        """
        if self.model is None:
            return _persistence(document, path, value)
        return checked(self.model, document, path, value)


def checked(model: type[_Checked], document: Document, path: Path, value: Mapping[str, Any]) -> _Checked:
    """
    Return *value*, which stands at *path*, as *model*.

    Raises:
        PipelineInvalid: with the line of the key that is wrong.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False)
        # A key that is misspelt is missing, too; the spelling is what there is to say.
        first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
        where: Path = tuple(first["loc"]) or _blamed(value, str(first["msg"]))
        raise document.invalid((*path, *where), _explain(model, tuple(first["loc"]), first)) from error


PLUGINS = {
    plugin.urn: plugin
    for plugin in (
        Plugin("urn:otel:otlp:receiver", "receiver", OtlpReceiverConfig),
        Plugin("urn:otel:otap:receiver", "receiver", OtapReceiverConfig),
        Plugin("urn:otap:processor:persistence", "processor", None),
        Plugin("urn:quiver:parquet:exporter", "exporter", ParquetExporterConfig),
        Plugin("urn:otel:otlp:exporter", "exporter", OtlpExporterConfig),
        Plugin("urn:otel:otap:exporter", "exporter", OtapExporterConfig),
    )
}

NOT_YET = frozenset(
    {
        "urn:quiver:qwp:receiver",
        "urn:quiver:sql:processor",
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
        raise document.invalid((*path, *_blamed(value, str(error))), str(error)) from error


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
