"""A Parquet file with large row groups, however small the batches are: each group costs readers time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from quiver.bundle import batch_bytes
from quiver.otap.views.parquet_options import parquet_options

__all__ = ["ROW_GROUP_BYTES", "RowGroupWriter"]

ROW_GROUP_BYTES = 32 << 20


class RowGroupWriter:
    """
    Writes batches to one file. Only `finish` makes the file complete.

    Args:
        target: a path, or a file that is open for writing.
        schema: the columns.
        compression: of Parquet: zstd, snappy, or none.
        group_bytes: the size of a row group in memory.
        footers: gets the footer of the complete file.

    Attributes:
        rows: the number of rows so far.
        waiting_bytes: the size of the rows that wait for their row group.
    """

    def __init__(
        self,
        target: Any,
        schema: pa.Schema,
        *,
        compression: str,
        group_bytes: int = ROW_GROUP_BYTES,
        footers: list[pq.FileMetaData] | None = None,
    ) -> None:
        self.rows = 0
        self.waiting_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        self._group_bytes = group_bytes
        self._writer = pq.ParquetWriter(
            target, schema, compression=compression, metadata_collector=footers, **parquet_options(schema)
        )

    def add(self, batch: pa.RecordBatch) -> bool:
        """Add rows. Return whether they completed a row group, which is written then."""
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self.waiting_bytes += batch_bytes(batch)
        if self.waiting_bytes < self._group_bytes:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Write the waiting rows as one row group."""
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
            self._waiting, self.waiting_bytes = [], 0

    def finish(self) -> None:
        """Write the waiting rows and the footer."""
        self.flush()
        self._writer.close()

    def close(self) -> None:
        """Release a file that is not needed any more. Idempotent."""
        self._waiting = []
        self._writer.close()
