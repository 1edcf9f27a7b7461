"""The configs of processors: the persistence node in both of its forms, and the processors on Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import Field

from quiver.delivery.policy import RetryPolicy
from quiver.errors import UsageError
from quiver.pipeline.config.base import Config, settings_config, settings_keys
from quiver.pipeline.config.values import Duration, SizeCap
from quiver.receivers.settings import OtlpSettings
from quiver.settings import GIB, Settings
from quiver.spark.processors.settings import (
    AttributeAction,
    AttributesSettings,
    FilterSettings,
    RedactSettings,
    SampleSettings,
    SqlSettings,
)

__all__ = [
    "PROCESSORS_GROUP",
    "PROCESSOR_CONFIGS",
    "DurableBufferConfig",
    "PersistenceConfig",
    "UserProcessorConfig",
    "find_user_processor",
    "with_default_cap",
]

PROCESSORS_GROUP = "quiver.processors"
"""The entry-point group for processors of other packages: the name is the URN, or its middle part."""

RUN_SEGMENT_OPEN_S = 1.0
"""With the library's default of 5 s, exporters under `quiver run` would lag 5 s behind a slow sender."""

SIZE_CAP_BYTES = 10 * GIB
"""Without a cap, an outage of a destination would fill the disk of every other program on the machine."""


@dataclass(frozen=True, slots=True)
class PersistenceConfig:
    """
    `urn:otap:processor:persistence`: the directory, and the settings of the store with their documented keys.

    Attributes:
        path: the directory of the store.
        settings: the settings of the store.
        receiver_defaults: default values of keys of the receivers that feed it.
        exporter_defaults: the same for the exporters that it feeds.
        has_default_cap: whether `retention.size_cap` is the default of pipelines. `disk.size_cap` replaces it.
    """

    path: str
    settings: Settings
    receiver_defaults: Mapping[str, Any] = field(default_factory=dict)
    exporter_defaults: Mapping[str, Any] = field(default_factory=dict)
    has_default_cap: bool = False

    def without_default_cap(self) -> PersistenceConfig:
        """Return the config without a cap that is not written in the file."""
        if not self.has_default_cap:
            return self
        return replace(self, settings=replace(self.settings, size_cap_bytes=None), has_default_cap=False)


def with_default_cap(config: PersistenceConfig) -> PersistenceConfig:
    """
    Return *config*, which has no `retention.size_cap`, with the default of pipelines.

    Settings that need more space below the cap raise it. With `drop_oldest` there is no default: a cap that is not
    written in the file must not drop data.
    """
    settings = config.settings
    if settings.size_cap_policy == "drop_oldest":
        return config
    log_bytes = settings.wal_rotate_bytes if settings.durability == "wal" else 0
    needed = max(
        log_bytes + 2 * settings.segment_bytes_max,
        settings.steady_state_headroom_bytes,
        settings.audit_bytes_max or 0,
        settings.cold_local_bytes or 0,
    )
    cap = max(SIZE_CAP_BYTES, 2 * needed)
    return replace(config, settings=replace(settings, size_cap_bytes=cap), has_default_cap=True)


@settings_keys(Settings, "max_age_s", "size_cap_policy", poll_interval="maintain_interval_s")
@settings_keys(OtlpSettings, "otlp_handling")
@settings_keys(
    RetryPolicy,
    initial_retry_interval="initial_interval_s",
    max_retry_interval="max_interval_s",
    retry_multiplier="multiplier",
)
class DurableBufferConfig(Config):
    """
    `urn:otel:durable_buffer:processor`: the persistence node under its later name, with flat keys.

    `otlp_handling` and the keys of a retry policy are defaults of the receivers that feed it, and of the exporters that
    it feeds.

    Attributes:
        path: the directory of the store.
        retention_size_cap: `retention.size_cap`; None for no cap.
        max_segment_open_duration: `segment.max_open_duration`.
        max_in_flight: the maximum number of bundles that an exporter sends concurrently, at most 256.
    """

    path: str = Field(min_length=1)
    retention_size_cap: SizeCap = SIZE_CAP_BYTES
    max_segment_open_duration: Duration = RUN_SEGMENT_OPEN_S
    max_in_flight: int = Field(default=1000, ge=1)

    def persistence(self) -> PersistenceConfig:
        """
        Return the equivalent persistence node.

        Raises:
            SettingsError: a value is out of range, or two contradict each other.
        """
        settings = self.build(
            Settings, size_cap_bytes=self.retention_size_cap, segment_open_s_max=self.max_segment_open_duration
        )
        exporters = {one.key: getattr(self, one.key) for one in self.from_settings if one.settings is RetryPolicy}
        if "max_in_flight" in self.model_fields_set:
            exporters["max_in_flight"] = min(self.max_in_flight, 256)
        is_default = "retention_size_cap" not in self.model_fields_set
        return PersistenceConfig(self.path, settings, self.values_for(OtlpSettings), exporters, is_default)


_Action = settings_config("action", AttributeAction)

PROCESSOR_CONFIGS: dict[str, type[Config]] = {
    "sql": settings_config("sql", SqlSettings),
    "filter": settings_config("filter", FilterSettings),
    "attributes": settings_config("attributes", AttributesSettings, actions=tuple[_Action, ...]),  # type: ignore[valid-type]
    "sample": settings_config("sample", SampleSettings),
    "redact": settings_config("redact", RedactSettings),
}
"""`urn:quiver:<name>:processor` → its config. The keys are the fields of the settings in `quiver.spark`."""


@dataclass(frozen=True, slots=True)
class UserProcessorConfig:
    """A processor of another package: the entry point, and its keys as written in the file."""

    entry_point: EntryPoint
    arguments: Mapping[str, Any]

    def load(self) -> Any:
        """
        Return the function from a DataFrame to a DataFrame that the entry point creates from the keys.

        Raises:
            UsageError: it cannot be loaded, or does not accept these keys.
        """
        try:
            return self.entry_point.load()(**self.arguments)
        except (ImportError, AttributeError, TypeError) as error:
            raise UsageError(f"the processor {self.entry_point.value} cannot be created: {error}") from error


def find_user_processor(urn: str) -> EntryPoint | None:
    """
    Return the entry point named *urn*, in any of its spellings, or named like its middle part; None if no installed
    package has one.
    """
    wanted = _name_parts(urn)

    def fits(one: EntryPoint) -> int:
        parts = _name_parts(one.name)
        if one.name == urn:
            return 3
        if parts == wanted:
            return 2
        # One of the two has no namespace.
        return int(min(len(wanted), len(parts)) == 1 and parts[-1] == wanted[-1])

    best = max(entry_points(group=PROCESSORS_GROUP), key=fits, default=None)
    return best if best is not None and fits(best) else None


def _name_parts(urn: str) -> list[str]:
    """Return namespace and name, or the name alone, for either order of name and kind."""
    return [part for part in urn.split(":") if part not in {"urn", "processor"}]
