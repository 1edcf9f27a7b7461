"""
The segments of an open store that the object tier has: the cold list, in memory and on disk.

An entry is on disk before its object is created and until the object is removed, so no object is ever forgotten. The
entry is `verified` on disk before the local file may be removed, and changed again before the object is::

    sent ──▶ object created, compared ──▶ verified ──▶ local file may be removed
    verified ──▶ segment finished or dropped: `sent` again ──▶ object removed ──▶ entry removed

A mark in the root is created after the list and removed before it: if only the mark exists, the list was lost.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from quiver.errors import SettingsError
from quiver.invariant import invariant
from quiver.primitives.disk.atomic import remove_durably, replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.cold.location import load_cold_list, location_from_list, mark_path
from quiver.store.format.cold_list import (
    ColdList,
    ColdSegment,
    ColdState,
    encode_cold_list,
)
from quiver.store.format.names import COLD_LIST, COLD_MARK, segment_name
from quiver.store.segment.info import SegmentInfo

__all__ = ["ColdRegister", "cold_segment", "info_of"]

_WHAT_TO_DO = (
    "it lists the segments that are only in the object tier. Open the store with cold.objects to rebuild it from the "
    f"objects, restore a copy of the file, or move it and {COLD_MARK} away to continue without those segments"
)


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
        self._lock = threading.Lock()
        self._entries = {entry.seq: entry for entry in entries}
        self._unverified = {entry.seq for entry in self._entries.values() if entry.state != "verified"}
        self._is_dirty = False

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
            self._write(self._entries | {entry.seq: entry})

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
            self._write({seq: entry for seq, entry in self._entries.items() if seq not in removed})

    def mark_unverified(self, seqs: Iterable[int], state: ColdState = "sent") -> None:
        """Mark deleted segments as unverified, so that their objects can be removed. Durable after the next `keep`."""
        with self._lock:
            for seq in seqs:
                entry = self._entries.get(seq)
                if entry is not None and entry.state != state:
                    self._entries[seq] = dataclasses.replace(entry, state=state)
                    self._unverified.add(seq)
                    self._is_dirty = True

    def keep(self) -> None:
        """
        Make all changes durable. Costs nothing without changes.

        Raises:
            OSError: the disk reported an error; call again.
        """
        with self._lock:
            if self._is_dirty:
                self._write(self._entries)

    def _write(self, entries: dict[int, ColdSegment]) -> None:
        if entries:
            data = encode_cold_list(ColdList(self.location, tuple(entries.values())))
            replace_file(self._fs, self._path, data)
            self._make_mark()
        else:
            # The mark first: a mark without a list means that the list was lost.
            remove_durably(self._fs, [self._mark])
            self._is_marked = False
            remove_durably(self._fs, [self._path])
        self._entries = entries
        self._unverified = {seq for seq, entry in entries.items() if entry.state != "verified"}
        self._is_dirty = False

    def _make_mark(self) -> None:
        if self._is_marked is None:
            self._is_marked = self._fs.exists(self._mark)
        if not self._is_marked:
            replace_file(self._fs, self._mark, COLD_LIST.encode() + b"\n")
            self._is_marked = True
