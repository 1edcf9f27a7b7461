"""What an open store says of itself in numbers."""

from __future__ import annotations

from typing import Any

from quiver.store.cold.tier import ColdTier
from quiver.store.context import Parts
from quiver.store.format.names import QUARANTINE_DIR

__all__ = ["figures"]


def figures(parts: Parts, cold: ColdTier, *, next_sequence: int, disk_bytes: int, staged_bytes: int) -> dict[str, Any]:
    """Return figures of this moment: bytes, counts, and each subscriber's lag."""
    catalog, registry = parts.catalog, parts.registry
    with parts.lock:
        found: dict[str, Any] = {
            "segments": len(catalog),
            "segment_bytes": catalog.bytes,
            **parts.wal.stats(),
            "open_bundles": parts.sealing.open.bundle_count,
            "open_bytes": parts.sealing.open.nbytes,
            "unsealed_seconds": _age_s(parts),
            "next_sequence": next_sequence,
            "next_segment": parts.sealing.next_seq,
        }
    quarantine = f"{parts.path}/{QUARANTINE_DIR}"
    found |= {
        "disk_bytes": disk_bytes,
        "staged_bytes": staged_bytes,
        "incomplete_segments": found["segments"] - len(registry.complete_segments()),
        "quarantined_files": len(parts.files.list_dir(quarantine)) if parts.files.exists(quarantine) else 0,
    }
    if cold.is_used:
        found["cold"] = cold.stats()
    return found | {"subscribers": registry.stats()}


def _age_s(parts: Parts) -> float:
    """Return the age of the oldest bundle that is in no segment yet; 0 when there is none."""
    oldest_ns = parts.sealing.oldest_ns()
    return 0.0 if oldest_ns is None else max(0.0, (parts.clock.now_ns() - oldest_ns) / 1e9)
