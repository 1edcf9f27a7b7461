"""The footer of a Parquet file → statistics of its columns. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["ColumnStatistics", "column_statistics", "encode_footer"]

_TEXT_CHARACTERS_MAX = 64
"""A longer bound is omitted: readers then do not skip the file, which is always correct."""


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """
    A column of a file.

    Attributes:
        nulls: the number of null values.
        low: the smallest value; None if it is unknown.
        high: the largest value; None if it is unknown.
    """

    nulls: int
    low: Any = None
    high: Any = None


def encode_footer(metadata: pq.FileMetaData) -> bytes:
    """Return the footer of a file, as a file without rows that `pyarrow.parquet.read_metadata` reads."""
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    return bytes(sink.getvalue())


def column_statistics(metadata: pq.FileMetaData) -> Mapping[str, ColumnStatistics]:
    """
    Return the statistics of the columns that are not nested.

    A column is missing if a part of the file has no statistics of it. Floats have no bounds: Parquet leaves NaN out of
    them, and readers of tables expect it to be the largest value.
    """
    found: dict[str, list[Any]] = {}
    unknown = set()
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for number in range(row_group.num_columns):
            column = row_group.column(number)
            name = column.path_in_schema
            if "." in name:
                continue  # nested; also a column with a dot in its name, which looks the same
            statistics = column.statistics
            if statistics is None or not statistics.has_null_count:
                unknown.add(name)
            else:
                found.setdefault(name, []).append(statistics)
    return {name: _combined(statistics) for name, statistics in found.items() if name not in unknown}


def _combined(parts: list[Any]) -> ColumnStatistics:
    nulls = sum(one.null_count for one in parts)
    bounded = [one for one in parts if one.num_values]
    if not all(one.has_min_max for one in bounded) or not bounded:
        return ColumnStatistics(nulls)
    low, high = min(one.min for one in bounded), max(one.max for one in bounded)
    return ColumnStatistics(nulls, low, high) if _is_bound(low) and _is_bound(high) else ColumnStatistics(nulls)


def _is_bound(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _TEXT_CHARACTERS_MAX
    return isinstance(value, int | datetime.date) and not isinstance(value, bool)
