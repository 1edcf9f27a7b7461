"""What load and account agree on."""

from __future__ import annotations

__all__ = ["IDS_PER_WORKER", "ID_KEY", "SIGNALS", "ids_path"]

ID_KEY = "demo.id"
"""The attribute that tells every record from every other."""

SIGNALS = ("logs", "spans", "metrics")

IDS_PER_WORKER = 100_000_000


def ids_path(worker: int | str, signal: str) -> str:
    """Return the name of the file with the confirmed ids of *signal*, eight bytes each in this machine's order."""
    return f"{worker}.{signal}.ids"
