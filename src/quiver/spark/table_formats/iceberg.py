"""
Iceberg tables, through the library `pyiceberg`: in an SQL catalog or a REST catalog.

A commit sets the property ``quiver.batch.<query>`` of its table to the number of the batch, in one transaction with the
snapshot that adds the files. The snapshot has query and number, too, but a property outlives the snapshots that expire.
The catalog refuses a commit that is not based on the latest snapshot; it is checked again and repeated here, not by the
library, which would not check.
"""

from __future__ import annotations

import datetime
import io
import secrets
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import (
    DataFileStatistics,
    MetricModeTypes,
    MetricsMode,
    _pyarrow_to_schema_without_ids,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    YearTransform,
)
from pyiceberg.typedef import Record

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import TransientError, UsageError
from quiver.spark.table_formats.batch_record import BatchRecord, DataFile
from quiver.spark.table_formats.columns import grown_schema
from quiver.spark.table_formats.data_files import WriteTask, data_file
from quiver.spark.table_formats.export import TableLayout
from quiver.spark.table_formats.iceberg_maintenance import current_files, named_files, rows_of, small_files
from quiver.spark.table_formats.partition_spec import PartitionField
from quiver.spark.table_formats.partition_values import value_type
from quiver.spark.table_formats.place import TablePlace
from quiver.spark.table_formats.settings import IcebergSettings, MaintenanceLimits

__all__ = ["IcebergTables", "batch_property"]

DATA_DIR = "data/"
METADATA_DIR = "metadata/"
CONFLICTS_MAX = 20
"""Attempts at one commit. Each conflict means that another writer has committed."""

_FIRST_PARTITION_ID = 1000
_EPOCH = datetime.date(1970, 1, 1)
_TRANSFORMS: dict[str, Transform[Any, Any]] = {
    "identity": IdentityTransform(),
    "year": YearTransform(),
    "month": MonthTransform(),
    "day": DayTransform(),
    "hour": HourTransform(),
}

_NO_RETRIES = {"commit.retry.num-retries": "0"}

_NEW_TABLE = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
}
"""Properties of new tables. A batch every few seconds would otherwise leave as many files of metadata."""


def batch_property(query: str) -> str:
    """Return the table property that has the number of the last batch of *query*."""
    return f"quiver.batch.{query}"


class IcebergTables:
    """
    The Iceberg tables of one namespace, in *place*.

    Args:
        settings: of the exporter.
        place: the directory or bucket.
        clock: the age of snapshots and files.

    Raises:
        SettingsError: the catalog is not configured completely.
    """

    def __init__(self, settings: IcebergSettings, place: TablePlace, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings = settings
        self._clock = clock
        self._place = place
        self._opened: Catalog | None = None
        self._known: dict[str, Table] = {}

    @property
    def _catalog(self) -> Catalog:
        if self._opened is None:
            self._place.prepare("")  # the catalog may be a file in it
            self._opened = load_catalog("quiver", **self._settings.catalog_properties)
            self._opened.create_namespace_if_not_exists(self._settings.namespace)
        return self._opened

    def prepare(self, table: str, schema: pa.Schema) -> TableLayout:
        """
        Create *table* if it does not exist, and add the columns of *schema* that it does not have.

        Raises:
            UsageError: a type cannot be stored, differs from the type in the table, or the table may not change.
            TransientError: another writer changed the table at the same moment, again and again.
        """
        if self._loaded(table) is None:
            self._create(table, schema)
        self._check_location(table)
        may_change = self._settings.schema_changes == "add"
        iceberg = self._existing(table)
        for _ in range(CONFLICTS_MAX):
            existing = _arrow_schema(iceberg)
            grown = grown_schema(table, existing, _iceberg_types(schema), widens=_widens, may_change=may_change)
            if grown.equals(existing):
                return TableLayout(existing, _partitions_of(iceberg), DATA_DIR)
            try:
                with iceberg.update_schema() as update:
                    update.union_by_name(_without_ids(grown))
            except CommitFailedException:
                pass  # another writer: look again which columns are missing
            iceberg = self._fresh(table)
        raise TransientError(f"table {table}: other writers changed it {CONFLICTS_MAX} times; the batch is retried")

    def has(self, table: str, query: str, batch: int) -> bool:
        """Return whether *table* has *batch* of *query*, durably on return."""
        return self._loaded(table) is not None and _has(self._fresh(table), query, batch)

    def commit(self, table: str, record: BatchRecord) -> None:
        """
        Add the files of *record* to *table*, unless it has the batch. Durable on return.

        Raises:
            TransientError: other writers of the table were faster, again and again.
        """
        iceberg = self._existing(table)
        for _ in range(CONFLICTS_MAX):
            if _has(iceberg, record.query, record.batch):
                return
            properties = {"quiver.query": record.query, "quiver.batch": str(record.batch)}
            transaction = CommitTransaction(iceberg)
            transaction.set_properties({batch_property(record.query): str(record.batch)})
            with transaction.update_snapshot(snapshot_properties=properties).merge_append() as append:
                for one in record.files_of(table):
                    append.append_data_file(self._added(iceberg, table, one))
            try:
                transaction.commit_transaction()
            except CommitFailedException:
                iceberg = self._fresh(table)
                continue
            return
        raise TransientError(f"table {table}: other writers were faster {CONFLICTS_MAX} times; the batch is retried")

    def maintain(self, table: str, limits: MaintenanceLimits) -> None:
        """
        Combine small files of *table*, expire snapshots, and remove files that no snapshot names.

        Raises:
            CommitFailedException: another writer was faster; what was committed before stays.
        """
        for group in small_files(self._fresh(table), limits.target_bytes):
            self._combine(table, group)
        now_ns = self._clock.now_ns()
        before = datetime.datetime.fromtimestamp(now_ns / 1e9 - limits.retention_s, datetime.UTC)
        self._fresh(table).maintenance.expire_snapshots().older_than(before.replace(tzinfo=None)).commit()
        iceberg = self._fresh(table)
        root = f"{iceberg.location().rstrip('/')}/"
        named = {path.removeprefix(root) for path in named_files(iceberg)}
        if not all(path.startswith(root) for path in (iceberg.metadata_location, *current_files(iceberg))):
            return  # files of other places: their names do not show whether they are needed
        before_ns = now_ns - round(limits.retention_s * 1e9)
        for folder in (DATA_DIR, METADATA_DIR):
            unnamed = [
                key for key, written_ns in self._place.files(f"{table}/{folder}")
                if key.removeprefix(f"{table}/") not in named and written_ns < before_ns
            ]  # fmt: skip
            self._place.remove_files(unnamed)

    def _combine(self, table: str, group: list[FileScanTask]) -> None:
        iceberg = self._fresh(table)
        task = WriteTask(
            place=self._place,
            table=table,
            folder=DATA_DIR,
            prefix=f"combined-{secrets.token_hex(8)}-",
            schema=_arrow_schema(iceberg),
            partitions=_partitions_of(iceberg),
            omitted=frozenset(),
            compression=self._settings.compression,
        )
        files = [data_file(row) for rows in task(rows_of(iceberg, group)) for row in rows.to_pylist()]
        self._place.sync_folder(f"{table}/{DATA_DIR}".rstrip("/"))
        transaction = CommitTransaction(iceberg)
        with transaction.update_snapshot(snapshot_properties={"quiver.maintenance": "combine"}).overwrite() as change:
            for one in group:
                change.delete_data_file(one.file)
            for written in files:
                change.append_data_file(self._added(iceberg, table, written))
        transaction.commit_transaction()

    def _create(self, table: str, schema: pa.Schema) -> None:
        partitions = tuple(one for one in self._settings.partitions if one.column in schema.names)
        if len(partitions) < len(self._settings.partitions):
            partitions = ()  # this table has not all of their columns
        for one in partitions:
            value_type(one, schema)
        fields = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(_iceberg_types(schema)))
        spec = PartitionSpec(
            *(
                IcebergField(
                    source_id=fields.find_field(one.column).field_id,
                    field_id=_FIRST_PARTITION_ID + number,
                    transform=_TRANSFORMS[one.transform],
                    name=one.name,
                )
                for number, one in enumerate(partitions)
            )
        )
        self._place.prepare(f"{table}/{DATA_DIR}")
        try:
            self._known[table] = self._catalog.create_table(
                (self._settings.namespace, table),
                fields,
                location=self._place.uri(table),
                partition_spec=spec,
                properties=_NEW_TABLE,
            )
        except TableAlreadyExistsError:
            return  # by another process, a moment ago

    def _check_location(self, table: str) -> None:
        """Check that the data files are written to where the catalog expects them."""
        found, expected = self._existing(table).location().rstrip("/"), self._place.uri(table)
        if found.removeprefix("file://") != expected:
            raise UsageError(
                f"table {self._settings.namespace}.{table} of the catalog is at {found}, and the exporter writes to "
                f"{expected}: set path to the directory of the tables, or choose another namespace"
            )

    def _loaded(self, table: str) -> Table | None:
        if table not in self._known:
            try:
                self._known[table] = self._catalog.load_table((self._settings.namespace, table))
            except NoSuchTableError:
                return None
        return self._known[table]

    def _existing(self, table: str) -> Table:
        """Return the table at the version that was loaded last."""
        iceberg = self._loaded(table)
        if iceberg is None:
            raise UsageError(
                f"there is no table {self._settings.namespace}.{table} in the catalog; restart the exporter"
            )
        return iceberg

    def _fresh(self, table: str) -> Table:
        """Return the table at its latest version."""
        return self._existing(table).refresh()

    def _added(self, iceberg: Table, table: str, one: DataFile) -> IcebergFile:
        footer = one.footer
        metadata = self._place.footer(f"{table}/{one.path}") if footer is None else pq.read_metadata(io.BytesIO(footer))
        schema, spec = iceberg.schema(), iceberg.spec()
        statistics = _statistics(metadata, schema, iceberg.properties)
        values = [
            _typed(field, iceberg, value) for field, value in zip(_partitions_of(iceberg), one.partition, strict=True)
        ]
        return IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{iceberg.location().rstrip('/')}/{one.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            file_size_in_bytes=one.size_bytes,
            sort_order_id=None,
            spec_id=spec.spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


class _SharedList(list[Any]):
    """A list that copies of its owner share, because its items never change."""

    def __deepcopy__(self, memo: object) -> _SharedList:
        return self

    def __add__(self, other: list[Any]) -> _SharedList:
        return _SharedList([*self, *other])


class CommitTransaction(Transaction):
    """
    A transaction that fails if another writer was faster, and computes the metadata of the table once for each change.

    The library computes it more than ten times in a commit, and copies all snapshots each time. With a thousand of
    them, that would take most of a second.
    """

    def __init__(self, iceberg: Table) -> None:
        metadata = iceberg.metadata
        changes = {
            "properties": {**metadata.properties, **_NO_RETRIES},
            "snapshots": _SharedList(metadata.snapshots),
            "snapshot_log": _SharedList(metadata.snapshot_log),
        }
        iceberg.metadata = metadata.model_copy(update=changes)  # of this object only, not of the table
        super().__init__(iceberg)
        self._computed: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata with the changes so far."""
        computed = self._computed
        if computed is None or computed[0] is not self._updates:
            computed = self._computed = self._updates, super().table_metadata
        return computed[1]


def _statistics(metadata: pq.FileMetaData, schema: Schema, properties: dict[str, str]) -> DataFileStatistics:
    ids = parquet_path_to_id_mapping(schema)
    plan = compute_statistics_plan(schema, properties)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = (group.column(number) for group in groups for number in range(group.num_columns))
    for field in {ids[column.path_in_schema] for column in columns if not column.is_stats_set}:
        plan[field] = replace(plan[field], mode=MetricsMode(MetricModeTypes.NONE))  # or the library logs a warning
    return data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata, stats_columns=plan, parquet_column_mapping=ids
    )


def _has(iceberg: Table, query: str, batch: int) -> bool:
    number = iceberg.properties.get(batch_property(query))
    return number is not None and int(number) >= batch


def _partitions_of(iceberg: Table) -> tuple[PartitionField, ...]:
    """Return the partition fields of a table, which may have been created with other settings."""
    fields = []
    for field in iceberg.spec().fields:
        name = next((name for name, known in _TRANSFORMS.items() if known == field.transform), None)
        column = iceberg.schema().find_column_name(field.source_id)
        if name is None or column is None:
            raise UsageError(
                f"table {'.'.join(iceberg.name())} is partitioned by {field}, which the exporter does not support; use "
                "columns, or year, month, day and hour of a time"
            )
        fields.append(PartitionField.parse(column if name == "identity" else f"{name}({column})"))
    return tuple(fields)


def _typed(field: PartitionField, iceberg: Table, value: str | None) -> Any:
    """Return the value of a partition as Iceberg stores it."""
    if value is None:
        return None
    parts = [int(part) for part in value.split("-")] if field.transform != "identity" else []
    if field.transform == "year":
        return parts[0] - _EPOCH.year
    if field.transform == "month":
        return (parts[0] - _EPOCH.year) * 12 + parts[1] - 1
    if field.transform in {"day", "hour"}:
        days = (datetime.date(*parts[:3]) - _EPOCH).days
        return days if field.transform == "day" else days * 24 + parts[3]
    kind = _arrow_schema(iceberg).field(field.column).type
    if pa.types.is_boolean(kind):
        return value == "true"
    if pa.types.is_date(kind):
        return (datetime.date.fromisoformat(value) - _EPOCH).days
    return int(value) if pa.types.is_integer(kind) else value


def _widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether Iceberg can change a column from one type to the other: int to long, float to double."""
    return (old == pa.int32() and new == pa.int64()) or (old == pa.float32() and new == pa.float64())


def _iceberg_types(schema: pa.Schema) -> pa.Schema:
    """Return *schema* with the integers that Iceberg has."""
    return pa.schema([field.with_type(_mapped(field.type)) for field in schema])


def _mapped(kind: pa.DataType) -> pa.DataType:
    """Return a type of a batch, or of the library, as the files have it; ids of fields stay."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(_mapped(field.type)) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_mapped(kind.value_type)))
    if types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_mapped(key.type)), item.with_type(_mapped(item.type)))
    if types.is_int8(kind) or types.is_int16(kind):
        return pa.int32()
    if types.is_large_string(kind):
        return pa.string()
    return pa.binary() if types.is_large_binary(kind) else kind


def _arrow_schema(iceberg: Table) -> pa.Schema:
    """Return the columns of a table, with the ids of their fields, which its files must have."""
    return _iceberg_types(iceberg.schema().as_arrow())


def _without_ids(schema: pa.Schema) -> Schema:
    return _pyarrow_to_schema_without_ids(schema)
