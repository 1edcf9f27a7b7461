"""Snapshots of the tiers of a log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from quiver.aof.format.tier_entry import Residency, TierEntry

__all__ = ["TierCounts", "TierSnapshot"]

_LATENCIES_KEPT = 1000


@dataclass(slots=True)
class TierCounts:
    """Counts since the log was opened, and the latencies of the last thousand hydrations."""

    compressions: int = 0
    compression_failures: int = 0
    evictions: int = 0
    hydrations: int = 0
    hydration_failures: int = 0
    upload_attempts: int = 0
    upload_failures: int = 0
    uploads: int = 0
    downloads: int = 0
    download_failures: int = 0
    deletes: int = 0
    delete_failures: int = 0
    failures: int = 0
    hydration_latencies_s: tuple[float, ...] = ()

    def hydrated(self, latency_s: float) -> None:
        """Count a hydrated segment."""
        self.hydrations += 1
        self.hydration_latencies_s = (*self.hydration_latencies_s, latency_s)[-_LATENCIES_KEPT:]

    def hydration_latency_ms(self, share: float) -> float | None:
        """Return the latency that *share* of the hydrations did not exceed; None if there were none."""
        found = sorted(self.hydration_latencies_s)
        return found[min(len(found) - 1, int(share * len(found)))] * 1000 if found else None

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as plain values."""
        counts = asdict(self)
        del counts["hydration_latencies_s"]
        counts["hydration_latency_samples"] = len(self.hydration_latencies_s)
        for percent in (50, 90, 99):
            counts[f"hydration_latency_p{percent}_ms"] = self.hydration_latency_ms(percent / 100)
        return counts


@dataclass(frozen=True, slots=True)
class TierSnapshot:
    """
    The sizes and queues of the tiers.

    Attributes:
        residency: segment → where a reader finds it.
        resident_bytes: the size of the files of sealed segments.
        warm_bytes, object_bytes: the size of the packed copies on the disk and in the object store.
        compression_queue_depth, hydration_queue_depth: sealed segments that wait to be packed, and to be hydrated.
        upload_queue_depth, delete_queue_depth: pending uploads and deletions of objects.
        upload_lag_bytes: bytes of records and heads in sealed segments without an object.
        upload_lag_seconds: the time since the oldest of these was sealed; 0 when there are none.
        replay_chunks, replay_journal_lag_bytes, replay_chunk_lag_seconds: the state of the manifest log when the log
            was opened.
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
    compression_queue_depth: int = 0
    hydration_queue_depth: int = 0
    replay_chunks: int = 0
    replay_journal_lag_bytes: int = 0
    replay_chunk_lag_seconds: float = 0.0
    upload_lag_bytes: int = 0
    upload_lag_seconds: float = 0.0

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
        packs_all: bool = False,
        hydrations: int = 0,
    ) -> TierSnapshot:
        """Add up the entries of a log."""
        warm = [one for one in entries.values() if one.has_warm]
        objects = [one for one in entries.values() if one.remote is not None]
        uploaded = {one.segment_id for one in objects}
        waiting = sum(
            number not in uploaded and where != "needs_recovery" for number, where in residency.items() if uploads_to
        )
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
            compression_queue_depth=len(residency.keys() - entries.keys()) if packs_all else 0,
            hydration_queue_depth=hydrations,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, by tier."""
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
            "queues": {
                "compression": self.compression_queue_depth,
                "hydration": self.hydration_queue_depth,
                "upload": self.upload_queue_depth,
                "delete": self.delete_queue_depth,
            },
            "counts": self.counts.as_dict(),
        }
