"""
The partition of a row: the value of a column, or the year, month, day or hour of a time. Pure.

A field is written ``day(time)`` or ``service_name``. Values of partitions are strings, as in the log of a Delta table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from quiver.errors import SettingsError, UsageError

__all__ = ["PartitionField", "PartitionValues", "partition_fields", "split"]

Transform = Literal["identity", "year", "month", "day", "hour"]
PartitionValues = tuple[str | None, ...]
"""One value per field; None for null."""

_FIELD = re.compile(r"(?:(?P<transform>[a-z]+)\((?P<inner>[^()]+)\)|(?P<column>[^()]+))")
_PATTERNS = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}
_TYPES = {"year": pa.int32(), "month": pa.string(), "day": pa.date32(), "hour": pa.string()}


@dataclass(frozen=True, slots=True)
class PartitionField:
    """
    One field of a partition specification.

    Attributes:
        column: the column that the value is computed from.
        transform: `identity`, or the part of a time.
    """

    column: str
    transform: Transform

    @classmethod
    def parse(cls, text: str) -> PartitionField:
        """
        Parse ``day(time)`` or the name of a column.

        Raises:
            SettingsError: it is neither.
        """
        found = _FIELD.fullmatch(text)
        known = ", ".join(f"{name}(column)" for name in _PATTERNS)
        if found is None or (found["transform"] is not None and found["transform"] not in _PATTERNS):
            raise SettingsError(f"partition_by: {text!r} is not a column, {known}")
        transform: Transform = next((one for one in get_args(Transform) if one == found["transform"]), "identity")
        return cls(found["inner"] or found["column"], transform)

    def __str__(self) -> str:
        return self.column if self.transform == "identity" else f"{self.transform}({self.column})"

    @property
    def name(self) -> str:
        """The name of the value: that of the column, or ``time_day``."""
        return self.column if self.transform == "identity" else f"{self.column}_{self.transform}"

    def type_in(self, schema: pa.Schema) -> pa.DataType:
        """
        Return the type of the value for rows of *schema*.

        Raises:
            UsageError: the column does not exist, or its type has no such value.
        """
        if self.column not in schema.names:
            raise UsageError(
                f"partition_by: {self} needs the column {self.column}; there are {', '.join(schema.names)}"
            )
        kind = schema.field(self.column).type
        if self.transform == "identity":
            if not (
                pa.types.is_string(kind)
                or pa.types.is_integer(kind)
                or pa.types.is_boolean(kind)
                or pa.types.is_date32(kind)
            ):
                raise UsageError(f"partition_by: {self} is {kind}; use a string, an integer, a boolean or a date")
            return kind
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise UsageError(f"partition_by: {self} needs a time or a date, and {self.column} is {kind}")
        return _TYPES[self.transform]

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the value of each row as a string."""
        column = batch.column(self.column)
        if self.transform == "identity":
            return column.cast(pa.string())
        unit = self.transform
        # Few distinct times are formatted, not every row.
        encoded = pc.dictionary_encode(pc.floor_temporal(column, unit=unit))
        return pc.strftime(encoded.dictionary, format=_PATTERNS[unit]).take(encoded.indices)


def partition_fields(texts: Sequence[str]) -> tuple[PartitionField, ...]:
    """
    Parse a partition specification.

    Raises:
        SettingsError: a field is not valid, or occurs twice.
    """
    fields = tuple(PartitionField.parse(text) for text in texts)
    names = [field.name for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingsError(f"partition_by: {twice} occurs twice")
    return fields


def split(
    batches: Iterable[pa.RecordBatch], fields: Sequence[PartitionField]
) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Divide *batches* by partition. The rows of a partition keep their order."""
    for batch in batches:
        if not fields:
            yield (), batch
            continue
        columns = [field.values(batch) for field in fields]
        names = [str(number) for number in range(len(columns))]
        keys = pa.table(columns, names=names)
        groups = keys.group_by(names).aggregate([])
        if groups.num_rows == 1:
            yield _values(groups.slice(0, 1).to_pylist()[0]), batch
            continue
        for row in groups.to_pylist():
            wanted = [_equal(column, value) for column, value in zip(columns, _values(row), strict=True)]
            mask = wanted[0]
            for other in wanted[1:]:
                mask = pc.and_(mask, other)
            yield _values(row), batch.filter(mask)


def _values(row: dict[str, str | None]) -> PartitionValues:
    return tuple(row.values())


def _equal(column: pa.Array, value: str | None) -> pa.Array:
    return pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), fill_value=False)
