"""
A segment: a header, frames without gaps, and zeros up to the length that was reserved. Bytes only.

::

    header   0   4  magic        b"SF01"
             4   u8 version      1
             5   u8 flags        0; 1 in slots of newer clients: a manifest belongs to it
             6   u16 zero
             8   u64 base        sequence number of the first frame, below 2^63
             16  i64 created     microseconds since the Unix epoch; for people
    frame    0   u32 crc32c      of the length and the payload
             4   i32 length      1 or more
             8   payload         one message

Four zero bytes of length have a checksum that is not zero, so zeros never look like a frame: where the length is 0 the
frames end. A frame that does not check is where writing stopped (a torn tail), unless whole frames follow it.
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
    "frames_behind",
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
    """What a segment says of itself."""

    base: int
    created_us: int
    flags: int = 0


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the 24 bytes of *header*."""
    return SEGMENT_HEADER.pack(SEGMENT_MAGIC, SEGMENT_VERSION, header.flags, 0, header.base, header.created_us)


def decode_segment_header(view: memoryview) -> Answer[SegmentHeader]:
    """Decode the header that *view* starts with."""
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
    """Return the 8 bytes that stand before *payload*."""
    length = _LENGTH.pack(memoryview(payload).nbytes)
    return FRAME_HEAD.pack(crc32c(payload, crc32c(length)), memoryview(payload).nbytes)


def decode_frame(view: memoryview, offset: int) -> Answer[tuple[int, int]]:
    """
    Check the frame at *offset*; the value is where its payload starts and ends.

    `NeedMore` where the file ends inside it, `Damage` for a length that no frame has and for a wrong checksum. A length
    of zero is `NeedMore`: nothing was written here yet.
    """
    if len(view) - offset < FRAME_HEAD.size:
        return NeedMore(FRAME_HEAD.size - (len(view) - offset))
    crc, length = FRAME_HEAD.unpack_from(view, offset)
    start = offset + FRAME_HEAD.size
    if length == 0:
        return NeedMore(1)
    if length < 0:
        return Damage(offset + 4, f"a frame of {length} bytes")
    if length > len(view) - start:
        return NeedMore(length - (len(view) - start))
    if crc32c(view[offset + 4 : start + length]) != crc:
        return Damage(offset, "checksum mismatch in a frame")
    return Frame((start, start + length), start + length)


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """
    What a walk through a segment found.

    Attributes:
        header: what stands at its beginning.
        payloads: where each frame's payload starts and ends, in order.
        tail: the offset behind the last whole frame.
        torn: whether something was written behind it that is no frame.
        later: the offset of a whole frame behind bytes that are none, or None: a hole in what was written.
    """

    header: SegmentHeader
    payloads: tuple[tuple[int, int], ...]
    tail: int
    torn: bool
    later: int | None


def scan_segment(view: memoryview, *, end: int | None = None) -> Answer[SegmentScan]:
    """Walk all of the segment *view*, up to *end* where the caller knows that no frame lies behind it."""
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
    later = None if not torn and is_zero(view, tail) else next(_frames_behind(view, tail), None)
    later_at = None if later is None else later.value[0] - FRAME_HEAD.size
    return Frame(SegmentScan(answer.value, tuple(payloads), tail, torn, later_at), tail)


def frames_behind(view: memoryview, offset: int) -> list[tuple[int, int]]:
    """Return where the payload of each whole frame behind *offset* starts and ends, whatever lies between them."""
    return [frame.value for frame in _frames_behind(view, offset)]


def _frames_behind(view: memoryview, offset: int) -> Iterator[Frame[tuple[int, int]]]:
    # Every payload begins with the magic of a message; so do those that a torn write left behind whole.
    data = bytes(view[offset:])
    at = data.find(b"QWP1", 1 + FRAME_HEAD.size)
    while at >= 0:
        frame = decode_frame(view, offset + at - FRAME_HEAD.size)
        if isinstance(frame, Frame):
            yield frame
            at = data.find(b"QWP1", frame.end - offset + FRAME_HEAD.size)
        else:
            at = data.find(b"QWP1", at + 1)
