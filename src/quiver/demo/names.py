"""Names shared by load and report."""

from __future__ import annotations

__all__ = ["IDS_PER_WORKER", "ID_KEY", "SIGNALS", "ids_path"]

ID_KEY = "demo.id"
"""The attribute with the unique id of a record."""

SIGNALS = ("logs", "spans", "metrics")

IDS_PER_WORKER = 100_000_000


def ids_path(worker: int | str, signal: str) -> str:
    """Return the name of the file with the confirmed ids of *signal*, eight bytes each in native byte order."""
    return f"{worker}.{signal}.ids"
