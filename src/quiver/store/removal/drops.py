"""
The drop ledger on disk: what policy gave up, durable before any of it goes.

The steps of a drop, in this order; `Cleanup` takes them, after a crash again from the second on::

    1  the ledger names the segments                      crash before: nothing happened
    2  every progress that this process may write has them resolved
    3  the number floor                                   crash up to here: recovery finds ledger and files, goes on
    4  the files go
    5  catalog and registry forget them                   crash up to here: recovery finds the ledger, goes on with 2
    6  the ledger forgets what every progress file says

A segment that never had a file goes with the log: its entry takes effect, and 2 begins, when the cursor has passed it.
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
        entries: what the file says.
    """

    def __init__(self, fs: FileSystem, root: str, entries: Iterable[DroppedSegment] = ()) -> None:
        self._fs = fs
        self._path = f"{root}/{DROP_LEDGER}"
        self._entries = {entry.seq: entry for entry in entries}
        self._is_sure = True
        """Whether the file is durable as it is; not after a sync that failed behind the rename."""

    @classmethod
    def load(cls, fs: FileSystem, root: str, observer: Observer) -> DropLedger:
        """
        Return the ledger of the store at *root*; an empty one when there is none.

        A damaged one is copied to quarantine and begun anew: what it named and still exists is kept until policy
        drops it again; of what is gone, subscribers in other processes do not learn why.

        Raises:
            OSError: it cannot be read, or its copy cannot be written.
        """
        path = f"{root}/{DROP_LEDGER}"
        if not fs.exists(path):
            return cls(fs, root)
        data = fs.read_all(path, size_max=DROP_LEDGER_BYTES_MAX)
        answer = decode_drop_ledger(memoryview(data))
        if isinstance(answer, Frame):
            # Whoever wrote it may have ended before its name was durable, and what it names is about to go.
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
        """The highest number in it, -1 when empty: new segments lie above it."""
        return max(self._entries, default=-1)

    def __contains__(self, seq: int) -> bool:
        return seq in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def has_room(self, count: int) -> bool:
        """Say whether *count* more entries fit."""
        return len(self._entries) + count <= DROP_ENTRIES_MAX

    def add(self, entries: Sequence[DroppedSegment]) -> None:
        """
        Add entries. All that it has is durable on return.

        Raises:
            OSError: the disk refused. Nothing may be dropped until a later call returns; entries that it has all the
                same are in the file, and whoever opens the store next carries them out.
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
        Remove entries. Durable on return; the file goes with the last of them.

        Raises:
            OSError: the disk refused; they stay, and can be removed later.
        """
        gone = set(seqs)
        left = {seq: entry for seq, entry in self._entries.items() if seq not in gone}
        if len(left) == len(self._entries):
            return
        if left:
            replace_file(self._fs, self._path, encode_drop_ledger(list(left.values())))
        else:
            remove_durably(self._fs, [self._path])
        self._entries, self._is_sure = left, True
