"""
OTLP export requests → OTAP tables with plain ids, from parsed protobuf objects.

Every resource and scope of the request gets its own id, so that two equal ones stay separate. Data that OTAP cannot
represent are counted, not dropped silently: resources and scopes without records, and references to entities.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from quiver.otap.arrays import FallbackNeededError
from quiver.otap.conversion_errors import ConversionError
from quiver.otap.request import measure_request, parse_request
from quiver.otap.request_shapes import SHAPES
from quiver.otap.tables.cbor import encode_value
from quiver.otap.tables.columnar_payloads import tables_of_columns
from quiver.otap.tables.payload_arrays import PRESENCE, Lists, build_batch
from quiver.otap.tables.payload_schema import ATTRIBUTES_OF, POINTS_OF_KIND, ROOT_ROWS_MAX, SIGNALS, TABLES
from quiver.otap.views.schemas import view_name
from quiver.primitives.scan import Damage

__all__ = ["Converted", "tables_of_message", "tables_of_request"]

Tables = Mapping[int, pa.RecordBatch]
_U64 = (1 << 64) - 1
_LONG_TAG = re.compile(rb"\x80\x80\x00")  # searching with a pattern takes less than half the time of `in`
"""
The end of a tag of more than five bytes whose field number takes up to three of them. Minimal varints never end like
this, and other data rarely have these bytes: a request that has them is only checked more closely.
"""
_KINDS = {
    "string_value": 1, "int_value": 2, "double_value": 3, "bool_value": 4, "kvlist_value": 5,
    "array_value": 6, "bytes_value": 7,
}  # fmt: skip
_NESTED = frozenset({5, 6})
_Stores = dict[str, tuple[int, Callable[[Any], None]]]
_COLUMNS = {1: "str", 2: "int", 3: "double", 4: "bool", 5: "ser", 6: "ser", 7: "bytes"}


@dataclass(frozen=True, slots=True)
class Converted:
    """
    A request converted to tables.

    Attributes:
        tables: sets of tables, payload type → batch; several if there are more records than ids.
        left_out: the kinds of data that tables cannot represent → how often they occurred; empty: nothing was lost.
    """

    tables: tuple[Tables, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


def tables_of_request(data: bytes | memoryview, signal: str) -> Converted | Damage:
    """
    Convert an OTLP export request in protobuf to tables, or return why that is not possible.

    The bytes are not a request, an id has an invalid length, or the rows would be too large.

    Raises:
        UsageError: no such signal.
    """
    data = bytes(data)
    # The columnar decoder drops excess bytes at the end of packed numbers, so metrics are parsed first. So are requests
    # that may have a tag of more than five bytes, which it accepts, unlike any protobuf library.
    is_parsed = signal == "metrics" or _LONG_TAG.search(data) is not None
    checked = (parse_request if is_parsed else measure_request)(data, signal)
    if isinstance(checked, Damage):
        return checked
    try:
        tables, left_out = tables_of_columns(data, signal)
    except FallbackNeededError:
        return _tables_by_object(data, signal)
    if left_out and not is_parsed:
        checked = parse_request(data, signal)  # the parts that are left out were not checked
        if isinstance(checked, Damage):
            return checked
    return Converted((tables,) if tables else (), left_out)


def _tables_by_object(data: bytes | memoryview, signal: str) -> Converted | Damage:
    """Convert with an object per record: several times slower, but complete."""
    kind = SHAPES[view_name(signal)].request
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        reason = str(error).rpartition(": ")[2] or "cannot be parsed"
        return Damage(0, f"not an {kind.DESCRIPTOR.name}: {reason}")
    return tables_of_message(message, signal)


def tables_of_message(message: Any, signal: str) -> Converted | Damage:
    """
    Convert a parsed request to tables, or return why that is not possible: an id has an invalid length.

    Raises:
        UsageError: no such signal.
    """
    view = view_name(signal)
    shape = SHAPES[view]
    write = {"logs": _log, "spans": _span, "metrics": _metric}[view]
    name = "traces" if view == "spans" else view
    left_out: Counter[str] = Counter()
    rows = _Rows(name)
    done = [rows]
    for resource_items in getattr(message, shape.resources):
        scopes = getattr(resource_items, shape.scopes)
        left_out["entity_refs"] += len(resource_items.resource.entity_refs)
        left_out["empty_resources"] += not any(len(getattr(scope, shape.items)) for scope in scopes)
        resource = -1
        for scope_items in scopes:
            scope = -1
            items = getattr(scope_items, shape.items)
            left_out["empty_scopes"] += not len(items)
            for item in items:
                if len(rows.root["schema_url"]) == ROOT_ROWS_MAX:
                    rows = _Rows(name)
                    done.append(rows)
                    resource = scope = -1
                if resource < 0:
                    resource = rows.origin(1, resource_items.resource.attributes)
                if scope < 0:
                    scope = rows.origin(2, scope_items.scope.attributes)
                rows.place(resource, resource_items, scope, scope_items)
                write(rows, item)
    try:
        return Converted(tuple(made for rows in done if (made := rows.tables())), dict(+left_out))
    except ConversionError as refusal:
        return Damage(0, str(refusal))


class _Rows:
    """Tables under construction: for each payload type a list per column."""

    def __init__(self, signal: str) -> None:
        self.lists: dict[int, Lists] = {}
        for payload in SIGNALS[signal].payloads:
            columns = self.lists[payload] = {column.name: [] for column in TABLES[payload].columns}
            columns.update({name: [] for name in PRESENCE if f"{name}.offset" in columns})
        self._stores = {payload: _stores(lists, "") for payload, lists in self.lists.items() if "key" in lists}
        self.root = self.lists[SIGNALS[signal].root]
        self._bodies = _stores(self.root, "body.") if "body.type" in self.root else {}
        self._root_ids = 0
        self._origins = {1: 0, 2: 0}

    def tables(self) -> Tables:
        batches = {payload: build_batch(TABLES[payload], lists) for payload, lists in sorted(self.lists.items())}
        return {payload: batch for payload, batch in batches.items() if batch is not None}

    def add(self, payload: int, **values: Any) -> None:
        lists = self.lists[payload]
        for name, value in values.items():
            lists[name].append(value)

    def root_id(self, used: Any) -> int | None:
        """Return the id of the next record, or None if it has no children."""
        if not used:
            self.root["id"].append(None)
            return None
        self.root["id"].append(self._root_ids)
        self._root_ids += 1
        return self._root_ids - 1

    def child_id(self, payload: int, used: Any) -> int | None:
        """Return the id of the next child row, which is its index, or None if it has no children."""
        ids = self.lists[payload]["id"]
        ids.append(len(ids) if used else None)
        return ids[-1]

    def origin(self, payload: int, attributes: Any) -> int:
        """Return the id of the next resource (1) or scope (2)."""
        made = self._origins[payload]
        self._origins[payload] += 1
        self.attributes(payload, made, attributes)
        return made

    def place(self, resource: int, resource_items: Any, scope: int, scope_items: Any) -> None:
        root = self.root
        root["resource.id"].append(resource)
        root["resource.schema_url"].append(resource_items.schema_url)
        root["resource.dropped_attributes_count"].append(resource_items.resource.dropped_attributes_count)
        origin = scope_items.scope
        root["scope.id"].append(scope)
        root["scope.name"].append(origin.name)
        root["scope.version"].append(origin.version)
        root["scope.dropped_attributes_count"].append(origin.dropped_attributes_count)
        root["schema_url"].append(scope_items.schema_url)

    def attributes(self, payload: int, parent: int | None, pairs: Any) -> None:
        if not pairs:
            return
        lists, stores = self.lists[payload], self._stores[payload]
        parents, keys, types = lists["parent_id"], lists["key"], lists["type"]
        for pair in pairs:
            parents.append(parent)
            keys.append(pair.key)
            types.append(_store(pair.value, stores))

    def body(self, value: Any) -> None:
        self.root["body.type"].append(_store(value, self._bodies))


def _stores(lists: Lists, prefix: str) -> _Stores:
    return {arm: (kind, lists[prefix + _COLUMNS[kind]].append) for arm, kind in _KINDS.items()}


def _store(value: Any, stores: _Stores) -> int:
    """Append a value to the column of its kind and return the kind; 0 for an unset value, which has no column."""
    arm = value.WhichOneof("value")
    found = stores.get(arm)
    if found is None:
        return 0
    kind, add = found
    add(encode_value(value) if kind in _NESTED else getattr(value, arm))
    return kind


def _log(rows: _Rows, record: Any) -> None:
    identity = rows.root_id(record.attributes)
    rows.attributes(31, identity, record.attributes)
    rows.body(record.body)
    rows.add(
        30,
        time_unix_nano=record.time_unix_nano,
        observed_time_unix_nano=record.observed_time_unix_nano,
        trace_id=record.trace_id,
        span_id=record.span_id,
        severity_number=record.severity_number,
        severity_text=record.severity_text,
        dropped_attributes_count=record.dropped_attributes_count,
        flags=record.flags,
        event_name=record.event_name,
    )


def _span(rows: _Rows, span: Any) -> None:
    identity = rows.root_id(span.attributes or span.events or span.links)
    rows.attributes(41, identity, span.attributes)
    rows.add(
        40,
        start_time_unix_nano=span.start_time_unix_nano,
        duration_time_unix_nano=(span.end_time_unix_nano - span.start_time_unix_nano) & _U64,
        trace_id=span.trace_id,
        span_id=span.span_id,
        trace_state=span.trace_state,
        parent_span_id=span.parent_span_id,
        flags=span.flags,
        name=span.name,
        kind=span.kind,
        dropped_attributes_count=span.dropped_attributes_count,
        dropped_events_count=span.dropped_events_count,
        dropped_links_count=span.dropped_links_count,
        **{"status.code": span.status.code, "status.status_message": span.status.message},
    )
    for event in span.events:
        rows.attributes(44, rows.child_id(42, event.attributes), event.attributes)
        rows.add(
            42,
            parent_id=identity,
            time_unix_nano=event.time_unix_nano,
            name=event.name,
            dropped_attributes_count=event.dropped_attributes_count,
        )
    for link in span.links:
        rows.attributes(45, rows.child_id(43, link.attributes), link.attributes)
        rows.add(
            43,
            parent_id=identity,
            trace_id=link.trace_id,
            span_id=link.span_id,
            trace_state=link.trace_state,
            dropped_attributes_count=link.dropped_attributes_count,
            flags=link.flags,
        )


def _metric(rows: _Rows, metric: Any) -> None:
    identity = rows.root_id(True)
    rows.attributes(26, identity, metric.metadata)
    arm = metric.WhichOneof("data")
    kind = next((number for number, (name, _, _) in POINTS_OF_KIND.items() if name == arm), 0)
    data = getattr(metric, arm) if kind else None
    rows.add(
        10,
        metric_type=kind,
        name=metric.name,
        description=metric.description,
        unit=metric.unit,
        aggregation_temporality=data.aggregation_temporality if data is not None and kind in {2, 3, 4} else None,
        is_monotonic=data.is_monotonic if data is not None and kind == 2 else False,
    )
    if data is None:
        return
    _, payload, exemplars_payload = POINTS_OF_KIND[kind]
    write = {11: _number, 12: _summary, 13: _histogram, 14: _exp_histogram}[payload]
    for point in data.data_points:
        exemplars = point.exemplars if exemplars_payload is not None else ()
        point_id = rows.child_id(payload, point.attributes or exemplars)
        rows.attributes(ATTRIBUTES_OF[payload], point_id, point.attributes)
        rows.add(
            payload,
            parent_id=identity,
            start_time_unix_nano=point.start_time_unix_nano,
            time_unix_nano=point.time_unix_nano,
            flags=point.flags,
        )
        write(rows, payload, point)
        for exemplar in exemplars:
            _exemplar(rows, exemplars_payload or 0, point_id, exemplar)


def _number(rows: _Rows, payload: int, point: Any) -> None:
    rows.add(payload, int_value=_set(point, "as_int"), double_value=_set(point, "as_double"))


def _summary(rows: _Rows, payload: int, point: Any) -> None:
    quantiles = [{"quantile": pair.quantile, "value": pair.value} for pair in point.quantile_values]
    rows.add(payload, count=point.count, sum=point.sum, quantile=quantiles)


def _histogram(rows: _Rows, payload: int, point: Any) -> None:
    rows.add(
        payload,
        count=point.count,
        sum=_set(point, "sum"),
        bucket_counts=list(point.bucket_counts),
        explicit_bounds=list(point.explicit_bounds),
        min=_set(point, "min"),
        max=_set(point, "max"),
    )


def _exp_histogram(rows: _Rows, payload: int, point: Any) -> None:
    for name in PRESENCE:
        buckets = getattr(point, name)
        rows.add(
            payload,
            **{
                name: point.HasField(name),
                f"{name}.offset": buckets.offset,
                f"{name}.bucket_counts": list(buckets.bucket_counts),
            },
        )
    rows.add(
        payload,
        count=point.count,
        sum=_set(point, "sum"),
        scale=point.scale,
        zero_count=point.zero_count,
        min=_set(point, "min"),
        max=_set(point, "max"),
        zero_threshold=point.zero_threshold,
    )


def _exemplar(rows: _Rows, payload: int, parent: int | None, exemplar: Any) -> None:
    identity = rows.child_id(payload, exemplar.filtered_attributes)
    rows.attributes(ATTRIBUTES_OF[payload], identity, exemplar.filtered_attributes)
    rows.add(
        payload,
        parent_id=parent,
        time_unix_nano=exemplar.time_unix_nano,
        int_value=_set(exemplar, "as_int"),
        double_value=_set(exemplar, "as_double"),
        span_id=exemplar.span_id,
        trace_id=exemplar.trace_id,
    )


def _set(message: Any, name: str) -> Any:
    """Return an optional field; None if it is unset."""
    return getattr(message, name) if message.HasField(name) else None
