"""
Validation of tables, column by column: they must convert to a request and to the rows of a view.

A receiver that validates first never confirms data that no reader can read later. Everything that `to_otlp.py` and
`request.py` refuse is refused here, and in doubt more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quiver.otap.conversion_errors import ConversionError
from quiver.otap.request import ROWS_BYTES_MAX
from quiver.otap.stream.transport_ids import plain_columns
from quiver.otap.tables.cbor import ITEMS_MAX, measure_value
from quiver.otap.tables.cbor_columns import count_flat
from quiver.otap.tables.payload_arrays import COLUMN_BYTES_MAX, Flat
from quiver.otap.tables.payload_schema import SIGNALS, TABLES, Table, signal_named
from quiver.otap.tables.to_otlp import value_levels
from quiver.primitives.scan import Damage

__all__ = ["ValidTables", "check_tables", "validate_tables"]

_KIND_MAX = 7
_METRIC_TYPE_MAX = 5
_IDS = 1 << 16
_ROW_BYTES = 320
_ATTRIBUTE_BYTES = 16
_COPIED_ATTRIBUTE_BYTES = 100
_MAP, _LIST = 5, 6
_ARMS = {_MAP: "kvlist_value", _LIST: "array_value"}
_FEW = 24
"""Up to this many nested values, reading them individually is faster than by column."""
_RESOURCE = ("resource.id", "resource.schema_url", "resource.dropped_attributes_count")
_ORIGIN = (*_RESOURCE, "scope.id", "scope.name", "scope.version", "scope.dropped_attributes_count", "schema_url")


@dataclass(frozen=True, slots=True, eq=False)
class ValidTables:
    """
    Decoded tables that convert to a request and to rows.

    Attributes:
        columns: payload type → its columns, with plain ids and without dictionaries.
        rows: payload type → its number of rows.
        rows_bytes: an upper estimate of the size of a view's rows in Arrow.
    """

    columns: Mapping[int, Flat]
    rows: Mapping[int, int]
    rows_bytes: int


def check_tables(tables: Mapping[int, pa.RecordBatch], signal: str) -> Damage | None:
    """
    Return why the tables do not convert to a request and a view; None if they do.

    Raises:
        UsageError: no such signal.
    """
    found = validate_tables(tables, signal)
    return found if isinstance(found, Damage) else None


def validate_tables(
    tables: Mapping[int, pa.RecordBatch], signal: str, decoded: Mapping[int, Flat] | None = None
) -> ValidTables | Damage:
    """
    Decode and validate tables, or return why they do not convert to a request and a view.

    Args:
        tables: payload type → its rows, with plain or transport-encoded ids.
        signal: logs, traces or metrics.
        decoded: columns that are already decoded, from `ArrowBatch.decoded`.

    Raises:
        UsageError: no such signal.
    """
    known = signal_named(signal)
    strange = sorted(set(tables) - set(known.payloads))
    if strange:
        return Damage(0, f"payload types {strange} do not belong to {signal}")
    if known.root not in tables:
        return Damage(0, f"the table {TABLES[known.root].name} is missing") if tables else ValidTables({}, {}, 0)
    try:
        columns: dict[int, Flat] = {}
        items = ITEMS_MAX
        for payload, batch in tables.items():
            columns[payload] = _columns(TABLES[payload], batch, decoded.get(payload) if decoded else None)
            items -= _values(payload, columns[payload], items)
        rows = {payload: batch.num_rows for payload, batch in tables.items()}
        return ValidTables(columns, rows, _sizes(columns, rows, signal))
    except ConversionError as refusal:
        return Damage(0, str(refusal))
    except (pa.ArrowException, UnicodeDecodeError) as error:
        return Damage(0, f"the tables cannot be read: {str(error)[:300]}")


def _columns(table: Table, batch: pa.RecordBatch, decoded: Flat | None) -> Flat:
    """Return the columns without dictionaries, with checked types and unique ids."""
    if batch.num_rows > table.rows_max:
        raise ConversionError(f"{table.name} has {batch.num_rows} rows; the limit is {table.rows_max}")
    columns = plain_columns(table.payload, batch, decoded)
    ids = columns.get("id")
    if ids is not None and pc.count_distinct(ids, mode="only_valid").as_py() < len(ids) - ids.null_count:
        raise ConversionError(f"{table.name}: two rows have the same id")
    _at_most(table, columns, "metric_type", _METRIC_TYPE_MAX)
    _at_most(table, columns, "body.type" if table.payload == 30 else "type", _KIND_MAX)
    return columns


def _at_most(table: Table, columns: Flat, name: str, most: int) -> None:
    values = columns.get(name)
    if values is not None and len(values):
        largest = pc.max(values).as_py()
        if largest is not None and largest > most:
            raise ConversionError(f"{table.name}: unknown {name} {largest}")


def _values(payload: int, columns: Flat, items: int) -> int:
    """Return the number of values in nested values. Each distinct one that is not flat is decoded once."""
    prefix = "body." if payload == 30 else ""
    kinds, nested = columns.get(f"{prefix}type"), columns.get(f"{prefix}ser")
    if kinds is None or nested is None:
        return 0
    there = nested.is_valid() if nested.null_count else None
    kinds, nested = (kinds, nested) if there is None else (kinds.filter(there), nested.filter(there))
    counted, levels = 0, value_levels(payload)
    if len(nested) > _FEW:
        kinds_of_rows = np.asarray(pc.fill_null(kinds, 0))
        flat = count_flat(nested, kinds_of_rows == _MAP)
        flat[(kinds_of_rows != _MAP) & (kinds_of_rows != _LIST)] = 0  # bytes that are not read
        counted = int(flat.sum())
        rest = pa.array(flat == 0)
        kinds, nested = kinds.filter(rest), nested.filter(rest)
    for kind, arm in _ARMS.items():
        found: Any = pc.value_counts(nested.filter(pc.equal(kinds, kind)))
        for data, times in zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True):
            if not data:
                continue
            actual_arm, count = measure_value(data, levels=levels, items=max(items - counted, 0))
            counted += times * count
            if actual_arm != arm:
                raise ConversionError(f"{TABLES[payload].name}: a value of type {kind} has another kind in its CBOR")
    if counted > items:
        raise ConversionError("CBOR: too many values")
    return counted


def _sizes(columns: Mapping[int, Flat], rows: Mapping[int, int], signal: str) -> int:
    """Check the size as a request and as rows, which can far exceed that of the tables. Return the size of the rows."""
    root = columns[SIGNALS[signal].root]
    count = rows[SIGNALS[signal].root]
    most = _at_worst(columns, rows, count)
    if signal != "metrics" and most < min(COLUMN_BYTES_MAX, ROWS_BYTES_MAX):
        return most
    resource, scope = (_ids(root.get(name), count) for name in ("resource.id", "scope.id"))
    _copies(columns, root, count)
    heads = _lengths(root, ("resource.schema_url", "scope.name", "scope.version", "schema_url"), count)
    heads += (
        _per_parent(columns.get(1), _ATTRIBUTE_BYTES)[resource] + _per_parent(columns.get(2), _ATTRIBUTE_BYTES)[scope]
    )
    times: Any = np.ones(count)
    if signal == "metrics":
        identity = _ids(root.get("id"), count)
        heads += _lengths(root, ("name", "description", "unit"), count)
        heads += _per_parent(columns.get(26), _ATTRIBUTE_BYTES)[identity]
        times = sum(_points(columns.get(payload)) for payload in (11, 12, 13, 14))[identity]
    wire = sum(1.3 * array.nbytes for flat in columns.values() for array in flat.values()) + 20 * sum(rows.values())
    total = int(wire + (times * (heads + _ROW_BYTES)).sum())
    if total > ROWS_BYTES_MAX:
        sizes = f"take {total} bytes; the limit is {ROWS_BYTES_MAX}"
        raise ConversionError(f"its rows, with resource and scope on each, {sizes}")
    return total


def _at_worst(columns: Mapping[int, Flat], rows: Mapping[int, int], count: int) -> int:
    """Return the size of the rows if every record had all attributes of all resources and scopes."""
    taken = {payload: sum(array.nbytes for array in flat.values()) for payload, flat in columns.items()}
    origins = sum(taken.get(payload, 0) + _COPIED_ATTRIBUTE_BYTES * rows.get(payload, 0) for payload in (1, 2))
    return 3 * sum(taken.values()) + 20 * sum(rows.values()) + count * (origins + _ROW_BYTES)


def _copies(columns: Mapping[int, Flat], root: Flat, count: int) -> None:
    """Check the size of copies: a resource or scope that several groups share is written for each of them."""
    copied = 0.0
    for payload, name, names in ((1, "resource.id", _RESOURCE), (2, "scope.id", _ORIGIN)):
        if payload not in columns or not count:
            continue
        there = [column for column in names if column in root]
        groups = (
            pa.table([root[column] for column in there], names=there).group_by(there, use_threads=False).aggregate([])
        )
        identity = groups.column(name) if name in there else None
        holders = np.bincount(_ids(identity, groups.num_rows), minlength=_IDS)
        copied += (np.where(holders > 1, holders, 0) * _per_parent(columns[payload], _COPIED_ATTRIBUTE_BYTES)).sum()
    if copied > COLUMN_BYTES_MAX:
        raise ConversionError("resources and scopes are shared so often that the request would become too large")


def _ids(values: Any, count: int) -> Any:
    return np.zeros(count, np.int64) if values is None else np.asarray(pc.fill_null(values, 0)).astype(np.int64)


def _lengths(columns: Flat, names: tuple[str, ...], count: int) -> Any:
    total = np.zeros(count)
    for name in names:
        values = columns.get(name)
        if values is not None:
            total += np.asarray(pc.fill_null(pc.binary_length(values), 0))
    return total


def _per_parent(attributes: Flat | None, each_bytes: int) -> Any:
    """Return the estimated size of the attributes of each parent, indexed by its id."""
    if attributes is None or not attributes:
        return np.zeros(_IDS)
    count = len(next(iter(attributes.values())))
    sizes = each_bytes + _lengths(attributes, ("key", "str", "bytes", "ser"), count)
    return np.bincount(_ids(attributes.get("parent_id"), count), weights=sizes, minlength=_IDS)


def _points(points: Flat | None) -> Any:
    if points is None or not points:
        return np.zeros(_IDS)
    count = len(next(iter(points.values())))
    return np.bincount(_ids(points.get("parent_id"), count), minlength=_IDS)
