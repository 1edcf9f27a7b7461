"""
Make a batch of files visible: complete files, exactly once, correct for every reader at every moment.

::

    1  tasks write     <out>/logs/.<query>-<batch>-….part       hidden from Spark, pyarrow, DuckDB and shells
    2  tasks sync each file; the driver syncs each directory
    3  the driver writes <out>/_quiver/<query id>/<batch>.json  the commit: durable, all or nothing
    4  each part is renamed to <out>/logs/<query>-<batch>-<n>.parquet, within its directory
    5  the directories are synced

A crash before 3 leaves hidden files, which the next run removes before it writes the batch again. A crash after 3 is
rolled forward: the record lists the files that still have to be renamed. No step can show a row twice, because a batch
with a record is never written again. The files of a failed job are removed immediately: a batch with a bad bundle is
written again without it, and the query may run for weeks before the next restart.

A record also has the last position of its batch in each store. A query that starts with a new checkpoint as the same
subscriber skips everything before it, so nothing is exported twice.

A bundle that failed in its batch is exported individually later, as the only batch of a query named `individual_id`.
Such a committer touches only its own records and files, because the exporter's query may be running at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from quiver.bundle import BundleRef
from quiver.invariant import invariant
from quiver.primitives.disk.atomic import remove_durably, replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.spark.exporters.commit_records import (
    RECORD_BYTES_MAX,
    decode_positions,
    decode_record,
    encode_positions,
    encode_record,
)
from quiver.store.reading.offsets import STORE_UNKNOWN

__all__ = [
    "INDIVIDUAL_PREFIX",
    "RECORDS_DIR",
    "RECORDS_KEPT",
    "ExportCommitter",
    "ExportRecord",
    "StagedFile",
    "committed_individually",
    "individual_id",
    "part_prefix",
    "record_batch_of",
]

INDIVIDUAL_PREFIX = "apart-"

RECORDS_DIR = "_quiver"

RECORDS_KEPT = 100
"""Spark replays only the last batch; older records help with diagnosis."""

RECORD_VERSION = 2
_ONE_STORE_VERSION = 1
"""A record of this version has one store and one position."""
_QUERY_CHARACTERS = 8


@dataclass(frozen=True, slots=True)
class StagedFile:
    """
    A file that a task wrote and synced under its hidden name.

    Attributes:
        table: the directory below the output.
        name: the hidden file name in it.
        rows: the number of rows.
        size_bytes: the size of the file.
    """

    table: str
    name: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """
    One committed batch.

    Attributes:
        batch: Spark's number of the batch.
        subscriber: the subscriber that read the bundles.
        through: per store identity, the position before which every bundle is in this batch or an earlier one.
        files: (part, final name) in order.
    """

    batch: int
    subscriber: str
    through: Mapping[str, BundleRef]
    files: tuple[tuple[StagedFile, str], ...]

    def encode(self) -> bytes:
        """Return the record as JSON with a CRC-32 over its body."""
        return encode_record(
            RECORD_VERSION,
            {
                "batch": self.batch,
                "subscriber": self.subscriber,
                "through": encode_positions(self.through),
                "files": [
                    {"table": part.table, "part": part.name, "file": name, "rows": part.rows, "bytes": part.size_bytes}
                    for part, name in self.files
                ],
            },
        )

    @classmethod
    def decode(cls, data: bytes, path: str) -> ExportRecord:
        """
        Decode a record.

        Raises:
            CorruptionError: the record is damaged, or has a newer version.
        """
        return decode_record(data, path, "commit record", {_ONE_STORE_VERSION, RECORD_VERSION}, cls._parsed)

    @classmethod
    def _parsed(cls, body: dict[str, Any]) -> ExportRecord:
        files = tuple(
            (StagedFile(entry["table"], entry["part"], entry["rows"], entry["bytes"]), str(entry["file"]))
            for entry in body["files"]
        )
        reached = body["through"] if body["v"] == RECORD_VERSION else {body["store"]: body["through"]}
        return cls(body["batch"], body["subscriber"], decode_positions(reached), files)


def individual_id(subscriber: str, bundle: str) -> str:
    """
    Return the query name under which a bundle is exported individually: always the same, and unique to the bundle.

    Args:
        subscriber: the exporter.
        bundle: identity of its store, segment and index.
    """
    return f"{INDIVIDUAL_PREFIX}{hashlib.sha256(f'{subscriber}/{bundle}'.encode()).hexdigest()[:32]}"


def committed_individually(fs: FileSystem, output: str, names: AbstractSet[str]) -> set[str]:
    """Return those of *names* under which a bundle was exported to *output* individually."""
    root = f"{output}/{RECORDS_DIR}"
    queries = fs.list_dir(root) if fs.exists(root) else ()
    return {name for name in queries if name in names and fs.exists(f"{root}/{name}/{0:010}.json")}


def part_prefix(query_id: str, batch: int) -> str:
    """Return the prefix of the hidden names of a batch's parts."""
    return f".{_short(query_id)}-{batch:010}-"


def _short(query_id: str) -> str:
    # A few characters of Spark's ids distinguish the few queries of a directory. Bundles can be many.
    return query_id if query_id.startswith(INDIVIDUAL_PREFIX) else query_id[:_QUERY_CHARACTERS]


class ExportCommitter:
    """
    Commits the batches of one query into one output directory. One live query per subscriber is assumed.

    Args:
        fs: the file system.
        output: the output directory; created if missing.
        query_id: Spark's id of the query, which stays the same over restarts from one checkpoint.
        stores: identities of the stores: one, or one for each core.
        subscriber: the subscriber of the query.
        suffix: the suffix of the final names.
        file_mode: permission bits of the records, which name the files; None makes them readable by all users.
    """

    def __init__(
        self,
        fs: FileSystem,
        output: str,
        *,
        query_id: str,
        stores: Iterable[str],
        subscriber: str,
        suffix: str = ".parquet",
        file_mode: int | None = None,
    ) -> None:
        self._record_mode = 0o644 if file_mode is None else file_mode
        self._fs = fs
        self._output = output
        self._query_id = query_id
        self._stores = frozenset(stores)
        self._suffix = suffix
        self._subscriber = subscriber
        self._records = f"{output}/{RECORDS_DIR}/{query_id}"
        self._attempts = 0
        self.exported_through: dict[str, BundleRef] = {}
        """Per store, the position before which an earlier query of the same subscriber committed every bundle."""

    def recover(self) -> None:
        """
        Finish committed batches and remove uncommitted files. Call it once, before the first batch. Durable on return.

        Raises:
            CorruptionError: a commit record is damaged.
        """
        self._fs.make_dirs(self._records)
        root = f"{self._output}/{RECORDS_DIR}"
        if self._query_id.startswith(INDIVIDUAL_PREFIX):
            self.is_committed(0)
            self._remove_leftovers((f".{_short(self._query_id)}-",))
            return
        queries = [self._query_id]
        for query_id in self._fs.list_dir(root):
            if query_id.startswith(INDIVIDUAL_PREFIX):
                continue  # a committer of an individual bundle finishes its own batch only
            records = self._own_records(f"{root}/{query_id}")
            for record in records:
                self.roll_forward(record)
                for store, position in record.through.items():
                    if store != STORE_UNKNOWN:
                        known = self.exported_through.get(store, position)
                        self.exported_through[store] = max(known, position)
            self._forget(f"{root}/{query_id}", [record.batch for record in records])
            if records and query_id != self._query_id:
                queries.append(query_id)
        self._remove_leftovers(tuple(f".{_short(query_id)}-" for query_id in queries))

    def _own_records(self, directory: str) -> list[ExportRecord]:
        records = []
        for name in self._fs.list_dir(directory):
            if record_batch_of(name) is not None:
                path = f"{directory}/{name}"
                record = ExportRecord.decode(self._fs.read_all(path, size_max=RECORD_BYTES_MAX), path)
                if record.subscriber == self._subscriber and self._stores & set(record.through):
                    records.append(record)
        return records

    def _remove_leftovers(self, prefixes: tuple[str, ...]) -> None:
        remove_durably(self._fs, [path for path in self._parts(self._output) if _file_name(path).startswith(prefixes)])

    def _parts(self, directory: str) -> Iterator[str]:
        """Yield the hidden files of all tables and their partitions."""
        try:
            names = self._fs.list_dir(directory)
        except NotADirectoryError:
            return  # not a file of ours
        for name in names:
            if name.endswith(".part"):
                yield f"{directory}/{name}"
            elif not name.startswith(("_", ".")) and not name.endswith((self._suffix, ".parquet")):
                yield from self._parts(f"{directory}/{name}")

    def is_committed(self, batch: int) -> bool:
        """
        Return whether *batch* has its record. If so, its files are in place, durably, on return.

        Raises:
            CorruptionError: the record is damaged.
        """
        path = self._record_path(batch)
        if not self._fs.exists(path):
            return False
        self.roll_forward(ExportRecord.decode(self._fs.read_all(path, size_max=RECORD_BYTES_MAX), path))
        return True

    @contextlib.contextmanager
    def writing(self, batch: int) -> Iterator[str]:
        """
        Enclose the writing of the parts of *batch*, whose names begin with the yielded prefix.

        If it fails, they are removed: they are written again, or never.
        """
        self._attempts += 1
        try:
            yield f"{part_prefix(self._query_id, batch)}{os.getpid()}a{self._attempts}-"
        except BaseException:
            with contextlib.suppress(OSError):  # `recover` removes them, too, and the first error matters more
                self._remove_leftovers((part_prefix(self._query_id, batch),))
            raise

    def commit(self, batch: int, parts: Iterable[StagedFile], through: Mapping[str, BundleRef]) -> tuple[str, ...]:
        """
        Make all *parts* of *batch* visible, even if a crash interrupts this. Durable on return.

        The *parts* must be synced; their names need not be. Nothing is written if there are no parts.

        Returns:
            The final paths, relative to the output directory.

        Raises:
            OSError: the disk refused; the same batch may be tried again after `recover`.
        """
        prefix = part_prefix(self._query_id, batch)[1:]
        ordered = sorted(parts, key=lambda part: (part.table, part.name))
        if not ordered:
            return ()
        named = tuple((part, f"{prefix}{number}{self._suffix}") for number, part in enumerate(ordered))
        record = ExportRecord(batch, self._subscriber, dict(sorted(through.items())), named)
        # The record names the parts, so the names must survive a power cut, too.
        for table in _tables_of(record):
            self._fs.sync_dir(f"{self._output}/{table}")
        path = self._record_path(batch)
        invariant(not self._fs.exists(path), f"batch {batch} is committed once: its record names the files that count")
        replace_file(self._fs, path, record.encode(), mode=self._record_mode)
        self.roll_forward(record)
        self._prune(batch)
        return tuple(f"{part.table}/{name}" for part, name in named)

    def roll_forward(self, record: ExportRecord) -> None:
        """Give each part of *record* its final name, unless it has it already. Durable on return."""
        moved = []
        for part, name in record.files:
            source = f"{self._output}/{part.table}/{part.name}"
            if self._fs.exists(source):
                self._fs.rename(source, f"{self._output}/{part.table}/{name}")
                moved.append(part.table)
        for table in dict.fromkeys(moved):
            self._fs.sync_dir(f"{self._output}/{table}")

    def _prune(self, batch: int) -> None:
        old = batch - RECORDS_KEPT
        if old >= 0:
            remove_durably(self._fs, [f"{self._records}/{old:010}.json"])

    def _forget(self, directory: str, batches: Sequence[int]) -> None:
        """Remove the records of *batches* that are no longer needed. Repeating this after a crash is harmless."""
        oldest = max(batches, default=0) - RECORDS_KEPT
        remove_durably(self._fs, [f"{directory}/{batch:010}.json" for batch in batches if batch <= oldest])

    def _record_path(self, batch: int) -> str:
        return f"{self._records}/{batch:010}.json"


def _tables_of(record: ExportRecord) -> Sequence[str]:
    return tuple(dict.fromkeys(part.table for part, _ in record.files))


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


def record_batch_of(name: str) -> int | None:
    """Return the number of the batch whose record has this file name; None for other names."""
    stem, dot, suffix = name.partition(".")
    return int(stem) if dot and suffix == "json" and stem.isdecimal() else None
