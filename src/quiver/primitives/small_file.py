"""
Small files that are read completely and decoded, with one wording for everything that can be wrong with them.

====================  ============================================================  =========================
function              a missing file                                                a damaged file
====================  ============================================================  =========================
`read_checked`        None                                                          `CorruptionError`
`read_if_valid`       None                                                          None
`read_bounded`        `FileNotFoundError`                                           returned as it is
`checked_value`       (takes the answer of a decoder instead of a path)             `CorruptionError`
====================  ============================================================  =========================
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

from quiver.errors import CorruptionError
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.findings import NO_FILE_ERRORS, no_file_reason, too_large_reason
from quiver.primitives.scan import Answer, Frame, as_damage

__all__ = ["checked_value", "read_bounded", "read_checked", "read_if_valid"]

T = TypeVar("T")

Decode = Callable[[memoryview], Answer[T]]


def read_checked(fs: FileSystem, path: str, decode: Decode[T], size_max: int) -> T | None:
    """
    Return the decoded contents of *path*, or None if the file is missing.

    Args:
        fs: the file system.
        path: the file.
        decode: the decoder of the format.
        size_max: no valid file is larger than this, in bytes.

    Raises:
        CorruptionError: the file is damaged, cut short or too large, or *path* is not a regular file.
        OSError: the disk could not be read.
    """
    try:
        data = read_bounded(fs, path, size_max)
    except FileNotFoundError:
        return None
    except NO_FILE_ERRORS as error:
        raise CorruptionError(path, 0, no_file_reason(error)) from error
    return checked_value(decode(memoryview(data)), path, len(data))


def read_if_valid(fs: FileSystem, path: str, decode: Decode[T], size_max: int) -> T | None:
    """
    Return the decoded contents of *path*, or None if the file is missing or damaged.

    For files that the caller can do without. Use `read_checked` for all others.

    Raises:
        OSError: the disk could not be read, *path* is not a regular file, or it is too large (EFBIG).
    """
    try:
        answer = decode(memoryview(fs.read_all(path, size_max=size_max)))
    except FileNotFoundError:
        return None
    return answer.value if isinstance(answer, Frame) else None


def read_bounded(fs: FileSystem, path: str, size_max: int) -> bytes:
    """
    Return the contents of *path*.

    Raises:
        CorruptionError: the file has more than *size_max* bytes.
        FileNotFoundError: it does not exist.
        OSError: the disk could not be read, or *path* is not a regular file.
    """
    try:
        return fs.read_all(path, size_max=size_max)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise CorruptionError(path, size_max, too_large_reason(size_max)) from error


def checked_value(answer: Answer[T], path: str, size_bytes: int) -> T:
    """
    Return the value that a decoder found in *path*, a file of *size_bytes*.

    Raises:
        CorruptionError: it found none: the file is damaged or cut short.
    """
    if isinstance(answer, Frame):
        return answer.value
    damage = as_damage(answer, size_bytes)
    raise CorruptionError(path, damage.offset, damage.reason)
