"""
Which segments of an open store the object tier has: the cold list, in memory and on disk.

An entry is on disk before its object is made and after it is gone, so no object is ever forgotten; it says `verified`
on disk before the local file may go, and nothing else before the object does::

    sent ──▶ object made, read back ──▶ verified ──▶ local file may go
    verified ──▶ segment finished or given up: `sent` again ──▶ object removed ──▶ entry removed

A mark in the root is made after the list and goes before it: where it is alone the list was lost.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from quiver.errors import SettingsError
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
    "it says which segments only the object tier has. Open the store with cold.objects to make it anew from the "
    f"objects, put a copy of the file back, or move it and {COLD_MARK} away to go on without those segments"
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
    """Return what the store keeps in mind of a segment that only the tier has; its path is where it would lie."""
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
    The cold list of one store. It is changed under the store's maintenance lock, and may be asked without.

    Args:
        fs: the file system.
        directory: where the segments are, and the list.
        location: what the list says of where the objects are; empty where no tier is set, and none was.
        entries: what it says of them.
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
        Return what the list in *directory* says.

        Args:
            fs: the file system.
            directory: where the segments are.
            location: where objects are to be; None as the list says.

        Raises:
            CorruptionError: it cannot be read, or was lost. Segments may lie in the tier that nobody knows of: nothing
            may be
                opened.
            SettingsError: its objects lie elsewhere than *location*.
            OSError: the disk says so.
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
                    "give that location until they are gone"
                )
        return cls(fs, directory, location or found.location, found.entries)

    def mark(self) -> None:
        """
        Make the mark where there is a list and no mark: it is older than marks are, or a crash came between the two.

        Raises:
            OSError: the disk refused; nothing is the worse for it.
        """
        with self._lock:
            if self._entries:
                self._make_mark()

    def get(self, seq: int) -> ColdSegment | None:
        """Return the entry of segment *seq*, or None."""
        return self._entries.get(seq)

    def is_verified(self, seq: int) -> bool:
        """Say whether the tier has segment *seq*, read back and found right."""
        entry = self._entries.get(seq)
        return entry is not None and entry.state == "verified"

    def entries(self) -> list[ColdSegment]:
        """Return all entries, ascending."""
        with self._lock:
            return [self._entries[seq] for seq in sorted(self._entries)]

    def unverified(self) -> list[ColdSegment]:
        """Return the entries that nobody may rely on, ascending."""
        with self._lock:
            return [self._entries[seq] for seq in sorted(self._unverified)]

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: ColdSegment) -> None:
        """
        Add or replace an entry. Durable on return.

        Raises:
            OSError: the disk refused; the register is as it was.
        """
        with self._lock:
            self._write(self._entries | {entry.seq: entry})

    def replace_all(self, entries: Iterable[ColdSegment]) -> None:
        """
        Make *entries* all there is. Durable on return.

        Raises:
            OSError: the disk refused; the register is as it was.
        """
        with self._lock:
            self._write({entry.seq: entry for entry in entries})

    def drop(self, seqs: Iterable[int]) -> None:
        """
        Remove entries whose objects are gone. Durable on return.

        Raises:
            OSError: the disk refused; the register is as it was.
        """
        gone = set(seqs)
        with self._lock:
            self._write({seq: entry for seq, entry in self._entries.items() if seq not in gone})

    def leave(self, seqs: Iterable[int], state: ColdState = "sent") -> None:
        """Say of segments that are no more that nobody relies on their objects. Durable after the next `keep`."""
        with self._lock:
            for seq in seqs:
                entry = self._entries.get(seq)
                if entry is not None and entry.state != state:
                    self._entries[seq] = dataclasses.replace(entry, state=state)
                    self._unverified.add(seq)
                    self._is_dirty = True

    def keep(self) -> None:
        """
        Make everything durable that was said. Costs nothing when there was nothing.

        Raises:
            OSError: the disk refused; call again.
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
            # The mark first: alone it says that the list was lost.
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
