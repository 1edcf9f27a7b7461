"""
A segment: a header, consecutive frames, and zeros up to the reserved length. No I/O.

::

    header   0   4  magic        b"SF01"
             4   u8 version      1
             5   u8 flags        0; 1 in slots of newer clients: a manifest belongs to it
             6   u16 zero
             8   u64 base        sequence number of the first frame, below 2^63
             16  i64 created     microseconds since the Unix epoch; informational
    frame    0   u32 crc32c      of the length and the payload
             4   i32 length      1 or more
             8   payload         one message

The checksum of four zero bytes is not zero, so zeros never look like a frame: the frames end where the length is 0.
An invalid frame marks where writing stopped (a torn tail), unless intact frames follow it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from quiver.primitives.checksum import crc32c
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore, is_zero

__all__ = [
    "FRAME_HEAD",
    "MANIFEST_FLAG",
    "SEGMENT_HEADER",
    "SEGMENT_MAGIC",
    "SEGMENT_VERSION",
    "SegmentHeader",
    "SegmentScan",
    "decode_frame",
    "decode_segment_header",
    "encode_frame_head",
    "encode_segment_header",
    "frames_after",
    "scan_segment",
]

SEGMENT_HEADER = struct.Struct("<4sBBHQq")
FRAME_HEAD = struct.Struct("<Ii")
SEGMENT_MAGIC = b"SF01"
SEGMENT_VERSION = 1
MANIFEST_FLAG = 1
_LENGTH = struct.Struct("<i")
_BASE_END = 1 << 63
_TORN_BYTES = 8


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header of a segment."""

    base: int
    created_us: int
    flags: int = 0


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the 24 bytes of *header*."""
    return SEGMENT_HEADER.pack(SEGMENT_MAGIC, SEGMENT_VERSION, header.flags, 0, header.base, header.created_us)


def decode_segment_header(view: memoryview) -> Answer[SegmentHeader]:
    """Decode the header at the start of *view*."""
    if not SEGMENT_MAGIC.startswith(bytes(view[:4])):
        return Damage(0, "not a segment: the magic does not match")
    if len(view) < SEGMENT_HEADER.size:
        return NeedMore(SEGMENT_HEADER.size - len(view))
    _, version, flags, reserved, base, created_us = SEGMENT_HEADER.unpack_from(view)
    if version != SEGMENT_VERSION:
        return Damage(4, f"unsupported version {version} of a segment")
    if flags & ~MANIFEST_FLAG:
        return Damage(5, f"unsupported flags {flags:#04x} of a segment")
    if reserved:
        return Damage(6, f"reserved bytes are {reserved:#06x}, not zero")
    if base >= _BASE_END:
        return Damage(8, "the sequence number of the first frame is negative")
    return Frame(SegmentHeader(base, created_us, flags), SEGMENT_HEADER.size)


def encode_frame_head(payload: Buffer) -> bytes:
    """Return the 8 bytes that precede *payload*."""
    length = _LENGTH.pack(memoryview(payload).nbytes)
    return FRAME_HEAD.pack(crc32c(payload, crc32c(length)), memoryview(payload).nbytes)


def decode_frame(view: memoryview, offset: int) -> Answer[tuple[int, int]]:
    """
    Check the frame at *offset*; the value is the start and end of its payload.

    `NeedMore` if the file ends inside the frame, `Damage` for an invalid length or a wrong checksum. A length of zero
    is `NeedMore`: nothing was written here yet.
    """
    if len(view) - offset < FRAME_HEAD.size:
        return NeedMore(FRAME_HEAD.size - (len(view) - offset))
    crc, length = FRAME_HEAD.unpack_from(view, offset)
    start = offset + FRAME_HEAD.size
    if length == 0:
        return NeedMore(1)
    if length < 0:
        return Damage(offset + 4, f"invalid frame length {length}")
    if length > len(view) - start:
        return NeedMore(length - (len(view) - start))
    if crc32c(view[offset + 4 : start + length]) != crc:
        return Damage(offset, "checksum mismatch in a frame")
    return Frame((start, start + length), start + length)


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """
    The result of scanning a segment.

    Attributes:
        header: the header of the segment.
        payloads: the start and end of each frame's payload, in order.
        tail: the offset after the last intact frame before any damage.
        torn: whether invalid bytes follow the tail.
        later: the offset of an intact frame after invalid bytes, or None: a hole in the written data.
    """

    header: SegmentHeader
    payloads: tuple[tuple[int, int], ...]
    tail: int
    torn: bool
    later: int | None


def scan_segment(view: memoryview, *, end: int | None = None) -> Answer[SegmentScan]:
    """Scan the segment *view*, up to *end* if the caller knows that no frame is after it."""
    view = view if end is None else view[:end]
    answer = decode_segment_header(view)
    if not isinstance(answer, Frame):
        return answer
    payloads: list[tuple[int, int]] = []
    tail = answer.end
    while True:
        frame = decode_frame(view, tail)
        if not isinstance(frame, Frame):
            break
        payloads.append(frame.value)
        tail = frame.end
    torn = not is_zero(view[tail : tail + _TORN_BYTES])
    later = None if not torn and is_zero(view, tail) else next(_frames_after(view, tail), None)
    later_at = None if later is None else later.value[0] - FRAME_HEAD.size
    return Frame(SegmentScan(answer.value, tuple(payloads), tail, torn, later_at), tail)


def frames_after(view: memoryview, offset: int) -> list[tuple[int, int]]:
    """Return the start and end of the payload of each intact frame after *offset*, skipping any other bytes."""
    return [frame.value for frame in _frames_after(view, offset)]


def _frames_after(view: memoryview, offset: int) -> Iterator[Frame[tuple[int, int]]]:
    # Every payload starts with the magic of a message; so do intact frames after a torn write.
    data = bytes(view[offset:])
    at = data.find(b"QWP1", 1 + FRAME_HEAD.size)
    while at >= 0:
        frame = decode_frame(view, offset + at - FRAME_HEAD.size)
        if isinstance(frame, Frame):
            yield frame
            at = data.find(b"QWP1", frame.end - offset + FRAME_HEAD.size)
        else:
            at = data.find(b"QWP1", at + 1)
