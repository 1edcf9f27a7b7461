"""
The store: accept bundles, keep them, deliver them to every subscriber, delete them when all have finished.

The path of one bundle: `ingest` logs it (1) and adds it to the open segment (2). A full or old segment is written to
its own immutable file (3). Only then may the log delete it (4), and only then can subscribers read it (5). When every
subscriber has resolved all bundles of a segment, `maintain` deletes the file (6).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from functools import partial
from types import TracebackType
from typing import Self

from quiver.bundle import OTAP_CONFIG_HASH, Adapter, Bundle
from quiver.clock import Clock
from quiver.errors import CapacityError, CorruptionError, InvalidBundleError, StoreFailedError
from quiver.invariant import invariant
from quiver.lazy_names import warn_renamed
from quiver.objects.port import ObjectTier
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem, Lock
from quiver.settings import Settings
from quiver.store import recovery
from quiver.store.background import Background
from quiver.store.catalog import Catalog
from quiver.store.cold.opening import open_cold_side
from quiver.store.cold.tier import ColdTier
from quiver.store.context import StoreContext
from quiver.store.directory_identity import HeldPlace
from quiver.store.early_delivery import EarlyDelivery
from quiver.store.encode import SlotEncoder
from quiver.store.entries import ENTRY_OVERHEAD, REREAD_BYTES_MIN, StoreEntries
from quiver.store.fleet.node import FleetNode
from quiver.store.format.early_progress import EarlyProgress
from quiver.store.format.names import SEGMENTS_DIR
from quiver.store.internals import StoreInternals
from quiver.store.limits.admission import Admission
from quiver.store.limits.capacity import AloneCapacity, Capacity, DeletionPause, OwnCap
from quiver.store.log_replay import LogReplay
from quiver.store.maintenance import MaintenancePass
from quiver.store.properties import StoreProperties
from quiver.store.reading.read import StoreReader
from quiver.store.receipts import BundleReceipt, MaintenanceReport
from quiver.store.removal.cleanup import Cleanup
from quiver.store.removal.drops import DropLedger
from quiver.store.sealing.boundaries import Boundaries
from quiver.store.sealing.group_seal import GroupSeal
from quiver.store.sealing.schedule import Sealing
from quiver.store.sealing.sealer import Sealer
from quiver.store.segment.info import SegmentInfo
from quiver.store.subscribers.state import SegmentRef
from quiver.store.subscribers.subscriber import SubscriberCalls
from quiver.store.subscribers.subscribers import Subscribers
from quiver.store.wal.moved import DirectoryMovedError
from quiver.store.wal.timing import timed_sync
from quiver.store.wal.writer import ZERO_AHEAD_BYTES, WalLimits, WalWriter

__all__ = ["REREAD_BYTES_MIN", "Store"]

_STAMP_NS_MAX = 2**63 - 1
_receipt = partial(tuple.__new__, BundleReceipt)
"""`BundleReceipt(*pair)` at a third of the price: it is made for every bundle."""


class Store(StoreEntries, SubscriberCalls, StoreProperties):
    """
    The single writer of a directory. Thread-safe. Created by `quiver.open`.

    Args:
        root: an existing directory that *lock* protects.
        settings: the settings.
        fs: the file system.
        clock: the clock.
        observer: receives counts and events.
        adapter: the slot table.
        background: run the two threads of `Background`.
        lock: released when the store is closed.
        capacity: a size cap that is shared with other stores; None for that of the settings.
        objects: the open object tier; by default it is opened when `cold.objects` is needed.
    """

    def __init__(
        self,
        root: str,
        settings: Settings,
        *,
        fs: FileSystem,
        clock: Clock,
        observer: Observer,
        adapter: Adapter,
        background: bool,
        lock: Lock,
        capacity: Capacity | None = None,
        objects: ObjectTier | None = None,
    ) -> None:
        self.path = root
        self.settings = settings
        self.adapter = adapter
        self._fs = fs
        self._clock = clock
        self._now_ns = clock.now_ns
        self._observer = observer
        self._directory_lock = lock
        self._logging = settings.durability == "wal"
        self._sync_each = self._logging and settings.wal_flush_interval_s == 0
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._maintenance = threading.RLock()
        self._closed = False
        self._capacity = AloneCapacity(OwnCap(settings.size_cap_bytes)) if capacity is None else capacity
        self._is_limited = settings.segments_max is not None
        # True if ingest has to check limits before each bundle: a cap, a full disk, or closing. Space under the size
        # cap and on the disk is reserved in blocks; `_has_room` knows how much of the block is left.
        self._needs_care = self._is_limited
        self._encoder = SlotEncoder(keeps_batches=not self._logging)
        self._encode = self._encoder.encode
        self._segments_dir = f"{root}/{SEGMENTS_DIR}"
        self._cold = open_cold_side(root, settings, fs=fs, clock=clock, observer=observer, objects=objects)
        self._catalog = Catalog(self._cold.fs(fs), self._segments_dir, adapter, on_damage=self._quarantine)
        tier, verified = self._cold.open_tier, self._catalog.verified
        self._reader = StoreReader(root, fs=fs, adapter=adapter, verified=verified, open_tier=tier)
        self._sequence = 0
        self._has_threads = background
        self._background: Background | None = None
        try:
            self._recover()
        except BaseException:
            if hasattr(self, "_wal"):  # otherwise recovery failed before it opened the log
                self._wal.abandon()
            raise
        if background:
            self._background = Background(
                name=root,
                flush=self._flush_log if self._logging else None,
                fill=self._fill_ahead,
                maintain=self.maintain,
                rest_s=self._maintenance_pass.rest_s,
                on_death=self.internals.poison,
                flush_interval_s=settings.wal_flush_interval_s,
                maintain_interval_s=settings.maintain_interval_s,
                clock=clock,
                observer=observer,
            )
            self._admission.wake = self._background.wake
            self._sealing.on_begin = self._subscribers.table.on_change = self._background.end_rest
            self._cold_tier.start()
            self._background.start()

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────

    def _recover(self) -> None:
        """Recover the directory in the steps that `recovery` lists, and report each completed step."""
        fs, root, observer = self._fs, self.path, self._observer
        steps = recovery.RecoveryLog(root, observer, self._clock)
        steps.done("cold_list", segments=len(self._cold.register))
        found, next_seq = self._recover_log(steps)
        early = recovery.load_early_progress(fs, root, observer=observer, clock=self._clock)
        steps.done("early_progress", segments=len(early.segments))
        next_seq = max(next_seq, recovery.load_floor(fs, root, observer=observer, clock=self._clock))
        steps.done("load_floor", next_segment=next_seq)
        segments = self._catalog.segments()
        self._subscribers = Subscribers(
            fs,
            root,
            segments=map(SegmentRef.of, segments),
            next_seq=next_seq,
            profile=self.settings.format_profile,
            load=self._catalog.bundle,
            load_run=self._catalog.bundles,
            clock=self._clock,
            observer=observer,
            progress_damage=self.settings.progress_damage,
            orphan_age_s=self.settings.orphan_age_s,
            audit_bytes_max=self.settings.audit_bytes_max,
            deleting=DeletionPause(self._capacity, self._maintenance),
        )
        self._claims = self._subscribers.claims
        steps.done("progress", subscribers=len(self._subscribers.table.listed()))
        ledger = DropLedger.load(fs, root, observer)
        steps.done("drop_ledger", highest=ledger.highest)
        next_seq = max(next_seq, self._subscribers.floor() + 1, ledger.highest + 1)
        self._sealing = Sealing(fs, self._segments_dir, self.settings, self._clock, observer, next_seq, self.adapter)
        self._furnish(ledger, early)
        self._cleanup.take_back()
        steps.done("take_back")
        for info in segments:
            self._cleanup.know(info)
        LogReplay(self._context, self._encoder, self._sealer, Boundaries(early.segments)).run(found)
        self._early.restore({entry.seq: entry.bundle_count for entry in ledger.entries})
        if not self._logging:
            self._leave_log()
        steps.done("replay", entries=len(found.replay))
        with contextlib.suppress(OSError):  # maintenance retries and reports it
            self._cleanup.continue_drops()
        steps.done("continue_drops")
        with contextlib.suppress(OSError):  # maintenance retries it
            self._early.publish()
        steps.done("missing", segments=self._subscribers.count_missing())
        if self._node is not None:
            self._node.own_subscribers()
        steps.done("fleet_subscribers", subscribers=len(self.settings.fleet_subscribers))
        self._cleanup.side.measure()
        self._cleanup.reserve.keep()
        self._cleanup.side.measure(now=True)
        steps.done("reserve")
        seconds = steps.seconds
        observer.record("quiver.recovery.duration", seconds)
        observer.event(
            "quiver.engine.init",
            path=root,
            segments=len(self._catalog),
            replayed=len(found.replay),
            torn_bytes=found.torn_bytes,
            seconds=round(seconds, 3),
        )

    def _recover_log(self, steps: recovery.RecoveryLog) -> tuple[recovery.LogFound, int]:
        """
        Fill the catalogue and continue the log; return what is to be replayed, and the lowest next
        segment number.
        """
        fs, root, observer = self._fs, self.path, self._observer
        steps.done("remove_leftovers", files=recovery.remove_leftovers(fs, root))
        cursor = recovery.load_cursor(fs, root, observer)
        steps.done("load_cursor", position=cursor)
        next_seq, bad = recovery.load_segments(fs, root, self._catalog, cursor=cursor, observer=observer)
        steps.done("load_segments", segments=len(self._catalog), quarantined=bad)
        next_seq = self._cold.restore(self._catalog, next_seq)
        steps.done("restore", segments=len(self._catalog))
        found = recovery.scan_log(
            fs, root, adapter=self.adapter, cursor=cursor, segments=self._catalog.segments(), observer=observer
        )
        steps.done("scan_log", entries_to_replay=len(found.replay), torn_bytes=found.torn_bytes)
        hash_written = OTAP_CONFIG_HASH if self.settings.format_profile == "otap" else self.adapter.config_hash
        limits = WalLimits(self.settings.wal_bytes_max, self.settings.wal_rotate_bytes, self.settings.wal_files_max)
        self._wal: WalWriter = recovery.continue_log(
            fs,
            root,
            found,
            config_hash=hash_written,
            limits=limits,
            cursor=cursor,
            sync_data=timed_sync(self._clock, observer),
        )
        self._sequence = found.next_sequence
        steps.done("continue_log", position=found.position_end)
        return found, next_seq

    def _furnish(self, ledger: DropLedger, early: EarlyProgress) -> None:
        context = self._context = StoreContext(
            path=self.path,
            settings=self.settings,
            fs=self._fs,
            clock=self._clock,
            observer=self._observer,
            lock=self._lock,
            room=self._room,
            maintenance=self._maintenance,
            catalog=self._catalog,
            subscribers=self._subscribers,
            wal=self._wal,
            sealing=self._sealing,
            cold=self._cold.register,
            place=HeldPlace(self._fs, self.path, self._wal, self._observer),
        )
        self._subscribers.require_place = context.place.require
        self._node = None
        if self.settings.fleet_name is not None:
            self._node = FleetNode(context, ledger, disk_bytes=lambda: self.disk_bytes)
        self._cold_tier = ColdTier(
            context, self._cold.tier.get, on_damage=self._quarantine, is_sending=self._cold.is_set, node=self._node
        )
        self._early = EarlyDelivery(
            context, lambda: (self._wal.written, self._sequence), early, is_enabled=self.settings.deliver_unsealed
        )
        if self.settings.deliver_unsealed or early.segments:
            self._claims.arrivals = self._early
            self._claims.load, self._claims.load_run = self._early.load, self._early.load_run
            self._subscribers.save_early, self._subscribers.seal = self._early.save_locked, self.seal
            if self._logging:  # otherwise it writes a file that is written under the maintenance lock
                self._subscribers.publish = self._early.publish
        self._cleanup = Cleanup(context, ledger, self._early, on_reserve=self._on_reserve)
        self._sealer = Sealer(context, self._cleanup, self._early)
        self._admission = Admission(context, self._cleanup, self._capacity, self._sealer)
        self._group_seal = GroupSeal(
            self._sealing, self.seal, require_healthy=self._wal.require_healthy, clock=self._clock
        )
        self._maintenance_pass = MaintenancePass(
            context,
            self._cleanup,
            self._sealer,
            self._admission,
            self._cold_tier,
            self._early,
            require_open=self._require_open,
            sync_log=None if self._has_threads or not self._logging else self._sync_log,
        )
        self.internals = StoreInternals(context, self._cleanup, self._admission, require_open=self._require_open)
        """For other packages of Quiver, not for users."""
        self._wal.grant(0)
        self._has_room = self._wal.has_room if self._logging else self._admission.has_room

    def _leave_log(self) -> None:
        """Seal the bundles from the log of an earlier run, so that the log becomes empty."""
        with contextlib.suppress(CapacityError):  # the log keeps them until there is space
            self.seal()
            self._wal.retire_covered()
            self._sealer.forget_log()

    # ── taking in ────────────────────────────────────────────────────────────────────────────────────

    def ingest(self, bundle: Bundle, *, durable: bool = False, timeout: float | None = None) -> BundleReceipt:
        """
        Accept *bundle*: store it as durably as the settings promise, and deliver it to every subscriber.

        On return it is in the log and survives the death of this process. It survives a power loss within
        `wal.flush_interval`, or on return with ``durable=True`` (concurrent callers share one sync). With
        `durability: segment_only` it is in memory on return, or with ``durable=True`` in a sealed segment (concurrent
        callers share one).

        Args:
            bundle: the bundle. Its buffers are not needed after return.
            durable: wait until it survives a power loss.
            timeout: how long to wait for space, in seconds; None and 0 raise immediately.

        Raises:
            CapacityError: there is no space, also after *timeout*; nothing was stored.
            InvalidBundleError: the bundle cannot be stored as it is; nothing was stored.
            BundleTooLargeError: the bundle can never fit; nothing was stored.
            NotDurableError: with *durable* and `segment_only`: the bundle is stored and will be delivered, but the disk
                had no space to seal it, also after *timeout*. Do not ingest it again.
            StoreFailedError: a write or sync failed, now or earlier; reopen to recover.
            StoreClosedError: the store was closed.
        """
        try:
            named = bundle.named
        except AttributeError:
            raise InvalidBundleError(
                f"a {type(bundle).__name__} is not a bundle: wrap it, quiver.Bundle({{slot: batch}})"
            ) from None
        if named and bundle.adapter is not self.adapter and bundle.adapter != self.adapter:
            raise InvalidBundleError(
                f"slots were named after adapter {bundle.adapter.name!r}; this store has {self.adapter.name!r}"
            )
        encoded = self._encode(bundle._slots)  # noqa: SLF001 - a copy or a view costs as much as the rest of this line
        durable = durable or self._sync_each
        with self._lock:
            nbytes = encoded.nbytes + ENTRY_OVERHEAD
            if self._needs_care or not self._has_room(nbytes) or self._sealing.full:
                self._admission.make_room(nbytes, self._clock.monotonic() + (timeout or 0.0))
            stamp = bundle.ingested_at_ns
            if stamp is None:
                stamp = self._now_ns()
            elif not (isinstance(stamp, int) and 0 <= stamp <= _STAMP_NS_MAX):
                raise InvalidBundleError(f"ingested_at_ns={stamp} is not a whole number from 1970 to 2262")
            try:
                end = self._log(encoded, stamp, nbytes, zero_ahead=durable)  # without a log: to memory
            except CapacityError as full:
                end = self._log_when_there_is_room(encoded, stamp, nbytes, full, timeout)
            invariant(end <= self._wal.written, "a bundle must be in the log before ingest returns")
            start = end - nbytes if self._logging else end
            sequence = self._sequence
            sealing = self._sealing
            swapped = sealing.add(encoded, stamp, sequence, start, end) and sealing.swap()
            self._sequence = sequence + 1
        if swapped:
            self._sealing_wanted()
        if durable:
            self._make_durable(sequence, end, timeout)
        elif self._background is not None and not self._background.dirty:
            self._background.mark_dirty()
        if self._claims.waiting and self._claims.arrivals is not None:
            self._claims.wake()
        return _receipt((sequence, end))

    def _make_durable(self, sequence: int, end: int, timeout: float | None) -> None:
        if not self._logging:
            self._group_seal.wait_for(sequence, self._clock.monotonic() + (timeout or 0.0))
            return
        if self._wal.zeros_wanted and self._background is not None:
            self._background.ask_zeros()
        self._wal.sync_through(end)

    def _on_reserve(self, is_lacking: bool) -> None:  # noqa: FBT001 - a callback
        self._needs_care = is_lacking or self._is_limited or self._closed

    def _flush_log(self) -> None:
        self.sync()
        self._wal.prepare_next()

    def _sync_log(self) -> None:
        self.sync()
        self._fill_ahead()

    def _fill_ahead(self) -> None:
        # A byte of zeros becomes a byte of log and one of a segment.
        spare = self._admission.spare_bytes()
        self._wal.fill_ahead(ZERO_AHEAD_BYTES if spare is None else max(0, spare // 2))
        self._wal.prepare_next()

    def _sealing_wanted(self) -> None:
        if self._background is None:
            self._sealer.seal_pending()
        else:
            self._background.wake()

    # ── upkeep ───────────────────────────────────────────────────────────────────────────────────────

    def sync(self) -> None:
        """
        Make everything ingested so far durable. With `durability: segment_only`, this seals the open segment.

        Raises:
            CapacityError: with `segment_only`: the disk has no space for the segment; it is kept and retried.
            StoreFailedError: the sync failed, now or earlier.
        """
        if self._logging:
            self._wal.sync_through(self._wal.written)
        else:
            self._group_seal.through(self._sealing.added_through)

    def seal(self) -> None:
        """
        Seal the open segment: on return everything ingested before is in files that subscribers can read.

        With `deliver_unsealed`, a segment that every subscriber has resolved already is dropped instead.

        Raises:
            CapacityError: the disk has no space for the segment; it is kept and retried.
            StoreFailedError: the disk failed; reopen to recover.
            StoreClosedError: the store was closed.
        """
        with self._maintenance:
            self._require_open()
            self._sealer.seal_everything()
            with contextlib.suppress(OSError):  # maintenance retries it
                self._early.publish()

    def flush(self) -> None:
        """Call `seal`: the former name, for one release."""
        warn_renamed("Store", "flush", "seal")
        self.seal()

    def maintain(self) -> MaintenanceReport:
        """
        Run one maintenance pass: sync, seal due segments, write progress, delete finished and expired segments.

        The background thread calls it. Without background threads the caller does, and waits only for an object tier.
        Steps that a full disk or the tier refuses are reported, and retried by the next pass.

        Raises:
            StoreFailedError: the disk failed, or the directory was moved; reopen to recover.
            StoreClosedError: the store was closed.
            OSError: the disk failed in a step that no guarantee depends on; call again.
        """
        return self._maintenance_pass.run()

    def reclaim(self, bytes_wanted: int) -> int:
        """
        Delete the oldest segments that every subscriber has finished, even within their grace period, until
        *bytes_wanted* bytes are free. Return the number of bytes freed. The most recent acknowledgements count.

        Raises:
            StoreClosedError: the store was closed.
            OSError: the disk refused.
        """
        with self._maintenance:
            self._require_open()
            self._cleanup.write_progress()
            return self._cleanup.evict(bytes_wanted).size_bytes

    def _quarantine(self, info: SegmentInfo, damage: CorruptionError) -> None:
        with self._maintenance:
            if not self._closed:
                self._cleanup.quarantine(info, damage)

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """
        Seal the open segment, write progress, sync, and release the directory. Idempotent.

        A full disk does not prevent it: bundles that could not be sealed stay in the log.

        Raises:
            CapacityError: a `segment_only` store could not seal its open segment, which is lost.
            StoreFailedError: the disk failed, now or earlier; synced data is safe.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = self._needs_care = self._admission.is_closed = True
            self._room.notify_all()
        if self._background is not None:
            self._background.stop()
        self._cold_tier.leave()
        self._cold.tier.close()
        self._cold_tier.stop()
        # A maintenance pass in progress finishes first; after that, no thread of this store uses the directory.
        with self._maintenance, contextlib.ExitStack() as last_to_first:
            with contextlib.suppress(StoreFailedError):
                self._context.place.require()
            is_here = not isinstance(self._wal.failure, DirectoryMovedError)
            last_to_first.callback(self._directory_lock.release)
            last_to_first.callback(self._wal.close)
            last_to_first.callback(self._catalog.close)
            last_to_first.callback(self._subscribers.close, writes=is_here)
            if self._wal.failure is None:
                self._close_cleanly()
            elif not self._logging:
                self._wal.require_healthy()  # its open segment is lost

    def _close_cleanly(self) -> None:
        try:
            try:
                self._sealer.seal_everything()
            except CapacityError:
                # Write acknowledgements anyway: deleting finished segments may free enough space.
                self._leave_in_order()
                self._sealer.seal_everything()
            self._leave_in_order()
        except CapacityError:
            if not self._logging:
                raise
        except OSError as error:
            self._observer.event("quiver.engine.stop", level=logging.WARNING, problem=str(error))

    def _leave_in_order(self) -> None:
        try:
            self._cleanup.write_progress()
            self._early.end()
            self._cleanup.continue_drops()
            self._cleanup.free_finished()
            self._cold.register.keep()
        except OSError as error:
            self._observer.event("quiver.engine.stop", level=logging.WARNING, problem=str(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
