"""
Copies of complete files with their checksum, hard links for files that never change again, and
copies of damaged bytes, which are kept before anything is done about the damage.
"""

from __future__ import annotations

import contextlib

from quiver.primitives.checksum import crc32
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import Buffer, FileSystem

__all__ = ["checksum_of", "copy_file", "damaged_copy", "keep_as", "keep_damaged", "link_or_copy"]

_PIECE_BYTES = 4 * 1024 * 1024


def checksum_of(fs: FileSystem, path: str) -> tuple[int, int]:
    """Return the length and the CRC-32 of the file *path*, read in pieces."""
    crc = offset = 0
    file = fs.open_read(path)
    try:
        while piece := file.pread(_PIECE_BYTES, offset):
            crc = crc32(piece, crc)
            offset += len(piece)
    finally:
        file.close()
    return offset, crc


def copy_file(
    fs: FileSystem, source: str, target: str, *, size_max: int | None = None, mode: int = 0o600
) -> tuple[int, int]:
    """
    Copy the first *size_max* bytes of *source* (None: all), replacing *target*; return their number and CRC-32.

    The contents are durable on return; the name only after a sync of its directory. A crash halfway may leave an
    incomplete file: copy to a temporary name, or into a directory that does not count yet.
    """
    with contextlib.suppress(FileNotFoundError):
        fs.remove(target)  # a read-only one could not be opened for writing
    crc = offset = 0
    reading = fs.open_read(source)
    try:
        writing = fs.create(target)
        try:
            while True:
                left = _PIECE_BYTES if size_max is None else min(_PIECE_BYTES, size_max - offset)
                piece = reading.pread(left, offset)
                if not piece:
                    break
                writing.pwrite(piece, offset)
                crc = crc32(piece, crc)
                offset += len(piece)
            writing.set_mode(mode)
            writing.sync()
        finally:
            writing.close()
    finally:
        reading.close()
    return offset, crc


def link_or_copy(fs: FileSystem, source: str, target: str, *, mode: int = 0o600) -> bool:
    """
    Create *target*, or replace it, with the contents of *source*, which never changes again.

    Returns:
        True if it is the same file under a second name, False if it is a copy.

    Raises:
        FileNotFoundError: *source* does not exist.
        OSError: it could be neither linked nor copied.
    """
    with contextlib.suppress(FileNotFoundError):
        fs.remove(target)
    try:
        fs.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        # Another file system, or one without links.
        copy_file(fs, source, target, mode=mode)
        return False
    return True


def damaged_copy(directory: str, name: str, data: Buffer) -> str:
    """
    Return the path in *directory* of the copy of *data*, which was found damaged in a file *name*.

    Other bytes get another name, so that no copy replaces an earlier one.
    """
    return f"{directory}/{name}.{crc32(data):08x}.damaged"


def keep_damaged(fs: FileSystem, directory: str, name: str, data: Buffer) -> str:
    """
    Keep a copy of *data*, found damaged in a file *name*, in *directory*; return its path. Durable on return.

    The copy is made before anything is done about the damage: after a crash in between, the damage is found again, and
    the same bytes are kept once.

    Raises:
        OSError: there may be no copy: leave the damaged file as it is.
    """
    path = damaged_copy(directory, name, data)
    keep_as(fs, path, data)
    return path


def keep_as(fs: FileSystem, path: str, data: Buffer) -> None:
    """
    Keep *data* as the file *path*, whose name identifies the contents; an existing file stays. Durable on return.

    Raises:
        OSError: there may be no such file.
    """
    directory = path.rpartition("/")[0]
    if fs.exists(path):
        # A visible name may not be durable: an earlier run may have been killed between its rename and its sync.
        fs.sync_dir(directory)
        return
    fs.make_dirs(directory)
    replace_file(fs, path, data)
