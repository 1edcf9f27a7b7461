"""The config of the exporter to QuestDB."""

from __future__ import annotations

from pydantic import Field

from quiver.pipeline.config.base import SettingsConfig, settings_keys
from quiver.pipeline.config.exporter import QueryExporterConfig
from quiver.spark.questdb.export_settings import QuestdbSinkSettings

__all__ = ["QuestdbExporterConfig"]


@settings_keys(QuestdbSinkSettings, types={"conf": Field(min_length=1)})
class QuestdbExporterConfig(SettingsConfig, QueryExporterConfig):
    """`urn:quiver:questdb:exporter`: writes telemetry to QuestDB. Keys: `QuestdbSinkSettings`."""

    @property
    def destination(self) -> str:
        """The addresses of QuestDB, without credentials."""
        return f"QuestDB at {', '.join(self.settings().addresses)}"
