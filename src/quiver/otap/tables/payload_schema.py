"""
The tables of OTAP: payload types, their columns, and the parent of each table.

Payload types have the numbers of the protocol, and so do the store's slots. A column is found by its name; the columns
of a struct are named like `resource.id`. Conversion in both directions and validation use these definitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from quiver.errors import UsageError

__all__ = [
    "ATTRIBUTES_OF",
    "CHILD_ROWS_MAX",
    "ENCODING",
    "POINTS_OF_KIND",
    "ROOT_ROWS_MAX",
    "SIGNALS",
    "TABLES",
    "Column",
    "Signal",
    "Table",
    "root_signal",
    "signal_named",
]

ENCODING = b"encoding"
"""The metadata key for the encoding of ids: `plain`, `delta` or `quasidelta`."""

ROOT_ROWS_MAX = 65_535
"""The maximum number of log records, spans or metrics in one set of tables: their ids have 16 bits."""

CHILD_ROWS_MAX = 1 << 22
"""The maximum number of rows of any other table."""


@dataclass(frozen=True, slots=True)
class Column:
    """
    One column of a table, or of a struct in it.

    Attributes:
        name: its name, `resource.id` for a child of a struct.
        type: the type of its values, without a dictionary.
        index_bits: the narrowest dictionary index that readers accept: 8, 16, or 0 if it must be plain.
        required: whether it is in every batch.
        optional: whether null and zero are different values.
        default: the encoding of ids without metadata: `delta`, `quasidelta`, or empty for other columns.
        kinds: the values of the column `type` whose rows have a value in this column.
    """

    name: str
    type: pa.DataType
    index_bits: int = 0
    required: bool = False
    optional: bool = False
    default: str = ""
    kinds: tuple[int, ...] = ()

    @property
    def struct(self) -> str:
        """The struct that the column is a child of; empty if it is not a child."""
        return self.name.rpartition(".")[0]

    @property
    def leaf(self) -> str:
        """Its name inside the struct."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class Table:
    """
    One payload type.

    Attributes:
        payload: its number.
        name: its name in the protocol.
        columns: its possible columns, in the order of encoding.
        parent: the payload type that its `parent_id` refers to. None for roots and for tables with several parents.
        family: `root`, `attributes`, `events`, `links`, `points` or `exemplars`.
    """

    payload: int
    name: str
    columns: tuple[Column, ...]
    parent: int | None
    family: str

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """Its columns by name."""
        return {column.name: column for column in self.columns}

    @cached_property
    def by_struct(self) -> dict[str, list[Column]]:
        """The columns of each struct; those outside of structs at the empty name."""
        found: dict[str, list[Column]] = {}
        for column in self.columns:
            found.setdefault(column.struct, []).append(column)
        return found

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each struct and of each column outside of structs in the order of encoding."""
        found: dict[str, int] = {}
        for place, column in enumerate(self.columns):
            found.setdefault(column.struct or column.name, place)
        return found

    @property
    def rows_max(self) -> int:
        """The maximum number of rows of a batch."""
        return ROOT_ROWS_MAX if self.family == "root" else CHILD_ROWS_MAX


@dataclass(frozen=True, slots=True)
class Signal:
    """
    The tables and the service of logs, traces or metrics.

    Attributes:
        root: the payload type with one row per record, span or metric.
        payloads: all its payload types, parents before children.
        service: the gRPC method's path.
    """

    root: int
    payloads: tuple[int, ...]
    service: str


_TIME = pa.timestamp("ns", "UTC")
_U8, _U16, _U32, _U64 = pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()
_TEXT, _BYTES, _F64 = pa.string(), pa.binary(), pa.float64()
_ID8, _ID16 = pa.binary(8), pa.binary(16)
_QUANTILE = pa.struct([pa.field("quantile", _F64), pa.field("value", _F64)])

_ROOT_ID = Column("id", _U16, optional=True, default="delta")
_CHILD_ID = Column("id", _U32, optional=True, default="delta")
_DROPPED = Column("dropped_attributes_count", _U32)
_FLAGS = Column("flags", _U32)
_STARTED = Column("start_time_unix_nano", _TIME)
_TAKEN = Column("time_unix_nano", _TIME, required=True)

_ORIGIN = (
    Column("resource.id", _U16, required=True, default="delta"),
    Column("resource.schema_url", _TEXT, 8),
    Column("resource.dropped_attributes_count", _U32),
    Column("scope.id", _U16, required=True, default="delta"),
    Column("scope.name", _TEXT, 8),
    Column("scope.version", _TEXT, 8),
    Column("scope.dropped_attributes_count", _U32),
    Column("schema_url", _TEXT, 8),
)


def _value(prefix: str) -> tuple[Column, ...]:
    return (
        Column(f"{prefix}str", _TEXT, 16, optional=True, kinds=(1,)),
        Column(f"{prefix}int", pa.int64(), 16, optional=True, kinds=(2,)),
        Column(f"{prefix}double", _F64, optional=True, kinds=(3,)),
        Column(f"{prefix}bool", pa.bool_(), optional=True, kinds=(4,)),
        Column(f"{prefix}bytes", _BYTES, 16, optional=True, kinds=(7,)),
        Column(f"{prefix}ser", _BYTES, 16, optional=True, kinds=(5, 6)),
    )


def _parent(width: pa.DataType, default: str) -> Column:
    return Column("parent_id", width, required=True, default=default)


def _attributes(width: pa.DataType) -> tuple[Column, ...]:
    head = (_parent(width, "quasidelta"), Column("key", _TEXT, 8, required=True), Column("type", _U8, required=True))
    return (*head, *_value(""))


_LOGS = (
    _ROOT_ID, *_ORIGIN, _TAKEN,
    Column("observed_time_unix_nano", _TIME, required=True),
    Column("trace_id", _ID16, 8),
    Column("span_id", _ID8, 8),
    Column("severity_number", pa.int32(), 8),
    Column("severity_text", _TEXT, 8),
    Column("body.type", _U8),
    *_value("body."), _DROPPED, _FLAGS,
    Column("event_name", _TEXT, 8),
)  # fmt: skip

_SPANS = (
    _ROOT_ID, *_ORIGIN,
    Column("start_time_unix_nano", _TIME, required=True),
    Column("duration_time_unix_nano", pa.duration("ns"), required=True),
    Column("trace_id", _ID16, required=True),
    Column("span_id", _ID8, required=True),
    Column("trace_state", _TEXT, 8),
    Column("parent_span_id", _ID8),
    _FLAGS,
    Column("name", _TEXT, 8, required=True),
    Column("kind", pa.int32(), 8),
    _DROPPED,
    Column("dropped_events_count", _U32),
    Column("dropped_links_count", _U32),
    Column("status.code", pa.int32(), 8),
    Column("status.status_message", _TEXT, 8),
)  # fmt: skip

_EVENTS = (
    _CHILD_ID, _parent(_U16, "quasidelta"), Column("time_unix_nano", _TIME),
    Column("name", _TEXT, 8, required=True), _DROPPED,
)  # fmt: skip

_LINKS = (
    _CHILD_ID, _parent(_U16, "quasidelta"),
    Column("trace_id", _ID16, 8, required=True), Column("span_id", _ID8, 8, required=True),
    Column("trace_state", _TEXT, 8), _DROPPED, _FLAGS,
)  # fmt: skip

_METRICS = (
    Column("id", _U16, required=True, optional=True, default="delta"), *_ORIGIN,
    Column("metric_type", _U8, required=True),
    Column("name", _TEXT, 8, required=True),
    Column("description", _TEXT, 8),
    Column("unit", _TEXT, 8),
    Column("aggregation_temporality", pa.int32(), 8, optional=True),
    Column("is_monotonic", pa.bool_()),
)  # fmt: skip

_POINT = (_CHILD_ID, _parent(_U16, "delta"), _STARTED, _TAKEN)
_COUNT = Column("count", _U64)
_OPTIONAL_SUM = Column("sum", _F64, optional=True)
_EXTREMES = (Column("min", _F64, optional=True), Column("max", _F64, optional=True))
_NUMBERS = (
    *_POINT, Column("int_value", pa.int64(), optional=True), Column("double_value", _F64, optional=True), _FLAGS,
)  # fmt: skip
_SUMMARIES = (*_POINT, _COUNT, Column("sum", _F64), Column("quantile", pa.list_(_QUANTILE)), _FLAGS)
_HISTOGRAMS = (
    *_POINT, _COUNT, _OPTIONAL_SUM,
    Column("bucket_counts", pa.list_(_U64)), Column("explicit_bounds", pa.list_(_F64)), _FLAGS, *_EXTREMES,
)  # fmt: skip
_EXP_HISTOGRAMS = (
    *_POINT, _COUNT, _OPTIONAL_SUM,
    Column("scale", pa.int32()), Column("zero_count", _U64),
    Column("positive.offset", pa.int32()), Column("positive.bucket_counts", pa.list_(_U64)),
    Column("negative.offset", pa.int32()), Column("negative.bucket_counts", pa.list_(_U64)),
    _FLAGS, *_EXTREMES, Column("zero_threshold", _F64),
)  # fmt: skip
_EXEMPLARS = (
    _CHILD_ID, _parent(_U32, "quasidelta"), _TAKEN,
    Column("int_value", pa.int64(), optional=True), Column("double_value", _F64, optional=True),
    Column("span_id", _ID8, 8), Column("trace_id", _ID16, 8),
)  # fmt: skip

_ALL: tuple[tuple[int, str, Any, int | None, str], ...] = (
    (1, "RESOURCE_ATTRS", _attributes(_U16), None, "attributes"),
    (2, "SCOPE_ATTRS", _attributes(_U16), None, "attributes"),
    (10, "UNIVARIATE_METRICS", _METRICS, None, "root"),
    (11, "NUMBER_DATA_POINTS", _NUMBERS, 10, "points"),
    (12, "SUMMARY_DATA_POINTS", _SUMMARIES, 10, "points"),
    (13, "HISTOGRAM_DATA_POINTS", _HISTOGRAMS, 10, "points"),
    (14, "EXP_HISTOGRAM_DATA_POINTS", _EXP_HISTOGRAMS, 10, "points"),
    (15, "NUMBER_DP_ATTRS", _attributes(_U32), 11, "attributes"),
    (16, "SUMMARY_DP_ATTRS", _attributes(_U32), 12, "attributes"),
    (17, "HISTOGRAM_DP_ATTRS", _attributes(_U32), 13, "attributes"),
    (18, "EXP_HISTOGRAM_DP_ATTRS", _attributes(_U32), 14, "attributes"),
    (19, "NUMBER_DP_EXEMPLARS", _EXEMPLARS, 11, "exemplars"),
    (20, "HISTOGRAM_DP_EXEMPLARS", _EXEMPLARS, 13, "exemplars"),
    (21, "EXP_HISTOGRAM_DP_EXEMPLARS", _EXEMPLARS, 14, "exemplars"),
    (22, "NUMBER_DP_EXEMPLAR_ATTRS", _attributes(_U32), 19, "attributes"),
    (23, "HISTOGRAM_DP_EXEMPLAR_ATTRS", _attributes(_U32), 20, "attributes"),
    (24, "EXP_HISTOGRAM_DP_EXEMPLAR_ATTRS", _attributes(_U32), 21, "attributes"),
    (26, "METRIC_ATTRS", _attributes(_U16), 10, "attributes"),
    (30, "LOGS", _LOGS, None, "root"),
    (31, "LOG_ATTRS", _attributes(_U16), 30, "attributes"),
    (40, "SPANS", _SPANS, None, "root"),
    (41, "SPAN_ATTRS", _attributes(_U16), 40, "attributes"),
    (42, "SPAN_EVENTS", _EVENTS, 40, "events"),
    (43, "SPAN_LINKS", _LINKS, 40, "links"),
    (44, "SPAN_EVENT_ATTRS", _attributes(_U32), 42, "attributes"),
    (45, "SPAN_LINK_ATTRS", _attributes(_U32), 43, "attributes"),
)

TABLES = MappingProxyType({entry[0]: Table(*entry) for entry in _ALL})
"""Payload type → its table. Type 25, multivariate metrics, has no schema and is refused."""

_SERVICE = "/opentelemetry.proto.experimental.arrow.v1."
SIGNALS = MappingProxyType(
    {
        "logs": Signal(30, (30, 1, 2, 31), _SERVICE + "ArrowLogsService/ArrowLogs"),
        "traces": Signal(40, (40, 1, 2, 41, 42, 43, 44, 45), _SERVICE + "ArrowTracesService/ArrowTraces"),
        "metrics": Signal(10, (10, 1, 2, *range(11, 25), 26), _SERVICE + "ArrowMetricsService/ArrowMetrics"),
    }
)
"""Signal → its tables, the root first: some receivers detect the signal by the first payload."""

POINTS_OF_KIND = MappingProxyType(
    {
        1: ("gauge", 11, 19), 2: ("sum", 11, 19), 3: ("histogram", 13, 20),
        4: ("exponential_histogram", 14, 21), 5: ("summary", 12, None),
    }
)  # fmt: skip
"""`metric_type` → the field of the metric, the table of its points, the table of their exemplars."""

ATTRIBUTES_OF = MappingProxyType(
    {table.parent: table.payload for table in TABLES.values() if table.family == "attributes" and table.parent}
)
"""Payload type → the table of its rows' attributes."""


def signal_named(name: str) -> Signal:
    """
    Return the signal `logs`, `traces` or `metrics`.

    Raises:
        UsageError: no such signal.
    """
    found = SIGNALS.get(name)
    if found is None:
        raise UsageError(f"unknown signal {name!r}; use one of {', '.join(SIGNALS)}")
    return found


def root_signal(payloads: Any) -> str | None:
    """Return the signal whose root is in *payloads*; None if there is none or more than one."""
    found = [signal for signal, tables in SIGNALS.items() if tables.root in payloads]
    return found[0] if len(found) == 1 else None
