"""
Readers of a log: from any record on, across sealed and unsealed segments, with every checksum verified.

A reader takes no lock while it iterates: it looks up a segment and its readable end, and reads up to there. It knows
its place in the complete log, so it never skips records silently::

    the next segment begins at its place ─▶ continue
    it begins later                      ─▶ the records between them are lost: report the range once
    a record is damaged                  ─▶ search the next intact record, and report the range once
    no copy of a segment can be read     ─▶ report the segment as lost, and continue with the next one
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from quiver.aof.format.record import RECORD_HEAD, RECORD_HEAD_BYTES, join_record_id, split_record_id
from quiver.aof.format.segment_file import FOOTER_BYTES, HEADER_BYTES
from quiver.aof.format.sparse_index import IndexMark
from quiver.aof.reading.resume import resume_after
from quiver.aof.reading.search import begins_at, unknown_record
from quiver.aof.reading.source import Extent, LogPosition, ReadableSegment, ReadableSegments, Record
from quiver.errors import CorruptionError, DataLossError, ObjectsUnavailableError, UnknownRecordError, UsageError
from quiver.invariant import invariant
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.checksum import crc64_nvme_function

if TYPE_CHECKING:
    from quiver.aof.reading.batch import RecordRun

__all__ = ["OnDamage", "OnLost", "Reader"]

OnDamage = Literal["raise", "skip"]
OnLost = Literal["raise", "skip"]

_HALF = 0xFFFF_FFFF


class Reader:
    """
    Reads records in order. An iteration ends at the present end of the log; the next one continues there.

    After a `DataLossError` the reader continues after the lost range.

    Args:
        start: the first record to read: its id, the id of the place after the last record, or a `LogPosition`. 0 is
            the first available record.
        views: return payloads as views of the mapped file: nothing is copied, and the file stays mapped while a view
            exists.
        durable_only: read only synced records.
        on_damage: as *on_lost*, for damaged records; defaults to *on_lost*.
        on_lost: `raise` DataLossError once for each lost range, or `skip` the range and add it to `lost`.
        observer: counts lost records.

    Raises:
        UsageError: *on_damage* or *on_lost* has another value.
    """

    def __init__(
        self,
        sources: ReadableSegments,
        start: int | LogPosition,
        *,
        views: bool = False,
        durable_only: bool = False,
        on_damage: OnDamage | None = None,
        on_lost: OnLost = "raise",
        observer: Observer | None = None,
    ) -> None:
        for name, value in (("on_damage", on_damage or on_lost), ("on_lost", on_lost)):
            if value not in ("raise", "skip"):
                raise UsageError(f"{name}={value!r} is neither raise nor skip")
        self._sources = sources
        self._views = views
        self._durable_only = durable_only
        self._on_damage = on_damage or on_lost
        self._on_lost = on_lost
        self._observer = observer or InMemoryObserver()
        self.skipped = 0
        """How many records were skipped. A range with an unknown number of records counts as one."""
        self.lost: list[tuple[int, int]] = []
        """The skipped ranges: the id of the first lost record, and the position where the reader continued."""
        self._segment_id, self._offset = self._start = split_record_id(start if isinstance(start, int) else start[0])
        self._has_begun = False
        self._current: ReadableSegment | None = None
        self._is_done = False
        """The segment at the position has no more records."""
        self._losses = 0
        """How many ranges of the current segment were reported."""
        self._base: int | None = None
        """Bytes of the log before the current segment; None: unknown."""
        self._count: int | None = None
        """Records of the log before the position; None: unknown."""
        self._locate(start)

    def _locate(self, start: int | LogPosition) -> None:
        """Locate the position in the log now, because its segment may be removed before it is read."""
        if isinstance(start, LogPosition):
            self._base, self._count = start.log_bytes - max(self._offset, HEADER_BYTES), start.record_count
        elif start:
            extent = self._sources.extent(self._segment_id)
            self._base = None if extent is None else extent.base_offset
            self._count = None if extent is None or self._offset > HEADER_BYTES else extent.base_record_count

    @property
    def position(self) -> int:
        """The id of the next record, if that is in the current segment."""
        return self._segment_id << 32 | self._offset

    def __iter__(self) -> Iterator[Record]:
        while (source := self._source()) is not None:
            yield from self._walk(source)
            if not self._moved_on(source):
                return

    def runs(self, *, records_max: int = 65_536) -> Iterator[RecordRun]:
        """
        Yield the records from the position on in runs of up to *records_max*: columns, and the places of payloads.
        Needs numpy.

        Raises:
            DataLossError: records after the last run are lost or damaged, and not to be skipped.
        """
        batch: Any = importlib.import_module("quiver.aof.reading.batch")  # imports numpy and Arrow only when used
        while (source := self._source()) is not None:
            while self._offset < source.end:
                run, end, damage = batch.read_run(source, self._offset, records_max=records_max)
                self._offset = end
                self._add_to_count(len(run))
                if len(run):
                    yield run
                if damage is not None:
                    self._skip_damage(source, damage.offset, damage.reason)
            if not self._moved_on(source):
                return

    def probe(self) -> None:
        """
        Look up the segment at the position without reading it.

        Raises:
            WouldBlockError: it is being hydrated, and this reader does not wait.
        """
        with contextlib.suppress(CorruptionError):  # iterating raises it
            self._sources.source(self._segment_id, durable_only=self._durable_only)

    def report_lost_segments(self, first: int, end: int) -> None:
        """
        Report that the segments from id *first* to before *end* were removed before a follower read them.

        Raises:
            DataLossError: unless this reader skips lost records.
        """
        if self._on_lost == "raise":
            reason = f"the segments from {first} on are gone; the follower goes on with {end}"
            raise DataLossError(self._sources.directory, 0, reason)

    # ---- from segment to segment

    def _source(self) -> ReadableSegment | None:
        """
        Return the segment at the position, or the next readable one; None when there is none yet.

        Raises:
            DataLossError: records between them are lost; the next call continues after them.
        """
        while self._current is None:
            found, problem = self._look_up()
            if found is not None:
                return self._enter(found)
            extent = None if self._is_done else self._sources.extent(self._segment_id)
            if extent is not None and problem is None:
                found, problem = self._look_up()  # it may have been created between the two calls
                if found is not None:
                    return self._enter(found)
            if extent is not None or problem is not None:
                self._skip_segment(extent, problem)
                continue
            following = self._sources.next_segment_id(self._segment_id)
            if following is None:
                return None
            self._go_to(following)
        return self._current

    def _look_up(self) -> tuple[ReadableSegment | None, CorruptionError | None]:
        if self._is_done:
            return None, None
        try:
            return self._sources.source(self._segment_id, durable_only=self._durable_only), None
        except CorruptionError as damage:
            return None, damage

    def _enter(self, source: ReadableSegment) -> ReadableSegment:
        extent = source.extent
        if not self._has_begun and source.complete and self._offset > source.end:
            raise unknown_record(source, self._offset)
        self._has_begun = True
        self._base = extent.base_offset
        if self._offset <= HEADER_BYTES:
            self._offset, self._count = HEADER_BYTES, extent.base_record_count
        if source.complete:
            self._current = source  # looked up once: a damaged copy must not be unpacked for each of its records
        return source

    def _moved_on(self, source: ReadableSegment) -> bool:
        if not source.complete or self._offset < source.end:
            return False
        self._is_done, self._current = True, None
        extent = source.extent
        if extent.base_record_count is not None and extent.record_count is not None:
            self._count = extent.base_record_count + extent.record_count
        if source.problem and not self._losses:
            # All checksums match, but they do not cover timestamps and ext_ids.
            self._report(self.position, 0, source.path, 0, f"{source.problem}; times may be wrong", is_damage=True)
        following = self._sources.next_segment_id(self._segment_id)
        if following is None:
            return False
        self._go_to(following)
        return True

    def _go_to(self, following: int) -> None:
        """Move the position to the beginning of segment *following*, and report lost records before it."""
        invariant(following > self._segment_id, "a reader never moves to an earlier segment")
        extent = self._sources.extent(following)
        if extent is None:
            return  # it was removed meanwhile
        place = None if self._base is None else self._base + self._offset
        if self._has_begun or place is not None:
            # The footer after the end of a segment counts as bytes of the log.
            follows = place is None or extent.base_offset in (place, place + FOOTER_BYTES)
        else:
            follows = not any(self._start)
            if not follows and self._on_lost == "raise":
                raise UnknownRecordError(
                    f"no record {self.position}: segment {self._segment_id} is missing; the log continues with record "
                    f"{join_record_id(following, HEADER_BYTES)}, and a reader with on_lost='skip' begins there"
                )
        first, count = self.position, self._count
        self._has_begun, self._is_done, self._losses, self._current = True, False, 0, None
        self._segment_id, self._offset = following, HEADER_BYTES
        self._base, self._count = extent.base_offset, extent.base_record_count
        if not follows:
            lost = None if count is None or self._count is None else max(self._count - count, 1)
            self._report(first, lost, self._sources.directory, 0, "no segment has them", is_damage=False)

    def _skip_segment(self, extent: Extent | None, problem: CorruptionError | None) -> None:
        """Skip the rest of the current segment: it has no file, or no copy of it can be read."""
        first, count, began_at = self.position, self._count, self._offset
        self._has_begun, self._is_done, self._losses = True, True, 0
        end = None if extent is None else extent.end
        self._base = None if extent is None or end is None else extent.base_offset
        self._offset = began_at if end is None else max(began_at, end)
        if extent is None or extent.base_record_count is None or extent.record_count is None:
            self._count = None
        else:
            self._count = extent.base_record_count + extent.record_count
        if end is not None and began_at >= end:
            return  # it was read completely
        if count is None and extent is not None and began_at <= HEADER_BYTES:
            count = extent.base_record_count
        lost = None if count is None or self._count is None else max(self._count - count, 1)
        resume = self.position
        if end is None:  # its end is unknown: all before the next one is lost
            following = self._sources.next_segment_id(self._segment_id)
            resume = join_record_id(self._segment_id + 1 if following is None else following, HEADER_BYTES)
        if problem is None:
            reason = f"segment {self._segment_id} has no file"
            self._report(first, lost, self._sources.directory, 0, reason, is_damage=False, resume=resume)
        else:
            self._report(first, lost, problem.path, problem.offset, problem.reason, is_damage=True, resume=resume)

    # ---- within a segment

    def _walk(self, source: ReadableSegment) -> Iterator[Record]:
        view = source.view
        end = source.end
        limit = source.limit
        base = source.segment_id << 32
        offset = self._offset
        views = self._views
        unpack = RECORD_HEAD.unpack_from
        crc = crc64_nvme_function()
        new = tuple.__new__
        count = 0
        try:
            while offset < end:
                start = offset + RECORD_HEAD_BYTES
                if start <= limit:
                    length, checksum, timestamp, ext_id = unpack(view, offset)
                    stop = start + length
                    if stop <= limit and length:
                        payload: bytes | memoryview = view[start:stop] if views else view[start:stop].tobytes()
                        value = crc(payload)
                        if (value >> 32) ^ (value & _HALF) == checksum:
                            self._offset = stop
                            count += 1
                            yield new(Record, (base | offset, timestamp, ext_id, payload))
                            offset = stop
                            continue
                        problem = "checksum mismatch"
                    else:
                        problem = f"a record of {length} bytes does not fit"
                else:
                    problem = "no record begins here"
                self._add_to_count(count)
                count = 0
                self._skip_damage(source, offset, problem)
                offset = self._offset
        finally:
            self._add_to_count(count)

    def _add_to_count(self, count: int) -> None:
        if self._count is not None:
            self._count += count

    def _skip_damage(self, source: ReadableSegment, offset: int, reason: str) -> None:
        """Skip the damaged record at *offset*, and continue with the next intact one."""
        is_start = (source.segment_id, offset) == self._start
        if is_start and not source.problem and not begins_at(self._sources, source, offset):
            raise unknown_record(source, offset)
        before, total = source.extent.base_record_count, source.extent.record_count
        records_max = None
        if before is not None and total is not None and self._count is not None:
            records_max = max(0, before + total - self._count - 1)
        resumed = resume_after(source, offset, _known_marks(self._sources, source), records_max=records_max)
        invariant(resumed.offset > offset, "a reader continues after the damage that it reports")
        self._offset = resumed.offset
        self._losses += 1
        if resumed.lost is not None:
            self._add_to_count(resumed.lost)
        elif resumed.records is not None and before is not None and total is not None:
            self._count = before + total - resumed.records
        else:
            self._count = None
        first = join_record_id(source.segment_id, offset)
        self._report(first, resumed.lost, source.path, offset, source.problem or reason, is_damage=True)

    def _report(
        self, first: int, count: int | None, path: str, offset: int, reason: str, *, is_damage: bool,
        resume: int | None = None,
    ) -> None:  # fmt: skip
        """Count the loss from *first* to *resume*, by default the position, and raise it or add it to `lost`."""
        resume = self.position if resume is None else resume
        records = 1 if count is None else count
        if records:
            self._observer.count("aof_records_lost_total", records, kind="damaged" if is_damage else "gone")
        if (self._on_damage if is_damage else self._on_lost) == "skip":
            self._observer.event(
                "aof.records_lost", level=logging.WARNING, path=path, first=first, end=resume, reason=reason
            )
            if records:
                self.skipped += records
                self.lost.append((first, resume))
            return
        if not records:
            raise DataLossError(path, offset, f"{reason}; the reader continues at {resume}")
        what = f"records from {first} on are" if count is None else f"{count} records from {first} on are"
        if count == 1:
            what = f"record {first} is"
        raise DataLossError(path, offset, f"{what} lost ({reason}); the reader continues at {resume}")


def _known_marks(sources: ReadableSegments, source: ReadableSegment) -> Sequence[IndexMark]:
    with contextlib.suppress(CorruptionError, ObjectsUnavailableError, OSError):
        return sources.marks(source.segment_id) if source.complete else ()
    return ()
