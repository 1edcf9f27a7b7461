"""What the rooms of one open store share."""

from __future__ import annotations

import threading
from dataclasses import dataclass

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

__all__ = ["Parts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """
    One store's directory, settings, and what stands in it.

    Two locks, taken in this order: `maintenance` is held by whoever changes which files there are, also while it waits
    for the disk; `lock` guards log and open segment, and nobody waits for a segment or a progress file under it.

    Attributes:
        path: the store's root.
        lock: guards `wal` and `sealing`; ingest holds it.
        room: on `lock`; notified when something was freed.
        maintenance: one pass at a time.
        cold: which segments the object tier has; empty where there is none.
        place: asked before something is written by path.
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
