"""
The watermark: the highest sequence number that the server has confirmed. No I/O.

::

    0   4   magic       b"AKW1"
    4   u32 zero
    8   i64 confirmed

It is written in place, the number first and the magic last and only once, and is never synced. A reader must compare it
with the existing frames. 16 zero bytes mean that nothing was written yet.
"""

from __future__ import annotations

import struct

from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = ["WATERMARK", "WATERMARK_FSN_OFFSET", "WATERMARK_MAGIC", "decode_watermark", "encode_watermark"]

WATERMARK = struct.Struct("<4sIq")
WATERMARK_MAGIC = b"AKW1"
WATERMARK_FSN_OFFSET = 8


def encode_watermark(confirmed: int) -> bytes:
    """Return the 16 bytes of a watermark with the number *confirmed*."""
    return WATERMARK.pack(WATERMARK_MAGIC, 0, confirmed)


def decode_watermark(view: memoryview) -> Answer[int]:
    """Decode the number. Anything but a complete, valid watermark counts as missing; `Damage` has the reason."""
    if len(view) < WATERMARK.size:
        return NeedMore(WATERMARK.size - len(view))
    magic, reserved, confirmed = WATERMARK.unpack_from(view)
    if magic != WATERMARK_MAGIC:
        return Damage(0, "no watermark was written yet" if magic == bytes(4) else "the magic does not match")
    if reserved:
        return Damage(4, f"reserved bytes are {reserved:#010x}, not zero")
    if confirmed < 0:
        return Damage(8, f"the number {confirmed} is negative")
    return Frame(confirmed, WATERMARK.size)
