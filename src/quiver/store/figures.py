"""The figures of an open store."""

from __future__ import annotations

from typing import Any

from quiver.store.cold.tier import ColdTier
from quiver.store.context import StoreContext
from quiver.store.format.names import QUARANTINE_DIR
from quiver.store.subscribers.subscribers import Subscribers

__all__ = ["figures", "subscriber_figures"]


def figures(
    context: StoreContext, cold: ColdTier, *, next_sequence: int, disk_bytes: int, staged_bytes: int
) -> dict[str, Any]:
    """Return current figures: bytes, counts, and the lag of each subscriber."""
    catalog, subscribers = context.catalog, context.subscribers
    with context.lock:
        found: dict[str, Any] = {
            "segments": len(catalog),
            "segment_bytes": catalog.bytes,
            **context.wal.stats(),
            "open_bundles": context.sealing.open.bundle_count,
            "open_bytes": context.sealing.open.nbytes,
            "unsealed_seconds": _age_s(context),
            "next_sequence": next_sequence,
            "next_segment": context.sealing.next_seq,
        }
    quarantine = f"{context.path}/{QUARANTINE_DIR}"
    found |= {
        "disk_bytes": disk_bytes,
        "staged_bytes": staged_bytes,
        "incomplete_segments": found["segments"] - len(subscribers.complete_segments()),
        "quarantined_files": len(context.fs.list_dir(quarantine)) if context.fs.exists(quarantine) else 0,
    }
    if cold.is_used:
        found["cold"] = cold.stats()
    return found | {"subscribers": subscriber_figures(subscribers)}


def _age_s(context: StoreContext) -> float:
    """Return the age of the oldest bundle that is not sealed; 0 if there is none."""
    oldest_ns = context.sealing.oldest_ns()
    return 0.0 if oldest_ns is None else max(0.0, (context.clock.now_ns() - oldest_ns) / 1e9)


def subscriber_figures(subscribers: Subscribers) -> dict[str, dict[str, int | float | bool]]:
    """Return the figures of each subscriber by id; `dropped_bundles` counts since the store was opened."""
    return {
        status.id: {
            "registered": status.is_registered,
            "owned": status.is_owned,
            "orphan": status.is_orphan,
            "oldest_incomplete": status.oldest_incomplete,
            "pending_bundles": status.pending_bundles,
            "claimed_bundles": status.claimed_bundles,
            "deferred_bundles": status.deferred_bundles,
            "dropped_bundles": subscribers.table.lost[status.id],
            "lag_bytes": status.lag_bytes,
            "lag_seconds": status.lag_seconds,
            "idle_seconds": status.idle_seconds,
            "progress_age_seconds": status.progress_age_seconds,
        }
        for status in subscribers.statuses()
    }
