"""
The directories of a lake: `partition_by` → names as Hive writes them, which DuckDB, Polars, pyarrow and Spark read.

::

    partition_by: [day, hour, service.name]

    logs/day=2026-01-31/hour=07/service.name=checkout/<file>.parquet

A value is percent-encoded where it has other characters than letters, digits and ``_.-~``. Rows without a value are in
``__HIVE_DEFAULT_PARTITION__``, which readers show as null. Pure.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from quiver.errors import SettingsError, UsageError

__all__ = ["DEFAULT_PARTITION", "PARTITIONS_MAX", "FileLayout", "PartitionBy", "encode_value"]

PARTITIONS_MAX = 256
"""Each partition of a task has an open file, and a process may have 1,024 by default."""

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"

_TIME_KEYS = ("day", "hour")
_TIME_COLUMNS = ("time", "start_time", "observed_time")
"""The first that a row has is its event time: logs and metrics have `time`, spans `start_time`."""

_ATTRIBUTE_COLUMNS = ("attributes", "resource_attributes")
_VALUE_FIELDS = ("string_value", "int_value", "bool_value", "double_value", "json_value")
_UNITS_PER_HOUR = {"s": 3600, "ms": 3_600_000, "us": 3_600_000_000, "ns": 3_600_000_000_000}

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,99}")
_VALUE_CHARS_MAX = 90
"""The name of a directory has at most 200 characters: 100 of them for the key."""
_DIGEST_CHARS = 16

_EPOCH = datetime.date(1970, 1, 1).toordinal()


def encode_value(value: str | None) -> str:
    """
    Return *value* as a part of a directory name; different values give different names.

    A value whose encoded form is longer than 90 characters is cut, and a digest of all of it is appended.
    """
    if not value:
        return DEFAULT_PARTITION
    encoded = quote(value, safe="")
    if encoded == DEFAULT_PARTITION:
        return encoded.replace("_", "%5F", 1)
    if len(encoded) <= _VALUE_CHARS_MAX:
        return encoded
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    kept = encoded[: _VALUE_CHARS_MAX - _DIGEST_CHARS - 1]
    return f"{re.sub('%.?$', '', kept)}~{digest}"


@dataclass(frozen=True, slots=True)
class PartitionBy:
    """
    The keys of the partitions of every table, outermost first.

    Attributes:
        keys: `day` and `hour` of the event in UTC; `signal`, which names the table in place of its directory; every
            other key is an attribute of the record or its resource, or a column that a processor added.

    Raises:
        SettingsError: a key is repeated or cannot be the name of a directory, or there are hours without days.
    """

    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in self.keys:
            if not isinstance(key, str) or _KEY.fullmatch(key) is None:
                raise SettingsError(
                    f"partition_by: {key!r} is neither day, hour or signal nor the name of an attribute: letters, "
                    "digits and _.:/- are possible, at most 100"
                )
        if len(set(self.keys)) != len(self.keys):
            raise SettingsError("partition_by: a key is repeated")
        if "hour" in self.keys and "day" not in self.keys[: self.keys.index("hour")]:
            raise SettingsError("partition_by: hour needs day before it, or one directory has that hour of all days")

    def split(self, table: str, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """
        Yield each directory and its rows, with the rows in their order.

        Args:
            table: its name: logs, spans, metrics, or that of a processor's result. Slots are not partitioned.
            batch: its rows.

        Raises:
            UsageError: the table has no event time, and is to be partitioned by it.
        """
        if not self.keys or table.startswith("slots/"):
            yield table, batch
            return
        if not batch.num_rows:
            return
        import numpy as np  # noqa: PLC0415 - the extra of Spark has it; settings need only the keys

        codes = np.zeros(batch.num_rows, np.int64)
        names = [""]
        for key in self.keys:
            found, values = _encoded(key, table, batch)
            # Only combinations that occur get a number: the product of many keys would not fit.
            combined, codes = np.unique(codes * len(values) + found, return_inverse=True)
            name = quote(key, safe="")
            names = [f"{names[one // len(values)]}/{name}={values[one % len(values)]}" for one in combined.tolist()]
        root = "" if "signal" in self.keys else table
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(names)))
        for name, start, end in zip(names, [0, *ends.tolist()], ends.tolist(), strict=False):
            rows = batch if len(names) == 1 else batch.take(pa.array(order[start:end]))
            yield f"{root}{name}".lstrip("/"), rows


@dataclass(frozen=True, slots=True)
class FileLayout:
    """
    How the rows of a batch are divided into files.

    Attributes:
        compression: of Parquet: zstd, snappy, or none.
        partition_by: the keys of the directories.
        file_bytes_max: a file is closed when it has this size; it may be larger by one row group. None is no limit.
        partitions_max: the partitions of a batch that a task writes at most.
    """

    compression: str = "zstd"
    partition_by: PartitionBy = field(default_factory=PartitionBy)
    file_bytes_max: int | None = None
    partitions_max: int = PARTITIONS_MAX


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
