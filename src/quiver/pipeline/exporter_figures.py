"""
The state of every exporter of a pipeline, read from files in the stores: the same figures for exporters of this process
and of the Spark process, from the first moment of either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quiver.delivery.dead_letters import count_dead_letters
from quiver.delivery.exporter_stats import load_report
from quiver.errors import QuiverError
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.store import Store
from quiver.store.subscribers.retry_set import load_retry_set

__all__ = ["ExporterFigures"]

_NANOS = 1e9

Figure = float | None


class ExporterFigures:
    """
    The figures of exporters. Figures that cannot be read are omitted.

    Args:
        stores: returns the name of each exporter and the open stores of this process that it reads.
        fs: the file system.
    """

    def __init__(self, stores: Callable[[], Mapping[str, Sequence[Store]]], fs: FileSystem = REAL_FILES) -> None:
        self._stores = stores
        self._fs = fs

    def figures(self) -> dict[str, dict[str, Figure]]:
        """
        Return for each exporter, over all its stores: `last_success_s` (since 1970, 0 for never),
        `retry_queue_bundles`, `dead_letters` and `behind_s`.
        """
        found = self._stores()
        lags = {store.path: _ages(store) for stores in found.values() for store in stores}
        return {name: self._of(name, stores, lags) for name, stores in found.items()}

    def _of(self, name: str, stores: Sequence[Store], lags: Mapping[str, Mapping[str, float]]) -> dict[str, Figure]:
        figures = [self._figures_of(store.path, name) | {"behind_s": lags[store.path].get(name)} for store in stores]
        return {
            "last_success_s": _all(max, figures, "last_success_s"),
            "retry_queue_bundles": _all(sum, figures, "retry_queue_bundles"),
            "dead_letters": _all(sum, figures, "dead_letters"),
            "behind_s": _all(max, figures, "behind_s"),
        }

    def _figures_of(self, root: str, name: str) -> dict[str, Figure]:
        found: dict[str, Figure] = {}
        with contextlib.suppress(QuiverError, OSError):
            report = load_report(self._fs, root, name)
            success_ns = None if report is None else report.last_success_at_ns
            found["last_success_s"] = (success_ns or 0) / _NANOS
        with contextlib.suppress(QuiverError, OSError):
            found["retry_queue_bundles"] = len(load_retry_set(self._fs, root, name))
        with contextlib.suppress(QuiverError, OSError):
            found["dead_letters"] = count_dead_letters(self._fs, root, name)
        return found


def _ages(store: Store) -> dict[str, float]:
    """Return for each subscriber of *store* the age of its oldest unconfirmed bundle, in seconds."""
    try:
        figures: dict[str, Any] = store.stats()
    except (QuiverError, OSError):
        return {}  # the store was closed in the meantime
    unsealed_s = figures["unsealed_seconds"]
    return {name: max(one["lag_seconds"], unsealed_s) for name, one in figures["subscribers"].items()}


def _all(combine: Callable[[list[float]], float], figures: Sequence[Mapping[str, Figure]], key: str) -> Figure:
    known = [value for value in (one.get(key) for one in figures) if value is not None]
    return combine(known) if known else None
