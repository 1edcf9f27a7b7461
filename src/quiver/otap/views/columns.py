"""
The building blocks of every view: values of protobuf objects → Arrow columns.

Values are collected by kind and placed by Arrow, which is several times faster than Python lists with nulls.
"""

from __future__ import annotations

import json
import math
from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from quiver.otap.views.schemas import TIME, TYPED_VALUE

__all__ = [
    "Column",
    "Flat",
    "attribute_maps",
    "codes",
    "flatten",
    "hex_ids",
    "int32s",
    "json_number",
    "json_text",
    "list_column",
    "nanoseconds",
    "origin_columns",
    "scatter",
    "signed",
    "small_numbers",
    "texts",
    "times",
    "typed_values",
]

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_INT64_MAX = (1 << 63) - 1
_UNIX_EPOCH_UNKNOWN = 0

_KIND_STRING, _KIND_BOOL, _KIND_INT, _KIND_DOUBLE, _KIND_BYTES, _KIND_JSON = range(1, 7)

Column = Callable[[Any], pa.Array]
"""Builds one column from the flattened rows."""


# -- one kind of value -------------------------------------------------------------------------------------


def texts(values: Iterable[str]) -> pa.Array:
    """Return strings; the empty string, which OTLP cannot distinguish from unset, is null."""
    return pa.array([value or None for value in values], pa.string())


def hex_ids(values: Iterable[bytes]) -> pa.Array:
    """Return ids of any length as lower-case hex; an id that is empty or all zeros is null."""
    return pa.array([value.hex() if any(value) else None for value in values], pa.string())


def signed(values: Sequence[int]) -> pa.Array:
    """Return unsigned 64-bit numbers as int64; numbers that do not fit are null."""
    unsigned = pa.array(values, pa.uint64())
    if len(unsigned) and pc.max(unsigned).as_py() > _INT64_MAX:
        unsigned = pc.if_else(pc.less_equal(unsigned, pa.scalar(_INT64_MAX, pa.uint64())), unsigned, None)
    return unsigned.cast(pa.int64())


nanoseconds = signed
"""Exact nanoseconds since the epoch; 0 is unknown, null is beyond the year 2262."""


def times(values: Sequence[int]) -> pa.Array:
    """Return nanoseconds since the epoch as timestamps, truncated to microseconds; 0 (unknown) is null."""
    unsigned = pa.array(values, pa.uint64())
    micros = pc.divide(unsigned, pa.scalar(1000, pa.uint64())).cast(pa.int64())
    known = pc.not_equal(unsigned, pa.scalar(_UNIX_EPOCH_UNKNOWN, pa.uint64()))
    return pc.if_else(known, micros, pa.scalar(None, pa.int64())).cast(TIME)


def codes(values: Iterable[int], names: Sequence[str]) -> pa.Array:
    """Return the names of enumeration numbers; a number without a name is returned as digits."""
    known = dict(enumerate(names))
    return pa.array([known.get(value) or str(value) for value in values], pa.string())


def list_column(lengths: Iterable[int], values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Split *values* into lists of the given lengths."""
    return pa.ListArray.from_arrays(_offsets(lengths), values, type=kind)


def _offsets(lengths: Iterable[int]) -> pa.Array:
    ends = array("i", [0])
    end = 0
    for length in lengths:
        end += length
        ends.append(end)
    return int32s(ends)


def int32s(values: array[int]) -> pa.Array:
    """Return the numbers of an `array("i")` as int32, without copying."""
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values)])


def small_numbers(values: bytes | bytearray) -> pa.Array:
    """Return bytes as uint8 numbers, without copying."""
    return pa.Array.from_buffers(pa.uint8(), len(values), [None, pa.py_buffer(values)])


def scatter(kinds: pa.Array, parts: dict[int, pa.Array], kind_of_column: pa.DataType) -> pa.Array:
    """Return a column with the next value of `parts[k]` where `kinds` is k, and null elsewhere."""
    column = pa.nulls(len(kinds), kind_of_column)
    for kind, values in parts.items():
        if len(values):
            column = pc.replace_with_mask(column, pc.equal(kinds, kind), values)
    return column


# -- typed values ------------------------------------------------------------------------------------------


def typed_values(values: Iterable[Any]) -> pa.Array:
    """Return AnyValues as structs with one field per kind; all fields are null if the value is unset."""
    kinds = bytearray()
    strings: list[str] = []
    bools: list[bool] = []
    ints: list[int] = []
    doubles: list[float] = []
    blobs: list[bytes] = []
    nested: list[str] = []
    for value in values:
        kind = value.WhichOneof("value")
        if kind == "string_value":
            kinds.append(_KIND_STRING)
            strings.append(value.string_value)
        elif kind == "int_value":
            kinds.append(_KIND_INT)
            ints.append(value.int_value)
        elif kind == "bool_value":
            kinds.append(_KIND_BOOL)
            bools.append(value.bool_value)
        elif kind == "double_value":
            kinds.append(_KIND_DOUBLE)
            doubles.append(value.double_value)
        elif kind == "bytes_value":
            kinds.append(_KIND_BYTES)
            blobs.append(value.bytes_value)
        elif kind in {"array_value", "kvlist_value"}:
            kinds.append(_KIND_JSON)
            nested.append(json_text(value))
        else:
            kinds.append(0)
    gathered = (
        (_KIND_STRING, strings, pa.string()),
        (_KIND_BOOL, bools, pa.bool_()),
        (_KIND_INT, ints, pa.int64()),
        (_KIND_DOUBLE, doubles, pa.float64()),
        (_KIND_BYTES, blobs, pa.binary()),
        (_KIND_JSON, nested, pa.string()),
    )
    which = small_numbers(kinds)
    arms = [scatter(which, {kind: pa.array(part, arrow)}, arrow) for kind, part, arrow in gathered]
    return pa.StructArray.from_arrays(arms, fields=list(TYPED_VALUE))


def json_text(value: Any) -> str:
    """Return an AnyValue as JSON: bytes as base64, NaN and infinities as strings, an unset value as null."""
    return _JSON.encode(_json_value(value))


def _json_value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_json_value(element) for element in value.array_value.values]
    if kind == "kvlist_value":
        return {entry.key: _json_value(entry.value) for entry in value.kvlist_value.values}
    if kind == "bytes_value":
        return b64encode(value.bytes_value).decode("ascii")
    if kind == "double_value":
        return json_number(value.double_value)
    if kind in {"string_value", "bool_value", "int_value"}:
        return getattr(value, kind)
    return None


def json_number(number: float) -> float | str:
    """Return a number for JSON, with strings for NaN and infinities."""
    if math.isfinite(number):
        return number
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def attribute_maps(attribute_lists: Iterable[Any]) -> pa.Array:
    """Return one map per list of attributes. For a duplicate key, the last value is kept."""
    keys: list[str] = []
    ends = array("i", [0])

    def values() -> Iterator[Any]:
        # One list at a time: live protobuf objects slow down every pass of the garbage collector.
        for attributes in attribute_lists:
            if attributes:
                # Keys must be unique in OTLP; a reader may fail on a batch with a duplicate key in an Arrow map.
                pairs = {entry.key: entry.value for entry in attributes}
                keys.extend(pairs)
                yield from pairs.values()
            ends.append(len(keys))

    items = typed_values(values())
    return pa.MapArray.from_arrays(int32s(ends), pa.array(keys, pa.string()), items)


# -- rows and their origins -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Flat:
    """
    The records, spans or metrics of several requests, concatenated, with their scopes and resources.

    Attributes:
        items: the records, spans or metrics, in document order.
        scope_of: item → index in `scopes`.
        scopes: the messages of scopes (ScopeLogs, ScopeSpans, ScopeMetrics).
        resource_of: index in `scopes` → index in `resources`.
        resources: the messages of resources.
        per_request: the number of items of each request.
    """

    items: list[Any]
    scope_of: array[int]
    scopes: list[Any]
    resource_of: array[int]
    resources: list[Any]
    per_request: list[int]


def flatten(messages: Iterable[Any], *, resources: str, scopes: str, items: str) -> Flat:
    """Concatenate the items of parsed requests. The arguments name the repeated fields."""
    flat = Flat([], array("i"), [], array("i"), [], [])
    for message in messages:
        before = len(flat.items)
        for resource_items in getattr(message, resources):
            flat.resources.append(resource_items)
            for scope_items in getattr(resource_items, scopes):
                found = getattr(scope_items, items)
                flat.scope_of.extend(array("i", [len(flat.scopes)]) * len(found))
                flat.scopes.append(scope_items)
                flat.resource_of.append(len(flat.resources) - 1)
                flat.items.extend(found)
        flat.per_request.append(len(flat.items) - before)
    return flat


def origin_columns(flat: Flat) -> dict[str, Callable[[], pa.Array]]:
    """
    Return the makers of the columns about an item's scope and resource, by name.

    Values are built once per scope and resource and repeated by index.
    """

    def by_scope(values: pa.Array) -> pa.Array:
        return values.take(int32s(flat.scope_of))

    def by_resource(values: pa.Array) -> pa.Array:
        return values.take(int32s(flat.resource_of).take(int32s(flat.scope_of)))

    scopes, resources = flat.scopes, flat.resources
    return {
        "scope_name": lambda: by_scope(texts(s.scope.name for s in scopes)),
        "scope_version": lambda: by_scope(texts(s.scope.version for s in scopes)),
        "scope_attributes": lambda: by_scope(attribute_maps(s.scope.attributes for s in scopes)),
        "scope_dropped_attributes_count": lambda: by_scope(
            pa.array([s.scope.dropped_attributes_count for s in scopes], pa.int64())
        ),
        "scope_schema_url": lambda: by_scope(texts(s.schema_url for s in scopes)),
        "resource_attributes": lambda: by_resource(attribute_maps(r.resource.attributes for r in resources)),
        "resource_dropped_attributes_count": lambda: by_resource(
            pa.array([r.resource.dropped_attributes_count for r in resources], pa.int64())
        ),
        "resource_schema_url": lambda: by_resource(texts(r.schema_url for r in resources)),
    }
