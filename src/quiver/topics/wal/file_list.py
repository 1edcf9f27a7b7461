"""The sealed files of one log: where to start reading in each, and which of them readers hold."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from quiver.primitives.disk.atomic import remove_durably
from quiver.primitives.disk.file_system import FileSystem
from quiver.topics.format.checkpoint import WalCheckpoint
from quiver.topics.format.names import wal_file_name
from quiver.topics.wal.files import FileMarks, WalFile

__all__ = ["SealedFiles", "checkpoint_of"]


class SealedFiles:
    """
    The sealed files of one log. Used under the log's lock, except `remove`. `files` may be read without it: the tuple
    is replaced, never changed.
    """

    __slots__ = ("_marks", "_readers", "_removing", "files")

    def __init__(self, files: Sequence[WalFile]) -> None:
        self.files = tuple(files)
        self._readers: dict[str, weakref.WeakSet[object]] = {}
        self._marks: dict[str, FileMarks] = {}
        self._removing: list[str] = []

    def add(self, file: WalFile, marks: FileMarks) -> None:
        """Append a file that was sealed just now."""
        self._marks[file.path] = marks
        self.files = (*self.files, file)

    def marks_of(self, path: str) -> FileMarks:
        """Return the marks of a file, for readers to fill."""
        return self._marks.setdefault(path, FileMarks())

    def hold(self, path: str, owner: object) -> None:
        """Keep a file until `release`, or until *owner* is garbage-collected."""
        self._readers.setdefault(path, weakref.WeakSet()).add(owner)

    def release(self, path: str, owner: object) -> None:
        """Undo `hold`. Idempotent."""
        readers = self._readers.get(path, weakref.WeakSet())
        readers.discard(owner)
        if not readers:
            self._readers.pop(path, None)

    def take_below(self, offset: int) -> tuple[WalFile, ...]:
        """Drop the oldest files with all messages below *offset* from the list, up to the first held; return them."""
        released = []
        for file in self.files:
            if file.next_offset > offset or self._readers.get(file.path):
                break
            released.append(file)
        self.files = self.files[len(released) :]
        return tuple(released)

    def put_back(self, files: Sequence[WalFile]) -> None:
        """Undo `take_below`."""
        self.files = (*files, *self.files)

    def remove(self, fs: FileSystem, files: Sequence[WalFile]) -> None:
        """
        Remove from the disk *files*, which no checkpoint names any more, and files whose earlier removal failed.

        Raises:
            OSError: some could not be removed; the next call tries again.
        """
        for file in files:
            self._marks.pop(file.path, None)
            self._readers.pop(file.path, None)
            self._removing.append(file.path)
        if self._removing:
            remove_durably(fs, self._removing)
            self._removing.clear()


def checkpoint_of(
    files: Sequence[WalFile],
    *,
    next_offset: int,
    synced_offset: int,
    seq: int,
    file_name: str,
    rotated_at: int | None,
) -> WalCheckpoint:
    """Return the checkpoint of a log with these files; the active one is the last and has the number *seq*."""
    name = wal_file_name(seq, file_name)
    active = [file for file in files if not file.sealed and file.next_offset > file.first_offset]
    return WalCheckpoint(
        start_offset=files[0].first_offset if files else next_offset,
        last_offset=synced_offset - 1,
        file_seq=seq,
        file_path=name,
        rotated_files=tuple(
            (file.seq, wal_file_name(file.seq, file_name), file.first_offset) for file in files if file.sealed
        ),
        active_file_name=name,
        last_rotation_at=rotated_at,
        active_file_first_offset=active[0].first_offset if active else None,
    )
