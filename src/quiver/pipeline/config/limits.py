"""`memory` and `disk`, beside `nodes`: how much a pipeline may keep."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from quiver.pipeline.config.values import Config, Size
from quiver.settings import MIB, Settings

__all__ = ["MEMORY_OPEN_S", "DiskConfig", "MemoryConfig"]


class DiskConfig(Config):
    """
    `disk`.

    Attributes:
        size_cap: the most that logs, segments, what is staged, and dead letters of all buffers take together. At the
            cap each buffer does as its own `size_cap_policy` says.
    """

    size_cap: Size


MEMORY_OPEN_S = 0.25
"""Nothing is gained by waiting for more: what is in memory is not written to a disk."""


class MemoryConfig(Config):
    """
    `memory`, beside `nodes`: the bounds of a pipeline without a persistence node.

    Attributes:
        size_cap: the most that may wait.
        size_cap_policy: what happens then: senders are told to come later, or the oldest goes.
    """

    size_cap: Annotated[Size, Field(ge=32 * MIB)] = 256 * MIB
    size_cap_policy: Literal["backpressure", "drop_oldest"] = "backpressure"

    def settings(self) -> Settings:
        """Return the settings of the store."""
        return Settings(
            durability="segment_only",
            segment_bytes_max=8 * MIB,
            segment_open_s_max=MEMORY_OPEN_S,
            size_cap_bytes=self.size_cap,
            size_cap_policy=self.size_cap_policy,
            delete_grace_s=0.0,
        )
