"""The sealed files of one log: which there are, where to begin reading in each, and which somebody holds."""

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
    Used under the log's lock, but for `remove`; `files` may be looked at by anybody: it is
    replaced, never changed.
    """

    __slots__ = ("_going", "_held", "_marks", "files")

    def __init__(self, files: Sequence[WalFile]) -> None:
        self.files = tuple(files)
        self._held: dict[str, weakref.WeakSet[object]] = {}
        self._marks: dict[str, FileMarks] = {}
        self._going: list[str] = []

    def add(self, file: WalFile, marks: FileMarks) -> None:
        """Append a file that was sealed just now."""
        self._marks[file.path] = marks
        self.files = (*self.files, file)

    def marks_of(self, path: str) -> FileMarks:
        """Return the marks of a file, for readers to fill."""
        return self._marks.setdefault(path, FileMarks())

    def hold(self, path: str, owner: object) -> None:
        """Keep a file until `let_go`, or until *owner* is no more: a reader that is simply dropped holds nothing."""
        self._held.setdefault(path, weakref.WeakSet()).add(owner)

    def let_go(self, path: str, owner: object) -> None:
        """Undo `hold`. Again is fine."""
        held = self._held.get(path, weakref.WeakSet())
        held.discard(owner)
        if not held:
            self._held.pop(path, None)

    def take_below(self, offset: int) -> tuple[WalFile, ...]:
        """Forget the oldest files wholly below *offset*, up to the first that is held, and return them."""
        gone = []
        for file in self.files:
            if file.next_offset > offset or self._held.get(file.path):
                break
            gone.append(file)
        self.files = self.files[len(gone) :]
        return tuple(gone)

    def put_back(self, files: Sequence[WalFile]) -> None:
        """Undo `take_below`."""
        self.files = (*files, *self.files)

    def remove(self, fs: FileSystem, files: Sequence[WalFile]) -> None:
        """
        Remove *files* from the disk, which no checkpoint names any more, and those that could not be removed before.

        Raises:
            OSError: some are left; the next call tries again.
        """
        for file in files:
            self._marks.pop(file.path, None)
            self._held.pop(file.path, None)
            self._going.append(file.path)
        if self._going:
            remove_durably(fs, self._going)
            self._going.clear()


def checkpoint_of(
    files: Sequence[WalFile],
    *,
    next_offset: int,
    synced_offset: int,
    seq: int,
    file_name: str,
    rotated_at: int | None,
) -> WalCheckpoint:
    """Return what `wal.ckpt` says of a log with these files, the active one last and of number *seq*."""
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
