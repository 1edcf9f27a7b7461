"""
One owner per directory or subscriber, by a lock that the kernel releases when its holder dies.

There are no stale locks to break: what the file says is for people, only the kernel's lock counts.
"""

from __future__ import annotations

from quiver.errors import DirectoryInUse
from quiver.primitives.files import FileSystem, Lock

__all__ = ["hold"]

_NOTE_BYTES_MAX = 4096


def hold(fs: FileSystem, path: str, *, owner: str) -> Lock:
    """
    Take the exclusive lock *path*, created when missing. *owner* says in a few words who holds it.

    Raises:
        DirectoryInUse: another holds it; the message names its pid and owner.
        OSError: the lock file cannot be opened or written.
    """
    lock = fs.try_lock(path, note=owner)
    if lock is None:
        raise DirectoryInUse(path, _holder(fs, path))
    return lock


def _holder(fs: FileSystem, path: str) -> str:
    # The holder may be between taking the lock and writing its note, or be letting go right now.
    try:
        note = fs.read_all(path, size_max=_NOTE_BYTES_MAX)
    except OSError:
        note = b""
    return note.decode("utf-8", "replace").strip() or "another process"
