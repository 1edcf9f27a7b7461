"""
Stored OTLP requests → flat tables with one row per log record, span or data point.

An invalid request does not affect the others: it is reported by its index, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from quiver.bundle import Bundle
from quiver.errors import InvalidBundleError, UsageError
from quiver.otap.arrays import FallbackNeededError
from quiver.otap.request import ROWS_BYTES_MAX, RequestSize, measure_request, parse_request
from quiver.otap.request_shapes import SHAPES
from quiver.otap.stored import StoredTables, stored_requests
from quiver.otap.tables.validation import ValidTables, validate_tables
from quiver.otap.views.columnar import decode_columnar
from quiver.otap.views.columnar_tables import decode_tables
from quiver.otap.views.columns import Flat, flatten, origin_columns
from quiver.otap.views.logs import log_columns
from quiver.otap.views.metrics import metric_columns, points_of
from quiver.otap.views.schemas import VIEW_SLOTS, projected_schema, view_name
from quiver.otap.views.spans import span_columns
from quiver.primitives.scan import Damage

__all__ = ["GROUP_BYTES", "DecodedRequests", "decode_groups", "decode_requests", "view"]

GROUP_BYTES = 12 * 1024 * 1024
"""
The target size of a batch of `decode_groups` in Arrow; a larger request is a batch by itself. Much larger batches
leave the processor's cache between two steps over their columns.
"""


@dataclass(frozen=True, slots=True)
class DecodedRequests:
    """
    The rows of some requests, in order, and the invalid requests.

    Attributes:
        batch: the rows, with the view's schema.
        bad: (index, reason) of each invalid request, which has no rows.
        rows: the number of rows of each request; 0 for invalid ones.
        first: the index of the first of these requests; the indexes in `bad` start at 0 nevertheless.
    """

    batch: pa.RecordBatch
    bad: tuple[tuple[int, str], ...]
    rows: tuple[int, ...]
    first: int = 0


@dataclass(slots=True)
class _Group:
    first: int = 0
    requests: list[bytes] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    count: int = 0
    rows_bytes: int = 0

    def add(self, data: Any, measured: Any) -> None:
        if isinstance(data, Damage):
            self.bad.append((self.count, data.reason))
        elif isinstance(measured, Damage):
            self.bad.append((self.count, measured.reason))
        else:
            self.requests.append(bytes(data))
            self.indexes.append(self.count)
            self.rows_bytes += measured.rows_bytes
        self.count += 1


@dataclass(slots=True)
class _Run:
    """Consecutive sets of tables that are decoded together."""

    first: int = 0
    stored: list[StoredTables] = field(default_factory=list)
    found: list[ValidTables | Damage] = field(default_factory=list)
    rows_bytes: int = 0

    @property
    def count(self) -> int:
        return len(self.stored)

    def add(self, tables: Any, found: Any) -> None:
        self.stored.append(tables)
        self.found.append(found)
        self.rows_bytes += 0 if isinstance(found, Damage) else found.rows_bytes


def decode_requests(
    requests: Sequence[bytes | memoryview], signal: str, *, columns: Sequence[str] | None = None
) -> DecodedRequests:
    """
    Return the rows of export requests of one signal, as one batch with the view's schema.

    Decode a few megabytes at a time, or let `decode_groups` split: many small requests together are several times
    faster than one by one. With *columns*, only these are returned, in that order.

    Raises:
        UsageError: no such signal or column, or too many requests for one batch.
    """
    schema = projected_schema(signal, None if columns is None else list(columns))
    group = _Group()
    for data in requests:
        group.add(data, measure_request(data, signal))
    if group.rows_bytes > ROWS_BYTES_MAX:
        raise UsageError(
            f"the rows of these {group.count} requests take about {group.rows_bytes} bytes; decode fewer at a time"
        )
    return _decoded(group, signal, schema)


def decode_groups(
    requests: Iterable[bytes | memoryview | StoredTables | Damage],
    signal: str,
    *,
    columns: Sequence[str] | None = None,
    group_bytes: int = GROUP_BYTES,
) -> Iterator[DecodedRequests]:
    """
    Yield the rows of many requests in batches of about *group_bytes*, consuming *requests* lazily.

    Every request belongs to exactly one batch, also those without rows, so the `rows` of all batches together have one
    number per request. Without requests there are no batches. Tables count as one request, and a `Damage` is reported
    in `bad`.

    Raises:
        UsageError: no such signal or column.
    """
    schema = projected_schema(signal, None if columns is None else list(columns))
    group: _Group | _Run = _Group()
    for item in requests:
        kind = _Run if isinstance(item, StoredTables) else _Group
        measured = _measured(item, signal)
        grows = 0 if isinstance(measured, Damage) else measured.rows_bytes
        if group.count and (not isinstance(group, kind) or group.rows_bytes + grows > group_bytes):
            yield from _decoded_all(group, signal, schema)
            group = kind(first=group.first + group.count)
        elif not group.count:
            group = kind(first=group.first)
        group.add(item, measured)
    if group.count:
        yield from _decoded_all(group, signal, schema)


def _measured(item: bytes | memoryview | StoredTables | Damage, signal: str) -> RequestSize | ValidTables | Damage:
    if isinstance(item, Damage):
        return item
    if isinstance(item, StoredTables):
        return validate_tables(item.tables, item.signal)
    return measure_request(item, signal)


def _decoded_all(group: _Group | _Run, signal: str, schema: pa.Schema) -> Iterator[DecodedRequests]:
    if isinstance(group, _Group):
        yield _decoded(group, signal, schema)
        return
    together = _decoded_tables(group, signal, schema)
    if together is not None:
        yield together
        return
    # One of them must be converted to a request: decode them individually to find it.
    for first, (stored, found) in enumerate(zip(group.stored, group.found, strict=True), group.first):
        alone = _decoded_tables(_Run(first, [stored], [found]), signal, schema)
        if alone is None:
            data = stored.try_request()
            single = _Group(first=first)
            single.add(data, _measured(data, signal))
            alone = _decoded(single, signal, schema)
        yield alone


def view(source: Bundle | pa.RecordBatch, signal: str, *, columns: Sequence[str] | None = None) -> pa.Table:
    """
    Return a bundle, or the batch of a raw OTLP slot, as a flat table of one signal.

    A bundle may have requests, OTAP tables, or both; without data of the signal, the table has no rows.

    Raises:
        UsageError: no such signal or column, or the batch is not of a raw OTLP slot.
        InvalidBundleError: a request or the tables are invalid.
    """
    view_of = view_name(signal)
    schema = projected_schema(view_of, None if columns is None else list(columns))
    raw = VIEW_SLOTS[view_of]
    batches: Mapping[int, pa.RecordBatch] = source.batches if isinstance(source, Bundle) else {raw: source}
    if raw in batches and not _is_raw(batches[raw].schema):
        raise UsageError("a raw OTLP slot has one binary column named data; this batch has none")
    decoded = []
    for group in decode_groups(stored_requests(batches, view_of), view_of, columns=columns):
        if group.bad:
            index, reason = group.bad[0]
            raise InvalidBundleError(f"request {group.first + index} of the bundle: {reason}")
        decoded.append(group.batch)
    return pa.Table.from_batches(decoded, schema)


def _is_raw(schema: pa.Schema) -> bool:
    return "data" in schema.names and pa.types.is_binary(schema.field("data").type)


def _decoded(group: _Group, signal: str, schema: pa.Schema) -> DecodedRequests:
    view_of = view_name(signal)
    try:
        found = decode_columnar(group.requests, view_of)
        arrays = [found.makers[column.name]() for column in schema]
        counts, indexes, bad = found.per_request, group.indexes, group.bad
    except FallbackNeededError:
        arrays, counts, indexes, bad = _decoded_by_object(group, view_of, schema)
    rows = [0] * group.count
    for index, count in zip(indexes, counts, strict=True):
        rows[index] = count
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else _no_columns(sum(rows))
    return DecodedRequests(batch, tuple(bad), tuple(rows), group.first)


def _decoded_tables(run: _Run, signal: str, schema: pa.Schema) -> DecodedRequests | None:
    """Return the rows of tables, and the invalid ones; None if some must be converted to a request."""
    bad = tuple((at, found.reason) for at, found in enumerate(run.found) if isinstance(found, Damage))
    valid = [found for found in run.found if isinstance(found, ValidTables)]
    if not valid:
        batch = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        return DecodedRequests(batch, bad, (0,) * run.count, run.first)
    try:
        decoded = decode_tables(valid, view_name(signal))
        arrays = [decoded.makers[column.name]() for column in schema]
    except FallbackNeededError:
        return None
    counts = iter(decoded.per_request)
    rows = tuple(0 if isinstance(found, Damage) else next(counts) for found in run.found)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else _no_columns(sum(rows))
    return DecodedRequests(batch, bad, rows, run.first)


def _decoded_by_object(
    group: _Group, view_of: str, schema: pa.Schema
) -> tuple[list[pa.Array], list[int], list[int], list[tuple[int, str]]]:
    """Decode with an object per record: several times slower, but complete."""
    messages, indexes, bad = [], [], list(group.bad)
    for index, data in zip(group.indexes, group.requests, strict=True):
        read = parse_request(data, view_of)
        if isinstance(read, Damage):
            bad.append((index, read.reason))
        else:
            messages.append(read.message)
            indexes.append(index)
    flat, makers = _columns(messages, view_of)
    makers.update(origin_columns(flat))
    return [makers[column.name]() for column in schema], flat.per_request, indexes, sorted(bad)


def _no_columns(rows: int) -> pa.RecordBatch:
    """Return a batch without columns, whose number of rows is enough for a count."""
    return pa.record_batch([pa.nulls(rows)], names=["none"]).select([])


def _columns(messages: list[Any], view_of: str) -> tuple[Flat, dict[str, Callable[[], pa.Array]]]:
    shape = SHAPES[view_of]
    flat = flatten(messages, resources=shape.resources, scopes=shape.scopes, items=shape.items)
    if view_of == "logs":
        return flat, log_columns(flat)
    if view_of == "spans":
        return flat, span_columns(flat)
    points = points_of(flat)
    return points.flat, metric_columns(points)
