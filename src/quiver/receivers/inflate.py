"""
gzip from outside, never inflated beyond a limit.
"""

from __future__ import annotations

import zlib

from quiver.primitives.scan import Damage

__all__ = ["GZIP_MAGIC", "inflate"]

GZIP_MAGIC = b"\x1f\x8b"
"""No protobuf message starts so: 0x1f would be a tag of the wire type 7, which does not exist."""

_GZIP = 16 + zlib.MAX_WBITS


def inflate(data: bytes, *, size_max: int) -> bytes | Damage | None:
    """
    Return the gzip members of *data*, inflated; None when that is more than *size_max* bytes.

    At most *size_max* + 1 bytes are ever held, whatever the data claims to be.
    """
    parts: list[bytes] = []
    room = size_max + 1
    rest = data
    while rest:
        member = zlib.decompressobj(_GZIP)
        try:
            part = member.decompress(rest, room)
        except zlib.error as error:
            return Damage(len(data) - len(rest), f"not gzip: {error}")
        parts.append(part)
        room -= len(part)
        if room <= 0:
            return None
        if not member.eof:
            return Damage(len(data), "gzip ends too early")
        rest = member.unused_data
    return b"".join(parts)
