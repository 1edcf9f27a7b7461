"""
The range of event times in OTLP requests, and the number of their items, without decoding the rest. Pure.

Only the nesting down to the records is walked, and of a record only its times are read. So it costs a fraction of a
decoder, and accepts some requests that a decoder refuses: the range is then one of rows that do not exist. It never
leaves out the time of a row that exists.

Without the compiled kernel, the protobuf library parses a message class that has only the times.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from quiver.otap.request_nesting import NESTINGS, NO_TIME
from quiver.primitives.kernel import KERNEL

__all__ = ["RequestTimes", "request_times", "times_by_protobuf", "times_in_kernel"]

_INT64_MAX = 2**63 - 1


class RequestTimes(NamedTuple):
    """The number of items in some requests, and their earliest and latest time; 0 and -1 if no item has a time."""

    items: int
    min_ns: int
    max_ns: int


_PACKED = {view: (nesting.packed, bytes(nesting.times)) for view, nesting in NESTINGS.items()}


def request_times(requests: pa.BinaryArray, view: str) -> RequestTimes | None:
    """Return the times of *requests*; None if one is not valid, or has a time that does not fit 63 bits."""
    if requests.null_count:
        return None
    found = times_by_protobuf(requests, view) if KERNEL is None else times_in_kernel(requests, view)
    if found is None:
        return None
    items, low, high = found
    if (low, high) == NO_TIME:
        return RequestTimes(items, 0, -1)
    return None if high > _INT64_MAX else RequestTimes(items, low, high)


def times_in_kernel(requests: pa.BinaryArray, view: str) -> tuple[int, int, int] | None:
    """Return the number of items, the earliest and the latest time; None if a request cannot be walked."""
    _, offsets, data = requests.buffers()
    if not len(requests) or offsets is None:
        return 0, *NO_TIME
    places = memoryview(offsets)[4 * requests.offset : 4 * (requests.offset + len(requests) + 1)]
    found = KERNEL.nested_items(b"" if data is None else data, places, *_PACKED[view])
    return None if found is None else found[:3]


def times_by_protobuf(requests: pa.BinaryArray, view: str) -> tuple[int, int, int] | None:
    """Return the same without the kernel; None also without the protobuf library."""
    try:
        wire: Any = importlib.import_module("quiver.otap.wire_schema")
    except ImportError:  # the extra `otlp` is not installed
        return None
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    kind = wire.times_class(view)
    items = 0
    low, high = NO_TIME
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
