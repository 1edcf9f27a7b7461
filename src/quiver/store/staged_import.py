"""
Segments that Spark sinks staged and committed become segments of the store. Only the store's owner does this.

::

    1  tasks write and sync       incoming/<writer>/<batch>-…/….qseg    nobody sees them
    2  the sink's driver commits  incoming/<writer>/<batch>.commit      durable: from here on the batch counts
    3  the owner renames each     → segments/<next number>.qseg         visible, in order
    4  the owner syncs segments/, then the staging directory
    5  the owner removes empty staging directories and all but the writer's last commit

The owner is whoever holds the lock of the directory: a store that is open in any process does it with its maintenance,
and where none is open the sink does it itself. A crash between 3 and 4 can leave a file under both names, which are one
file: the staged name goes, the segment stays. Doing it all again changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from quiver.errors import CorruptionError
from quiver.primitives.batch_notes import ONCE_PREFIX, commit_name, parse_part_directory
from quiver.primitives.disk.atomic import remove_durably, remove_if_empty
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.staged_commits import noted_batches, read_note
from quiver.primitives.disk.staging import names_in, remove_staged
from quiver.primitives.small_file import read_checked
from quiver.store.context import Parts
from quiver.store.format.floor import decode_floor
from quiver.store.format.names import (
    SEGMENT_FLOOR,
    SEGMENTS_DIR,
    parse_segment_name,
    segment_name,
)
from quiver.store.format.sink_commit import COMMITS, INCOMING_DIR
from quiver.store.reading.store_files import StoreFiles
from quiver.store.removal.cleanup import Cleanup
from quiver.store.segment.info import SegmentInfo
from quiver.store.segment.tail import read_info
from quiver.store.subscribers.state import SegmentRef

__all__ = ["OpenStoreImport", "StagedImport", "awaits_import", "first_free_segment", "writer_commits"]

_FLOOR_BYTES_MAX = 64 * 1024


def writer_commits(fs: FileSystem, directory: str) -> list[int]:
    """Return the batches that a writer's *directory* has commits of, ascending; none if it does not exist."""
    return noted_batches(names_in(fs, directory), "commit")


def awaits_import(fs: FileSystem, root: str, *, writer: str | None = None) -> bool:
    """
    Say whether something that a sink committed, any or one *writer*, is no segment yet. What is damaged never will be,
    and is not meant.
    """
    incoming = f"{root}/{INCOMING_DIR}"
    if not fs.exists(incoming):
        return False
    for one in fs.list_dir(incoming) if writer is None else (writer,):
        directory = f"{incoming}/{one}"
        for batch in writer_commits(fs, directory):
            # Its commit goes when it has been taken over.
            with contextlib.suppress(CorruptionError, FileNotFoundError):
                commit = read_note(fs, f"{directory}/{commit_name(batch)}", COMMITS.decode)
                if any(fs.exists(f"{directory}/{part}") for part in commit.parts):
                    return True
    return False


def first_free_segment(fs: FileSystem, root: str) -> int:
    """
    Return a number above every segment that the directory or anybody's progress speaks of. For whoever holds the
    directory's lock and has no store open.

    Raises:
        CorruptionError: the floor, the drop ledger or a progress file is not what was written: open the store first.
    """
    store = StoreFiles(fs, root)
    highest = max([*store.segments(), *store.quarantined(), *(entry.seq for entry in store.drops())], default=-1)
    for subscriber in store.subscribers():
        progress = store.progress(subscriber)
        if progress is not None:
            highest = max(highest, progress.oldest_incomplete - 1, *progress.entries, -1)
    floor = read_checked(fs, f"{root}/{SEGMENTS_DIR}/{SEGMENT_FLOOR}", decode_floor, _FLOOR_BYTES_MAX) or 0
    return max(highest + 1, floor)


class StagedImport:
    """
    Takes over what sinks committed. One for each time that the directory's lock is held; not thread-safe.

    Args:
        fs: the file system.
        root: the store's directory, whose lock the caller holds.
        next_segment: gives a number that no segment has had, above all that anybody can read; None for not now.
        on_imported: told of each segment that became one, durably, in the order of their numbers.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        *,
        next_segment: Callable[[], int | None],
        on_imported: Callable[[SegmentInfo], None] = lambda _: None,
    ) -> None:
        self._fs = fs
        self._incoming = f"{root}/{INCOMING_DIR}"
        self._segments = f"{root}/{SEGMENTS_DIR}"
        self._next_segment = next_segment
        self._on_imported = on_imported
        self._done: dict[str, int] = {}
        """Of each writer the last batch that is taken over, durably."""
        self._inodes: frozenset[int] | None = None
        """Of the segments that were there at first: one may be a staged file under its second name."""

    def import_all(self) -> int:
        """
        Take over all that is committed; how many segments came. Durable on return. One look when nothing is there.

        Raises:
            CorruptionError: a commit or a staged segment is not what was written. What other writers committed is taken
            over. OSError: the disk refused; call again.
        """
        if not self._fs.exists(self._incoming):
            return 0
        imported = 0
        damage: CorruptionError | None = None
        for writer in self._fs.list_dir(self._incoming):
            try:
                imported += self._import_writer(writer)
            except CorruptionError as problem:
                damage = damage or problem
        if damage is not None:
            raise damage
        return imported

    def _import_writer(self, writer: str) -> int:
        directory = f"{self._incoming}/{writer}"
        batches = writer_commits(self._fs, directory)
        if not batches or batches[-1] <= self._done.get(writer, -1):
            return 0
        imported = 0
        for batch in batches:
            if batch <= self._done.get(writer, -1):
                continue
            commit = read_note(self._fs, f"{directory}/{commit_name(batch)}", COMMITS.decode)
            for part in commit.parts:
                came = self._import_part(f"{directory}/{part}")
                if came is None:
                    return imported
                imported += came
        self._tidy(directory, batches)
        self._done[writer] = batches[-1]
        return imported

    def _import_part(self, staged: str) -> bool | None:
        """Give one staged file its number; False when it has one, None when there is no number to be had now."""
        fs = self._fs
        if not fs.exists(staged):
            return False
        if self._inodes is None:
            self._inodes = frozenset(self._found_inodes())
        if fs.stat(staged).inode in self._inodes:
            # A power cut took back that the staged name went. The segment's own name was synced before.
            fs.sync_dir(self._segments)
            remove_durably(fs, [staged])
            return False
        read_info(fs, staged)  # is it whole? Before it has a name that readers trust.
        number = self._next_segment()
        if number is None:
            return None
        path = f"{self._segments}/{segment_name(number)}"
        fs.rename(staged, path)
        # The new name first: after a crash between the two the file has both names, never none.
        fs.sync_dir(self._segments)
        fs.sync_dir(staged.rpartition("/")[0])
        self._on_imported(read_info(fs, path))
        return True

    def _found_inodes(self) -> Iterator[int]:
        for name in self._fs.list_dir(self._segments):
            if parse_segment_name(name) is not None:
                with contextlib.suppress(FileNotFoundError):
                    yield self._fs.stat(f"{self._segments}/{name}").inode

    def _tidy(self, directory: str, batches: list[int]) -> None:
        """Remove what is done: all commits but the last, and whatever was staged for batches up to that one."""
        fs = self._fs
        old = (name for name in fs.list_dir(directory) if (parse_part_directory(name) or 0) <= batches[-1])
        remove_staged(fs, directory, old)
        # These before the commits: without its commit a staged segment is one that was never committed.
        fs.sync_dir(directory)
        is_once = directory.rpartition("/")[2].startswith(ONCE_PREFIX)
        remove_durably(fs, [f"{directory}/{commit_name(batch)}" for batch in (batches if is_once else batches[:-1])])
        if is_once:
            remove_if_empty(fs, directory)
            fs.sync_dir(self._incoming)


class OpenStoreImport:
    """
    The same in a store that is open: its numbers, its catalog, its subscribers.

    Args:
        parts: the store.
        cleanup: learns how old each segment is.
    """

    def __init__(self, parts: Parts, cleanup: Cleanup) -> None:
        self._parts = parts
        self._cleanup = cleanup
        self._may_take: Callable[[], bool] = lambda: True
        self._reported = ""
        self._import = StagedImport(
            parts.fs, parts.path, next_segment=self._next_segment, on_imported=self._on_imported
        )

    def import_all(self, may_take: Callable[[], bool]) -> int:
        """
        Take over what sinks committed, as long as *may_take* says; how many segments came. What is damaged stays where
        it is, and is reported.

        Raises:
            OSError: the disk refused; call again.
        """
        with self._parts.maintenance:
            self._may_take = may_take
            try:
                return self._import.import_all()
            except CorruptionError as damage:
                if str(damage) != self._reported:
                    self._reported = str(damage)
                    self._parts.observer.event("quiver.sink.damaged", level=logging.ERROR, problem=str(damage))
                return 0

    def _next_segment(self) -> int | None:
        if not self._may_take():
            return None
        sealing = self._parts.sealing
        with self._parts.lock:
            if sealing.pending is not None:
                # Its number is lower and its file not there yet: whoever reads by number would pass it over.
                return None
            number = sealing.next_seq
            sealing.next_seq = number + 1
            return number

    def _on_imported(self, info: SegmentInfo) -> None:
        self._cleanup.know(info)
        self._parts.catalog.add(info)
        self._parts.subscribers.sealed(SegmentRef.of(info))
