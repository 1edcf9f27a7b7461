"""
What a log says of itself at a moment: for metrics, for people and for tests.
"""

from __future__ import annotations

from dataclasses import dataclass

from quiver.aof.flush import FlushMetrics
from quiver.aof.tiers.snapshot import TierSnapshot

__all__ = ["LogSnapshot", "SegmentSnapshot"]


@dataclass(frozen=True, slots=True)
class SegmentSnapshot:
    """
    One segment: `current_size` and `durable_size` count from the beginning of its file.
    """

    segment_id: int
    state: str
    base_offset: int
    base_record_count: int
    record_count: int
    current_size: int
    durable_size: int
    max_size: int
    created_at: int
    path: str


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """
    A log: its segments, oldest first, and what waits.

    Attributes:
        would_block: kind → how often an append was refused.
        backlog_bytes: written and not yet durable.
        tiers: how much lies where; None for a log without tiers.
    """

    name: str
    stream_id: int
    segments: tuple[SegmentSnapshot, ...]
    spares: int
    record_count: int
    backlog_bytes: int
    coordinator_watermark: int
    ext_id: int
    flush_failed: bool
    would_block: dict[str, int]
    flush: FlushMetrics
    truncated_bytes: int
    quarantined: tuple[str, ...]
    tiers: TierSnapshot | None = None
