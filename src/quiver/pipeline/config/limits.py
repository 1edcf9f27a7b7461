"""The sections `memory` and `disk` of a pipeline file: how much data a pipeline may hold."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from quiver.pipeline.config.base import Config, settings_keys
from quiver.pipeline.config.values import Size
from quiver.settings import MIB, Settings

__all__ = ["MEMORY_OPEN_S", "DiskConfig", "MemoryConfig"]


class DiskConfig(Config):
    """
    The section `disk`.

    Attributes:
        size_cap: the maximum size of logs, segments, staged batches and dead letters of all buffers together. At the
            cap each buffer applies its own `size_cap_policy`.
    """

    size_cap: Size


MEMORY_OPEN_S = 0.25
"""A segment in memory is sealed this early: waiting for a larger one saves no disk writes."""


@settings_keys(Settings, "size_cap_policy")
class MemoryConfig(Config):
    """
    The section `memory`: the limits of a pipeline without a persistence node.

    Attributes:
        size_cap: the maximum size of the data that waits for exporters.
    """

    size_cap: Annotated[Size, Field(ge=32 * MIB)] = 256 * MIB

    def settings(self) -> Settings:
        """Return the settings of the store."""
        return self.build(
            Settings,
            durability="segment_only",
            segment_bytes_max=8 * MIB,
            segment_open_s_max=MEMORY_OPEN_S,
            size_cap_bytes=self.size_cap,
            delete_grace_s=0.0,
        )
