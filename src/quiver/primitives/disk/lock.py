"""
One owner per directory or subscriber, by a lock that the kernel releases when its holder dies.

Stale locks cannot exist: the text in the file is for the operator, only the kernel's lock counts.
"""

from __future__ import annotations

from quiver.errors import DirectoryInUseError
from quiver.primitives.disk.file_system import FileSystem, Lock

__all__ = ["hold", "holder_of", "is_held"]

_KERNEL_LOCKS = "/proc/locks"
_KERNEL_LOCKS_BYTES_MAX = 16 * 1024 * 1024
_NOTE_BYTES_MAX = 4096


def hold(fs: FileSystem, path: str, *, owner: str) -> Lock:
    """
    Take the exclusive lock *path*, created if missing. *owner* is a short description of the holder.

    Raises:
        DirectoryInUseError: another holds it; the message names its pid and owner.
        OSError: the lock file cannot be opened or written.
    """
    lock = fs.try_lock(path, note=owner)
    if lock is None:
        raise DirectoryInUseError(path, holder_of(fs, path) or "another process")
    return lock


def holder_of(fs: FileSystem, path: str) -> str | None:
    """Return the note of the last holder of the lock *path*, or None. The lock may have been released since."""
    # The holder may be between taking the lock and writing its note, or may be releasing it.
    try:
        note = fs.read_all(path, size_max=_NOTE_BYTES_MAX)
    except OSError:
        return None
    return note.decode("utf-8", "replace").strip() or None


def is_held(fs: FileSystem, path: str) -> bool | None:
    """
    Return whether the lock *path* is held, without touching it; None if the system does not report it.

    Only Linux reports it, in a list of all locks. Trying the lock would also work, but an owner that starts at that
    very moment would be refused.
    """
    try:
        inode = fs.stat(path).inode
    except FileNotFoundError:
        return False
    try:
        listed = fs.read_all(_KERNEL_LOCKS, size_max=_KERNEL_LOCKS_BYTES_MAX).decode("ascii", "replace")
    except OSError:
        return None
    # 1: FLOCK  ADVISORY  WRITE 708 08:01:1234 0 EOF
    fields = (line.split() for line in listed.splitlines())
    return any(len(one) > 5 and one[1] == "FLOCK" and one[5].rpartition(":")[2] == str(inode) for one in fields)
