"""
A store's directory as a reader beside a live writer sees it: what is there now, and what of it is damaged.

Takes no lock and changes nothing. Whatever is listed may be gone when it is opened; that is never an error here.
"""

from __future__ import annotations

from collections.abc import Callable

from quiver.errors import CorruptionError
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.scan import Answer
from quiver.primitives.small_file import read_checked
from quiver.store.cold.files import ColdFiles, OpenTier
from quiver.store.format.cursor import decode_cursor
from quiver.store.format.floor import decode_floor
from quiver.store.format.names import (
    CURSOR_NAME,
    SEGMENT_FLOOR,
    SEGMENTS_DIR,
    WAL_ACTIVE,
    WAL_DIR,
    parse_wal_rotated_name,
)
from quiver.store.reading.store_files import StoreFiles
from quiver.store.segment.reader import SegmentReader
from quiver.store.segment.tail import SegmentTail, read_tail
from quiver.store.segment.verified import VerifiedSegments
from quiver.store.wal.replay import scan_file
from quiver.store.wal.scan import WalFileScan

__all__ = ["StoreDirectory"]

_SIDECAR_BYTES_MAX = 64 * 1024

_ATTEMPTS = 3
"""What looks like damage in the active file may be a write seen half done: it is read again this often."""


class StoreDirectory:
    """
    One store's directory.

    Args:
        root: the directory.
        fs: the file system.
        strict: raise at the first damage instead of collecting it.
        problems: where it is collected.
        verified: segments that need not be read for their checksum.
        open_tier: how to get to the objects of segments that only the object tier has; by default as the store's own
            list says.

    Attributes:
        problems: the damage met so far, each with path, offset and reason, none of them twice.
    """

    def __init__(
        self,
        root: str,
        *,
        fs: FileSystem,
        strict: bool,
        problems: list[CorruptionError] | None = None,
        verified: VerifiedSegments | None = None,
        open_tier: OpenTier | None = None,
    ) -> None:
        self.path = root
        self.problems: list[CorruptionError] = [] if problems is None else problems
        self._verified = VerifiedSegments() if verified is None else verified
        self._fs: FileSystem = ColdFiles(fs, open_tier=open_tier, on_damage=self.report)
        self._files = StoreFiles(self._fs, root)
        self._strict = strict

    def report(self, damage: CorruptionError) -> None:
        """
        Take note of damage.

        Raises:
            CorruptionError: that one, when the reader is strict.
        """
        if self._strict:
            raise damage
        told = {(known.path, known.offset, known.reason) for known in self.problems}
        if (damage.path, damage.offset, damage.reason) not in told:
            self.problems.append(damage)

    def segments(self) -> list[int]:
        """Return the numbers of the sealed segments, ascending."""
        return self._files.segments()

    def open_segment(self, seq: int) -> SegmentReader | None:
        """Return a reader of segment *seq*; None when it is gone, or damaged, which is reported."""
        try:
            return SegmentReader.open(self._fs, self._files.segment_path(seq), verified=self._verified)
        except FileNotFoundError:
            return None
        except CorruptionError as damage:
            self.report(damage)
            return None

    def segment_tail(self, seq: int) -> SegmentTail | None:
        """Return the end of segment *seq*; None when it is gone, or so odd that `open_segment` must say what it is."""
        try:
            return read_tail(self._fs, self._files.segment_path(seq))
        except (FileNotFoundError, CorruptionError):
            return None

    def forget(self, seq: int) -> None:
        """Take note that segment *seq* is gone."""
        self._verified.forget(self._files.segment_path(seq))

    def retired_logs(self) -> list[int]:
        """Return the numbers of the retired log files, ascending."""
        numbers = (parse_wal_rotated_name(name) for name in self._list(WAL_DIR))
        return sorted(number for number in numbers if number is not None)

    def scan_log(self, name: str) -> WalFileScan | None:
        """Return what the log file *name* holds; None when it is gone."""
        path = f"{self.path}/{WAL_DIR}/{name}"
        scan: WalFileScan | None = None
        for _ in range(_ATTEMPTS if name == WAL_ACTIVE else 1):
            try:
                again = scan_file(self._fs, path)
            except FileNotFoundError:
                # Renamed a moment ago, or purged because segments hold all of it.
                return scan
            if scan is None or len(again.damage) < len(scan.damage):
                scan = again
            if not again.damage:
                return again
        return scan

    def cursor(self) -> int:
        """Return the log position that segments reach to; 0 when that is not known."""
        return self._sidecar(f"{WAL_DIR}/{CURSOR_NAME}", decode_cursor)

    def floor(self) -> int:
        """Return the number that the next segment has at least; 0 when that is not known."""
        return self._sidecar(f"{SEGMENTS_DIR}/{SEGMENT_FLOOR}", decode_floor)

    def _list(self, directory: str) -> list[str]:
        try:
            return self._fs.list_dir(f"{self.path}/{directory}")
        except FileNotFoundError:
            return []

    def _sidecar(self, name: str, decode: Callable[[memoryview], Answer[int]]) -> int:
        # One that is missing or damaged only means more to look at.
        try:
            return read_checked(self._fs, f"{self.path}/{name}", decode, _SIDECAR_BYTES_MAX) or 0
        except CorruptionError as damage:
            self.report(damage)
            return 0
