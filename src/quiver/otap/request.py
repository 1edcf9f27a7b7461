"""
Validation of an encoded OTLP export request, and an estimate of the size of its rows.

`parse_request` parses all of it; `measure_request` only parses its nesting, several times as fast, or walks it in the
compiled kernel, a hundred times as fast. The protobuf library refuses truncated messages, invalid UTF-8, unbalanced
groups, and nesting deeper than about 100 messages. Unknown fields are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from quiver.otap.request_nesting import NESTINGS
from quiver.otap.request_shapes import SHAPES
from quiver.otap.views.schemas import view_name
from quiver.otap.wire_schema import shell_class
from quiver.primitives.kernel import KERNEL
from quiver.primitives.scan import Damage

__all__ = ["ROWS_BYTES_MAX", "ParsedRequest", "RequestSize", "measure_request", "parse_request"]

ROWS_BYTES_MAX = 256 * 1024 * 1024
"""
The maximum size of a request's rows. A resource is repeated on every row, so a few encoded megabytes (one resource of
2 MB, a million empty records) could otherwise become terabytes.
"""

_PART_BYTES_MAX = 64 * 1024
_INT32_MAX = 2**31 - 1
_LEVELS = {view: nesting.packed for view, nesting in NESTINGS.items()}
_METRIC_KINDS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
_ROW_BYTES = 300
"""The size of an empty row in Arrow."""


_Accepted = TypeVar("_Accepted")


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """
    A parsed request.

    Attributes:
        message: the protobuf object.
        rows: the number of its log records, spans or data points.
        rows_bytes: the estimated size of its rows in Arrow.
    """

    message: Message
    rows: int
    rows_bytes: int


@dataclass(frozen=True, slots=True)
class RequestSize:
    """The number of rows of a request, and their estimated size in Arrow."""

    rows: int
    rows_bytes: int


def measure_request(data: bytes | memoryview, signal: str) -> RequestSize | Damage:
    """
    Return the size of a request's rows, or why the bytes are not a valid request.

    The contents of records are not parsed, except that they must not nest deep enough to exhaust a decoder's stack: if
    a part of a large request is large itself, the request is parsed completely.

    Raises:
        UsageError: no such signal.
    """
    view = view_name(signal)
    found = _sizes_by_protobuf(data, view) if KERNEL is None else _sizes_in_kernel(data, view)
    if found is None:
        read = parse_request(data, view)
        return read if isinstance(read, Damage) else RequestSize(read.rows, read.rows_bytes)
    rows, repeated_bytes = found
    return _bounded(len(data), rows, repeated_bytes, lambda rows_bytes: RequestSize(rows, rows_bytes))


def _sizes_in_kernel(data: bytes | memoryview, view: str) -> tuple[int, int] | None:
    """Return the number of rows and the size of the data repeated on them; None if it must be parsed completely."""
    if len(data) > _INT32_MAX:
        return None
    found = KERNEL.nested_items(data, struct.pack("2i", 0, len(data)), _LEVELS[view], b"")
    if found is None or found[4] > _PART_BYTES_MAX:
        return None
    return found[0], found[3]


def _sizes_by_protobuf(data: bytes | memoryview, view: str) -> tuple[int, int] | None:
    """Return the same without the kernel."""
    try:
        message: Any = shell_class(view).FromString(data)
    except DecodeError:
        return None  # so that the error message has the name of the real message
    if len(data) > _PART_BYTES_MAX and _largest_part(message) > _PART_BYTES_MAX:
        return None
    return _measure(message, view, len)


def parse_request(data: bytes | memoryview, signal: str) -> ParsedRequest | Damage:
    """
    Return the parsed request, or why the bytes are not a valid request. Empty bytes are a request without rows.

    Raises:
        UsageError: no such signal.
    """
    view = view_name(signal)
    kind = SHAPES[view].request
    try:
        message: Message = kind.FromString(data)
    except DecodeError as error:
        reason = str(error).rpartition(": ")[2] or "cannot be parsed"
        return Damage(0, f"not an {kind.DESCRIPTOR.name}: {reason}")
    rows, repeated_bytes = _measure(message, view, _byte_size)
    return _bounded(len(data), rows, repeated_bytes, lambda found: ParsedRequest(message, rows, found))


def _bounded(wire_bytes: int, rows: int, repeated_bytes: int, accept: Callable[[int], _Accepted]) -> _Accepted | Damage:
    rows_bytes = wire_bytes + repeated_bytes + rows * _ROW_BYTES
    if rows_bytes > ROWS_BYTES_MAX:
        return Damage(
            0,
            f"its {rows} rows, with resource and scope on each, take {rows_bytes} bytes; the limit is {ROWS_BYTES_MAX}",
        )
    return accept(rows_bytes)


def _byte_size(message: Any) -> int:
    size: int = message.ByteSize()
    return size


def _largest_part(message: Any) -> int:
    """Return the length of the largest part that the shell parse left as bytes."""
    largest = 0
    for field, value in message.ListFields():
        parts = value if field.is_repeated else (value,)
        if field.message_type is None:
            largest = max(largest, *map(len, parts))
        else:
            largest = max(largest, *map(_largest_part, parts))
    return largest


def _measure(message: Any, view: str, size_of: Callable[[Any], int]) -> tuple[int, int]:
    """Return the number of rows, and the size of the data repeated on them."""
    shape = SHAPES[view]
    rows = 0
    repeated = 0
    for resource_items in getattr(message, shape.resources):
        resource_rows = 0
        for scope_items in getattr(resource_items, shape.scopes):
            scope_rows, heads = _count(getattr(scope_items, shape.items), view, size_of)
            resource_rows += scope_rows
            repeated += heads + scope_rows * (size_of(scope_items.scope) + len(scope_items.schema_url))
        repeated += resource_rows * (size_of(resource_items.resource) + len(resource_items.schema_url))
        rows += resource_rows
    return rows, repeated


def _count(items: Any, view: str, size_of: Callable[[Any], int]) -> tuple[int, int]:
    if view != "metrics":
        return len(items), 0
    rows = 0
    repeated = 0
    for metric in items:
        points = sum(len(getattr(metric, kind).data_points) for kind in _METRIC_KINDS if metric.HasField(kind))
        rows += points
        repeated += points * (len(metric.name) + len(metric.description) + len(metric.unit))
        repeated += points * sum(map(size_of, metric.metadata))
    return rows, repeated
