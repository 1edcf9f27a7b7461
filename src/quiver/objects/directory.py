"""
Objects as files: each key a path below one root, on the `FileSystem` port.

A log deletes its local copy only because the object store is durable. Therefore a file is written with a temporary
name, synced, and then renamed; the directory is synced before the call returns. obstore's local store is not used
because it syncs nothing.

::

    <root>/<key>            the objects
    <root>/.parts/<number>  objects that are being written; leftovers of a crash are removed after a day
"""

from __future__ import annotations

import hashlib
import os.path
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectsUnavailableError,
    UsageError,
)
from quiver.objects.port import ObjectInfo, Parts, check_key, check_prefix, check_range
from quiver.primitives.disk.atomic import remove_durably
from quiver.primitives.disk.file_system import Buffer, File, FileSystem

__all__ = ["DirectoryObjects"]

_PARTS = ".parts"
_LEFTOVER_AGE_NS = 24 * 3600 * 1_000_000_000
_COPY_BYTES = 4 << 20
_FOLDERS_MAX = 1024


class DirectoryObjects:
    """
    An `ObjectTier` below the directory *root*. Several processes may share it.

    Conditional writes (*if_absent*) require a disk with hard links.

    Args:
        fs: the disk.
        root: the directory.
        clock: tells the age of leftovers.
        file_mode: permission bits of the objects; None makes them readable by their owner only.
        writable: create the directory if necessary, and remove old leftovers. False changes nothing: a directory that
            does not exist contains no objects.

    Raises:
        OSError: the directory cannot be created or read.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        file_mode: int | None = None,
        writable: bool = True,
    ) -> None:
        self._fs = fs
        self._file_mode = file_mode
        self._root = root.rstrip("/")
        self._parts = f"{self._root}/{_PARTS}"
        self._next = 0
        self._folders: set[str] = set()
        """Folders that are durable."""
        if writable:
            fs.make_dirs(self._parts)
            self._remove_leftovers(clock.now_ns())

    def _remove_leftovers(self, now_ns: int) -> None:
        old = []
        for name in self._fs.list_dir(self._parts):
            path = f"{self._parts}/{name}"
            try:
                if now_ns - self._fs.stat(path).modified_ns > _LEFTOVER_AGE_NS:
                    old.append(path)
            except FileNotFoundError:
                continue  # another process has just named it
        remove_durably(self._fs, old)

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    def _new_part(self) -> File:
        while True:
            # Numbers are not assigned: the process that creates the file has the number.
            number, self._next = self._next, self._next + 1
            try:
                return self._fs.create(f"{self._parts}/{number}")
            except FileExistsError:
                continue

    @contextmanager
    def _only_if(self, key: str, etag: str | None) -> Iterator[None]:
        """Let the block replace the object that has *etag*, while no other process replaces it conditionally."""
        if etag is None:
            yield
            return
        name = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
        lock = self._fs.try_lock(f"{self._parts}/{name}.lock", note=f"replacing {key}")
        if lock is None:
            raise ObjectsUnavailableError("put", key, "another process is replacing it at this moment")
        try:
            try:
                is_same = self.head(key).etag == etag
            except ObjectNotFoundError:
                is_same = False
            if not is_same:
                raise ObjectChangedError(key)
            yield
        finally:
            lock.release()

    def _make_folder(self, folder: str) -> None:
        if folder in self._folders and self._fs.exists(folder):
            return  # creating it again would sync its parent for every object
        self._fs.make_dirs(folder)
        if len(self._folders) == _FOLDERS_MAX:
            self._folders.clear()
        self._folders.add(folder)

    def _write(self, key: str, parts: Iterable[Buffer], *, if_absent: bool) -> ObjectInfo:
        target = self._path(key)
        self._make_folder(os.path.dirname(target))  # noqa: PTH120
        file = self._new_part()
        named = False
        try:
            try:
                if self._file_mode is not None:
                    file.set_mode(self._file_mode)
                size = 0
                for part in parts:
                    file.pwrite(part, size)
                    size += memoryview(part).nbytes
                # With the rename before the sync, a power loss could leave the name without the bytes.
                file.sync()
            finally:
                file.close()
            if if_absent:
                try:
                    self._fs.link(file.path, target)
                except FileExistsError:
                    raise ObjectExistsError(key) from None
            else:
                self._fs.rename(file.path, target)
                named = True
            self._fs.sync_dir(os.path.dirname(target))  # noqa: PTH120
        finally:
            if not named:
                self._fs.remove(file.path)
        return self.head(key)

    def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        """
        Write *data* as the object *key*, durably on return.

        Raises:
            ObjectExistsError: with *if_absent*, when there is one already.
            ObjectChangedError: with *if_match*, when the object has another etag or does not exist.
            OSError: the disk failed; the key has the old object or the new one.
        """
        with self._only_if(key, if_match):
            return self._write(key, (data,), if_absent=if_absent)

    def put_parts(self, key: str, parts: Parts, *, part_bytes: int = 8 << 20, parallel: int = 4) -> ObjectInfo:  # noqa: ARG002
        """
        Write *parts*, concatenated, as the object *key*, durably on return.

        Raises:
            OSError: the disk failed; the key has the old object or the new one.
        """
        return self._write(key, parts(), if_absent=False)

    def _find(self, key: str) -> str:
        path = self._path(key)
        if self._is_folder(path):
            raise ObjectNotFoundError(key)
        return path

    def _is_folder(self, path: str) -> bool:
        try:
            self._fs.list_dir(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _open(self, key: str) -> File:
        try:
            return self._fs.open_read(self._find(key))
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectNotFoundError(key) from None

    def get(self, key: str, *, size_max: int) -> bytes:
        """
        Return the complete object.

        Raises:
            ObjectNotFoundError: the object does not exist.
            UsageError: it is larger than *size_max*.
        """
        file = self._open(key)
        try:
            size = file.size()
            if size > size_max:
                raise UsageError(f"objects: {key} has {size} bytes, more than {size_max}")
            return file.pread(size, 0)
        finally:
            file.close()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """
        Return *length* bytes from *start*; fewer only at the object's end.

        Raises:
            ObjectNotFoundError: the object does not exist.
        """
        return self.get_ranges(key, [(start, length)])[0]

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """
        Return one piece for each (start, length) of *ranges*.

        Raises:
            ObjectNotFoundError: the object does not exist.
        """
        for start, length in ranges:
            check_range(start, length)
        file = self._open(key)
        try:
            return [file.pread(length, start) for start, length in ranges]
        finally:
            file.close()

    def head(self, key: str) -> ObjectInfo:
        """
        Return the metadata of *key*.

        Raises:
            ObjectNotFoundError: the object does not exist.
        """
        try:
            stat = self._fs.stat(self._find(key))
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectNotFoundError(key) from None
        etag = f'"{stat.inode:x}-{stat.modified_ns:x}-{stat.size_bytes:x}"'
        return ObjectInfo(key, stat.size_bytes, etag, stat.modified_ns)

    def list_below(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below *prefix* and after the key *after*, in the order of their keys."""
        folder = check_prefix(prefix)
        return self._walk(f"{folder}/" if folder else "", after)

    def _walk(self, folder: str, after: str) -> Iterator[ObjectInfo]:
        try:
            names = self._fs.list_dir(f"{self._root}/{folder}".rstrip("/"))
        except (FileNotFoundError, NotADirectoryError):
            return
        entries = []
        for name in names:
            if name.startswith("."):
                continue
            # A folder sorts as its keys do: with a slash at its end.
            entries.append(f"{name}/" if self._is_folder(f"{self._root}/{folder}{name}") else name)
        for entry in sorted(entries):
            if entry.endswith("/"):
                yield from self._walk(folder + entry, after)
            elif folder + entry > after:
                try:
                    yield self.head(folder + entry)
                except ObjectNotFoundError:
                    continue  # deleted since it was listed

    def delete(self, keys: Iterable[str]) -> None:
        """
        Remove *keys*, durably on return; missing ones are ignored.

        Raises:
            OSError: some may be removed, but not durably.
        """
        paths = [self._path(key) for key in keys]
        # The directory of a key that never existed is missing, too, and then there is nothing to sync.
        remove_durably(self._fs, [path for path in paths if self._fs.exists(os.path.dirname(path))])  # noqa: PTH120

    def copy(self, source: str, target: str, *, if_absent: bool = False) -> ObjectInfo:
        """
        Copy *source* to *target*, durably on return.

        Raises:
            ObjectNotFoundError: *source* does not exist.
            ObjectExistsError: with *if_absent*, when there is a *target* already.
            OSError: the disk failed; the target has the old object or the new one.
        """
        file = self._open(source)
        try:
            size = file.size()
            pieces = (file.pread(_COPY_BYTES, at) for at in range(0, size, _COPY_BYTES))
            return self._write(target, pieces, if_absent=if_absent)
        finally:
            file.close()

    def close(self) -> None:
        """Do nothing: no file stays open."""
