"""
The logs of Delta tables, through the library `deltalake`.

Each commit names an application transaction: the query as its application, the number of the batch as its version. The
library accepts the same version twice, so the version is checked before each commit, on the snapshot that the commit
is based on. The library does not retry: a commit that conflicts with another writer is checked again first.

On a disk the library syncs nothing. The log is synced here, after each commit and before the commit is reported.
"""

from __future__ import annotations

import datetime
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import TransientError, UsageError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.exporters.output_files import synced_bytes
from quiver.spark.table_formats.batch_record import BatchRecord, DataFile
from quiver.spark.table_formats.columns import grown_schema
from quiver.spark.table_formats.export import TableLayout
from quiver.spark.table_formats.footer import column_statistics
from quiver.spark.table_formats.partition_spec import PartitionField
from quiver.spark.table_formats.partition_values import value_type
from quiver.spark.table_formats.place import TablePlace
from quiver.spark.table_formats.settings import DeltaSettings, MaintenanceLimits

__all__ = ["DeltaTables", "application_of"]

LOG_DIR = "_delta_log"
CONFLICTS_MAX = 20
"""Attempts at one commit. Each conflict means that another writer has committed."""


def application_of(query: str) -> str:
    """Return the application of the transactions of *query*."""
    return f"quiver:{query}"


class DeltaTables:
    """
    The Delta tables in *place*.

    Args:
        settings: of the exporter.
        place: the directory or bucket.
        clock: the time of commits.
    """

    def __init__(self, settings: DeltaSettings, place: TablePlace, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings = settings
        self._place = place
        self._clock = clock
        self._storage = place.storage_options()
        self._known: dict[str, DeltaTable] = {}
        self._synced: dict[str, int] = {}

    def prepare(self, table: str, schema: pa.Schema) -> TableLayout:
        """
        Create *table* if it does not exist, and add the columns of *schema* that it does not have.

        Raises:
            UsageError: a type cannot be stored, differs from the type in the table, or the table may not change.
            TransientError: another writer changed the table at the same moment, again and again.
        """
        if self._loaded(table) is None:
            self._create(table, schema)
        for _ in range(CONFLICTS_MAX):
            delta = self._existing(table)
            existing = pa.schema(delta.schema())
            partitions = _partitions_of(delta, self._settings.partitions)
            derived = {field.name for field in partitions if field.transform != "identity"}
            stored = pa.schema([field for field in existing if field.name not in derived])
            may_change = self._settings.schema_changes == "add"
            grown = grown_schema(table, stored, schema, may_change=may_change)
            if grown.equals(stored):
                return TableLayout(grown, partitions, omitted=frozenset(delta.metadata().partition_columns) - derived)
            added = [field for field in grown if field.name not in stored.names or field != stored.field(field.name)]
            try:
                delta.alter.add_columns(Schema.from_arrow(pa.schema(added)).fields)
            except CommitFailedError:
                del self._known[table]  # another writer: look again which columns are missing
                continue
            self._sync(table, delta)
        raise TransientError(f"table {table}: other writers changed it {CONFLICTS_MAX} times; the batch is retried")

    def has(self, table: str, query: str, batch: int) -> bool:
        """Return whether the log of *table* has *batch* of *query*, durably on return."""
        if self._loaded(table) is None:
            return False
        delta = self._fresh(table)
        if not _has(delta, query, batch):
            return False
        self._sync(table, delta)  # a process that was killed may not have done it
        return True

    def commit(self, table: str, record: BatchRecord) -> None:
        """
        Add the files of *record* to *table*, unless it has the batch. Durable on return.

        Raises:
            TransientError: other writers of the table were faster, again and again.
        """
        delta = self._existing(table)
        now_ms = self._clock.now_ns() // 1_000_000
        partitions = _partitions_of(delta, self._settings.partitions)
        adds: list[AddAction | RemoveAction] = [
            self._added(table, one, partitions, now_ms) for one in record.files_of(table)
        ]
        properties = CommitProperties(
            custom_metadata={"quiver.query": record.query, "quiver.batch": record.batch},
            max_commit_retries=0,
            app_transactions=[Transaction(application_of(record.query), record.batch, now_ms)],
        )
        for _ in range(CONFLICTS_MAX):
            if not _has(delta, record.query, record.batch):
                try:
                    delta.create_write_transaction(
                        adds,
                        "append",
                        delta.schema(),
                        partition_by=delta.metadata().partition_columns,
                        commit_properties=properties,
                    )
                except CommitFailedError:
                    delta = self._fresh(table)
                    continue
            self._sync(table, delta)
            return
        raise TransientError(f"table {table}: other writers were faster {CONFLICTS_MAX} times; the batch is retried")

    def maintain(self, table: str, limits: MaintenanceLimits) -> None:
        """
        Combine small files of *table*, and remove files that only versions before the retention need.

        Raises:
            DeltaError: another writer removed the same files at this moment; nothing changed.
        """
        delta = self._fresh(table)
        before = delta.version()
        delta.optimize.compact(target_size=limits.target_bytes)
        # The combined files are the only ones from now on, and the library has not synced them.
        self._sync_added(table, before, delta)
        hours = math.ceil(limits.retention_s / 3600)
        delta.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)
        delta.create_checkpoint()
        delta.cleanup_metadata()
        self._sync(table, self._fresh(table))

    def _sync_added(self, table: str, before: int, delta: DeltaTable) -> None:
        directory = self._place.directory
        if directory is None or delta.version() == before:
            return
        folders = set()
        for number in range(before + 1, delta.version() + 1):
            log = Path(f"{directory}/{table}/{LOG_DIR}/{number:020}.json").read_text()
            for added in (json.loads(line).get("add") for line in log.splitlines()):
                if added is not None:
                    path = f"{directory}/{table}/{unquote(added['path'])}"
                    synced_bytes(path)
                    folders.add(path.rpartition("/")[0])
        for folder in folders:
            REAL_FILES.sync_dir(folder)
        self._sync(table, delta)

    def _create(self, table: str, schema: pa.Schema) -> None:
        partitions = tuple(one for one in self._settings.partitions if one.column in schema.names)
        if len(partitions) < len(self._settings.partitions):
            partitions = ()  # this table has not all of their columns
        derived = [pa.field(one.name, value_type(one, schema)) for one in partitions]
        known = {field.name for field in schema}
        columns = [*schema, *(field for field in derived if field.name not in known)]
        self._place.prepare(table)
        delta = DeltaTable.create(
            self._place.uri(table),
            pa.schema(columns),
            mode="ignore",
            partition_by=[field.name for field in derived],
            name=table,
            configuration={f"quiver.partition.{one.name}": str(one) for one in partitions},
            storage_options=self._storage,
            raise_if_key_not_exists=False,
        )
        self._synced[table] = -1
        self._sync(table, delta)
        self._known[table] = delta

    def _loaded(self, table: str) -> DeltaTable | None:
        if table not in self._known:
            try:
                self._known[table] = DeltaTable(self._place.uri(table), storage_options=self._storage)
            except TableNotFoundError:
                return None
        return self._known[table]

    def _existing(self, table: str) -> DeltaTable:
        """Return the table at the version that was loaded last."""
        delta = self._loaded(table)
        if delta is None:
            raise UsageError(f"there is no Delta table at {self._place.uri(table)} any more; restart the exporter")
        return delta

    def _fresh(self, table: str) -> DeltaTable:
        """Return the table at its latest version."""
        delta = self._existing(table)
        delta.update_incremental()
        return delta

    def _added(self, table: str, one: DataFile, partitions: Sequence[PartitionField], now_ms: int) -> AddAction:
        footer = one.footer
        metadata = self._place.footer(f"{table}/{one.path}") if footer is None else pq.read_metadata(io.BytesIO(footer))
        values = {field.name: value for field, value in zip(partitions, one.partition, strict=True)}
        return AddAction(one.path, one.size_bytes, values, now_ms, True, _statistics(metadata))

    def _sync(self, table: str, delta: DeltaTable) -> None:
        """Make the log durable up to the version of *delta*."""
        version = delta.version()
        directory = self._place.directory
        if directory is not None:
            log = f"{directory}/{table}/{LOG_DIR}"
            last = f"{log}/_last_checkpoint"
            for number in range(self._synced.get(table, version - 1) + 1, version + 1):
                paths = [f"{log}/{number:020}.json", f"{log}/{number:020}.checkpoint.parquet"]
                for path in filter(REAL_FILES.exists, paths if number < version else [*paths, last]):
                    synced_bytes(path)
            REAL_FILES.sync_dir(log)
        self._synced[table] = version


def _has(delta: DeltaTable, query: str, batch: int) -> bool:
    version = delta.transaction_version(application_of(query))
    return version is not None and version >= batch


def _partitions_of(delta: DeltaTable, configured: Sequence[PartitionField]) -> tuple[PartitionField, ...]:
    """Return the fields of a table that may have been created with other settings, or by another program."""
    metadata = delta.metadata()
    fields = []
    for name in metadata.partition_columns:
        text = metadata.configuration.get(f"quiver.partition.{name}", name)
        known = next((one for one in configured if one.name == name), None)
        fields.append(PartitionField.parse(text) if known is None else known)
    return tuple(fields)


def _statistics(metadata: pq.FileMetaData) -> str:
    found = column_statistics(metadata)
    bounded = {name: one for name, one in found.items() if one.low is not None}
    return json.dumps(
        {
            "numRecords": metadata.num_rows,
            "minValues": {name: _stated(one.low) for name, one in bounded.items()},
            "maxValues": {name: _stated(one.high) for name, one in bounded.items()},
            "nullCount": {name: one.nulls for name, one in found.items()},
        }
    )


def _stated(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        utc = value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)
        return utc.isoformat(timespec="microseconds") + ("" if value.tzinfo is None else "Z")
    return value.isoformat() if isinstance(value, datetime.date) else value
