"""
`current.sealed`: the segment that was sealed last, and how far the log was durable then. Bytes only.

::

    0   u32  magic                  0x43505332
    4   u16  version                1
    6   u16  reserved               0
    8   u64  segment_id
    16  u64  coordinator_watermark
    24  u64  durable_bytes          of the complete log, as in the segment's footer

It has no checksum. It is ignored if `pointer_problem` finds that it contradicts the segments.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from quiver.aof.format.segment_file import FOOTER_BYTES, HEADER_BYTES, SEGMENT_BYTES_MAX, SegmentFooter
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "POINTER_BYTES",
    "POINTER_MAGIC",
    "POINTER_VERSION",
    "SEALED_POINTER",
    "SealedPointer",
    "decode_pointer",
    "encode_pointer",
    "pointer_problem",
]

POINTER_MAGIC = 0x43505332
POINTER_VERSION = 1
SEALED_POINTER = struct.Struct("<IHHQQQ")
POINTER_BYTES = SEALED_POINTER.size

_IDS_MAX = 0xFFFF_FFFF
_LOG_BYTES_MAX = 1 << 63
_SEGMENT_BYTES_MIN = HEADER_BYTES + FOOTER_BYTES
_UNUSED_IDS_MAX = 65_536
"""Recovery uses no id twice, so it skips the ids of quarantined and empty segments."""


@dataclass(frozen=True, slots=True)
class SealedPointer:
    """The newest sealed segment, the watermark of the upstream log, and the bytes of the log that were durable."""

    segment_id: int
    coordinator_watermark: int
    durable_bytes: int


def encode_pointer(pointer: SealedPointer) -> bytes:
    """Return the 32 bytes of *pointer*."""
    return SEALED_POINTER.pack(
        POINTER_MAGIC, POINTER_VERSION, 0, pointer.segment_id, pointer.coordinator_watermark, pointer.durable_bytes
    )


def decode_pointer(view: memoryview) -> Answer[SealedPointer]:
    """Decode the pointer that *view* starts with."""
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


def pointer_problem(
    pointer: SealedPointer, base_offsets: Mapping[int, int], footer: SegmentFooter | None
) -> str | None:
    """
    Return how *pointer* contradicts the segments of its log; None when it does not.

    The segment that it names may be retired or lost. Then its numbers must be between those of the other segments.

    Args:
        pointer: the decoded pointer.
        base_offsets: segment id → base offset, from the names of the segment files.
        footer: the footer of the segment that *pointer* names; None if it cannot be read.
    """
    named, durable = pointer.segment_id, pointer.durable_bytes
    if footer is not None:
        if (footer.durable_bytes, footer.coordinator_watermark) != (durable, pointer.coordinator_watermark):
            return f"the footer of segment {named} has other numbers"
        return None
    if named >= _IDS_MAX or durable >= _LOG_BYTES_MAX:
        return f"{named} segments or {durable} bytes are more than a log can have"
    if any(base < durable + FOOTER_BYTES for one, base in base_offsets.items() if one > named):
        return f"it counts {durable} bytes, and a later segment begins before them"
    below = max((one for one in base_offsets if one <= named), default=0)
    count = named - below + 1
    gained = durable - base_offsets.get(below, 0)
    if not max(HEADER_BYTES, (count - _UNUSED_IDS_MAX) * _SEGMENT_BYTES_MIN) <= gained <= count * SEGMENT_BYTES_MAX:
        return f"segments {below} to {named} cannot hold the {gained} bytes that it counts"
    return None
