"""
Batches that tasks stage, a driver commits and the owner of a log imports: the steps that are the same for every log.

::

    1  tasks write and sync  <incoming>/<writer>/<batch>-…/…     no one reads them
    2  the driver commits    <incoming>/<writer>/<batch>.commit  durable: from here on the batch counts
    3  the owner imports the parts into its log, in its own way
    4  the owner renames     <batch>.commit → <batch>.done       durable: the batch is not imported again
    5  the owner removes the staged files and all notes except the writer's last `done`

A store renames parts instead of copying them. It leaves out step 4 and keeps the last commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from quiver.clock import Clock
from quiver.errors import DirectoryInUseError
from quiver.primitives.batch_notes import (
    NOTE_BYTES_MAX,
    ONCE_PREFIX,
    BatchCommit,
    CommitCodec,
    commit_name,
    done_name,
    parse_note_name,
    parse_part_directory,
)
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem, Lock
from quiver.primitives.disk.lock import hold
from quiver.primitives.disk.staging import last_batch, names_in, remove_staged, remove_taken
from quiver.primitives.scan import Answer
from quiver.primitives.small_file import checked_value, read_bounded

__all__ = ["StagedLog", "hold_patiently", "noted_batches", "read_note"]

_RETRY_S = 0.05

Part = TypeVar("Part")
T = TypeVar("T")


def read_note(fs: FileSystem, path: str, decode: Callable[[memoryview], Answer[T]]) -> T:
    """
    Read and decode the note at *path*.

    Raises:
        CorruptionError: the file is not what was written.
        FileNotFoundError: it does not exist.
    """
    data = read_bounded(fs, path, NOTE_BYTES_MAX)
    return checked_value(decode(memoryview(data)), path, len(data))


def noted_batches(names: Iterable[str], kind: str) -> list[int]:
    """Return the batches that have a note of *kind* (commit, begun or done) among *names*, ascending."""
    notes = (parse_note_name(name) for name in names)
    return sorted(note[0] for note in notes if note is not None and note[1] == kind)


@dataclass(frozen=True, slots=True)
class StagedLog(Generic[Part]):
    """
    The staged batches of one log.

    Attributes:
        fs: the file system.
        incoming: the directory that has one directory per writer.
        codec: of the log's commits.
    """

    fs: FileSystem
    incoming: str
    codec: CommitCodec[Part]

    def directory(self, writer: str) -> str:
        """Return the directory of *writer*."""
        return f"{self.incoming}/{writer}"

    def writers(self) -> list[str]:
        """Return the names of all writers. Costs one call when nothing was ever staged."""
        return names_in(self.fs, self.incoming) if self.fs.exists(self.incoming) else []

    def is_committed(self, writer: str, batch: int) -> bool:
        """Return whether *batch* of *writer*, or a later one, was committed."""
        return last_batch(self.fs, self.directory(writer)) >= batch

    def awaits_import(self, writer: str, batch: int) -> bool:
        """Return whether *batch* of *writer* is committed, and not yet imported."""
        return self.fs.exists(f"{self.directory(writer)}/{commit_name(batch)}")

    def commit(self, writer: str, batch: int, parts: tuple[Part, ...]) -> bool:
        """
        Commit *parts* as *batch* of *writer*; durable on return. Nothing is committed when there are no parts.

        Returns:
            False when this batch was committed before. Then the parts are removed.

        Raises:
            OSError: the disk refused; the caller may retry.
        """
        directory = self.directory(writer)
        if self.is_committed(writer, batch):
            remove_staged(self.fs, directory, self._part_directories(parts))
            return False
        if parts:
            data = self.codec.encode(BatchCommit(writer, batch, parts))
            replace_file(self.fs, f"{directory}/{commit_name(batch)}", data)
        return True

    def discard(self, writer: str, batch: int, parts: Iterable[Part]) -> None:
        """Remove *parts*, and what killed tasks staged for *batch* of *writer*, unless the batch is committed."""
        directory = self.directory(writer)
        names = names_in(self.fs, directory)
        # A commit that failed late may exist all the same: then its parts belong to it.
        if {commit_name(batch), done_name(batch)}.isdisjoint(names):
            staged = [name for name in names if parse_part_directory(name) == batch]
            remove_staged(self.fs, directory, dict.fromkeys([*self._part_directories(parts), *staged]))

    def _part_directories(self, parts: Iterable[Part]) -> dict[str, None]:
        return dict.fromkeys(self.codec.path_of(part).partition("/")[0] for part in parts)

    # ── for the owner ────────────────────────────────────────────────────────────────────────────────────

    def load(self, writer: str, batch: int) -> BatchCommit[Part]:
        """
        Read the commit of *batch*.

        Raises:
            CorruptionError: the file is not what was written.
            FileNotFoundError: the batch is not committed, or already imported.
        """
        return read_note(self.fs, f"{self.directory(writer)}/{commit_name(batch)}", self.codec.decode)

    def import_writer(self, writer: str, append: Callable[[BatchCommit[Part]], int]) -> int:
        """
        Import every committed batch of *writer* in order, and remove what is left of imported ones.

        Args:
            writer: whose batches.
            append: puts a batch into the log, durably on return, and returns how many rows that added. It may be
                called again for a batch after a crash.

        Returns:
            How many rows were added.

        Raises:
            CorruptionError: a commit is not what was written.
            OSError: the disk refused; call again.
        """
        directory = self.directory(writer)
        names = names_in(self.fs, directory)
        done = before = max(noted_batches(names, "done"), default=-1)
        count = 0
        for batch in noted_batches(names, "commit"):
            if batch > done:
                count += append(self.load(writer, batch))
                self.fs.rename(f"{directory}/{commit_name(batch)}", f"{directory}/{done_name(batch)}")
                self.fs.sync_dir(directory)
                done = batch
        if done >= 0 and (done > before or len(names) > 1 or writer.startswith(ONCE_PREFIX)):
            remove_taken(self.fs, directory, done)
        return count


def hold_patiently(
    fs: FileSystem, path: str, *, owner: str, patience_s: float, clock: Clock, only_for_owner: bool = False
) -> Lock | None:
    """
    Take the lock *path* as *owner*, and wait while another process has it.

    A sink must wait for another sink, which may have looked for commits before ours existed.

    Args:
        fs: the file system.
        path: of the lock.
        owner: what the lock file names as its holder.
        patience_s: how long to wait.
        clock: measures it.
        only_for_owner: whether to wait only for another *owner*. Any other holder imports by itself.

    Returns:
        The lock; None when another process still has it.
    """
    deadline = clock.monotonic() + patience_s
    condition = threading.Condition()
    while True:
        try:
            return hold(fs, path, owner=owner)
        except DirectoryInUseError as held:
            if (only_for_owner and owner not in str(held)) or clock.monotonic() >= deadline:
                return None
            with condition:
                clock.wait(condition, _RETRY_S)
