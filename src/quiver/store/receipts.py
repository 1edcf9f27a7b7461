"""What the store's calls return."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BundleReceipt", "MaintenanceReport"]


class BundleReceipt(NamedTuple):
    """Proof of ingest: the bundle's sequence number, and the log position behind it."""

    sequence: int
    wal_position: int


class MaintenanceReport(NamedTuple):
    """What one maintenance pass did."""

    sealed: int
    progress_written: int
    segments_deleted: int
    wal_files_deleted: int
