"""The file that the next rotation of the log will use, created in advance."""

from __future__ import annotations

import contextlib
import threading

from quiver.primitives.disk.file_system import File, FileSystem
from quiver.store.format.names import WAL_NEXT
from quiver.store.format.wal_file import WAL_HEADER_BYTES, encode_wal_header

__all__ = ["NextFile"]


class NextFile:
    """
    At most one prepared file. Until a rotation renames it, readers ignore its name, and opening removes it.

    `lock` is held by any code that changes it, and by a rotation until the file has its final name: another file that
    is prepared meanwhile would truncate it.

    Args:
        fs: the file system.
        directory: the `wal` directory.
        config_hash: written to the header.
    """

    def __init__(self, fs: FileSystem, directory: str, config_hash: bytes) -> None:
        self._fs = fs
        self._config_hash = config_hash
        self._prepared: File | None = None
        self.path = f"{directory}/{WAL_NEXT}"
        self.lock = threading.Lock()

    @property
    def is_prepared(self) -> bool:
        """Whether a file exists for the next rotation."""
        return self._prepared is not None

    @property
    def nbytes(self) -> int:
        """The bytes that it has on disk."""
        return 0 if self._prepared is None else WAL_HEADER_BYTES

    def prepare(self, position: int) -> None:
        """
        Create the file. Its position is not yet known; *position* is written in its place.

        Raises:
            OSError: the file could not be created; a later call tries again.
        """
        self._prepared = self._create(position)

    def take(self, position: int) -> File:
        """
        Return the file, durable with a header for *position*; it is created here if it was not prepared.

        Raises:
            OSError: no file was returned; a later call creates one.
        """
        file, self._prepared = self._prepared, None
        return self._create(position) if file is None else self._written(file, position)

    def discard(self, *, removes: bool) -> None:
        """Close the prepared file, if any, and remove it; without *removes*, the next open does that."""
        with self.lock:
            file, self._prepared = self._prepared, None
            if file is not None:
                file.close()
                if removes:
                    with contextlib.suppress(OSError):
                        self._fs.remove(self.path)

    def _create(self, position: int) -> File:
        return self._written(self._fs.create_or_truncate(self.path), position, is_new=True)

    def _written(self, file: File, position: int, *, is_new: bool = False) -> File:
        try:
            file.pwrite(encode_wal_header(self._config_hash, position), 0)
            if is_new:
                file.sync()
            else:  # its length and its block are durable: this sync writes only that block
                file.sync_data()
        except OSError:
            file.close()
            raise
        return file
