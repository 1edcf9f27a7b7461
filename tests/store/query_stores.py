"""Stores on a disk in memory for the tests of queries, and how to see what of it is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from quiver.bundle import Bundle
from quiver.settings import Settings
from quiver.store.opening import open_store
from quiver.store.store import Store
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/store"
LOGS = 30


class CountingFiles:
    """A file system that counts which segment files are opened, by number."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.opened: Counter[int] = Counter()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in {"map_read", "open_read", "read_all"}:
            return method

        def call(path: str, *args: Any, **kwargs: Any) -> Any:
            if path.endswith(".qseg"):
                self.opened[int(path.rpartition("/")[2].removesuffix(".qseg"))] += 1
            return method(path, *args, **kwargs)

        return call


def opened(**settings: Any) -> tuple[Store, CrashFileSystem, ManualClock]:
    """Return an empty store without threads."""
    disk, clock = CrashFileSystem(), ManualClock()
    store = open_store(ROOT, Settings(**settings), fs=disk, clock=clock, background=False)
    return store, disk, clock


def filled(parts: Iterable[Iterable[pa.RecordBatch]], **settings: Any) -> tuple[Store, CrashFileSystem]:
    """A store with a segment for each of *parts* but the last, which is in the log only; a second between bundles."""
    store, disk, clock = opened(**settings)
    waiting = list(parts)
    for number, batches in enumerate(waiting):
        for batch in batches:
            store.ingest(Bundle({LOGS: batch}))
            clock.advance(1)
        if number < len(waiting) - 1:
            store.seal()
    return store, disk
