"""
Rotation of the log files of child processes.

A child and its own children have the log open for appending and cannot switch to another file. So the content is
copied, and the file is truncated::

    ingest.log ─copied─▶ ingest.log.1 ─▶ ingest.log.2 ─▶ ingest.log.3 ─▶ deleted      newest first
        └─ truncated; the child continues to append at its start
"""

from __future__ import annotations

from quiver.primitives.disk.file_system import File, FileSystem
from quiver.settings import MIB

__all__ = ["LOGS_KEPT", "LOG_BYTES_MAX", "keep_short"]

LOG_BYTES_MAX = 16 * MIB
LOGS_KEPT = 3

_STEP_BYTES = 4 * MIB
_ROUNDS_MAX = 8
"""A process that appends faster than the copy proceeds loses the lines of the last moment, and nothing older."""


def keep_short(fs: FileSystem, path: str, *, bytes_max: int = LOG_BYTES_MAX, kept: int = LOGS_KEPT) -> bool:
    """
    Rotate the log at *path* if it is longer than *bytes_max*; return whether it was.

    Lines that are appended during the copy are copied, too. Only a line that is written between the last copy and the
    truncation directly after it is lost.

    Args:
        fs: the file system.
        path: the log file; it need not exist.
        bytes_max: the maximum size of a log.
        kept: the number of old logs to keep.

    Raises:
        OSError: the disk refused, or is full: the log is unchanged.
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
        # From here on, a failure leaves some lines twice but loses none.
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
    """Copy the bytes of *log* after the first *copied* bytes; return the total number of copied bytes."""
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
