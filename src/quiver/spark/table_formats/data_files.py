"""In a task: rows → Parquet files of one table, one per partition, complete and durable. The driver commits them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from quiver.spark.exporters.row_groups import RowGroupWriter
from quiver.spark.store.sink_stage import task_place
from quiver.spark.table_formats.batch_record import DataFile
from quiver.spark.table_formats.footer import encode_footer
from quiver.spark.table_formats.partition_spec import PartitionField
from quiver.spark.table_formats.partition_values import PartitionValues, split
from quiver.spark.table_formats.place import NewFile, TablePlace
from quiver.store.segment.cast import cast_to_schema

__all__ = ["RESULT_SCHEMA", "WriteTask", "data_file"]

RESULT_SCHEMA = "table string, path string, rows bigint, bytes bigint, partition string, footer binary"

_RESULT_ARROW = pa.schema(
    [
        ("table", pa.string()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("partition", pa.string()),
        ("footer", pa.binary()),
    ]
)

_OPEN_FILES_MAX = 64
"""Times that are wrong may be in any number of partitions. Then a partition gets several files of a task."""

Batches = Iterable[pa.RecordBatch]


def data_file(row: Any) -> DataFile:
    """Return the file that a row of `RESULT_SCHEMA` describes."""
    return DataFile(
        row["table"],
        row["path"],
        row["rows"],
        row["bytes"],
        tuple(json.loads(row["partition"])),
        bytes(row["footer"]),
    )


@dataclass(frozen=True, slots=True)
class _OpenFile:
    name: str
    partition: PartitionValues
    file: NewFile
    writer: RowGroupWriter
    footers: list[Any]


@dataclass(frozen=True, kw_only=True)
class WriteTask:
    """
    Runs in a task: writes its rows to files of one table and returns them. Without rows, does nothing.

    Attributes:
        place: where the tables are.
        table: the table.
        folder: the folder of its data files, below the directory of the table; empty or with a slash at its end.
        prefix: the beginning of their names.
        schema: the columns of the table.
        partitions: the partition fields.
        omitted: columns that the files do not have, because the log of the table has their values.
        compression: of Parquet: zstd, snappy, or none.
        decode: applied first, to what the task receives.
    """

    place: TablePlace
    table: str
    folder: str
    prefix: str
    schema: pa.Schema
    partitions: tuple[PartitionField, ...]
    omitted: frozenset[str]
    compression: str
    decode: Callable[[Batches], Iterator[pa.RecordBatch]] | None = None

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """
        Write *batches*, and yield the durable files.

        Raises:
            UsageError: a value does not fit its column.
            OSError: the disk refused.
            ObjectsUnavailableError: the object store does not answer.
        """
        partition, attempt = task_place()
        name = f"{self.prefix}{partition:05}-{attempt}"
        open_files: dict[PartitionValues, _OpenFile] = {}
        rows: list[dict[str, Any]] = []
        number = 0
        decoded = batches if self.decode is None else self.decode(batches)
        filled = (cast_to_schema(batch, self.schema) for batch in decoded if batch.num_rows)
        try:
            for values, batch in split(filled, self.partitions):
                if values not in open_files:
                    if len(open_files) == _OPEN_FILES_MAX:
                        rows.append(self._finished(open_files, next(iter(open_files))))
                    open_files[values] = self._open(f"{self.folder}{name}-{number}.parquet", values)
                    number += 1
                open_files[values].writer.add(batch.drop_columns(list(self.omitted)) if self.omitted else batch)
            rows += [self._finished(open_files, values) for values in list(open_files)]
        finally:
            for one in open_files.values():
                one.writer.close()
                one.file.discard()
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=_RESULT_ARROW)

    def _open(self, path: str, partition: PartitionValues) -> _OpenFile:
        file = self.place.new_file(f"{self.table}/{path}")
        footers: list[Any] = []
        stored = pa.schema([field for field in self.schema if field.name not in self.omitted])
        writer = RowGroupWriter(file.path, stored, compression=self.compression, footers=footers)
        return _OpenFile(path, partition, file, writer, footers)

    def _finished(self, open_files: dict[PartitionValues, _OpenFile], values: PartitionValues) -> dict[str, Any]:
        one = open_files[values]
        one.writer.finish()
        size_bytes = one.file.finish()
        del open_files[values]
        return {
            "table": self.table,
            "path": one.name,
            "rows": one.writer.rows,
            "bytes": size_bytes,
            "partition": json.dumps(one.partition),
            "footer": encode_footer(one.footers[0]),
        }
