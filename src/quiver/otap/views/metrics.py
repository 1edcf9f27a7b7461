"""
The columns of the `metrics` view: one row per data point of any kind.

A column that a kind does not have is null, and so is an absent optional value (sum, min and max of a histogram, the
value of a number point): absent is never shown as zero.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from quiver.otap.views.columns import (
    Flat,
    attribute_maps,
    codes,
    hex_ids,
    int32s,
    list_column,
    nanoseconds,
    scatter,
    signed,
    small_numbers,
    texts,
    times,
)
from quiver.otap.views.schemas import view_schema

__all__ = ["METRIC_TYPES", "TEMPORALITIES", "Points", "metric_columns", "points_of"]

METRIC_TYPES = ("GAUGE", "SUM", "HISTOGRAM", "EXPONENTIAL_HISTOGRAM", "SUMMARY")
TEMPORALITIES = ("UNSPECIFIED", "DELTA", "CUMULATIVE")

_GAUGE, _SUM, _HISTOGRAM, _EXPONENTIAL, _SUMMARY = range(len(METRIC_TYPES))
_ARMS = {
    "gauge": _GAUGE,
    "sum": _SUM,
    "histogram": _HISTOGRAM,
    "exponential_histogram": _EXPONENTIAL,
    "summary": _SUMMARY,
}
_SCHEMA = view_schema("metrics")


@dataclass(frozen=True, slots=True)
class Points:
    """
    The data points of a run of metrics, in document order.

    Attributes:
        flat: the points as items, with scopes, resources and counts per request.
        metrics: the metrics that have points.
        metric_of: point → index in `metrics`.
        kinds: point → index in `METRIC_TYPES`.
        by_kind: index in `METRIC_TYPES` → its points, in order.
    """

    flat: Flat
    metrics: list[Any]
    metric_of: array[int]
    kinds: bytearray
    by_kind: tuple[list[Any], ...]


def points_of(metrics_flat: Flat) -> Points:
    """Concatenate the data points of metrics. A metric without points has no row."""
    points: list[Any] = []
    metrics: list[Any] = []
    metric_of, scope_of = array("i"), array("i")
    kinds = bytearray()
    by_kind: tuple[list[Any], ...] = ([], [], [], [], [])
    per_request: list[int] = []
    position = 0
    for count in metrics_flat.per_request:
        before = len(points)
        for index in range(position, position + count):
            metric = metrics_flat.items[index]
            arm = metric.WhichOneof("data")
            found = getattr(metric, arm).data_points if arm else ()
            if not found:
                continue
            held = list(found)
            points.extend(held)
            by_kind[_ARMS[arm]].extend(held)
            kinds.extend(bytes([_ARMS[arm]]) * len(held))
            metric_of.extend(array("i", [len(metrics)]) * len(held))
            scope_of.extend(array("i", [metrics_flat.scope_of[index]]) * len(held))
            metrics.append(metric)
        position += count
        per_request.append(len(points) - before)
    flat = replace(metrics_flat, items=points, scope_of=scope_of, per_request=per_request)
    return Points(flat, metrics, metric_of, kinds, by_kind)


def metric_columns(points: Points) -> dict[str, Callable[[], pa.Array]]:
    """Return the makers of the columns of data points, by name."""
    return {**_head_columns(points), **_point_columns(points), **_histogram_columns(points)}


def _head_columns(points: Points) -> dict[str, Callable[[], pa.Array]]:
    metrics = points.metrics

    def by_metric(values: pa.Array) -> pa.Array:
        return values.take(int32s(points.metric_of))

    return {
        "name": lambda: by_metric(texts(m.name for m in metrics)),
        "description": lambda: by_metric(texts(m.description for m in metrics)),
        "unit": lambda: by_metric(texts(m.unit for m in metrics)),
        "metadata": lambda: by_metric(attribute_maps(m.metadata for m in metrics)),
        "type": lambda: pa.array(METRIC_TYPES, pa.string()).take(small_numbers(points.kinds)),
        "temporality": lambda: by_metric(_temporalities(metrics)),
        "is_monotonic": lambda: by_metric(pa.array([_monotonic(m) for m in metrics], pa.bool_())),
    }


def _temporalities(metrics: Sequence[Any]) -> pa.Array:
    with_one = {"sum", "histogram", "exponential_histogram"}
    arms = [m.WhichOneof("data") for m in metrics]
    numbers = [getattr(m, arm).aggregation_temporality for m, arm in zip(metrics, arms, strict=True) if arm in with_one]
    present = small_numbers(bytes(arm in with_one for arm in arms))
    return scatter(present, {1: codes(numbers, TEMPORALITIES)}, pa.string())


def _monotonic(metric: Any) -> bool | None:
    return metric.sum.is_monotonic if metric.WhichOneof("data") == "sum" else None


def _point_columns(points: Points) -> dict[str, Callable[[], pa.Array]]:
    every = points.flat.items
    return {
        "start_time": lambda: times([p.start_time_unix_nano for p in every]),
        "start_time_unix_nano": lambda: nanoseconds([p.start_time_unix_nano for p in every]),
        "time": lambda: times([p.time_unix_nano for p in every]),
        "time_unix_nano": lambda: nanoseconds([p.time_unix_nano for p in every]),
        "attributes": lambda: attribute_maps(p.attributes for p in every),
        "flags": lambda: pa.array([p.flags for p in every], pa.int64()),
        "int_value": lambda: _number(points, "as_int", pa.int64()),
        "double_value": lambda: _number(points, "as_double", pa.float64()),
        "exemplars": lambda: _exemplars(points),
    }


def _histogram_columns(points: Points) -> dict[str, Callable[[], pa.Array]]:
    counted = (_HISTOGRAM, _EXPONENTIAL, _SUMMARY)
    lists = _SCHEMA.field("bucket_counts").type
    return {
        "count": lambda: _of(points, counted, lambda found: signed([p.count for p in found]), pa.int64()),
        "sum": lambda: _sums(points),
        "min": lambda: _optional(points, "min"),
        "max": lambda: _optional(points, "max"),
        "bucket_counts": lambda: _lists(points, _HISTOGRAM, lambda p: p.bucket_counts, signed, lists),
        "explicit_bounds": lambda: _lists(
            points, _HISTOGRAM, lambda p: p.explicit_bounds, _doubles, _SCHEMA.field("explicit_bounds").type
        ),
        "scale": lambda: _of(
            points, (_EXPONENTIAL,), lambda found: pa.array([p.scale for p in found], pa.int32()), pa.int32()
        ),
        "zero_count": lambda: _of(
            points, (_EXPONENTIAL,), lambda found: signed([p.zero_count for p in found]), pa.int64()
        ),
        "zero_threshold": lambda: _of(
            points, (_EXPONENTIAL,), lambda found: _doubles([p.zero_threshold for p in found]), pa.float64()
        ),
        "positive_offset": lambda: _offset(points, "positive"),
        "positive_bucket_counts": lambda: _lists(
            points, _EXPONENTIAL, lambda p: p.positive.bucket_counts, signed, lists
        ),
        "negative_offset": lambda: _offset(points, "negative"),
        "negative_bucket_counts": lambda: _lists(
            points, _EXPONENTIAL, lambda p: p.negative.bucket_counts, signed, lists
        ),
        "quantile_values": lambda: _quantiles(points),
    }


def _doubles(values: Sequence[float]) -> pa.Array:
    return pa.array(values, pa.float64())


def _of(points: Points, kinds: Iterable[int], make: Callable[[list[Any]], pa.Array], arrow: pa.DataType) -> pa.Array:
    """Return a column that only points of *kinds* have."""
    parts = {kind: make(points.by_kind[kind]) for kind in kinds}
    return scatter(small_numbers(points.kinds), parts, arrow)


def _number(points: Points, arm: str, arrow: pa.DataType) -> pa.Array:
    def one_arm(found: list[Any]) -> pa.Array:
        return pa.array([getattr(p, arm) if p.WhichOneof("value") == arm else None for p in found], arrow)

    return _of(points, (_GAUGE, _SUM), one_arm, arrow)


def _present(found: list[Any], field: str) -> pa.Array:
    return pa.array([getattr(p, field) if p.HasField(field) else None for p in found], pa.float64())


def _optional(points: Points, field: str) -> pa.Array:
    return _of(points, (_HISTOGRAM, _EXPONENTIAL), lambda found: _present(found, field), pa.float64())


def _sums(points: Points) -> pa.Array:
    parts = {kind: _present(points.by_kind[kind], "sum") for kind in (_HISTOGRAM, _EXPONENTIAL)}
    # The sum of a summary has no presence in protobuf: absent means zero.
    parts[_SUMMARY] = _doubles([p.sum for p in points.by_kind[_SUMMARY]])
    return scatter(small_numbers(points.kinds), parts, pa.float64())


def _offset(points: Points, side: str) -> pa.Array:
    def offsets(found: list[Any]) -> pa.Array:
        return pa.array([getattr(p, side).offset if p.HasField(side) else None for p in found], pa.int32())

    return _of(points, (_EXPONENTIAL,), offsets, pa.int32())


def _lists(
    points: Points,
    kind: int,
    field: Callable[[Any], Any],
    make: Callable[[list[Any]], pa.Array],
    arrow: pa.DataType,
) -> pa.Array:
    """Return a column of lists that points of *kind* have; an empty list was sent empty."""
    found = points.by_kind[kind]
    values = [value for p in found for value in field(p)]
    lists = list_column((len(field(p)) for p in found), make(values), arrow)
    return _placed(points, kind, lists)


def _placed(points: Points, kind: int, values: pa.Array) -> pa.Array:
    """Return a column with *values* in the rows of the points of *kind*; null elsewhere."""
    count = len(points.kinds)
    if len(values) == count:
        return values
    places = [index for index, found in enumerate(points.kinds) if found == kind]
    index: list[int | None] = [None] * count
    for order, place in enumerate(places):
        index[place] = order
    return values.take(pa.array(index, pa.int32()))


def _quantiles(points: Points) -> pa.Array:
    kind = _SCHEMA.field("quantile_values").type
    found = points.by_kind[_SUMMARY]
    pairs = [pair for p in found for pair in p.quantile_values]
    values = pa.StructArray.from_arrays(
        [_doubles([pair.quantile for pair in pairs]), _doubles([pair.value for pair in pairs])],
        fields=list(kind.value_type),
    )
    return _placed(points, _SUMMARY, list_column((len(p.quantile_values) for p in found), values, kind))


def _exemplars(points: Points) -> pa.Array:
    arrow = _SCHEMA.field("exemplars").type
    lists = [
        () if kind == _SUMMARY else point.exemplars for point, kind in zip(points.flat.items, points.kinds, strict=True)
    ]
    found = [exemplar for exemplars in lists for exemplar in exemplars]
    arms = [e.WhichOneof("value") for e in found]
    pairs = list(zip(found, arms, strict=True))
    values = pa.StructArray.from_arrays(
        [
            times([e.time_unix_nano for e in found]),
            nanoseconds([e.time_unix_nano for e in found]),
            pa.array([e.as_int if arm == "as_int" else None for e, arm in pairs], pa.int64()),
            pa.array([e.as_double if arm == "as_double" else None for e, arm in pairs], pa.float64()),
            hex_ids(e.trace_id for e in found),
            hex_ids(e.span_id for e in found),
            attribute_maps(e.filtered_attributes for e in found),
        ],
        fields=list(arrow.value_type),
    )
    return list_column((len(exemplars) for exemplars in lists), values, arrow)
