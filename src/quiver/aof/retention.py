"""Which sealed segments leave `segments/`. Pure: a policy, what there is, and the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quiver.aof.config import Retention

__all__ = ["Held", "choose_leaving", "is_expired"]

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Held:
    """A sealed segment: when it was sealed, by the clock that *now_ns* is of, and what it takes of the disk."""

    segment_id: int
    sealed_at: int
    size_bytes: int


def is_expired(retention: Retention, sealed_at: int, now_ns: int) -> bool:
    """Say whether retention by time no longer keeps what was sealed then."""
    if retention.policy != "time" or retention.ttl_s is None:
        return False
    return sealed_at <= now_ns - round(retention.ttl_s * _NS)


def choose_leaving(retention: Retention, held: Sequence[Held], now_ns: int) -> list[int]:
    """
    Return the ids of the segments that leave, oldest first, out of *held*, oldest first.

    The newest stays whatever the policy says: it tells where the log goes on when nothing else does.
    """
    candidates = held[:-1]
    if retention.policy == "time":
        expired = (is_expired(retention, one.sealed_at, now_ns) for one in candidates)
        kept = next((index for index, gone in enumerate(expired) if not gone), len(candidates))
        return [one.segment_id for one in candidates[:kept]]
    if retention.policy == "size" and retention.max_total_bytes is not None:
        total = sum(one.size_bytes for one in held)
        leaving = []
        for one in candidates:
            if total <= retention.max_total_bytes:
                break
            total -= one.size_bytes
            leaving.append(one.segment_id)
        return leaving
    return []
