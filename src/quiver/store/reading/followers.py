"""The bundles of a store as they are ingested or sealed, read from its files in any process."""

from __future__ import annotations

from collections.abc import Iterator

from quiver.bundle import OTAP, Adapter, Bundle
from quiver.errors import CorruptionError, UsageError
from quiver.primitives.disk.file_system import File, FileSystem
from quiver.store.format.names import WAL_DIR
from quiver.store.format.wal_entry import ENTRY_TYPE_BUNDLE
from quiver.store.reading.store_files import StoreFiles
from quiver.store.segment.info import SegmentInfo
from quiver.store.segment.reader import SegmentReader
from quiver.store.segment.tail import read_info
from quiver.store.wal.replay import FILE_BYTES_MAX, WalFileFound, decode_slots, find_wal_files
from quiver.store.wal.scan import ScannedEntry, WalFileScan, scan_wal_file

__all__ = ["LogFollower", "SegmentFollower"]

_HEADER_BYTES = 64 * 1024


class LogFollower:
    """
    Follows the log of the store at *root*: each `poll` yields what was ingested since the last one, in that order.

    Takes no lock and is not a subscriber: bundles that the log has discarded before a poll are skipped. Bundles that
    are not logged are read by `SegmentFollower`.

    Attributes:
        problems: damaged bytes and bundles that were skipped.

    Raises:
        UsageError: the store has no log.
    """

    def __init__(self, fs: FileSystem, root: str, *, adapter: Adapter = OTAP) -> None:
        self.problems: list[CorruptionError] = []
        self._fs = fs
        self._directory = f"{root}/{WAL_DIR}"
        self._adapter = adapter
        self._sequence_next = 0
        self._read_to: dict[int, int] = {}
        """The offset up to which each file was read, by the position in its header, which no other file has."""
        if not fs.exists(self._directory):
            raise UsageError(f"{root} has no log to follow; give the directory of a store")

    def skip_to_end(self) -> None:
        """Skip the bundles that the log has now."""
        for _ in self._entries():
            pass

    def poll(self) -> Iterator[Bundle]:
        """Yield the bundles since the last poll."""
        for scan, scanned in self._entries():
            try:
                batches = decode_slots(scanned.entry, path=scan.path, position=scanned.start)
            except CorruptionError as damage:
                self.problems.append(damage)
                continue
            yield Bundle(batches, ingested_at_ns=scanned.entry.ingested_at_ns, adapter=self._adapter)

    def _entries(self) -> Iterator[tuple[WalFileScan, ScannedEntry]]:
        found = find_wal_files(self._fs, self._directory)
        present = {one.position_start for one in found}
        self._read_to = {start: offset for start, offset in self._read_to.items() if start in present}
        for one in found:
            scan = self._scan(one)
            if scan is None:
                continue
            for scanned in scan.entries:
                if scanned.entry_type == ENTRY_TYPE_BUNDLE and scanned.sequence >= self._sequence_next:
                    self._sequence_next = scanned.sequence + 1
                    yield scan, scanned

    def _scan(self, found: WalFileFound) -> WalFileScan | None:
        """Scan what is new in one file, as if it followed the header directly."""
        if found.position_start is None:
            return None
        try:
            file = self._fs.open_read(found.path)
        except FileNotFoundError:
            return None  # rotated or deleted since the directory was listed
        try:
            head = scan_wal_file(memoryview(file.pread(_HEADER_BYTES, 0)), found.path).header
            if head is None or head.position_start != found.position_start:
                return None  # another file has this name now: the next poll reads both
            size = min(file.size(), FILE_BYTES_MAX)
            offset = self._read_to.get(head.position_start, head.header_size)
            scan = _scan_from(file, offset, head.header_size, size, found.path)
            if scan.damage and offset > head.header_size:
                # The writer has undone a failed append, and the new entries do not start at this offset.
                offset = head.header_size
                scan = _scan_from(file, offset, offset, size, found.path)
        finally:
            file.close()
        self.problems += scan.damage
        self._read_to[head.position_start] = offset + scan.tail_offset - head.header_size
        return scan


class SegmentFollower:
    """
    Follows the segments of the store at *root* whose bundles were never logged, as with ``durability: segment_only``:
    each `poll` yields the bundles of those that were sealed since the last one, in their order.

    Takes no lock and is not a subscriber: a segment that was deleted before a poll is skipped. A bundle that every
    subscriber has resolved before its segment is sealed is in no segment.

    Attributes:
        problems: damaged segments that were skipped.
    """

    def __init__(self, fs: FileSystem, root: str, *, adapter: Adapter = OTAP) -> None:
        self.problems: list[CorruptionError] = []
        self._fs = fs
        self._files = StoreFiles(fs, root)
        self._adapter = adapter
        self._next = 0

    def skip_to_end(self) -> None:
        """Skip the segments that there are now."""
        for _ in self._new():
            pass

    def poll(self) -> Iterator[Bundle]:
        """Yield the bundles of the segments since the last poll."""
        for number in self._new():
            path = self._files.segment_path(number)
            try:
                if not _is_unlogged(read_info(self._fs, path)):
                    continue
                reader = SegmentReader.open(self._fs, path)
            except FileNotFoundError:
                continue
            except CorruptionError as damage:
                self.problems.append(damage)
                continue
            try:
                yield from reader.bundles(0, reader.bundle_count, self._adapter)
            except CorruptionError as damage:
                self.problems.append(damage)
            finally:
                reader.close()

    def _new(self) -> Iterator[int]:
        for number in self._files.segments():
            if number >= self._next:
                self._next = number + 1
                yield number


def _is_unlogged(info: SegmentInfo) -> bool:
    """Return whether the bundles of a segment have no entries in the log: then its part of the log is empty."""
    start = info.wal_position_start
    return info.bundle_count > 0 and start is not None and start == info.wal_position_end


def _scan_from(file: File, offset: int, header_size: int, size: int, path: str) -> WalFileScan:
    header = file.pread(header_size, 0)
    return scan_wal_file(memoryview(header + file.pread(max(0, size - offset), offset)), path)
