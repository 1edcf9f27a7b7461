"""Bounded decompression of gzip data from clients."""

from __future__ import annotations

import zlib

from quiver.primitives.scan import Damage

__all__ = ["GZIP_MAGIC", "inflate"]

GZIP_MAGIC = b"\x1f\x8b"
"""No protobuf message starts with these bytes: 0x1f would be a tag of the wire type 7, which does not exist."""

_PIECE_BYTES = 64 * 1024
_MEMBERS_MAX = 4096
"""The maximum number of gzip members: empty ones take time to process and contain nothing."""

_GZIP = 16 + zlib.MAX_WBITS


def inflate(data: bytes, *, size_max: int) -> bytes | Damage | None:
    """
    Return the gzip members of *data*, decompressed; None if they exceed *size_max* bytes.

    At most *size_max* + 1 bytes are held in memory, regardless of the size that the data declares.
    """
    parts: list[bytes] = []
    room = size_max + 1
    at = 0
    for _ in range(_MEMBERS_MAX):
        member = zlib.decompressobj(_GZIP)
        while not member.eof:
            # In pieces: otherwise each member would copy all of the following data.
            piece = data[at : at + _PIECE_BYTES]
            if not piece:
                return Damage(len(data), "truncated gzip data") if parts or at else b""
            try:
                part = member.decompress(piece, room)
            except zlib.error as error:
                return Damage(at, f"not gzip: {error}")
            parts.append(part)
            room -= len(part)
            if room <= 0:
                return None
            at += len(piece) - len(member.unused_data)
        if at == len(data):
            return b"".join(parts)
    return Damage(at, f"more than {_MEMBERS_MAX} gzip members")
