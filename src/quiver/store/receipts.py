"""The return values of the store's methods."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BundleReceipt", "MaintenanceReport"]


class BundleReceipt(NamedTuple):
    """Proof of ingest: the bundle's sequence number, and the log position after it."""

    sequence: int
    wal_position: int


class MaintenanceReport(NamedTuple):
    """The result of one maintenance pass."""

    sealed: int
    progress_written: int
    segments_deleted: int
    wal_files_deleted: int
