"""
The record of a batch: its data files in all tables, and the positions that it reaches. Pure.

It is JSON, with a CRC-32 over its body. It is written once, before the first table gets the batch: from then on the
batch consists of exactly these files, whatever is killed. `export.py` describes the order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quiver.bundle import BundleRef
from quiver.errors import CorruptionError
from quiver.primitives.checksum import crc32
from quiver.spark.table_formats.partition_spec import PartitionValues

__all__ = ["RECORD_BYTES_MAX", "BatchRecord", "DataFile"]

RECORD_BYTES_MAX = 64 * 1024 * 1024
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
        body = {
            "v": RECORD_VERSION,
            "query": self.query,
            "batch": self.batch,
            "subscriber": self.subscriber,
            "through": {
                store: {"seq": position.segment, "idx": position.index} for store, position in self.through.items()
            },
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
        }
        return json.dumps({"crc32": _checksum(body), "record": body}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> BatchRecord:
        """
        Decode a record.

        Raises:
            CorruptionError: the record is damaged, or has a newer version.
        """
        try:
            value = json.loads(data)
            body = value["record"]
            if value["crc32"] != _checksum(body):
                raise CorruptionError(path, 0, "the record of a batch does not match its checksum")
            if body["v"] != RECORD_VERSION:
                raise CorruptionError(
                    path, 0, f"the record of a batch has version {body['v']}; this release reads {RECORD_VERSION}"
                )
            return cls(
                str(body["query"]),
                int(body["batch"]),
                str(body["subscriber"]),
                {str(store): BundleRef(place["seq"], place["idx"]) for store, place in body["through"].items()},
                tuple(
                    DataFile(one["table"], one["path"], one["rows"], one["bytes"], tuple(one["partition"]))
                    for one in body["files"]
                ),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptionError(path, 0, "the file is not the record of a batch") from error


def _checksum(body: Any) -> str:
    return f"{crc32(json.dumps(body, sort_keys=True, separators=(',', ':')).encode()):08x}"
