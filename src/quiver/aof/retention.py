"""Which sealed segments expire, by policy, segments and time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quiver.aof.config import Retention

__all__ = ["SealedAge", "choose_expired", "is_expired"]

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SealedAge:
    """A sealed segment: when it was sealed, by the same clock as *now_ns*, and its size on the disk."""

    segment_id: int
    sealed_at: int
    size_bytes: int


def is_expired(retention: Retention, sealed_at: int, now_ns: int) -> bool:
    """Return whether a segment that was sealed at *sealed_at* has expired by time."""
    if retention.policy != "time" or retention.ttl_s is None:
        return False
    return sealed_at <= now_ns - round(retention.ttl_s * _NS)


def choose_expired(retention: Retention, sealed: Sequence[SealedAge], now_ns: int) -> list[int]:
    """
    Return the ids of the expired segments among *sealed*; both are ordered oldest first.

    The newest segment never expires: it may be the only one that holds the place where the log continues.
    """
    candidates = sealed[:-1]
    if retention.policy == "time":
        expired = (is_expired(retention, one.sealed_at, now_ns) for one in candidates)
        kept = next((index for index, is_expired in enumerate(expired) if not is_expired), len(candidates))
        return [one.segment_id for one in candidates[:kept]]
    if retention.policy == "size" and retention.max_total_bytes is not None:
        total = sum(one.size_bytes for one in sealed)
        leaving = []
        for one in candidates:
            if total <= retention.max_total_bytes:
                break
            total -= one.size_bytes
            leaving.append(one.segment_id)
        return leaving
    return []
