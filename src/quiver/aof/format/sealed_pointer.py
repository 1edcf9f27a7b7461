"""
`current.sealed`: which segment was sealed last, and how far the log was durable then. Bytes only.

::

    0   u32  magic                  0x43505332
    4   u16  version                1
    6   u16  reserved               0
    8   u64  segment_id
    16  u64  coordinator_watermark
    24  u64  durable_bytes          of the whole log, as in the segment's footer

It has no checksum; what it says counts only as far as the segment that it names says the same.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "POINTER_BYTES",
    "POINTER_MAGIC",
    "POINTER_VERSION",
    "SEALED_POINTER",
    "SealedPointer",
    "decode_pointer",
    "encode_pointer",
]

POINTER_MAGIC = 0x43505332
POINTER_VERSION = 1
SEALED_POINTER = struct.Struct("<IHHQQQ")
POINTER_BYTES = SEALED_POINTER.size


@dataclass(frozen=True, slots=True)
class SealedPointer:
    """
    The newest sealed segment, the watermark of the upstream log, and the bytes of the log that were durable.
    """

    segment_id: int
    coordinator_watermark: int
    durable_bytes: int


def encode_pointer(pointer: SealedPointer) -> bytes:
    """
    Return the 32 bytes of *pointer*.
    """
    return SEALED_POINTER.pack(
        POINTER_MAGIC, POINTER_VERSION, 0, pointer.segment_id, pointer.coordinator_watermark, pointer.durable_bytes
    )


def decode_pointer(view: memoryview) -> Answer[SealedPointer]:
    """
    Decode the pointer that *view* starts with.
    """
    if not POINTER_MAGIC.to_bytes(4, "little").startswith(bytes(view[:4])):
        return Damage(0, "not a pointer to a sealed segment: the magic does not match")
    if len(view) < POINTER_BYTES:
        return NeedMore(POINTER_BYTES - len(view))
    _, version, reserved, *fields = SEALED_POINTER.unpack_from(view)
    if version != POINTER_VERSION:
        return Damage(4, f"unsupported version {version} of a pointer to a sealed segment")
    if reserved:
        return Damage(6, "reserved bytes of the pointer are not zero")
    return Frame(SealedPointer(*fields), POINTER_BYTES)
