"""
A store's directory as a reader sees it: its current files, and the damage found in them.

Takes no lock and changes nothing. A live writer may remove a file after it was listed; that is never an error here.
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
"""How often the active file is read when it appears damaged: a read may see a write that is half done."""


class StoreDirectory:
    """
    The directory of one store.

    Args:
        root: the directory.
        fs: the file system.
        strict: raise at the first damage instead of collecting it.
        problems: the list to collect damage in.
        verified: segments whose checksum need not be verified again.
        open_tier: opens the object tier, for segments that exist only there; by default at the location in the store's
            own list.

    Attributes:
        problems: the damage found so far, each with path, offset and reason, without duplicates.
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
        Record damage.

        Raises:
            CorruptionError: the same damage, if the reader is strict.
        """
        if self._strict:
            raise damage
        known = {(one.path, one.offset, one.reason) for one in self.problems}
        if (damage.path, damage.offset, damage.reason) not in known:
            self.problems.append(damage)

    def segments(self) -> list[int]:
        """Return the numbers of the sealed segments, ascending."""
        return self._files.segments()

    def open_segment(self, seq: int) -> SegmentReader | None:
        """Return a reader of segment *seq*; None when it was deleted, or is damaged, which is reported."""
        try:
            return SegmentReader.open(self._fs, self._files.segment_path(seq), verified=self._verified)
        except FileNotFoundError:
            return None
        except CorruptionError as damage:
            self.report(damage)
            return None

    def segment_tail(self, seq: int) -> SegmentTail | None:
        """
        Return the end of segment *seq*; None when it was deleted, or cannot be read this way: `open_segment` reports
        why.
        """
        try:
            return read_tail(self._fs, self._files.segment_path(seq))
        except (FileNotFoundError, CorruptionError):
            return None

    def forget(self, seq: int) -> None:
        """Forget that segment *seq* was verified, because it was deleted."""
        self._verified.forget(self._files.segment_path(seq))

    def retired_logs(self) -> list[int]:
        """Return the numbers of the retired log files, ascending."""
        numbers = (parse_wal_rotated_name(name) for name in self._list(WAL_DIR))
        return sorted(number for number in numbers if number is not None)

    def scan_log(self, name: str) -> WalFileScan | None:
        """Return the entries of the log file *name*; None when it was deleted."""
        path = f"{self.path}/{WAL_DIR}/{name}"
        scan: WalFileScan | None = None
        for _ in range(_ATTEMPTS if name == WAL_ACTIVE else 1):
            try:
                again = scan_file(self._fs, path)
            except FileNotFoundError:
                # It was just retired, or purged because segments contain all of it.
                return scan
            if scan is None or len(again.damage) < len(scan.damage):
                scan = again
            if not again.damage:
                return again
        return scan

    def cursor(self) -> int:
        """Return the log position that segments cover; 0 when it is unknown."""
        return self._sidecar(f"{WAL_DIR}/{CURSOR_NAME}", decode_cursor)

    def floor(self) -> int:
        """Return the lowest number that the next segment can have; 0 when it is unknown."""
        return self._sidecar(f"{SEGMENTS_DIR}/{SEGMENT_FLOOR}", decode_floor)

    def _list(self, directory: str) -> list[str]:
        try:
            return self._fs.list_dir(f"{self.path}/{directory}")
        except FileNotFoundError:
            return []

    def _sidecar(self, name: str, decode: Callable[[memoryview], Answer[int]]) -> int:
        # Without this value the reader only has to read more.
        try:
            return read_checked(self._fs, f"{self.path}/{name}", decode, _SIDECAR_BYTES_MAX) or 0
        except CorruptionError as damage:
            self.report(damage)
            return 0
