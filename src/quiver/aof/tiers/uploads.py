"""
Uploads of sealed segments, removal of packed files that have objects, and deletion of objects.

Every sealed segment is uploaded, the oldest first. If the tiers store packed files, that file is uploaded. Otherwise
the segment is packed during the upload, from its own file, and needs no more disk space.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from quiver.aof.config import TierConfig
from quiver.aof.format.manifest_record import Event
from quiver.aof.format.names import object_key
from quiver.aof.format.tier_entry import RemoteCopy, TierEntry
from quiver.aof.reading.catalog import Catalog, SealedSegment
from quiver.aof.tiers.copies import Copies
from quiver.aof.tiers.placement import Placement
from quiver.aof.tiers.snapshot import TierCounts
from quiver.aof.tiers.state import key_record
from quiver.errors import CorruptionError, QuiverError
from quiver.observe import Observer, Value
from quiver.primitives.disk.disk_full import is_full_disk

__all__ = ["Uploads", "report_move"]


class RunStep(Protocol):
    """Runs a step and returns whether it succeeded."""

    def __call__(self, step: Callable[[], object], event: str = ...) -> bool:
        """Run *step*, and report *event* if it fails."""


def report_move(observer: Observer, event: str, entry: TierEntry, **fields: Value) -> None:
    """Report that a segment moved from one tier to another."""
    fields.setdefault("bytes", entry.warm_bytes)
    observer.count("aof_tier_moves_total", kind=event)
    observer.event(f"aof.{event}", level=logging.INFO, segment=entry.segment_id, **fields)


class Uploads:
    """
    Uploads sealed segments, trims packed files and deletes objects, for one log. One thread at a time.

    Args:
        lock: protects the placement; never held during network I/O.
        tried: runs a step, and reports its failure.
        with_valid_copy: returns an entry with a verified copy, which is made again if necessary.
        packed: packs a segment first, and returns its entry; None: segments are uploaded from their own files.
        verified: returns the bytes of a segment's file, with all records verified.
        uploaded: called when there is a new object.

    Attributes:
        unreachable: whether the object store did not answer.
        stopping: whether the log is being closed, so that no more uploads begin.
        problem: why the last upload failed; empty after a success.
        damaged: segments with damaged files, which are not uploaded, and their errors.
    """

    def __init__(
        self,
        placement: Placement,
        copies: Copies,
        catalog: Catalog,
        config: TierConfig,
        counts: TierCounts,
        *,
        stream_id: int,
        lock: threading.RLock,
        observer: Observer,
        again: Callable[[float], None],
        tried: RunStep,
        with_valid_copy: Callable[[SealedSegment, TierEntry], TierEntry],
        packed: Callable[[SealedSegment], TierEntry | None] | None,
        verified: Callable[[SealedSegment], memoryview],
        uploaded: Callable[[], None],
    ) -> None:
        self.unreachable = False
        self.stopping = False
        self.problem = ""
        self.damaged: dict[int, CorruptionError] = {}
        self._placement = placement
        self._copies = copies
        self._catalog = catalog
        self._config = config
        self._counts = counts
        self._stream_id = stream_id
        self._lock = lock
        self._observer = observer
        self._again = again
        self._try_step = tried
        self._with_valid_copy = with_valid_copy
        self._packed = packed
        self._verified = verified
        self._uploaded = uploaded
        self._attempts: Counter[int] = Counter()

    @property
    def enabled(self) -> bool:
        """Whether there is an object store."""
        return self._copies.has_objects

    def is_uploaded(self, sealed: SealedSegment) -> bool:
        """Return whether a segment has an object. Takes no lock."""
        entry = self._placement.entry_of(sealed)
        return entry is not None and entry.remote is not None

    def waiting(self) -> list[SealedSegment]:
        """Return the sealed segments that have no object yet, the oldest first."""
        if not self._copies.has_objects:
            return []
        with self._lock:
            entries, away = self._placement.entries, self._placement.without_file
            return [
                one
                for one in self._catalog.all()
                if not self.is_uploaded(one) and (one.segment_id not in away or entries[one.segment_id].has_warm)
            ]

    def upload(self, *, until_s: float | None = None, now_s: Callable[[], float] = lambda: 0.0) -> None:
        """Upload segments without an object, the oldest first; begin no upload at *until_s* or later."""
        self.unreachable = False
        for sealed in self.waiting():
            if self.unreachable or (self.stopping if until_s is None else now_s() >= until_s):
                return  # the next one would wait as long, or a caller waits for the end of this
            if sealed.segment_id not in self.damaged:
                self._try_step(partial(self._upload_one, sealed), "tier2_upload_failed")

    def _upload_one(self, sealed: SealedSegment) -> None:
        segment_id = sealed.segment_id
        with self._lock:
            entry = self._placement.entry_of(sealed)
        if self._packed is not None and (entry is None or not entry.has_warm):
            try:
                entry = self._packed(sealed)
            except OSError as error:
                if not is_full_disk(error):
                    raise
        if entry is None or not entry.has_warm:
            self.upload_file(sealed)
            return
        if entry.remote is not None:
            return
        manifest = self._placement.manifest
        key = self._begin(segment_id, entry.footer.sealed_at)
        self._attempts[segment_id] += 1
        attempts = self._attempts[segment_id]
        try:
            etag = self._copies.upload(entry, key)  # without the lock: readers must not wait for the network
        except (OSError, QuiverError) as error:
            self._upload_failed(segment_id, key, error)
            raise
        with self._lock:
            entry = self._placement.entries.get(segment_id)
            if entry is None:  # retired meanwhile
                manifest.write([key_record(Event.TIER2_DELETE_QUEUED, segment_id, key, manifest.now_ms)])
                return
            remote = RemoteCopy(key, etag, entry.warm_bytes, manifest.now_ms)
            self._placement.note(
                [self._placement.event(Event.UPLOAD_DONE, entry, key, etag)], replace(entry, remote=remote)
            )
            self._placement.succeeded(Event.UPLOAD_FAILED, segment_id)
        self._report_uploaded(entry, key, attempts)

    def _report_uploaded(self, entry: TierEntry, key: str, attempts: int) -> None:
        self._counts.uploads += 1
        self.problem = ""
        self._attempts.pop(entry.segment_id, None)
        self._uploaded()
        report_move(
            self._observer, "tier2_upload_success", entry, attempts=attempts, object_key=key,
            compressed_bytes=entry.warm_bytes, original_bytes=entry.original_bytes,
        )  # fmt: skip

    def _begin(self, segment_id: int, sealed_at: int) -> str:
        key = object_key(self._stream_id, segment_id, sealed_at)
        manifest = self._placement.manifest
        with self._lock:
            if manifest.state.uploads.get(segment_id) != key:  # from here on there may be an object
                manifest.write([key_record(Event.UPLOAD_STARTED, segment_id, key, manifest.now_ms)])
        self._counts.upload_attempts += 1
        return key

    def upload_file(self, sealed: SealedSegment) -> TierEntry | None:
        """
        Upload a segment from its file; return None if it was retired meanwhile.

        Raises:
            OSError, QuiverError: the upload failed; try again.
        """
        manifest, segment_id = self._placement.manifest, sealed.segment_id
        view = self._verified_file(sealed)
        key = self._begin(segment_id, sealed.footer.sealed_at)
        self._attempts[segment_id] += 1
        attempts = self._attempts[segment_id]
        try:
            made = self._copies.upload_segment(sealed, view, key, manifest.now_ms)
        except (OSError, QuiverError) as error:
            self._upload_failed(segment_id, key, error)
            raise
        with self._lock:
            if self._catalog.get(segment_id) is None:
                manifest.write([key_record(Event.TIER2_DELETE_QUEUED, segment_id, key, manifest.now_ms)])
                return None
            entry = self._placement.entry_of(sealed)
            if entry is not None and entry.has_warm:
                if (entry.warm_bytes, entry.warm_crc64) != (made.warm_bytes, made.warm_crc64):
                    self._again(0.0)
                    return entry  # it was packed meanwhile, with other bytes: the packed file is uploaded next
                made = replace(entry, remote=made.remote)
            etag = made.remote.etag if made.remote else None
            made = self._placement.note([self._placement.event(Event.UPLOAD_DONE, made, key, etag)], made)
            self._placement.succeeded(Event.UPLOAD_FAILED, segment_id)
        self._report_uploaded(made, key, attempts)
        return made

    def _verified_file(self, sealed: SealedSegment) -> memoryview:
        try:
            return self._verified(sealed)
        except CorruptionError as damaged:
            self.damaged[sealed.segment_id] = damaged
            self._uploaded()  # wake the callers that wait for it
            raise

    def _upload_failed(self, segment_id: int, key: str, error: Exception) -> None:
        self._counts.upload_failures += 1
        self.problem = str(error)
        with self._lock:
            sealed, entry = self._catalog.get(segment_id), self._placement.entries.get(segment_id)
            if sealed is None:
                return
            self._placement.failed(Event.UPLOAD_FAILED, sealed, error, key)
            if (
                entry is not None
                and isinstance(error, CorruptionError)
                and segment_id not in self._placement.without_file
            ):
                # The packed file is not what was written. The segment's own is: the next turn has something to upload.
                self._with_valid_copy(sealed, entry)

    def trim_warm(self) -> None:
        """Remove packed files above their limit, the oldest first, each after its object was read back."""
        limit = self._config.warm_max_bytes
        if limit is None:
            return
        with self._lock:
            warm = sorted(
                (one for one in self._placement.entries.values() if one.has_warm), key=lambda one: one.segment_id
            )
        total = sum(one.warm_bytes for one in warm)
        self.unreachable = False
        for entry in warm:
            if total <= limit or self.unreachable:
                return
            # A file that is not uploaded yet stays.
            if entry.remote is not None and self._try_step(partial(self._drop_warm, entry)):
                total -= entry.warm_bytes

    def _drop_warm(self, entry: TierEntry) -> None:
        try:
            self._copies.check_object(entry)  # without the lock, as above
        except CorruptionError as damaged:
            if self._copies.warm_problem(entry) is None:
                with self._lock:
                    if self._placement.entries.get(entry.segment_id) == entry:
                        self.invalidate_object(entry, damaged)
            raise
        with self._lock:
            if self._placement.entries.get(entry.segment_id) != entry:
                return  # retired or hydrated meanwhile
            evicted = self._placement.event(Event.LOCAL_EVICTED, entry, entry.warm_bytes)
            self._placement.note([evicted], replace(entry, has_warm=False))
            self._copies.remove_warm(entry)

    def invalidate_object(self, entry: TierEntry, damaged: CorruptionError) -> TierEntry:
        """
        Invalidate a damaged object, so that it is uploaded again. Call it with the lock held.

        Raises:
            OSError: the manifest cannot be written; the object is still considered valid.
        """
        key = entry.remote.object_key if entry.remote else ""
        self._observer.event(
            "aof.tier2_object_damaged", level=logging.WARNING, segment=entry.segment_id, problem=damaged.reason
        )
        # There may still be an object; it is deleted with its segment.
        started = key_record(Event.UPLOAD_STARTED, entry.segment_id, key, self._placement.manifest.now_ms)
        self._again(0.0)
        return self._placement.note([started], replace(entry, remote=None))

    def delete(self) -> None:
        """
        Delete the objects that are queued for deletion.

        Raises:
            OSError, QuiverError: the first error; the deletion is retried.
        """
        manifest = self._placement.manifest
        with self._lock:
            waiting = list(manifest.state.deletes.items()) if self._copies.has_objects else []
        for key, segment_id in waiting:
            try:
                self._copies.delete(key)
            except (OSError, QuiverError):
                self._counts.delete_failures += 1
                raise
            with self._lock:
                manifest.write([key_record(Event.TIER2_DELETED, segment_id, key, manifest.now_ms)])
            self._counts.deletes += 1
            self._observer.event("aof.tier2_delete_success", segment=segment_id, object_key=key)
