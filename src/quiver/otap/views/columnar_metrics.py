"""The columns of the view `metrics` from nested Arrow: points of five kinds, in document order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quiver.otap.arrays import (
    codes,
    counts_of,
    hex_ids,
    nanoseconds,
    relist,
    repeated,
    require_one_arm,
    signed,
    texts,
    times,
    widened,
)
from quiver.otap.views.metrics import METRIC_TYPES, TEMPORALITIES
from quiver.otap.views.schemas import view_schema
from quiver.otap.views.typed_arrays import maps, repeated_maps

__all__ = ["MetricArrays", "metric_arrays"]

_ARMS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
_GAUGE, _SUM, _HISTOGRAM, _EXPONENTIAL, _SUMMARY = range(len(_ARMS))
_SCHEMA = view_schema("metrics")


@dataclass(frozen=True, slots=True)
class MetricArrays:
    """
    The data points of a run of metrics.

    Attributes:
        metric_of: row → index of its metric.
        makers: column name → function that builds the column.
    """

    metric_of: np.ndarray
    makers: dict[str, Callable[[], pa.Array]]


class _Points:
    """The rows of the points of each kind."""

    def __init__(self, metrics: Any) -> None:
        arms = [metrics.field(name) for name in _ARMS]
        require_one_arm(arms)
        self.metrics = metrics
        self.lists = [arm.field("data_points") for arm in arms]
        counts = np.stack([counts_of(lists) for lists in self.lists]) if len(metrics) else np.zeros((5, 0), np.int32)
        self.metric_of = repeated(counts.sum(axis=0))
        self.kind_of = counts.argmax(axis=0).astype(np.int32)[self.metric_of] if len(metrics) else self.metric_of
        self.points: list[Any] = [lists.values for lists in self.lists]
        self._places = [np.flatnonzero(self.kind_of == kind) for kind in range(len(_ARMS))]

    def every(self, make: Callable[[Any], pa.Array], *, but: Iterable[int] = ()) -> pa.Array:
        """Build a column for all kinds, null for those in *but*, in the order of rows."""
        return self.of([kind for kind in range(len(_ARMS)) if kind not in but], make)

    def of(self, kinds: Iterable[int], make: Callable[[Any], pa.Array], arrow: pa.DataType | None = None) -> pa.Array:
        """Build a column for the points of *kinds*, in the order of rows; null elsewhere."""
        rows = len(self.metric_of)
        parts = []
        order = np.full(rows, -1, np.int32)
        total = 0
        for kind in kinds:
            places = self._places[kind]
            if len(places) == 0:
                continue
            order[places] = np.arange(total, total + len(places), dtype=np.int32)
            total += len(places)
            parts.append(make(self.points[kind]))
        if not parts:
            return pa.nulls(rows, arrow) if arrow is not None else make(self.points[_GAUGE]).take(pa.array(order))
        whole = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        if total == rows and len(parts) == 1:
            return whole
        return whole.take(pa.array(order, pa.int32(), mask=order < 0))


def metric_arrays(metrics: Any) -> MetricArrays:
    """
    Return the points of *metrics* with the makers of their columns.

    Raises:
        FallbackNeededError: a metric has two kinds.
    """
    points = _Points(metrics)
    makers = {**_head_columns(points), **_point_columns(points), **_histogram_columns(points)}
    return MetricArrays(points.metric_of, makers)


def _head_columns(points: _Points) -> dict[str, Callable[[], pa.Array]]:
    metrics = points.metrics

    def by_metric(values: pa.Array) -> pa.Array:
        return values.take(pa.array(points.metric_of))

    def temporality() -> pa.Array:
        result: pa.Array = pa.nulls(len(metrics), pa.string())
        for arm in ("sum", "histogram", "exponential_histogram"):
            held = metrics.field(arm)
            named = codes(held.field("aggregation_temporality"), TEMPORALITIES)
            result = pc.if_else(held.is_valid(), named, result)
        return by_metric(result)

    def monotonic() -> pa.Array:
        return by_metric(pc.struct_field(metrics.field("sum"), "is_monotonic"))

    return {
        "name": lambda: by_metric(texts(metrics.field("name"))),
        "description": lambda: by_metric(texts(metrics.field("description"))),
        "unit": lambda: by_metric(texts(metrics.field("unit"))),
        "metadata": lambda: repeated_maps(maps(metrics.field("metadata")), points.metric_of),
        "type": lambda: pa.array(METRIC_TYPES, pa.string()).take(pa.array(points.kind_of)),
        "temporality": temporality,
        "is_monotonic": monotonic,
    }


def _point_columns(points: _Points) -> dict[str, Callable[[], pa.Array]]:
    return {
        "start_time": lambda: points.every(lambda p: times(p.field("start_time_unix_nano"))),
        "start_time_unix_nano": lambda: points.every(lambda p: nanoseconds(p.field("start_time_unix_nano"))),
        "time": lambda: points.every(lambda p: times(p.field("time_unix_nano"))),
        "time_unix_nano": lambda: points.every(lambda p: nanoseconds(p.field("time_unix_nano"))),
        "attributes": lambda: points.every(lambda p: maps(p.field("attributes"))),
        "flags": lambda: points.every(lambda p: widened(p.field("flags"))),
        "int_value": lambda: _number(points, "as_int"),
        "double_value": lambda: _number(points, "as_double"),
        "exemplars": lambda: _exemplars(points),
    }


def _number(points: _Points, arm: str) -> pa.Array:
    def one_arm(found: Any) -> pa.Array:
        require_one_arm([found.field("as_int"), found.field("as_double")])
        return found.field(arm)

    return points.of((_GAUGE, _SUM), one_arm, pa.int64() if arm == "as_int" else pa.float64())


def _histogram_columns(points: _Points) -> dict[str, Callable[[], pa.Array]]:
    doubles = pa.float64()

    def optional(name: str, kinds: tuple[int, ...]) -> pa.Array:
        return points.of(kinds, lambda p: p.field(name), doubles)

    def exponential(name: str, arrow: pa.DataType, make: Callable[[pa.Array], pa.Array]) -> pa.Array:
        return points.of((_EXPONENTIAL,), lambda p: make(p.field(name)), arrow)

    def side(name: str) -> pa.Array:
        return points.of((_EXPONENTIAL,), lambda p: pc.struct_field(p.field(name), "offset"), pa.int32())

    def buckets(name: str) -> pa.Array:
        return _counts(points, _EXPONENTIAL, lambda p: p.field(name).field("bucket_counts"))

    return {
        "count": lambda: points.of(
            (_HISTOGRAM, _EXPONENTIAL, _SUMMARY), lambda p: signed(p.field("count")), pa.int64()
        ),
        "sum": lambda: optional("sum", (_HISTOGRAM, _EXPONENTIAL, _SUMMARY)),
        "min": lambda: optional("min", (_HISTOGRAM, _EXPONENTIAL)),
        "max": lambda: optional("max", (_HISTOGRAM, _EXPONENTIAL)),
        "bucket_counts": lambda: _counts(points, _HISTOGRAM, lambda p: p.field("bucket_counts")),
        "explicit_bounds": lambda: _bounds(points),
        "scale": lambda: exponential("scale", pa.int32(), lambda values: values),
        "zero_count": lambda: exponential("zero_count", pa.int64(), signed),
        "zero_threshold": lambda: exponential("zero_threshold", doubles, lambda values: values),
        "positive_offset": lambda: side("positive"),
        "positive_bucket_counts": lambda: buckets("positive"),
        "negative_offset": lambda: side("negative"),
        "negative_bucket_counts": lambda: buckets("negative"),
        "quantile_values": lambda: _quantiles(points),
    }


def _counts(points: _Points, kind: int, lists_of: Callable[[Any], pa.Array]) -> pa.Array:
    arrow = _SCHEMA.field("bucket_counts").type

    def lists(found: Any) -> pa.Array:
        held = lists_of(found)
        return relist(held, signed(held.values), arrow)

    return points.of((kind,), lists, arrow)


def _bounds(points: _Points) -> pa.Array:
    arrow = _SCHEMA.field("explicit_bounds").type

    def lists(found: Any) -> pa.Array:
        held = found.field("explicit_bounds")
        return relist(held, held.values, arrow)

    return points.of((_HISTOGRAM,), lists, arrow)


def _quantiles(points: _Points) -> pa.Array:
    arrow = _SCHEMA.field("quantile_values").type

    def lists(found: Any) -> pa.Array:
        held = found.field("quantile_values")
        pairs: Any = held.values
        made = [pairs.field("quantile"), pairs.field("value")]
        return relist(held, pa.StructArray.from_arrays(made, fields=list(arrow.value_type)), arrow)

    return points.of((_SUMMARY,), lists, arrow)


def _exemplars(points: _Points) -> pa.Array:
    arrow = _SCHEMA.field("exemplars").type

    def lists(found: Any) -> pa.Array:
        if "exemplars" not in [field.name for field in found.type]:  # a summary has none
            none = pa.StructArray.from_arrays(
                [pa.nulls(0, field.type) for field in arrow.value_type], fields=list(arrow.value_type)
            )
            return pa.ListArray.from_arrays(pa.array(np.zeros(len(found) + 1, np.int32)), none, type=arrow)
        held = found.field("exemplars")
        each: Any = held.values
        require_one_arm([each.field("as_int"), each.field("as_double")])
        made = [
            times(each.field("time_unix_nano")),
            nanoseconds(each.field("time_unix_nano")),
            each.field("as_int"),
            each.field("as_double"),
            hex_ids(each.field("trace_id")),
            hex_ids(each.field("span_id")),
            maps(each.field("filtered_attributes")),
        ]
        return relist(held, pa.StructArray.from_arrays(made, fields=list(arrow.value_type)), arrow)

    return points.every(lists)
