"""
Splitting of an OTLP export request into smaller requests, between records. Pure: bytes in, bytes out.

A record is a log record, a span or a data point; a resource, scope or metric without any counts as one. The messages
around a record (resource, scope, metric, with schema URLs and fields of later versions) are copied as bytes, so the
concatenated parts have the same records in the same order as the request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from quiver.primitives.scan import Damage

__all__ = ["SplitRequest", "split_request"]

_LEVELS = {"logs": (1, 2, 2), "traces": (1, 2, 2), "metrics": (1, 2, 2)}
"""The field numbers on the path from a request to a log record, a span or a metric."""

_POINT_KINDS = frozenset({5, 7, 9, 10, 11})
"""The fields of a metric that may have data points: gauge, sum, histogram, exponential histogram, summary."""
_POINTS = 1

_BYTES = 2
_FIXED_BYTES = {1: 8, 5: 4}
_HEAD_BYTES_MAX = 6
"""One byte for the tag of these fields, and at most five for their length."""


@dataclass(slots=True, eq=False)
class _Enclosing:
    """A message with records: its field number, its bytes without them, and the number after its last record."""

    field: int
    content: bytes
    stop: int = 0

    @property
    def overhead_bytes(self) -> int:
        return len(self.content) + _HEAD_BYTES_MAX


@dataclass(frozen=True, slots=True)
class _Record:
    """A record: its field number, its bytes, and the messages around it, outermost first."""

    field: int
    content: memoryview
    parents: tuple[_Enclosing, ...]

    @property
    def overhead_bytes(self) -> int:
        return sum(one.overhead_bytes for one in self.parents)


class _MalformedError(Exception):
    """The bytes are not a protobuf message that can be split."""


class SplitRequest:
    """A request with its records. Created by `split_request`."""

    def __init__(self, content: bytes, records: Sequence[_Record]) -> None:
        self._content = content
        self._records = records
        costs = []
        before: tuple[_Enclosing, ...] = ()
        for record in records:
            opened = [one for depth, one in enumerate(record.parents) if before[depth : depth + 1] != (one,)]
            costs.append(len(record.content) + _HEAD_BYTES_MAX + sum(one.overhead_bytes for one in opened))
            before = record.parents
        self._ends = list(accumulate(costs))
        """An upper bound of the size of the request up to each record."""

    def __len__(self) -> int:
        return len(self._records)

    def part(self, start: int, stop: int, bytes_max: int) -> tuple[bytes, int]:
        """
        Return the longest request of at most *bytes_max* bytes that starts with record *start*.

        Also return the number of the first record after it, at most *stop*. The request is larger than *bytes_max* only
        if it cannot be split: it has one record, or the messages around its records are larger.
        """
        record = self._records[start]
        used = len(self._content)
        for one in record.parents:
            used += one.overhead_bytes
            if used > bytes_max:
                end = min(one.stop, stop)
                return self._built(self._records[start:end]), end
        first = len(record.content) + _HEAD_BYTES_MAX
        end = bisect_right(self._ends, bytes_max - used - first + self._ends[start])
        end = min(max(end, start + 1), stop)
        return self._built(self._records[start:end]), end

    def select(self, ranges: Sequence[tuple[int, int]]) -> bytes:
        """Return the request with only the records of the ascending *ranges*."""
        return self._built([record for start, stop in ranges for record in self._records[start:stop]])

    def _built(self, records: Sequence[_Record]) -> bytes:
        return self._content + b"".join(_encoded(records, 0))


def split_request(request: bytes, signal: str) -> SplitRequest | Damage:
    """
    Find the records of *request*, or return why it is not a request of *signal*.

    Args:
        request: the bytes of an Export…ServiceRequest.
        signal: `logs`, `traces` or `metrics`.
    """
    levels = _LEVELS[signal]
    records: list[_Record] = []

    def add(parent: memoryview, depth: int, parents: tuple[_Enclosing, ...]) -> bytes:
        content, inner = _divided(parent, levels[depth])
        for child in inner:
            if depth + 1 == len(levels):
                if signal != "metrics" or not add_points(child, parents):
                    records.append(_Record(levels[depth], child, parents))
                continue
            enclosing = _Enclosing(levels[depth], b"")
            before = len(records)
            enclosing.content = add(child, depth + 1, (*parents, enclosing))
            enclosing.stop = len(records)
            if len(records) == before:
                records.append(_Record(levels[depth], child, parents))
        return content

    def add_points(metric: memoryview, parents: tuple[_Enclosing, ...]) -> bool:
        fields = list(_fields(metric))
        data = [(number, value) for number, value, _ in fields if number in _POINT_KINDS and value is not None]
        if len(data) != 1:
            return False  # of several, only the last one counts: do not split the metric
        kind, value = data[0]
        content, points = _divided(value, _POINTS)
        if not points:
            return False
        outer = _Enclosing(levels[-1], b"".join(raw for number, value, raw in fields if (number, value) != data[0]))
        inner = _Enclosing(kind, content)
        records.extend(_Record(_POINTS, point, (*parents, outer, inner)) for point in points)
        outer.stop = inner.stop = len(records)
        return True

    try:
        content = add(memoryview(request), 0, ())
    except _MalformedError as error:
        return Damage(0, str(error))
    return SplitRequest(content, records)


def _divided(message: memoryview, field: int) -> tuple[bytes, list[memoryview]]:
    """Return *message* without its messages in *field*, and those messages."""
    rest: list[memoryview] = []
    found: list[memoryview] = []
    for number, value, raw in _fields(message):
        if number == field and value is not None:
            found.append(value)
        else:
            rest.append(raw)
    return b"".join(rest), found


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | None, memoryview]]:
    """Yield number, content (None if not length-delimited) and all bytes of each field of *message*."""
    at, size = 0, len(message)
    while at < size:
        start = at
        tag, at = _varint(message, at)
        kind = tag & 7
        value = None
        if kind == _BYTES:
            length, at = _varint(message, at)
            value = message[at : at + length]
            at += length
        elif kind == 0:
            _, at = _varint(message, at)
        elif kind in _FIXED_BYTES:
            at += _FIXED_BYTES[kind]
        else:
            raise _MalformedError(f"a field of wire type {kind}")
        if at > size:
            raise _MalformedError("it is truncated")
        yield tag >> 3, value, message[start:at]


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _MalformedError("a varint is too long or truncated")


def _encoded(records: Sequence[_Record], depth: int) -> Iterator[bytes | memoryview]:
    """Yield the bytes of *records*, which share the messages around them up to *depth*."""
    begins = [
        number
        for number, record in enumerate(records)
        if number == 0
        or len(record.parents) <= depth
        or record.parents[depth : depth + 1] != records[number - 1].parents[depth : depth + 1]
    ]
    for start, stop in pairwise((*begins, len(records))):
        record = records[start]
        if len(record.parents) == depth:
            yield _head(record.field, len(record.content))
            yield record.content
            continue
        enclosing = record.parents[depth]
        inside = list(_encoded(records[start:stop], depth + 1))
        yield _head(enclosing.field, len(enclosing.content) + sum(map(len, inside)))
        yield enclosing.content
        yield from inside


def _head(field: int, length: int) -> bytes:
    out = bytearray()
    for value in (field << 3 | _BYTES, length):
        rest = value
        while rest >= 0x80:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        out.append(rest)
    return bytes(out)
