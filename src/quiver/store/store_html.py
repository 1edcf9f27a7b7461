"""The HTML of an open store in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quiver.errors import QuiverError
from quiver.html_tables import facts_html, rows_html, section_html

__all__ = ["store_html"]


def store_html(path: str, stats: Callable[[], Mapping[str, Any]], *, is_closed: bool) -> str:
    """Return the figures of the store at *path* and the lag of its subscribers; a closed store has only its path."""
    if is_closed:
        return section_html(f"Store {path}", facts_html({"state": "closed"}))
    try:
        figures = stats()
    except (QuiverError, OSError) as error:  # a notebook shows it in place of a traceback
        return section_html(f"Store {path}", facts_html({"problem": str(error)}))
    cores = figures.get("cores")
    keys = ("segments", "segment_bytes", "wal_bytes", "open_bundles", "open_bytes", "disk_bytes", "quarantined_files")
    facts = {"cores": None if cores is None else len(cores)} | {key: figures.get(key) for key in keys}
    subscribers = [
        {"subscriber": name, "pending_bundles": one["pending_bundles"], "lag_bytes": one["lag_bytes"]}
        | {"oldest_seconds": round(float(one["lag_seconds"]), 1)}
        for name, one in figures["subscribers"].items()
    ]
    return section_html(f"Store {path}", facts_html(facts), rows_html(subscribers))
