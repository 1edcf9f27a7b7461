"""
Where a task writes a Parquet file before its batch is committed: next to its final name, or in a bucket.

A file in a bucket is written to a temporary file first, which has no name, so that nothing of it remains after a kill.
It is sent when it is complete, in one call, and compared with the digest that the object store returns.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Protocol

import pyarrow as pa

from quiver.errors import ObjectsUnavailableError
from quiver.objects.location import ObjectLocation
from quiver.objects.opening import open_objects
from quiver.objects.port import ObjectTier
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.exporters.output_files import begin_file, synced_bytes
from quiver.spark.exporters.parquet_commit import RECORDS_DIR
from quiver.spark.exporters.settings import directory_mode
from quiver.spark.lake.object_commit import STAGED_DIR

__all__ = ["BucketStaging", "DirectoryStaging", "Staging", "StagingFile", "send_file"]

_PIECE_BYTES = 8 << 20


class StagingFile(Protocol):
    """A file that is being written."""

    sink: Any
    """Takes the bytes: an output stream of Arrow."""

    def finish(self) -> int:
        """Return its size. It is durable and complete on return. The caller has closed `sink`."""

    def discard(self) -> None:
        """Release it after an error. The file may remain: the committer removes it."""


class Staging(Protocol):
    """
    Makes the files of one batch. Can be pickled: the driver makes it, and tasks use it.

    Attributes:
        prefix: of the names of the files of this attempt.
    """

    @property
    def prefix(self) -> str:
        """The prefix of the names of this attempt's files."""

    def begin(self, directory: str, name: str) -> StagingFile:
        """Return the new file *name*, which is committed to *directory* later."""


@dataclass(frozen=True)
class DirectoryStaging:
    """
    Hidden files in the directories of their final names.

    Attributes:
        output: the output directory, which every task can reach by this path.
        prefix: of their names.
        file_mode: permission bits of the files; None leaves them to the umask.
    """

    output: str
    prefix: str
    file_mode: int | None = None

    def begin(self, directory: str, name: str) -> StagingFile:
        """Create the hidden file, and its directory if it is missing."""
        REAL_FILES.make_dirs(f"{self.output}/{directory}", mode=directory_mode(self.file_mode))
        path = f"{self.output}/{directory}/{name}"
        begin_file(path, self.file_mode)
        return _LocalFile(path)


class _LocalFile:
    def __init__(self, path: str) -> None:
        self._path = path
        self.sink = pa.OSFile(path, "wb")

    def finish(self) -> int:
        return synced_bytes(self._path)

    def discard(self) -> None:
        self.sink.close()


@dataclass(frozen=True)
class BucketStaging:
    """
    Objects that no reader of Parquet files sees.

    Attributes:
        location: of the output; it has the credentials.
        query_id: of the query.
        prefix: of their names.
    """

    location: ObjectLocation
    query_id: str
    prefix: str

    def begin(self, directory: str, name: str) -> StagingFile:  # noqa: ARG002 - the record has the directory
        """Return a temporary file, which is sent when it is complete."""
        return _SentFile(self.location, f"{RECORDS_DIR}/{self.query_id}/{STAGED_DIR}/{name}")


class _SentFile:
    def __init__(self, location: ObjectLocation, key: str) -> None:
        self._location = location
        self._key = key
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="quiver-lake-")  # noqa: SIM115 - see `discard`
        self.sink = pa.PythonFile(_Unclosed(self._file), mode="w")

    def finish(self) -> int:
        objects = open_objects(self._location, check_access=False)
        with contextlib.closing(objects), self._file:
            return send_file(objects, self._key, self._file)

    def discard(self) -> None:
        self._file.close()


class _Unclosed:
    """A file that stays open when Arrow closes it, because its bytes are read again."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.closed = False

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True


def send_file(objects: ObjectTier, key: str, file: IO[bytes]) -> int:
    """
    Send the complete *file* as the object *key*, and return its size. The object has every byte on return.

    Raises:
        ObjectsUnavailableError: the object store does not answer, or has other bytes.
    """
    checksum = 0

    def parts() -> Iterator[bytes]:
        nonlocal checksum
        checksum = 0
        file.seek(0)
        while piece := file.read(_PIECE_BYTES):
            checksum = crc32(piece, checksum)
            yield piece

    file.seek(0, 2)
    size = file.tell()
    info = objects.put_parts(key, parts)
    if info.size_bytes != size or not (info.is_verified or _checksum(objects, key, size) == checksum):
        raise ObjectsUnavailableError("verify", key, "the object differs from the data that was sent")
    return size


def _checksum(objects: ObjectTier, key: str, size: int) -> int:
    checksum = 0
    for start in range(0, size, _PIECE_BYTES):
        checksum = crc32(objects.get_range(key, start, min(_PIECE_BYTES, size - start)), checksum)
    return checksum
