"""
The directories of a lake: `partition_by` → names as Hive writes them, which DuckDB, Polars, pyarrow and Spark read.

::

    partition_by: [day, hour, service.name]

    logs/day=2026-01-31/hour=07/service.name=checkout/<file>.parquet

A value is percent-encoded where it has other characters than letters, digits and ``_.-~``. Rows without a value are in
``__HIVE_DEFAULT_PARTITION__``, which readers show as null. Pure, and without Arrow; rows are divided in
`partition_rows.py`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from urllib.parse import quote

from quiver.errors import SettingsError

__all__ = ["DEFAULT_PARTITION", "PARTITIONS_MAX", "FileLayout", "PartitionBy", "encode_value"]

PARTITIONS_MAX = 256
"""Each partition of a task has an open file, and a process may have 1,024 by default."""

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,99}")
_VALUE_CHARS_MAX = 90
"""The name of a directory has at most 200 characters: 100 of them for the key."""
_DIGEST_CHARS = 16


def encode_value(value: str | None) -> str:
    """
    Return *value* as a part of a directory name; different values give different names.

    A value whose encoded form is longer than 90 characters is cut, and a digest of all of it is appended.
    """
    if not value:
        return DEFAULT_PARTITION
    encoded = quote(value, safe="")
    if encoded == DEFAULT_PARTITION:
        return encoded.replace("_", "%5F", 1)
    if len(encoded) <= _VALUE_CHARS_MAX:
        return encoded
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    kept = encoded[: _VALUE_CHARS_MAX - _DIGEST_CHARS - 1]
    return f"{re.sub('%.?$', '', kept)}~{digest}"


@dataclass(frozen=True, slots=True)
class PartitionBy:
    """
    The keys of the partitions of every table, outermost first.

    Attributes:
        keys: `day` and `hour` of the event in UTC; `signal`, which names the table in place of its directory; every
            other key is an attribute of the record or its resource, or a column that a processor added.

    Raises:
        SettingsError: a key is repeated or cannot be the name of a directory, or there are hours without days.
    """

    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in self.keys:
            if not isinstance(key, str) or _KEY.fullmatch(key) is None:
                raise SettingsError(
                    f"partition_by: {key!r} is neither day, hour or signal nor the name of an attribute: letters, "
                    "digits and _.:/- are possible, at most 100"
                )
        if len(set(self.keys)) != len(self.keys):
            raise SettingsError("partition_by: a key is repeated")
        if "hour" in self.keys and "day" not in self.keys[: self.keys.index("hour")]:
            raise SettingsError("partition_by: hour needs day before it, or one directory has that hour of all days")


@dataclass(frozen=True, slots=True)
class FileLayout:
    """
    How the rows of a batch are divided into files.

    Attributes:
        compression: of Parquet: zstd, snappy, or none.
        partition_by: the keys of the directories.
        file_bytes_max: a file is closed when it has this size; it may be larger by one row group. None is no limit.
        partitions_max: the partitions of a batch that a task writes at most.
    """

    compression: str = "zstd"
    partition_by: PartitionBy = field(default_factory=PartitionBy)
    file_bytes_max: int | None = None
    partitions_max: int = PARTITIONS_MAX
