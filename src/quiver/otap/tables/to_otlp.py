"""
OTAP tables → an OTLP export request. Ids may be plain or transport-encoded, by their metadata or the defaults.

Records are grouped by the resource and scope columns of their own row and by the pair of their ids: a scope id alone
does not identify a resource. Children without a parent are counted and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from google.protobuf.message import EncodeError

from quiver.otap.conversion_errors import ConversionError
from quiver.otap.request_shapes import SHAPES
from quiver.otap.stream.transport_ids import plain_ids
from quiver.otap.tables.cbor import ITEMS_MAX, LEVELS_MAX, decode_value
from quiver.otap.tables.payload_arrays import COLUMN_BYTES_MAX, PRESENCE, Lists, lists_of
from quiver.otap.tables.payload_schema import ATTRIBUTES_OF, POINTS_OF_KIND, SIGNALS, TABLES
from quiver.otap.views.schemas import view_name
from quiver.primitives.scan import Damage

__all__ = ["Restored", "message_of_tables", "request_of_tables", "value_levels"]

_U64 = (1 << 64) - 1
_RESOURCE = ("resource.id", "resource.schema_url", "resource.dropped_attributes_count")
_SCOPE = ("scope.id", "scope.name", "scope.version", "scope.dropped_attributes_count", "schema_url")
_LOG_FIELDS = (
    "time_unix_nano", "observed_time_unix_nano", "trace_id", "span_id", "severity_number", "severity_text",
    "dropped_attributes_count", "flags", "event_name",
)  # fmt: skip
_SPAN_FIELDS = (
    "start_time_unix_nano", "trace_id", "span_id", "trace_state", "parent_span_id", "flags", "name", "kind",
    "dropped_attributes_count", "dropped_events_count", "dropped_links_count",
)  # fmt: skip
_EVENT_FIELDS = ("time_unix_nano", "name", "dropped_attributes_count")
_LINK_FIELDS = ("trace_id", "span_id", "trace_state", "dropped_attributes_count", "flags")
_POINT_FIELDS = ("start_time_unix_nano", "time_unix_nano", "flags")
_EXEMPLAR_FIELDS = ("time_unix_nano", "span_id", "trace_id")

Targets = Mapping[int, Sequence[Any]]
"""Id → the messages that its children are added to; several for a resource that several groups share."""


@dataclass(frozen=True, slots=True)
class Restored:
    """
    A request converted from tables.

    Attributes:
        data: the export request in protobuf.
        orphans: the number of rows without a parent, which are left out.
    """

    data: bytes
    orphans: int


def request_of_tables(tables: Mapping[int, pa.RecordBatch], signal: str) -> Restored | Damage:
    """
    Convert tables to an OTLP export request, or return why they are invalid.

    Raises:
        UsageError: no such signal.
    """
    read = message_of_tables(tables, signal)
    if isinstance(read, Damage):
        return read
    message, orphans = read
    try:
        return Restored(message.SerializeToString(), orphans)
    except (EncodeError, ValueError) as error:
        return Damage(0, f"the request cannot be encoded: {error}")


def message_of_tables(tables: Mapping[int, pa.RecordBatch], signal: str) -> tuple[Any, int] | Damage:
    """
    Convert tables to a protobuf object and the number of orphans, or return why they are invalid.

    Raises:
        UsageError: no such signal.
    """
    view = view_name(signal)
    signal = "traces" if view == "spans" else view
    strange = sorted(set(tables) - set(SIGNALS[signal].payloads))
    if strange:
        return Damage(0, f"payload types {strange} do not belong to {signal}")
    try:
        reader = _Reader(tables, view)
        {"logs": reader.logs, "spans": reader.spans, "metrics": reader.metrics}[view]()
    except ConversionError as refusal:
        return Damage(0, str(refusal))
    except (pa.ArrowException, UnicodeDecodeError) as error:
        return Damage(0, f"the tables cannot be read: {error}")
    return reader.message, reader.orphans


class _Reader:
    """Converts the tables, parents first, and adds each row to the message of its parent's row."""

    def __init__(self, tables: Mapping[int, pa.RecordBatch], view: str) -> None:
        self._shape = SHAPES[view]
        self._tables = tables
        self.message = self._shape.request()
        self.orphans = 0
        self._items_left = ITEMS_MAX
        self._copies_left = COLUMN_BYTES_MAX

    def lists(self, payload: int) -> tuple[Lists, int]:
        batch = self._tables.get(payload)
        if batch is None:
            return {}, 0
        table = TABLES[payload]
        if batch.num_rows > table.rows_max:
            raise ConversionError(f"{table.name} has {batch.num_rows} rows; the limit is {table.rows_max}")
        return lists_of(table, plain_ids(payload, batch)), batch.num_rows

    # -- roots ------------------------------------------------------------------------------------

    def roots(self, payload: int) -> tuple[Lists, list[Any], dict[int, list[Any]]]:
        """Return the root table's columns, a new message for each row, and the messages with an id by id."""
        lists, rows = self.lists(payload)
        holders: dict[tuple[Any, ...], Any] = {}
        resources: dict[tuple[Any, ...], Any] = {}
        resource_attributes: dict[int, list[Any]] = {}
        scope_attributes: dict[int, list[Any]] = {}
        made: list[Any] = []
        if rows:
            resource_keys = zip(*(lists[name] for name in _RESOURCE), strict=True)
            scope_keys = zip(*(lists[name] for name in _SCOPE), strict=True)
            for resource_key, scope_key in zip(resource_keys, scope_keys, strict=True):
                holder = holders.get((resource_key, scope_key))
                if holder is None:
                    if resource_key not in resources:
                        resources[resource_key] = self._resource(resource_key, resource_attributes)
                    holder = self._scope(resources[resource_key], scope_key, scope_attributes)
                    holders[resource_key, scope_key] = holder
                made.append(holder.add())
        self.attributes(1, resource_attributes)
        self.attributes(2, scope_attributes)
        return lists, made, self.by_id(payload, lists, made)

    def _resource(self, key: tuple[Any, ...], attributes: dict[int, list[Any]]) -> Any:
        identity, schema_url, dropped = key
        items = getattr(self.message, self._shape.resources).add()
        if schema_url:
            items.schema_url = schema_url
        if dropped:
            items.resource.dropped_attributes_count = dropped
        attributes.setdefault(identity, []).append(items.resource)
        return items

    def _scope(self, resource_items: Any, key: tuple[Any, ...], attributes: dict[int, list[Any]]) -> Any:
        identity, name, version, dropped, schema_url = key
        items = getattr(resource_items, self._shape.scopes).add()
        if schema_url:
            items.schema_url = schema_url
        for field, value in (("name", name), ("version", version), ("dropped_attributes_count", dropped)):
            if value:
                setattr(items.scope, field, value)
        attributes.setdefault(identity, []).append(items.scope)
        return getattr(items, self._shape.items)

    @staticmethod
    def by_id(payload: int, lists: Lists, made: Sequence[Any]) -> dict[int, list[Any]]:
        """Return the messages with an id by id, without orphans."""
        if not made:
            return {}
        found = {identity: [made[at]] for at, identity in enumerate(lists["id"]) if identity is not None}
        if len(found) < len(made) - lists["id"].count(None):
            raise ConversionError(f"{TABLES[payload].name}: two rows have the same id")
        return {identity: holders for identity, holders in found.items() if holders[0] is not None}

    # -- children ---------------------------------------------------------------------------------

    def attributes(self, payload: int, targets: Targets, field: str = "attributes") -> None:
        lists, rows = self.lists(payload)
        if not rows:
            return
        values = [lists[name] for name in ("type", "str", "int", "double", "bool", "bytes", "ser")]
        for parent, key, value in zip(lists["parent_id"], lists["key"], zip(*values, strict=True), strict=True):
            holders = targets.get(parent, ())
            self.orphans += not holders
            if len(holders) > 1:
                self._count_copies(len(holders), key, value)
            for holder in holders:
                pair = getattr(holder, field).add()
                pair.key = key
                if value[0]:
                    self._set_value(pair.value, value, payload)

    def _count_copies(self, copies: int, key: str, value: Sequence[Any]) -> None:
        """Check the size of copies: a resource that several groups share is written for each of them."""
        self._copies_left -= copies * (100 + len(key) + sum(len(value[at] or "") for at in (1, 5, 6)))
        if self._copies_left < 0:
            raise ConversionError("resources and scopes are shared so often that the request would become too large")

    def _set_value(self, value: Any, columns: Sequence[Any], payload: int) -> None:
        """Set an `AnyValue` from the columns type, str, int, double, bool, bytes, ser."""
        kind = columns[0]
        if kind == 1:
            value.string_value = columns[1] or ""
        elif kind == 2:
            value.int_value = columns[2] or 0
        elif kind == 3:
            value.double_value = 0.0 if columns[3] is None else columns[3]
        elif kind == 4:
            value.bool_value = bool(columns[4])
        elif kind == 7:
            value.bytes_value = columns[5] or b""
        elif kind in {5, 6}:
            arm = "kvlist_value" if kind == 5 else "array_value"
            if columns[6]:
                self._items_left -= decode_value(
                    columns[6], value, levels=value_levels(payload), items=self._items_left
                )
            else:
                getattr(value, arm).SetInParent()
            if value.WhichOneof("value") != arm:
                raise ConversionError(f"{TABLES[payload].name}: a value of type {kind} has another kind in its CBOR")
        else:
            raise ConversionError(f"{TABLES[payload].name}: unknown value type {kind}")

    def children(self, payload: int, targets: Targets, field: str) -> tuple[Lists, list[Any], dict[int, list[Any]]]:
        """Return a child table's columns, a new message for each row (None for orphans), and those with an id by id."""
        lists, rows = self.lists(payload)
        made = []
        for parent in lists["parent_id"] if rows else ():
            holders = targets.get(parent)
            self.orphans += not holders
            made.append(getattr(holders[0], field).add() if holders else None)
        return lists, made, self.by_id(payload, lists, made)

    # -- signals ----------------------------------------------------------------------------------

    def logs(self) -> None:
        lists, records, by_id = self.roots(30)
        _fill(records, lists, _LOG_FIELDS)
        if records:
            values = (lists[f"body.{name}"] for name in ("type", "str", "int", "double", "bool", "bytes", "ser"))
            for record, value in zip(records, zip(*values, strict=True), strict=True):
                if value[0]:
                    self._set_value(record.body, value, 30)
        self.attributes(31, by_id)

    def spans(self) -> None:
        lists, spans, by_id = self.roots(40)
        _fill(spans, lists, _SPAN_FIELDS)
        for at, span in enumerate(spans):
            end = (lists["start_time_unix_nano"][at] + lists["duration_time_unix_nano"][at]) & _U64
            if end:
                span.end_time_unix_nano = end
            if lists["status.code"][at]:
                span.status.code = lists["status.code"][at]
            if lists["status.status_message"][at]:
                span.status.message = lists["status.status_message"][at]
        self.attributes(41, by_id)
        for payload, field, names in ((42, "events", _EVENT_FIELDS), (43, "links", _LINK_FIELDS)):
            columns, made, made_by_id = self.children(payload, by_id, field)
            _fill(made, columns, names)
            self.attributes(ATTRIBUTES_OF[payload], made_by_id)

    def metrics(self) -> None:
        lists, metrics, by_id = self.roots(10)
        _fill(metrics, lists, ("name", "description", "unit"))
        points: dict[int, dict[int, list[Any]]] = {}
        for at, metric in enumerate(metrics):
            kind = lists["metric_type"][at]
            if not kind:
                continue
            if kind not in POINTS_OF_KIND:
                raise ConversionError(f"UNIVARIATE_METRICS: unknown metric type {kind}")
            arm, payload, _ = POINTS_OF_KIND[kind]
            data = getattr(metric, arm)
            data.SetInParent()
            if lists["aggregation_temporality"][at] and kind in {2, 3, 4}:
                data.aggregation_temporality = lists["aggregation_temporality"][at]
            if lists["is_monotonic"][at] and kind == 2:
                data.is_monotonic = True
            if lists["id"][at] is not None:
                points.setdefault(payload, {})[lists["id"][at]] = [data]
        self.attributes(26, by_id, "metadata")
        self.points(points)

    def points(self, targets: Mapping[int, Targets]) -> None:
        fills: dict[int, Callable[[Any, Lists, int], None]] = {
            11: _fill_number, 12: _fill_summary, 13: _fill_histogram, 14: _fill_exp_histogram,
        }  # fmt: skip
        for payload, exemplars_payload in {table: below for _, table, below in POINTS_OF_KIND.values()}.items():
            lists, points, by_id = self.children(payload, targets.get(payload, {}), "data_points")
            _fill(points, lists, _POINT_FIELDS)
            for at, point in enumerate(points):
                if point is not None:
                    fills[payload](point, lists, at)
            self.attributes(ATTRIBUTES_OF[payload], by_id)
            if exemplars_payload is not None:
                columns, exemplars, exemplars_by_id = self.children(exemplars_payload, by_id, "exemplars")
                _fill(exemplars, columns, _EXEMPLAR_FIELDS)
                for at, exemplar in enumerate(exemplars):
                    if exemplar is not None:
                        _fill_number(exemplar, columns, at)
                self.attributes(ATTRIBUTES_OF[exemplars_payload], exemplars_by_id, "filtered_attributes")


def _fill(made: Sequence[Any], lists: Lists, names: Sequence[str]) -> None:
    """Set the fields that are not zero, and skip orphans."""
    if not made:
        return
    for name in names:
        for message, value in zip(made, lists[name], strict=True):
            if value and message is not None:
                setattr(message, name, value)


def _fill_number(point: Any, lists: Lists, at: int) -> None:
    if lists["int_value"][at] is not None:
        point.as_int = lists["int_value"][at]
    elif lists["double_value"][at] is not None:
        point.as_double = lists["double_value"][at]


def _fill_summary(point: Any, lists: Lists, at: int) -> None:
    point.count = lists["count"][at]
    point.sum = lists["sum"][at]
    for pair in lists["quantile"][at]:
        quantile = point.quantile_values.add()
        for name, value in (pair or {}).items():
            if value is not None:
                setattr(quantile, name, value)


def _fill_histogram(point: Any, lists: Lists, at: int) -> None:
    point.count = lists["count"][at]
    point.bucket_counts.extend(lists["bucket_counts"][at] or ())
    point.explicit_bounds.extend(lists["explicit_bounds"][at] or ())
    _fill_optional(point, lists, at)


def _fill_exp_histogram(point: Any, lists: Lists, at: int) -> None:
    point.count = lists["count"][at]
    point.scale = lists["scale"][at]
    point.zero_count = lists["zero_count"][at]
    point.zero_threshold = lists["zero_threshold"][at]
    for name in PRESENCE:
        if lists[name][at]:
            buckets = getattr(point, name)
            buckets.SetInParent()
            buckets.offset = lists[f"{name}.offset"][at]
            buckets.bucket_counts.extend(lists[f"{name}.bucket_counts"][at] or ())
    _fill_optional(point, lists, at)


def _fill_optional(point: Any, lists: Lists, at: int) -> None:
    for name in ("sum", "min", "max"):
        if lists[name][at] is not None:
            setattr(point, name, lists[name][at])


def value_levels(payload: int) -> int:
    """Return the remaining nesting limit of protobuf readers for a value of this table."""
    above = {1: 4, 2: 5, 26: 5, 30: 4, 31: 5, 41: 5, 44: 6, 45: 6}
    return LEVELS_MAX - above.get(payload, 7 if payload < 19 else 8)
