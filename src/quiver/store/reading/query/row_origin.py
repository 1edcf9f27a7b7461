"""The columns `_node` and `_segment`: where a row of a fleet comes from. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from quiver.errors import UsageError

__all__ = ["ORIGIN_SCHEMA", "RowOrigin"]

ORIGIN_SCHEMA = pa.schema([pa.field("_node", pa.string()), pa.field("_segment", pa.int64())])
"""The identity of the node, and the number of the segment in it, as in the format `quiver-fleet`."""


class RowOrigin:
    """
    Adds the columns of `ORIGIN_SCHEMA` to the rows of a scan.

    Args:
        columns: those of the scan, in order; None for all that are stored.
        is_included: add both columns at the end, unless they are in *columns*.
    """

    def __init__(self, columns: Sequence[str] | None, *, is_included: bool) -> None:
        if isinstance(columns, str):
            raise UsageError(f"columns={columns!r} is one text: write a list, columns=[{columns!r}]")
        self._columns = None if columns is None else list(columns)
        self._added = ORIGIN_SCHEMA.names if is_included else []

    def stored(self, names: Sequence[str]) -> list[str] | None:
        """Return which of the stored columns *names* to read; None for all. One of them has the number of rows."""
        if self._columns is None:
            return None
        return [name for name in self._columns if name not in ORIGIN_SCHEMA.names] or list(names[:1])

    def schema(self, stored: pa.Schema) -> pa.Schema:
        """
        Return the schema of the rows, given that of what is read.

        Raises:
            UsageError: a column is requested twice, or a stored one has the name of an added one.
        """
        columns = stored.names if self._columns is None else self._columns
        names = [*columns, *(name for name in self._added if self._columns is None or name not in columns)]
        if len(set(names)) < len(names):
            raise UsageError("a column is named twice: give columns=[…] without it")
        return pa.schema([(ORIGIN_SCHEMA if name in ORIGIN_SCHEMA.names else stored).field(name) for name in names])

    def place(self, batch: pa.RecordBatch, schema: pa.Schema, node: str, segment: int) -> pa.RecordBatch:
        """Return *batch*, which was read from this segment, in *schema*."""
        values = {"_node": node, "_segment": segment}
        columns = [
            pa.repeat(pa.scalar(values[column.name], column.type), batch.num_rows)
            if column.name in values
            else batch.column(column.name)
            for column in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
