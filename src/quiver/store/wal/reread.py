"""Log entries, read again when the segment that they belong to is written."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import NamedTuple

from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import File, FileSystem
from quiver.store.format.wal_entry import CRC

__all__ = ["LogReader", "LogSpan"]

_LENGTH_BYTES = 4


class LogSpan(NamedTuple):
    """A file of the log: entries from stream position *start* to *end* are at file offset ``position - shift``."""

    path: str
    start: int
    end: int
    shift: int


class LogReader:
    """Reads the entries of one segment again. Used by one thread at a time, the one that writes the segment."""

    __slots__ = ("_fs", "_open", "end", "start")

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._open: list[tuple[LogSpan, File]] = []
        self.start = 0
        """Stream position of the first entry that will be read,"""
        self.end = 0
        """and the position after the last one; 0 if there is none."""

    def note(self, start: int, end: int) -> None:
        """Announce that the entry from *start* to *end* will be read; it comes after those announced before."""
        if not self.end:
            self.start = start
        self.end = end

    def open(self, spans: Sequence[LogSpan]) -> None:
        """
        Open the log files that have the segment's entries. Call it only while none of them can be renamed.

        Raises:
            OSError: one cannot be opened; then none is open.
        """
        self.close()
        try:
            for span in spans:
                self._open.append((span, self._fs.open_read(span.path)))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the files. `open` may be called again."""
        files, self._open = self._open, []
        for _, file in files:
            file.close()

    def entry(self, position: int, nbytes: int) -> memoryview:
        """
        Return the entry at stream *position*, which has *nbytes*, its checksum verified.

        Raises:
            OSError: it cannot be read, or (EIO) is not what was written. Opening the store again reports what is left.
        """
        for span, file in self._open:
            if span.start <= position < span.end:
                data = memoryview(file.pread(nbytes, position - span.shift))
                if len(data) == nbytes and CRC.unpack_from(data, nbytes - CRC.size)[0] == crc32(
                    data[_LENGTH_BYTES : -CRC.size]
                ):
                    return data
                raise OSError(errno.EIO, f"the entry at {position - span.shift} is not what was written", span.path)
        raise OSError(errno.EIO, f"no open file of the log has position {position}")
