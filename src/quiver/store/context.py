"""State shared by the components of one open store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from quiver.clock import Clock
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.settings import Settings
from quiver.store.catalog import Catalog
from quiver.store.cold.register import ColdRegister
from quiver.store.directory_identity import HeldPlace
from quiver.store.sealing.schedule import Sealing
from quiver.store.subscribers.subscribers import Subscribers
from quiver.store.wal.writer import WalWriter

__all__ = ["StoreContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreContext:
    """
    One store's directory, settings, and components.

    Two locks, taken in this order: `maintenance` is held while files are created or removed, including waits for the
    disk; `lock` guards log and open segment, and is never held during the write of a segment or a progress file.

    Attributes:
        path: the store's root.
        lock: guards `wal` and `sealing`; ingest holds it.
        room: on `lock`; notified when space was freed.
        maintenance: one pass at a time.
        cold: the segments that the object tier has; empty without a tier.
        place: checked before every write by path.
        guards: called with the first and the last sequence number of bundles before these are removed; each returns
            whether they may be, or must be kept for now.
        drop_guards: called with the number of a dropped segment before the drop ledger forgets it; each returns whether
            it may.
    """

    path: str
    settings: Settings
    fs: FileSystem
    clock: Clock
    observer: Observer
    lock: threading.Lock
    room: threading.Condition
    maintenance: threading.RLock
    catalog: Catalog
    subscribers: Subscribers
    wal: WalWriter
    sealing: Sealing
    cold: ColdRegister
    place: HeldPlace
    guards: list[Callable[[int, int], bool]] = field(default_factory=list)
    drop_guards: list[Callable[[int], bool]] = field(default_factory=list)

    def may_remove(self, first: int, last: int) -> bool:
        """Return whether all guards allow the bundles with these sequence numbers to be removed."""
        return all(guard(first, last) for guard in self.guards)
