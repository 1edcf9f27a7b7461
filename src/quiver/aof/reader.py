"""
Reading a log: from any record on, across sealed segments and the one that is being written, each checksum verified.

A reader takes no lock while it reads: it looks up a segment, and how far it may read in it, and walks.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from quiver.aof.format.record import RECORD_HEAD, RECORD_HEAD_BYTES, split_record_id
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.aof.format.sparse_index import IndexMark
from quiver.aof.index import before_time
from quiver.aof.notify import Notifier, deadline_of
from quiver.aof.source import Source
from quiver.clock import Clock
from quiver.errors import Damaged, RecordUnknown
from quiver.primitives.checksum import crc64_nvme_function

if TYPE_CHECKING:
    from quiver.aof.batch import RecordRun

__all__ = ["OnDamage", "Reader", "Record", "Sources", "TailFollower", "first_at", "heads", "read_one", "require_place"]

OnDamage = Literal["raise", "skip"]

_HALF = 0xFFFF_FFFF

T = TypeVar("T")


class Record(NamedTuple):
    """
    One record, as it was appended.

    The payload is `bytes`, or a read-only view of the mapped segment where views were asked for.
    """

    record_id: int
    timestamp: int
    ext_id: int
    payload: bytes | memoryview


class Sources(Protocol):
    """
    Where a reader finds segments.
    """

    def source(self, segment_id: int, *, durable_only: bool) -> Source | None:
        """
        Return the segment with that id, as far as it can be read now; None when there is none.
        """

    def next_segment_id(self, segment_id: int) -> int | None:
        """
        Return the lowest id above *segment_id* that a segment has.
        """

    def next_sealed_segment_id(self, segment_id: int) -> int | None:
        """
        Return the lowest id above *segment_id* that a sealed segment has.
        """

    def last_timestamp(self, segment_id: int) -> int | None:
        """
        Return the timestamp of the last record of a sealed segment, without reading it; None for any other.
        """

    def marks(self, segment_id: int) -> Sequence[IndexMark]:
        """
        Return what is known of where records of a sealed segment begin; nothing for any other.
        """

    def stretch(self, segment_id: int, start: int, end: int | None) -> Source | None:
        """
        Return a segment of which only what lies from offset *start* to *end* (None: all) is going to be read.
        """


class Reader:
    """
    The records from one on, in order. Iterating ends where the log ends now; iterating again goes on from there.

    Args:
        start: the id of a record, or of the place behind the last one. The records from it on are read.
        views: payloads are views of the mapped file: nothing is copied, and the file stays mapped while one is kept.
        durable_only: read only what is synced.
        on_damage: `raise` stops at a damaged record; `skip` counts it in `skipped` and goes on behind it, as far as its
            length can be believed.
    """

    def __init__(
        self,
        sources: Sources,
        start: int,
        *,
        views: bool = False,
        durable_only: bool = False,
        on_damage: OnDamage = "raise",
    ) -> None:
        self._sources = sources
        self._views = views
        self._durable_only = durable_only
        self._on_damage = on_damage
        self.skipped = 0
        self._segment_id, self._offset = self._start = split_record_id(start)

    @property
    def position(self) -> int:
        """
        The id that the next record has, if it is in the segment of the last one.
        """
        return self._segment_id << 32 | self._offset

    def __iter__(self) -> Iterator[Record]:
        while (source := self._source()) is not None:
            yield from self._walk(source)
            if not self._moved_on(source):
                return

    def runs(self, *, records_max: int = 65_536) -> Iterator[RecordRun]:
        """
        Yield the records from the position on as runs of up to *records_max*: columns, and where payloads lie. Needs
        numpy.

        Raises:
            Damaged: behind the last run that is yielded a record is not what was written, and `on_damage` is `raise`.
        """
        batch: Any = importlib.import_module("quiver.aof.batch")  # numpy and Arrow only for those who read so
        while (source := self._source()) is not None:
            while self._offset < source.end:
                run, end, damage = batch.read_run(source, self._offset, records_max=records_max)
                self._offset = end
                if len(run):
                    yield run
                if damage is not None:
                    self._damaged(source, damage.offset, damage.reason, batch.behind_record(source, damage))
            if not self._moved_on(source):
                return

    def look(self) -> None:
        """
        Look up the segment at the position, as reading does.

        Raises:
            WouldBlock: it is being brought back, and this reader does not wait.
        """
        self._source()

    def _source(self) -> Source | None:
        """
        Return the segment at the position, or the next one that is there.
        """
        found = self._sources.source(self._segment_id, durable_only=self._durable_only)
        while found is None:
            following = self._sources.next_segment_id(self._segment_id)
            if following is None:
                return None
            self._segment_id, self._offset = following, HEADER_BYTES
            found = self._sources.source(following, durable_only=self._durable_only)
        self._offset = max(self._offset, HEADER_BYTES)
        return found

    def _moved_on(self, source: Source) -> bool:
        if not source.complete or self._offset < source.end:
            return False
        following = self._sources.next_segment_id(self._segment_id)
        if following is None:
            return False
        self._segment_id, self._offset = following, HEADER_BYTES
        return True

    def _walk(self, source: Source) -> Iterator[Record]:
        view = source.view
        end = source.end
        base = source.segment_id << 32
        offset = self._offset
        views = self._views
        unpack = RECORD_HEAD.unpack_from
        crc = crc64_nvme_function()
        new = tuple.__new__
        while offset < end:
            if offset + RECORD_HEAD_BYTES > end:
                self._damaged(source, offset, "no record begins here")
                return
            length, checksum, timestamp, ext_id = unpack(view, offset)
            start = offset + RECORD_HEAD_BYTES
            stop = start + length
            if stop > end or not length:
                self._damaged(source, offset, f"a record of {length} bytes does not fit")
                return
            payload: bytes | memoryview = view[start:stop] if views else view[start:stop].tobytes()
            value = crc(payload)
            if (value >> 32) ^ (value & _HALF) != checksum:
                self._damaged(source, offset, "checksum mismatch", stop)
                offset = stop
                continue
            self._offset = stop
            yield new(Record, (base | offset, timestamp, ext_id, payload))
            offset = stop

    def _damaged(self, source: Source, offset: int, reason: str, behind: int | None = None) -> None:
        if (source.segment_id, offset) == self._start and not _begins_at(self._sources, source, offset):
            raise _unknown(source, offset)
        if self._on_damage == "raise":
            raise Damaged(source.path, offset, reason)
        self.skipped += 1
        self._offset = source.end if behind is None else behind


def read_one(sources: Sources, record_id: int) -> Record:
    """
    Return the record with that id.

    Raises:
        RecordUnknown: none begins there.
        Damaged: it does not have its checksum.
    """
    segment_id, offset = split_record_id(record_id)
    source = sources.source(segment_id, durable_only=False)
    if source is None or not HEADER_BYTES <= offset < source.end:
        raise RecordUnknown(f"no record {record_id}: segment {segment_id} is not there, or ends before {offset}")
    start = offset + RECORD_HEAD_BYTES
    if start > source.end:
        raise _unknown(source, offset)
    length, checksum, timestamp, ext_id = RECORD_HEAD.unpack_from(source.view, offset)
    stop = start + length
    payload = source.view[start:stop].tobytes()
    value = crc64_nvme_function()(payload)
    fits = length > 0 and stop <= source.end
    if not fits or (value >> 32) ^ (value & _HALF) != checksum:
        if not _begins_at(sources, source, offset):
            raise _unknown(source, offset)
        reason = "checksum mismatch" if fits else f"a record of {length} bytes does not fit"
        raise Damaged(source.path, offset, reason)
    return Record(record_id, timestamp, ext_id, payload)


def _unknown(source: Source, offset: int) -> RecordUnknown:
    found = source.segment_id << 32 | offset
    return RecordUnknown(f"no record {found}: none begins at byte {offset} of segment {source.segment_id}")


def _begins_at(sources: Sources, source: Source, offset: int) -> bool:
    """
    Say whether a record of *source* begins at *offset*, as the lengths of those before it have it.
    """
    known = [one.offset for one in sources.marks(source.segment_id) if one.offset <= offset]
    walk = heads(source, max(known, default=HEADER_BYTES))
    return next((found == offset for found, _ in walk if found >= offset), False)


def require_place(sources: Sources, record_id: int) -> None:
    """
    Return when a record begins at that id, or when none lies across it: before the first one, or behind the last.

    Raises:
        RecordUnknown: it is inside a record.
        Damaged, ObjectsUnavailable, WrongUse, OSError: the segment cannot be read.
    """
    segment_id, offset = split_record_id(record_id)
    if offset <= HEADER_BYTES:
        return
    start = max((one.offset for one in sources.marks(segment_id) if one.offset <= offset), default=HEADER_BYTES)
    source = sources.stretch(segment_id, start, offset + RECORD_HEAD_BYTES)
    if source is None:
        return
    for found, _ in heads(source, start):
        if found >= offset:
            return
        length: int = RECORD_HEAD.unpack_from(source.view, found)[0]
        if found + RECORD_HEAD_BYTES + length > offset:
            raise _unknown(source, offset)


def first_at(sources: Sources, timestamp: int) -> int | None:
    """
    Return the id of the first record that is not older than *timestamp*; None when all are older.

    Timestamps never go back within a log, so segments whose last record is older are passed over.
    """
    segment_id = sources.next_segment_id(-1)
    while segment_id is not None:
        last = sources.last_timestamp(segment_id)
        found = None if last is not None and last < timestamp else _first_in(sources, segment_id, timestamp)
        if found is not None:
            return found
        segment_id = sources.next_segment_id(segment_id)
    return None


def _first_in(sources: Sources, segment_id: int, timestamp: int) -> int | None:
    start, behind = before_time(sources.marks(segment_id), timestamp)
    source = sources.stretch(segment_id, start, None if behind is None else behind + RECORD_HEAD_BYTES)
    if source is None or source.last_timestamp < timestamp:
        return None
    for offset, found in heads(source, start):
        if found >= timestamp:
            return segment_id << 32 | offset
    return None


def heads(source: Source, offset: int) -> Iterator[tuple[int, int]]:
    """
    Yield offset and timestamp of the records of *source* from *offset* on, unverified; a length of none ends them.
    """
    unpack, view = RECORD_HEAD.unpack_from, source.view
    while offset + RECORD_HEAD_BYTES <= source.end:
        length, _, timestamp, _ = unpack(view, offset)
        if not length:
            return
        yield offset, timestamp
        offset += RECORD_HEAD_BYTES + int(length)


class TailFollower:
    """
    Reads a log as it grows. What is notified is only that there is something; what there is, is read from the log, so
    nothing is missed between two calls.
    """

    def __init__(
        self,
        reader: Reader,
        sources: Sources,
        notifier: Notifier,
        *,
        clock: Clock,
        is_closed: Callable[[], bool],
        sealed_after: int,
    ) -> None:
        self._reader = reader
        self._sources = sources
        self._notifier = notifier
        self._clock = clock
        self._is_closed = is_closed
        self._records = iter(reader)
        self._sealed_segment_id = sealed_after

    def next(self, timeout_s: float | None = None) -> Record | None:
        """
        Return the next record, waiting for it; None when *timeout_s* passed first, or when the log was closed.

        Raises:
            Damaged: the next record is not what was written, and the reader was to say so.
        """
        return self._wait_for(self._next_record, timeout_s)

    def next_sealed_segment(self, timeout_s: float | None = None) -> int | None:
        """
        Return the id of the next segment that is sealed, in order and each once; None as above.
        """
        found = self._wait_for(lambda: self._sources.next_sealed_segment_id(self._sealed_segment_id), timeout_s)
        if found is not None:
            self._sealed_segment_id = found
        return found

    def _next_record(self) -> Record | None:
        record = next(self._records, None)
        if record is None:
            # A walk knows how far its segment went when it began; a new one knows how far it goes now.
            self._records = iter(self._reader)
            record = next(self._records, None)
        return record

    def _wait_for(self, look: Callable[[], T | None], timeout_s: float | None) -> T | None:
        deadline = deadline_of(self._clock, timeout_s)
        while True:
            seen = self._notifier.generation("records")
            is_closed = self._is_closed()
            found = look()
            if found is not None or is_closed:
                return found
            left = None if deadline is None else deadline - self._clock.monotonic()
            if left is not None and left <= 0:
                return None
            self._notifier.wait("records", seen, left)

    def __iter__(self) -> Iterator[Record]:
        """
        Yield records as they come, until the log is closed.
        """
        while (record := self.next()) is not None:
            yield record
