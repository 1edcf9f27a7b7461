"""Distinguish conditions that pass, such as a full disk or a lack of descriptors, from a broken disk."""

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
"""The space that `require_room` leaves on a disk."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})


def is_full_disk(error: BaseException | None) -> bool:
    """Return whether *error* means lack of space: a full disk, the quota, or the file-size limit."""
    return isinstance(error, OSError) and error.errno in _FULL


def is_out_of_descriptors(error: BaseException | None) -> bool:
    """Return whether *error* means that this process, or this machine, may open no more files. No file was changed."""
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def passes(error: BaseException | None) -> bool:
    """Return whether the same call may succeed later: the disk is full, or no file can be opened now."""
    return is_full_disk(error) or is_out_of_descriptors(error)


def what_is_short(error: OSError, directory: str | None = None) -> str:
    """Describe an *error* that passes, in a few human-readable words. *directory* is the one of the file."""
    if error.errno == errno.EMFILE:
        return f"this process has no file descriptor left{f' for {directory}' if directory else ''} (ulimit -n)"
    if error.errno == errno.ENFILE:
        return f"this machine has no file descriptor left{f' for {directory}' if directory else ''} (fs.file-max)"
    return f"the disk{f' of {directory}' if directory else ''} is full"


def require_room(fs: FileSystem, directory: str, size: int, *, room_left: int = SMALL_FILES_BYTES) -> None:
    """
    Check that the disk of *directory* has space for *size* bytes and *room_left* more, for the small files without
    which a full disk could not be emptied. A file system that does not report its free space passes.

    Raises:
        OSError: ENOSPC, there is not enough space.
    """
    free = fs.free_bytes(directory)
    if 0 < free < size + room_left:
        reason = f"{free} bytes are left, too few for {size} bytes and {room_left} that stay free"
        raise OSError(errno.ENOSPC, reason, directory)
