"""
Detects that the directory of an open store was moved. A lock holds a file, not its path: a directory can be renamed
while its store is open, and another store opened at the old path. Writes by path would then reach the other store.
"""

from __future__ import annotations

import logging

from quiver.errors import StoreFailedError
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.format.names import STORE_LOCK
from quiver.store.wal.moved import DirectoryMovedError
from quiver.store.wal.writer import WalWriter

__all__ = ["HeldPlace"]


class HeldPlace:
    """
    The path of an open store, with the lock file that was there when it was opened.

    Args:
        fs: the file system.
        root: the directory; its lock is held.
        wal: poisoned if the directory was moved.
        observer: receives that event.
    """

    def __init__(self, fs: FileSystem, root: str, wal: WalWriter, observer: Observer) -> None:
        self._fs = fs
        self._root = root
        self._wal = wal
        self._observer = observer
        self._inode = fs.stat(f"{root}/{STORE_LOCK}").inode
        wal.before_rotation = self.require

    def require(self) -> None:
        """
        Check that the directory was not moved. Call it before every write by path.

        Raises:
            StoreFailedError: it was moved, or its lock file was removed or replaced. The store refuses everything from
            now
                on and writes nothing more.
        """
        try:
            found = self._fs.stat(f"{self._root}/{STORE_LOCK}").inode
        except (FileNotFoundError, NotADirectoryError):
            found = None
        except OSError:
            return  # unknown; the next write will show
        if found == self._inode:
            return
        what = "was removed" if found is None else "has been replaced by another"
        moved = DirectoryMovedError(
            f"{STORE_LOCK} {what} since the store was opened: the directory was moved or removed; nothing more is "
            "written here; close the store and open the directory where it is now"
        )
        if self._wal.failure is None:
            self._wal.poison(moved)
            self._observer.event("quiver.engine.moved", level=logging.ERROR, path=self._root, problem=str(moved))
        raise StoreFailedError(f"{self._root}: {moved}") from moved
