"""
Import the segments that Spark sinks staged and committed. Only the store's owner does this.

::

    1  tasks write and sync       incoming/<writer>/<batch>-…/….qseg    not visible
    2  the sink's driver commits  incoming/<writer>/<batch>.commit      durable: from here on the batch counts
    3  the owner renames each     → segments/<next number>.qseg         visible, in order
    4  the owner syncs segments/, then the staging directory
    5  the owner removes empty staging directories and all but the writer's last commit

The owner holds the lock of the directory. A store that is open in any process imports during its maintenance; if none
is open, the sink imports. A crash between 3 and 4 can leave a file under both names, which are one file: the staged
name is removed, the segment stays. Repeating the import changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from quiver.errors import CorruptionError
from quiver.invariant import invariant
from quiver.primitives.batch_notes import ONCE_PREFIX, commit_name, parse_part_directory
from quiver.primitives.disk.atomic import remove_durably, remove_if_empty
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.staged_commits import noted_batches, read_note
from quiver.primitives.disk.staging import names_in, remove_staged
from quiver.primitives.small_file import read_checked
from quiver.store.context import StoreContext
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
    Return whether committed batches, of all writers or of one, are not imported yet.

    Damaged commits are ignored: they will never be imported.
    """
    incoming = f"{root}/{INCOMING_DIR}"
    if not fs.exists(incoming):
        return False
    for one in fs.list_dir(incoming) if writer is None else (writer,):
        directory = f"{incoming}/{one}"
        for batch in writer_commits(fs, directory):
            # The import removes the commit, perhaps at this moment.
            with contextlib.suppress(CorruptionError, FileNotFoundError):
                commit = read_note(fs, f"{directory}/{commit_name(batch)}", COMMITS.decode)
                if any(fs.exists(f"{directory}/{part}") for part in commit.parts):
                    return True
    return False


def first_free_segment(fs: FileSystem, root: str) -> int:
    """
    Return a number above all segments in the directory, in the drop ledger and in the progress of subscribers.

    The caller must hold the directory's lock, with no store open.

    Raises:
        CorruptionError: the number floor, the drop ledger or a progress file is damaged: open the store first.
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
    Imports committed batches. Create one each time the directory's lock is taken. Not thread-safe.

    Args:
        fs: the file system.
        root: the store's directory, whose lock the caller holds.
        next_segment: returns an unused number above all visible segments; None if there is none now.
        on_imported: called with each imported segment, which is durable, in the order of their numbers.
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
        """The last batch of each writer that is imported, durably."""
        self._inodes: frozenset[int] | None = None
        """Inodes of the segments at the start: one may be a staged file under its second name."""

    def import_all(self) -> int:
        """
        Import everything that is committed. Return how many segments that added. Durable on return.

        Costs one call when nothing was ever staged.

        Raises:
            CorruptionError: a commit or a staged segment is damaged. The batches of other writers are imported.
            OSError: the disk refused; call again.
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
        """Give one staged file its number. Return False if it has one, and None if there is no number now."""
        fs = self._fs
        if not fs.exists(staged):
            return False
        if self._inodes is None:
            self._inodes = frozenset(self._found_inodes())
        if fs.stat(staged).inode in self._inodes:
            # A power cut undid the removal of the staged name. The segment's own name was synced before.
            fs.sync_dir(self._segments)
            remove_durably(fs, [staged])
            return False
        read_info(fs, staged)  # is it complete? Checked before readers can see it
        number = self._next_segment()
        if number is None:
            return None
        path = f"{self._segments}/{segment_name(number)}"
        invariant(not fs.exists(path), f"an imported segment replaces no other (number {number})")
        fs.rename(staged, path)
        # The new name first: after a crash in between, the file has both names, never none.
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
        """Remove all commits except the last, and everything that was staged for batches up to that one."""
        fs = self._fs
        old = (name for name in fs.list_dir(directory) if (parse_part_directory(name) or 0) <= batches[-1])
        remove_staged(fs, directory, old)
        # Before the commits: a staged segment without its commit would count as never committed.
        fs.sync_dir(directory)
        is_once = directory.rpartition("/")[2].startswith(ONCE_PREFIX)
        remove_durably(fs, [f"{directory}/{commit_name(batch)}" for batch in (batches if is_once else batches[:-1])])
        if is_once:
            remove_if_empty(fs, directory)
            fs.sync_dir(self._incoming)


class OpenStoreImport:
    """
    Imports batches into a store that is open: uses its numbers, catalog and subscribers.

    Args:
        context: the store.
        cleanup: records the age of each segment.
    """

    def __init__(self, context: StoreContext, cleanup: Cleanup) -> None:
        self._context = context
        self._cleanup = cleanup
        self._may_take: Callable[[], bool] = lambda: True
        self._reported = ""
        self._import = StagedImport(
            context.fs, context.path, next_segment=self._next_segment, on_imported=self._on_imported
        )

    def import_all(self, may_take: Callable[[], bool]) -> int:
        """
        Import committed batches while *may_take* returns True. Return how many segments that added.

        Damaged batches stay where they are, and are reported.

        Raises:
            OSError: the disk refused; call again.
        """
        with self._context.maintenance:
            self._may_take = may_take
            try:
                return self._import.import_all()
            except CorruptionError as damage:
                if str(damage) != self._reported:
                    self._reported = str(damage)
                    self._context.observer.event("quiver.sink.damaged", level=logging.ERROR, problem=str(damage))
                return 0

    def _next_segment(self) -> int | None:
        if not self._may_take():
            return None
        with self._context.lock:
            return self._context.sealing.number_for_import()

    def _on_imported(self, info: SegmentInfo) -> None:
        self._cleanup.know(info)
        self._context.catalog.add(info)
        self._context.subscribers.sealed(SegmentRef.of(info))
