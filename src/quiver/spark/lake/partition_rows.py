"""The rows of a batch, divided by the partitions that `layout.py` names. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from quiver.errors import UsageError
from quiver.spark.lake.layout import DEFAULT_PARTITION, PartitionBy, encode_value

__all__ = ["split_rows"]

_TIME_KEYS = ("day", "hour")
_TIME_COLUMNS = ("time", "start_time", "observed_time")
"""The first that a row has is its event time: logs and metrics have `time`, spans `start_time`."""

_ATTRIBUTE_COLUMNS = ("attributes", "resource_attributes")
_VALUE_FIELDS = ("string_value", "int_value", "bool_value", "double_value", "json_value")
_UNITS_PER_HOUR = {"s": 3600, "ms": 3_600_000, "us": 3_600_000_000, "ns": 3_600_000_000_000}

_EPOCH = datetime.date(1970, 1, 1).toordinal()


def split_rows(partition_by: PartitionBy, table: str, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """
    Yield each directory and its rows, with the rows in their order.

    Args:
        partition_by: the keys of the partitions.
        table: its name: logs, spans, metrics, or that of a processor's result. Slots are not partitioned.
        batch: its rows.

    Raises:
        UsageError: the table has no event time, and is to be partitioned by it.
    """
    keys = partition_by.keys
    if not keys or table.startswith("slots/"):
        yield table, batch
        return
    if not batch.num_rows:
        return
    import numpy as np  # noqa: PLC0415 - the extra of Spark has it; without keys it is not needed

    codes = np.zeros(batch.num_rows, np.int64)
    names = [""]
    for key in keys:
        found, values = _encoded(key, table, batch)
        # Only combinations that occur get a number: the product of many keys would not fit.
        combined, codes = np.unique(codes * len(values) + found, return_inverse=True)
        name = quote(key, safe="")
        names = [f"{names[one // len(values)]}/{name}={values[one % len(values)]}" for one in combined.tolist()]
    root = "" if "signal" in keys else table
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    for name, start, end in zip(names, [0, *ends.tolist()], ends.tolist(), strict=False):
        rows = batch if len(names) == 1 else batch.take(pa.array(order[start:end]))
        yield f"{root}{name}".lstrip("/"), rows


def _encoded(key: str, table: str, batch: pa.RecordBatch) -> tuple[Any, list[str]]:
    """Return a number for each row, or for all, and the name for each number."""
    if key == "signal":
        return 0, [encode_value(table)]
    if key in _TIME_KEYS:
        hours = _event_hours(table, batch)
        return _numbered(hours, _hour_name) if key == "hour" else _numbered(_floored(hours, 24), _day_name)
    return _numbered(_attribute(key, table, batch), encode_value)


def _numbered(values: pa.Array, name: Any) -> tuple[Any, list[str]]:
    encoded = pc.dictionary_encode(values, null_encoding="encode")
    names = [DEFAULT_PARTITION if one is None else name(one) for one in encoded.dictionary.to_pylist()]
    return encoded.indices.to_numpy(zero_copy_only=False).astype("int64"), names


def _day_name(day: int) -> str:
    try:
        return datetime.date.fromordinal(_EPOCH + day).isoformat()
    except (ValueError, OverflowError):
        return DEFAULT_PARTITION  # a time that no calendar has


def _hour_name(hour: int) -> str:
    return f"{hour % 24:02}"


def _event_hours(table: str, batch: pa.RecordBatch) -> pa.Array:
    """Return the hours since 1970 of each row; null without an event time."""
    found = [batch.column(name) for name in _TIME_COLUMNS if name in batch.schema.names]
    found = [one for one in found if pa.types.is_timestamp(one.type)]
    times = [_floored(one.cast(pa.int64()), _UNITS_PER_HOUR[one.type.unit]) for one in found]
    if not times:
        raise UsageError(
            f"partition_by: table {table} has no event time: keep one of its columns {', '.join(_TIME_COLUMNS)}, or "
            "leave day and hour out"
        )
    return pc.coalesce(*times)


def _floored(values: pa.Array, divisor: int) -> pa.Array:
    """Return the quotients, rounded down: Arrow rounds towards zero, which is a later hour before 1970."""
    whole = pc.divide(values, divisor)
    return pc.subtract(whole, pc.less(values, pc.multiply(whole, divisor)).cast(pa.int64()))


def _attribute(name: str, table: str, batch: pa.RecordBatch) -> pa.Array:
    """Return the value of the attribute of each row as text."""
    if name in batch.schema.names:
        try:
            return batch.column(name).cast(pa.string())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise UsageError(f"partition_by: column {name} of table {table} cannot become text") from None
    maps = [batch.column(column) for column in _ATTRIBUTE_COLUMNS if column in batch.schema.names]
    found = [_texts(pc.map_lookup(one, name, "first")) for one in maps if pa.types.is_map(one.type)]
    return pc.coalesce(*found) if found else pa.nulls(batch.num_rows, pa.string())


def _texts(values: pa.Array) -> pa.Array:
    if not pa.types.is_struct(values.type):
        return values.cast(pa.string())
    return pc.coalesce(*_fields(values))


def _fields(values: pa.Array) -> Iterable[pa.Array]:
    present = {one.name for one in values.type}
    for name in _VALUE_FIELDS:
        if name in present:
            yield pc.struct_field(values, name).cast(pa.string())
    yield pa.nulls(len(values), pa.string())
