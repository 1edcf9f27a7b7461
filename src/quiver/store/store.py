"""
The store: take bundles in, keep them, hand them to every subscriber, delete them when all have finished.

The walk of one bundle: `ingest` logs it (1) and adds it to the open segment (2); a full or old segment is
written to its own immutable file (3); only then may the log forget it (4), and only then may anybody read it
(5); when every subscriber has resolved all of a segment, `maintain` deletes the file (6).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Any, Self

from quiver.bundle import OTAP_CONFIG_HASH, Adapter, Bundle
from quiver.clock import Clock
from quiver.errors import AtCapacity, BundleInvalid, Damaged, StoreClosed, StoreFailed
from quiver.observe import Observer
from quiver.primitives.atomic import remove_durably
from quiver.primitives.checksum import crc32
from quiver.primitives.disk_full import is_full_disk
from quiver.primitives.files import FileSystem, Lock
from quiver.settings import Settings
from quiver.store import recovery
from quiver.store.background import Background
from quiver.store.catalog import Catalog
from quiver.store.encode import EncodedBundle, SlotEncoder, write_slots
from quiver.store.format.names import SEGMENTS_DIR, WAL_DIR
from quiver.store.format.wal_entry import CRC, ENTRY_HEAD, WalEntry
from quiver.store.receipts import BundleReceipt, MaintenanceReport
from quiver.store.retention import Retention
from quiver.store.sealing import LAG_SEGMENTS, Sealing
from quiver.store.segment.info import SegmentInfo
from quiver.store.subscribers.handle import Subscriber
from quiver.store.subscribers.registry import Registry
from quiver.store.subscribers.state import SegmentRef, Start
from quiver.store.wal.replay import decode_slots, logged_entries
from quiver.store.wal.scan import ScannedEntry
from quiver.store.wal.writer import WalLimits, WalWriter

__all__ = ["Store"]

_ENTRY_OVERHEAD = ENTRY_HEAD.size + CRC.size
_LENGTH_BYTES = 4
_STAMP_NS_MAX = 2**63 - 1
_UNCOUNTED = _LENGTH_BYTES + CRC.size
"""An entry's length counts neither itself nor the checksum."""


_receipt = partial(tuple.__new__, BundleReceipt)
"""`BundleReceipt(*pair)` at a third of the price: it is made for every bundle."""


class Store:
    """
    One writer's view of one directory. Thread-safe. Made by `quiver.open`.
    """

    def __init__(
        self,
        root: str,
        settings: Settings,
        *,
        files: FileSystem,
        clock: Clock,
        observer: Observer,
        adapter: Adapter,
        background: bool,
        lock: Lock,
    ) -> None:
        self.path = root
        self.settings = settings
        self.adapter = adapter
        self._files = files
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
        # Set when ingest has to look closer before each bundle: a size cap, no log, or the end.
        self._needs_care = settings.size_cap_bytes is not None or not self._logging
        self._encode = SlotEncoder().encode
        self._segments_dir = f"{root}/{SEGMENTS_DIR}"
        self.catalog = Catalog(files, self._segments_dir, adapter, on_damage=self._quarantine)
        self._retention = Retention(grace_s=settings.delete_grace_s)
        self._sequence = 0
        self._background: Background | None = None
        self._recover()
        if background:
            self._background = Background(
                name=root,
                flush=self.sync if self._logging else None,
                fill=self._wal.fill_ahead,
                maintain=self.maintain,
                flush_interval_s=settings.wal_flush_interval_s,
                maintain_interval_s=settings.maintain_interval_s,
                clock=clock,
                observer=observer,
            )
            self._background.start()

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────

    def _recover(self) -> None:
        files, root, observer = self._files, self.path, self._observer
        started = self._clock.monotonic()
        recovery.remove_leftovers(files, root)
        cursor = recovery.load_cursor(files, root, observer)
        next_seq, _ = recovery.load_segments(files, root, self.catalog, cursor=cursor, observer=observer)
        segments = self.catalog.segments()
        found = recovery.scan_log(
            files, root, adapter=self.adapter, cursor=cursor, segments=segments, observer=observer
        )
        hash_written = OTAP_CONFIG_HASH if self.settings.format_profile == "otap" else self.adapter.config_hash
        limits = WalLimits(self.settings.wal_bytes_max, self.settings.wal_rotate_bytes, self.settings.wal_files_max)
        self._wal: WalWriter = recovery.continue_log(
            files, root, found, config_hash=hash_written, limits=limits, cursor=cursor
        )
        self._sequence = found.next_sequence
        next_seq = max(next_seq, recovery.load_floor(files, root))
        self._registry = Registry(
            files,
            root,
            segments=[_ref(info) for info in segments],
            next_seq=next_seq,
            profile=self.settings.format_profile,
            load=self.catalog.bundle,
            clock=self._clock,
            observer=observer,
        )
        next_seq = max(next_seq, self._registry.floor() + 1)
        self._sealing = Sealing(files, self._segments_dir, self.settings, self._clock, observer, next_seq)
        for path, scanned in found.replay:
            self._replay(path, scanned)
        if not self._logging:
            self.flush()
        elif not found.replay:
            # Everything logged is in segments: say so, or the next open would look again.
            self._advance_cursor(found.position_end)
        observer.event(
            "quiver.engine.init",
            path=root,
            segments=len(self.catalog),
            replayed=len(found.replay),
            torn_bytes=found.torn_bytes,
            seconds=round(self._clock.monotonic() - started, 3),
        )

    def _replay(self, path: str, scanned: ScannedEntry) -> None:
        entry = scanned.entry
        try:
            batches = decode_slots(entry, path=path, position=scanned.start)
            encoded = self._encode(batches, {slot.slot: slot.fingerprint for slot in entry.slots})
        except (Damaged, BundleInvalid) as error:
            recovery.keep_undecodable(self._files, self.path, scanned, observer=self._observer, reason=str(error))
            return
        with self._lock:
            if self._sealing.full:
                self._sealing.swap()
        if self._sealing.pending is not None:
            self._seal_pending()
        with self._lock:
            write_slots(encoded.slots, self._sealing.arena.take(encoded.nbytes), 0)
            self._sealing.add(encoded, entry.ingested_at_ns, entry.sequence, scanned.start, scanned.end)

    # ── taking in ────────────────────────────────────────────────────────────────────────────────────

    def ingest(self, bundle: Bundle, *, durable: bool = False, timeout: float | None = None) -> BundleReceipt:
        """
        Take responsibility for *bundle*: it survives what the settings promise and reaches every subscriber.

        On return it is in the log, where the death of this process cannot take it; it survives a power loss
        within `wal.flush_interval`, or on return with ``durable=True`` (callers that overlap share one sync).

        Args:
            bundle: what to keep. Its buffers are not needed after return.
            durable: wait until the log is synced.
            timeout: seconds to wait for room when full; None and 0 raise at once.

        Raises:
            AtCapacity: no room, also after *timeout*; nothing was kept.
            BundleInvalid: it cannot be stored as it is; nothing was kept.
            StoreFailed: a write or sync failed, now or earlier; reopen to recover.
            StoreClosed: the store was closed.
        """
        if bundle.named and bundle.adapter is not self.adapter and bundle.adapter != self.adapter:
            raise BundleInvalid(
                f"slots were named after adapter {bundle.adapter.name!r}; this store has {self.adapter.name!r}"
            )
        encoded = self._encode(bundle._slots)  # noqa: SLF001 - a copy or a view costs as much as the rest of this line
        durable = (durable and self._logging) or self._sync_each
        with self._lock:
            nbytes = encoded.nbytes + _ENTRY_OVERHEAD
            if self._needs_care or not self._wal.has_room(nbytes) or self._sealing.full:
                self._make_room(nbytes, timeout)
            stamp = bundle.ingested_at_ns
            if stamp is None:
                stamp = self._now_ns()
            elif not (isinstance(stamp, int) and 0 <= stamp <= _STAMP_NS_MAX):
                raise BundleInvalid(f"ingested_at_ns={stamp} is not a whole number from 1970 to 2262")
            sequence = self._sequence
            start = self._wal.written
            end = self._log(encoded, stamp, sequence, nbytes, zero_ahead=durable)
            sealing = self._sealing
            swapped = sealing.add(encoded, stamp, sequence, start, end) and sealing.swap()
            self._sequence = sequence + 1
        if swapped:
            self._sealing_wanted()
        if durable:
            if self._wal.zeros_wanted and self._background is not None:
                self._background.ask_zeros()
            self._wal.sync_through(end)
        elif self._background is not None and not self._background.dirty:
            self._background.mark_dirty()
        return _receipt((sequence, end))

    def _log(self, encoded: EncodedBundle, stamp: int, sequence: int, nbytes: int, *, zero_ahead: bool) -> int:
        arena = self._sealing.arena
        entry = arena.take(nbytes)
        ENTRY_HEAD.pack_into(entry, 0, nbytes - _UNCOUNTED, 0, stamp, sequence, encoded.bitmap)
        write_slots(encoded.slots, entry, ENTRY_HEAD.size)
        if not self._logging:
            self._wal.require_sound()
            return self._wal.written
        CRC.pack_into(entry, nbytes - CRC.size, crc32(entry[_LENGTH_BYTES : -CRC.size]))
        try:
            return self._wal.append(entry, nbytes, zero_ahead=zero_ahead)
        except AtCapacity:
            arena.untake(entry)
            raise

    # ── room ─────────────────────────────────────────────────────────────────────────────────────────

    def _cannot_take(self, nbytes: int) -> str | None:
        """
        Return what is full, or None. Called under the lock, for each bundle that does not plainly fit.
        """
        if self._sealing.full:
            return "the open segment: the one before it is still being written"
        if self._logging:
            full = self._wal.room_for(nbytes)
            if full is not None:
                return full
        cap = self.settings.size_cap_bytes
        if cap is not None and self.disk_bytes + self._sealing.nbytes + nbytes > cap:
            return f"retention.size_cap ({cap} bytes)"
        return None

    def _make_room(self, nbytes: int, timeout: float | None) -> None:
        """
        Return when a bundle of *nbytes* fits, with the lock held; it is let go while waiting.
        """
        deadline = self._clock.monotonic() + (timeout or 0.0)
        if self._logging and nbytes + 64 > self.settings.wal_bytes_max:
            raise BundleInvalid(f"the bundle takes {nbytes} bytes in the log; wal.max_size is less")
        if nbytes + 64 > (self.settings.size_cap_bytes or nbytes + 64):
            raise BundleInvalid(f"the bundle takes {nbytes} bytes; retention.size_cap is less")
        while True:
            if self._closed:
                raise StoreClosed(f"{self.path} is closed")
            # What failed makes no room any more: waiting for it would have no end.
            self._wal.require_sound()
            full = self._cannot_take(nbytes)
            if full is None:
                return
            # A segment that is being written makes room by itself: that is a pause, not a refusal.
            if not self._sealing.swap() and self._sealing.pending is None:
                self._wal.retire_covered()
            pause = self._sealing.pending is not None and self._sealing.failure is None
            self._room.release()
            try:
                if pause and self._background is not None:
                    self._background.wake()
                else:
                    self._make_room_inline(full)
            finally:
                self._room.acquire()
            if self._cannot_take(nbytes) is None:
                continue  # there is room; but the store may have been closed while the lock was let go
            left = deadline - self._clock.monotonic()
            if not pause and left <= 0:
                self._refuse(full)
            if self._background is not None or not pause:
                self._clock.wait(self._room, 0.05 if pause else min(left, 0.05))

    def _make_room_inline(self, full: str) -> None:
        with self._maintenance:
            self._require_open()
            self._seal_pending()
            with contextlib.suppress(OSError):  # maintenance tries again, and says so; here it is one refusal more
                self._write_progress()
                self._free_finished(ignore_grace="size_cap" in full)
            self._advance_cursor()

    def _refuse(self, full: str) -> None:
        failure = self._sealing.failure
        if failure is not None:
            full = f"{full}; the disk refuses the next segment: {failure.strerror}"
        self._observer.count("quiver.ingest.throttle_total")
        raise AtCapacity(full, held_by=self._registry.slowest())

    # ── sealing ──────────────────────────────────────────────────────────────────────────────────────

    def _sealing_wanted(self) -> None:
        if self._background is None:
            self._seal_pending()
        else:
            self._background.wake()

    def _seal_pending(self) -> int:
        """
        Write the pending segment, if there is one, and make it known. Returns how many were written.
        """
        with self._maintenance:
            if not self._sealing.may_write():
                return 0
            try:
                info = self._sealing.write()
            except StoreFailed as failure:
                self._wal.poison(failure.__cause__ if isinstance(failure.__cause__, OSError) else OSError(str(failure)))
                raise
            if info is None:
                return 0
            self._advance_cursor(info.wal_position_end or 0)
            self.catalog.add(info)
            self._registry.sealed(_ref(info))
            with self._lock:
                self._sealing.done()
                if self._sealing.full:
                    self._sealing.swap()
                self._room.notify_all()
            self._observer.count("quiver.segment.sealed_total")
            return 1

    def _advance_cursor(self, position: int = 0) -> int:
        """
        Let the log forget what is durable elsewhere; how many files went. What the disk refuses is tried again.
        """
        try:
            self._wal.advance_cursor(position)
            with self._lock:
                gone = self._wal.purgeable()
            if gone:
                remove_durably(self._files, [file.path for file in gone])
                with self._lock:
                    self._wal.forget(gone)
                    self._room.notify_all()
        except OSError as error:
            self._observer.event("quiver.wal.cursor", level=logging.WARNING, problem=str(error))
            return 0
        return len(gone)

    # ── upkeep ───────────────────────────────────────────────────────────────────────────────────────

    def sync(self) -> None:
        """
        Make everything ingested so far durable.

        Raises:
            StoreFailed: the sync failed, now or earlier.
        """
        self._wal.sync_through(self._wal.written)

    def flush(self) -> None:
        """
        Seal the open segment: on return all that was ingested before is in files that subscribers can read.

        Raises:
            AtCapacity: the disk has no room for the segment; it is kept and tried again.
            StoreFailed: the disk failed; reopen to recover.
            StoreClosed: the store was closed.
        """
        with self._maintenance:
            self._require_open()
            self._seal_everything()

    def _seal_everything(self) -> None:
        for _ in range(2):  # the one being written, then the open one
            with self._lock:
                self._sealing.swap()
            if self._sealing.pending is None:
                return
            if not self._seal_pending() and self._sealing.failure is not None:
                raise AtCapacity(f"the disk of {self.path} is full: segment {self._sealing.pending.seq} waits")

    def maintain(self) -> MaintenanceReport:
        """
        One maintenance pass: sync, seal what is due, write progress, delete what everyone has finished.

        The background thread calls it; without one, the caller does. Never waits.

        Raises:
            StoreFailed: the disk failed; reopen to recover.
            StoreClosed: the store was closed.
        """
        with self._maintenance:
            self._require_open()
            if self._background is None:
                self.sync()
                self._wal.fill_ahead()
            with self._lock:
                if self._sealing.full or (self._sealing.is_old() and not self._everyone_lags()):
                    self._sealing.swap()
            sealed = 0
            while self._sealing.may_write() and self._seal_pending():
                sealed += 1
            written = self._write_progress()
            deleted = self._free_finished(ignore_grace=False)
            return MaintenanceReport(sealed, written, deleted, self._advance_cursor())

    def _write_progress(self) -> int:
        try:
            return self._registry.flush()
        except OSError as error:
            # A file can only be replaced where there is room for the new one: delete what may go, then once more.
            if not (is_full_disk(error) and self._free_finished(ignore_grace=True)):
                raise
            return self._registry.flush()

    def _everyone_lags(self) -> bool:
        return self._registry.least_lag_segments() >= LAG_SEGMENTS

    def _free_finished(self, *, ignore_grace: bool) -> int:
        """
        Delete the segments that every subscriber has resolved, durably recorded as resolved.
        """
        with self._maintenance:
            if not len(self.catalog):
                return 0
            self._registry.refresh()
            finished = self._registry.complete_segments()
            seqs = self._retention.deletable(
                finished, now_s=self._clock.monotonic(), grace_s=0.0 if ignore_grace else None
            )
            if not seqs:
                return 0
            try:
                self.catalog.keep_floor(max(seqs) + 1)
            except OSError as error:
                if not is_full_disk(error) or len(seqs) == 1:
                    raise
                seqs.remove(max(seqs))  # the highest name keeps the number until there is room to write it down
            self.catalog.delete(seqs)
            self._registry.removed(seqs)
            with self._lock:
                self._room.notify_all()
            self._observer.count("quiver.gc.evictions_total", len(seqs), reason="finished")
            return len(seqs)

    def _quarantine(self, info: SegmentInfo, damage: Damaged) -> None:
        """
        Take a segment that turned out damaged out of everybody's way: the others go on, the loss is counted.
        """
        with self._maintenance:
            if self._closed or info.seq not in self.catalog:
                return
            self.catalog.keep_floor(info.seq + 1)
            with contextlib.suppress(FileNotFoundError):
                recovery.quarantine_file(self._files, self.path, info.path)
            self.catalog.forget(info.seq)
            self._registry.removed([info.seq])
        self._observer.event(
            "quiver.segment.quarantined",
            level=logging.ERROR,
            path=info.path,
            bundles=info.bundle_count,
            reason=damage.reason,
        )
        self._observer.count("quiver.segment.damaged_bundles_total", info.bundle_count)

    # ── subscribers ──────────────────────────────────────────────────────────────────────────────────

    def register(self, subscriber_id: str, start: Start = "latest") -> Subscriber:
        """
        Register a subscriber, durably; a known one resumes where it was, whatever *start* says.

        Args:
            subscriber_id: 1 to 64 of ``A-Za-z0-9_-``.
            start: "latest" (what is sealed from now on), "earliest", a segment number, or an aware datetime.

        Raises:
            WrongUse: the id or the start is not lawful.
        """
        self._require_open()
        return self._registry.register(subscriber_id, start)

    def unregister(self, subscriber_id: str) -> None:
        """
        Remove a subscriber for good: what it had not resolved counts as dropped. Durable on return.

        Raises:
            SubscriberUnknown: not registered.
        """
        self._require_open()
        self._registry.unregister(subscriber_id)

    def activate(self) -> None:
        """
        End the registration phase. The first `next_bundle` does it too.
        """
        self._registry.activate()

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def disk_bytes(self) -> int:
        """
        Bytes of log and segments on disk.
        """
        return self.catalog.bytes + self._wal.disk_bytes

    def recent_wal_entries(self) -> Iterator[WalEntry]:
        """
        Iterate over the entries that are physically in the log, also those that segments hold by now, oldest first.
        """
        return logged_entries(self._files, f"{self.path}/{WAL_DIR}")

    def stats(self) -> dict[str, Any]:
        """
        Return figures of this moment: bytes, counts, and each subscriber's lag.
        """
        with self._lock:
            figures = {
                "segments": len(self.catalog),
                "segment_bytes": self.catalog.bytes,
                **self._wal.stats(),
                "open_bundles": self._sealing.open.bundle_count,
                "open_bytes": self._sealing.open.nbytes,
                "next_sequence": self._sequence,
                "next_segment": self._sealing.next_seq,
            }
        return figures | {"subscribers": self._registry.stats()}

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.path} is closed")

    def close(self) -> None:
        """
        Seal what is open, write progress, sync, let go of the directory. Idempotent.

        A full disk does not stop it: what could not be sealed stays in the log.

        Raises:
            AtCapacity: a `segment_only` store could not seal its open segment, which is lost.
            StoreFailed: the disk failed, now or earlier; what was synced is safe.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = self._needs_care = True
            self._room.notify_all()
        if self._background is not None:
            self._background.stop()
        # Whoever still maintains finishes first; after that nobody of this store touches the directory any more.
        with self._maintenance, contextlib.ExitStack() as last_to_first:
            last_to_first.callback(self._directory_lock.release)
            last_to_first.callback(self._wal.close)
            last_to_first.callback(self.catalog.close)
            last_to_first.callback(self._registry.close)
            if self._wal.failure is None:
                self._close_cleanly()
            elif not self._logging:
                self._wal.require_sound()  # its open segment is lost

    def _close_cleanly(self) -> None:
        try:
            self._seal_everything()
            self._registry.flush()
            self._free_finished(ignore_grace=False)
        except AtCapacity:
            if not self._logging:
                raise
        except OSError as error:
            self._observer.event("quiver.engine.stop", level=logging.WARNING, problem=str(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ref(info: SegmentInfo) -> SegmentRef:
    return SegmentRef(info.seq, info.bundle_count, info.ingested_max_ns)
