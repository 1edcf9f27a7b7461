"""
The log files of child processes, kept short.

A child, and whatever it starts, has its log open for appending and cannot be told to open another. So what the file
holds is copied aside, and the file is emptied::

    ingest.log ─copied─▶ ingest.log.1 ─▶ ingest.log.2 ─▶ ingest.log.3 ─▶ gone      the newest in front
        └─ emptied; whoever appends goes on at its beginning
"""

from __future__ import annotations

from quiver.primitives.disk.file_system import File, FileSystem
from quiver.settings import MIB

__all__ = ["LOGS_KEPT", "LOG_BYTES_MAX", "keep_short"]

LOG_BYTES_MAX = 16 * MIB
LOGS_KEPT = 3

_STEP_BYTES = 4 * MIB
_ROUNDS_MAX = 8
"""Whoever appends faster than this is copied loses the lines of the last moment, and nothing older."""


def keep_short(fs: FileSystem, path: str, *, bytes_max: int = LOG_BYTES_MAX, kept: int = LOGS_KEPT) -> bool:
    """
    Copy the log at *path* aside and empty it, if it is longer than *bytes_max*; True when it was.

    What is appended meanwhile is copied, too; only a line that is written between the last copy and the emptying, which
    follow one another, is lost.

    Args:
        fs: the file system.
        path: of a file that is appended to; it need not be there.
        bytes_max: a log may be so long.
        kept: so many copies stay.

    Raises:
        OSError: the disk refused, or is full: the log is as it was.
    """
    if not fs.exists(path) or fs.stat(path).size_bytes <= bytes_max:
        return False
    aside = f"{path}.new"
    log = fs.open_write(path)
    copy = fs.create_or_truncate(aside, mode=0o644)
    try:
        copied = _copy(log, copy, 0)
        _shift(fs, path, kept)
        fs.rename(aside, f"{path}.1")
        # From here on a failure leaves lines twice, and none never.
        _copy(log, copy, copied)
        log.truncate(0)
    except OSError:
        if fs.exists(aside):
            fs.remove(aside)
        raise
    finally:
        copy.close()
        log.close()
    return True


def _copy(log: File, copy: File, copied: int) -> int:
    """Copy what *log* has behind *copied* bytes; return how many there are then."""
    for _ in range(_ROUNDS_MAX):
        size = log.size()
        if size == copied:
            break
        while copied < size:
            data = log.pread(min(_STEP_BYTES, size - copied), copied)
            copy.pwrite(data, copied)
            copied += len(data)
    return copied


def _shift(fs: FileSystem, path: str, kept: int) -> None:
    for number in range(kept, 1, -1):
        newer = f"{path}.{number - 1}"
        if fs.exists(newer):
            fs.rename(newer, f"{path}.{number}")
