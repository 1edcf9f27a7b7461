"""
Configs of exporters: those that forward requests from the ingest process, and those that run as queries in the
Spark process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from quiver.delivery.dead_letter_policy import DeadLetterPolicy
from quiver.delivery.policy import RetryPolicy
from quiver.errors import SettingsError
from quiver.exporters.settings import ExporterSettings, OtapSenderSettings, RequestSizes, shown
from quiver.pipeline.config.base import Config, SettingsConfig, settings_keys
from quiver.pipeline.config.formatting import duration_words, size_words
from quiver.pipeline.config.values import Duration, FileMode, Signals, Texts
from quiver.spark.exporters.settings import (
    ConsoleSettings,
    FileSettings,
    QuiverSinkSettings,
    SparkSinkSettings,
)
from quiver.spark.lake.settings import ParquetTables
from quiver.spark.questdb.export_settings import QuestdbSinkSettings
from quiver.spark.table_formats.settings import DeltaSettings, IcebergSettings

__all__ = [
    "ConsoleExporterConfig",
    "DeadLettersConfig",
    "DeltaExporterConfig",
    "ExporterConfig",
    "FileExporterConfig",
    "IcebergExporterConfig",
    "OtapExporterConfig",
    "OtlpExporterConfig",
    "ParquetExporterConfig",
    "QueryExporterConfig",
    "QuestdbExporterConfig",
    "QuiverExporterConfig",
    "RetryConfig",
    "SparkExporterConfig",
    "TableFormatConfig",
    "is_given",
]


@settings_keys(RetryPolicy, nullable=True)
class RetryConfig(Config):
    """
    `retry` of any exporter. The keys are the fields of `RetryPolicy`.

    On Spark, `max_attempts` and `max_elapsed` count failures of processors, and
    `quiver.delivery.policy.PROCESSOR_ATTEMPTS` applies when neither is given.
    """


@settings_keys(DeadLetterPolicy, "size_cap_policy", "max_age_s", "replay", size_cap="size_cap_bytes", nullable=True)
class DeadLettersConfig(Config):
    """
    `dead_letters` of any exporter whose `retry.on_exhausted` is `dead_letter`. The keys are the fields of
    `DeadLetterPolicy`; `size_cap` is for all cores together.
    """


@settings_keys(
    RetryPolicy,
    nullable=True,
    initial_retry_interval="initial_interval_s",
    max_retry_interval="max_interval_s",
    retry_multiplier="multiplier",
)
class ExporterConfig(Config):
    """
    Settings of every exporter.

    Attributes:
        retry: see `RetryConfig`; three of its keys may be written here, too.
        dead_letters: see `DeadLettersConfig`.
        signals: the signals that it receives; None for all. The others are acknowledged for it without being sent.
        order: `oldest` sends the data in the order of arrival. `newest` sends the newest first, and as every fourth
            bundle the oldest, so that the backlog after an outage is sent, too. Not on Spark.
    """

    signals: Signals = None
    order: Literal["oldest", "newest"] = "oldest"
    retry: RetryConfig = RetryConfig()
    dead_letters: DeadLettersConfig = DeadLettersConfig()

    def check(self) -> None:
        """Refuse an invalid retry policy."""
        flat, nested = self.values_for(RetryPolicy), self.retry.values_for(RetryPolicy)
        for key, field in ((one.key, one.field) for one in ExporterConfig.from_settings):
            if field in flat and field in nested:
                raise ValueError(f"{key} and retry.{_IN_RETRY[key]} set the same value; keep one")
        policy = self.policy()
        self.dead_letter_policy()
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
        flat = self.values_for(RetryPolicy)
        values = self.retry.values_for(RetryPolicy) | flat
        initial, most = values.get("initial_interval_s"), values.get("max_interval_s")
        if initial is not None and most is not None and not 0 < initial <= most:
            first = "initial_retry_interval" if "initial_interval_s" in flat else "retry.initial_interval"
            last = "max_retry_interval" if "max_interval_s" in flat else "retry.max_interval"
            raise SettingsError(f"{first} must be above 0 and not above {last}")
        return RetryPolicy(**values)

    def dead_letter_policy(self) -> DeadLetterPolicy:
        """
        Return the limits of the dead letters, and whether they are replayed automatically.

        Raises:
            SettingsError: a value is out of range.
        """
        return self.dead_letters.build(DeadLetterPolicy)

    @property
    def destination(self) -> str:
        """The destination, human-readable."""
        return ""

    @property
    def sends(self) -> str:
        """How the exporter sends, human-readable."""
        return ""


_IN_RETRY = {one.key: one.field.removesuffix("_s") for one in ExporterConfig.from_settings}
"""A key of an exporter → the key of the same setting in `retry`."""


def is_given(config: Mapping[str, Any], key: str) -> bool:
    """Return whether the *config* of an exporter, as written in the file, has *key* under either of its names."""
    retry = config.get("retry")
    return key in config or (isinstance(retry, Mapping) and retry.get(_IN_RETRY.get(key, "")) is not None)


# ── in the ingest process ────────────────────────────────────────────────────────────────────────────


@settings_keys(ExporterSettings, "ca_file", "cert_file", "key_file", "insecure")
class _ClientTls(Config):
    """Certificates of the connection to a server."""


@settings_keys(RequestSizes, max_delay="batch_delay_s_max", nullable=True)
@settings_keys(
    ExporterSettings,
    "compression_method",
    "timeout_s",
    "headers",
    "denied",
    max_in_flight="in_flight_max",
    types={"headers": dict[str, str], "max_in_flight": Field(ge=1, le=256)},
)
@settings_keys(RequestSizes, max_request_bytes="request_bytes_max", min_batch="batch_bytes_min")
class OtlpExporterConfig(ExporterConfig):
    """
    `urn:otel:otlp:exporter`: sends each bundle to an OTLP endpoint from the ingest process, without Spark.

    Attributes:
        grpc_endpoint: ``http://host:port``, or ``https://`` for TLS.
        http_endpoint: the same for OTLP/HTTP, without a path such as ``/v1/logs``. Give one of the two endpoints.
        tls: certificates, or `insecure` for plain text.
    """

    grpc_endpoint: str | None = None
    http_endpoint: str | None = None
    tls: _ClientTls = _ClientTls()

    def check(self) -> None:
        """Require exactly one endpoint."""
        if (self.grpc_endpoint is None) == (self.http_endpoint is None):
            raise ValueError("give grpc_endpoint or http_endpoint, one of them")
        super().check()
        sizes = self.values_for(RequestSizes)
        if "batch_delay_s_max" in sizes and not sizes["batch_bytes_min"]:
            raise ValueError("max_delay has no effect without min_batch: nothing is combined")
        self.settings()
        self.sizes()

    @property
    def destination(self) -> str:
        """The endpoint."""
        return self.grpc_endpoint or self.http_endpoint or ""

    @property
    def sends(self) -> str:
        """Protocol and compression, human-readable."""
        protocol = "gRPC" if self.grpc_endpoint else "HTTP"
        settings = self.settings()
        packed = "not compressed" if settings.compression_method == "none" else settings.compression_method
        return f"OTLP over {protocol}, {packed}, up to {settings.in_flight_max} at once{self._combines}"

    @property
    def _combines(self) -> str:
        least = self.sizes().batch_bytes_min
        return f", combined to {size_words(least)}" if least else ""

    def settings(self) -> ExporterSettings:
        """
        Return the settings of the sender.

        Raises:
            SettingsError: one is out of range, or two contradict each other.
        """
        return self.build(
            ExporterSettings,
            endpoint=self.destination,
            protocol="http" if self.grpc_endpoint is None else "grpc",
            retry=self.policy().backoff,
            **self.tls.values_for(ExporterSettings),
        )

    def sizes(self) -> RequestSizes:
        """
        Return the limits on the size of requests.

        Raises:
            SettingsError: a value is out of range.
        """
        return self.build(RequestSizes)


@settings_keys(OtapSenderSettings, "payload_compression", nullable=True)
class _Arrow(Config):
    """The compression of the tables in a batch, under the name that the Collector uses."""


@settings_keys(OtapSenderSettings, "payload_compression", nullable=True)
@settings_keys(OtapSenderSettings, "stream_lifetime_s", "metric_metadata", max_message_bytes="message_bytes_max")
class OtapExporterConfig(OtlpExporterConfig):
    """
    `urn:otel:otap:exporter`: sends each bundle as batches on OTAP streams. Also accepts the keys of
    `urn:otel:otlp:exporter`.

    Attributes:
        compression_method: `zstd` compresses the tables inside the batches, like `arrow.payload_compression: zstd`,
            because compressed tables hardly shrink again as messages. `gzip` compresses complete messages.
        arrow: `payload_compression` of the tables in a batch, which may be written outside, too.
    """

    compression_method: Literal["none", "gzip", "zstd"] = "none"
    arrow: _Arrow = _Arrow()

    def check(self) -> None:
        """Apply the checks of the OTLP exporter, and require gRPC."""
        super().check()
        if self.http_endpoint is not None:
            raise ValueError("OTAP needs gRPC; give grpc_endpoint")
        if self.arrow.values_for(OtapSenderSettings) and "payload_compression" in self.values_for(OtapSenderSettings):
            raise ValueError("payload_compression and arrow.payload_compression set the same value; keep one")
        self.otap()

    @property
    def sends(self) -> str:
        """Protocol and compression, human-readable."""
        whole = ", messages gzip" if self.compression_method == "gzip" else ""
        tables = "zstd" if self.otap().payload_compression == "zstd" else "not compressed"
        return f"OTAP over gRPC, tables {tables}{whole}{self._combines}"

    def values_for(self, settings: type[Any]) -> dict[str, Any]:
        """Return the values of the keys that are fields of *settings*; zstd compresses the tables, not the messages."""
        values = super().values_for(settings)
        if self.compression_method == "zstd" and settings is ExporterSettings:
            return values | {"compression_method": "none"}
        return values

    def otap(self) -> OtapSenderSettings:
        """
        Return the settings that only OTAP has.

        Raises:
            SettingsError: a value is out of range.
        """
        given = self.arrow.values_for(OtapSenderSettings)
        if self.compression_method == "zstd":
            given = {"payload_compression": "zstd"}
        return self.build(OtapSenderSettings, **given)


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

    def check(self) -> None:
        """Refuse an order that a query cannot have."""
        super().check()
        if self.order != "oldest":
            raise ValueError(
                f"order: {self.order} has no effect on Spark: the position of a query passes segments from the oldest "
                "to the newest; leave it out"
            )

    @property
    def sends(self) -> str:
        """The interval between batches, human-readable."""
        return f"a batch every {duration_words(self.trigger)}" if self.trigger else "batches without a pause"


@settings_keys(
    ParquetTables,
    "path",
    "compression",
    "file_mode",
    "options",
    "partition_by",
    target_file_size="target_file_size_bytes",
    max_file_age="max_file_age_s",
    max_partitions="partitions_max",
    types={
        "path": Annotated[str, Field(min_length=1)],
        "compression": Literal["zstd", "snappy", "none"],
        "file_mode": FileMode,
        "options": dict[str, Any],
    },
)
class ParquetExporterConfig(QueryExporterConfig):
    """
    `urn:quiver:parquet:exporter`: Parquet files in a directory or a bucket. Readers only ever see complete files. The
    keys are the fields of `ParquetTables`.

    Attributes:
        checkpoint: Spark's checkpoint directory; by default `<path>/_checkpoint`, a name that Parquet readers ignore,
            and for a bucket in the run directory.
    """

    def check(self) -> None:
        """Refuse values that are invalid or without effect."""
        super().check()
        self.settings()

    def settings(self) -> ParquetTables:
        """
        Return the settings of the exporter.

        Raises:
            SettingsError: a value is invalid.
        """
        return self.build(ParquetTables)

    @property
    def destination(self) -> str:
        """The output directory, or the URL of the bucket."""
        return self.settings().path

    @property
    def sends(self) -> str:
        """The interval between batches, human-readable."""
        settings = self.settings()
        if not settings.file_age_s:
            return super().sends
        size = settings.file_bytes_max
        full = "it is full" if size is None else f"there is enough for files of {size_words(size)}"
        return f"a batch when {full}, or after {duration_words(settings.file_age_s)}"

    @property
    def checkpoint_path(self) -> str | None:
        """Spark's checkpoint directory; None means in the run directory."""
        settings = self.settings()
        return self.checkpoint or (None if settings.is_bucket else f"{settings.path}/_checkpoint")


@settings_keys(ConsoleSettings)
class ConsoleExporterConfig(SettingsConfig, QueryExporterConfig):
    """`urn:quiver:console:exporter`: prints rows to the log of the Spark process. Keys: `ConsoleSettings`."""

    @property
    def destination(self) -> str:
        """The log of the Spark process."""
        return "the log of the Spark process"


@settings_keys(FileSettings, types={"file_mode": FileMode})
class FileExporterConfig(SettingsConfig, QueryExporterConfig):
    """`urn:quiver:file:exporter`: JSON lines, or OpenTelemetry's file format. Keys: `FileSettings`."""

    @property
    def destination(self) -> str:
        """The output directory."""
        return str(self.settings().path)


@settings_keys(SparkSinkSettings, types={"options": Texts})
class SparkExporterConfig(SettingsConfig, QueryExporterConfig):
    """`urn:quiver:spark:exporter`: any format that Spark writes. Keys: `SparkSinkSettings`."""

    @property
    def destination(self) -> str:
        """Format and path."""
        settings = self.settings()
        return f"{settings.format} {shown(settings.path or '')}".strip()


@settings_keys(QuiverSinkSettings)
class QuiverExporterConfig(SettingsConfig, QueryExporterConfig):
    """`urn:quiver:quiver:exporter`: writes processed data to another store. Keys: `QuiverSinkSettings`."""

    @property
    def destination(self) -> str:
        """The directory of the other store."""
        return str(self.settings().path)


@settings_keys(QuestdbSinkSettings, types={"conf": Field(min_length=1)})
class QuestdbExporterConfig(SettingsConfig, QueryExporterConfig):
    """`urn:quiver:questdb:exporter`: writes telemetry to QuestDB. Keys: `QuestdbSinkSettings`."""

    @property
    def destination(self) -> str:
        """The addresses of QuestDB, without credentials."""
        return f"QuestDB at {', '.join(self.settings().addresses)}"


class TableFormatConfig(SettingsConfig, QueryExporterConfig):
    """The base of exporters to table formats. Their settings check that `path` is a directory or a bucket."""

    @property
    def sends(self) -> str:
        """The interval between batches and that of maintenance, human-readable."""
        interval_s = self.settings().maintenance_interval_s
        maintenance = "no maintenance" if interval_s is None else f"maintenance every {duration_words(interval_s)}"
        return f"{super().sends}; {maintenance}"


_TABLE_KEYS = (
    "path",
    "options",
    "compression",
    "partition_by",
    "schema_changes",
    "maintenance_interval_s",
    "retention_s",
    "records",
)


@settings_keys(DeltaSettings, *_TABLE_KEYS, target_file_size="target_file_size_bytes", types={"options": Texts})
class DeltaExporterConfig(TableFormatConfig):
    """`urn:quiver:delta:exporter`: one Delta table per signal. The keys are the fields of `DeltaSettings`."""

    settings_type: ClassVar[type[Any]] = DeltaSettings

    @property
    def destination(self) -> str:
        """The location of the tables, without credentials."""
        return f"Delta tables below {self.settings().location}"


@settings_keys(
    IcebergSettings,
    *_TABLE_KEYS,
    "catalog",
    "catalog_options",
    "namespace",
    target_file_size="target_file_size_bytes",
    types={"options": Texts, "catalog_options": Texts},
)
class IcebergExporterConfig(TableFormatConfig):
    """`urn:quiver:iceberg:exporter`: one Iceberg table per signal. The keys are the fields of `IcebergSettings`."""

    settings_type: ClassVar[type[Any]] = IcebergSettings

    @property
    def destination(self) -> str:
        """The location of the tables and the kind of their catalog, without credentials."""
        settings = self.settings()
        return f"Iceberg tables below {settings.location}, in a catalog of kind {settings.catalog_kind}"
