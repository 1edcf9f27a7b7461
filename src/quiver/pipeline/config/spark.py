"""The section `spark` of a pipeline file: where the Spark process runs its tasks, and what they need."""

from __future__ import annotations

from quiver.pipeline.config.base import SettingsConfig, settings_keys
from quiver.pipeline.config.values import Texts
from quiver.spark.session_settings import SessionSettings

__all__ = ["SparkConfig"]


@settings_keys(SessionSettings, types={"config": Texts})
class SparkConfig(SettingsConfig):
    """The section `spark`. Keys: `SessionSettings`."""
