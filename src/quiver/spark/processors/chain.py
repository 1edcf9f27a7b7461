"""
Processors: functions from a frame to a frame, batch or streaming, ours or a user's.

One frame at a time::

    errors = build(FilterSettings(keep="severity_number >= 17"))
    errors(spark.read.format("quiver").option("path", "buffer/").option("view", "logs").load())

A pipeline has several tables, one for each signal: `process` passes all of them through a chain of processors. A custom
processor is any function that takes a frame and returns one::

    def only_checkout(frame):
        return frame.where("resource_attributes['service.name'].string_value = 'checkout'")

    process({"logs": logs, "spans": spans}, [only_checkout, SampleSettings(ratio=0.1)])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_type

from quiver.errors import UsageError
from quiver.otap import TYPED_VALUE
from quiver.spark.processors.redaction import Redaction
from quiver.spark.processors.settings import (
    ATTRIBUTE_COLUMNS,
    INPUT,
    AttributeAction,
    AttributesSettings,
    AttributeValue,
    FilterSettings,
    ProcessorSettings,
    RedactSettings,
    SampleSettings,
    SqlSettings,
)
from quiver.spark.tables import column_named

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["FrameFunction", "Step", "UserProcessor", "build", "process"]

FrameFunction = Callable[["DataFrame"], "DataFrame"]
"""A processor. Its result must depend only on its argument, since a batch may be processed again."""

_RANDOM_BITS = 56
"""The rightmost bits of a trace id, which OpenTelemetry requires to be random."""


@dataclass(frozen=True, slots=True)
class UserProcessor:
    """
    A custom processor in a chain.

    Attributes:
        function: takes a frame and returns one.
        signals: the tables that it processes; empty means all.
    """

    function: FrameFunction
    signals: tuple[str, ...] = ()


Step = ProcessorSettings | UserProcessor | FrameFunction
"""One step of a chain."""


def build(settings: ProcessorSettings) -> FrameFunction:
    """
    Return the processor that *settings* describe, for one frame. Nothing is computed before the frame is used.

    A query runs in the frame's session, and replaces the view that it names there.

    Raises:
        UsageError: the query reads several views. Use `process`, which takes several frames.
    """
    if isinstance(settings, SqlSettings):
        return _sql(settings)
    if isinstance(settings, FilterSettings):
        return _filter(settings)
    if isinstance(settings, AttributesSettings):
        return _attributes(settings)
    if isinstance(settings, SampleSettings):
        return _sample(settings)
    return _redact(settings)


def process(tables: Mapping[str, DataFrame], chain: Sequence[Step]) -> dict[str, DataFrame]:
    """
    Pass *tables* through the steps of *chain*, and return the resulting tables by name.

    A step leaves tables that it does not process unchanged. A query over missing views is skipped: a batch without
    spans has no such table.
    """
    now = dict(tables)
    for step in chain:
        if isinstance(step, SqlSettings) and INPUT not in step.reads:
            now = _query(now, step)
            continue
        if isinstance(step, UserProcessor):
            function, signals = step.function, step.signals
        elif callable(step):
            function, signals = step, ()
        else:
            function, signals = build(step), step.signals
        now = {name: function(frame) if not signals or name in signals else frame for name, frame in now.items()}
    return now


def _sql(settings: SqlSettings) -> FrameFunction:
    if len(settings.reads) > 1:
        raise UsageError(f"the query reads {' and '.join(settings.reads)}: give it all of them, with process()")
    name = settings.reads[0]
    return lambda frame: _run(settings.query, {name: frame})


def _query(tables: dict[str, DataFrame], settings: SqlSettings) -> dict[str, DataFrame]:
    missing = [name for name in settings.reads if name not in tables]
    if len(missing) == len(settings.reads):
        return tables
    if missing:
        raise UsageError(
            f"the query reads {' and '.join(settings.reads)}, but there is no table {' or '.join(missing)}"
        )
    result = _run(settings.query, {name: tables[name] for name in settings.reads})
    if settings.output is not None:
        return {**tables, settings.output: result}
    return {**tables, settings.reads[0]: result}


def _run(query: str, views: Mapping[str, DataFrame]) -> DataFrame:
    session = next(iter(views.values())).sparkSession
    for name, frame in views.items():
        frame.createOrReplaceTempView(name)
    return session.sql(query)


def _filter(settings: FilterSettings) -> FrameFunction:
    if settings.keep is not None:
        condition = settings.keep
        return lambda frame: frame.where(condition)
    # A null condition keeps the row: it is not known to be unwanted.
    return lambda frame: frame.where(~F.coalesce(F.expr(settings.drop or ""), F.lit(False)))


def _redact(settings: RedactSettings) -> FrameFunction:
    redaction = Redaction(
        settings.keys, settings.value_patterns, replacement=settings.replacement, columns=settings.columns
    )
    return lambda frame: frame.mapInArrow(redaction, frame.schema)


# ── attributes ───────────────────────────────────────────────────────────────────────────────────────


def _attributes(settings: AttributesSettings) -> FrameFunction:
    def apply(frame: DataFrame) -> DataFrame:
        for scope in settings.apply_to:
            column = ATTRIBUTE_COLUMNS[scope]
            if column not in frame.columns:
                raise UsageError(
                    f"attributes: the table has no column {column}; its columns are {', '.join(frame.columns)}"
                )
            for action in settings.actions:
                # A column for each action: a single expression would grow exponentially with their number.
                frame = frame.withColumn(column, _changed(F.col(column), action, settings.hash_salt))
        return frame

    return apply


def _changed(attributes: Column, action: AttributeAction, salt: str) -> Column:
    key = action.key
    there = F.coalesce(F.map_contains_key(attributes, F.lit(key)), F.lit(False))
    if action.action == "delete":
        return _without(attributes, key)
    if action.action == "rename":
        new_key = action.new_key or key
        renamed = _with(_without(attributes, key), new_key, attributes.getItem(key))
        return F.when(there, renamed).otherwise(attributes)
    if action.action == "hash":
        return F.when(there, _with(attributes, key, _hashed(attributes.getItem(key), salt))).otherwise(attributes)
    if action.from_attribute is None:
        changed, possible = _with(attributes, key, _typed(action.value)), F.lit(True)
    else:
        source = action.from_attribute
        changed = _with(attributes, key, attributes.getItem(source))
        possible = F.coalesce(F.map_contains_key(attributes, F.lit(source)), F.lit(False))
    if action.action == "insert":
        possible &= ~there
    elif action.action == "update":
        possible &= there
    return F.when(possible, changed).otherwise(attributes)


def _without(attributes: Column, key: str) -> Column:
    return F.map_filter(attributes, lambda name, _: name != F.lit(key))


def _with(attributes: Column, key: str, value: Column) -> Column:
    entry = F.create_map(F.lit(key), value)
    # Without attributes the map is null; the first one creates it.
    return F.when(attributes.isNull(), entry).otherwise(F.map_concat(_without(attributes, key), entry))


def _typed(value: AttributeValue | None) -> Column:
    """Return *value* as a typed value: one field of the struct is set."""
    if isinstance(value, bool):
        name = "bool_value"
    elif isinstance(value, int):
        name = "int_value"
    elif isinstance(value, float):
        name = "double_value"
    else:
        name = "string_value"
    return _struct(**{name: F.lit(value)})


def _hashed(value: Column, salt: str) -> Column:
    text = F.coalesce(
        value["string_value"],
        value["json_value"],
        value["int_value"].cast("string"),
        value["double_value"].cast("string"),
        value["bool_value"].cast("string"),
        F.hex(value["bytes_value"]),
        F.lit(""),
    )
    return _struct(string_value=F.sha2(F.concat(F.lit(salt), text), 256))


def _struct(**values: Column) -> Column:
    fields = []
    for field in TYPED_VALUE:
        value = values.get(field.name, F.lit(None))
        fields.append(value.cast(from_arrow_type(field.type)).alias(field.name))
    return F.struct(*fields)


# ── sampling ─────────────────────────────────────────────────────────────────────────────────────────


def _sample(settings: SampleSettings) -> FrameFunction:
    # Consistent with other samplers of the last 56 bits: a sample of a tenth is a subset of a sample of a fifth.
    rejected = round((1.0 - settings.ratio) * 2**_RANDOM_BITS)

    def apply(frame: DataFrame) -> DataFrame:
        chance = F.pmod(F.xxhash64(F.to_json(F.struct(*map(column_named, frame.columns)))), F.lit(2**_RANDOM_BITS))
        if "trace_id" in frame.columns:
            last = F.conv(F.substring("trace_id", -(_RANDOM_BITS // 4), _RANDOM_BITS // 4), 16, 10).cast("bigint")
            chance = F.coalesce(last, chance)
        return frame.where(chance >= F.lit(rejected))

    return apply
