"""Tell what passes by itself, a full disk or a lack of descriptors, from a broken disk, which does not."""

from __future__ import annotations

import errno

from quiver.primitives.disk.file_system import FileSystem

__all__ = [
    "SMALL_FILES_BYTES",
    "is_full_disk",
    "is_out_of_descriptors",
    "passes",
    "require_room",
    "what_is_short",
]

SMALL_FILES_BYTES = 64 * 1024
"""What `require_room` leaves of a disk."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})


def is_full_disk(error: BaseException | None) -> bool:
    """Say whether *error* means that there is no room: no space, no quota, or the file may not grow further."""
    return isinstance(error, OSError) and error.errno in _FULL


def is_out_of_descriptors(error: BaseException | None) -> bool:
    """Say whether *error* means that this process, or this machine, may open no more files. No file was touched."""
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def passes(error: BaseException | None) -> bool:
    """Say whether the same call may succeed later: the disk is full, or no file can be opened now."""
    return is_full_disk(error) or is_out_of_descriptors(error)


def what_is_short(error: OSError, directory: str | None = None) -> str:
    """Describe an *error* that passes, in a few words, for people. *directory* is what the file was for."""
    if error.errno == errno.EMFILE:
        return f"this process has no file descriptor left{f' for {directory}' if directory else ''} (ulimit -n)"
    if error.errno == errno.ENFILE:
        return f"this machine has no file descriptor left{f' for {directory}' if directory else ''} (fs.file-max)"
    return f"the disk{f' of {directory}' if directory else ''} is full"


def require_room(fs: FileSystem, directory: str, size: int, *, room_left: int = SMALL_FILES_BYTES) -> None:
    """
    Return when the disk of *directory* has room for *size* bytes and leaves *room_left*, for the small files without
    which a full disk could not be made emptier. A file system that does not say how much it has passes.

    Raises:
        OSError: ENOSPC, there is not so much room.
    """
    free = fs.free_bytes(directory)
    if 0 < free < size + room_left:
        reason = f"{free} bytes are left, too few for {size} bytes and {room_left} that stay free"
        raise OSError(errno.ENOSPC, reason, directory)
