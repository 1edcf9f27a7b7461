"""
The tiers of one log: which sealed segments keep their files, which are packed, which are objects, and hydration.

::

    its file ──pack──▶ warm file ──upload──▶ object
       ▲  └─evict (only if one of them exists) │
       └──────────── hydrate ◀── fetch ────────┘

The disk shows where a segment is; the manifest log, where its copies should be. The order within each step, and what
recovery does after a crash in it::

    pack      warm file (temporary, sync, rename, sync) ▸ read back and compared ▸ manifest
              a warm file that is not in the manifest: removed if the segment has its file, otherwise registered
    upload    object ▸ manifest: uploaded again, from the packed file or, without one, from the segment's own
    evict     a copy is read back ▸ manifest ▸ the file is removed: it still exists, and the next run removes it
    trim      the object is read back ▸ manifest ▸ the warm file is removed: as above
    hydrate   file (temporary, sync) ▸ its records verified ▸ rename, sync ▸ manifest
    retire    manifest: no copies, delete the object ▸ warm file ▸ file ▸ object ▸ manifest
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from quiver.aof.compaction import HeadTrim
from quiver.aof.config import AofConfig, TierConfig
from quiver.aof.expiry import Expiry
from quiver.aof.format.manifest_record import Event, ManifestRecord
from quiver.aof.format.names import SEGMENTS, WARM, stream_folder
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.aof.format.tier_entry import TierEntry
from quiver.aof.reading.catalog import Catalog, SealedSegment
from quiver.aof.reading.index import SparseIndexes
from quiver.aof.tiers.copies import Copies
from quiver.aof.tiers.hydration import Hydration
from quiver.aof.tiers.object_listing import ListedObjects
from quiver.aof.tiers.packed import records_problem
from quiver.aof.tiers.placement import Placement
from quiver.aof.tiers.snapshot import TierCounts, TierSnapshot
from quiver.aof.tiers.state import entry_record, key_record
from quiver.aof.tiers.uploads import Uploads, report_move
from quiver.clock import Clock
from quiver.errors import (
    CorruptionError,
    ObjectsUnavailableError,
    QuiverError,
    SettingsError,
    StoreClosedError,
    UnknownRecordError,
    UsageError,
)
from quiver.invariant import invariant
from quiver.objects import ObjectTier
from quiver.observe import Observer, Value
from quiver.primitives.disk.atomic import remove_durably
from quiver.primitives.disk.disk_full import is_full_disk
from quiver.primitives.disk.file_system import FileSystem

__all__ = ["TierManager", "has_tiers"]

_RETRY_S = 5.0


def has_tiers(fs: FileSystem, config: AofConfig, stream_id: int) -> bool:
    """
    Return whether a log has tiers: by its settings, or because earlier settings had, and segments may have no file.

    Raises:
        SettingsError: it has tiers, and its retention would move files to the archive.
    """
    if config.tiered:
        return True
    if not fs.exists(f"{config.root_dir}/{stream_folder(stream_id)}"):
        return False
    if config.retires and config.retention.action != "expire":
        raise SettingsError(
            f'{config.root_dir} has segments in tiers, which have no file to archive: retention needs action="expire"'
        )
    return True


class TierManager:
    """
    Moves the sealed segments of one log between its tiers, and hydrates them for readers. Thread-safe.

    Args:
        catalog: all sealed segments; those without a file are added to it.
        objects: returns the object tier when it is first needed; None: no object store.
        again: called with the seconds after which `run` should be called again.
        below: the id of the first unsealed segment.
        indexes: the indexes of sealed segments, made before these are packed.
        trim: finds the segments that are no longer needed.
        back: called when queued segments were hydrated, or could not be.
        uploaded: called when a segment has a new object, or was found to be damaged.
    """

    def __init__(
        self,
        catalog: Catalog,
        fs: FileSystem,
        config: AofConfig,
        *,
        stream_id: int,
        clock: Clock,
        observer: Observer,
        objects: Callable[[], ObjectTier] | None,
        again: Callable[[float], None],
        below: int,
        indexes: SparseIndexes,
        trim: HeadTrim,
        back: Callable[[], None],
        uploaded: Callable[[], None],
    ) -> None:
        self.counts = TierCounts()
        self._catalog = catalog
        self._fs = fs
        self._config = config
        self._tiers = config.tiers or TierConfig()
        self._stream_id = stream_id
        self._clock = clock
        self._observer = observer
        self._again = again
        self._indexes = indexes
        self._trim_head = trim
        self._segments = f"{config.root_dir}/{SEGMENTS}"
        self._warm = f"{config.root_dir}/{WARM}"
        self._copies = Copies(fs, self._warm, objects=objects, level=self._tiers.compression_level)
        self._lock = threading.RLock()
        self._turn = threading.Lock()
        self._attempts: Counter[tuple[Event, int]] = Counter()
        self._placement = Placement(
            catalog, self._copies, fs, config.root_dir, stream_id=stream_id, clock=clock, observer=observer
        )
        self._hydration = Hydration(
            catalog, self._copies, self._placement, fs, self.counts, lock=self._lock, clock=clock, observer=observer,
            again=again, back=back,
        )  # fmt: skip
        self._manifest = self._placement.manifest
        self._without_file = self._placement.without_file
        self._below = below
        self._is_full = False
        # Segments whose file is to be removed are packed anyway; other logs need no second copy on the disk.
        leaves = config.compression == "zstd" or self._tiers.tier0_max_bytes is not None
        self._uploads = Uploads(
            self._placement, self._copies, catalog, self._tiers, self.counts, stream_id=stream_id, lock=self._lock,
            observer=observer, again=again, tried=self._try_step, with_valid_copy=self._with_valid_copy,
            packed=self._packed if leaves else None, verified=self._verified, uploaded=uploaded,
        )  # fmt: skip
        self._placement.reconcile(below)
        self._expiry = Expiry(catalog, config.retention, trim, clock)
        for sealed in self._catalog.all()[-1:]:
            if sealed.segment_id in self._without_file:  # its file was damaged; the next recovery needs it
                self._try_step(partial(self._hydration.restore, sealed))

    @property
    def _entries(self) -> dict[int, TierEntry]:
        return self._placement.entries

    def _note(self, events: list[ManifestRecord], entry: TierEntry) -> TierEntry:
        return self._placement.note(events, entry)

    def _event(self, kind: Event, entry: TierEntry, *fields: int | str | None) -> ManifestRecord:
        return self._placement.event(kind, entry, *fields)

    # ---- the work of the thread

    def run(self) -> None:
        """Do all work that is due. Steps that fail are retried later."""
        with self._turn:
            self._hydration.hydrate_queued()
            uploads = self._uploads
            for step in (self._retire_old, self._pack_sealed, uploads.upload, self._evict_over, uploads.trim_warm):
                self._try_step(step)
            self._try_step(uploads.delete, "tier2_delete_failed")
            self._make_room_for_manifest()
            if self._config.retention.policy == "time" or self._trim_head.has_hook:
                self._again(_RETRY_S)

    def _try_step(self, step: Callable[[], object], event: str = "tiers.failed") -> bool:
        """Run *step*; on failure report *event* and return False. A failure of one segment must not stop the others."""
        try:
            step()
        except (OSError, QuiverError) as error:
            self.counts.failures += 1
            self._observer.count("aof_tiers_failed_total")
            self._observer.event(f"aof.{event}", level=logging.WARNING, problem=str(error))
            self._again(_RETRY_S)
            if isinstance(error, ObjectsUnavailableError):
                self._uploads.unreachable = True
            self._is_full = self._is_full or (isinstance(error, OSError) and is_full_disk(error))
            return False
        return True

    def _make_room_for_manifest(self) -> None:
        """
        Remove packed copies of segments that have their file, if a full disk has no space for a manifest chunk.

        Without the manifest no file can be removed. The segments are packed again when that is due.
        """
        was_full, self._is_full = self._is_full, False
        if not was_full or not self._manifest.needs_chunk:
            return
        with self._lock:
            for segment_id, entry in self._entries.items():
                if entry.has_warm and segment_id not in self._without_file:
                    self._copies.remove_warm(entry)
                    self._entries[segment_id] = replace(entry, has_warm=False)

    def _movable(self) -> list[SealedSegment]:
        """Return the sealed segments except the newest: recovery reads from its file where the log continues."""
        return self._catalog.all()[:-1]

    def _pack_sealed(self) -> None:
        if self._config.compression == "zstd":
            for sealed in self._catalog.all():
                self._try_step(partial(self._packed, sealed), "tier1_compression_failed")

    def _packed(self, sealed: SealedSegment) -> TierEntry | None:
        """Return the entry of a segment with a copy, and pack it if it has none; None when it was retired."""
        with self._lock:
            entry = self._placement.entry_of(sealed)
            if entry is not None and (entry.has_warm or entry.remote):
                return entry
            if self._catalog.get(sealed.segment_id) is None:
                return None
            began, began_ms = self._clock.monotonic(), self._manifest.now_ms
            attempts = self._attempt(Event.COMPRESSION_STARTED, sealed.segment_id)
            try:
                entry = self._pack(sealed)
            except (OSError, CorruptionError) as error:
                self.counts.compression_failures += 1
                self._placement.failed(Event.COMPRESSION_FAILED, sealed, error)
                raise
            self.counts.compressions += 1
            try:
                entry = self._note(self._placement.packing(entry, began_ms), entry)
            except OSError:
                # Unregistered, it would waste space, perhaps the space that the manifest lacked.
                with contextlib.suppress(OSError):
                    self._copies.remove_warm(entry)
                raise
            self._placement.succeeded(Event.COMPRESSION_FAILED, sealed.segment_id)
            del self._attempts[Event.COMPRESSION_STARTED, sealed.segment_id]
            elapsed_ms = 1000 * (self._clock.monotonic() - began)
        self._report("tier1_compression_success", entry, attempts=attempts, elapsed_ms=elapsed_ms)
        return entry

    def _pack(self, sealed: SealedSegment) -> TierEntry:
        return self._copies.pack(sealed, self._verified(sealed))

    def _verified(self, sealed: SealedSegment) -> memoryview:
        """
        Return the bytes of a segment's file with all records verified: a copy of it may become the only one.

        Raises:
            CorruptionError: the file is damaged.
            OSError: the disk cannot be read.
        """
        view = self._catalog.view(sealed)
        problem = records_problem(view, sealed.header, sealed.footer)
        if problem is not None:
            raise CorruptionError(sealed.path, 0, f"not copied, because the file is damaged: {problem}")
        self._indexes.make(sealed, view)  # now, because a packed segment must be unpacked first
        return view

    def _attempt(self, step: Event, segment_id: int) -> int:
        self._attempts[step, segment_id] += 1
        return self._attempts[step, segment_id]

    def _evict_over(self) -> None:
        limit = self._tiers.tier0_max_bytes
        if limit is None:
            return
        with self._lock:
            local = [one for one in self._catalog.all() if one.segment_id not in self._without_file]
            total = sum(one.header.max_size for one in local)
            newest = local[-1].segment_id if local else None
            # The least recently read first; of those never read, the oldest first.
            local.sort(key=lambda one: (self._hydration.used.get(one.segment_id, 0), one.segment_id))
        for sealed in local:
            if total <= limit:
                return
            if sealed.segment_id == newest:
                continue
            size = sealed.header.max_size
            self._observer.event("aof.tier0_eviction_scheduled", segment=sealed.segment_id, bytes=size)
            if self._try_step(partial(self.evict, sealed.segment_id), "tier0_eviction_failed"):
                total -= size

    def room_for_packing(self, size: int) -> int:
        """
        Return how much disk space must stay free besides a new segment of *size* bytes, so that segments can be packed.

        A segment over the limit must be packed before its file is removed: on a disk that is full of segments no file
        could ever be removed. With an object store no space is needed for that. Takes no lock.
        """
        limit = self._tiers.tier0_max_bytes
        if limit is None or self._copies.has_objects:
            return 0
        local = [one for one in self._catalog.all() if one.segment_id not in self._without_file]
        if sum(one.header.max_size for one in local) + size <= limit:
            return 0
        return max([size, *(one.end for one in local if self._placement.entry_of(one) is None)])

    def evict(self, segment_id: int) -> None:
        """
        Remove the file of a sealed segment after a copy of it was verified. Its records can be read as before.

        Raises:
            UnknownRecordError: no such sealed segment exists.
            UsageError: it is the newest sealed segment, which keeps its file.
            CorruptionError: the file is damaged.
            OSError, ObjectsUnavailableError: no copy could be made or verified; the file still exists.
        """
        sealed = self._catalog.get(segment_id)
        if sealed is None:
            raise UnknownRecordError(f"no sealed segment {segment_id}")
        if sealed not in self._movable():
            raise UsageError(f"segment {segment_id} is the newest sealed one and keeps its file")
        try:
            entry = self._packed(sealed)
        except OSError as error:
            if not self._copies.has_objects or not is_full_disk(error):
                raise
            entry = self._uploads.upload_file(sealed)  # otherwise a full disk would never have space again
        with self._lock:
            if entry is None or segment_id in self._without_file:
                return
            entry = self._with_valid_copy(sealed, self._entries[segment_id])
            has_copy = entry.has_warm or entry.remote is not None
            invariant(has_copy, "a segment's file is removed only after a copy of it was verified")
            self._without_file.add(segment_id)
            try:
                self._note([self._event(Event.LOCAL_EVICTED, entry, entry.original_bytes)], entry)
                self._catalog.forget_map(segment_id)
                remove_durably(self._fs, [sealed.path])
            except OSError:
                if self._fs.exists(sealed.path):
                    self._without_file.discard(segment_id)
                raise
            self._hydration.used.pop(segment_id, None)
            self.counts.evictions += 1
        self._report("tier0_segment_dropped", entry, bytes=sealed.header.max_size, sealed=True)

    def _with_valid_copy(self, sealed: SealedSegment, entry: TierEntry) -> TierEntry:
        """
        Verify the copy of a segment that may become the only one, make a new one if necessary, and return its entry.

        Raises:
            CorruptionError, ObjectsUnavailableError, OSError: as `evict`.
        """
        problem = self._copies.warm_problem(entry)
        if problem is None:
            return entry
        entry = replace(entry, has_warm=False)
        if entry.remote is not None:
            try:
                self._copies.check_object(entry)
            except CorruptionError as damaged:
                entry = self._uploads.invalidate_object(entry, damaged)
            else:
                return entry
        self._failed("tier1_copy_damaged", entry, problem)
        self._entries[sealed.segment_id] = entry
        return self._packed(sealed) or entry

    def _retire_old(self) -> None:
        if not self._config.retires:
            return
        for sealed in self._expiry.segments():
            self._try_step(partial(self._retire, sealed))

    def _retire(self, sealed: SealedSegment) -> None:
        segment_id = sealed.segment_id
        with self._lock:
            entry = self._entries.get(segment_id)
            key = entry.remote.object_key if entry and entry.remote else self._manifest.state.uploads.get(segment_id)
            if entry is not None or key is not None:
                now_ms = self._manifest.now_ms
                records = [entry_record(segment_id, None, now_ms)]
                if key is not None:
                    records.append(key_record(Event.TIER2_DELETE_QUEUED, segment_id, key, now_ms))
                self._manifest.write(records)
            if entry is not None:
                self._copies.remove_warm(entry)
            remove_durably(self._fs, [sealed.path])
            self._without_file.discard(segment_id)
            self._hydration.used.pop(segment_id, None)
            self._catalog.remove(segment_id)
            self._indexes.remove(sealed)
        self._observer.count("aof_retention_retired_total", action="expire")

    # ---- for readers, and manual calls

    def view(self, sealed: SealedSegment, *, wait: bool = True) -> memoryview | None:
        """
        Return the bytes of a sealed segment, hydrated if it has no file; None when it was retired.

        Raises:
            WouldBlockError, CapacityError, CorruptionError, ObjectsUnavailableError, OSError: as `Hydration.view`.
        """
        return self._hydration.view(sealed, wait=wait)

    def salvage(self, sealed: SealedSegment) -> memoryview | None:
        """Return what can still be unpacked of a damaged segment; None when nothing can."""
        entry = self._entries.get(sealed.segment_id)
        found = None if entry is None else self._copies.salvage(entry, 0, sealed.end)
        return None if found is None else memoryview(found)

    def hydrate(self, segment_id: int) -> None:
        """
        Restore the file of a segment from a copy.

        Raises:
            UnknownRecordError: no such sealed segment exists.
            CorruptionError, ObjectsUnavailableError, OSError: as `view`.
        """
        self._hydration.hydrate(segment_id)

    def delete_oldest(self, segment_ids: Sequence[int]) -> None:
        """
        Delete sealed segments with all their copies. They must be the oldest of the log: a log has no holes.

        Raises:
            UnknownRecordError: no such sealed segment exists; nothing was deleted.
            UsageError: an older one would stay, or it is the newest sealed one; nothing was deleted.
            OSError: the disk failed; earlier segments are deleted.
        """
        wanted = set(segment_ids)
        known = {one.segment_id: one for one in self._catalog.all()}
        unknown = sorted(wanted - known.keys())
        if unknown:
            raise UnknownRecordError(f"no sealed segment {unknown[0]}")
        if wanted - {one.segment_id for one in self._movable()}:
            raise UsageError(f"segment {max(wanted)} is the newest sealed one, which stays: the log continues after it")
        older = [one for one in known if wanted and one < max(wanted) and one not in wanted]
        if older:
            raise UsageError(f"segment {older[0]} is older and would leave a hole: delete it, too")
        with self._turn:
            for segment_id in sorted(wanted):
                self._retire(known[segment_id])

    def write_custom_event(self, schema: int, blob: bytes, *, segment_id: int = 0) -> None:
        """
        Write a custom event to the manifest log, durably.

        It is history for human readers and `quiver aof inspect`. It is removed with its chunk, at the second rotation
        from now.

        Raises:
            UsageError: *schema* is not an integer of 32 bits, *segment_id* is not one of 64 bits, or *blob* has more
                than 65,535 bytes.
            OSError: the disk failed.
        """
        for name, number, bits in (("schema", schema, 32), ("segment_id", segment_id, 64)):
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << bits:
                raise UsageError(f"the {name} of an event is an integer of {bits} bits, not {number!r}")
        if not isinstance(blob, bytes) or len(blob) >= 1 << 16:
            raise UsageError("the blob of an event is bytes, up to 65,535 of them")
        with self._lock:
            self._require_open()
            record = ManifestRecord(Event.CUSTOM_EVENT, segment_id, 0, self._manifest.now_ms, (schema, blob))
            self._manifest.write([record])

    def rewrite_manifest(self) -> ListedObjects:
        """
        Register objects that the manifest log does not know, and begin a new chunk with the complete state, so that no
        older one is needed. Return the objects that were found for segments without a copy.

        Raises:
            ObjectsUnavailableError, AccessDeniedError, OSError: try again; the older chunks stay valid.
        """
        with self._lock:
            self._require_open()
            found = self._placement.find_objects(self._below)
            self._manifest.rotate()
        return found

    def _require_open(self) -> None:
        if self._hydration.closed:
            raise StoreClosedError(f"{self._config.root_dir} was closed")

    # ---- state

    def _failed(self, event: str, entry: TierEntry, problem: str) -> None:
        self._observer.event(f"aof.{event}", level=logging.WARNING, segment=entry.segment_id, problem=problem)

    def _report(self, event: str, entry: TierEntry, **fields: Value) -> None:
        report_move(self._observer, event, entry, **fields)

    def snapshot(self) -> TierSnapshot:
        """Return the sizes and queues of the tiers."""
        with self._lock:
            sealed = self._catalog.all()
            entries = dict(self._entries)
            residency = {
                one.segment_id: self._placement.residency(entries[one.segment_id])
                if one.segment_id in entries
                else "resident_in_tier0"
                for one in sealed
            }
            resident = sum(one.header.max_size for one in sealed if one.segment_id not in self._without_file)
            deletes = len(self._manifest.state.deletes)
            counts = replace(self.counts)
        snapshot = TierSnapshot.of(
            residency, entries, resident_bytes=resident, deletes=deletes, counts=counts,
            uploads_to=self._copies.has_objects, packs_all=self._config.compression == "zstd",
            hydrations=self._hydration.queue.waiting,
        )  # fmt: skip
        manifest, waiting = self._manifest, self._uploads.waiting()
        lag_ns = self._clock.now_ns() - min((one.footer.sealed_at for one in waiting), default=self._clock.now_ns())
        return replace(
            snapshot, upload_lag_bytes=sum(one.end - HEADER_BYTES for one in waiting),
            upload_lag_seconds=max(0, lag_ns) / 1e9, replay_chunks=manifest.replay_chunks,
            replay_journal_lag_bytes=manifest.replay_journal_lag_bytes,
            replay_chunk_lag_seconds=manifest.replay_chunk_lag_seconds,
        )  # fmt: skip

    @property
    def uploads(self) -> Uploads:
        """The uploads of the log."""
        return self._uploads

    def finish_uploads(self, limit_s: float) -> None:
        """Upload sealed segments for *limit_s* seconds at most, while the store answers; report what is left."""
        with self._turn:
            if not self._uploads.unreachable:
                now_s = self._clock.monotonic
                self._uploads.upload(until_s=now_s() + limit_s, now_s=now_s)
            left = self._uploads.waiting()
        if left:
            self._observer.event("aof.uploads_left", level=logging.WARNING, segments=len(left))

    def close(self) -> None:
        """Close files and connections. Idempotent."""
        with self._turn, self._lock:
            self._hydration.closed = True
            self._manifest.close()
            self._copies.close()
