"""
The files of Iceberg's metadata on a disk, synced.

The library syncs nothing. Its catalog does, so after a power loss a catalog could name metadata that does not exist.
Here each file is durable before the catalog can name it.
"""

from __future__ import annotations

import os
from typing import Any, Self

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.exporters.output_files import synced_bytes

__all__ = ["SyncedFileIO"]


class SyncedFileIO(PyArrowFileIO):
    """The library's access to a local disk, with syncs."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file that is durable when its stream is closed."""
        file = super().new_output(location)
        return _SyncedFile(file.location, file._path, file._filesystem)  # noqa: SLF001 - as the base class makes it


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:  # noqa: FBT001, FBT002 - the library's signature
        return _SyncedStream(super().create(overwrite), self._path)


class _SyncedStream:
    def __init__(self, stream: Any, path: str) -> None:
        self._stream = stream
        self._path = path

    def write(self, data: bytes) -> int:
        return int(self._stream.write(data))

    def close(self) -> None:
        if not self._stream.closed:
            self._stream.close()
            synced_bytes(self._path)
            REAL_FILES.sync_dir(os.path.dirname(self._path))  # noqa: PTH120

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
