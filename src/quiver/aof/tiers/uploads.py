"""
The object side of a log's tiers: what goes up, what may leave the disk because it is there, what is deleted there.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from quiver.aof.catalog import Catalog, SealedSegment
from quiver.aof.config import TierConfig
from quiver.aof.format.manifest_record import Event
from quiver.aof.format.names import object_key
from quiver.aof.format.tier_entry import RemoteCopy, TierEntry
from quiver.aof.tiers.copies import Copies
from quiver.aof.tiers.placement import Placement
from quiver.aof.tiers.snapshot import TierCounts
from quiver.aof.tiers.state import key_record
from quiver.errors import Damaged, QuiverError
from quiver.observe import Observer, Value

__all__ = ["Uploads", "tell_move"]


class Tried(Protocol):
    """
    Does a step, and says whether it went well.
    """

    def __call__(self, step: Callable[[], object], event: str = ...) -> bool:
        """
        Do *step*; *event* is told if it fails.
        """


def tell_move(observer: Observer, event: str, entry: TierEntry, **fields: Value) -> None:
    """
    Tell of a segment that went from one tier to another.
    """
    fields.setdefault("bytes", entry.warm_bytes)
    observer.count("aof_tier_moves_total", kind=event)
    observer.event(f"aof.{event}", level=logging.INFO, segment=entry.segment_id, **fields)


class Uploads:
    """
    Uploads packed segments, trims packed files and deletes objects, for one log. One thread at a time.

    Args:
        lock: over the placement; never held while the network works.
        tried: does a step, and tells of it when it fails.
        sound: returns an entry with a copy that was read, made again if need be.

    Attributes:
        unreachable: the object store did not answer.
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
        tried: Tried,
        sound: Callable[[SealedSegment, TierEntry], TierEntry],
    ) -> None:
        self.unreachable = False
        self._placement = placement
        self._copies = copies
        self._catalog = catalog
        self._config = config
        self._counts = counts
        self._stream_id = stream_id
        self._lock = lock
        self._observer = observer
        self._again = again
        self._tried = tried
        self._sound = sound
        self._attempts: Counter[int] = Counter()

    def upload(self) -> None:
        """
        Upload what is packed and has no object yet, the oldest first.
        """
        self.unreachable = False
        for segment_id in sorted(self._placement.entries) if self._copies.has_objects else ():
            if self.unreachable:
                return  # the next one would wait as long
            self._tried(partial(self._upload_one, segment_id), "tier2_upload_failed")

    def _upload_one(self, segment_id: int) -> None:
        with self._lock:
            entry = self._placement.entries.get(segment_id)
        if entry is None or entry.remote is not None or not entry.has_warm:
            return
        manifest = self._placement.manifest
        key = self._begin(segment_id, entry.footer.sealed_at)
        self._attempts[segment_id] += 1
        attempts = self._attempts[segment_id]
        try:
            etag = self._copies.upload(entry, key)  # without the lock: readers need not wait for a network
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
        self._counts.uploads += 1
        del self._attempts[segment_id]
        tell_move(
            self._observer, "tier2_upload_success", entry, attempts=attempts, object_key=key,
            compressed_bytes=entry.warm_bytes, original_bytes=entry.original_bytes,
        )  # fmt: skip

    def _begin(self, segment_id: int, sealed_at: int) -> str:
        key = object_key(self._stream_id, segment_id, sealed_at)
        manifest = self._placement.manifest
        with self._lock:
            if manifest.state.uploads.get(segment_id) != key:  # from now on there may be an object
                manifest.write([key_record(Event.UPLOAD_STARTED, segment_id, key, manifest.now_ms)])
        self._counts.upload_attempts += 1
        return key

    def upload_file(self, sealed: SealedSegment) -> TierEntry | None:
        """
        Upload a segment from its file, where the disk has no room for a packed one; None when it retired meanwhile.

        Raises:
            OSError, QuiverError: there is no object yet; try again.
        """
        manifest = self._placement.manifest
        key = self._begin(sealed.segment_id, sealed.footer.sealed_at)
        try:
            entry = self._copies.pack_object(sealed, self._catalog.view(sealed), key, manifest.now_ms)
        except (OSError, QuiverError):
            self._counts.upload_failures += 1
            raise
        with self._lock:
            if self._catalog.get(sealed.segment_id) is None:
                manifest.write([key_record(Event.TIER2_DELETE_QUEUED, sealed.segment_id, key, manifest.now_ms)])
                return None
            etag = entry.remote.etag if entry.remote else None
            entry = self._placement.note([self._placement.event(Event.UPLOAD_DONE, entry, key, etag)], entry)
        self._counts.uploads += 1
        tell_move(
            self._observer, "tier2_upload_success", entry, attempts=1, object_key=key,
            compressed_bytes=entry.warm_bytes, original_bytes=entry.original_bytes,
        )  # fmt: skip
        return entry

    def _upload_failed(self, segment_id: int, key: str, error: Exception) -> None:
        self._counts.upload_failures += 1
        with self._lock:
            sealed, entry = self._catalog.get(segment_id), self._placement.entries.get(segment_id)
            if sealed is None or entry is None:
                return
            self._placement.failed(Event.UPLOAD_FAILED, sealed, error, key)
            if isinstance(error, Damaged) and segment_id not in self._placement.away:
                # The packed file is not what was written. The segment's own is: the next turn has something to upload.
                self._sound(sealed, entry)

    def trim_warm(self) -> None:
        """
        Remove packed files above their budget, the oldest first, each once its object was read back.
        """
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
            # One that is not uploaded yet stays.
            if entry.remote is not None and self._tried(partial(self._drop_warm, entry)):
                total -= entry.warm_bytes

    def _drop_warm(self, entry: TierEntry) -> None:
        try:
            self._copies.check_object(entry)  # without the lock, as above
        except Damaged as damaged:
            if self._copies.warm_problem(entry) is None:
                with self._lock:
                    if self._placement.entries.get(entry.segment_id) == entry:
                        self.doubt(entry, damaged)
            raise
        with self._lock:
            if self._placement.entries.get(entry.segment_id) != entry:
                return  # retired, or brought back, meanwhile
            evicted = self._placement.event(Event.LOCAL_EVICTED, entry, entry.warm_bytes)
            self._placement.note([evicted], replace(entry, has_warm=False))
            self._copies.remove_warm(entry)

    def doubt(self, entry: TierEntry, damaged: Damaged) -> TierEntry:
        """
        Take an object out of account that is not what was uploaded, so that it is uploaded again; with the lock held.

        Raises:
            OSError: the manifest cannot be written; it counts as before.
        """
        key = entry.remote.object_key if entry.remote else ""
        self._observer.event(
            "aof.tier2_object_damaged", level=logging.WARNING, segment=entry.segment_id, problem=damaged.reason
        )
        # There may be an object all the same, and it goes with its segment.
        started = key_record(Event.UPLOAD_STARTED, entry.segment_id, key, self._placement.manifest.now_ms)
        self._again(0.0)
        return self._placement.note([started], replace(entry, remote=None))

    def delete(self) -> None:
        """
        Delete the objects that must go.

        Raises:
            OSError, QuiverError: of the first that could not be deleted; tried again.
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
