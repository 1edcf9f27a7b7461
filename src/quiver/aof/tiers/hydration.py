"""Hydration: the files of evicted segments are restored from copies, for readers and manual calls."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from quiver.aof.format.manifest_record import Event
from quiver.aof.format.tier_entry import TierEntry
from quiver.aof.reading.catalog import Catalog, SealedSegment
from quiver.aof.tiers.copies import Copies
from quiver.aof.tiers.hydration_queue import HydrationQueue
from quiver.aof.tiers.packed import PackedSegment, unpack_to
from quiver.aof.tiers.placement import Placement
from quiver.aof.tiers.snapshot import TierCounts
from quiver.aof.tiers.uploads import report_move
from quiver.clock import Clock
from quiver.errors import (
    CapacityError,
    CorruptionError,
    ObjectsUnavailableError,
    QuiverError,
    StoreClosedError,
    UnknownRecordError,
    WouldBlockError,
)
from quiver.observe import Observer
from quiver.primitives.disk.atomic import TEMPORARY_SUFFIX
from quiver.primitives.disk.disk_full import passes
from quiver.primitives.disk.file_system import FileSystem

__all__ = ["Hydration"]


class Hydration:
    """
    Restores the files of evicted segments of one log. Thread-safe.

    Args:
        lock: protects the placement.
        again: called with the seconds after which the tiers should run again.
        back: called when queued segments were hydrated, or could not be.

    Attributes:
        queue: segments to hydrate in the background.
        used: segment → the sequence number of its last read.
        closed: whether the log was closed, so that nothing is hydrated.
    """

    def __init__(
        self,
        catalog: Catalog,
        copies: Copies,
        placement: Placement,
        fs: FileSystem,
        counts: TierCounts,
        *,
        lock: threading.RLock,
        clock: Clock,
        observer: Observer,
        again: Callable[[float], None],
        back: Callable[[], None],
    ) -> None:
        self.queue = HydrationQueue()
        self.used: dict[int, int] = {}
        self.closed = False
        self._catalog = catalog
        self._copies = copies
        self._placement = placement
        self._fs = fs
        self._counts = counts
        self._lock = lock
        self._clock = clock
        self._observer = observer
        self._again = again
        self._back = back
        self._uses = 0

    def view(self, sealed: SealedSegment, *, wait: bool = True) -> memoryview | None:
        """
        Return the bytes of a sealed segment, hydrated if it has no file; None when it was retired.

        If the disk has no space for the file, the bytes are in memory and the segment stays evicted.

        Raises:
            WouldBlockError: it has no file; without *wait* the thread hydrates it.
            CapacityError: the thread could not hydrate it, because the disk had no space.
            CorruptionError: all copies are damaged.
            ObjectsUnavailableError: the only copy is an object, and the store does not answer; try again.
            OSError: the disk cannot be read.
        """
        self._uses += 1
        self.used[sealed.segment_id] = self._uses
        try:
            return self._catalog.view(sealed)
        except FileNotFoundError:
            if wait:
                return self.restore(sealed)
        if self.closed:
            raise StoreClosedError(f"segment {sealed.segment_id} has no file, and the log was closed")
        self.queue.add(sealed.segment_id)
        self._observer.event(
            "aof.tier1_hydration_retry_queued", segment=sealed.segment_id, sealed_at=sealed.footer.sealed_at
        )
        self._again(0.0)
        raise WouldBlockError("hydration", f"segment {sealed.segment_id} is being hydrated")

    def hydrate_queued(self) -> None:
        """Hydrate the queued segments. An error is raised by the next request for the segment."""
        if self.queue.process(self._hydrate_queued):
            self._back()

    def _hydrate_queued(self, segment_id: int) -> None:
        try:
            self.hydrate(segment_id)
        except (OSError, QuiverError) as error:
            how = "unavailable" if isinstance(error, ObjectsUnavailableError) else "failed"
            name = f"aof.tier1_hydration_retry_{how}"
            self._observer.event(name, level=logging.WARNING, segment=segment_id, problem=str(error))
            raise
        if segment_id in self._placement.without_file:
            raise CapacityError(f"no space to hydrate segment {segment_id}; a reader that waits reads it from memory")

    def hydrate(self, segment_id: int) -> None:
        """
        Restore the file of a segment from a copy.

        Raises:
            UnknownRecordError: no such sealed segment exists.
            CorruptionError, ObjectsUnavailableError, OSError: as `view`.
        """
        sealed = self._catalog.get(segment_id)
        if sealed is None or self.view(sealed) is None:
            raise UnknownRecordError(f"no sealed segment {segment_id}")

    def restore(self, sealed: SealedSegment) -> memoryview | None:
        """Hydrate a segment; as `view`, but without counting it as read."""
        with self._lock:
            if self.closed:
                raise StoreClosedError(f"segment {sealed.segment_id} has no file, and the log was closed")
            entry = self._placement.entries.get(sealed.segment_id)
            if self._fs.exists(sealed.path):  # another reader was faster
                return self._catalog.view(sealed)
            if entry is None:
                return None
            began, began_ms = self._clock.monotonic(), self._placement.manifest.now_ms
            source_tier = 1 if entry.has_warm else 2
            try:
                packed, entry = self._readable(entry)
                view = self._write_file(sealed, packed)
            except (CorruptionError, QuiverError):
                self._counts.hydration_failures += 1
                raise
            if view is not None:
                started = self._placement.event(Event.HYDRATION_STARTED, entry, source_tier)
                done = self._placement.event(Event.HYDRATION_DONE, entry, entry.original_bytes)
                with contextlib.suppress(OSError):  # the file exists even if the manifest does not record it
                    self._placement.note([replace(started, timestamp_ms=began_ms), done], entry)
                latency_s = self._clock.monotonic() - began
                self._counts.hydrated(latency_s)
                self._observer.record("aof_hydration_latency_seconds", latency_s)
                report_move(self._observer, "tier1_hydration_success", entry, latency_ms=1000 * latency_s)
                self._again(0.0)
                return view
            return memoryview(b"".join(packed.plain()))

    def _readable(self, entry: TierEntry) -> tuple[PackedSegment, TierEntry]:
        """Return a copy that can be unpacked; fetch an object first."""
        if entry.has_warm:
            problem = "the warm file is missing"
            if self._copies.warm_bytes(entry) == entry.warm_bytes:
                try:
                    return self._copies.verified_warm(entry), entry
                except CorruptionError as damaged:
                    problem = damaged.reason
            entry = self._note_failed(replace(entry, has_warm=False), 1)
            self._failed("tier1_hydration_failed", entry, problem)
        if entry.remote is None:
            path = f"{self._copies.folder}/{entry.warm_name}"
            raise CorruptionError(path, 0, "the only copy of a segment is damaged")
        self._counts.downloads += 1
        try:
            self._copies.fetch(entry)
        except (OSError, QuiverError) as error:
            self._counts.download_failures += 1
            self._failed("tier2_fetch_failed", entry, str(error))
            if isinstance(error, CorruptionError):  # readers and snapshots report it until a fetch succeeds
                self._note_failed(replace(entry, residency="needs_recovery"), 2)
            if not passes(error):
                raise
            return self._copies.open_object(entry), entry
        fetched = replace(entry, has_warm=True)
        path = f"{self._copies.folder}/{entry.warm_name}"
        report_move(self._observer, "tier2_fetch_success", fetched, attempts=1, destination=path)
        done = self._placement.event(Event.HYDRATION_DONE, fetched, 0)
        try:
            return self._copies.open_warm(fetched), self._placement.note([done], fetched)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._copies.remove_warm(fetched)  # unregistered, it would waste space
            if not passes(error):
                raise
            return self._copies.open_object(entry), entry

    def _note_failed(self, entry: TierEntry, reason: int) -> TierEntry:
        return self._placement.note([self._placement.event(Event.HYDRATION_FAILED, entry, reason)], entry)

    def _write_file(self, sealed: SealedSegment, packed: PackedSegment) -> memoryview | None:
        """Write a segment's file from a copy; return None when space or a descriptor is missing."""
        temporary = sealed.path + TEMPORARY_SUFFIX
        try:
            unpack_to(self._fs, temporary, packed, max_size=sealed.header.max_size)
        except OSError as error:
            if passes(error):
                return None
            raise
        self._fs.rename(temporary, sealed.path)
        self._placement.without_file.discard(sealed.segment_id)
        self._fs.sync_dir(sealed.path.rpartition("/")[0])
        return self._catalog.view(sealed)

    def _failed(self, event: str, entry: TierEntry, problem: str) -> None:
        self._observer.event(f"aof.{event}", level=logging.WARNING, segment=entry.segment_id, problem=problem)
