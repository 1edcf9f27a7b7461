"""
The range of event times in OTLP requests, and the number of their items, without decoding the rest. Pure.

Only the nesting down to the records is walked, and of a record only its times are read. So it costs a fraction of a
decoder, and accepts some requests that a decoder refuses: the range is then one of rows that do not exist. It never
leaves out the time of a row that exists.

Without the compiled kernel, the protobuf library parses a message class that has only the times.
"""

from __future__ import annotations

import importlib
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from quiver.primitives.kernel import KERNEL

__all__ = [
    "NESTINGS",
    "Nesting",
    "RequestTimes",
    "nested_times_in_python",
    "request_times",
    "times_by_protobuf",
    "times_in_kernel",
]

_NO_TIME = (2**64 - 1, 0)
_INT64_MAX = 2**63 - 1
_VARINT_BYTES_MAX = 10


class RequestTimes(NamedTuple):
    """The number of items in some requests, and their earliest and latest time; 0 and -1 if no item has a time."""

    items: int
    min_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True)
class Nesting:
    """
    The way from a request to the times of its items.

    Attributes:
        levels: for each level of messages, the numbers of the fields that contain the next one; the last are items.
        times: the fields of an item with its time: the first one that is not 0 is the event time.
    """

    levels: tuple[tuple[int, ...], ...]
    times: tuple[int, ...]

    @property
    def packed(self) -> tuple[bytes, bytes]:
        """The levels as bit masks of 64 bits, and the times as bytes."""
        masks = [sum(1 << number for number in level) for level in self.levels]
        return struct.pack(f"<{len(masks)}Q", *masks), bytes(self.times)


NESTINGS = MappingProxyType(
    {
        "logs": Nesting(((1,), (2,), (2,)), (1, 11)),
        "spans": Nesting(((1,), (2,), (2,)), (7,)),
        "metrics": Nesting(((1,), (2,), (2,), (5, 7, 9, 10, 11), (1,)), (3,)),
    }
)
"""View → the nesting of its requests: resources, scopes, items; of metrics also kinds and data points."""

_PACKED = {view: nesting.packed for view, nesting in NESTINGS.items()}


def request_times(requests: pa.BinaryArray, view: str) -> RequestTimes | None:
    """Return the times of *requests*; None if one is not valid, or has a time that does not fit 63 bits."""
    if requests.null_count:
        return None
    found = times_by_protobuf(requests, view) if KERNEL is None else times_in_kernel(requests, view)
    if found is None:
        return None
    items, low, high = found
    if (low, high) == _NO_TIME:
        return RequestTimes(items, 0, -1)
    return None if high > _INT64_MAX else RequestTimes(items, low, high)


def times_in_kernel(requests: pa.BinaryArray, view: str) -> tuple[int, int, int] | None:
    """Return the number of items, the earliest and the latest time; None if a request cannot be walked."""
    _, offsets, data = requests.buffers()
    if not len(requests) or offsets is None:
        return 0, *_NO_TIME
    places = memoryview(offsets)[4 * requests.offset : 4 * (requests.offset + len(requests) + 1)]
    found: tuple[int, int, int] | None = KERNEL.nested_times(b"" if data is None else data, places, *_PACKED[view])
    return found


def times_by_protobuf(requests: pa.BinaryArray, view: str) -> tuple[int, int, int] | None:
    """Return the same without the kernel; None also without the protobuf library."""
    try:
        wire: Any = importlib.import_module("quiver.otap.wire_schema")
    except ImportError:  # the extra `otlp` is not installed
        return None
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    kind = wire.times_class(view)
    items = 0
    low, high = _NO_TIME
    for request in requests:
        try:
            messages = [kind.FromString(request.as_py())]
        except DecodeError:
            return None
        for level in NESTINGS[view].levels:
            messages = [inner for message in messages for inner in _inner(message, level)]
        if messages:
            names = [messages[0].DESCRIPTOR.fields_by_number[number].name for number in NESTINGS[view].times]
            times = [next(filter(None, (getattr(item, name) for name in names)), 0) for item in messages]
            items += len(times)
            low = min(low, min(filter(None, times), default=low))
            high = max(high, *times)
    return items, low, high


def _inner(message: Any, level: tuple[int, ...]) -> Iterator[Any]:
    for field, value in message.ListFields():
        if field.number in level:
            yield from value if field.is_repeated else (value,)


def nested_times_in_python(data: Any, offsets: Any, levels: bytes, fields: bytes) -> tuple[int, int, int] | None:
    """
    Return the number of items, the earliest and the latest time; None if a message cannot be walked.

    Args:
        data: the messages.
        offsets: where they begin and end, as int32.
        levels: a mask of 64 bits for each level.
        fields: the numbers of the fields with a time.
    """
    view = memoryview(data).cast("B")
    ends = array("i", bytes(offsets))
    walk = _Walk(view, struct.unpack(f"<{len(levels) // 8}Q", levels), tuple(fields))
    try:
        for start, end in pairwise(ends):
            walk.message(start, end, 0)
    except (IndexError, struct.error):
        return None
    return walk.items, walk.low, walk.high


class _Walk:
    """Raises `IndexError` or `struct.error` for what it cannot walk."""

    def __init__(self, data: memoryview, levels: Sequence[int], fields: tuple[int, ...]) -> None:
        self._data = data
        self._levels = levels
        self._fields = fields
        self.items = 0
        self.low, self.high = _NO_TIME

    def message(self, at: int, end: int, level: int) -> None:
        is_item = level == len(self._levels)
        found = dict.fromkeys(self._fields, 0)
        while at < end:
            tag, at = self._varint(at, end)
            field, wire_type = tag >> 3, tag & 7
            if field == 0 or tag > 0xFFFF_FFFF:
                raise IndexError
            if wire_type == 0:
                _, at = self._varint(at, end)
            elif wire_type == 1:
                if end - at < 8:
                    raise IndexError
                if field in found:
                    (found[field],) = struct.unpack_from("<Q", self._data, at)
                at += 8
            elif wire_type == 2:
                length, at = self._varint(at, end)
                if length > end - at:
                    raise IndexError
                if not is_item and field < 64 and self._levels[level] >> field & 1:
                    self.message(at, at + length, level + 1)
                at += length
            elif wire_type == 5 and end - at >= 4:
                at += 4
            else:  # a group, which OTLP does not have
                raise IndexError
        if is_item:
            self._note(next((time for time in found.values() if time), 0))

    def _note(self, time: int) -> None:
        self.items += 1
        if time:
            self.low = min(self.low, time)
        self.high = max(self.high, time)

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        number = 0
        for place in range(min(_VARINT_BYTES_MAX, end - at)):
            byte = self._data[at + place]
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return number & 0xFFFF_FFFF_FFFF_FFFF, at + place + 1
        raise IndexError
