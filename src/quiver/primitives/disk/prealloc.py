"""
Blocks before bytes: allocate space first, so that a full disk is an error here and not a signal later.

A mapped sparse file kills the process when the disk fills up; a log whose blocks already contain zeros syncs in
half the time of one that grows. Both start with one of these two calls.
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
    Allocate *length* bytes at *start*: on return, writing there cannot fail for lack of space.

    The file is at least ``start + length`` long; existing contents are unchanged, new bytes read as zeros. Nothing
    is durable until the file is synced. *on_unsupported* is for file systems that cannot reserve blocks:
    ``raise`` passes the error on, ``zeros`` writes zeros instead (only one writer meanwhile).

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
    Write *length* zeros at *start*, over any existing bytes. Not durable until the file is synced.

    Raises:
        OSError: the disk refused; some of the zeros may be there.
    """
    end = start + length
    while start < end:
        step = min(len(_ZEROS), end - start)
        file.pwrite(_ZEROS[:step], start)
        start += step


def _rewrite(file: File, start: int, end: int) -> None:
    # A hole inside the file has no blocks either; writing back the zeros that it reads as allocates some.
    while start < end:
        piece = file.pread(min(len(_ZEROS), end - start), start)
        file.pwrite(piece, start)
        start += len(piece)
