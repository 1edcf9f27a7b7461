"""The Parquet files that a task writes: one for each partition and schema, closed when it has the target size."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from quiver.bundle import schema_fingerprint
from quiver.errors import UsageError
from quiver.spark.exporters.parquet_commit import StagedFile
from quiver.spark.exporters.row_groups import ROW_GROUP_BYTES, RowGroupWriter
from quiver.spark.lake.partition_rows import split_rows

if TYPE_CHECKING:
    from quiver.spark.lake.layout import FileLayout
    from quiver.spark.lake.staging import Staging, StagingFile

__all__ = ["PartFiles"]

_WAITING_BYTES_MAX = 128 << 20
"""The rows of all partitions of a task that wait for their row group."""


@dataclass
class _Open:
    directory: str
    name: str
    file: StagingFile
    writer: RowGroupWriter


class PartFiles:
    """
    Divides rows into files. Close it in every case; only `finish` makes the files complete.

    Args:
        staging: where they are written.
        layout: how rows are divided.
        task: identifies this attempt of a task within the batch.
    """

    def __init__(self, staging: Staging, layout: FileLayout, task: str) -> None:
        self._staging = staging
        self._layout = layout
        self._task = task
        self._open: dict[tuple[str, bytes], _Open] = {}
        self._finished: list[StagedFile] = []
        self._count = 0
        self._waiting_bytes = 0
        limit = layout.file_bytes_max
        self._group_bytes = ROW_GROUP_BYTES if limit is None else min(limit, ROW_GROUP_BYTES)

    def add(self, table: str, batch: pa.RecordBatch) -> None:
        """
        Add rows of *table*.

        Raises:
            UsageError: the batch has too many partitions, or the table cannot be partitioned by its keys.
            OSError: the disk refused.
            ObjectsUnavailableError: a file of the target size could not be sent.
        """
        for directory, rows in split_rows(self._layout.partition_by, table, batch):
            if not rows.num_rows:
                continue
            key = (directory, schema_fingerprint(rows.schema))
            part = self._open.get(key) or self._begin(key, rows.schema)
            before = part.writer.waiting_bytes
            is_written = part.writer.add(rows)
            self._waiting_bytes += part.writer.waiting_bytes - before
            limit = self._layout.file_bytes_max
            if is_written and limit is not None and part.file.sink.tell() >= limit:
                self._finish(self._open.pop(key))
            while self._waiting_bytes > _WAITING_BYTES_MAX:
                self._flush(max((one.writer for one in self._open.values()), key=lambda one: one.waiting_bytes))

    def _begin(self, key: tuple[str, bytes], schema: pa.Schema) -> _Open:
        if len(self._open) >= self._layout.partitions_max:
            raise UsageError(
                f"a batch has more than {self._layout.partitions_max} partitions, the last one {key[0]}: partition by "
                "an attribute with fewer values, or raise max_partitions; the batch is exported after that"
            )
        directory = key[0]
        name = f"{self._staging.prefix}{self._task}-{self._count}.part"
        self._count += 1
        file = self._staging.begin(directory, name)
        try:
            writer = RowGroupWriter(
                file.sink, schema, compression=self._layout.compression, group_bytes=self._group_bytes
            )
        except BaseException:
            file.discard()
            raise
        self._open[key] = _Open(directory, name, file, writer)
        return self._open[key]

    def _flush(self, writer: RowGroupWriter) -> None:
        self._waiting_bytes -= writer.waiting_bytes
        writer.flush()

    def _finish(self, part: _Open) -> None:
        try:
            self._flush(part.writer)
            part.writer.finish()
            part.file.sink.close()
            size_bytes = part.file.finish()
        finally:
            part.file.discard()
        self._finished.append(StagedFile(part.directory, part.name, part.writer.rows, size_bytes))

    def finish(self) -> list[StagedFile]:
        """
        Return all files, complete and durable under their staged names.

        Raises:
            OSError: the disk refused.
            ObjectsUnavailableError: a file could not be sent.
        """
        while self._open:
            self._finish(self._open.pop(next(iter(self._open))))
        return self._finished

    def close(self) -> None:
        """Release the files that are not finished. Idempotent."""
        for part in self._open.values():
            with contextlib.suppress(OSError, ValueError, pa.ArrowException):
                part.writer.close()  # it would write the end of its file later, when it is collected
            part.file.discard()
        self._open.clear()
