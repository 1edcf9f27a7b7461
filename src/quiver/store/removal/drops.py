"""
The drop ledger on disk: the segments that policy drops, durable before any of them is deleted.

`Cleanup` takes the steps of a drop in this order, and after a crash again from the second on::

    1  the ledger lists the segments                      crash before: nothing happened
    2  every progress file that this process may write has them resolved
    3  the number floor is written                        crash up to here: recovery finds ledger and files, continues
    4  the files are deleted
    5  catalog and subscribers forget the segments        crash up to here: recovery finds the ledger, continues with 2
    6  entries that every progress file has leave the ledger

A segment that never had a file is only in the log: its entry takes effect, and 2 begins, when the cursor has passed it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from quiver.observe import Observer
from quiver.primitives.disk.atomic import remove_durably, replace_file
from quiver.primitives.disk.copying import keep_damaged
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.scan import Frame
from quiver.store.format.drop_ledger import (
    DROP_ENTRIES_MAX,
    DROP_LEDGER_BYTES_MAX,
    DroppedSegment,
    decode_drop_ledger,
    encode_drop_ledger,
)
from quiver.store.format.names import DROP_LEDGER, QUARANTINE_DIR

__all__ = ["DropLedger"]


class DropLedger:
    """
    Entries by segment number, in memory as on disk. One thread at a time.

    Args:
        fs: the file system.
        root: the store's directory.
        entries: the content of the file.
    """

    def __init__(self, fs: FileSystem, root: str, entries: Iterable[DroppedSegment] = ()) -> None:
        self._fs = fs
        self._path = f"{root}/{DROP_LEDGER}"
        self._entries = {entry.seq: entry for entry in entries}
        self._is_sure = True
        """Whether the file is durable; not after a sync that failed after the rename."""

    @classmethod
    def load(cls, fs: FileSystem, root: str, observer: Observer) -> DropLedger:
        """
        Return the ledger of the store at *root*; an empty one if the file does not exist.

        A damaged ledger is copied to quarantine and replaced by an empty one. Its segments that still exist are kept
        until policy drops them again. For those that were deleted, subscribers in other processes do not learn why.

        Raises:
            OSError: it cannot be read, or its copy cannot be written.
        """
        path = f"{root}/{DROP_LEDGER}"
        if not fs.exists(path):
            return cls(fs, root)
        data = fs.read_all(path, size_max=DROP_LEDGER_BYTES_MAX)
        answer = decode_drop_ledger(memoryview(data))
        if isinstance(answer, Frame):
            # Its writer may have ended before its name was durable, and the segments in it are about to be deleted.
            fs.sync_dir(root)
            return cls(fs, root, answer.value)
        observer.event("quiver.drops.load", level=logging.ERROR, path=path, problem="damaged; a copy is kept")
        observer.count("quiver.recovery.damaged_files_total", kind="drop_ledger")
        keep_damaged(fs, f"{root}/{QUARANTINE_DIR}", DROP_LEDGER, data)
        remove_durably(fs, [path])
        return cls(fs, root)

    @property
    def entries(self) -> list[DroppedSegment]:
        """All entries, ascending by number."""
        return [self._entries[seq] for seq in sorted(self._entries)]

    @property
    def highest(self) -> int:
        """The highest segment number in it, -1 if it is empty: new segments get higher numbers."""
        return max(self._entries, default=-1)

    def __contains__(self, seq: int) -> bool:
        return seq in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def has_room(self, count: int) -> bool:
        """Return whether *count* more entries fit."""
        return len(self._entries) + count <= DROP_ENTRIES_MAX

    def add(self, entries: Sequence[DroppedSegment]) -> None:
        """
        Add entries. The complete ledger is durable on return.

        Raises:
            OSError: the disk refused. Nothing may be dropped until a later call succeeds. Entries that are in the
                ledger nevertheless reached the file, and the next open of the store applies them.
        """
        grown = self._entries | {entry.seq: entry for entry in entries}
        if self._is_sure and len(grown) == len(self._entries):
            return
        data = encode_drop_ledger(list(grown.values()))
        try:
            replace_file(self._fs, self._path, data)
        except OSError:
            if self._reads(data):
                self._entries, self._is_sure = grown, False
            raise
        self._entries, self._is_sure = grown, True

    def _reads(self, data: bytes) -> bool:
        try:
            return self._fs.read_all(self._path, size_max=DROP_LEDGER_BYTES_MAX) == data
        except OSError:
            return False

    def remove(self, seqs: Iterable[int]) -> None:
        """
        Remove entries. Durable on return; the last entry removes the file.

        Raises:
            OSError: the disk refused; the entries stay, and can be removed later.
        """
        removed = set(seqs)
        left = {seq: entry for seq, entry in self._entries.items() if seq not in removed}
        if len(left) == len(self._entries):
            return
        if left:
            replace_file(self._fs, self._path, encode_drop_ledger(list(left.values())))
        else:
            remove_durably(self._fs, [self._path])
        self._entries, self._is_sure = left, True
