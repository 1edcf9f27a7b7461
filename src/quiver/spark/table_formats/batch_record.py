"""
The record of a batch: its data files in all tables, and the positions that it reaches. Pure.

It is written once, before the first table gets the batch: from then on the batch consists of exactly these files,
whatever is killed. `export.py` describes the order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quiver.bundle import BundleRef
from quiver.spark.exporters.commit_records import decode_positions, decode_record, encode_positions, encode_record
from quiver.spark.table_formats.partition_values import PartitionValues

__all__ = ["BatchRecord", "DataFile"]

RECORD_VERSION = 1


@dataclass(frozen=True, slots=True)
class DataFile:
    """
    A Parquet file that a task wrote, durably.

    Attributes:
        table: the table.
        path: relative to the directory of the table.
        rows: the number of rows.
        size_bytes: the size of the file.
        partition: its values of the partition fields.
        footer: the file's footer; None if the file has it and it was not kept.
    """

    table: str
    path: str
    rows: int
    size_bytes: int
    partition: PartitionValues = ()
    footer: bytes | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """
    One batch that is decided.

    Attributes:
        query: Spark's id of the query, or the name of a bundle that is exported individually.
        batch: Spark's number of the batch.
        subscriber: the subscriber that read the bundles.
        through: per store identity, the position before which every bundle is in this batch or an earlier one.
        files: the data files of all tables.
    """

    query: str
    batch: int
    subscriber: str
    through: Mapping[str, BundleRef]
    files: tuple[DataFile, ...]

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that have rows of the batch."""
        return tuple(dict.fromkeys(one.table for one in self.files))

    def files_of(self, table: str) -> tuple[DataFile, ...]:
        """Return the files of one table."""
        return tuple(one for one in self.files if one.table == table)

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return encode_record(
            RECORD_VERSION,
            {
                "query": self.query,
                "batch": self.batch,
                "subscriber": self.subscriber,
                "through": encode_positions(self.through),
                "files": [
                    {
                        "table": one.table,
                        "path": one.path,
                        "rows": one.rows,
                        "bytes": one.size_bytes,
                        "partition": list(one.partition),
                    }
                    for one in self.files
                ],
            },
        )

    @classmethod
    def decode(cls, data: bytes, path: str) -> BatchRecord:
        """
        Decode a record.

        Raises:
            CorruptionError: the record is damaged, or has a newer version.
        """
        return decode_record(data, path, "record of a batch", {RECORD_VERSION}, cls._parsed)

    @classmethod
    def _parsed(cls, body: dict[str, Any]) -> BatchRecord:
        return cls(
            str(body["query"]),
            int(body["batch"]),
            str(body["subscriber"]),
            decode_positions(body["through"]),
            tuple(
                DataFile(one["table"], one["path"], one["rows"], one["bytes"], tuple(one["partition"]))
                for one in body["files"]
            ),
        )
