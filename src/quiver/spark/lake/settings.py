"""The settings of the Parquet exporter, with and without processors. Validated on creation, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quiver.errors import SettingsError
from quiver.objects.location import ObjectLocation
from quiver.spark.exporters.settings import check_file_mode
from quiver.spark.lake.layout import PARTITIONS_MAX, FileLayout, PartitionBy

__all__ = ["BUCKET_FILE_AGE_S", "BUCKET_FILE_BYTES", "ParquetTables"]

BUCKET_FILE_BYTES = 128 << 20
BUCKET_FILE_AGE_S = 300.0
"""The defaults in a bucket, where each file costs requests, and many small ones make readers slow."""

STORED_TO_FILE = 4
"""The assumed ratio of stored bytes to bytes of Parquet. It decides when a batch is large enough, nothing else."""

_FILE_BYTES_MIN = 1 << 16
_FILE_AGE_S_MAX = 24 * 3600.0
_BATCH_BYTES = 256 << 20
"""The default limit of a batch of the source."""

_PARTITIONS_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class ParquetTables:
    """
    Parquet files in a directory or a bucket, each batch exactly once.

    Attributes:
        path: the directory, or a URL such as ``s3://bucket/prefix``.
        compression: zstd, snappy, or none.
        file_mode: permission bits of the files; None leaves them to the umask.
        options: of the object store, as everywhere in Quiver: region, endpoint, access_key, …
        partition_by: keys of the partitions, outermost first: day, hour, signal, or the name of an attribute.
        target_file_size_bytes: a file is closed at this size; it may be larger by one row group. None is no limit on a
            disk, and `BUCKET_FILE_BYTES` in a bucket.
        max_file_age_s: a batch waits until the target size is stored or its oldest segment is this old. 0 does not
            wait, None is 0 on a disk, and `BUCKET_FILE_AGE_S` in a bucket.
        partitions_max: the partitions of a batch that a task writes at most.

    Raises:
        SettingsError: a value is invalid, or has no effect.
    """

    path: str
    compression: str = "zstd"
    file_mode: int | None = None
    options: Mapping[str, object] = field(default_factory=dict, repr=False)  # may hold passwords
    partition_by: tuple[str, ...] = ()
    target_file_size_bytes: int | None = None
    max_file_age_s: float | None = None
    partitions_max: int = PARTITIONS_MAX

    def __post_init__(self) -> None:
        if not self.path:
            raise SettingsError("path must name a directory or a bucket")
        check_file_mode(self.file_mode)
        if self.compression not in {"zstd", "snappy", "none"}:
            raise SettingsError(f"compression: {self.compression!r} is not one of zstd, snappy, none")
        PartitionBy(self.partition_by)
        size = self.target_file_size_bytes
        if size is not None and size < _FILE_BYTES_MIN:
            raise SettingsError(f"target_file_size must be at least {_FILE_BYTES_MIN} bytes, not {size}")
        if not 0 <= self.file_age_s <= _FILE_AGE_S_MAX:
            raise SettingsError(f"max_file_age must be 0 to 24h, not {self.file_age_s:g} s")
        if not 1 <= self.partitions_max <= _PARTITIONS_LIMIT:
            raise SettingsError(f"max_partitions must be 1 to {_PARTITIONS_LIMIT}, not {self.partitions_max}")
        if self.is_bucket:
            if _location("path", self.path, {}).backend in {"fs", "memory"}:
                raise SettingsError("path: write a directory without a scheme, or the URL of a bucket")
            _location("options", self.path, self.options)
            if self.file_mode is not None:
                raise SettingsError("file_mode has no effect in a bucket; leave it out")
        elif self.options:
            raise SettingsError("options belong to a bucket, and path is a directory; leave them out")

    @property
    def is_bucket(self) -> bool:
        """Whether the path is a URL of an object store."""
        return "://" in self.path

    @property
    def file_bytes_max(self) -> int | None:
        """The size at which a file is closed."""
        return self.target_file_size_bytes or (BUCKET_FILE_BYTES if self.is_bucket else None)

    @property
    def file_age_s(self) -> float:
        """How long a batch waits to become larger; 0 does not wait."""
        default = BUCKET_FILE_AGE_S if self.is_bucket else 0.0
        return default if self.max_file_age_s is None else self.max_file_age_s

    def source_options(self) -> dict[str, str]:
        """
        Return the options of the source, which make batches of the right size.

        While a batch waits, its bundles are in the store: a file is compacted before it is visible, not after that.
        """
        options = {}
        stored = None if self.file_bytes_max is None else self.file_bytes_max * STORED_TO_FILE
        if stored is not None:
            options["minPartitionBytes"] = str(stored)  # a task for each file
        if self.file_age_s:
            options["maxTriggerDelay"] = f"{self.file_age_s:g}s"
            if stored is not None:
                options["minBytesPerTrigger"] = str(stored)
                options["maxBytesPerTrigger"] = str(max(stored, _BATCH_BYTES))
        return options

    def layout(self) -> FileLayout:
        """Return how the rows of a batch are divided into files."""
        return FileLayout(
            self.compression,
            PartitionBy(self.partition_by),
            self.file_bytes_max,
            self.partitions_max,
        )


def _location(key: str, path: str, options: Mapping[str, object]) -> ObjectLocation:
    try:
        return ObjectLocation.from_url(path, options)
    except SettingsError as error:
        raise SettingsError(f"{key}: {str(error).removeprefix('objects: ')}") from None
