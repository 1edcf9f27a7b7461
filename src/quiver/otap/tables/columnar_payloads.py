"""
An OTLP export request → OTAP tables with plain ids, without an object per record.

The decoder of the views decodes the request; its lists become child tables with consecutive ids. The tables equal those
that `from_otlp.py` builds from protobuf objects. Data that cannot be converted exactly raise `FallbackNeededError` and
are converted by way of objects: the same cases as for views, ids of invalid length, and more records than one set of
tables can have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quiver.otap.any_values import AnyValues, key_values, optional_values
from quiver.otap.arrays import FallbackNeededError, counts_of, counts_of_binary, relist, repeated, require_one_arm
from quiver.otap.nested_cbor import cbor_values
from quiver.otap.request_shapes import SHAPES
from quiver.otap.tables.payload_arrays import PRESENCE, batch_of
from quiver.otap.tables.payload_schema import ATTRIBUTES_OF, POINTS_OF_KIND, ROOT_ROWS_MAX, SIGNALS, TABLES
from quiver.otap.views.schemas import view_name
from quiver.otap.wire_schema import decode_compiled, narrow_handler

__all__ = ["tables_of_columns"]

Columns = dict[str, pa.Array]

_ARMS = {"str": "string_value", "int": "int_value", "double": "double_value", "bool": "bool_value",
         "bytes": "bytes_value"}  # fmt: skip


def tables_of_columns(data: bytes, signal: str) -> tuple[Mapping[int, pa.RecordBatch], Counter[str]]:
    """
    Return the tables of a request that passed the shell parse, and the counts of data that tables cannot represent.

    Raises:
        FallbackNeededError: the request needs the conversion by way of objects.
        UsageError: no such signal.
    """
    view = view_name(signal)
    try:
        batch = decode_compiled(narrow_handler(view).list_to_record_batch, [data])
    except (ImportError, ValueError) as error:
        raise FallbackNeededError from error
    shape = SHAPES[view]
    resources: Any = batch.column(shape.resources).values
    scope_lists = resources.field(shape.scopes)
    scopes: Any = scope_lists.values
    item_lists = scopes.field(shape.items)
    items: Any = item_lists.values
    if len(items) > ROOT_ROWS_MAX:
        raise FallbackNeededError
    per_scope = counts_of(item_lists)
    resource_of = repeated(counts_of(scope_lists))
    tables = _Tables("traces" if view == "spans" else view)
    left_out: Counter[str] = Counter()
    left_out["entity_refs"] = len(resources.field("resource").field("entity_refs").values)
    used_scopes = np.flatnonzero(per_scope)
    used_resources = np.unique(resource_of[used_scopes])
    left_out["empty_scopes"] = len(scopes) - len(used_scopes)
    left_out["empty_resources"] = len(resources) - len(used_resources)
    root = tables.root
    if len(items):
        root |= _origins(tables, scopes, resources, used_scopes, used_resources, per_scope, resource_of)
        {"logs": _logs, "spans": _spans, "metrics": _metrics}[view](tables, items)
    return tables.batches(), +left_out


class _Tables:
    """Tables under construction: for each payload type its columns."""

    def __init__(self, signal: str) -> None:
        self.columns: dict[int, Columns] = {}
        self._root = SIGNALS[signal].root
        self.columns[self._root] = {}

    @property
    def root(self) -> Columns:
        return self.columns[self._root]

    @root.setter
    def root(self, columns: Columns) -> None:
        self.columns[self._root] = columns

    def batches(self) -> dict[int, pa.RecordBatch]:
        made = {}
        for payload, columns in sorted(self.columns.items()):
            if columns:
                made[payload] = batch_of(TABLES[payload], columns)
        return made

    def attributes(self, payload: int, lists: Any, parents: np.ndarray) -> None:
        """Add the attributes of rows whose ids are *parents*."""
        entries: Any = lists.values
        if not len(entries):
            return
        keys, values = key_values(entries)
        width = np.uint16 if TABLES[payload].by_name["parent_id"].type == pa.uint16() else np.uint32
        self.columns[payload] = {
            "parent_id": pa.array(np.repeat(parents, counts_of(lists)).astype(width)),
            "key": keys,
            **_values(values, ""),
        }


def _values(values: AnyValues, prefix: str) -> Columns:
    made = {f"{prefix}type": pa.array(values.kinds.astype(np.uint8))}
    made |= {f"{prefix}{name}": values.field(arm) for name, arm in _ARMS.items() if values.has(arm)}
    if values.has("array_value") or values.has("kvlist_value"):
        made[f"{prefix}ser"] = cbor_values(values)
    return made


def _ids(used: np.ndarray, width: Any) -> tuple[pa.Array, np.ndarray]:
    """Return ids for the rows with children and null for the others, as a column and for the children's column."""
    numbers = (np.cumsum(used) - 1).astype(width)
    return pa.array(numbers, mask=~used), numbers


def _child_ids(used: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """Return ids for child rows, which are their indexes; null for those without children."""
    numbers = np.arange(len(used), dtype=np.uint32)
    return pa.array(numbers, mask=~used), numbers


def _origins(
    tables: _Tables,
    scopes: Any,
    resources: Any,
    used_scopes: Any,
    used_resources: Any,
    per_scope: Any,
    resource_of: Any,
) -> Columns:
    """Add the attributes of resources and scopes with records. Return the columns about them on each record."""
    scope, resource = scopes.field("scope"), resources.field("resource")
    picked_scopes, picked_resources = pa.array(used_scopes), pa.array(used_resources)
    tables.attributes(1, _picked(resource.field("attributes"), picked_resources), np.arange(len(used_resources)))
    tables.attributes(2, _picked(scope.field("attributes"), picked_scopes), np.arange(len(used_scopes)))
    scope_of = np.repeat(np.arange(len(used_scopes)), per_scope[used_scopes])
    of_scope = pa.array(used_scopes[scope_of])
    resource_of_row = resource_of[used_scopes[scope_of]]
    of_resource = pa.array(resource_of_row)
    return {
        "resource.id": pa.array(np.searchsorted(used_resources, resource_of_row).astype(np.uint16)),
        "resource.schema_url": _taken(resources.field("schema_url"), of_resource),
        "resource.dropped_attributes_count": resource.field("dropped_attributes_count").take(of_resource),
        "scope.id": pa.array(scope_of.astype(np.uint16)),
        "scope.name": _taken(scope.field("name"), of_scope),
        "scope.version": _taken(scope.field("version"), of_scope),
        "scope.dropped_attributes_count": scope.field("dropped_attributes_count").take(of_scope),
        "schema_url": _taken(scopes.field("schema_url"), of_scope),
    }


def _picked(lists: Any, which: pa.Array) -> Any:
    return lists if len(which) == len(lists) else lists.take(which)


def _taken(texts: pa.Array, which: pa.Array) -> pa.Array:
    """Return the selected texts; if all are empty, nulls, which are equivalent in a table and cheap."""
    return texts.take(which) if counts_of_binary(texts).any() else pa.nulls(len(which), pa.string())


# -- one kind of value -------------------------------------------------------------------------------------


def _times(numbers: pa.Array) -> pa.Array:
    return pa.array(np.asarray(numbers).view(np.int64)).view(pa.timestamp("ns", "UTC"))


def _fixed(ids: pa.Array, payload: int, name: str) -> pa.Array:
    """Return ids as a table has them: null if empty, or zeros where the column is not nullable."""
    column = TABLES[payload].by_name[name]
    width = column.type.byte_width
    lengths = counts_of_binary(ids)
    there = lengths > 0
    if (lengths[there] != width).any():
        raise FallbackNeededError
    data = ids.buffers()[2]
    raw = np.zeros((len(ids), width), np.uint8)
    if there.any():
        start = int(np.frombuffer(ids.buffers()[1], np.int32)[ids.offset])
        count = int(np.count_nonzero(there))
        raw[there] = np.frombuffer(data, np.uint8)[start : start + count * width].reshape(-1, width)
    valid = None if column.required or there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(column.type, len(ids), [valid, pa.py_buffer(raw)])


# -- logs and spans ----------------------------------------------------------------------------------------


def _logs(tables: _Tables, records: Any) -> None:
    field = records.field
    attributes = field("attributes")
    ids, numbers = _ids(counts_of(attributes) > 0, np.uint16)
    tables.attributes(31, attributes, numbers)
    tables.root |= {
        "id": ids,
        "time_unix_nano": _times(field("time_unix_nano")),
        "observed_time_unix_nano": _times(field("observed_time_unix_nano")),
        "trace_id": _fixed(field("trace_id"), 30, "trace_id"),
        "span_id": _fixed(field("span_id"), 30, "span_id"),
        **_values(optional_values(field("body")), "body."),
        **{name: field(name) for name in ("severity_number", "severity_text", "flags", "event_name")},
        "dropped_attributes_count": field("dropped_attributes_count"),
    }


def _spans(tables: _Tables, spans: Any) -> None:
    field = spans.field
    attributes, events, links = field("attributes"), field("events"), field("links")
    ids, numbers = _ids(counts_of(attributes) + counts_of(events) + counts_of(links) > 0, np.uint16)
    starts, ends = np.asarray(field("start_time_unix_nano")), np.asarray(field("end_time_unix_nano"))
    counts = ("dropped_attributes_count", "dropped_events_count", "dropped_links_count")
    tables.attributes(41, attributes, numbers)
    tables.root |= {
        "id": ids,
        "start_time_unix_nano": _times(field("start_time_unix_nano")),
        "duration_time_unix_nano": pa.array((ends - starts).view(np.int64)).view(pa.duration("ns")),
        **{name: _fixed(field(name), 40, name) for name in ("trace_id", "span_id", "parent_span_id")},
        **{name: field(name) for name in ("trace_state", "flags", "name", "kind", *counts)},
        "status.code": field("status").field("code"),
        "status.status_message": field("status").field("message"),
    }
    for payload, lists, names in (
        (42, events, ("name", "dropped_attributes_count")),
        (43, links, ("trace_state", "dropped_attributes_count", "flags")),
    ):
        rows: Any = lists.values
        if not len(rows):
            continue
        inner = rows.field("attributes")
        own, own_numbers = _child_ids(counts_of(inner) > 0)
        tables.attributes(ATTRIBUTES_OF[payload], inner, own_numbers)
        columns = {"id": own, "parent_id": pa.array(np.repeat(numbers, counts_of(lists)))}
        columns |= {name: rows.field(name) for name in names}
        if payload == 42:
            columns["time_unix_nano"] = _times(rows.field("time_unix_nano"))
        else:
            columns |= {name: _fixed(rows.field(name), 43, name) for name in ("trace_id", "span_id")}
        tables.columns[payload] = columns


# -- metrics -----------------------------------------------------------------------------------------------


def _metrics(tables: _Tables, metrics: Any) -> None:
    arms = {kind: metrics.field(name) for kind, (name, _, _) in POINTS_OF_KIND.items()}
    require_one_arm(list(arms.values()))
    kinds = np.zeros(len(metrics), np.uint8)
    for kind, arm in arms.items():
        kinds[np.asarray(arm.is_valid())] = kind
    numbers = np.arange(len(metrics), dtype=np.uint16)
    tables.attributes(26, metrics.field("metadata"), numbers)
    temporality = np.zeros(len(metrics), np.int32)
    for kind in (2, 3, 4):
        of_kind = kinds == kind
        temporality[of_kind] = np.asarray(arms[kind].field("aggregation_temporality"))[of_kind]
    tables.root |= {
        "id": pa.array(numbers),
        "metric_type": pa.array(kinds),
        **{name: metrics.field(name) for name in ("name", "description", "unit")},
        "aggregation_temporality": pa.array(temporality, mask=~np.isin(kinds, (2, 3, 4))),
        "is_monotonic": pc.and_(pa.array(kinds == 2), arms[2].field("is_monotonic")),
    }
    for payload in (11, 12, 13, 14):
        own = [kind for kind, (_, of_kind, _) in POINTS_OF_KIND.items() if of_kind == payload]
        points, metric_of = _points([arms[kind].field("data_points") for kind in own])
        if len(points):
            _write_points(tables, payload, POINTS_OF_KIND[own[0]][2], points, metric_of)


def _points(lists: list[Any]) -> tuple[Any, np.ndarray]:
    """Return the points of one table in document order, with the metric of each."""
    used = [one for one in lists if len(one.values)] or lists[:1]
    metric_of = [repeated(counts_of(one)) for one in used]
    if len(used) == 1:
        return used[0].values, metric_of[0]
    metrics = np.concatenate(metric_of)
    order = np.argsort(metrics, kind="stable")
    return pa.concat_arrays([one.values for one in used]).take(pa.array(order)), metrics[order]


def _write_points(tables: _Tables, payload: int, exemplars_in: int | None, points: Any, metric_of: np.ndarray) -> None:
    field = points.field
    attributes = field("attributes")
    used = counts_of(attributes) > 0
    exemplars = field("exemplars") if exemplars_in is not None else None
    if exemplars is not None:
        used |= counts_of(exemplars) > 0
    ids, numbers = _child_ids(used)
    tables.attributes(ATTRIBUTES_OF[payload], attributes, numbers)
    columns = {
        "id": ids,
        "parent_id": pa.array(metric_of.astype(np.uint16)),
        "start_time_unix_nano": _times(field("start_time_unix_nano")),
        "time_unix_nano": _times(field("time_unix_nano")),
        "flags": field("flags"),
    }
    tables.columns[payload] = columns | _POINTS[payload](points, payload)
    if exemplars is not None and exemplars_in is not None and len(exemplars.values):
        _exemplars(tables, exemplars_in, exemplars, numbers)


def _numbers(points: Any, _: int) -> Columns:
    whole, point = points.field("as_int"), points.field("as_double")
    require_one_arm([whole, point])
    return {"int_value": whole, "double_value": point}


def _summaries(points: Any, payload: int) -> Columns:
    pairs = points.field("quantile_values")
    kind = TABLES[payload].by_name["quantile"].type
    values: Any = pairs.values
    made = pa.StructArray.from_arrays([values.field("quantile"), values.field("value")], fields=list(kind.value_type))
    return {"count": points.field("count"), "sum": points.field("sum"), "quantile": relist(pairs, made, kind)}


def _lists(lists: Any, payload: int, name: str) -> pa.Array:
    return relist(lists, lists.values, TABLES[payload].by_name[name].type)


def _histograms(points: Any, payload: int) -> Columns:
    made = {name: points.field(name) for name in ("count", "sum", "min", "max")}
    return made | {name: _lists(points.field(name), payload, name) for name in ("bucket_counts", "explicit_bounds")}


def _exp_histograms(points: Any, payload: int) -> Columns:
    plain = ("count", "sum", "scale", "zero_count", "min", "max", "zero_threshold")
    made = {name: points.field(name) for name in plain}
    for name in PRESENCE:
        side = points.field(name)
        made[name] = side.is_valid()
        made[f"{name}.offset"] = side.field("offset")
        made[f"{name}.bucket_counts"] = _lists(side.field("bucket_counts"), payload, f"{name}.bucket_counts")
    return made


_POINTS: dict[int, Callable[[Any, int], Columns]] = {
    11: _numbers, 12: _summaries, 13: _histograms, 14: _exp_histograms,
}  # fmt: skip


def _exemplars(tables: _Tables, payload: int, lists: Any, parents: np.ndarray) -> None:
    rows: Any = lists.values
    attributes = rows.field("filtered_attributes")
    ids, numbers = _child_ids(counts_of(attributes) > 0)
    tables.attributes(ATTRIBUTES_OF[payload], attributes, numbers)
    require_one_arm([rows.field("as_int"), rows.field("as_double")])
    tables.columns[payload] = {
        "id": ids,
        "parent_id": pa.array(np.repeat(parents, counts_of(lists))),
        "time_unix_nano": _times(rows.field("time_unix_nano")),
        "int_value": rows.field("as_int"),
        "double_value": rows.field("as_double"),
        **{name: _fixed(rows.field(name), payload, name) for name in ("span_id", "trace_id")},
    }
