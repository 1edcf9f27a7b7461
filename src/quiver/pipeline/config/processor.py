"""The configs of what stands between: the persistence node in both of its spellings, and the processors on Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from pydantic import Field

from quiver.errors import UsageError
from quiver.pipeline.config.values import Config, Duration, Size, settings_config
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
]

PROCESSORS_GROUP = "quiver.processors"
"""The entry-point group of processors that other packages bring: the name is the URN, or its middle part."""

RUN_SEGMENT_OPEN_S = 1.0
"""Under `quiver run` an exporter should not wait 5 s for a slow trickle, as the library's default would have it."""


@dataclass(frozen=True, slots=True)
class PersistenceConfig:
    """
    `urn:otap:processor:persistence`: the directory, and the store's settings with their documented keys.

    Attributes:
        path: the store's directory.
        settings: of the store.
        receiver_defaults: keys that receivers before it have when they do not say otherwise.
        exporter_defaults: the same for exporters behind it.
    """

    path: str
    settings: Settings
    receiver_defaults: Mapping[str, Any] = field(default_factory=dict)
    exporter_defaults: Mapping[str, Any] = field(default_factory=dict)


class DurableBufferConfig(Config):
    """
    `urn:otel:durable_buffer:processor`: the persistence node under its later name, with keys side by side.

    Attributes:
        path: the store's directory.
        retention_size_cap: `retention.size_cap`.
        max_age: `retention.max_age`.
        size_cap_policy: `retention.size_cap_policy`.
        poll_interval: how often progress is written and finished segments go.
        otlp_handling: of the receivers before it that do not say.
        max_segment_open_duration: `segment.max_open_duration`.
        initial_retry_interval: of the exporters behind it that do not say; so are the three others.
        max_retry_interval: see there.
        retry_multiplier: see there.
        max_in_flight: bundles that such an exporter has on their way at once, at most 256.
    """

    path: str = Field(min_length=1)
    retention_size_cap: Size = 10 * GIB
    max_age: Duration | None = None
    size_cap_policy: Literal["backpressure", "drop_oldest"] = "backpressure"
    poll_interval: Duration = 0.1
    otlp_handling: Literal["pass_through", "convert_to_arrow"] = "pass_through"
    max_segment_open_duration: Duration = 1.0
    initial_retry_interval: Duration = 1.0
    max_retry_interval: Duration = 30.0
    retry_multiplier: float = 2.0
    max_in_flight: int = Field(default=1000, ge=1)

    def persistence(self) -> PersistenceConfig:
        """
        Return what it stands for.

        Raises:
            SettingsError: one is out of range, or two contradict each other.
        """
        settings = Settings.from_mapping(
            {
                "retention": {
                    "size_cap": self.retention_size_cap,
                    "max_age": self.max_age,
                    "size_cap_policy": self.size_cap_policy,
                },
                "segment.max_open_duration": self.max_segment_open_duration,
                "maintain_interval": self.poll_interval,
            }
        )
        exporters: dict[str, Any] = {
            "initial_retry_interval": self.initial_retry_interval,
            "max_retry_interval": self.max_retry_interval,
            "retry_multiplier": self.retry_multiplier,
        }
        if "max_in_flight" in self.model_fields_set:
            exporters["max_in_flight"] = min(self.max_in_flight, 256)
        return PersistenceConfig(self.path, settings, {"otlp_handling": self.otlp_handling}, exporters)


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
    """A processor that another package brings: the entry point, and its keys as they are written."""

    entry_point: EntryPoint
    arguments: Mapping[str, Any]

    def load(self) -> Any:
        """
        Return the function from a DataFrame to a DataFrame that the entry point makes of the keys.

        Raises:
            UsageError: it cannot be loaded, or does not take these keys.
        """
        try:
            return self.entry_point.load()(**self.arguments)
        except (ImportError, AttributeError, TypeError) as error:
            raise UsageError(f"the processor {self.entry_point.value} cannot be made: {error}") from error


def find_user_processor(urn: str) -> EntryPoint | None:
    """
    Return the entry point that is named *urn*, in whichever of the ways to write one, or like its middle part; None
    when no package brings one.
    """
    wanted = _name_parts(urn)

    def fits(one: EntryPoint) -> int:
        parts = _name_parts(one.name)
        if one.name == urn:
            return 3
        if parts == wanted:
            return 2
        # One of the two says no namespace.
        return int(min(len(wanted), len(parts)) == 1 and parts[-1] == wanted[-1])

    best = max(entry_points(group=PROCESSORS_GROUP), key=fits, default=None)
    return best if best is not None and fits(best) else None


def _name_parts(urn: str) -> list[str]:
    """Return namespace and name, or the name alone, in whichever order name and kind stand."""
    return [part for part in urn.split(":") if part not in {"urn", "processor"}]
