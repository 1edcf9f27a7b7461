"""
Several cores as one store: a directory ``core_<n>`` for each, a `Store` in each, one size cap over all.

A bundle is stored in one core; a subscriber exists in every core. The set of open cores is fixed at construction: all
of them, or one (then other processes have the others). After a restart with fewer cores, the directories of removed
cores are opened as well: their bundles are delivered, and the empty directories are removed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from quiver.bundle import Adapter, Bundle
from quiver.clock import Clock
from quiver.errors import (
    CapacityError,
    DirectoryInUseError,
    QuiverError,
    StoreClosedError,
    UnknownSubscriberError,
    UsageError,
)
from quiver.lazy_names import lazy_names, warn_renamed
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.worker import WorkerDiedError
from quiver.settings import Settings
from quiver.store.background import Background
from quiver.store.cores.calls import MultiCoreSubscriberCalls
from quiver.store.cores.capacity import STALE_S, SharedCapacity
from quiver.store.cores.claims import Evictor, forget_record, read_record, take_claim, was_evicted
from quiver.store.cores.instances import find_cores
from quiver.store.cores.removal import remove_drained
from quiver.store.cores.subscriber import MultiCoreSubscriber
from quiver.store.reading.query.scan import Scan
from quiver.store.reading.query.time_range import By, Moment
from quiver.store.reading.read import StoreReader
from quiver.store.receipts import MaintenanceReport
from quiver.store.store import Store
from quiver.store.store_html import store_html
from quiver.store.subscribers.queue import Order
from quiver.store.subscribers.start import Start

__all__ = ["CoreReceipt", "MultiCoreStore", "OpenCore"]

if not TYPE_CHECKING:
    __getattr__, _ = lazy_names(__name__, {__name__: "MultiCoreStore"}, renamed={"ShardedStore": "MultiCoreStore"})

_MOMENT_S = 1e-6
_ROOM_S = 0.05
"""While all cores are full, each is waited for this long in turn."""
_SUMMED = ("segments", "segment_bytes", "staged_bytes", "wal_bytes", "wal_files", "open_bundles", "open_bytes")
_SUMMED_COLD = ("segments", "segment_bytes", "only_there", "waiting", "leaving")
_RETRY_S = 5.0
"""How often to retry the directory of a removed core that another process has open."""
_RETRY_S_MAX = 300.0
"""The maximum pause before a directory that had to stay is opened again; pauses double up to this."""


class CoreReceipt(NamedTuple):
    """Proof of ingest: the core, the bundle's sequence number in it, and the log position after the bundle."""

    core: int
    sequence: int
    wal_position: int


@dataclass(frozen=True, slots=True)
class OpenCore:
    """One core's open store, and how it shares the cap; without the latter if the cap is divided evenly."""

    core: int
    store: Store
    capacity: SharedCapacity | None = None
    evictor: Evictor | None = None

    def figures(self) -> dict[str, int]:
        """Return how this core shares the cap with the others; empty if it shares nothing."""
        if self.capacity is None or self.evictor is None:
            return {}
        return {
            "claim_bytes": self.capacity.claim_bytes,
            "others_bytes": self.capacity.seen_bytes,
            "claim_writes": self.capacity.claim_writes,
            "evicted_elsewhere": self.evictor.evicted,
            "dropped_elsewhere": self.evictor.dropped,
        }


@dataclass(slots=True)
class _Registered:
    """A subscriber, and how it is registered in cores that are opened later."""

    subscriber: MultiCoreSubscriber
    start: Start = "latest"
    order: Order = "oldest"


class MultiCoreStore(MultiCoreSubscriberCalls):
    """
    The cores of one directory that this process has open. Thread-safe. Created by `quiver.open` with ``cores``.

    Args:
        root: the directory of the cores.
        settings: of all cores together: `size_cap_bytes` covers all of them.
        cores: how many cores there are.
        core: the only core to open; None for all.
        open_core: opens the store of one core.
        fs: the file system.
        clock: the clock.
        observer: receives counts and events.
        adapter: the slot table.
        background: run a thread for the tasks that the cores share.

    Raises:
        DirectoryInUseError: another process, or this one, has one of the cores open.
        UnsupportedFormatError: a core was written by a newer version or under another adapter.
    """

    def __init__(
        self,
        root: str,
        settings: Settings,
        *,
        cores: int,
        core: int | None,
        open_core: Callable[[int], OpenCore],
        fs: FileSystem,
        clock: Clock,
        observer: Observer,
        adapter: Adapter,
        background: bool,
    ) -> None:
        self.path = root
        self.settings = settings
        self.adapter = adapter
        self.core_count = cores
        self._core = core
        self._fs = fs
        self._clock = clock
        self._observer = observer
        self._open_core = open_core
        self._lock = threading.Lock()
        self._maintenance = threading.RLock()
        self._closed = False
        self._opened: dict[int, OpenCore] = {}
        self._registered: dict[str, _Registered] = {}
        self._reader = StoreReader(root, fs=fs, adapter=adapter)
        self._turn = itertools.count()
        self._open_removed_at_s = -math.inf
        self._stayed: dict[int, tuple[float, float]] = {}
        """Removed cores whose directory stayed → the pause, and its end."""
        self._background: Background | None = None
        self.cores = tuple(range(cores)) if core is None else (core,)
        """The cores of this process that accept bundles."""
        try:
            for number in self.cores:
                self._open(number)
            self._open_removed()
        except BaseException:
            self._close_cores()
            raise
        if background:
            self._background = Background(
                name=f"{root} cores",
                flush=None,
                fill=lambda: None,
                maintain=self._tick,
                on_death=self._fail,
                flush_interval_s=settings.wal_flush_interval_s,
                # Often enough that the others trust the claims, however rarely the stores are maintained.
                maintain_interval_s=min(settings.maintain_interval_s, STALE_S / 10),
                clock=clock,
                observer=observer,
            )
            self._background.start()

    # ── ingest ───────────────────────────────────────────────────────────────────────────────────────

    def ingest(
        self, bundle: Bundle, *, core: int | None = None, durable: bool = False, timeout: float | None = None
    ) -> CoreReceipt:
        """
        Store *bundle* in one of the cores; see `Store.ingest`.

        Args:
            bundle: the bundle. Its buffers are not needed after return.
            core: the core to store it in; if None, the cores take turns, and a full one is skipped. Order is kept
                only within a core.
            durable: wait until the log is synced.
            timeout: seconds to wait for space; None and 0 raise immediately.

        Raises:
            CapacityError: no core has space, even after *timeout*; nothing was stored.
            UsageError: this process has no such core open for ingest.
            InvalidBundleError: it cannot be stored as it is; nothing was stored.
            StoreFailedError: a write or sync failed in that core, now or earlier; reopen to recover.
            StoreClosedError: the store was closed.
        """
        if core is not None:
            receipt = self.core(core).ingest(bundle, durable=durable, timeout=timeout)
            return CoreReceipt(core, *receipt)
        turn = next(self._turn) % len(self.cores)
        order = self.cores[turn:] + self.cores[:turn]
        deadline = self._clock.monotonic() + (timeout or 0.0)
        wait_s = 0.0
        while True:
            for number in order:
                try:
                    receipt = self._opened[number].store.ingest(bundle, durable=durable, timeout=wait_s)
                except CapacityError:
                    if number == order[-1] and deadline - self._clock.monotonic() < _MOMENT_S:
                        raise
                else:
                    return CoreReceipt(number, *receipt)
            wait_s = max(0.0, min(_ROOM_S, deadline - self._clock.monotonic()))

    def core(self, core: int) -> Store:
        """
        Return the store of one core that accepts bundles.

        Raises:
            UsageError: this process has no such core open.
        """
        if core not in self.cores:
            known = ", ".join(map(str, self.cores))
            raise UsageError(f"core={core}: this process has open core {known} of {self.core_count}")
        return self._opened[core].store

    def open_stores(self) -> dict[int, Store]:
        """Return the store of each core that this process has open, including those that are only drained."""
        return {opened.core: opened.store for opened in self._all_open()}

    # ── subscribers ──────────────────────────────────────────────────────────────────────────────────

    def register(self, subscriber_id: str, start: Start = "latest", *, order: Order = "oldest") -> MultiCoreSubscriber:
        """
        Register a subscriber in every core that this process has open, durably; see `Store.register`.

        Args:
            subscriber_id: 1 to 64 of ``A-Za-z0-9_-``.
            start: "latest", "earliest", or an aware datetime. A segment number would mean another place in each core.
            order: the order within each core: "oldest" or "newest" first, or "round_robin".

        Raises:
            UsageError: the id, the start or the order is not valid.
            StoreClosedError: the store was closed.
        """
        if isinstance(start, int):
            raise UsageError(f"start={start}: each core counts its own segments; give a time, or register with core(n)")
        with self._maintenance:
            self._require_open()
            known = self._registered.get(subscriber_id) or _Registered(MultiCoreSubscriber(subscriber_id, self._clock))
            known.start, known.order = start, order
            for opened in self._opened.values():
                known.subscriber.join(opened.core, opened.store.register(subscriber_id, start, order=order))
            self._registered[subscriber_id] = known
            return known.subscriber

    def unregister(self, subscriber_id: str) -> int:
        """
        Remove a subscriber permanently from every core of this process, durably; return how many bundles it had not
        resolved. They count as dropped for it.

        Raises:
            UnknownSubscriberError: registered in none of them.
        """
        with self._maintenance:
            self._require_open()
            lost: list[int] = []
            for opened in self._opened.values():
                with contextlib.suppress(UnknownSubscriberError):
                    lost.append(opened.store.unregister(subscriber_id))
            self._registered.pop(subscriber_id, None)
            if not lost:
                raise UnknownSubscriberError(f"there is no subscriber {subscriber_id!r} in any core of {self.path}")
            return sum(lost)

    def activate(self) -> None:
        """
        End the registration phase in every core.

        Raises:
            StoreClosedError: the store was closed.
        """
        self._each(Store.activate)

    # ── maintenance ──────────────────────────────────────────────────────────────────────────────────

    def sync(self) -> None:
        """
        Make everything ingested so far durable, in every core.

        Raises:
            StoreFailedError: a sync failed, now or earlier.
            StoreClosedError: the store was closed.
        """
        self._each(Store.sync)

    def seal(self) -> None:
        """
        Seal the open segment of every core.

        Raises:
            CapacityError: the disk has no space for a segment; its bundles are kept, and it is tried again.
            StoreFailedError: the disk failed; reopen to recover.
            StoreClosedError: the store was closed.
        """
        self._each(Store.seal)

    def flush(self) -> None:
        """Call `seal`: the former name, for one release."""
        warn_renamed("MultiCoreStore", "flush", "seal")
        self.seal()

    def maintain(self) -> MaintenanceReport:
        """
        Run one maintenance pass of every core and of what they share. Return the sums. Never waits.

        Raises:
            StoreFailedError: the disk failed under a core; the others were maintained. Reopen to recover.
            StoreClosedError: the store was closed.
        """
        self._require_open()
        reports: list[MaintenanceReport] = []
        failure: QuiverError | None = None
        self._tick()
        for opened in self._all_open():
            try:
                reports.append(opened.store.maintain())
            except StoreClosedError:
                continue  # drained and removed meanwhile
            except QuiverError as error:
                failure = failure or error
        self._tick()
        if failure is not None:
            raise failure
        return MaintenanceReport(*map(sum, zip(*reports, strict=True)))

    def _tick(self) -> None:
        with self._maintenance:
            self._require_open()
            for opened in list(self._opened.values()):
                try:
                    self._record_evictions(opened)
                    if opened.capacity is not None:
                        opened.capacity.beat()
                    if opened.core not in self.cores:
                        self._retire_if_drained(opened)
                except (QuiverError, OSError) as error:
                    self._report(opened.core, error)
            if self._clock.monotonic() >= self._open_removed_at_s:
                try:
                    self._open_removed()
                except (QuiverError, OSError) as error:
                    self._report(None, error)

    def _fail(self, died: WorkerDiedError) -> None:
        """
        Make every core of this process refuse: the others no longer see what these claim, nor import what these
        leave.
        """
        for store in self.open_stores().values():
            store.internals.poison(died)

    def _report(self, core: int | None, error: Exception) -> None:
        # The others continue. A failed step is tried again at the next tick.
        which = "removed" if core is None else str(core)
        self._observer.event("quiver.core.tick", level=logging.ERROR, core_id=which, problem=str(error))

    def _open(self, number: int) -> OpenCore:
        opened = self._opened[number] = self._open_core(number)
        # Before any subscriber is registered: drops that happened while the core was closed count as lost, not
        # delivered.
        self._record_evictions(opened)
        return opened

    def _record_evictions(self, opened: OpenCore) -> None:
        """Record what other cores deleted in this core's directory."""
        directory = opened.store.path
        if not was_evicted(self._fs, directory):
            return
        claim = take_claim(self._fs, directory, who="its owner")
        if claim is None:
            return  # another process is deleting right now
        try:
            drops = read_record(self._fs, directory, self._observer)
            if drops is not None and opened.store.internals.note_evicted(drops):
                forget_record(self._fs, directory)
        finally:
            claim.release()

    # ── removed cores ────────────────────────────────────────────────────────────────────────────────

    def _open_removed(self) -> None:
        self._open_removed_at_s = self._clock.monotonic() + _RETRY_S
        for number in find_cores(self._fs, self.path):
            mine = self._core is None or number % self.core_count == self._core
            if number < self.core_count or number in self._opened or not mine:
                continue
            if number in self._stayed and self._clock.monotonic() < self._stayed[number][1]:
                continue
            try:
                opened = self._open(number)
            except DirectoryInUseError:
                continue  # another process still counts it among its cores
            # Bundles in its log can be delivered only after sealing; no other bundle will fill the open segment.
            with contextlib.suppress(CapacityError):  # the next ticks try again
                opened.store.seal()
            for known in self._registered.values():
                part = opened.store.register(known.subscriber.id, known.start, order=known.order)
                known.subscriber.join(number, part)
            self._observer.event("quiver.core.drain", core_id=number, segments=len(opened.store.internals.catalog))

    def _retire_if_drained(self, opened: OpenCore) -> None:
        figures = opened.store.stats()
        if figures["open_bundles"]:
            opened.store.seal()
            return
        if figures["segments"] or figures.get("cold", {}).get("leaving"):
            return  # the next passes delete what is in the tier
        for known in self._registered.values():
            known.subscriber.leave(opened.core)
        del self._opened[opened.core]
        opened.store.close()
        if opened.capacity is not None:
            opened.capacity.close()
        removed = remove_drained(self._fs, opened.store.path)
        if not removed:
            pause_s = min(2 * self._stayed.get(opened.core, (_RETRY_S / 2, 0.0))[0], _RETRY_S_MAX)
            self._stayed[opened.core] = (pause_s, self._clock.monotonic() + pause_s)
        self._observer.event("quiver.core.drained", core_id=opened.core, removed=removed)

    # ── figures and queries ──────────────────────────────────────────────────────────────────────────

    @property
    def disk_bytes(self) -> int:
        """Bytes of log and segments on disk, of the cores that this process has open."""
        return sum(opened.store.disk_bytes for opened in self._all_open())

    def core_usage(self) -> dict[int, tuple[int, float | None]]:
        """
        Return for each open core its bytes on disk, and their fraction of the size cap (None without a cap).

        The metrics are `quiver.core.bytes` and `quiver.core.cap_fraction`.
        """
        cap = self.settings.size_cap_bytes
        sizes = {opened.core: opened.store.disk_bytes for opened in self._all_open()}
        return {core: (size, None if cap is None else size / cap) for core, size in sizes.items()}

    def scan(
        self,
        slot: int | str | None = None,
        columns: Sequence[str] | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        *,
        by: By = "ingested",
        table: str | None = None,
        view: str | None = None,
    ) -> Scan:
        """Return the rows of one slot or view, of every core, one core after the other; see `Store.scan`."""
        self._require_open()
        return self._reader.scan(slot, columns, start, end, by=by, table=table, view=view)

    def _repr_html_(self) -> str:
        return store_html(self.path, self.stats, is_closed=self._closed)

    def stats(self) -> dict[str, Any]:
        """
        Return the current figures: sums over the open cores, each subscriber's lag, and each
        core's own figures.
        """
        by_core = {opened.core: (opened, opened.store.stats()) for opened in self._all_open()}
        usage = self.core_usage()
        figures: dict[str, Any] = {"cores": {}, "subscribers": {}}
        for core, (opened, one) in by_core.items():
            size, fraction = usage.get(core, (0, None))
            own = {**one, "bytes": size, "cap_fraction": fraction, "is_draining": core not in self.cores}
            figures["cores"][core] = own | opened.figures()
            for name in _SUMMED:
                figures[name] = figures.get(name, 0) + one[name]
            for name, standing in one["subscribers"].items():
                total = figures["subscribers"].setdefault(name, {})
                for key, value in standing.items():
                    # Bundles and bytes add up; for ages, and for properties of one core, the worst value counts.
                    adds = isinstance(value, int) and not isinstance(value, bool) and key != "oldest_incomplete"
                    if key != "oldest_incomplete":
                        total[key] = total.get(key, 0) + value if adds else max(total.get(key, value), value)
        of_tier = [one["cold"] for one in figures["cores"].values() if "cold" in one]
        if of_tier:
            problem = next((one["problem"] for one in of_tier if one["problem"] is not None), None)
            figures["cold"] = {key: sum(one[key] for one in of_tier) for key in _SUMMED_COLD} | {"problem": problem}
        return figures

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────

    def _all_open(self) -> list[OpenCore]:
        with self._maintenance:
            return list(self._opened.values())

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self.path} is closed")

    def close(self) -> None:
        """
        Close every core; see `Store.close`. Idempotent. An error of one core does not keep the others from closing.

        Raises:
            CapacityError: a `segment_only` core could not seal its open segment, which is lost.
            StoreFailedError: the disk failed, now or earlier; synced data is safe.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._background is not None:
            self._background.stop()
        failure = self._close_cores()
        if failure is not None:
            raise failure

    def _close_cores(self) -> QuiverError | None:
        failure: QuiverError | None = None
        with self._maintenance:
            for opened in self._opened.values():
                try:
                    opened.store.close()
                except QuiverError as error:
                    failure = failure or error
                if opened.capacity is not None:
                    opened.capacity.close()
        return failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
