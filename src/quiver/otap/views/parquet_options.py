"""
Which columns of a Parquet file have a dictionary, and which have statistics. Pure.

A dictionary makes repeated values small, and costs a hash for each value. Values that hardly repeat fill it to its
limit before the writer gives it up, so the file becomes larger. Statistics let readers skip row groups. No reader skips
by values inside of maps and lists, and comparing all of their strings takes a tenth of the time of writing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

__all__ = ["parquet_options"]

_HARDLY_REPEATED = frozenset(
    {
        *("time", "observed_time", "start_time", "end_time"),
        *("trace_id", "span_id", "parent_span_id"),
        *("int_value", "double_value", "bytes_value", "json_value", "sum", "min", "max"),
    }
)
"""Names of such columns and fields, at any depth. Exact times and durations are recognized by their unit."""

_NANOSECONDS = "_nano"
_TEXT_OF_LOGS = "body.string_value"

_WRITE_ROWS = 1 << 16
"""How many values of a column the writer handles in one step. Its default is 1,024, and each step has a fixed cost."""


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """
    Return the arguments of `pyarrow.parquet.ParquetWriter` for rows of *schema*.

    The schema may be that of a view, or any other: columns with names of a view are treated like those.
    """
    leaves = [leaf for field in schema for leaf in _leaves(field.type, field.name, repeated=False)]
    return {
        "use_dictionary": [path for path, _ in leaves if _has_dictionary(path)],
        "write_statistics": [path for path, repeated in leaves if not repeated],
        "write_batch_size": _WRITE_ROWS,
    }


def _has_dictionary(path: str) -> bool:
    name = path.rpartition(".")[2]
    return name not in _HARDLY_REPEATED and not name.endswith(_NANOSECONDS) and path != _TEXT_OF_LOGS


def _leaves(kind: pa.DataType, path: str, *, repeated: bool) -> Iterator[tuple[str, bool]]:
    """Yield the path of each column of Parquet, and whether it is inside of a list or a map."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(field.type, f"{path}.{field.name}", repeated=repeated)
    elif pa.types.is_map(kind):
        yield from _leaves(kind.key_type, f"{path}.key_value.key", repeated=True)
        yield from _leaves(kind.item_type, f"{path}.key_value.value", repeated=True)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _leaves(kind.value_type, f"{path}.list.element", repeated=True)
    else:
        yield path, repeated
