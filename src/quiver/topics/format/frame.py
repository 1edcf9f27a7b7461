"""
The frame around each message, the same in a log file and in a cold object.

::

    0          8        12       16
    ┌──────────┬────────┬────────┬──────────────┐
    │ offset   │ length │ crc32  │ payload …    │
    │ u64      │ u32    │ u32    │ length bytes │
    └──────────┴────────┴────────┴──────────────┘

The checksum covers the payload only. The payload of a message repeats the offset (`message.py`), so a damaged header is
detected as well. A length of zero is not a frame: zeros after the tail never parse.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "FRAME_HEADER",
    "FRAME_HEADER_BYTES",
    "FRAME_PAYLOAD_BYTES_MAX",
    "FramePlace",
    "decode_frame",
    "encode_frame",
    "find_frames",
    "take_frames",
]

FRAME_HEADER = struct.Struct("<QII")
FRAME_HEADER_BYTES = 16
FRAME_PAYLOAD_BYTES_MAX = 64 * 1024 * 1024
"""A larger length is damage; it bounds the memory that a reader allocates."""

FramePlace = tuple[int, int, int]
"""Offset of the message, position of the frame's first byte, and the position after its last byte."""

_PAYLOAD_BYTES_MIN = 8
_OFFSETS_IN_A_BLOCK = 1 << 24


def encode_frame(offset: int, payload: bytes) -> bytes:
    """Return the frame of *payload* at *offset*."""
    return FRAME_HEADER.pack(offset, len(payload), crc32(payload)) + payload


def decode_frame(data: Buffer, start: int = 0) -> Answer[FramePlace]:
    """Decode the frame at *start* and verify its checksum."""
    found, end, stopped = take_frames(data, start, count_max=1)
    return Frame(found[0], end) if found or stopped is None else stopped


def take_frames(
    data: Buffer, start: int = 0, *, count_max: int = 1 << 62
) -> tuple[list[FramePlace], int, NeedMore | Damage | None]:
    """
    Decode complete frames from *start* on and verify their checksums.

    Returns:
        the frames, the position after the last of them, and why it stopped there (None: *count_max* was reached).
        The caller has to check that the offsets are consecutive.
    """
    view = memoryview(data)
    size = len(view)
    unpack = FRAME_HEADER.unpack_from
    found: list[FramePlace] = []
    while len(found) < count_max:
        body = start + FRAME_HEADER_BYTES
        if body > size:
            return found, start, NeedMore(body - size)
        offset, length, checksum = unpack(view, start)
        if not 0 < length <= FRAME_PAYLOAD_BYTES_MAX:
            return found, start, Damage(start, f"a frame of {length} bytes; 1 to {FRAME_PAYLOAD_BYTES_MAX} are valid")
        end = body + length
        if end > size:
            return found, start, NeedMore(end - size)
        if crc32(view[body:end]) != checksum:
            return found, start, Damage(start, "the checksum of the payload differs")
        found.append((offset, start, end))
        start = end
    return found, start, None


def find_frames(data: Buffer, start: int, *, offset_min: int) -> Iterator[FramePlace]:
    """
    Yield what parses as a frame at or after *start*, at any byte, with an offset of *offset_min* or slightly above.

    It is used to continue after damage. A result may be the inside of a payload that looks like a frame: use the first
    one whose message repeats its offset.
    """
    view = memoryview(data)
    size = len(view)
    # No more frames than this fit into the rest: a larger offset cannot belong to a frame of this file.
    offset_end = offset_min + (size - start) // (FRAME_HEADER_BYTES + _PAYLOAD_BYTES_MIN) + 1
    highs = range(offset_min // _OFFSETS_IN_A_BLOCK, offset_end // _OFFSETS_IN_A_BLOCK + 1)
    wanted = b"|".join(re.escape(high.to_bytes(5, "little")) for high in highs)
    # Five equal bytes of the offset, then a length whose highest byte is small: the other bytes are checked per match.
    for match in re.compile(b"(?s)(?=...(?:" + wanted + rb")...[\x00-\x04])").finditer(view, start):
        at = match.start()
        offset, length, checksum = FRAME_HEADER.unpack_from(view, at) if at + 16 <= size else (0, 0, 0)
        end = at + FRAME_HEADER_BYTES + length
        if offset_min <= offset < offset_end and length > 0 and end <= size and crc32(view[at + 16 : end]) == checksum:
            yield offset, at, end
