"""Small cores on one file system, without threads."""

from __future__ import annotations

from functools import partial

import quiver
import store_rig
from quiver import Settings
from quiver.observe import InMemoryObserver
from quiver.store.cores.store import MultiCoreStore
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/cores"
SEGMENT_BYTES = 4_000
CAP_BYTES = 200_000
numbered = partial(store_rig.numbered, size=600)


def settings(**changes: object) -> Settings:
    small = {
        "segment_bytes_max": SEGMENT_BYTES,
        "wal_rotate_bytes": 8_000,
        "wal_bytes_max": 80_000,
        "delete_grace_s": 60.0,
        "size_cap_bytes": CAP_BYTES,
    }
    return Settings(**{**small, **changes})


class Rig:
    """A file system, a clock that all processes share, and the stores that were opened on them."""

    def __init__(self, fs: CrashFileSystem | None = None, clock: ManualClock | None = None, **changes: object) -> None:
        self.clock = clock or ManualClock()
        self.fs = fs or CrashFileSystem(clock=self.clock)
        self.settings = settings(**changes)
        self.observer = InMemoryObserver()

    def open(self, cores: int = 3, core: int | None = None, **more: object) -> MultiCoreStore:
        return quiver.open(
            ROOT,
            self.settings,
            cores=cores,
            core=core,
            fs=self.fs,
            clock=self.clock,
            observer=self.observer,
            background=False,
            **more,
        )

    def tick(self, *stores: MultiCoreStore) -> None:
        self.clock.advance(0.1)
        for store in stores:
            store.maintain()

    def segments(self, core: int) -> list[str]:
        return [name for name in self.fs.list_dir(f"{ROOT}/core_{core}/segments") if name.endswith(".qseg")]


def fill(store: MultiCoreStore, core: int, bundles: int, first: int = 0) -> list[int]:
    """Ingest *bundles* into one core and seal them; return their numbers."""
    numbers = list(range(first, first + bundles))
    for number in numbers:
        store.ingest(numbered(number), core=core)
    store.core(core).seal()
    return numbers
