"""
Copies one store while a writer may have it open, for `quiver.store.snapshots.snapshot`.

The writer continues meanwhile, so files are taken in this order::

    1  committed batches of Spark sinks   in `incoming/`: a batch that leaves it becomes a segment, which 4 then has
    1b early progress                     before 2 to 6: what it has as resolved is so in it, in 3 or in 6
    2  the log: the active file up to its last complete entry, then the retired files
    3  the cursor                         never ahead of what 2 has, or everything below it is sealed
    4  segments                           all that the cursor covers exist, or were deleted: every subscriber had them
    5  the drop ledgers                   everything that a policy dropped before 4 is named here, or in 6
    6  progress                           everything that was deleted before 4 is resolved here
    7  the number floor                   above every number that 4 and 6 name

8  retry sets                         bundles that 6 skips are in them, or were delivered since 9  dead letters
complete stores: a letter is durable before its original is acknowledged

Positions that consumers keep outside of the store (Spark checkpoints) are copied between 7 and 8: a batch is committed
only after its failed bundles are in 8 or 9.

A bundle sealed between 2 and 4 is in both; recovery recognizes it by its sequence number. A batch of a sink imported
between 1 and 4 is recognized by its inode and kept as a segment only. Progress may name a segment that was sealed after
4: that claim is withdrawn, because its bundles are in 2 and get another number. Segments of the early progress that 4
does not have get numbers above all others: the writer may have used higher ones before 6.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass, field

from quiver.errors import CorruptionError
from quiver.primitives.batch_notes import NOTE_BYTES_MAX, commit_name
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.copying import checksum_of, link_or_copy
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.scan import Frame
from quiver.primitives.small_file import read_if_valid
from quiver.settings import Profile
from quiver.store.cold.files import ColdFiles
from quiver.store.cores.instances import is_store
from quiver.store.format.cores import EVICTED
from quiver.store.format.cursor import decode_cursor, encode_cursor
from quiver.store.format.early_progress import (
    EARLY_BYTES_MAX,
    EarlyProgress,
    decode_early_progress,
    encode_early_progress,
)
from quiver.store.format.floor import encode_floor
from quiver.store.format.names import (
    AUDIT_PREVIOUS,
    AUDIT_TRAIL,
    CURSOR_NAME,
    DEAD_LETTER_DIR,
    DROP_LEDGER,
    EARLY_PROGRESS,
    QUARANTINE_DIR,
    SEGMENT_FLOOR,
    SEGMENTS_DIR,
    STORE_ID,
    WAL_ACTIVE,
    WAL_DIR,
    parse_retry_set_name,
    parse_wal_rotated_name,
    progress_name,
    segment_name,
    segment_numbers,
    skip_ledger_name,
)
from quiver.store.format.progress import Progress, decode_progress, encode_progress, progress_checksum
from quiver.store.format.sink_commit import INCOMING_DIR, decode_commit
from quiver.store.format.snapshot_list import SnapshotFile, is_listable
from quiver.store.reading.check import SMALL_FILE_BYTES_MAX
from quiver.store.reading.store_files import StoreFiles
from quiver.store.segment.reader import SegmentReader
from quiver.store.snapshots.early_numbers import renumbered
from quiver.store.staged_import import writer_commits
from quiver.store.subscribers.orphaned_progress import without_missing
from quiver.store.subscribers.progress_store import find_subscribers
from quiver.store.subscribers.state import SubscriberState
from quiver.store.wal.replay import FILE_BYTES_MAX
from quiver.store.wal.scan import WalFileScan, scan_wal_file

__all__ = ["Copied", "StoreCopy"]

_ATTEMPTS = 3
"""How often the active file is read when it appears damaged: a read may see a write that is half done."""


@dataclass(slots=True)
class Copied:
    """The contents of a snapshot or a restored store."""

    path: str
    files: int = 0
    size_bytes: int = 0
    linked_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    """The damaged or missing parts of the copy. A copy without notes has everything that was accepted."""
    remarks: list[str] = field(default_factory=list)
    """Information for the user that is not a problem."""


class StoreCopy:
    """
    The copy of one store; see the docstring of the module for the order and its reasons.

    Args:
        fs: the file system.
        root: the store's directory, without its cores.
        into: the new directory.
        done: where notes and linked bytes are added.

    Attributes:
        files: the copied files, relative to *into*.
    """

    def __init__(self, fs: FileSystem, root: str, into: str, done: Copied) -> None:
        self._fs = fs
        self._cold = ColdFiles(fs)
        self._root = root
        self._into = into
        self._done = done
        self.files: list[SnapshotFile] = []
        self._staged: dict[int, str] = {}
        """Inode of each staged segment that step 1 copied → its path."""
        self._next_seq: int | None = None
        """Above every segment that step 4 found; None when it found none."""
        self._floor = 0
        self._end = 0
        """The log position after everything that was copied."""

    def copy_store(self) -> None:
        """
        Run steps 1 to 7.

        Raises:
            OSError: the disk reported an error.
        """
        for directory in (WAL_DIR, SEGMENTS_DIR):
            self._fs.make_dirs(f"{self._into}/{directory}")
        self._committed_batches()
        early = self._early_progress()
        self._log()
        cursor = self._cursor()
        self._segments()
        if cursor is not None:
            # Not beyond the copied data: it may have passed segments that are deleted by now.
            self._write(f"{WAL_DIR}/{CURSOR_NAME}", encode_cursor(min(cursor, self._end)))
        for name in (DROP_LEDGER, EVICTED, AUDIT_TRAIL, AUDIT_PREVIOUS):
            self._small(name)
        for subscriber in find_subscribers(self._fs, self._root):
            self._small(skip_ledger_name(subscriber))
            self._progress(progress_name(subscriber))
        self._write_floor()
        if early.segments:
            early = renumbered(early, self._floor, segment_numbers(self._fs.list_dir(f"{self._into}/{SEGMENTS_DIR}")))
            self._write(EARLY_PROGRESS, encode_early_progress(early))
        self._quarantined()
        self._small(STORE_ID)

    def copy_undelivered(self) -> None:
        """
        Run steps 8 and 9.

        Raises:
            OSError: the disk reported an error.
        """
        for name in self._names(""):
            if parse_retry_set_name(name) is not None:
                self._small(name)
        for exporter in self._names(DEAD_LETTER_DIR):
            below = f"{DEAD_LETTER_DIR}/{exporter}"
            if not is_store(self._fs, f"{self._root}/{below}"):
                continue
            nested = StoreCopy(self._fs, f"{self._root}/{below}", f"{self._into}/{below}", self._done)
            nested.copy_store()
            nested.copy_undelivered()
            self._add(below, nested.files)

    def _add(self, below: str, files: Iterable[SnapshotFile]) -> None:
        self.files += [SnapshotFile(f"{below}/{file.path}", file.size_bytes, file.crc32) for file in files]

    def _names(self, directory: str) -> list[str]:
        path = f"{self._root}/{directory}".rstrip("/")
        try:
            return self._fs.list_dir(path)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _read(self, name: str) -> bytes | None:
        try:
            return self._fs.read_all(f"{self._root}/{name}", size_max=SMALL_FILE_BYTES_MAX)
        except FileNotFoundError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        replace_file(self._fs, f"{self._into}/{name}", data)
        self.files.append(SnapshotFile(name, len(data), crc32(data)))

    def _small(self, name: str) -> None:
        data = self._read(name)
        if data is not None:
            self._write(name, data)

    # 1.

    def _committed_batches(self) -> None:
        for writer in self._names(INCOMING_DIR):
            below = f"{INCOMING_DIR}/{writer}"
            for batch in writer_commits(self._fs, f"{self._root}/{below}"):
                self._committed(below, f"{below}/{commit_name(batch)}")

    def _committed(self, below: str, name: str) -> None:
        """Copy one commit and the remaining files of its batch; missing ones have become segments."""
        try:
            data = self._fs.read_all(f"{self._root}/{name}", size_max=NOTE_BYTES_MAX)
        except FileNotFoundError:
            return
        answer = decode_commit(memoryview(data))
        if isinstance(answer, Frame):
            for part in answer.value.parts:
                self._staged_segment(f"{below}/{part}")
        else:
            self._done.notes.append(f"{self._root}/{name} is damaged: the batch that it commits is not in the copy")
        self._fs.make_dirs(f"{self._into}/{below}")
        self._write(name, data)

    def _staged_segment(self, name: str) -> None:
        source, into = f"{self._root}/{name}", f"{self._into}/{name}"
        try:
            inode = self._fs.stat(source).inode
            self._fs.make_dirs(posixpath.dirname(into))
            linked = link_or_copy(self._fs, source, into, mode=0o440)
        except FileNotFoundError:
            return
        if self._complete(source, into) is not None:
            self._list_segment(name, linked=linked)
            self._staged[inode] = name

    def _drop_staged(self, inode: int) -> None:
        """Forget a staged segment that was imported meanwhile: it is among the segments, under its number."""
        name = self._staged.pop(inode, None)
        if name is not None:
            self._fs.remove(f"{self._into}/{name}")
            self.files = [file for file in self.files if file.path != name]

    def _complete(self, source: str, into: str) -> int | None:
        """Return the log position that the segment *into* covers; None where it is damaged, and removed."""
        try:
            reader = SegmentReader.open(self._fs, into)
        except CorruptionError as damage:
            # It could not be restored, and would make the snapshot invalid.
            known = CorruptionError(source, damage.offset, damage.reason)  # with the path for the operator
            self._done.notes.append(f"left out: {known}")
            self._fs.remove(into)
            return None
        end = reader.info.wal_position_end or 0
        reader.close()
        return end

    def _list_segment(self, name: str, *, linked: bool) -> None:
        size = self._fs.stat(f"{self._into}/{name}").size_bytes
        self._done.linked_bytes += size if linked else 0
        self.files.append(SnapshotFile(name, size, None))

    def _early_progress(self) -> EarlyProgress:
        path = f"{self._root}/{EARLY_PROGRESS}"
        found = read_if_valid(self._fs, path, decode_early_progress, EARLY_BYTES_MAX)
        return found or EarlyProgress()

    # 2.

    def _log(self) -> None:
        active = self._active()
        starts: list[int] = []
        directory = f"{self._root}/{WAL_DIR}"
        for name in self._fs.list_dir(directory) if self._fs.exists(directory) else []:
            if parse_wal_rotated_name(name) is None:
                continue
            path, into = f"{directory}/{name}", f"{self._into}/{WAL_DIR}/{name}"
            try:
                linked = link_or_copy(self._fs, path, into)
            except FileNotFoundError:
                continue  # purged meanwhile: segments contain all of it
            size, crc = checksum_of(self._fs, into)
            self._done.linked_bytes += size if linked else 0
            self.files.append(SnapshotFile(f"{WAL_DIR}/{name}", size, crc))
            scan = self._scan(into)
            self._note(scan)
            if scan.header is not None and scan.header_valid:
                starts.append(scan.header.position_start)
                self._end = max(self._end, scan.position_end)
        if active is None:
            return
        data, scan = active
        if scan.header is None or (scan.header_valid and any(start >= scan.header.position_start for start in starts)):
            return  # empty, or retired since it was read: then it is one of the others, or was purged
        self._note(scan)
        self._end = max(self._end, scan.position_end)
        self._write(f"{WAL_DIR}/{WAL_ACTIVE}", data[: scan.tail_offset])

    def _active(self) -> tuple[bytes, WalFileScan] | None:
        best: tuple[bytes, WalFileScan] | None = None
        path = f"{self._root}/{WAL_DIR}/{WAL_ACTIVE}"
        for _ in range(_ATTEMPTS):
            try:
                data = self._fs.read_all(path, size_max=FILE_BYTES_MAX)
            except FileNotFoundError:
                continue  # between the two renames of a rotation
            scan = scan_wal_file(memoryview(data), path)
            if best is None or len(scan.damage) < len(best[1].damage):
                best = data, scan
            if not scan.damage:
                break
        return best

    def _scan(self, path: str) -> WalFileScan:
        return scan_wal_file(memoryview(self._fs.read_all(path, size_max=FILE_BYTES_MAX)), path)

    def _note(self, scan: WalFileScan) -> None:
        self._done.notes += [f"{damage.path} at byte {damage.offset}: {damage.reason}" for damage in scan.damage]

    # 3. and 4.

    def _cursor(self) -> int | None:
        path = f"{self._root}/{WAL_DIR}/{CURSOR_NAME}"
        return read_if_valid(self._fs, path, decode_cursor, SMALL_FILE_BYTES_MAX)

    def _segments(self) -> None:
        directory = f"{self._root}/{SEGMENTS_DIR}"
        names = self._cold.list_dir(directory) if self._fs.exists(directory) else []
        seqs = segment_numbers(names)
        if seqs:
            self._next_seq = self._floor = seqs[-1] + 1
        for name in map(segment_name, seqs):
            source, into = f"{directory}/{name}", f"{self._into}/{SEGMENTS_DIR}/{name}"
            inode = None
            try:
                inode = self._cold.stat(source).inode
                linked = link_or_copy(self._fs, source, into, mode=0o440)
            except FileNotFoundError:
                # Resolved by every subscriber, or dropped by a policy: step 5 or 6 has that. Or it is only in the
                # object tier.
                if not self._from_tier(directory, name, into):
                    continue
                linked = False
            end = self._complete(source, into)
            if end is None:
                continue
            self._end = max(self._end, end)
            self._list_segment(f"{SEGMENTS_DIR}/{name}", linked=linked)
            if inode is not None:
                self._drop_staged(inode)

    def _from_tier(self, directory: str, name: str, path: str) -> bool:
        """
        Copy a segment that is only in the object tier: a snapshot must be complete. Return False when it is missing
        there, too.
        """
        try:
            data = self._cold.map_read(f"{directory}/{name}").view()
        except FileNotFoundError:
            return False
        except CorruptionError as damage:
            self._done.notes.append(f"left out: {damage}")
            return False
        replace_file(self._fs, path, data, mode=0o440)
        return True

    # 6. and 7.

    def _progress(self, name: str) -> None:
        data = self._read(name)
        if data is None:
            return
        view = memoryview(data)
        answer = decode_progress(view)
        if not isinstance(answer, Frame):
            self._done.notes.append(f"{self._root}/{name} is damaged")
            self._write(name, data)
            return
        progress = answer.value
        self._floor = max(self._floor, SubscriberState.from_progress(progress).named_max + 1)
        taken_back = without_missing(self._fs, self._into, _within(progress, self._next_seq))
        if taken_back != progress:
            profile: Profile = "otap" if progress_checksum(view) == "crc32" else "spec"
            data = encode_progress(taken_back, profile=profile)
        self._write(name, data)

    def _write_floor(self) -> None:
        known = StoreFiles(self._fs, self._root).floor()
        self._floor = max(self._floor, known.value)
        with contextlib.suppress(FileNotFoundError):
            found = segment_numbers(self._cold.list_dir(f"{self._root}/{SEGMENTS_DIR}"))
            self._floor = max([self._floor, *(seq + 1 for seq in found)])
        self._write(f"{SEGMENTS_DIR}/{SEGMENT_FLOOR}", encode_floor(self._floor, skipped=known.skipped))

    def _quarantined(self) -> None:
        """Copy the files in quarantine: their data was accepted, and some of it may still be recovered manually."""
        for name in self._names(QUARANTINE_DIR):
            source, into = f"{self._root}/{QUARANTINE_DIR}/{name}", f"{self._into}/{QUARANTINE_DIR}/{name}"
            if not is_listable(name):
                self._done.notes.append(f"left out: {source} is not a name that a store uses")
                continue
            self._fs.make_dirs(posixpath.dirname(into))
            try:
                linked = link_or_copy(self._fs, source, into)
                size, crc = checksum_of(self._fs, into)
            except FileNotFoundError:
                continue  # removed manually
            except IsADirectoryError:
                self._done.notes.append(f"left out: {source} is a directory")
                with contextlib.suppress(FileNotFoundError):
                    self._fs.remove(into)
                continue
            self._done.linked_bytes += size if linked else 0
            self.files.append(SnapshotFile(f"{QUARANTINE_DIR}/{name}", size, crc))


def _within(progress: Progress, next_seq: int | None) -> Progress:
    """Return *progress* without its claims about segments from *next_seq* on."""
    if next_seq is None:
        return progress
    entries = {seq: entry for seq, entry in progress.entries.items() if seq < next_seq}
    return Progress(min(progress.oldest_incomplete, next_seq), entries)
