"""Where the copies of a log's sealed segments are, according to the manifest log and the disk."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace

from quiver.aof.format.manifest_record import Event, ManifestRecord
from quiver.aof.format.names import (
    SEGMENTS,
    WARM,
    SegmentName,
    object_folder,
    parse_warm_name,
)
from quiver.aof.format.tier_entry import Residency, TierEntry
from quiver.aof.reading.catalog import Catalog, SealedSegment
from quiver.aof.reading.manifest import ManifestLog
from quiver.aof.tiers.copies import Copies
from quiver.aof.tiers.object_listing import ListedObjects, list_objects
from quiver.aof.tiers.state import ALL_SEGMENTS, entry_record, key_record
from quiver.clock import Clock
from quiver.errors import CorruptionError
from quiver.observe import Observer
from quiver.primitives.disk.atomic import TEMPORARY_SUFFIX, remove_durably
from quiver.primitives.disk.file_system import FileSystem

__all__ = ["Placement"]


class Placement:
    """
    The entries of the manifest log, and the segments without a file. One thread at a time.

    Args:
        catalog: all sealed segments; those without a file are added to it.

    Attributes:
        manifest: the manifest log, to which changes are written.
        without_file: ids of segments without a local file.
    """

    def __init__(
        self,
        catalog: Catalog,
        copies: Copies,
        fs: FileSystem,
        root: str,
        *,
        stream_id: int,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._catalog = catalog
        self._copies = copies
        self._fs = fs
        self._stream_id = stream_id
        self._observer = observer
        self._segments = f"{root}/{SEGMENTS}"
        self._warm = f"{root}/{WARM}"
        self.manifest = ManifestLog(fs, root, stream_id, clock=clock, observer=observer)
        self.without_file: set[int] = set()
        self._failing: set[tuple[Event, int]] = set()

    def reconcile(self, below: int) -> None:
        """
        Reconcile the manifest with the disk. *below* is the id of the first unsealed segment.

        Raises:
            ObjectsUnavailableError: the manifest was lost, and the objects cannot be listed; try again.
            OSError: the disk failed.
        """
        for segment_id, entry in list(self.entries.items()):
            if segment_id >= below:
                continue  # not part of the recovered log: readers never reach it
            sealed = self._catalog.get(segment_id)
            if sealed is not None and (sealed.header, sealed.footer) != (entry.header, entry.footer):
                # Recovery found its file damaged and sealed the rest. The copy was verified.
                self._catalog.remove(segment_id)
                remove_durably(self._fs, [sealed.path])
                sealed = None
            if sealed is None:
                self._catalog.add(self._sealed(entry))
                self.without_file.add(segment_id)
            here = self._copies.warm_bytes(entry) == entry.warm_bytes
            self.entries[segment_id] = replace(entry, has_warm=here)
        for name in self._copies.warm_names():
            self._settle_warm(name, below)
        uploads = self.manifest.state.uploads
        if below and (self.manifest.damaged or self.manifest.is_new or ALL_SEGMENTS in uploads):
            # The mark stays until the objects were listed. The next write begins a chunk with the mark; without that
            # chunk the manifest is as lost as before.
            uploads[ALL_SEGMENTS] = object_folder(self._stream_id)
            self.find_objects(below)

    def find_objects(self, below: int) -> ListedObjects:
        """
        Register objects that the manifest does not know, because it was lost or damaged.

        Raises:
            ObjectsUnavailableError: the objects cannot be listed; try again.
            OSError: the disk failed.
        """
        deletes, uploads = self.manifest.state.deletes, self.manifest.state.uploads
        if not self._copies.has_objects:
            return ListedObjects()

        def wanted(segment_id: int, key: str) -> bool:
            if segment_id >= below or key in deletes:
                return False
            entry = self.entries.get(segment_id)
            if entry is not None:  # the manifest may be outdated
                return segment_id in self.without_file and entry.remote is None and not entry.has_warm
            return self._catalog.get(segment_id) is None or uploads.get(segment_id) != key

        now_ms = self.manifest.now_ms
        found = list_objects(self._copies, self._stream_id, now_ms=now_ms, wanted=wanted)
        for damaged in found.damaged:
            self._report_damaged(damaged.path, damaged)
        for entry in found.entries.values():
            if self._catalog.get(entry.segment_id) is None:
                self._catalog.add(self._sealed(entry))
                self.without_file.add(entry.segment_id)
                self.note([], entry)
            elif entry.segment_id in self.entries:
                self.note([], entry)
            elif entry.remote is not None:
                # The segment has its file. Its object is removed with it, or replaced by the next upload.
                key = entry.remote.object_key
                self.manifest.write([key_record(Event.UPLOAD_STARTED, entry.segment_id, key, now_ms)])
        if ALL_SEGMENTS in uploads:
            folder = uploads[ALL_SEGMENTS]
            self.manifest.write([ManifestRecord(Event.UPLOAD_DONE, ALL_SEGMENTS, 0, now_ms, (folder, None))])
        return found

    def _settle_warm(self, name: str, below: int) -> None:
        parsed = parse_warm_name(name)
        path = f"{self._warm}/{name}"
        if name.endswith(TEMPORARY_SUFFIX):
            remove_durably(self._fs, [path])
        elif parsed is not None and parsed[0] not in self.entries:
            if self._catalog.get(parsed[0]) is not None or parsed[0] >= below:
                remove_durably(self._fs, [path])  # packed but not registered: it will be packed again
                return
            try:
                entry = self._copies.entry_of_file(name)
            except CorruptionError as error:
                self._report_damaged(path, error)
                return
            self._catalog.add(self._sealed(entry))
            self.without_file.add(entry.segment_id)
            self.note([], entry)

    def _report_damaged(self, path: str, error: CorruptionError) -> None:
        self._observer.event("aof.tiers.damaged", level=logging.WARNING, path=path, problem=str(error))

    def _sealed(self, entry: TierEntry) -> SealedSegment:
        header = entry.header
        name = SegmentName(header.segment_index, header.base_offset, header.created_at)
        return SealedSegment(f"{self._segments}/{name}", header, entry.footer)

    # ---- the manifest

    @property
    def entries(self) -> dict[int, TierEntry]:
        """Segment id → its copies, for segments that have any."""
        return self.manifest.state.entries

    def entry_of(self, sealed: SealedSegment) -> TierEntry | None:
        """Return the copies of a segment. After a loss of data, an entry may describe an earlier segment of that id."""
        entry = self.entries.get(sealed.segment_id)
        if entry is None or entry.footer.sealed_at != sealed.footer.sealed_at:
            return None
        return entry if entry.footer.durable_bytes == sealed.footer.durable_bytes else None

    def residency(self, entry: TierEntry) -> Residency:
        """Return where a reader finds the segment."""
        if entry.segment_id not in self.without_file:
            return "resident_in_tier0"
        if entry.has_warm:
            return "staged_for_tier0"
        if entry.remote is None or entry.residency == "needs_recovery":  # the last fetch found it missing or damaged
            return "needs_recovery"
        return "uploaded_to_tier2"

    def note(self, events: list[ManifestRecord], entry: TierEntry) -> TierEntry:
        """
        Write *events* and the new *entry* to the manifest, durably; return the entry as written.

        Raises:
            OSError: the disk failed; nothing was recorded.
        """
        entry = replace(entry, residency=self.residency(entry))
        self.manifest.write([entry_record(entry.segment_id, entry, self.manifest.now_ms), *events])
        return entry

    def event(self, kind: Event, entry: TierEntry, *fields: int | str | None) -> ManifestRecord:
        """Return a record of an event of a segment, with the present time."""
        return ManifestRecord(kind, entry.segment_id, entry.header.base_offset, self.manifest.now_ms, fields)

    def packing(self, entry: TierEntry, began_ms: int) -> list[ManifestRecord]:
        """Return the history of a packed segment: opened, sealed, and packed since *began_ms*."""
        header, footer = entry.header, entry.footer
        opened_ms, sealed_ms = header.created_at // 1_000_000, footer.sealed_at // 1_000_000
        return [
            replace(self.event(Event.SEGMENT_OPENED, entry, header.base_offset, 0), timestamp_ms=max(0, opened_ms)),
            replace(
                self.event(
                    Event.SEAL_SEGMENT, entry, footer.durable_bytes, footer.checksum, footer.ext_id,
                    footer.coordinator_watermark, int(footer.flush_failure),
                ),
                timestamp_ms=max(0, sealed_ms),
            ),
            replace(self.event(Event.COMPRESSION_STARTED, entry, 0), timestamp_ms=began_ms),
            self.event(Event.COMPRESSION_DONE, entry, entry.warm_bytes, 0),
        ]  # fmt: skip

    def failed(self, kind: Event, sealed: SealedSegment, error: Exception, *rest: str) -> None:
        """Record the first of consecutive failures of a step. Nothing depends on it, so disk errors are ignored."""
        failure = (kind, sealed.segment_id)
        if failure in self._failing:
            return
        self._failing.add(failure)
        reason = (error.errno or 0) if isinstance(error, OSError) else 0
        with contextlib.suppress(OSError):
            record = ManifestRecord(
                kind, sealed.segment_id, sealed.header.base_offset, self.manifest.now_ms, (reason, *rest)
            )
            self.manifest.write([record])

    def succeeded(self, kind: Event, segment_id: int) -> None:
        """Record the success of a step, so that its next failure is recorded again."""
        self._failing.discard((kind, segment_id))
