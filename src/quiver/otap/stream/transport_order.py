"""
Tables with plain ids → transport encoding: sorted, ids renumbered and delta-encoded.

Other implementations misread some valid encodings. The tables written here are in the form that all of them read
correctly: ids that do not decrease, a scope id for each pair of resource and scope, no null for a required value, and
no two adjacent rows whose equality they judge differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quiver.otap.conversion_errors import ConversionError
from quiver.otap.stream.transport_ids import equal_to_previous, plain_columns
from quiver.otap.tables.payload_arrays import COLUMN_BYTES_MAX, PRESENCE, Flat, default_array
from quiver.otap.tables.payload_schema import CHILD_ROWS_MAX, SIGNALS, TABLES, Table

__all__ = ["WireTables", "sorted_tables", "wire_rows"]

WireTables = dict[int, Flat]
"""Payload type → its columns."""

_VALUES = ("str", "int", "double", "bool", "bytes")


def sorted_tables(tables: Mapping[int, pa.RecordBatch], signal: str) -> WireTables:
    """
    Return the columns with plain ids, defaults instead of nulls, and rows sorted by resource.

    Raises:
        ConversionError: a table is invalid.
    """
    found: WireTables = {}
    for payload, batch in tables.items():
        table = TABLES[payload]
        columns = plain_columns(payload, batch)
        for column in table.columns:
            if column.name not in columns and (column.required or column.name == "id"):
                columns[column.name] = default_array(column, batch.num_rows)
            elif column.name in columns:
                columns[column.name] = _filled(column, columns[column.name])
        found[payload] = columns
    root = SIGNALS[signal].root
    if root in found:
        _join_origins(found, root)
    return found


def _filled(column: Any, array: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type) and array.type != column.type:
        array = array.view(pa.int64()).view(column.type)
    keeps_null = column.optional or (pa.types.is_fixed_size_binary(column.type) and not column.required)
    if array.null_count == 0 or keeps_null or pa.types.is_list(column.type):
        return array
    return pc.if_else(array.is_valid(), array, default_array(column, 1)[0])


def _join_origins(found: WireTables, root: int) -> None:
    """Sort the root rows by resource and scope, and number resources and pairs of resource and scope."""
    columns = found[root]
    resources = _ids(columns["resource.id"])
    scopes = _ids(columns["scope.id"])
    order = np.lexsort((scopes, resources))
    if (order[1:] < order[:-1]).any():
        columns.update({name: array.take(pa.array(order)) for name, array in columns.items()})
        resources, scopes = resources[order], scopes[order]
    fresh_resource = np.ones(len(order), np.bool_)
    fresh_resource[1:] = resources[1:] != resources[:-1]
    fresh_scope = fresh_resource.copy()
    fresh_scope[1:] |= scopes[1:] != scopes[:-1]
    for payload, name, fresh, old in (
        (1, "resource.id", fresh_resource, resources),
        (2, "scope.id", fresh_scope, scopes),
    ):
        columns[name] = pa.array((np.cumsum(fresh) - 1).astype(np.uint16))
        if payload in found:
            found[payload] = _repeated(found[payload], old[fresh])


def _ids(array: pa.Array) -> Any:
    return np.asarray(pc.fill_null(array.cast(pa.int64()), -1))


def _repeated(attributes: Flat, old: Any) -> Flat:
    """Return the attributes once for each new id, which is the index in *old*."""
    parents = np.asarray(attributes["parent_id"]).astype(np.int64)
    order = np.argsort(parents, kind="stable")
    ranks = parents[order]
    start, end = np.searchsorted(ranks, old, "left"), np.searchsorted(ranks, old, "right")
    repeated = int((end - start).sum())
    size = sum(array.nbytes for array in attributes.values()) // max(len(parents), 1)
    if repeated > max(len(parents), CHILD_ROWS_MAX // 4) or repeated * size > 4 * COLUMN_BYTES_MAX:
        counts = f"{len(parents)} attributes so often that there would be {repeated}"
        raise ConversionError(f"resources and scopes share {counts}")
    rows = [order[first:last] for first, last in zip(start.tolist(), end.tolist(), strict=True)]
    taken = pa.array(np.concatenate(rows) if rows else np.zeros(0, np.int64), pa.int64())
    made = {name: array.take(taken) for name, array in attributes.items()}
    made["parent_id"] = pa.array(np.repeat(np.arange(len(old)), end - start).astype(np.uint16))
    return made


def wire_rows(found: WireTables, signal: str, start: int, end: int) -> WireTables:
    """
    Return rows *start* to *end* of the root table and their children, with transport-encoded ids.

    *found* comes from `sorted_tables`. Rows without a parent are left out.
    """
    order = SIGNALS[signal].payloads
    root = order[0]
    if root not in found:
        return {}
    columns = {name: array.slice(start, end - start) for name, array in found[root].items()}
    numbered = {root: _renumber(columns, np.uint16)}
    for payload in (1, 2):
        name = "resource.id" if payload == 1 else "scope.id"
        old = np.asarray(columns[name]).astype(np.int64)
        distinct = np.unique(old)
        numbered[-payload] = (distinct, np.arange(len(distinct)))
        columns[name] = _differences(np.searchsorted(distinct, old), np.uint16)
    made = {root: columns}
    for payload in order[1:]:
        table = TABLES[payload]
        parent = -payload if table.parent is None else table.parent
        if payload not in found or parent not in numbered:
            continue
        rows = _with_parent(found[payload], numbered[parent])
        if len(rows["parent_id"]):
            rows = _sorted(table, rows)
            if "id" in rows:
                numbered[payload] = _renumber(rows, np.uint32)
            _write_parents(table, rows)
            made[payload] = rows
    for payload, rows in made.items():
        if "id" in rows and not TABLES[payload].by_name["id"].required and rows["id"].null_count == len(rows["id"]):
            del rows["id"]
    return made


def _renumber(columns: Flat, width: Any) -> tuple[Any, Any]:
    """Number the rows that have an id from 0, delta-encoded. Return the sorted old ids and the matching new ones."""
    array = columns["id"]
    valid = np.asarray(array.is_valid())
    old = np.asarray(array.drop_null()).astype(np.int64)
    steps = np.ones(len(old), np.int64)
    steps[:1] = 0
    written = np.zeros(len(valid), width)
    written[valid] = steps
    columns["id"] = pa.array(written, mask=~valid)
    order = np.argsort(old, kind="stable")
    return old[order], order


def _differences(values: Any, width: Any) -> pa.Array:
    return pa.array(np.diff(values, prepend=0).astype(width))


def _with_parent(rows: Flat, numbered: tuple[Any, Any]) -> Flat:
    """Return the rows whose parent exists, with its new id."""
    old, new = numbered
    parents = np.asarray(rows["parent_id"]).astype(np.int64)
    if not len(old):
        return {name: array.slice(0, 0) for name, array in rows.items()}
    places = np.minimum(np.searchsorted(old, parents), len(old) - 1)
    known = old[places] == parents
    kept = dict(rows)
    if not known.all():
        mask = pa.array(known)
        kept = {name: array.filter(mask) for name, array in rows.items()}
    kept["parent_id"] = pa.array(new[places[known]].astype(np.int64)).cast(rows["parent_id"].type)
    return kept


# -- order ------------------------------------------------------------------------------------------------


def _sorted(table: Table, rows: Flat) -> Flat:
    if table.family == "attributes":
        order = _attribute_order(rows)
    elif table.family == "exemplars":
        order = _exemplar_order(rows)
    else:
        order = _order(rows, {"events": ("name",), "links": ("trace_id",), "points": ()}[table.family])
    taken = pa.array(order)
    return {name: array.take(taken) for name, array in rows.items()}


def _order(rows: Flat, names: tuple[str, ...]) -> Any:
    keys: dict[str, pa.Array] = {}
    for name in (*names, "parent_id"):
        if name in rows:
            kind = rows[name].type
            keys[name] = rows[name].cast(pa.binary()) if pa.types.is_fixed_size_binary(kind) else rows[name]
    found = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])
    return np.asarray(found).astype(np.int64)


def _attribute_order(rows: Flat) -> Any:
    order = _order(rows, ("type", "key", *_VALUES))
    if "double" not in rows:
        return order
    doubles = np.asarray(pc.fill_null(rows["double"], 1.0))
    doubles = np.where(np.asarray(rows["type"]) == 3, doubles, 1.0)[order]
    return _separated(order, doubles)


def _separated(order: Any, doubles: Any) -> Any:
    """Separate rows with NaN from each other, and rows with minus zero from the row before, while other rows last."""
    odd = np.isnan(doubles) | ((doubles == 0) & np.signbit(doubles))
    if not odd.any():
        return order
    able = np.flatnonzero(~odd & (doubles != 0))
    between = able[len(able) - min(len(able), int(odd.sum())) :]
    rest = np.setdiff1d(np.flatnonzero(~odd), between)
    mixed: list[int] = []
    for at, place in enumerate(np.flatnonzero(odd).tolist()):
        mixed += [*between[at : at + 1].tolist(), place]
    return order[np.concatenate((rest, np.array(mixed, np.int64)))]


def _exemplar_order(rows: Flat) -> Any:
    """Return an order with rows without a value first, then integer zeros and float zeros, separated by other rows."""
    count = len(rows["parent_id"])
    nothing = pa.nulls(count)
    whole, point = rows.get("int_value", nothing), rows.get("double_value", nothing)
    has_whole, has_point = np.asarray(whole.is_valid()), np.asarray(point.is_valid())
    wholes = np.asarray(pc.fill_null(whole.cast(pa.int64()), 0))
    points = np.asarray(pc.fill_null(point.cast(pa.float64()), 0.0))
    ranks = np.zeros(count, np.int64)
    ranks[has_point] = np.where(points[has_point] == 0, 4, 3)
    ranks[has_whole] = np.where(wholes[has_whole] == 0, 2, 1)
    for short, rich in ((1, 3), (3, 1)):
        spare = np.flatnonzero(ranks == rich)
        if not (ranks == short).any() and len(spare) > 1:
            ranks[spare[-1]] = short
    order = _order({**rows, "rank": pa.array(ranks)}, ("rank", "int_value", "double_value"))
    return _separated(order, np.where(has_point & ~has_whole, points, np.where(ranks % 2 == 0, 0.0, 1.0))[order])


# -- parents ----------------------------------------------------------------------------------------------


def _write_parents(table: Table, rows: Flat) -> None:
    parents = np.asarray(rows["parent_id"]).astype(np.int64)
    before = np.concatenate((np.zeros(1, np.int64), parents[:-1]))
    if table.family != "points":
        batch = pa.RecordBatch.from_pydict({name: array for name, array in rows.items() if name not in PRESENCE})
        before = np.where(equal_to_previous(table, batch), before, 0)
    written = (parents - before).astype(np.uint16 if rows["parent_id"].type == pa.uint16() else np.uint32)
    rows["parent_id"] = pa.array(written)
