"""
The small files of a store, and the names of its segments, read from its directory in any process.

Takes no lock and changes nothing. A live writer may replace or remove each file at any time: every method reads the
current state and keeps none.
"""

from __future__ import annotations

from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.small_file import read_bounded, read_checked, read_if_valid
from quiver.store.format.cursor import decode_cursor
from quiver.store.format.drop_ledger import DROP_LEDGER_BYTES_MAX, DroppedSegment, decode_drop_ledger
from quiver.store.format.floor import Floor, decode_floor_file
from quiver.store.format.names import (
    CURSOR_NAME,
    DROP_LEDGER,
    QUARANTINE_DIR,
    SEGMENT_FLOOR,
    SEGMENTS_DIR,
    STORE_ID,
    WAL_DIR,
    segment_name,
    segment_numbers,
)
from quiver.store.format.progress import Progress
from quiver.store.segment.listing import list_segments
from quiver.store.subscribers.progress_store import find_subscribers, load_progress

__all__ = ["StoreFiles"]

_SMALL_FILE_BYTES_MAX = 64 * 1024


class StoreFiles:
    """
    The files of the store at *root*.

    Every method raises `OSError` when the disk cannot be read. A missing file is not an error.
    """

    def __init__(self, fs: FileSystem, root: str) -> None:
        self.fs = fs
        self.root = root
        self.segments_directory = f"{root}/{SEGMENTS_DIR}"

    def identity(self) -> str:
        """
        Return the identity of the store, or an empty string when it has none. It is not checked to be a UUID.

        Raises:
            CorruptionError: the file is too large to be an identity.
        """
        try:
            data = read_bounded(self.fs, f"{self.root}/{STORE_ID}", _SMALL_FILE_BYTES_MAX)
        except FileNotFoundError:
            return ""
        return data.decode("ascii", "replace").strip()

    def segments(self) -> list[int]:
        """Return the numbers of the sealed segments, ascending. See `list_segments` for what a live writer may add."""
        try:
            return list_segments(self.fs, self.segments_directory)
        except FileNotFoundError:
            return []

    def segment_path(self, seq: int) -> str:
        """Return the path of segment *seq*, whether or not the file exists."""
        return f"{self.segments_directory}/{segment_name(seq)}"

    def quarantined(self) -> list[int]:
        """Return the numbers of the segments in quarantine, ascending."""
        directory = f"{self.root}/{QUARANTINE_DIR}"
        return segment_numbers(self.fs.list_dir(directory)) if self.fs.exists(directory) else []

    def floor(self) -> Floor:
        """Return the lowest free segment number as stored; 0 when the file is missing or damaged."""
        path = f"{self.segments_directory}/{SEGMENT_FLOOR}"
        return read_if_valid(self.fs, path, decode_floor_file, _SMALL_FILE_BYTES_MAX) or Floor(0)

    def cursor(self) -> int:
        """Return the log position that the segments cover; 0 when the file is missing or damaged."""
        path = f"{self.root}/{WAL_DIR}/{CURSOR_NAME}"
        return read_if_valid(self.fs, path, decode_cursor, _SMALL_FILE_BYTES_MAX) or 0

    def drops(self, name: str = DROP_LEDGER) -> tuple[DroppedSegment, ...]:
        """
        Return the entries of the drop ledger, or of the file *name*, which has the same format.

        Raises:
            CorruptionError: the file is damaged.
        """
        return read_checked(self.fs, f"{self.root}/{name}", decode_drop_ledger, DROP_LEDGER_BYTES_MAX) or ()

    def subscribers(self) -> list[str]:
        """Return the ids of all subscribers that have a progress file, sorted."""
        return find_subscribers(self.fs, self.root)

    def progress(self, subscriber_id: str) -> Progress | None:
        """
        Return the progress of *subscriber_id*; None when it has no progress file.

        Raises:
            CorruptionError: the file is damaged; its contents are unknown.
            UnsupportedFormatError: a newer version wrote the file.
            UsageError: the id is not valid.
        """
        return load_progress(self.fs, self.root, subscriber_id)
