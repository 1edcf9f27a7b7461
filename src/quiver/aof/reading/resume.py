"""
The next intact record after damage in a segment. Bytes only.

If only the payload of a record is damaged, an intact record follows it. If its length is damaged, the start of the next
record is unknown and is searched: its time is between those of the segment's first and last record, its checksum
matches, and the lengths from there on lead to a known start of a record or to the end of the segment. A payload may
contain bytes that look like a record; the record count in the footer exposes most of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quiver.aof.format.record import RECORD_HEAD, RECORD_HEAD_BYTES
from quiver.aof.format.sparse_index import IndexMark
from quiver.aof.reading.source import TIME_UNKNOWN, ReadableSegment
from quiver.primitives.checksum import crc64_nvme_function

__all__ = ["Resumed", "end_of_record", "is_believed", "resume_after"]

_HALF = 0xFFFF_FFFF
_TIME_END = 16
"""The end of the time in a record's head. Its last bytes are the high ones, which records of a segment share."""

_PATTERNS_MAX = 16
_SPAN_NS_MAX = 1 << 55
"""About a year: if only one end of a segment's time range is known, records further from it are not found."""


class Resumed(NamedTuple):
    """
    The start of the next intact record, or the end of the source.

    Attributes:
        records: the number of records from there on; None if they were not counted.
        lost: the number of skipped records; None if unknown.
    """

    offset: int
    records: int | None
    lost: int | None


def end_of_record(source: ReadableSegment, offset: int) -> int | None:
    """Return the end of the record at *offset*; None if there is no record, or its checksum does not match."""
    start = offset + RECORD_HEAD_BYTES
    if start >= source.limit:
        return None
    length, checksum, _, _ = RECORD_HEAD.unpack_from(source.view, offset)
    stop = start + int(length)
    if not length or stop > source.limit:
        return None
    value = crc64_nvme_function()(source.view[start:stop])
    return stop if (value >> 32) ^ (value & _HALF) == checksum else None


def is_believed(source: ReadableSegment, offset: int) -> bool:
    """Return whether a record begins at *offset*: its checksum matches, or its length leads to a record or the end."""
    return end_of_record(source, offset) is not None or _end_if_believed(source, offset) is not None


def resume_after(
    source: ReadableSegment, offset: int, marks: Sequence[IndexMark] = (), *, records_max: int | None = None
) -> Resumed:
    """
    Return where reading continues after the damaged record at *offset*.

    Args:
        source: the segment.
        offset: the start of the damaged record.
        marks: known starts of records.
        records_max: the maximum number of records after this one; None if unknown.
    """
    stop = _end_if_believed(source, offset)
    if stop is not None:
        return Resumed(stop, None, 1)
    places = {mark.offset for mark in marks} | {source.end}
    for found in _candidates(source, offset + 1):
        if end_of_record(source, found) is None:
            continue
        is_known, records = _chain(source, found, places)
        if is_known and (records is None or records_max is None or records <= records_max):
            lost = None if records is None or records_max is None else records_max + 1 - records
            return Resumed(found, records, lost)
    return Resumed(source.end, 0, None if records_max is None else records_max + 1)


def _end_if_believed(source: ReadableSegment, offset: int) -> int | None:
    """Return the end of the record at *offset* if its length leads to an intact record, or to the end."""
    start = offset + RECORD_HEAD_BYTES
    if start >= source.limit:
        return None
    (length, *_) = RECORD_HEAD.unpack_from(source.view, offset)
    stop = start + int(length)
    if length and (stop == source.end or (stop < source.end and end_of_record(source, stop) is not None)):
        return stop
    return None


def _chain(source: ReadableSegment, offset: int, places: set[int]) -> tuple[bool, int | None]:
    """
    Return whether the lengths from the record at *offset* on lead to one of *places*, and the number of records if they
    lead to the end.
    """
    unpack, view, limit = RECORD_HEAD.unpack_from, source.view, source.limit
    count = 0
    while offset + RECORD_HEAD_BYTES < limit:
        (length, *_) = unpack(view, offset)
        if not length:
            return False, None
        offset += RECORD_HEAD_BYTES + int(length)
        count += 1
        if offset == source.end:
            return True, count
        if offset in places:
            return True, None
    # The bytes end before the segment does: nothing contradicts the records up to there.
    return limit < source.end, None


def _candidates(source: ReadableSegment, start: int) -> Iterator[int]:
    """Yield the offsets from *start* on where a record head with a time of this segment may be."""
    first, last = source.first_timestamp, source.last_timestamp
    if last == TIME_UNKNOWN:
        last = first + _SPAN_NS_MAX
    first = first or max(0, last - _SPAN_NS_MAX)
    width, patterns = _high_bytes(first, last)
    if not patterns:
        return
    unpack, view = RECORD_HEAD.unpack_from, source.view
    skip = _TIME_END - width
    # A lookahead consumes nothing: matches may overlap.
    found = re.compile(b"(?=" + b"|".join(map(re.escape, patterns)) + b")", re.DOTALL)
    for match in found.finditer(view, start + skip, source.limit):
        offset = match.start() - skip
        if offset + RECORD_HEAD_BYTES < source.limit:
            length, _, timestamp, _ = unpack(view, offset)
            if length and first <= timestamp <= last and offset + RECORD_HEAD_BYTES + length <= source.limit:
                yield offset


def _high_bytes(first: int, last: int) -> tuple[int, list[bytes]]:
    """Return the largest number of high bytes with few distinct values between *first* and *last*, and these values."""
    for width in range(7, 0, -1):
        low, high = first >> 8 * (8 - width), last >> 8 * (8 - width)
        if high - low < _PATTERNS_MAX:
            return width, [value.to_bytes(width, "little") for value in range(low, high + 1)]
    return 0, []
