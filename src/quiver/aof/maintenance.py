"""
The disk work of one log besides flushing, in this order: retire a segment that is old or whose upload is awaited,
remove and make spares, seal retired segments, write the durability snapshot, remove expired segments. One thread at a
time. Every step may fail and is retried later.

The steps of a seal, and what a crash after each leaves::

    1 sync the records          records without a footer: recovery seals the segment
    2 store the footer, sync    a footer that the pointer does not cover: recovery verifies every record
    3 replace the pointer       temporary file, sync, rename, sync of the directory: the old pointer or the new one
    4 activate the next segment the segment is finalized
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence

from quiver.aof.append.flush import Flusher
from quiver.aof.append.segment import Segment, allocate
from quiver.aof.append.segment_queue import OVERHEAD_BYTES
from quiver.aof.append.tail import Tail
from quiver.aof.compaction import HeadTrim
from quiver.aof.config import AofConfig
from quiver.aof.expiry import Expiry
from quiver.aof.format.durability import encode_durability
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

__all__ = ["Maintenance"]

_RETRY_S = 1.0
SNAPSHOT_INTERVAL_S = 1.0
"""The maximum delay of the durability snapshot."""

SNAPSHOT_BYTES = 32 << 20
"""It is written earlier when it lacks so many durable bytes: recovery would have to scan their records one by one."""


class Maintenance:
    """
    Seals segments, makes spares and retires old segments of one log.

    Args:
        again: called with the seconds after which to run again.
        fail: makes the log refuse every call from now on, and returns the error with which it does.
        wants_sealed: returns whether a caller waits for the upload of the active segment, given its id.

    Attributes:
        retires: whether expired segments are removed here; in a log with tiers the tier manager does it.
        room_for_packing: the disk space that the tiers need in addition to a new segment of the given size.
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
        self._expiry = Expiry(catalog, config.retention, trim, clock)
        self._seen: tuple[Segment, float] | None = None
        self._lock = threading.RLock()
        self._spare_number = 0
        self._snapshot: bytes | None = None
        self._snapshot_failed = False
        self._snapshot_at_s = float("-inf")
        self._recorded: dict[int, int] = {}
        self._full = ""

    def run(self) -> None:
        """
        Do all work that is due. A step that fails is retried in a second.

        Raises:
            StoreFailedError: the log cannot continue.
        """
        with self._lock:
            if self._tail.refusal is not None:
                return
            # Spares before seals: a seal takes two syncs, and the writer may be waiting for a segment meanwhile.
            steps = (
                self._retire_early, self._remove_discarded, self.make_spares, self.seal_pending, self._write_durability,
                self._replace_expired, self._retire_old,
            )  # fmt: skip
            self._full = ""
            for step in steps:
                if not self._done(step):
                    self._again(_RETRY_S)
            self._report_disk_full()
            if self._config.retention.policy == "time" or self._trim.has_hook:
                self._again(_RETRY_S)  # segments expire without any call

    def _done(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except OSError as error:
            self._report(error)
            return False
        return True

    def _report(self, error: OSError) -> None:
        if passes(error):
            self._full = f"disk full: {error}" if is_full_disk(error) else what_is_short(error, self._segments)
        self._observer.count("aof_upkeep_failed_total")
        self._observer.event("aof.upkeep.failed", level=logging.WARNING, problem=str(error))

    def _report_disk_full(self) -> None:
        """Pass a full disk on to the errors of blocked appends, and report when that state begins and ends."""
        with self._tail.lock:
            before, self._tail.disk_full = self._tail.disk_full, self._full
        if self._full and not before:
            self._observer.event("aof.disk_full", level=logging.ERROR, problem=self._full)
        elif before and not self._full:
            self._observer.event("aof.disk_has_room", level=logging.INFO)

    def _retire_early(self) -> None:
        """Retire the active segment when it is old enough, or when a caller waits for its upload."""
        segment, age_max_s = self._tail.segment, self._config.max_segment_age_s
        if segment is None:
            return
        age_s = 0.0 if age_max_s is None else self._age_s(segment)
        is_old = age_max_s is not None and age_s >= age_max_s
        if is_old or self._wants_sealed(segment.segment_id):
            if self._tail.retire_early(segment) or not segment.record_count:
                return
            self._again(_RETRY_S)
        elif age_max_s is not None:
            self._again(age_max_s - age_s)

    def _age_s(self, segment: Segment) -> float:
        """
        Return how long a segment has had records: by the wall clock, which counts while the log is closed, or by the
        monotonic clock if the wall clock was set back.
        """
        now_s = self._clock.monotonic()
        if not segment.record_count:
            return 0.0
        if self._seen is None or self._seen[0] is not segment:
            self._seen = (segment, now_s)
        return max((self._clock.now_ns() - segment.base_timestamp) / 1e9, now_s - self._seen[1])

    def seal_pending(self) -> None:
        """
        Seal all pending segments in order.

        Raises:
            OSError: a segment is still pending; try again.
            StoreFailedError: the log cannot continue.
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
            # The rename may have happened without its sync: it is unknown which pointer the disk has.
            raise self._fail(f"the pointer to segment {segment.segment_id} could not be written: {error}") from error
        return SealedSegment(segment.path, segment.header, footer)

    def _remove_discarded(self) -> None:
        with self._tail.lock:
            unwanted, self._tail.discards = self._tail.discards, []
        for spare in unwanted:
            spare.close()
            with contextlib.suppress(FileNotFoundError):
                self._fs.remove(spare.path)

    def make_first_spares(self) -> None:
        """
        Make the first spares of a log. Without disk space it opens without them: its records can be read, and expired
        segments free space.

        Raises:
            OSError: the disk failed.
        """
        try:
            self.make_spares()
        except OSError as error:
            if not passes(error):
                raise
            self._report(error)
            self._report_disk_full()
            self._again(_RETRY_S)

    def make_spares(self) -> None:
        """
        Make the missing spares: at least one while no segment is active.

        Raises:
            OSError: the disk is full or failed; try again.
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
                refused = error  # the disk lacks space for a large record, perhaps not for smaller ones
                self._tail.refuse_need(need)
        if refused is not None:
            raise refused

    def _spare(self, need: int) -> Segment:
        """
        Return a spare with space for *need* bytes: of the preferred size, or the largest for which the disk has space.

        Raises:
            OSError: the disk has no space for the smallest one, or failed.
        """
        sizing = self._tail.sizing
        smallest = sizing.smallest(need, OVERHEAD_BYTES)
        size = sizing.for_record(need, OVERHEAD_BYTES)
        free = self._fs.free_bytes(self._segments)  # 0 if the file system does not report it
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

    def _write_durability(self, *, force: bool = False) -> None:
        with self._tail.lock:
            unsealed = list(self._tail.unsealed())
        is_far_back = self._unrecorded_bytes(unsealed) >= SNAPSHOT_BYTES
        rows = [one.durability() for one in unsealed if one.record_count]
        snapshot = encode_durability(rows)
        if snapshot == self._snapshot:
            return
        now_s = self._clock.monotonic()
        left_s = self._snapshot_at_s + SNAPSHOT_INTERVAL_S - now_s
        if left_s > 0 and not (force or is_far_back):
            # This run may have replaced the one that the last flush scheduled, and no other may follow.
            self._again(left_s)
            return
        self._write_snapshot(snapshot)
        self._snapshot_at_s = now_s
        self._recorded = {row.segment_id: row.durable_bytes for row in rows}

    def snapshot_delay_s(self) -> float:
        """Return in how many seconds the durability snapshot is due, after a flush."""
        with self._tail.lock:
            unsealed = list(self._tail.unsealed())
        return 0.0 if self._unrecorded_bytes(unsealed) >= SNAPSHOT_BYTES else SNAPSHOT_INTERVAL_S

    def _unrecorded_bytes(self, unsealed: Sequence[Segment]) -> int:
        return sum(max(0, one.durable - self._recorded.get(one.segment_id, 0)) for one in unsealed)

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
        Seal an empty segment after the last one, once that has expired and no records follow it.

        The newest sealed segment always stays, because it holds the place where the log continues. Then the empty one
        stays instead.
        """
        newest = self._catalog.all()[-1:]
        if not newest or not newest[0].footer.record_count:
            return
        if self._expiry.newest_is_expired() and self._tail.is_idle():
            spare = allocate(self._fs, self._spare_path(), self._tail.sizing.smallest(0, OVERHEAD_BYTES))
            if self._tail.end_with_empty(spare):
                self.seal_pending()

    def _retire_old(self) -> None:
        if not self._config.retires or not self.retires or self.packages:
            return  # in a log with tiers, the tier manager removes all copies
        for segment in self._expiry.segments():
            if self._config.retention.action == "archive":
                name = archive_name(segment.segment_id, segment.footer.sealed_at)
                with contextlib.suppress(FileNotFoundError):  # moved by an earlier run that could not sync
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
        """Whether segments that leave the log are packed into the archive."""
        return self.retires and self._config.retires and self._config.retention.action == "package"

    def package_old(self) -> None:
        """
        Pack the segments that leave the log into the archive. Runs separately: producers never wait for it.

        Raises:
            CorruptionError: a segment is damaged; it stays.
            OSError: the disk is full or failed; try again.
        """
        if not self.packages or self._tail.refusal is not None:
            return
        copies = Copies(self._fs, self._archive, objects=None)
        for segment in self._expiry.segments():
            # The packed file is durable and compared with the segment before the segment is removed. After a crash here
            # both exist, and the segment is packed again under the same name.
            copies.pack(segment, self._catalog.view(segment))
            remove_durably(self._fs, [segment.path])
            self._retired(segment)

    def close(self) -> None:
        """
        Seal pending segments, write the durability snapshot, and remove the spares. The active segment stays open: the
        log continues in it when it is opened again.

        Recovery can do all of this as well, so errors of the disk are only reported to the observer.

        Raises:
            StoreFailedError: the pointer to a sealed segment could not be written.
        """
        with self._lock:
            self._done(self.seal_pending)
            self._done(lambda: self._write_durability(force=True))
            self._done(lambda: self.release(remove=True))

    def release(self, *, remove: bool) -> None:
        """Close all files; with *remove* the empty ones are deleted."""
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
