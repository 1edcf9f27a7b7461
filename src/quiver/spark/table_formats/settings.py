"""The settings of exporters to table formats. Frozen, validated on creation, without Spark and the libraries."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal, get_args

from quiver.errors import SettingsError
from quiver.objects.location import ObjectLocation
from quiver.primitives.masking import substitute
from quiver.spark.table_formats.partition_spec import PartitionField, partition_fields

__all__ = ["DeltaSettings", "IcebergSettings", "MaintenanceLimits", "TableSettings"]

TableCompression = Literal["zstd", "snappy", "none"]
SchemaChanges = Literal["add", "refuse"]


TARGET_BYTES = 128 << 20
RETENTION_S = 7 * 24 * 3600.0
_TARGET_BYTES_MIN = 1 << 20
_RETENTION_S_MIN = 3600.0
_INTERVAL_S_MIN = 1.0


@dataclass(frozen=True, slots=True)
class MaintenanceLimits:
    """
    The limits of maintenance.

    Attributes:
        target_bytes: the size of combined files.
        retention_s: how long snapshots and the files that only they need are kept.
    """

    target_bytes: int
    retention_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """
    Tables below *path*, one per signal, each batch exactly once.

    Attributes:
        path: a directory, or the URL of a folder in a bucket.
        options: of the bucket, as of any object store: endpoint, region, access_key, secret_key, …
        compression: of the Parquet files.
        partition_by: the partition fields of new tables: columns, or year, month, day and hour of a time, as
            ``day(time)``. They apply to each table that has all of their columns.
        schema_changes: `add` adds new columns of a batch to the table; `refuse` refuses the batch.
        maintenance_interval_s: after this time, the next batch is followed by maintenance: small files are combined,
            old snapshots expire, files that are not needed are removed. None for never.
        target_file_size_bytes: the size of combined files; by default 128 MiB.
        retention_s: how long snapshots and the files that only they need are kept, at least an hour; by default a week.
        records: where the records of batches are, a directory or the URL of a folder, for which *options* count, too.
            By default in `path`; some buckets for tables accept nothing else.

    Raises:
        SettingsError: a value is unknown or out of range, or the path is not a location.
    """

    path: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    compression: TableCompression = "zstd"
    partition_by: tuple[str, ...] = ()
    schema_changes: SchemaChanges = "add"
    maintenance_interval_s: float | None = None
    target_file_size_bytes: int | None = None
    retention_s: float | None = None
    records: str | None = None

    def __post_init__(self) -> None:
        if not self.path:
            raise SettingsError("path must name a directory, or a folder of a bucket")
        for name, word, known in (
            ("compression", self.compression, TableCompression),
            ("schema_changes", self.schema_changes, SchemaChanges),
        ):
            if word not in get_args(known):
                raise SettingsError(f"{name}: {word!r} is not {' or '.join(get_args(known))}")
        if self.location.backend == "memory":
            raise SettingsError("path: memory:// cannot be shared with Spark's tasks; name a directory or a bucket")
        if self.records_location.backend == "memory":
            raise SettingsError("records: memory:// does not survive a restart; name a directory or a bucket")
        if "://" not in self.path and self.options and "://" not in (self.records or ""):
            raise SettingsError("options have no effect on a directory; leave them out")
        partition_fields(self.partition_by)
        self._check_maintenance()

    def _check_maintenance(self) -> None:
        if self.maintenance_interval_s is None:
            for name, value in (("target_file_size", self.target_file_size_bytes), ("retention", self.retention_s)):
                if value is not None:
                    raise SettingsError(f"{name} has no effect without maintenance_interval; leave it out")
        elif self.maintenance_interval_s < _INTERVAL_S_MIN:
            raise SettingsError(f"maintenance_interval must be at least {_INTERVAL_S_MIN:.0f} s")
        if self.target_file_size_bytes is not None and self.target_file_size_bytes < _TARGET_BYTES_MIN:
            raise SettingsError(
                f"target_file_size must be at least {_TARGET_BYTES_MIN} bytes, not {self.target_file_size_bytes}"
            )
        if self.retention_s is not None and self.retention_s < _RETENTION_S_MIN:
            raise SettingsError(f"retention must be at least {_RETENTION_S_MIN:.0f} s: readers use older snapshots")

    @property
    def maintenance(self) -> MaintenanceLimits:
        """The limits of maintenance, with their defaults."""
        return MaintenanceLimits(self.target_file_size_bytes or TARGET_BYTES, self.retention_s or RETENTION_S)

    @property
    def location(self) -> ObjectLocation:
        """The location, with credentials."""
        return self._located(self.path)

    @property
    def records_location(self) -> ObjectLocation:
        """The location of the records of batches, with credentials."""
        return self.location if self.records is None else self._located(self.records)

    def _located(self, path: str) -> ObjectLocation:
        if "://" in path:
            return ObjectLocation.from_url(path, self.options, environment=os.environ)
        # A directory has no options, also where the other location is a bucket that has some.
        return ObjectLocation.from_url(os.path.abspath(path))  # noqa: PTH100 - no file is read

    @property
    def partitions(self) -> tuple[PartitionField, ...]:
        """The partition fields."""
        return partition_fields(self.partition_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSettings(TableSettings):
    """
    Delta tables.

    Attributes: those of `TableSettings`.

    Raises:
        SettingsError: as `TableSettings`.
        ModuleNotFoundError: the extra `delta` is not installed.
    """

    def __post_init__(self) -> None:
        TableSettings.__post_init__(self)
        _require("deltalake")


_CATALOG_SCHEMES = {"http": "rest", "https": "rest", "sqlite": "sql", "postgresql": "sql"}
_CATALOG_FILE = "_catalog.db"
_NAMESPACE = re.compile(r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*")
_S3_PROPERTIES: dict[str, str | None] = {
    "endpoint": "s3.endpoint",
    "region": "s3.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "role_arn": "s3.role-arn",
    "role_session_name": "s3.role-session-name",
    "proxy_url": "s3.proxy-uri",
    "skip_signature": "s3.anonymous",
    "virtual_hosted_style_request": "s3.force-virtual-addressing",
    "connect_timeout_s": "s3.connect-timeout",
    "timeout_s": "s3.request-timeout",
    "allow_http": None,  # follows from the endpoint
}
"""Option of the project's client for S3 → property of the library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergSettings(TableSettings):
    """
    Iceberg tables.

    Attributes, beside those of `TableSettings`:
        catalog: the URL of an SQL catalog, as ``sqlite:////var/lib/catalog.db``, or of a REST catalog, as
            ``https://catalog:8181``. By default a SQLite file in `path`, which must be a directory then.
        catalog_options: more properties of the catalog, with the names of `pyiceberg`, such as ``credential`` and
            ``warehouse``.
        namespace: the namespace of the tables.

    Raises:
        SettingsError: as `TableSettings`, or the catalog is unknown.
        ModuleNotFoundError: the extra `iceberg` is not installed.
    """

    catalog: str | None = field(default=None, repr=False)  # may contain a password
    catalog_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    namespace: str = "telemetry"

    def __post_init__(self) -> None:
        TableSettings.__post_init__(self)
        if _NAMESPACE.fullmatch(self.namespace) is None:
            raise SettingsError(f"namespace: {self.namespace!r} is not names of letters and digits, separated by dots")
        if self.location.backend not in {"fs", "s3"}:
            raise SettingsError("path: Iceberg tables are written to directories and to S3")
        unknown = [key for key in self.location.options if key not in _S3_PROPERTIES]
        if unknown:
            raise SettingsError(f"options: {unknown[0]} has no effect on Iceberg tables; leave it out")
        if self.catalog is None and self.location.backend != "fs":
            raise SettingsError("catalog: name the catalog of tables in a bucket, as https://catalog:8181")
        if self.catalog_kind is None:
            known = ", ".join(f"{scheme}://" for scheme in _CATALOG_SCHEMES)
            raise SettingsError(f"catalog: expected a URL that begins with one of {known}")
        _require("pyiceberg")
        if self.catalog_kind == "sql":
            _require("sqlalchemy")

    @property
    def catalog_kind(self) -> str | None:
        """`sql` or `rest`; None if the URL is neither."""
        scheme = (self.catalog or "sqlite://").partition("://")[0].partition("+")[0]
        return _CATALOG_SCHEMES.get(scheme)

    @property
    def catalog_properties(self) -> dict[str, str]:
        """All properties of the catalog and of its files, with credentials, by their names in the library."""
        location = self.location
        storage = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in location.options.items()
            if (name := _S3_PROPERTIES[key]) is not None
        }
        # The tables of a directory are synced; those of a bucket are durable.
        files = "iceberg_io.SyncedFileIO" if location.backend == "fs" else None
        implementation = {"py-io-impl": f"{__package__}.{files}"} if files else {}
        options = {key: _substituted(f"catalog_options: {key}", text) for key, text in self.catalog_options.items()}
        uri = f"sqlite:///{location.prefix}/{_CATALOG_FILE}"
        if self.catalog is not None:
            uri = _substituted("catalog", self.catalog)
        return {**storage, **implementation, "type": str(self.catalog_kind), "uri": uri, **options}


def _substituted(what: str, text: str) -> str:
    """Return *text* with ``${NAME}`` replaced from the environment."""
    return str(substitute(what, text, os.environ)[0])


def _require(module: str) -> None:
    # Reported when the file is checked, not when the first batch is exported.
    if find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
