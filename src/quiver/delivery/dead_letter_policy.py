"""Size cap, maximum age and replay mode of an exporter's dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from quiver.errors import SettingsError
from quiver.settings import GIB, MIB, Settings, SizeCapPolicy

__all__ = ["DeadLetterPolicy", "ReplayMode"]

ReplayMode = Literal["auto", "manual"]

SIZE_CAP_BYTES_MIN = 1 * MIB
SEGMENT_BYTES_MAX = 8 * MIB
SEGMENT_SHARE = 8
"""With a small cap, a segment is one eighth of it, so that log and segments leave space for dead letters."""


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    """
    The limits and the replay mode of one exporter's dead letters.

    Attributes:
        size_cap_bytes: their maximum size on disk, in one store.
        size_cap_policy: at the cap, `backpressure` keeps a bundle in the buffer and retries it until there is space for
            a dead letter; `drop_oldest` drops the oldest dead letters.
        max_age_s: drop older dead letters; None: keep them.
        replay: `auto` replays dead letters when the exporter has recovered, except those whose data were refused;
            `manual` replays none.

    Raises:
        SettingsError: out of range.
    """

    size_cap_bytes: int = 1 * GIB
    size_cap_policy: SizeCapPolicy = "backpressure"
    max_age_s: float | None = None
    replay: ReplayMode = "auto"

    def __post_init__(self) -> None:
        if self.size_cap_bytes < SIZE_CAP_BYTES_MIN:
            raise SettingsError(f"dead_letters.size_cap must be at least 1MiB, not {self.size_cap_bytes} bytes")
        if self.replay not in get_args(ReplayMode):
            raise SettingsError(f"dead_letters.replay: {self.replay!r} is not auto or manual")
        self.settings()

    def settings(self, stores: int = 1) -> Settings:
        """
        Return the settings of one of *stores* stores of dead letters, which share the cap.

        Raises:
            SettingsError: out of range.
        """
        cap = max(self.size_cap_bytes // stores, SIZE_CAP_BYTES_MIN)
        segment = min(SEGMENT_BYTES_MAX, cap // SEGMENT_SHARE)
        return Settings(
            segment_bytes_max=segment,
            segment_open_s_max=1.0,
            wal_rotate_bytes=segment,
            size_cap_bytes=cap,
            size_cap_policy=self.size_cap_policy,
            max_age_s=self.max_age_s,
            delete_grace_s=0.0,
            maintain_interval_s=0.5,
        )
