"""
What the tiers of a log say of themselves at a moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from quiver.aof.format.tier_entry import Residency, TierEntry

__all__ = ["TierCounts", "TierSnapshot"]


@dataclass(slots=True)
class TierCounts:
    """
    What was done since the log was opened.
    """

    compressions: int = 0
    evictions: int = 0
    hydrations: int = 0
    hydration_failures: int = 0
    upload_attempts: int = 0
    uploads: int = 0
    downloads: int = 0
    deletes: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class TierSnapshot:
    """
    How much lies where, and what waits.

    Attributes:
        residency: segment → where a reader finds it.
        resident_bytes: files of sealed segments.
        warm_bytes, object_bytes: packed copies, on the disk and in the object store.
        upload_queue_depth, delete_queue_depth: what the object store is still to be told.
        needs_recovery: segments that no copy is known of.
    """

    residency: dict[int, Residency]
    resident_bytes: int
    warm_segments: int
    warm_bytes: int
    object_segments: int
    object_bytes: int
    upload_queue_depth: int
    delete_queue_depth: int
    counts: TierCounts

    @classmethod
    def of(
        cls,
        residency: Mapping[int, Residency],
        entries: Mapping[int, TierEntry],
        *,
        resident_bytes: int,
        deletes: int,
        counts: TierCounts,
        uploads_to: bool,
    ) -> TierSnapshot:
        """
        Add up the entries of a log.
        """
        warm = [one for one in entries.values() if one.has_warm]
        objects = [one for one in entries.values() if one.remote is not None]
        waiting = sum(one.remote is None for one in warm) if uploads_to else 0
        return cls(
            residency=dict(residency),
            resident_bytes=resident_bytes,
            warm_segments=len(warm),
            warm_bytes=sum(one.warm_bytes for one in warm),
            object_segments=len(objects),
            object_bytes=sum(one.warm_bytes for one in objects),
            upload_queue_depth=waiting,
            delete_queue_depth=deletes,
            counts=counts,
        )

    def as_dict(self) -> dict[str, Any]:
        """
        Return the same as plain values, by tier.
        """
        by_residency = Counter(self.residency.values())
        names: tuple[Residency, ...] = (
            "resident_in_tier0", "staged_for_tier0", "uploaded_to_tier2", "needs_recovery",
        )  # fmt: skip
        return {
            "tier0": {"sealed_bytes": self.resident_bytes},
            "tier1": {
                "segments": self.warm_segments,
                "stored_bytes": self.warm_bytes,
                "residency": {name: by_residency[name] for name in names},
            },
            "tier2": {"segments": self.object_segments, "stored_bytes": self.object_bytes},
            "queues": {"upload": self.upload_queue_depth, "delete": self.delete_queue_depth},
            "counts": asdict(self.counts),
        }
