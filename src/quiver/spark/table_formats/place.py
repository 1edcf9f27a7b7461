"""
The directory, or the folder of a bucket, that has the tables.

::

    <place>/<table>/…                          the files of a table
    <place>/_quiver/batches/<query>/<n>.json   the record of a batch
    <place>/_quiver/bundles/<name>.json        the record of a bundle that was exported individually

Readers of the tables ignore both folders of records: no table is named `_quiver`.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from quiver.bundle import BundleRef
from quiver.clock import SYSTEM_CLOCK
from quiver.errors import CorruptionError, ObjectExistsError, ObjectNotFoundError
from quiver.objects.directory import DirectoryObjects
from quiver.objects.location import ObjectLocation
from quiver.objects.opening import open_objects
from quiver.objects.port import ObjectTier
from quiver.objects.remote import connect
from quiver.objects.retrying import RetryingObjects
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.atomic import remove_durably
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.exporters.commit_records import RECORD_BYTES_MAX
from quiver.spark.exporters.output_files import synced_bytes
from quiver.spark.exporters.parquet_commit import INDIVIDUAL_PREFIX, RECORDS_DIR
from quiver.spark.table_formats.batch_record import BatchRecord

__all__ = ["BatchRecords", "NewFile", "TablePlace", "merged"]

RECORDS_KEPT = 10
"""Spark replays only the last batch; older records help with diagnosis."""
_FOOTER_BYTES = 64 * 1024
_UPLOAD_BYTES = 8 * 1024 * 1024


_DURATIONS = {"timeout_s": "timeout", "connect_timeout_s": "connect_timeout"}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class TablePlace:
    """
    The files of tables at *location*. Can be pickled: tasks write to it, too.

    Args:
        location: a directory or a bucket, with credentials.
        records: another location for the records of batches.
    """

    def __init__(self, location: ObjectLocation, records: ObjectLocation | None = None) -> None:
        self.location = location
        self._records_location = records or location
        self._prepared: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return TablePlace, (self.location, self._records_location)  # connections stay in their process

    @property
    def directory(self) -> str | None:
        """The directory; None in a bucket."""
        return self.location.prefix if self.location.backend == "fs" else None

    def uri(self, table: str) -> str:
        """Return the location of *table*: a path, or a URL."""
        return f"{self.directory or self.location}/{table}"

    def storage_options(self) -> dict[str, str]:
        """Return the options of the bucket as texts, for other clients that are based on the same library."""
        options = {
            _DURATIONS.get(key, key): f"{value}s" if key in _DURATIONS else _text(value)
            for key, value in self.location.options.items()
        }
        if options.get("endpoint", options.get("base_url", "")).startswith("http://"):
            options.setdefault("allow_http", "true")
        return options

    def prepare(self, folder: str) -> None:
        """Create *folder*, below the place, durably, unless folders need no creation."""
        if self.directory is None:
            return
        path = f"{self.directory}/{folder}"
        if folder not in self._prepared or not REAL_FILES.exists(path):  # otherwise each batch would sync its parent
            REAL_FILES.make_dirs(path, mode=0o755)
            self._prepared.add(folder)

    def new_file(self, key: str) -> NewFile:
        """Return the file *key*, to be written in this process."""
        return NewFile(self, key)

    def sync_folder(self, folder: str) -> None:
        """Make the names of the files in *folder* durable."""
        if self.directory is not None:
            REAL_FILES.sync_dir(f"{self.directory}/{folder}")

    def exists(self, key: str) -> bool:
        """Return whether there is a file *key*."""
        if self.directory is not None:
            return REAL_FILES.exists(f"{self.directory}/{key}")
        try:
            self._objects.head(key)
        except ObjectNotFoundError:
            return False
        return True

    def remove(self, folder: str, prefix: str) -> None:
        """Remove the files of *folder* whose names begin with *prefix*, durably."""
        if self.directory is not None:
            path = f"{self.directory}/{folder}"
            names = REAL_FILES.list_dir(path) if REAL_FILES.exists(path) else ()
            remove_durably(REAL_FILES, [f"{path}/{name}" for name in names if name.startswith(prefix)])
            return
        self._objects.delete(list(self._keys(folder, prefix)))

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield the files of *folder*, not of folders in it, and when each was written, in nanoseconds."""
        name = folder.rstrip("/")
        if self.directory is not None:
            path = f"{self.directory}/{name}"
            for one in REAL_FILES.list_dir(path) if REAL_FILES.exists(path) else ():
                with contextlib.suppress(FileNotFoundError):  # another writer has just removed it
                    yield f"{name}/{one}", REAL_FILES.stat(f"{path}/{one}").modified_ns
            return
        for found in self._objects.list_below(name):
            if "/" not in found.key.removeprefix(f"{name}/"):
                yield found.key, found.modified_ns

    def remove_files(self, keys: Iterable[str]) -> None:
        """Remove *keys*, durably."""
        if self.directory is not None:
            remove_durably(REAL_FILES, [f"{self.directory}/{key}" for key in keys])
        else:
            self._objects.delete(keys)

    def _keys(self, folder: str, prefix: str) -> Iterator[str]:
        for found in self._objects.list_below(folder, after=f"{folder}/{prefix}"):
            if not found.key.startswith(f"{folder}/{prefix}"):
                return
            yield found.key

    def footer(self, key: str) -> pq.FileMetaData:
        """
        Read the footer of the Parquet file *key*.

        Raises:
            CorruptionError: the file has none.
        """
        if self.directory is not None:
            return pq.read_metadata(f"{self.directory}/{key}")
        size = self._objects.head(key).size_bytes
        length = min(_FOOTER_BYTES, size)
        end = self._objects.get_range(key, size - length, length)
        needed = int.from_bytes(end[-8:-4], "little") + 8
        if needed > size:
            raise CorruptionError(key, size - length, "the Parquet file has no footer")
        if needed > length:
            end = self._objects.get_range(key, size - needed, needed)
        return pq.read_metadata(io.BytesIO(b"PAR1" + end[-needed:]))

    def upload(self, path: str, key: str) -> int:
        """Copy the file at *path* to *key* of the bucket, durably, and return its length."""

        def parts() -> Iterator[Buffer]:
            with Path(path).open("rb") as file:
                while part := file.read(_UPLOAD_BYTES):
                    yield part

        return self._objects.put_parts(key, parts).size_bytes

    @cached_property
    def _objects(self) -> ObjectTier:
        return RetryingObjects(connect(self.location), clock=SYSTEM_CLOCK, observer=InMemoryObserver())

    def records(self) -> BatchRecords:
        """
        Return the records of batches.

        Raises:
            SettingsError: the bucket does not exist.
            AccessDeniedError: the credentials do not allow it.
            ObjectsUnavailableError: the object store does not answer.
            OSError: the directory cannot be created.
        """
        location = self._records_location
        if location.backend == "fs":
            REAL_FILES.make_dirs(location.prefix, mode=0o755)
            return BatchRecords(DirectoryObjects(REAL_FILES, f"{location.prefix}/{RECORDS_DIR}"), "")
        # Wrong credentials are reported now, as such.
        return BatchRecords(open_objects(location), f"{RECORDS_DIR}/")


class NewFile:
    """
    A file that a task writes: directly, or locally until it is complete, and then to the bucket.

    Args:
        place: the place.
        key: the name below it.
    """

    def __init__(self, place: TablePlace, key: str) -> None:
        self._place = place
        self._key = key
        self._temporary = None if place.directory is not None else tempfile.TemporaryDirectory(prefix="quiver-table-")
        self.path = f"{place.directory}/{key}" if self._temporary is None else f"{self._temporary.name}/part"

    def finish(self) -> int:
        """Make the complete file durable and return its length."""
        if self._temporary is None:
            return synced_bytes(self.path)
        try:
            return self._place.upload(self.path, self._key)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the local file of one that goes to a bucket. Idempotent."""
        if self._temporary is not None:
            self._temporary.cleanup()


class BatchRecords:
    """
    The records of batches in *tier*.

    Args:
        tier: where they are.
        folder: their folder in it, with a slash at its end; may be empty.
    """

    def __init__(self, tier: ObjectTier, folder: str) -> None:
        self._tier = tier
        self._folder = folder

    def get(self, query: str, batch: int) -> BatchRecord | None:
        """
        Return the record of *batch*, or None.

        Raises:
            CorruptionError: it is damaged.
        """
        return self._read(self._key(query, batch))

    def _read(self, key: str) -> BatchRecord | None:
        try:
            return BatchRecord.decode(self._tier.get(key, size_max=RECORD_BYTES_MAX), key)
        except ObjectNotFoundError:
            return None

    def put(self, record: BatchRecord) -> BatchRecord:
        """Store *record*, durably, unless its batch has one. Return the one that is stored."""
        key = self._key(record.query, record.batch)
        try:
            self._tier.put(key, record.encode(), if_absent=True)
        except ObjectExistsError:
            return self._read(key) or record
        self._prune(record)
        return record

    def remove(self, record: BatchRecord) -> None:
        """Remove *record*, durably."""
        self._tier.delete([self._key(record.query, record.batch)])

    def newest(self, subscriber: str, stores: AbstractSet[str]) -> Iterator[BatchRecord]:
        """
        Yield the newest record of each query of *subscriber* that read one of *stores*.

        Raises:
            CorruptionError: one is damaged.
        """
        newest: dict[str, str] = {}
        for found in self._tier.list_below(f"{self._folder}batches"):
            newest[found.key.rpartition("/")[0]] = found.key  # keys are in order
        for key in newest.values():
            record = self._read(key)
            if record is not None and record.subscriber == subscriber and not stores.isdisjoint(record.through):
                yield record

    def individual(self, names: AbstractSet[str]) -> set[str]:
        """Return those of *names* that have a record."""
        return {name for name in names if self.get(name, 0) is not None}

    def _prune(self, record: BatchRecord) -> None:
        old = record.batch - RECORDS_KEPT
        if old >= 0:
            self._tier.delete([self._key(record.query, old)])

    def _key(self, query: str, batch: int) -> str:
        if query.startswith(INDIVIDUAL_PREFIX):
            return f"{self._folder}bundles/{query}.json"
        return f"{self._folder}batches/{query}/{batch:010}.json"


def merged(positions: Iterable[Mapping[str, BundleRef]]) -> dict[str, BundleRef]:
    """Return the latest position of each store."""
    found: dict[str, BundleRef] = {}
    for one in positions:
        for store, position in one.items():
            found[store] = max(found.get(store, position), position)
    return found
