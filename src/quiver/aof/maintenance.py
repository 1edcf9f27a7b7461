"""
What the disk has to do for one log beside flushing, in this order: retire the segment that is old or waited for, throw
away and make spares, seal what is retired, note how far things are durable, remove expired segments. One thread at a
time; every step may fail and is tried again later.

Sealing, and what a crash in between leaves::

    1 sync the records        records without a footer: sealed by recovery
    2 store the footer, sync  a footer that the pointer does not vouch for: verified record by record at recovery
    3 replace the pointer     temporary file, sync, rename, sync of the directory: the old pointer or the new one
    4 let the next one in     the segment is finalized
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from quiver.aof.append.flush import Flusher
from quiver.aof.append.segment import Segment, allocate
from quiver.aof.append.segment_queue import OVERHEAD_BYTES
from quiver.aof.append.tail import Tail
from quiver.aof.compaction import HeadTrim
from quiver.aof.config import AofConfig
from quiver.aof.expiry import Leaving
from quiver.aof.format.durability import SegmentDurability, encode_durability
from quiver.aof.format.names import (
    ARCHIVE,
    DURABILITY,
    POINTER_NAME,
    SEGMENTS,
    archive_name,
    durability_name,
    spare_name,
)
from quiver.aof.format.sealed_pointer import SealedPointer, encode_pointer
from quiver.aof.reading.catalog import Catalog, SealedSegment
from quiver.aof.reading.index import SparseIndexes
from quiver.aof.tiers.copies import Copies
from quiver.clock import Clock
from quiver.errors import StoreFailedError
from quiver.observe import Observer
from quiver.primitives.disk.atomic import remove_durably, replace_file
from quiver.primitives.disk.disk_full import SMALL_FILES_BYTES, is_full_disk, passes, require_room, what_is_short
from quiver.primitives.disk.file_system import FileSystem

__all__ = ["NOTE_AFTER_S", "Upkeep"]

_AGAIN_S = 1.0
NOTE_AFTER_S = 1.0
"""How far the durability snapshot may lag behind."""


class Upkeep:
    """
    Seals, makes spares and retires, for one log.

    Args:
        again: called with the seconds after which this should be tried again.
        fail: makes the log refuse everything from now on, and returns the error that says so.
        wants_sealed: says of the id of the segment that takes records whether somebody waits for its upload.

    Attributes:
        retires: whether expired segments are removed here; where there are tiers, these do it.
        room_for_packing: how much of the disk the tiers need beside a new segment of so many bytes.
    """

    def __init__(
        self,
        tail: Tail,
        flusher: Flusher,
        catalog: Catalog,
        fs: FileSystem,
        config: AofConfig,
        *,
        stream_id: int,
        clock: Clock,
        observer: Observer,
        again: Callable[[float], None],
        fail: Callable[[str], StoreFailedError],
        indexes: SparseIndexes,
        trim: HeadTrim,
        wants_sealed: Callable[[int], bool],
    ) -> None:
        self.seals = 0
        self.retires = True
        self.room_for_packing: Callable[[int], int] = lambda _: 0
        self._tail = tail
        self._flusher = flusher
        self._catalog = catalog
        self._fs = fs
        self._config = config
        self._segments = f"{config.root_dir}/{SEGMENTS}"
        self._archive = f"{config.root_dir}/{ARCHIVE}"
        self._snapshot_path = f"{config.root_dir}/{DURABILITY}/{durability_name(stream_id)}"
        self._clock = clock
        self._observer = observer
        self._again = again
        self._fail = fail
        self._indexes = indexes
        self._trim = trim
        self._wants_sealed = wants_sealed
        self._leaving = Leaving(catalog, config.retention, trim, clock)
        self._seen: tuple[Segment, float] | None = None
        self._lock = threading.RLock()
        self._spare_number = 0
        self._snapshot: bytes | None = None
        self._snapshot_failed = False
        self._snapshot_at_s = float("-inf")
        self._full = ""

    def run(self) -> None:
        """
        Do all that is due. What the disk refuses for lack of room is tried again in a second.

        Raises:
            StoreFailedError: the log cannot go on.
        """
        with self._lock:
            if self._tail.refusal is not None:
                return
            # Spares before seals: a seal takes two syncs, and the writer may be waiting for a segment meanwhile.
            steps = (
                self._retire_early, self._throw_away, self.make_spares, self.seal_pending, self._note_durability,
                self._replace_expired, self._retire_old,
            )  # fmt: skip
            self._full = ""
            for step in steps:
                if not self._done(step):
                    self._again(_AGAIN_S)
            self._note_full()
            if self._config.retention.policy == "time" or self._trim.asks:
                self._again(_AGAIN_S)  # segments grow old by themselves

    def _done(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except OSError as error:
            self._tell(error)
            return False
        return True

    def _tell(self, error: OSError) -> None:
        if passes(error):
            self._full = f"disk full: {error}" if is_full_disk(error) else what_is_short(error, self._segments)
        self._observer.count("aof_upkeep_failed_total")
        self._observer.event("aof.upkeep.failed", level=logging.WARNING, problem=str(error))

    def _note_full(self) -> None:
        """Have appends that are refused say whether the disk is full, and report when that begins and ends."""
        with self._tail.lock:
            before, self._tail.disk_full = self._tail.disk_full, self._full
        if self._full and not before:
            self._observer.event("aof.disk_full", level=logging.ERROR, problem=self._full)
        elif before and not self._full:
            self._observer.event("aof.disk_has_room", level=logging.INFO)

    def _retire_early(self) -> None:
        """Have the segment that takes records sealed when it is old enough, or when somebody waits for its upload."""
        segment, age_max_s = self._tail.segment, self._config.max_segment_age_s
        if segment is None:
            return
        age_s = 0.0 if age_max_s is None else self._age_s(segment)
        is_old = age_max_s is not None and age_s >= age_max_s
        if is_old or self._wants_sealed(segment.segment_id):
            if self._tail.retire_early(segment) or not segment.record_count:
                return
            self._again(_AGAIN_S)
        elif age_max_s is not None:
            self._again(age_max_s - age_s)

    def _age_s(self, segment: Segment) -> float:
        """
        Return for how long a segment has had records: by the wall clock, also while the log was not open, or by the
        other where the wall clock was set back.
        """
        now_s = self._clock.monotonic()
        if not segment.record_count:
            return 0.0
        if self._seen is None or self._seen[0] is not segment:
            self._seen = (segment, now_s)
        return max((self._clock.now_ns() - segment.base_timestamp) / 1e9, now_s - self._seen[1])

    def seal_pending(self) -> None:
        """
        Seal every segment that waits for it, in order.

        Raises:
            OSError: it waits on; try again.
            StoreFailedError: the log cannot go on.
        """
        with self._lock:
            while self._tail.pending:
                segment = self._tail.pending[0]
                try:
                    sealed = self._seal(segment)
                except OSError as error:
                    self._tail.seal_failed(segment, str(error))
                    raise
                self._catalog.add(sealed)
                self._tail.finalized(segment)
                segment.close()
                self.seals += 1
                self._observer.count("aof_segment_rollovers_total")
                self._observer.record("aof_segment_bytes", sealed.end)
                self._observer.event(
                    "aof.tiered_admit_segment", level=logging.DEBUG, segment=segment.segment_id, bytes=segment.max_size
                )

    def _seal(self, segment: Segment) -> SealedSegment:
        self._flusher.sync_segment(segment)
        footer = segment.seal(sealed_at=self._clock.now_ns(), flush_failure=self._tail.flush_failed)
        pointer = SealedPointer(segment.segment_id, footer.coordinator_watermark, footer.durable_bytes)
        try:
            replace_file(self._fs, f"{self._segments}/{POINTER_NAME}", encode_pointer(pointer))
        except OSError as error:
            if passes(error):
                raise
            # The rename may have happened and its sync may not: nobody knows which pointer the disk has.
            raise self._fail(f"the pointer to segment {segment.segment_id} could not be written: {error}") from error
        return SealedSegment(segment.path, segment.header, footer)

    def _throw_away(self) -> None:
        with self._tail.lock:
            unwanted, self._tail.discards = self._tail.discards, []
        for spare in unwanted:
            spare.close()
            with contextlib.suppress(FileNotFoundError):
                self._fs.remove(spare.path)

    def make_first_spares(self) -> None:
        """
        Make the spares with which a log opens. Where there is no room it opens without: what it holds can be read, and
        old segments leave to make some.

        Raises:
            OSError: the disk refused.
        """
        try:
            self.make_spares()
        except OSError as error:
            if not passes(error):
                raise
            self._tell(error)
            self._note_full()
            self._again(_AGAIN_S)

    def make_spares(self) -> None:
        """
        Make the spares that are missing: one at least while nothing takes records.

        Raises:
            OSError: no room, or the disk refused; try again.
        """
        refused: OSError | None = None
        while self._tail.refusal is None:
            need = self._tail.spare_wanted(self._config.preallocate_segments)
            if need is None:
                break
            try:
                self._tail.add_spare(self._spare(need))
            except OSError as error:
                if not is_full_disk(error) or refused is not None or not need:
                    raise
                refused = error  # a large record has no room: smaller ones may have
                self._tail.refuse_need(need)
        if refused is not None:
            raise refused

    def _spare(self, need: int) -> Segment:
        """
        Return a spare with room for *need* bytes: of the size that is due, or the largest that the disk has room for.

        Raises:
            OSError: not even the smallest has room, or the disk refused.
        """
        sizing = self._tail.sizing
        smallest = sizing.smallest(need, OVERHEAD_BYTES)
        size = sizing.for_record(need, OVERHEAD_BYTES)
        free = self._fs.free_bytes(self._segments)  # 0 also where a file system does not say
        while free and smallest < size and free < size + self._room_left(size):
            size //= 2
        require_room(self._fs, self._segments, size, room_left=self._room_left(size))
        while True:
            try:
                return allocate(self._fs, self._spare_path(), size)
            except OSError as error:
                if not is_full_disk(error) or size == smallest:
                    raise
                size //= 2

    def _room_left(self, size: int) -> int:
        return SMALL_FILES_BYTES + self.room_for_packing(size)

    def _spare_path(self) -> str:
        self._spare_number += 1
        return f"{self._segments}/{spare_name(self._spare_number)}"

    def _note_durability(self, *, force: bool = False) -> None:
        with self._tail.lock:
            unsealed = list(self._tail.unsealed())
            rows = [SegmentDurability(one.segment_id, one.size, one.durable) for one in unsealed if one.record_count]
        snapshot = encode_durability(rows)
        if snapshot == self._snapshot:
            return
        now_s = self._clock.monotonic()
        left_s = self._snapshot_at_s + NOTE_AFTER_S - now_s
        if left_s > 0 and not force:
            # This run may have taken the place of the one that the last flush asked for, and nothing else may come.
            self._again(left_s)
            return
        self._write_snapshot(snapshot)
        self._snapshot_at_s = now_s

    def _write_snapshot(self, snapshot: bytes) -> None:
        metrics = self._flusher.metrics
        is_retry = self._snapshot_failed
        if is_retry:
            metrics.metadata_retry_attempts += 1
            self._observer.count("aof_flush_metadata_retry_attempts_total")
        self._snapshot_failed = True
        try:
            replace_file(self._fs, self._snapshot_path, snapshot)
        except OSError:
            if is_retry:
                metrics.metadata_retry_failures += 1
                self._observer.count("aof_flush_metadata_retry_failures_total")
            metrics.metadata_failures += 1
            self._observer.count("aof_flush_metadata_failures_total")
            raise
        self._snapshot_failed = False
        self._snapshot = snapshot

    def _replace_expired(self) -> None:
        """
        Seal a segment without records behind the last one, once that has expired and nothing came behind it.

        The newest sealed segment always stays, because it tells where the log goes on: then it is an empty one.
        """
        newest = self._catalog.all()[-1:]
        if not newest or not newest[0].footer.record_count:
            return
        if self._leaving.newest_is_expired() and self._tail.is_quiet():
            spare = allocate(self._fs, self._spare_path(), self._tail.sizing.smallest(0, OVERHEAD_BYTES))
            if self._tail.end_with_empty(spare):
                self.seal_pending()

    def _retire_old(self) -> None:
        if not self._config.retires or not self.retires or self.packages:
            return  # with tiers a segment has more to it than its file, and they see to all of it
        for segment in self._leaving.segments():
            if self._config.retention.action == "archive":
                name = archive_name(segment.segment_id, segment.footer.sealed_at)
                with contextlib.suppress(FileNotFoundError):  # moved by a pass that could not sync
                    self._fs.rename(segment.path, f"{self._archive}/{name}")
                self._fs.sync_dir(self._archive)
                self._fs.sync_dir(self._segments)
            else:
                remove_durably(self._fs, [segment.path])
            self._retired(segment)

    def _retired(self, segment: SealedSegment) -> None:
        self._catalog.remove(segment.segment_id)
        self._indexes.remove(segment)
        self._observer.count("aof_retention_retired_total", action=self._config.retention.action)

    @property
    def packages(self) -> bool:
        """Whether segments that leave are packed into the archive."""
        return self.retires and self._config.retires and self._config.retention.action == "package"

    def package_old(self) -> None:
        """
        Pack the segments that are to leave into the archive. Apart from the rest: a producer never waits for it.

        Raises:
            CorruptionError: one is not what was sealed; it stays.
            OSError: no room, or the disk refused; try again.
        """
        if not self.packages or self._tail.refusal is not None:
            return
        copies = Copies(self._fs, self._archive, objects=None)
        for segment in self._leaving.segments():
            # The packed file is durable, and was compared with the segment, before that goes. If we crash here, both
            # are there, and the segment is packed again under the same name.
            copies.pack(segment, self._catalog.view(segment))
            remove_durably(self._fs, [segment.path])
            self._retired(segment)

    def close(self) -> None:
        """
        Seal what is full, note what is durable, and remove the spares. The tail stays as it is: it goes on later.

        All of that recovery can do as well; what the disk refuses here is told to the observer alone.

        Raises:
            StoreFailedError: the pointer to a sealed segment could not be written.
        """
        with self._lock:
            self._done(self.seal_pending)
            self._done(lambda: self._note_durability(force=True))
            self._done(lambda: self.release(remove=True))

    def release(self, *, remove: bool) -> None:
        """Let go of all files; with *remove* the empty ones are deleted."""
        with self._lock:
            with self._tail.lock:
                tail = self._tail
                empty = [*tail.spares, *tail.discards]
                used = list(tail.unsealed())
                if tail.segment is not None and not tail.segment.record_count:
                    used.remove(tail.segment)
                    empty.append(tail.segment)
                tail.spares.clear()
                tail.discards, tail.pending, tail.segment = [], [], None
            for segment in (*empty, *used):
                segment.close()
            if remove and empty:
                remove_durably(self._fs, [segment.path for segment in empty])
