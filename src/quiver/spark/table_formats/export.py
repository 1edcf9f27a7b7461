"""
The exporter of batches to tables, the same for all formats: each batch exactly once in each table.

::

    1  the driver creates the tables that are missing, and adds columns that are new
    2  tasks write data files, durably; no reader of a table looks at files that its log does not name
    3  the driver writes the record of the batch: all files, all positions; durable, all or nothing
    4  the driver commits the files to each table, together with the name of the query and the number of the batch
    5  Spark commits the batch

A crash before 3 leaves files that the next attempt at the batch removes. A crash after 3 is rolled forward: each table
is asked whether it has the batch, and gets the files of the record if it has not. The record also has the positions
that the batch reaches: a query that starts with a new checkpoint as the same subscriber skips everything before them.

After a batch, the driver maintains the tables if it is time: no file of the exporter waits for its commit then.

A table may have a batch that another table does not have yet, until 4 is complete. Each table is consistent in itself.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from quiver.bundle import BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CorruptionError
from quiver.spark.exporters.exported import ExportedAmount
from quiver.spark.exporters.parquet_commit import INDIVIDUAL_PREFIX
from quiver.spark.exporters.table_exporter import BatchOf, Tables
from quiver.spark.spark_features import to_arrow_schema
from quiver.spark.table_formats.batch_record import BatchRecord, DataFile
from quiver.spark.table_formats.columns import check_storable, nullable_schema
from quiver.spark.table_formats.data_files import RESULT_SCHEMA, WriteTask, data_file
from quiver.spark.table_formats.partition_spec import PartitionField
from quiver.spark.table_formats.place import BatchRecords, TablePlace, merged
from quiver.spark.table_formats.settings import MaintenanceLimits, TableSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from quiver.spark.tables import ViewInput

__all__ = ["TableFormat", "TableFormatExporter", "TableLayout"]

_log = logging.getLogger("quiver")

Decode = Callable[..., Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class TableLayout:
    """
    How the files of a table are written.

    Attributes:
        schema: the columns of the table.
        partitions: its partition fields.
        folder: the folder of data files below its directory; empty or with a slash at its end.
        omitted: columns that its files do not have.
    """

    schema: pa.Schema
    partitions: tuple[PartitionField, ...]
    folder: str = ""
    omitted: frozenset[str] = frozenset()


class TableFormat(Protocol):
    """The logs of the tables in one place. Used by one thread."""

    def prepare(self, table: str, schema: pa.Schema) -> TableLayout:
        """
        Create *table* if it does not exist, and add the columns of *schema* that it does not have.

        It may use the table as `has` found it.

        Raises:
            UsageError: a type cannot be stored, differs from the type in the table, or the table may not change.
        """

    def has(self, table: str, query: str, batch: int) -> bool:
        """Return whether *table* has *batch* of *query*, durably on return."""

    def commit(self, table: str, record: BatchRecord) -> None:
        """
        Add the files of *record* to *table*, unless it has the batch. Durable on return.

        The first attempt is based on the table as `has` found it, and fails if another writer has committed since.

        Raises:
            TransientError: other writers of the table were faster, again and again.
        """

    def maintain(self, table: str, limits: MaintenanceLimits) -> None:
        """Combine small files of *table*, let old snapshots expire, and remove files that are not needed any more."""


class TableFormatExporter:
    """
    Writes the tables of a batch to tables of *tables*.

    Args:
        tables: the logs.
        place: where the data files and the records are.
        subscriber: the subscriber of the query.
        settings: of the exporter.
        clock: when maintenance is due.
    """

    def __init__(
        self,
        tables: TableFormat,
        place: TablePlace,
        *,
        subscriber: str,
        settings: TableSettings,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._tables = tables
        self._place = place
        self._subscriber = subscriber
        self._settings = settings
        self._clock = clock
        self._maintained_s = clock.monotonic()
        self._unmaintained: set[str] = set()
        """Tables that got rows since then."""
        self._opened: BatchRecords | None = None
        self._recovered: set[str] = set()
        self._through: dict[str, BundleRef] = {}

    def has(self, batch: BatchOf) -> bool:
        """Return whether *batch* is decided. If so, every table has it, durably, on return."""
        self._recover(batch)
        record = self._records.get(batch.query, batch.number)
        return record is not None and self._roll_forward(record, may_rewrite=True)

    def exported_through(self, batch: BatchOf) -> Mapping[str, BundleRef]:
        """Return the positions of earlier queries, so that nothing is written twice after a checkpoint is lost."""
        self._recover(batch)
        return self._through

    def exported_individually(self, names: AbstractSet[str]) -> set[str]:
        """Return those of *names* that have a record. If so, every table has the bundle, durably, on return."""
        found = self._records.individual(names)
        for name in found:
            record = self._records.get(name, 0)
            if record is not None:
                self._roll_forward(record)
        return found

    def export(self, tables: Tables, batch: BatchOf) -> ExportedAmount:
        """
        Write each table in the tasks, and commit all of them. Durable on return.

        Raises:
            UsageError: a column does not fit its table.
            OSError: the disk refused.
            ObjectsUnavailableError: the object store does not answer.
        """
        return self._exported(
            {name: (frame, None, to_arrow_schema(frame.schema)) for name, frame in tables.items()}, batch
        )

    def export_views(self, views: Mapping[str, ViewInput], batch: BatchOf) -> ExportedAmount:
        """Do the same for views, decoded where they are written. Raises the same errors."""
        return self._exported(
            {name: (view.descriptors, view.decode, view.schema) for name, view in views.items()}, batch
        )

    def _exported(
        self, inputs: Mapping[str, tuple[DataFrame, Decode | None, pa.Schema]], batch: BatchOf
    ) -> ExportedAmount:
        prefix = f"{batch.query}-{batch.number:010}-"
        attempt = f"{prefix}{secrets.token_hex(4)}-"
        writes = []
        folders = []
        for name, (frame, decode, schema) in inputs.items():
            if self._tables.has(name, batch.query, batch.number):
                continue  # its record was lost
            check_storable(name, schema)
            layout = self._tables.prepare(name, nullable_schema(schema))
            folder = f"{name}/{layout.folder}".removesuffix("/")
            self._place.prepare(folder)
            self._place.remove(folder, prefix)  # of an attempt that was killed; the table has none of the batch
            folders.append(folder)
            task = WriteTask(
                place=self._place,
                table=name,
                folder=layout.folder,
                prefix=attempt,
                schema=layout.schema,
                partitions=layout.partitions,
                omitted=layout.omitted,
                compression=self._settings.compression,
                decode=decode,
            )
            writes.append(frame.mapInArrow(task, RESULT_SCHEMA))
        files = self._written(writes, folders, attempt)
        self._commit(files, batch)
        self._unmaintained.update(inputs)
        self._maintain()
        return ExportedAmount(sum(one.rows for one in files), sum(one.size_bytes for one in files))

    def _maintain(self) -> None:
        """Maintain the tables if it is time. Nothing else waits for it, and no failure of it loses data."""
        interval_s, now_s = self._settings.maintenance_interval_s, self._clock.monotonic()
        if interval_s is None or now_s - self._maintained_s < interval_s:
            return
        tables, self._unmaintained = sorted(self._unmaintained), set()
        for table in tables:
            try:
                self._tables.maintain(table, self._settings.maintenance)
            except Exception as error:  # noqa: BLE001 - the batch is exported; the next maintenance tries again
                self._unmaintained.add(table)
                _log.warning("quiver.spark.table_maintenance_failed table=%s reason=%s", table, error)
        self._maintained_s = self._clock.monotonic()

    def _written(self, writes: list[DataFrame], folders: list[str], attempt: str) -> tuple[DataFile, ...]:
        if not writes:
            return ()
        try:
            # One job for all tables: small batches would wait for each other.
            rows = reduce(lambda one, other: one.unionAll(other), writes).toArrow().to_pylist()
        except BaseException:
            for folder in folders:
                with contextlib.suppress(Exception):  # the next attempt removes them, too; the first error matters more
                    self._place.remove(folder, attempt)
            raise
        for folder in folders:
            self._place.sync_folder(folder)
        return tuple(sorted(map(data_file, rows), key=lambda one: (one.table, one.path)))

    def _commit(self, files: tuple[DataFile, ...], batch: BatchOf) -> None:
        through = merged((self._through, batch.through or {}))
        written = BatchRecord(batch.query, batch.number, self._subscriber, through, files)
        record = self._records.put(written)
        if record == written:
            for table in written.tables:  # the files are there, and their footers in memory
                self._tables.commit(table, written)
        else:
            self._roll_forward(record)
        if not batch.query.startswith(INDIVIDUAL_PREFIX):
            self._through = merged((self._through, record.through))

    def _roll_forward(self, record: BatchRecord, *, may_rewrite: bool = False) -> bool:
        """Give *record* to every table that does not have it. Return False if its batch has to be written again."""
        lacking = [table for table in record.tables if not self._tables.has(table, record.query, record.batch)]
        for table in lacking:
            for one in record.files_of(table):
                if not self._place.exists(f"{table}/{one.path}"):
                    return self._incomplete(record, f"{table}/{one.path}", may_rewrite=may_rewrite)
        for table in lacking:
            self._tables.commit(table, record)
        return True

    def _incomplete(self, record: BatchRecord, path: str, *, may_rewrite: bool) -> bool:
        """Handle a batch that was decided and not committed, and whose files another program has removed since."""
        if not may_rewrite:
            raise CorruptionError(
                path,
                0,
                f"batch {record.batch} of query {record.query} was decided but not committed, and this file was "
                "removed since, perhaps by a vacuum: its rows are lost for this table. To continue without them, "
                f"remove the record of the batch in the folder _quiver",
            )
        self._records.remove(record)
        return False

    def _recover(self, batch: BatchOf) -> None:
        """Complete what earlier queries of this subscriber decided. Done once for each query."""
        if batch.query in self._recovered or batch.query.startswith(INDIVIDUAL_PREFIX):
            return
        stores = set(batch.stores)
        while True:
            newest = list(self._records.newest(self._subscriber, stores))
            if all(self._roll_forward(record, may_rewrite=record.query == batch.query) for record in newest):
                break  # otherwise the newest batch is written again, and the one before it counts
        self._through = merged(record.through for record in newest)
        self._recovered.add(batch.query)

    @property
    def _records(self) -> BatchRecords:
        if self._opened is None:
            self._opened = self._place.records()
        return self._opened
