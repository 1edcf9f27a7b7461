r"""
The header of a write-ahead log file. Bytes only.

::

    0   10  magic                b"QUIVER\0WAL"
    10  u16 version              1
    12  u16 header_size          38; more in a future that only adds fields: they are skipped
    14  16  config_hash          digest of the adapter's slot table
    30  u64 wal_position_start   stream position of the first entry byte of this file

Entries follow at `header_size`. The header has no checksum: the first entry's checksum confirms it.
Positions count entry bytes only, so the byte at *offset* of the file has the position
``wal_position_start + offset - header_size``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "WAL_HEADER",
    "WAL_HEADER_BYTES",
    "WAL_MAGIC",
    "WAL_VERSION",
    "WalHeader",
    "decode_wal_header",
    "encode_wal_header",
]

WAL_MAGIC = b"QUIVER\0WAL"
WAL_VERSION = 1
WAL_HEADER = struct.Struct("<10sHH16sQ")
WAL_HEADER_BYTES = WAL_HEADER.size
_PREFIX = struct.Struct("<10sHH")


@dataclass(frozen=True, slots=True)
class WalHeader:
    """
    The start of a WAL file.

    Attributes:
        version: 1.
        header_size: bytes of the header in this file; entries start there.
        config_hash: 16 bytes; the log of another adapter has another hash.
        position_start: stream position of the first entry byte.
    """

    version: int
    header_size: int
    config_hash: bytes
    position_start: int

    def position(self, offset: int) -> int:
        """Return the stream position of the byte at *offset* of the file."""
        return self.position_start + offset - self.header_size


def encode_wal_header(config_hash: bytes, position_start: int) -> bytes:
    """Return the 38 bytes at the start of a new WAL file; *config_hash* has 16 bytes."""
    return WAL_HEADER.pack(WAL_MAGIC, WAL_VERSION, WAL_HEADER_BYTES, config_hash, position_start)


def decode_wal_header(view: memoryview) -> Answer[WalHeader]:
    """Decode the header of the file that *view* starts with. The frame ends where the first entry starts."""
    seen = bytes(view[: len(WAL_MAGIC)])
    if not WAL_MAGIC.startswith(seen):
        return Damage(0, "not a WAL file: the magic does not match")
    if len(view) < _PREFIX.size:
        return NeedMore(_PREFIX.size - len(view))
    _, version, header_size = _PREFIX.unpack_from(view)
    if version != WAL_VERSION:
        return Damage(10, f"unsupported version {version} of a WAL file; this reads {WAL_VERSION}")
    if header_size < WAL_HEADER_BYTES:
        return Damage(12, f"header_size {header_size} is below {WAL_HEADER_BYTES}")
    if len(view) < header_size:
        return NeedMore(header_size - len(view))
    _, _, _, config_hash, position_start = WAL_HEADER.unpack_from(view)
    return Frame(WalHeader(version, header_size, config_hash, position_start), header_size)
