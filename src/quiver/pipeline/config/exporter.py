"""
The configs of what sends on: exporters that pass requests on, and exporters that are queries of the
Spark process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from quiver.delivery.letter_policy import LetterPolicy, Replay
from quiver.delivery.policy import OnExhausted, RetryPolicy
from quiver.errors import SettingsError
from quiver.exporters.settings import ExporterSettings, OtapSenderSettings, RequestSizes, shown
from quiver.pipeline.config.formatting import duration_words, size_words
from quiver.pipeline.config.values import Config, Duration, FileMode, Size, settings_config
from quiver.settings import MIB, SizeCapPolicy
from quiver.spark.exporters.settings import (
    ConsoleSettings,
    FileSettings,
    QuiverSinkSettings,
    SparkSinkSettings,
    check_file_mode,
)

__all__ = [
    "ConsoleExporterConfig",
    "DeadLettersConfig",
    "ExporterConfig",
    "FileExporterConfig",
    "OtapExporterConfig",
    "OtlpExporterConfig",
    "ParquetExporterConfig",
    "QueryExporterConfig",
    "QuiverExporterConfig",
    "RetryConfig",
    "SparkExporterConfig",
    "is_said",
]


class RetryConfig(Config):
    """
    `retry`, of any exporter.

    Attributes:
        initial_interval: how long a bundle waits after its first failure.
        max_interval: it never waits longer than this, unless the far side asks for it.
        multiplier: each time so many times as long.
        jitter: which part of a delay chance may take off, 0 to 1.
        max_attempts: so many failures use a bundle up; any number when not given. On Spark those count that processors
            have with it, and `quiver.delivery.policy.PROCESSOR_ATTEMPTS` is the number when neither bound is given.
        max_elapsed: as long after its first failure the next one uses it up; never when not given.
        on_exhausted: what becomes of a bundle that is used up, or refused for good: `dead_letter` keeps it aside,
            `drop` counts it, `halt` stops the exporter.
    """

    initial_interval: Duration | None = None
    max_interval: Duration | None = None
    multiplier: float | None = None
    jitter: float | None = None
    max_attempts: int | None = None
    max_elapsed: Duration | None = None
    on_exhausted: OnExhausted | None = None


class DeadLettersConfig(Config):
    """
    `dead_letters`, of any exporter whose `retry.on_exhausted` is `dead_letter`.

    Attributes:
        size_cap: the most that its dead letters take on the disk, of all cores together.
        size_cap_policy: at the cap, `backpressure` keeps a bundle in the buffer until there is room for its letter,
            `drop_oldest` drops the oldest letters.
        max_age: an older letter is dropped; none is when not given.
        replay: `auto` delivers letters again once the exporter works again, except those whose data were refused;
            `manual` leaves all of them to a person.
    """

    size_cap: Size | None = None
    size_cap_policy: SizeCapPolicy | None = None
    max_age: Duration | None = None
    replay: Replay | None = None


_IN_RETRY = {
    "initial_retry_interval": "initial_interval",
    "max_retry_interval": "max_interval",
    "retry_multiplier": "multiplier",
}
"""Keys of an exporter → what the same is called in its `retry`."""


def is_said(config: Mapping[str, Any], key: str) -> bool:
    """Say whether the *config* of an exporter, as it is written, has *key* under either of its names."""
    retry = config.get("retry")
    return key in config or (isinstance(retry, Mapping) and retry.get(_IN_RETRY.get(key, "")) is not None)


class ExporterConfig(Config):
    """
    What every exporter has.

    Attributes:
        retry: see `RetryConfig`.
        dead_letters: see `DeadLettersConfig`.
        initial_retry_interval: `retry.initial_interval`.
        max_retry_interval: `retry.max_interval`.
        retry_multiplier: `retry.multiplier`.
    """

    retry: RetryConfig = RetryConfig()
    dead_letters: DeadLettersConfig = DeadLettersConfig()
    initial_retry_interval: Duration | None = None
    max_retry_interval: Duration | None = None
    retry_multiplier: float | None = None

    def model_post_init(self, _context: Any, /) -> None:
        """Refuse a retry policy that is none."""
        for flat, key in _IN_RETRY.items():
            if getattr(self, flat) is not None and getattr(self.retry, key) is not None:
                raise ValueError(f"{flat} and retry.{key} both say the same; keep one")
        try:
            policy = self.policy()
            self.letters()
        except SettingsError as error:
            raise ValueError(str(error).removeprefix("retry: ")) from error
        given = [key for key, value in self.dead_letters if value is not None]
        if given and policy.on_exhausted != "dead_letter":
            how = policy.on_exhausted
            raise ValueError(f"dead_letters.{given[0]} has no effect with retry.on_exhausted: {how}; leave it out")

    def policy(self) -> RetryPolicy:
        """
        Return how often and how long it tries, and what it does in the end.

        Raises:
            SettingsError: out of range.
        """
        initial, most = (
            _first(self.initial_retry_interval, self.retry.initial_interval),
            _first(self.max_retry_interval, self.retry.max_interval),
        )
        if initial is not None and most is not None and not 0 < initial <= most:
            first = "retry.initial_interval" if self.initial_retry_interval is None else "initial_retry_interval"
            last = "retry.max_interval" if self.max_retry_interval is None else "max_retry_interval"
            raise SettingsError(f"{first} must be above 0 and not above {last}")
        given = {
            "initial_interval_s": initial,
            "max_interval_s": most,
            "multiplier": _first(self.retry_multiplier, self.retry.multiplier),
            "jitter": self.retry.jitter,
            "max_attempts": self.retry.max_attempts,
            "max_elapsed_s": self.retry.max_elapsed,
            "on_exhausted": self.retry.on_exhausted,
        }
        return RetryPolicy(**{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]

    def letters(self) -> LetterPolicy:
        """
        Return how much room its dead letters have, how long they stay, and who replays them.

        Raises:
            SettingsError: out of range.
        """
        given = {
            "size_cap_bytes": self.dead_letters.size_cap,
            "size_cap_policy": self.dead_letters.size_cap_policy,
            "max_age_s": self.dead_letters.max_age,
            "replay": self.dead_letters.replay,
        }
        return LetterPolicy(**{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]

    @property
    def destination(self) -> str:
        """Where it sends or writes."""
        return ""

    @property
    def sends(self) -> str:
        """How, for people."""
        return ""


def _first(one: float | None, other: float | None) -> float | None:
    return other if one is None else one


# ── in the ingest process ────────────────────────────────────────────────────────────────────────────


class _ClientTls(Config):
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    insecure: bool = False


class OtlpExporterConfig(ExporterConfig):
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
        denied: which requests are retried that were refused for who sent them, or where to: `credentials` those without
            permission, `retry` also those to a wrong address, `drop` none.
        max_request_bytes: a larger request is divided between records, as is one that is refused for its size.
        min_batch: requests are combined until they have so many bytes; without it each is sent as it was received.
        max_delay: so long at most the first of them waits for the others.
    """

    grpc_endpoint: str | None = None
    http_endpoint: str | None = None
    compression_method: Literal["none", "gzip"] = "none"
    timeout: Duration = 10.0
    tls: _ClientTls = _ClientTls()
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    max_in_flight: Annotated[int, Field(ge=1, le=256)] = 4
    denied: Literal["credentials", "retry", "drop"] = "credentials"
    max_request_bytes: Size = 4 * MIB
    min_batch: Size = 0
    max_delay: Duration | None = None

    def model_post_init(self, context: Any, /) -> None:
        """Refuse an exporter that sends nowhere, or to two places."""
        if (self.grpc_endpoint is None) == (self.http_endpoint is None):
            raise ValueError("give grpc_endpoint or http_endpoint, one of them")
        super().model_post_init(context)
        if self.max_delay is not None and not self.min_batch:
            raise ValueError("max_delay has no effect without min_batch: nothing is combined")
        try:
            self.settings()
            self.sizes()
        except SettingsError as error:
            raise ValueError(str(error)) from error

    @property
    def destination(self) -> str:
        """Where it sends."""
        return self.grpc_endpoint or self.http_endpoint or ""

    @property
    def sends(self) -> str:
        """How."""
        protocol = "gRPC" if self.grpc_endpoint else "HTTP"
        packed = "gzip" if self.request_compression == "gzip" else "not compressed"
        return f"OTLP over {protocol}, {packed}, up to {self.max_in_flight} at once{self._combines}"

    @property
    def _combines(self) -> str:
        return f", combined to {size_words(self.min_batch)}" if self.min_batch else ""

    @property
    def request_compression(self) -> Literal["none", "gzip"]:
        """How whole requests are compressed."""
        return self.compression_method

    def settings(self) -> ExporterSettings:
        """
        Return the settings of the sender.

        Raises:
            SettingsError: one is out of range, or two contradict each other.
        """
        return ExporterSettings(
            endpoint=self.destination,
            protocol="http" if self.grpc_endpoint is None else "grpc",
            compression_method=self.request_compression,
            timeout_s=self.timeout,
            ca_file=self.tls.ca_file,
            cert_file=self.tls.cert_file,
            key_file=self.tls.key_file,
            insecure=self.tls.insecure,
            headers=self.headers,
            denied=self.denied,
            in_flight_max=self.max_in_flight,
            retry=self.policy().backoff,
        )

    def sizes(self) -> RequestSizes:
        """
        Return how large requests are.

        Raises:
            SettingsError: one is out of range.
        """
        sizes = RequestSizes(request_bytes_max=self.max_request_bytes, batch_bytes_min=self.min_batch)
        return sizes if self.max_delay is None else replace(sizes, batch_delay_s_max=self.max_delay)


class _Arrow(Config):
    payload_compression: Literal["zstd", "none"] | None = None


class OtapExporterConfig(OtlpExporterConfig):
    """
    `urn:otel:otap:exporter`: each bundle as batches on OTAP streams; the keys of `urn:otel:otlp:exporter`, too.

    Attributes:
        compression_method: `zstd` compresses the tables inside the batches, as `arrow.payload_compression: zstd` does:
            gRPC has no zstd for whole messages here. `gzip` compresses whole messages.
        arrow: `payload_compression` of the tables in a batch.
        payload_compression: the same.
        stream_lifetime: a stream is followed by another after this.
        max_message_bytes: no batch is longer; receivers refuse more than 4 MiB unless told otherwise.
        metric_metadata: send `Metric.metadata`, which one implementation refuses.
    """

    compression_method: Literal["none", "gzip", "zstd"] = "none"  # type: ignore[assignment]
    arrow: _Arrow = _Arrow()
    payload_compression: Literal["zstd", "none"] | None = None
    stream_lifetime: Duration = 30.0
    max_message_bytes: Size = 4 * MIB
    metric_metadata: bool = False

    def model_post_init(self, context: Any, /) -> None:
        """Refuse what an exporter of OTLP requests refuses, and HTTP, over which OTAP is not spoken."""
        super().model_post_init(context)
        if self.http_endpoint is not None:
            raise ValueError("OTAP is spoken over gRPC only; give grpc_endpoint")
        if self.arrow.payload_compression is not None and self.payload_compression is not None:
            raise ValueError("payload_compression and arrow.payload_compression both say the same; keep one")
        try:
            self.otap()
        except SettingsError as error:
            raise ValueError(str(error)) from error

    @property
    def request_compression(self) -> Literal["none", "gzip"]:
        """How whole messages are compressed."""
        return "gzip" if self.compression_method == "gzip" else "none"

    @property
    def table_compression(self) -> Literal["zstd", "none"]:
        """How the tables in a batch are compressed. `none` only where nobody asked for zstd."""
        if self.compression_method == "zstd":
            return "zstd"
        return self.arrow.payload_compression or self.payload_compression or "zstd"

    @property
    def sends(self) -> str:
        """How."""
        whole = ", messages gzip" if self.request_compression == "gzip" else ""
        tables = "zstd" if self.table_compression == "zstd" else "not compressed"
        return f"OTAP over gRPC, tables {tables}{whole}{self._combines}"

    def otap(self) -> OtapSenderSettings:
        """
        Return what only OTAP has.

        Raises:
            SettingsError: out of range.
        """
        return OtapSenderSettings(
            payload_compression=self.table_compression,
            stream_lifetime_s=self.stream_lifetime,
            metric_metadata=self.metric_metadata,
            message_bytes_max=self.max_message_bytes,
        )


# ── queries of the Spark process ─────────────────────────────────────────────────────────────────────


class QueryExporterConfig(ExporterConfig):
    """
    What every exporter has that is a query of the Spark process.

    Attributes:
        trigger: how often a batch is written.
        checkpoint: Spark's own notes; in the run directory, or for files `<path>/_checkpoint`, when not given.
    """

    trigger: Duration = 1.0
    checkpoint: str | None = None

    @property
    def sends(self) -> str:
        """How often."""
        return f"a batch every {duration_words(self.trigger)}" if self.trigger else "batches without a pause"


class ParquetExporterConfig(QueryExporterConfig):
    """
    `urn:quiver:parquet:exporter`: one directory of Parquet files a signal, right for any reader at every moment.

    Attributes:
        path: the output directory.
        compression: of the Parquet pages.
        file_mode: permission bits of the files, in quotes; as the umask says when not given.
        checkpoint: Spark's own notes; `<path>/_checkpoint` when not given, a name that readers of Parquet pass over.
    """

    path: Annotated[str, Field(min_length=1)]
    compression: Literal["zstd", "snappy", "none"] = "zstd"
    file_mode: FileMode = None

    def model_post_init(self, context: Any, /) -> None:
        """Refuse a mode with which the files could not be written."""
        super().model_post_init(context)
        try:
            check_file_mode(self.file_mode)
        except SettingsError as error:
            raise ValueError(str(error)) from error

    @property
    def destination(self) -> str:
        """Where it writes."""
        return self.path

    @property
    def checkpoint_path(self) -> str:
        """Where Spark keeps its notes."""
        return self.checkpoint or f"{self.path}/_checkpoint"


def _texts(value: object) -> object:
    """Spark's options are texts; a number or a truth value of the YAML is meant as one."""
    if not isinstance(value, Mapping):
        return value
    for key, text in value.items():
        if text is None:
            raise ValueError(f"{key} has no value; an empty text is written in quotes")
    return {key: str(text).lower() if isinstance(text, bool) else str(text) for key, text in value.items()}


_ConsoleKeys = settings_config("console", ConsoleSettings, QueryExporterConfig)
_FileKeys = settings_config("file", FileSettings, QueryExporterConfig, file_mode=FileMode)
_SparkKeys = settings_config(
    "spark", SparkSinkSettings, QueryExporterConfig, options=Annotated[dict[str, str], BeforeValidator(_texts)]
)
_QuiverKeys = settings_config("quiver", QuiverSinkSettings, QueryExporterConfig)


class ConsoleExporterConfig(_ConsoleKeys):  # type: ignore[valid-type,misc]
    """`urn:quiver:console:exporter`: rows, printed in the log of the Spark process. Keys: `ConsoleSettings`."""

    @property
    def destination(self) -> str:
        """Where it writes."""
        return "the log of the Spark process"


class FileExporterConfig(_FileKeys):  # type: ignore[valid-type,misc]
    """`urn:quiver:file:exporter`: JSON lines, or OpenTelemetry's file format. Keys: `FileSettings`."""

    @property
    def destination(self) -> str:
        """Where it writes."""
        return str(self.path)


class SparkExporterConfig(_SparkKeys):  # type: ignore[valid-type,misc]
    """`urn:quiver:spark:exporter`: any format that Spark writes. Keys: `SparkSinkSettings`."""

    @property
    def destination(self) -> str:
        """Where it writes."""
        return f"{self.format} {shown(self.path or '')}".strip()


class QuiverExporterConfig(_QuiverKeys):  # type: ignore[valid-type,misc]
    """`urn:quiver:quiver:exporter`: processed data in another store. Keys: `QuiverSinkSettings`."""

    @property
    def destination(self) -> str:
        """Where it writes."""
        return str(self.path)
