"""
Configs of exporters: those that forward requests from the ingest process, and those that run as queries in the
Spark process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from quiver.delivery.dead_letter_policy import DeadLetterPolicy, Replay
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
    `retry` of any exporter.

    Attributes:
        initial_interval: the delay after the first failure of a bundle.
        max_interval: the maximum delay, unless the server asks for a longer one.
        multiplier: each delay is this many times the one before.
        jitter: the fraction of a delay that may be subtracted at random, 0 to 1.
        max_attempts: the number of failures after which a bundle is exhausted; unlimited by default. On Spark, failures
            of processors count, and `quiver.delivery.policy.PROCESSOR_ATTEMPTS` applies when neither bound is given.
        max_elapsed: the time since the first failure after which the next failure exhausts a bundle; unlimited by
            default.
        on_exhausted: what happens to a bundle that is exhausted or permanently refused: `dead_letter` stores it as a
            dead letter, `drop` counts and drops it, `halt` stops the exporter.
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
    `dead_letters` of any exporter whose `retry.on_exhausted` is `dead_letter`.

    Attributes:
        size_cap: the maximum size of the dead letters on disk, over all cores.
        size_cap_policy: at the cap, `backpressure` keeps a bundle in the buffer until its dead letter fits, and
            `drop_oldest` drops the oldest dead letters.
        max_age: dead letters older than this are dropped; unlimited by default.
        replay: `auto` delivers dead letters again once the exporter works again, except those whose data was refused;
            `manual` leaves replay to the operator.
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
"""A key of an exporter → the key of the same setting in `retry`."""


def is_said(config: Mapping[str, Any], key: str) -> bool:
    """Return whether the *config* of an exporter, as written in the file, has *key* under either of its names."""
    retry = config.get("retry")
    return key in config or (isinstance(retry, Mapping) and retry.get(_IN_RETRY.get(key, "")) is not None)


class ExporterConfig(Config):
    """
    Settings of every exporter.

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
        """Refuse an invalid retry policy."""
        for flat, key in _IN_RETRY.items():
            if getattr(self, flat) is not None and getattr(self.retry, key) is not None:
                raise ValueError(f"{flat} and retry.{key} set the same value; keep one")
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
        Return the retry policy.

        Raises:
            SettingsError: a value is out of range.
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

    def letters(self) -> DeadLetterPolicy:
        """
        Return the limits of the dead letters, and whether they are replayed automatically.

        Raises:
            SettingsError: a value is out of range.
        """
        given = {
            "size_cap_bytes": self.dead_letters.size_cap,
            "size_cap_policy": self.dead_letters.size_cap_policy,
            "max_age_s": self.dead_letters.max_age,
            "replay": self.dead_letters.replay,
        }
        return DeadLetterPolicy(**{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]

    @property
    def destination(self) -> str:
        """The destination, human-readable."""
        return ""

    @property
    def sends(self) -> str:
        """How the exporter sends, human-readable."""
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
    `urn:otel:otlp:exporter`: sends each bundle to an OTLP endpoint from the ingest process, without Spark.

    Attributes:
        grpc_endpoint: ``http://host:port``, or ``https://`` for TLS.
        http_endpoint: the same for OTLP/HTTP, without a path such as ``/v1/logs``. Give one of the two endpoints.
        compression_method: compression of the requests.
        timeout: time limit of one request.
        tls: certificates, or `insecure` for plain text.
        headers: sent with every request.
        max_in_flight: the maximum number of concurrent requests.
        denied: which refused requests are retried: `credentials` retries those that lack permission, `retry` also those
            sent to a wrong address, `drop` none.
        max_request_bytes: a larger request is split between records, like one that the server refuses for its size.
        min_batch: combine requests until they have this many bytes; by default each is sent as it was received.
        max_delay: the maximum time that a request waits to be combined.
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
        """Require exactly one endpoint."""
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
        """The endpoint."""
        return self.grpc_endpoint or self.http_endpoint or ""

    @property
    def sends(self) -> str:
        """Protocol and compression, human-readable."""
        protocol = "gRPC" if self.grpc_endpoint else "HTTP"
        packed = "gzip" if self.request_compression == "gzip" else "not compressed"
        return f"OTLP over {protocol}, {packed}, up to {self.max_in_flight} at once{self._combines}"

    @property
    def _combines(self) -> str:
        return f", combined to {size_words(self.min_batch)}" if self.min_batch else ""

    @property
    def request_compression(self) -> Literal["none", "gzip"]:
        """Compression of complete requests."""
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
        Return the limits on the size of requests.

        Raises:
            SettingsError: a value is out of range.
        """
        sizes = RequestSizes(request_bytes_max=self.max_request_bytes, batch_bytes_min=self.min_batch)
        return sizes if self.max_delay is None else replace(sizes, batch_delay_s_max=self.max_delay)


class _Arrow(Config):
    payload_compression: Literal["zstd", "none"] | None = None


class OtapExporterConfig(OtlpExporterConfig):
    """
    `urn:otel:otap:exporter`: sends each bundle as batches on OTAP streams. Also accepts the keys of
    `urn:otel:otlp:exporter`.

    Attributes:
        compression_method: `zstd` compresses the tables inside the batches, like `arrow.payload_compression: zstd`,
            because gRPC has no zstd for complete messages here. `gzip` compresses complete messages.
        arrow: `payload_compression` of the tables in a batch.
        payload_compression: the same setting under a second name.
        stream_lifetime: the age at which a stream is replaced by a new one.
        max_message_bytes: the maximum size of a batch; receivers accept 4 MiB by default.
        metric_metadata: send `Metric.metadata`, which one implementation refuses.
    """

    compression_method: Literal["none", "gzip", "zstd"] = "none"  # type: ignore[assignment]
    arrow: _Arrow = _Arrow()
    payload_compression: Literal["zstd", "none"] | None = None
    stream_lifetime: Duration = 30.0
    max_message_bytes: Size = 4 * MIB
    metric_metadata: bool = False

    def model_post_init(self, context: Any, /) -> None:
        """Apply the checks of the OTLP exporter, and require gRPC."""
        super().model_post_init(context)
        if self.http_endpoint is not None:
            raise ValueError("OTAP needs gRPC; give grpc_endpoint")
        if self.arrow.payload_compression is not None and self.payload_compression is not None:
            raise ValueError("payload_compression and arrow.payload_compression set the same value; keep one")
        try:
            self.otap()
        except SettingsError as error:
            raise ValueError(str(error)) from error

    @property
    def request_compression(self) -> Literal["none", "gzip"]:
        """Compression of complete messages."""
        return "gzip" if self.compression_method == "gzip" else "none"

    @property
    def table_compression(self) -> Literal["zstd", "none"]:
        """Compression of the tables in a batch: `none` only if no key asks for zstd."""
        if self.compression_method == "zstd":
            return "zstd"
        return self.arrow.payload_compression or self.payload_compression or "zstd"

    @property
    def sends(self) -> str:
        """Protocol and compression, human-readable."""
        whole = ", messages gzip" if self.request_compression == "gzip" else ""
        tables = "zstd" if self.table_compression == "zstd" else "not compressed"
        return f"OTAP over gRPC, tables {tables}{whole}{self._combines}"

    def otap(self) -> OtapSenderSettings:
        """
        Return the settings that only OTAP has.

        Raises:
            SettingsError: a value is out of range.
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
    Settings of every exporter that runs as a query in the Spark process.

    Attributes:
        trigger: the interval between batches.
        checkpoint: Spark's checkpoint directory; by default in the run directory, or `<path>/_checkpoint` for files.
    """

    trigger: Duration = 1.0
    checkpoint: str | None = None

    @property
    def sends(self) -> str:
        """The interval between batches, human-readable."""
        return f"a batch every {duration_words(self.trigger)}" if self.trigger else "batches without a pause"


class ParquetExporterConfig(QueryExporterConfig):
    """
    `urn:quiver:parquet:exporter`: one directory of Parquet files per signal. Readers only ever see complete files.

    Attributes:
        path: the output directory.
        compression: compression of the Parquet pages.
        file_mode: permission bits of the files, in quotes; the umask decides by default.
        checkpoint: Spark's checkpoint directory; by default `<path>/_checkpoint`, a name that Parquet readers ignore.
    """

    path: Annotated[str, Field(min_length=1)]
    compression: Literal["zstd", "snappy", "none"] = "zstd"
    file_mode: FileMode = None

    def model_post_init(self, context: Any, /) -> None:
        """Refuse a mode that does not let the owner write the files."""
        super().model_post_init(context)
        try:
            check_file_mode(self.file_mode)
        except SettingsError as error:
            raise ValueError(str(error)) from error

    @property
    def destination(self) -> str:
        """The output directory."""
        return self.path

    @property
    def checkpoint_path(self) -> str:
        """Spark's checkpoint directory."""
        return self.checkpoint or f"{self.path}/_checkpoint"


def _texts(value: object) -> object:
    """Convert numbers and booleans of the YAML to strings: Spark's options are strings."""
    if not isinstance(value, Mapping):
        return value
    for key, text in value.items():
        if text is None:
            raise ValueError(f"{key} has no value; write an empty string in quotes")
    return {key: str(text).lower() if isinstance(text, bool) else str(text) for key, text in value.items()}


_ConsoleKeys = settings_config("console", ConsoleSettings, QueryExporterConfig)
_FileKeys = settings_config("file", FileSettings, QueryExporterConfig, file_mode=FileMode)
_SparkKeys = settings_config(
    "spark", SparkSinkSettings, QueryExporterConfig, options=Annotated[dict[str, str], BeforeValidator(_texts)]
)
_QuiverKeys = settings_config("quiver", QuiverSinkSettings, QueryExporterConfig)


class ConsoleExporterConfig(_ConsoleKeys):  # type: ignore[valid-type,misc]
    """`urn:quiver:console:exporter`: prints rows to the log of the Spark process. Keys: `ConsoleSettings`."""

    @property
    def destination(self) -> str:
        """The log of the Spark process."""
        return "the log of the Spark process"


class FileExporterConfig(_FileKeys):  # type: ignore[valid-type,misc]
    """`urn:quiver:file:exporter`: JSON lines, or OpenTelemetry's file format. Keys: `FileSettings`."""

    @property
    def destination(self) -> str:
        """The output directory."""
        return str(self.path)


class SparkExporterConfig(_SparkKeys):  # type: ignore[valid-type,misc]
    """`urn:quiver:spark:exporter`: any format that Spark writes. Keys: `SparkSinkSettings`."""

    @property
    def destination(self) -> str:
        """Format and path."""
        return f"{self.format} {shown(self.path or '')}".strip()


class QuiverExporterConfig(_QuiverKeys):  # type: ignore[valid-type,misc]
    """`urn:quiver:quiver:exporter`: writes processed data to another store. Keys: `QuiverSinkSettings`."""

    @property
    def destination(self) -> str:
        """The directory of the other store."""
        return str(self.path)
