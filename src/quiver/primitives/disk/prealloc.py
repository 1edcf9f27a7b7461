"""
Blocks before bytes: make room first, so that a full disk is an error here and not a signal later.

A mapped sparse file kills the process when the disk fills; a log whose blocks already hold zeros syncs in
half the time of one that grows. Both begin with one of these two calls.
"""

from __future__ import annotations

import errno
from typing import Literal

from quiver.primitives.disk.file_system import File

__all__ = ["reserve_blocks", "zero_fill"]

_ZEROS = memoryview(bytes(1 << 20))
_UNSUPPORTED = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


def reserve_blocks(file: File, start: int, length: int, *, on_unsupported: Literal["raise", "zeros"]) -> None:
    """
    Make room for *length* bytes at *start*: on return writing there cannot fail for lack of space.

    The file is at least ``start + length`` long; what was in it is unchanged, what is new reads as zeros. Nothing
    is durable until the file is synced. *on_unsupported* says what happens where the file system cannot
    reserve: ``raise`` passes its error on, ``zeros`` writes the room instead (one writer only meanwhile).

    Raises:
        OSError: ENOSPC, EFBIG and the like; ENOTSUP with ``raise``.
    """
    if length == 0:
        return
    try:
        file.reserve(start, length)
    except OSError as error:
        if on_unsupported == "raise" or error.errno not in _UNSUPPORTED:
            raise
    else:
        return
    _rewrite(file, start, min(start + length, file.size()))
    beyond = max(start, file.size())
    zero_fill(file, beyond, start + length - beyond)


def zero_fill(file: File, start: int, length: int) -> None:
    """
    Write *length* zeros at *start*, over whatever was there. Not durable until the file is synced.

    Raises:
        OSError: the disk refused; some of the zeros may be there.
    """
    end = start + length
    while start < end:
        step = min(len(_ZEROS), end - start)
        file.pwrite(_ZEROS[:step], start)
        start += step


def _rewrite(file: File, start: int, end: int) -> None:
    # A hole inside the file has no blocks either; writing back what it reads as gives it some.
    while start < end:
        piece = file.pread(min(len(_ZEROS), end - start), start)
        file.pwrite(piece, start)
        start += len(piece)
