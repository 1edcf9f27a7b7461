"""gzip from outside, never inflated beyond a limit."""

from __future__ import annotations

import zlib

from quiver.primitives.scan import Damage

__all__ = ["GZIP_MAGIC", "inflate"]

GZIP_MAGIC = b"\x1f\x8b"
"""No protobuf message starts so: 0x1f would be a tag of the wire type 7, which does not exist."""

_PIECE_BYTES = 64 * 1024
_MEMBERS_MAX = 4096
"""More are refused: empty ones cost time to walk, and bring nothing."""

_GZIP = 16 + zlib.MAX_WBITS


def inflate(data: bytes, *, size_max: int) -> bytes | Damage | None:
    """
    Return the gzip members of *data*, inflated; None when that is more than *size_max* bytes.

    At most *size_max* + 1 bytes are ever held, whatever the data claims to be.
    """
    parts: list[bytes] = []
    room = size_max + 1
    at = 0
    for _ in range(_MEMBERS_MAX):
        member = zlib.decompressobj(_GZIP)
        while not member.eof:
            # In pieces: what is behind a member would be copied with each member otherwise.
            piece = data[at : at + _PIECE_BYTES]
            if not piece:
                return Damage(len(data), "gzip ends too early") if parts or at else b""
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
