"""
OTAP tables → the columns of the views `logs` and `spans`, without converting to a request.

Children are joined by their parents' ids, one column at a time, and passed to the makers of columns for requests, under
the names that the request decoder uses. Data for which these raise `FallbackNeededError` are converted to a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from quiver.otap.arrays import FallbackNeededError, placed, texts, validity, widened
from quiver.otap.tables.cbor import decode_value
from quiver.otap.tables.cbor_columns import written_flat
from quiver.otap.tables.payload_arrays import Flat, default_array
from quiver.otap.tables.payload_schema import ATTRIBUTES_OF, SIGNALS, TABLES, Column, Table
from quiver.otap.tables.to_otlp import value_levels
from quiver.otap.tables.validation import ValidTables
from quiver.otap.views.columnar import ColumnarRequests
from quiver.otap.views.columnar_records import log_arrays, span_arrays
from quiver.otap.views.columns import json_text
from quiver.otap.views.nested_json import JSON
from quiver.otap.views.typed_arrays import maps, repeated_maps

__all__ = ["decode_tables"]

_ARMS = (("string_value", "str", 1, ""), ("int_value", "int", 2, 0), ("double_value", "double", 3, 0.0),
         ("bool_value", "bool", 4, False), ("bytes_value", "bytes", 7, b""))  # fmt: skip
_ID_BITS = 32
_FEW = 24
"""Up to this many nested values, converting them individually is faster than by column."""
_MAP, _ARRAY = 5, 6
_ALL = slice(None)
"""All rows of a table."""


class _Columns:
    """Columns by name, possibly nested, with the part of the interface of a struct array that makers use."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns

    def field(self, name: str) -> Any:
        return self._columns[name]


class _Lists:
    """Lists of *values*, one for each parent."""

    def __init__(self, counts: Any, values: Any) -> None:
        self.offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
        self.values = values


class _Table:
    """The rows of one table in the types of requests, with defaults for nulls and omitted columns."""

    def __init__(self, payload: int, sets: Sequence[ValidTables]) -> None:
        self.payload = payload
        self.counts = [one.rows.get(payload, 0) for one in sets]
        self.rows = sum(self.counts)
        flats = [one.columns[payload] for one in sets if payload in one.columns]
        counts = [one.rows[payload] for one in sets if payload in one.columns]
        self._flat = flats[0] if len(flats) == 1 else _joined(TABLES[payload], flats, counts)
        # Ids are only unique within one set of tables.
        self._sets = np.repeat(np.arange(len(sets), dtype=np.int64) << _ID_BITS, self.counts)

    def column(self, name: str, picked: Any = _ALL) -> Any:
        """Return a column, or the rows *picked* of it."""
        column = TABLES[self.payload].by_name[name]
        array = self._flat.get(name)
        if array is None:
            array = default_array(column, self.rows)
        return _filled(column, array if picked is _ALL else array.take(pa.array(picked)))

    def ids(self, name: str) -> tuple[Any, Any]:
        """Return an id column with zeros for nulls, and where it is not null."""
        array = self._flat.get(name)
        if array is None:
            required = TABLES[self.payload].by_name[name].required and name != "id"
            return self._sets, np.full(self.rows, required)
        there = np.asarray(array.is_valid()) if name == "id" else np.ones(self.rows, np.bool_)
        return np.asarray(pc.fill_null(array, 0)).astype(np.int64) + self._sets, there

    def children(self, ids: Any, there: Any) -> tuple[Any, Any]:
        """Return the number of children of each of *ids*, and their rows."""
        parents, _ = self.ids("parent_id")
        in_order = bool((parents[1:] >= parents[:-1]).all())
        order = None if in_order else np.argsort(parents, kind="stable")
        parents = parents if order is None else parents[order]
        starts = np.searchsorted(parents, ids, "left")
        counts = np.where(there, np.searchsorted(parents, ids, "right") - starts, 0)
        ends = np.cumsum(counts)
        places = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
        if order is not None:
            return counts, order[places]
        as_they_stand = len(places) == self.rows and bool((places == np.arange(self.rows)).all())
        return counts, _ALL if as_they_stand else places


def _joined(table: Table, flats: Sequence[Flat], counts: Sequence[int]) -> Flat:
    """Concatenate the columns of several batches."""
    names = {name for flat in flats for name in flat}
    return {
        column.name: pa.concat_arrays(
            [
                _typed(column, flat[column.name]) if column.name in flat else default_array(column, rows)
                for flat, rows in zip(flats, counts, strict=True)
            ]
        )
        for column in table.columns
        if column.name in names
    }


def _typed(column: Column, array: pa.Array) -> pa.Array:
    """Return the column in its exact type, ignoring time zones."""
    return array if array.type == column.type else array.view(pa.int64()).view(column.type)


def decode_tables(sets: Sequence[ValidTables], view: str) -> ColumnarRequests:
    """
    Decode sets of tables, with one row for each row of their roots, in order.

    Raises:
        FallbackNeededError: they need the conversion to a request, as does a column whose maker raises it, and the view
            `metrics`.
    """
    if view == "metrics":
        raise FallbackNeededError
    signal = "traces" if view == "spans" else view
    found = {payload: _Table(payload, sets) for payload in SIGNALS[signal].payloads}
    root = found[SIGNALS[signal].root]
    fields = _root(root, found)
    makers = log_arrays(_Columns(fields)) if view == "logs" else span_arrays(_Columns(fields))
    makers |= _origins(root, found[1], found[2])
    return ColumnarRequests(root.counts, makers)


class _Made(dict[str, Any]):
    """Columns that are built on access."""

    def __init__(self, makers: Mapping[str, Callable[[], Any]]) -> None:
        super().__init__()
        self._makers = makers

    def __missing__(self, name: str) -> Any:
        return self._makers[name]()


def _root(root: _Table, found: Mapping[int, _Table]) -> _Made:
    def plain(name: str) -> Callable[[], Any]:
        return lambda: root.column(name)

    makers: dict[str, Callable[[], Any]] = {
        column.name: plain(column.name) for column in TABLES[root.payload].columns if not column.struct
    }
    ids, there = root.ids("id")
    makers["attributes"] = lambda: _attributes(found[ATTRIBUTES_OF[root.payload]], ids, there)
    if root.payload == 30:
        makers["body"] = lambda: _values(root, "body.", _ALL)
        return _Made(makers)
    makers["end_time_unix_nano"] = lambda: _sum(
        root.column("start_time_unix_nano"), root.column("duration_time_unix_nano")
    )
    status = {"code": plain("status.code"), "message": plain("status.status_message")}
    makers["status"] = lambda: _Columns(_Made(status))
    for name, payload in (("events", 42), ("links", 43)):
        makers[name] = _hanging(found[payload], found[ATTRIBUTES_OF[payload]], ids, there)
    return _Made(makers)


def _hanging(table: _Table, attributes: _Table, ids: Any, there: Any) -> Callable[[], _Lists]:
    """Return the maker of the events or links of each span."""

    def make() -> _Lists:
        counts, picked = table.children(ids, there)
        own, own_there = table.ids("id")
        columns: dict[str, Any] = {
            column.name: table.column(column.name, picked)
            for column in TABLES[table.payload].columns
            if column.name not in {"id", "parent_id"}
        }
        columns["attributes"] = _attributes(attributes, own[picked], own_there[picked])
        return _Lists(counts, _Columns(columns))

    return make


def _attributes(table: _Table, ids: Any, there: Any) -> _Lists:
    counts, picked = table.children(ids, there)
    columns = {"key": table.column("key", picked), "value": _values(table, "", picked)}
    return _Lists(counts, _Columns(columns))


def _values(table: _Table, prefix: str, picked: Any) -> _Columns:
    """Return values as the arms of AnyValue, each null where the value has another kind."""
    kinds = np.asarray(table.column(f"{prefix}type", picked))
    arms: dict[str, Any] = {}
    for arm, name, kind, zero in _ARMS:
        of_kind = kinds == kind
        column = TABLES[table.payload].by_name[f"{prefix}{name}"]
        if not of_kind.any():
            arms[arm] = pa.nulls(len(kinds), column.type)
            continue
        values = table.column(column.name, picked)
        if not (validity(values) == of_kind).all():
            # A zero may be encoded as null, and a row of another kind may have a value here.
            values = pc.fill_null(values, pa.scalar(zero, column.type))
            values = values if of_kind.all() else pc.if_else(pa.array(of_kind), values, None)
        arms[arm] = values
    nested = (kinds == _MAP) | (kinds == _ARRAY)
    rows = pa.array(np.flatnonzero(nested))
    column = TABLES[table.payload].by_name[f"{prefix}ser"]
    cbor = table.column(column.name, picked).take(rows) if len(rows) else pa.nulls(0, pa.binary())
    arms["json_value"] = placed(_json(cbor, np.asarray(kinds)[nested], value_levels(table.payload)), nested)
    return _Columns(arms)


def _json(cbor: pa.Array, kinds: Any, levels: int) -> pa.Array:
    """Return arrays and maps as JSON. Each distinct one is decoded once."""
    encoded: Any = cbor.dictionary_encode()
    distinct = encoded.dictionary
    try:
        flat = written_flat(distinct, JSON) if len(distinct) > _FEW else pa.nulls(len(distinct), pa.string())
    except FallbackNeededError:
        flat = pa.nulls(len(distinct), pa.string())
    left = np.flatnonzero(~validity(flat))
    one_by_one: list[str | None] = []
    for data in distinct.take(pa.array(left)).to_pylist():
        value: Any = AnyValue()
        if data:
            decode_value(data, value, levels=levels)
        one_by_one.append(json_text(value) if data else None)
    places = np.arange(len(distinct))
    places[left] = len(distinct) + np.arange(len(left))
    made = pa.concat_arrays([flat, pa.array(one_by_one, pa.string())]).take(pa.array(places))
    empty = pa.array(np.where(kinds == _MAP, "{}", "[]").tolist(), pa.string())
    return pc.coalesce(made.take(encoded.indices), empty)


def _origins(root: _Table, resources: _Table, scopes: _Table) -> dict[str, Callable[[], pa.Array]]:
    def attributes_of(table: _Table, name: str) -> pa.Array:
        ids, _ = root.ids(name)
        distinct, which = np.unique(ids, return_inverse=True)
        lists: Any = _attributes(table, distinct, np.ones(len(distinct), np.bool_))
        return repeated_maps(maps(lists), which)

    dropped = "dropped_attributes_count"
    return {
        "scope_name": lambda: texts(root.column("scope.name")),
        "scope_version": lambda: texts(root.column("scope.version")),
        "scope_attributes": lambda: attributes_of(scopes, "scope.id"),
        "scope_dropped_attributes_count": lambda: widened(root.column(f"scope.{dropped}")),
        "scope_schema_url": lambda: texts(root.column("schema_url")),
        "resource_attributes": lambda: attributes_of(resources, "resource.id"),
        "resource_dropped_attributes_count": lambda: widened(root.column(f"resource.{dropped}")),
        "resource_schema_url": lambda: texts(root.column("resource.schema_url")),
    }


def _sum(starts: pa.Array, durations: pa.Array) -> pa.Array:
    return pa.array(np.asarray(starts) + np.asarray(durations))  # modulo 2^64, as in the conversion to a request


def _filled(column: Column, array: pa.Array) -> Any:
    """Return the column as in a request: ids of any length, times as numbers, nulls only where allowed."""
    kind = column.type
    if pa.types.is_fixed_size_binary(kind):
        return _ids_of_any_length(array, kind.byte_width)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return pa.array(np.asarray(pc.fill_null(array.view(pa.int64()), 0)).view(np.uint64))
    if column.optional or not array.null_count:
        return array
    return pc.fill_null(array, pa.scalar(_zero(kind), kind))


def _zero(kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return ""
    return False if pa.types.is_boolean(kind) else 0


def _ids_of_any_length(array: pa.Array, width: int) -> pa.Array:
    """Return ids as binary; null or all zeros, which mean unset, become empty."""
    if not len(array):
        return pa.array([], pa.binary())
    start = array.offset * width
    raw = np.frombuffer(array.buffers()[1], np.uint8)[start : start + len(array) * width].reshape(-1, width)
    there = raw.any(axis=1) & np.asarray(array.is_valid())
    offsets = np.concatenate(([0], np.cumsum(there) * width)).astype(np.int32)
    data = np.ascontiguousarray(raw[there])
    return pa.Array.from_buffers(pa.binary(), len(array), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
