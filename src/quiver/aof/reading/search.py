"""Searches for records: one by its id, the first of a time, and whether one begins at a place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quiver.aof.format.record import RECORD_HEAD, RECORD_HEAD_BYTES, join_record_id, split_record_id
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.aof.format.sparse_index import IndexMark
from quiver.aof.reading.index import before_time
from quiver.aof.reading.resume import end_of_record, is_believed, resume_after
from quiver.aof.reading.source import ReadableSegment, ReadableSegments, Record
from quiver.errors import CorruptionError, UnknownRecordError

__all__ = [
    "begin_at",
    "begins_at",
    "first_at",
    "heads",
    "intact_heads",
    "read_one",
    "require_place",
    "unknown_record",
]


def read_one(sources: ReadableSegments, record_id: int) -> Record:
    """
    Return the record with that id.

    Raises:
        UnknownRecordError: no record begins there.
        CorruptionError: its checksum does not match.
    """
    segment_id, offset = split_record_id(record_id)
    source = sources.source(segment_id, durable_only=False)
    if source is None or not HEADER_BYTES <= offset < source.end:
        raise UnknownRecordError(f"no record {record_id}: segment {segment_id} is missing, or ends before {offset}")
    stop = end_of_record(source, offset)
    if stop is None:
        if source.problem:
            raise CorruptionError(source.path, offset, source.problem)
        if not begins_at(sources, source, offset):
            raise unknown_record(source, offset)
        raise CorruptionError(source.path, offset, "checksum mismatch, or a record that does not fit")
    _, _, timestamp, ext_id = RECORD_HEAD.unpack_from(source.view, offset)
    return Record(record_id, timestamp, ext_id, source.view[offset + RECORD_HEAD_BYTES : stop].tobytes())


def unknown_record(source: ReadableSegment, offset: int) -> UnknownRecordError:
    """Return the error for *offset* of a segment, where no record begins."""
    found = source.segment_id << 32 | offset
    return UnknownRecordError(f"no record {found}: none begins at byte {offset} of segment {source.segment_id}")


def begins_at(sources: ReadableSegments, source: ReadableSegment, offset: int) -> bool:
    """Return whether a record of *source* begins at *offset*, according to the lengths of the records before it."""
    at = max((one.offset for one in sources.marks(source.segment_id) if one.offset <= offset), default=HEADER_BYTES)
    while at < offset and at + RECORD_HEAD_BYTES < source.limit:
        (length, *_) = RECORD_HEAD.unpack_from(source.view, at)
        at += RECORD_HEAD_BYTES + int(length)
    return at == offset


def require_place(sources: ReadableSegments, record_id: int) -> None:
    """
    Check that *record_id* is a place between records: a record begins there, or none contains it.

    Raises:
        UnknownRecordError: it is inside a record.
        CorruptionError, ObjectsUnavailableError, UsageError, OSError: the segment cannot be read.
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
            # Unless its length is damaged. Then the checksum of the record at that place matches.
            segment = sources.stretch(segment_id, offset, None)
            if segment is None or end_of_record(segment, offset) is None:
                raise unknown_record(source, offset)
            return


def first_at(sources: ReadableSegments, timestamp: int) -> int | None:
    """
    Return the id of the first record that is not older than *timestamp*; None when all are older.

    Timestamps never decrease within a log, so segments whose last record is older are skipped.

    Raises:
        CorruptionError: the segment of the record cannot be read.
    """
    return _first_at(sources, timestamp, begins=False)


def begin_at(sources: ReadableSegments, timestamp: int) -> int | None:
    """
    Return where a reader of the records from *timestamp* on begins: as `first_at`, but if that record is damaged or
    lost, the place at which the reader reports the loss.
    """
    return _first_at(sources, timestamp, begins=True)


def _first_at(sources: ReadableSegments, timestamp: int, *, begins: bool) -> int | None:
    segment_id = sources.next_segment_id(-1)
    while segment_id is not None:
        last = sources.last_timestamp(segment_id)
        if last is None or last >= timestamp:
            try:
                found = _first_in(sources, segment_id, timestamp, begins=begins)
            except CorruptionError:
                if not begins:
                    raise
                found = HEADER_BYTES
            if found is not None:
                return join_record_id(segment_id, found)
        segment_id = sources.next_segment_id(segment_id)
    return None


def _first_in(sources: ReadableSegments, segment_id: int, timestamp: int, *, begins: bool) -> int | None:
    marks = sources.marks(segment_id)
    start, stop = before_time(marks, timestamp)
    source = sources.stretch(segment_id, start, None if stop is None else stop + RECORD_HEAD_BYTES)
    if source is None:
        return HEADER_BYTES if begins and sources.extent(segment_id) is not None else None
    if source.last_timestamp < timestamp:
        return None
    end = start
    for offset, found in heads(source, start):
        if found >= timestamp:
            if offset == stop or is_believed(source, offset):
                return offset
            break
        (length, *_) = RECORD_HEAD.unpack_from(source.view, offset)
        end = offset + RECORD_HEAD_BYTES + int(length)
    if end == source.end:
        return None
    # The lengths of damaged records are useless: only records with matching checksums count.
    segment = sources.stretch(segment_id, start, None)
    if segment is None:
        return None
    end = start
    for offset, found in intact_heads(segment, start, marks):
        if found >= timestamp:
            return offset
        end = offset + RECORD_HEAD_BYTES + int(RECORD_HEAD.unpack_from(segment.view, offset)[0])
    return end if begins and segment.complete and end < segment.end else None


def heads(source: ReadableSegment, offset: int) -> Iterator[tuple[int, int]]:
    """Yield offset and timestamp of the records of *source* from *offset* on, unverified, up to a length of zero."""
    unpack, view = RECORD_HEAD.unpack_from, source.view
    while offset + RECORD_HEAD_BYTES <= source.limit:
        length, _, timestamp, _ = unpack(view, offset)
        if not length:
            return
        yield offset, timestamp
        offset += RECORD_HEAD_BYTES + int(length)


def intact_heads(source: ReadableSegment, offset: int, marks: Sequence[IndexMark]) -> Iterator[tuple[int, int]]:
    """Yield offset and timestamp of the records of *source* from *offset* on with matching checksums."""
    while offset < source.end:
        stop = end_of_record(source, offset)
        if stop is None:
            offset = resume_after(source, offset, marks).offset
            continue
        yield offset, RECORD_HEAD.unpack_from(source.view, offset)[2]
        offset = stop
