"""Files of a disk as damage and power cuts leave them."""

from __future__ import annotations

import struct
import zlib

from quiver.primitives.disk.file_system import FileSystem

_FILE_BYTES_MAX = 1 << 30


class PowerCut(BaseException):
    """The machine stops here. No handler of `Exception` runs."""


def read_file(fs: FileSystem, path: str) -> bytes:
    """Return the bytes of a file."""
    return fs.read_all(path, size_max=_FILE_BYTES_MAX)


def write_file(fs: FileSystem, path: str, data: bytes) -> None:
    """Replace a file durably. It is removed first, because a sealed segment cannot be opened for writing."""
    if fs.exists(path):
        fs.remove(path)
    file = fs.create(path)
    file.pwrite(data, 0)
    file.sync()
    file.close()
    fs.sync_dir(path.rpartition("/")[0])


def overwrite(fs: FileSystem, path: str, offset: int, data: bytes) -> None:
    """Write *data* at *offset* into an existing file durably."""
    file = fs.open_write(path)
    file.pwrite(data, offset)
    file.sync()
    file.close()


def with_crc32(body: bytes) -> bytes:
    """Return *body* with its checksum at the end."""
    return body + struct.pack("<I", zlib.crc32(body))


def with_new_crc32(data: bytes) -> bytes:
    """Return *data* with the checksum at its end computed again."""
    return with_crc32(data[:-4])
