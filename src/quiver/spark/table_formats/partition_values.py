"""
The partition of a row: the values of the fields that `partition_spec.py` parses. Pure.

Values of partitions are strings, as in the log of a Delta table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from quiver.errors import UsageError
from quiver.spark.table_formats.partition_spec import PartitionField

__all__ = ["PartitionValues", "split", "value_type", "values"]

PartitionValues = tuple[str | None, ...]
"""One value per field; None for null."""

_PATTERNS = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}
_TYPES = {"year": pa.int32(), "month": pa.string(), "day": pa.date32(), "hour": pa.string()}


def value_type(field: PartitionField, schema: pa.Schema) -> pa.DataType:
    """
    Return the type of the value of *field* for rows of *schema*.

    Raises:
        UsageError: the column does not exist, or its type has no such value.
    """
    if field.column not in schema.names:
        raise UsageError(f"partition_by: {field} needs the column {field.column}; there are {', '.join(schema.names)}")
    kind = schema.field(field.column).type
    if field.transform == "identity":
        if not (
            pa.types.is_string(kind)
            or pa.types.is_integer(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_date32(kind)
        ):
            raise UsageError(f"partition_by: {field} is {kind}; use a string, an integer, a boolean or a date")
        return kind
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise UsageError(f"partition_by: {field} needs a time or a date, and {field.column} is {kind}")
    return _TYPES[field.transform]


def values(field: PartitionField, batch: pa.RecordBatch) -> pa.Array:
    """Return the value of *field* for each row as a string."""
    column = batch.column(field.column)
    if field.transform == "identity":
        return column.cast(pa.string())
    unit = field.transform
    # Few distinct times are formatted, not every row.
    encoded = pc.dictionary_encode(pc.floor_temporal(column, unit=unit))
    return pc.strftime(encoded.dictionary, format=_PATTERNS[unit]).take(encoded.indices)


def split(
    batches: Iterable[pa.RecordBatch], fields: Sequence[PartitionField]
) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Divide *batches* by partition. The rows of a partition keep their order."""
    for batch in batches:
        if not fields:
            yield (), batch
            continue
        columns = [values(field, batch) for field in fields]
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
