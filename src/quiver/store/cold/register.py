"""
The segments of an open store that the object tier has: the cold list, in memory and on disk.

An entry is on disk before its object is created and until the object is removed, so no object is ever forgotten. The
entry is `verified` on disk before the local file may be removed, and changed again before the object is::

    sent ──▶ object created, compared ──▶ verified ──▶ local file may be removed
    verified ──▶ segment finished or dropped: `sent` again ──▶ object removed ──▶ entry removed

A change is appended to the list. After many changes, and with the first one after opening, the list is written again.

A mark in the root is created after the list and removed before it: if only the mark exists, the list was lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quiver.errors import SettingsError
from quiver.invariant import invariant
from quiver.primitives.disk.atomic import remove_durably, replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.cold.location import load_cold_list, location_from_list, mark_path
from quiver.store.format.cold_list import (
    COLD_CHANGES_MAX,
    ColdChange,
    ColdList,
    ColdSegment,
    ColdState,
    encode_cold_changes,
    encode_cold_list,
)
from quiver.store.format.names import COLD_LIST, COLD_MARK, segment_name
from quiver.store.segment.info import SegmentInfo

__all__ = ["ColdRegister", "cold_segment", "info_of"]

_WHAT_TO_DO = (
    "it lists the segments that are only in the object tier. Open the store with cold.objects to rebuild it from the "
    f"objects, restore a copy of the file, or move it and {COLD_MARK} away to continue without those segments"
)


_CHANGES_MIN = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class _Written:
    """The file as this process wrote it: the checksum of its list, its length, and the number of changes."""

    crc32: int
    size_bytes: int
    changes: int


def _apply(entries: dict[int, ColdSegment], changes: Iterable[ColdChange]) -> None:
    for change in changes:
        if change.is_removal:
            entries.pop(change.entry.seq, None)
        else:
            entries[change.entry.seq] = change.entry


def cold_segment(info: SegmentInfo, checksum: int, state: ColdState) -> ColdSegment:
    """Return the entry of a segment whose file ends with *checksum*."""
    return ColdSegment(
        info.seq,
        info.size_bytes,
        checksum,
        info.bundle_count,
        _pair(info.wal_position_start, info.wal_position_end),
        _pair(info.sequence_first, info.sequence_last),
        _pair(info.ingested_min_ns, info.ingested_max_ns),
        state,
    )


def _pair(first: int | None, last: int | None) -> tuple[int, int] | None:
    return None if first is None or last is None else (first, last)


def info_of(entry: ColdSegment, directory: str) -> SegmentInfo:
    """Return the metadata of a segment that is only in the tier; its path is where the file would be."""
    wal, sequences, times = (pair or (None, None) for pair in (entry.wal, entry.sequences, entry.ingested_ns))
    return SegmentInfo(
        seq=entry.seq,
        path=f"{directory}/{segment_name(entry.seq)}",
        bundle_count=entry.bundle_count,
        size_bytes=entry.size_bytes,
        wal_position_start=wal[0],
        wal_position_end=wal[1],
        sequence_first=sequences[0],
        sequence_last=sequences[1],
        ingested_min_ns=times[0],
        ingested_max_ns=times[1],
    )


class ColdRegister:
    """
    The cold list of one store. Changed under the store's maintenance lock; reading needs no lock.

    Args:
        fs: the file system.
        directory: where the segments and the list are.
        location: of the objects, as in the list; empty if there never was a tier.
        entries: the entries of the list.
    """

    def __init__(
        self, fs: FileSystem, directory: str, location: Mapping[str, Any], entries: Iterable[ColdSegment] = ()
    ) -> None:
        self.location = location
        self.directory = directory
        self._fs = fs
        self._path = f"{directory}/{COLD_LIST}"
        self._mark = mark_path(directory)
        self._is_marked: bool | None = None
        self._written: _Written | None = None
        self._lock = threading.Lock()
        self._entries = {entry.seq: entry for entry in entries}
        self._unverified = {entry.seq for entry in self._entries.values() if entry.state != "verified"}
        self._changed: set[int] = set()

    @classmethod
    def load(cls, fs: FileSystem, directory: str, location: Mapping[str, Any] | None) -> ColdRegister:
        """
        Read the list in *directory*.

        Args:
            fs: the file system.
            directory: where the segments are.
            location: where objects are to be stored; None for the location in the list.

        Raises:
            CorruptionError: the list is damaged or missing. The tier may contain unknown segments, so the store must
                not be opened.
            SettingsError: its objects are at another location than *location*.
            OSError: the disk could not be read.
        """
        found = load_cold_list(fs, directory, consequence=_WHAT_TO_DO)
        if found is None:
            return cls(fs, directory, location or {})
        before, folder = location_from_list(found.location)
        if location is not None and found.entries:
            wanted, folder_wanted = location_from_list(location)
            if (str(before), folder) != (str(wanted), folder_wanted):
                raise SettingsError(
                    f"cold.objects is {wanted}, but objects of this store are in {before} below {folder}: "
                    "use that location until they are removed"
                )
        return cls(fs, directory, location or found.location, found.entries)

    def mark(self) -> None:
        """
        Create the mark if there is a list without one: an earlier version wrote the list, or a crash came in between.

        Raises:
            OSError: the disk reported an error; the store works without the mark.
        """
        with self._lock:
            if self._entries:
                self._make_mark()

    def get(self, seq: int) -> ColdSegment | None:
        """Return the entry of segment *seq*, or None."""
        return self._entries.get(seq)

    def is_verified(self, seq: int) -> bool:
        """Return whether the tier has segment *seq*, compared with the file and valid."""
        entry = self._entries.get(seq)
        return entry is not None and entry.state == "verified"

    def first_verified(self) -> ColdSegment | None:
        """Return any verified entry, or None."""
        with self._lock:
            return next((entry for entry in self._entries.values() if entry.state == "verified"), None)

    def entries(self) -> list[ColdSegment]:
        """Return all entries, ascending."""
        with self._lock:
            return [self._entries[seq] for seq in sorted(self._entries)]

    def unverified(self) -> list[ColdSegment]:
        """Return the entries that are not verified, ascending."""
        with self._lock:
            return [self._entries[seq] for seq in sorted(self._unverified)]

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: ColdSegment) -> None:
        """
        Add or replace an entry. Durable on return.

        Raises:
            OSError: the disk reported an error; the register is unchanged.
        """
        with self._lock:
            self._change([ColdChange(entry)])

    def replace_all(self, entries: Iterable[ColdSegment]) -> None:
        """
        Replace all entries by *entries*. Durable on return.

        Raises:
            OSError: the disk reported an error; the register is unchanged.
        """
        with self._lock:
            self._write({entry.seq: entry for entry in entries})

    def drop(self, seqs: Iterable[int]) -> None:
        """
        Remove entries whose objects were removed. Durable on return.

        Raises:
            OSError: the disk reported an error; the register is unchanged.
        """
        removed = set(seqs)
        with self._lock:
            is_needed = any(self.is_verified(seq) for seq in removed)
            invariant(not is_needed, "the list keeps the entry of every object that exists")
            known = (self._entries.get(seq) for seq in sorted(removed))
            self._change([ColdChange(entry, is_removal=True) for entry in known if entry is not None])

    def mark_unverified(self, seqs: Iterable[int], state: ColdState = "sent") -> None:
        """Mark deleted segments as unverified, so that their objects can be removed. Durable after the next `keep`."""
        with self._lock:
            for seq in seqs:
                entry = self._entries.get(seq)
                if entry is not None and entry.state != state:
                    self._entries[seq] = dataclasses.replace(entry, state=state)
                    self._unverified.add(seq)
                    self._changed.add(seq)

    def keep(self) -> None:
        """
        Make all changes durable. Costs nothing without changes.

        Raises:
            OSError: the disk reported an error; call again.
        """
        with self._lock:
            if self._changed:
                self._change([])

    def _change(self, changes: Sequence[ColdChange]) -> None:
        """Make *changes*, and those of `mark_unverified`, durable: at the end of the file, or in a new one."""
        wanted = [ColdChange(self._entries[seq]) for seq in sorted(self._changed)] + list(changes)
        after = {change.entry.seq: change for change in wanted}
        removed = sum(change.is_removal for change in after.values())
        written = self._written
        is_last = removed == len(self._entries)
        if is_last or written is None or self._is_due(written, len(wanted)) or not self._append(written, wanted):
            entries = dict(self._entries)
            _apply(entries, wanted)
            self._write(entries)
            return
        _apply(self._entries, wanted)
        self._changed.clear()
        for change in wanted:
            if change.is_removal or change.entry.state == "verified":
                self._unverified.discard(change.entry.seq)
            else:
                self._unverified.add(change.entry.seq)

    def _append(self, written: _Written, changes: Sequence[ColdChange]) -> bool:
        """Append *changes* to the file, durably; return False if it is not the one that this process wrote."""
        self._written = None  # after an error the end of the file is unknown: the next call writes a new one
        data = encode_cold_changes(changes, number=written.changes + 1, list_crc32=written.crc32)
        try:
            file = self._fs.open_write(self._path)
        except FileNotFoundError:
            return False
        with contextlib.closing(file):
            if file.size() != written.size_bytes:
                return False
            file.pwrite(data, written.size_bytes)
            file.sync_data()
        self._written = _Written(written.crc32, written.size_bytes + len(data), written.changes + len(changes))
        return True

    def _is_due(self, written: _Written, more: int) -> bool:
        """Return whether to write the list again: after so many changes that the cost for each of them is small."""
        return written.changes + more > min(max(_CHANGES_MIN, len(self._entries)), COLD_CHANGES_MAX)

    def _write(self, entries: dict[int, ColdSegment]) -> None:
        self._written = None
        if entries:
            data = encode_cold_list(ColdList(self.location, tuple(entries.values())))
            replace_file(self._fs, self._path, data)
            self._make_mark()
            self._written = _Written(int.from_bytes(data[-4:], "little"), len(data), 0)
        else:
            # The mark first: a mark without a list means that the list was lost.
            remove_durably(self._fs, [self._mark])
            self._is_marked = False
            remove_durably(self._fs, [self._path])
        self._entries = entries
        self._unverified = {seq for seq, entry in entries.items() if entry.state != "verified"}
        self._changed = set()

    def _make_mark(self) -> None:
        if self._is_marked is None:
            self._is_marked = self._fs.exists(self._mark)
        if not self._is_marked:
            replace_file(self._fs, self._mark, COLD_LIST.encode() + b"\n")
            self._is_marked = True
