"""The bundles in the log that no segment contains yet, read while a writer may have the store open."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quiver.errors import CorruptionError
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.format.names import WAL_ACTIVE, wal_rotated_name
from quiver.store.format.wal_entry import ENTRY_TYPE_BUNDLE
from quiver.store.reading.directory import StoreDirectory
from quiver.store.reading.listing import find_segments
from quiver.store.segment.info import SegmentInfo
from quiver.store.wal.scan import ScannedEntry, WalFileScan

__all__ = ["LogFile", "sealed_and_logged", "snapshot_log", "uncovered"]


@dataclass(frozen=True, slots=True)
class LogFile:
    """
    The state of one log file during a pass.

    Attributes:
        path: the file.
        start: the position in its header; None when the header is damaged.
        end: the position after its last entry.
        first_sequence: the sequence of its first entry; infinite without entries.
        ends: the positions after each entry.
        entries: those that no segment contained when the file was read.
    """

    path: str
    start: int | None
    end: int
    first_sequence: float
    ends: frozenset[int]
    entries: list[ScannedEntry]

    def agrees_with(self, cursor: int, following: LogFile | None) -> bool:
        """
        Return whether the positions of this file and the cursor are consistent.

        A header has no checksum. With a wrong position, entries would seem older than the cursor and would be skipped.
        So the cursor must be the end of an entry, or the start of the next file.
        """
        if self.start is None:
            return False
        if cursor <= self.start or cursor in self.ends:
            return True
        return following is not None and following.start == self.end and cursor >= self.end


def snapshot_log(directory: StoreDirectory, *, sequence_sealed: int) -> list[LogFile]:
    """
    Return the log's files, oldest first, with their entries of a higher sequence than *sequence_sealed*.

    Damage is reported.
    """
    # The active file first: if it is retired meanwhile, the listing below has it under its new name.
    active = directory.scan_log(WAL_ACTIVE)
    files: list[LogFile] = []
    for number in directory.retired_logs():
        scan = directory.scan_log(wal_rotated_name(number))
        if scan is not None:
            files.append(_log_file(directory, scan, sequence_sealed))
            if scan.tail == "torn":
                directory.report(
                    CorruptionError(scan.path, scan.tail_offset, "the end of a retired file is not an entry")
                )
    if active is not None and _position_start(active) not in {file.start for file in files} - {None}:
        files.append(_log_file(directory, active, sequence_sealed))
    # The file that was read first may have been retired, purged and followed by others since. Sequences have a
    # checksum, positions do not. A file without entries keeps its place at the end.
    return sorted(files, key=lambda file: file.first_sequence)


def uncovered(log: list[LogFile], cursor: int) -> Iterator[tuple[str, ScannedEntry]]:
    """Yield the entries after *cursor*, each sequence once, with the path of its file."""
    seen: set[int] = set()
    for file, following in zip(log, [*log[1:], None], strict=False):
        covered_to = cursor if file.agrees_with(cursor, following) else 0
        for scanned in file.entries:
            if scanned.end > covered_to and scanned.sequence not in seen:
                seen.add(scanned.sequence)
                yield file.path, scanned


def sealed_and_logged(fs: FileSystem, root: str) -> tuple[Sequence[SegmentInfo], int]:
    """
    Return the segments of the store at *root*, and the number of bundles that are only in its log.

    A writer may have the store open.

    Raises:
        OSError: the files cannot be read.
    """
    directory = StoreDirectory(root, fs=fs, strict=False)
    # The log first: a bundle that is sealed in between is in both, and is recognized by its sequence.
    log = snapshot_log(directory, sequence_sealed=-1)
    cursor = directory.cursor()
    infos = find_segments(fs, root).infos
    sequence_sealed = max((info.sequence_last for info in infos if info.sequence_last is not None), default=-1)
    return infos, sum(scanned.sequence > sequence_sealed for _, scanned in uncovered(log, cursor))


def _position_start(scan: WalFileScan) -> int | None:
    return scan.header.position_start if scan.header is not None and scan.header_valid else None


def _log_file(directory: StoreDirectory, scan: WalFileScan, sequence_sealed: int) -> LogFile:
    for damage in scan.damage:
        directory.report(damage)
    entries = [
        scanned
        for scanned in scan.entries
        if scanned.entry_type == ENTRY_TYPE_BUNDLE and scanned.sequence > sequence_sealed
    ]
    ends = frozenset(scanned.end for scanned in scan.entries)
    sequences = (one.sequence for one in scan.entries if one.entry_type == ENTRY_TYPE_BUNDLE)
    first_sequence = next(sequences, math.inf)
    return LogFile(scan.path, _position_start(scan), scan.position_end, first_sequence, ends, entries)
