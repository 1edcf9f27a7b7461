"""
The tiers of one log: which sealed segments keep their files, which are packed, which are objects, and the way back.

::

    its file ──pack──▶ warm file ──upload──▶ object
       ▲  └─evict (only behind one of them)    │
       └──────────── hydrate ◀── fetch ────────┘

Where a segment is, the disk says; where its copies ought to be, the manifest log. Each step, and a crash behind it::

    pack      warm file (temporary, sync, rename, sync) ▸ read back and compared ▸ manifest
              a warm file that the manifest does not know: it goes when the segment has its file, else it is taken over
    upload    object ▸ manifest: uploaded again; where a packed file has no room, from the segment's own file
    evict     a copy is read back ▸ manifest ▸ the file goes: it is there still, and goes with the next turn
    trim      the object is read back ▸ manifest ▸ the warm file goes: as above
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

from quiver.aof.catalog import Catalog, SealedSegment
from quiver.aof.compaction import HeadTrim
from quiver.aof.config import AofConfig, TierConfig
from quiver.aof.format.manifest_record import Event, ManifestRecord
from quiver.aof.format.names import SEGMENTS, WARM, stream_folder
from quiver.aof.format.tier_entry import TierEntry
from quiver.aof.index import SparseIndexes
from quiver.aof.retention import Held, choose_leaving
from quiver.aof.tiers.asked import Asked
from quiver.aof.tiers.copies import Copies
from quiver.aof.tiers.object_listing import ListedObjects
from quiver.aof.tiers.packed import PackedSegment, records_problem, unpack_to
from quiver.aof.tiers.placement import Placement
from quiver.aof.tiers.snapshot import TierCounts, TierSnapshot
from quiver.aof.tiers.state import entry_record, key_record
from quiver.aof.tiers.uploads import Uploads, tell_move
from quiver.clock import Clock
from quiver.errors import (
    AtCapacity,
    Damaged,
    ObjectsUnavailable,
    QuiverError,
    RecordUnknown,
    SettingsInvalid,
    StoreClosed,
    WouldBlock,
    WrongUse,
)
from quiver.objects import ObjectTier
from quiver.observe import Observer, Value
from quiver.primitives.atomic import TEMPORARY_SUFFIX, remove_durably
from quiver.primitives.disk_full import is_full_disk
from quiver.primitives.files import FileSystem

__all__ = ["Tiers", "has_tiers"]

_AGAIN_S = 5.0


def has_tiers(fs: FileSystem, config: AofConfig, stream_id: int) -> bool:
    """
    Say whether a log has tiers: by its settings, or because it had some, and what left its file is still to be found.

    Raises:
        SettingsInvalid: it has, and its retention would move files to the archive.
    """
    if config.tiered:
        return True
    if not fs.exists(f"{config.root_dir}/{stream_folder(stream_id)}"):
        return False
    if config.retires and config.retention.action != "expire":
        raise SettingsInvalid(
            f'{config.root_dir} has segments in tiers, which have no file to archive: retention needs action="expire"'
        )
    return True


class Tiers:
    """
    Moves the sealed segments of one log between its tiers, and brings them back for readers. Thread-safe.

    Args:
        catalog: all sealed segments; those without a file are added to it.
        objects: gives the object tier, opened when it is first needed; None where there is none.
        again: called with the seconds after which `run` should be called again.
        below: the id of the first segment that is not sealed.
        indexes: of sealed segments, made before they are packed.
        trim: says which segments nobody needs any more.
        back: called when segments that were asked for were brought back, or could not be.
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
        self._back = back
        self._asked = Asked()
        self._segments = f"{config.root_dir}/{SEGMENTS}"
        self._warm = f"{config.root_dir}/{WARM}"
        self._copies = Copies(fs, self._warm, objects=objects, level=self._tiers.compression_level)
        self._lock = threading.RLock()
        self._turn = threading.Lock()
        self._used: dict[int, int] = {}
        self._attempts: Counter[tuple[Event, int]] = Counter()
        self._uses = 0
        self._placement = Placement(
            catalog, self._copies, fs, config.root_dir, stream_id=stream_id, clock=clock, observer=observer
        )
        self._manifest = self._placement.manifest
        self._away = self._placement.away
        self._closed = False
        self._below = below
        self._uploads = Uploads(
            self._placement, self._copies, catalog, self._tiers, self.counts, stream_id=stream_id, lock=self._lock,
            observer=observer, again=again, tried=self._tried, sound=self._sound,
        )  # fmt: skip
        self._placement.take_over(below)
        for sealed in self._catalog.all()[-1:]:
            if sealed.segment_id in self._away:  # its file was damaged: the next recovery needs one
                self._tried(partial(self._hydrate, sealed))

    @property
    def _entries(self) -> dict[int, TierEntry]:
        return self._placement.entries

    def _note(self, events: list[ManifestRecord], entry: TierEntry) -> TierEntry:
        return self._placement.note(events, entry)

    def _event(self, kind: Event, entry: TierEntry, *fields: int | str | None) -> ManifestRecord:
        return self._placement.event(kind, entry, *fields)

    # ---- what the thread does

    def run(self) -> None:
        """
        Do all that is due. What the disk or the object store refuses is tried again later.
        """
        with self._turn:
            self._bring_back()
            uploads = self._uploads
            for step in (self._retire_old, self._pack_sealed, uploads.upload, self._evict_over, uploads.trim_warm):
                self._tried(step)
            self._tried(uploads.delete, "tier2_delete_failed")
            if self._config.retention.policy == "time" or self._trim_head.asks:
                self._again(_AGAIN_S)

    def _tried(self, step: Callable[[], object], event: str = "tiers.failed") -> bool:
        """
        Do *step*; say whether it went well, with *event* if not. One segment that stays must not hold up the others.
        """
        try:
            step()
        except (OSError, QuiverError) as error:
            self.counts.failures += 1
            self._observer.count("aof_tiers_failed_total")
            self._observer.event(f"aof.{event}", level=logging.WARNING, problem=str(error))
            self._again(_AGAIN_S)
            if isinstance(error, ObjectsUnavailable):
                self._uploads.unreachable = True
            return False
        return True

    def _movable(self) -> list[SealedSegment]:
        """
        Return the sealed segments but the newest: recovery learns from that one's file where the log goes on.
        """
        return self._catalog.all()[:-1]

    def _pack_sealed(self) -> None:
        if self._config.compression == "zstd":
            for sealed in self._catalog.all():
                self._tried(partial(self._packed, sealed), "tier1_compression_failed")

    def _packed(self, sealed: SealedSegment) -> TierEntry | None:
        """
        Return the entry of a segment that has a copy, made now if there was none; None when it was retired.
        """
        with self._lock:
            entry = self._entries.get(sealed.segment_id)
            if entry is not None and (entry.has_warm or entry.remote):
                return entry
            if self._catalog.get(sealed.segment_id) is None:
                return None
            began, began_ms = self._clock.monotonic(), self._manifest.now_ms
            attempts = self._attempt(Event.COMPRESSION_STARTED, sealed.segment_id)
            try:
                entry = self._pack(sealed)
            except (OSError, Damaged) as error:
                self.counts.compression_failures += 1
                self._placement.failed(Event.COMPRESSION_FAILED, sealed, error)
                raise
            self.counts.compressions += 1
            entry = self._note(self._placement.packing(entry, began_ms), entry)
            self._placement.succeeded(Event.COMPRESSION_FAILED, sealed.segment_id)
            del self._attempts[Event.COMPRESSION_STARTED, sealed.segment_id]
            elapsed_ms = 1000 * (self._clock.monotonic() - began)
        self._tell("tier1_compression_success", entry, attempts=attempts, elapsed_ms=elapsed_ms)
        return entry

    def _pack(self, sealed: SealedSegment) -> TierEntry:
        view = self._catalog.view(sealed)
        problem = records_problem(view, sealed.header, sealed.footer)
        if problem is not None:
            raise Damaged(sealed.path, 0, f"it is not packed: {problem}")
        self._indexes.make(sealed, view)  # now, because later it would have to be unpacked
        return self._copies.pack(sealed, view)

    def _attempt(self, step: Event, segment_id: int) -> int:
        self._attempts[step, segment_id] += 1
        return self._attempts[step, segment_id]

    def _evict_over(self) -> None:
        limit = self._tiers.tier0_max_bytes
        if limit is None:
            return
        with self._lock:
            held = [one for one in self._catalog.all() if one.segment_id not in self._away]
            total = sum(one.header.max_size for one in held)
            newest = held[-1].segment_id if held else None
            # The longest unread first; those that nobody read, the oldest first.
            held.sort(key=lambda one: (self._used.get(one.segment_id, 0), one.segment_id))
        for sealed in held:
            if total <= limit:
                return
            if sealed.segment_id == newest:
                continue
            size = sealed.header.max_size
            self._observer.event("aof.tier0_eviction_scheduled", segment=sealed.segment_id, bytes=size)
            if self._tried(partial(self.evict, sealed.segment_id), "tier0_eviction_failed"):
                total -= size

    def evict(self, segment_id: int) -> None:
        """
        Remove the file of a sealed segment, once a copy of it is there. Its records are read as before.

        Raises:
            RecordUnknown: there is no such sealed segment.
            WrongUse: it is the newest sealed one, which keeps its file.
            Damaged: the file is not what was sealed.
            OSError, ObjectsUnavailable: no copy could be made, or looked at; the file is still there.
        """
        sealed = self._catalog.get(segment_id)
        if sealed is None:
            raise RecordUnknown(f"no sealed segment {segment_id}")
        if sealed not in self._movable():
            raise WrongUse(f"segment {segment_id} is the newest sealed one: it keeps its file")
        try:
            entry = self._packed(sealed)
        except OSError as error:
            if not self._copies.has_objects or not is_full_disk(error):
                raise
            entry = self._uploads.upload_file(sealed)  # or a disk that ran full would never have room again
        with self._lock:
            if entry is None or segment_id in self._away:
                return
            entry = self._sound(sealed, self._entries[segment_id])
            self._away.add(segment_id)
            try:
                self._note([self._event(Event.LOCAL_EVICTED, entry, entry.original_bytes)], entry)
                self._catalog.forget_map(segment_id)
                remove_durably(self._fs, [sealed.path])
            except OSError:
                if self._fs.exists(sealed.path):
                    self._away.discard(segment_id)
                raise
            self._used.pop(segment_id, None)
            self.counts.evictions += 1
        self._tell("tier0_segment_dropped", entry, bytes=sealed.header.max_size, sealed=True)

    def _sound(self, sealed: SealedSegment, entry: TierEntry) -> TierEntry:
        """
        Return where a segment's copy is that may become the only one, read once more; a new one is made if need be.

        Raises:
            Damaged, ObjectsUnavailable, OSError: as `evict`.
        """
        problem = self._copies.warm_problem(entry)
        if problem is None:
            return entry
        entry = replace(entry, has_warm=False)
        if entry.remote is not None:
            try:
                self._copies.check_object(entry)
            except Damaged as damaged:
                entry = self._uploads.doubt(entry, damaged)
            else:
                return entry
        self._failed("tier1_copy_damaged", entry, problem)
        self._entries[sealed.segment_id] = entry
        return self._packed(sealed) or entry

    def _retire_old(self) -> None:
        if not self._config.retires:
            return
        segments = self._catalog.all()
        held = [Held(one.segment_id, one.footer.sealed_at, one.header.max_size) for one in segments]
        leaving = {
            *choose_leaving(self._config.retention, held, self._clock.now_ns()), *self._trim_head.leaving(segments),
        }  # fmt: skip
        for sealed in segments:
            if sealed.segment_id in leaving:
                self._tried(partial(self._retire, sealed))

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
            self._away.discard(segment_id)
            self._used.pop(segment_id, None)
            self._catalog.remove(segment_id)
            self._indexes.remove(sealed)
        self._observer.count("aof_retention_retired_total", action="expire")

    # ---- what readers need

    def view(self, sealed: SealedSegment, *, wait: bool = True) -> memoryview | None:
        """
        Return the bytes of a sealed segment, brought back to its file when it has none; None when it was retired.

        Where the disk has no room for it the bytes are in memory, and the segment stays where it was.

        Raises:
            WouldBlock: it has no file, and without *wait* the thread brings it back.
            AtCapacity: so it was asked to, and the disk had no room.
            Damaged: no copy is what was written.
            ObjectsUnavailable: the only copy is an object, and the store does not answer; ask again.
            OSError: the disk cannot be read.
        """
        self._uses += 1
        self._used[sealed.segment_id] = self._uses
        try:
            return self._catalog.view(sealed)
        except FileNotFoundError:
            if wait:
                return self._hydrate(sealed)
        if self._closed:
            raise StoreClosed(f"segment {sealed.segment_id} has no file, and the log was closed")
        self._asked.ask(sealed.segment_id)
        self._observer.event(
            "aof.tier1_hydration_retry_queued", segment=sealed.segment_id, sealed_at=sealed.footer.sealed_at
        )
        self._again(0.0)
        raise WouldBlock("hydration", f"segment {sealed.segment_id} is being brought back to its file")

    def _bring_back(self) -> None:
        if self._asked.serve(self._bring_one_back):
            self._back()

    def _bring_one_back(self, segment_id: int) -> None:
        try:
            self.hydrate(segment_id)
        except (OSError, QuiverError) as error:
            how = "unavailable" if isinstance(error, ObjectsUnavailable) else "failed"
            name = f"aof.tier1_hydration_retry_{how}"
            self._observer.event(name, level=logging.WARNING, segment=segment_id, problem=str(error))
            raise
        if segment_id in self._away:
            raise AtCapacity(f"no room to bring segment {segment_id} back; who waits for it reads it from memory")

    def hydrate(self, segment_id: int) -> None:
        """
        Bring a segment back to its file.

        Raises:
            RecordUnknown: there is no such sealed segment.
            Damaged, ObjectsUnavailable, OSError: as `view`.
        """
        sealed = self._catalog.get(segment_id)
        if sealed is None or self.view(sealed) is None:
            raise RecordUnknown(f"no sealed segment {segment_id}")

    def _hydrate(self, sealed: SealedSegment) -> memoryview | None:
        with self._lock:
            if self._closed:
                raise StoreClosed(f"segment {sealed.segment_id} has no file, and the log was closed")
            entry = self._entries.get(sealed.segment_id)
            if self._fs.exists(sealed.path):  # another reader was quicker
                return self._catalog.view(sealed)
            if entry is None:
                return None
            began, began_ms = self._clock.monotonic(), self._manifest.now_ms
            source_tier = 1 if entry.has_warm else 2
            try:
                packed, entry = self._readable(entry)
                view = self._restore(sealed, packed)
            except (Damaged, QuiverError):
                self.counts.hydration_failures += 1
                raise
            if view is not None:
                started = replace(self._event(Event.HYDRATION_STARTED, entry, source_tier), timestamp_ms=began_ms)
                with contextlib.suppress(OSError):  # the file is there, whatever the manifest says of it
                    self._note([started, self._event(Event.HYDRATION_DONE, entry, entry.original_bytes)], entry)
                latency_s = self._clock.monotonic() - began
                self.counts.hydrated(latency_s)
                self._observer.record("aof_hydration_latency_seconds", latency_s)
                self._tell("tier1_hydration_success", entry, latency_ms=1000 * latency_s)
                self._again(0.0)
                return view
            return memoryview(b"".join(packed.plain()))

    def _readable(self, entry: TierEntry) -> tuple[PackedSegment, TierEntry]:
        """
        Return a copy that can be unpacked; an object is fetched first.
        """
        if entry.has_warm:
            problem = "the warm file is not there"
            if self._copies.warm_bytes(entry) == entry.warm_bytes:
                try:
                    return self._copies.verified_warm(entry), entry
                except Damaged as damaged:
                    problem = damaged.reason
            entry = self._note([self._event(Event.HYDRATION_FAILED, entry, 1)], replace(entry, has_warm=False))
            self._failed("tier1_hydration_failed", entry, problem)
        if entry.remote is None:
            raise Damaged(f"{self._warm}/{entry.warm_name}", 0, "the only copy of a segment is not what was written")
        self.counts.downloads += 1
        try:
            self._copies.fetch(entry)
        except (OSError, QuiverError) as error:
            self.counts.download_failures += 1
            self._failed("tier2_fetch_failed", entry, str(error))
            if isinstance(error, Damaged):  # readers are told, and so is who looks at the log, until a fetch succeeds
                self._note([self._event(Event.HYDRATION_FAILED, entry, 2)], replace(entry, residency="needs_recovery"))
            if not isinstance(error, OSError) or not is_full_disk(error):
                raise
            return self._copies.open_object(entry), entry
        entry = replace(entry, has_warm=True)
        self._tell("tier2_fetch_success", entry, attempts=1, destination=f"{self._warm}/{entry.warm_name}")
        return self._copies.open_warm(entry), self._note([self._event(Event.HYDRATION_DONE, entry, 0)], entry)

    def _restore(self, sealed: SealedSegment, packed: PackedSegment) -> memoryview | None:
        """
        Write a segment's file from a copy; None when there is no room for it.
        """
        temporary = sealed.path + TEMPORARY_SUFFIX
        try:
            unpack_to(self._fs, temporary, packed, max_size=sealed.header.max_size)
        except OSError as error:
            if is_full_disk(error):
                return None
            raise
        self._fs.rename(temporary, sealed.path)
        self._away.discard(sealed.segment_id)
        self._fs.sync_dir(self._segments)
        return self._catalog.view(sealed)

    # ---- by hand

    def delete_oldest(self, segment_ids: Sequence[int]) -> None:
        """
        Delete sealed segments with all their copies. They must be the oldest of the log: a log has no holes.

        Raises:
            RecordUnknown: there is no such sealed segment; nothing was deleted.
            WrongUse: an older one would stay, or it is the newest sealed one; nothing was deleted.
            OSError: the disk refused; those before it are gone.
        """
        wanted = set(segment_ids)
        known = {one.segment_id: one for one in self._catalog.all()}
        unknown = sorted(wanted - known.keys())
        if unknown:
            raise RecordUnknown(f"no sealed segment {unknown[0]}")
        if wanted - {one.segment_id for one in self._movable()}:
            raise WrongUse(f"segment {max(wanted)} is the newest sealed one, which stays: the log goes on behind it")
        older = [one for one in known if wanted and one < max(wanted) and one not in wanted]
        if older:
            raise WrongUse(f"segment {older[0]} is older and would leave a hole: name it, too")
        with self._turn:
            for segment_id in sorted(wanted):
                self._retire(known[segment_id])

    def write_custom_event(self, schema: int, blob: bytes, *, segment_id: int = 0) -> None:
        """
        Write an event of the program's own into the manifest log, durably on return.

        It is history, for people and `quiver aof inspect`: it goes when its chunk goes, the second rotation from now.

        Raises:
            WrongUse: *schema* is no number of 32 bits, *segment_id* none of 64, or *blob* is over 65,535 bytes.
            OSError: the disk refused.
        """
        for name, number, bits in (("schema", schema, 32), ("segment_id", segment_id, 64)):
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << bits:
                raise WrongUse(f"the {name} of an event is a whole number of {bits} bits, not {number!r}")
        if not isinstance(blob, bytes) or len(blob) >= 1 << 16:
            raise WrongUse("the blob of an event is bytes, up to 65,535 of them")
        with self._lock:
            self._require_open()
            record = ManifestRecord(Event.CUSTOM_EVENT, segment_id, 0, self._manifest.now_ms, (schema, blob))
            self._manifest.write([record])

    def rewrite_manifest(self) -> ListedObjects:
        """
        Take over objects that the manifest log does not know, and begin a new chunk of it with all there is to know, so
        that no older one is needed. Return what was found of segments that had no copy.

        Raises:
            ObjectsUnavailable, AccessRefused, OSError: try again; the older chunks count.
        """
        with self._lock:
            self._require_open()
            found = self._placement.find_objects(self._below)
            self._manifest.rotate()
        return found

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self._config.root_dir} was closed")

    # ---- what it says of itself

    def _failed(self, event: str, entry: TierEntry, problem: str) -> None:
        self._observer.event(f"aof.{event}", level=logging.WARNING, segment=entry.segment_id, problem=problem)

    def _tell(self, event: str, entry: TierEntry, **fields: Value) -> None:
        tell_move(self._observer, event, entry, **fields)

    def snapshot(self) -> TierSnapshot:
        """
        Return how much lies where, and what waits.
        """
        with self._lock:
            sealed = self._catalog.all()
            entries = dict(self._entries)
            residency = {
                one.segment_id: self._placement.residency(entries[one.segment_id])
                if one.segment_id in entries
                else "resident_in_tier0"
                for one in sealed
            }
            resident = sum(one.header.max_size for one in sealed if one.segment_id not in self._away)
            deletes = len(self._manifest.state.deletes)
            counts = replace(self.counts)
        told = TierSnapshot.of(
            residency, entries, resident_bytes=resident, deletes=deletes, counts=counts,
            uploads_to=self._copies.has_objects, packs_all=self._config.compression == "zstd",
            hydrations=self._asked.waiting,
        )  # fmt: skip
        manifest = self._manifest
        return replace(
            told, replay_chunks=manifest.replay_chunks, replay_journal_lag_bytes=manifest.replay_journal_lag_bytes,
            replay_chunk_lag_seconds=manifest.replay_chunk_lag_seconds,
        )  # fmt: skip

    def close(self) -> None:
        """
        Let go of files and connections. Idempotent.
        """
        with self._turn, self._lock:
            self._closed = True
            self._manifest.close()
            self._copies.close()
