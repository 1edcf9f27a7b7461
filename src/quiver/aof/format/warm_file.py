"""
A warm file, or an object: a sealed segment in frames of zstd, and a table of where each begins. Bytes only.

::

    frame ×n     header and records of the segment, FRAME_BYTES in each but the last
    frame        the 96 bytes of its footer
    skippable    0x184D2A5E, u32 length of the rest
                 n + 1 times: u32 compressed size, u32 size
                 u32 number of frames, u8 0, u32 0x8F92EAB1

This is the seekable format of zstd: any zstd tool unpacks it to the segment without its empty space, and a reader of
the table can read one record without unpacking the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from quiver.aof.format.segment_file import FOOTER_BYTES, HEADER_BYTES, SEGMENT_BYTES_MAX
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "FRAMES_MAX",
    "FRAME_BYTES",
    "PACKED_BYTES_MAX",
    "SEEK_ENTRY",
    "SEEK_FOOTER",
    "SEEK_FOOTER_BYTES",
    "SEEK_HEAD",
    "SEEK_MAGIC",
    "SKIPPABLE_MAGIC",
    "PackedFrame",
    "decode_seek_table",
    "encode_seek_table",
    "seek_table_bytes",
]

FRAME_BYTES = 256 * 1024
SKIPPABLE_MAGIC = 0x184D2A5E
SEEK_MAGIC = 0x8F92EAB1
SEEK_HEAD = struct.Struct("<II")
SEEK_ENTRY = struct.Struct("<II")
SEEK_FOOTER = struct.Struct("<IBI")
SEEK_FOOTER_BYTES = SEEK_FOOTER.size
FRAMES_MAX = SEGMENT_BYTES_MAX // FRAME_BYTES + 2
PACKED_BYTES_MAX = 2 * FRAME_BYTES
"""The maximum of one frame. Incompressible data grows only slightly; a table with a larger value is damaged."""


@dataclass(frozen=True, slots=True)
class PackedFrame:
    """One frame: its place in the file, and the bytes of the segment that it holds."""

    start: int
    packed_bytes: int
    offset: int
    size_bytes: int


def encode_seek_table(sizes: Sequence[tuple[int, int]]) -> bytes:
    """Return the table for frames of these (compressed size, size), in order."""
    rows = b"".join(SEEK_ENTRY.pack(*one) for one in sizes)
    rest = rows + SEEK_FOOTER.pack(len(sizes), 0, SEEK_MAGIC)
    return SEEK_HEAD.pack(SKIPPABLE_MAGIC, len(rest)) + rest


def seek_table_bytes(tail: memoryview) -> Answer[int]:
    """Return the size of the table at the end of a file; *tail* is at least the last 9 bytes."""
    if len(tail) < SEEK_FOOTER_BYTES:
        return NeedMore(SEEK_FOOTER_BYTES - len(tail))
    count, descriptor, magic = SEEK_FOOTER.unpack_from(tail, len(tail) - SEEK_FOOTER_BYTES)
    if magic != SEEK_MAGIC or descriptor:
        return Damage(0, "not a warm file: it does not end with a table of frames")
    if not 2 <= count <= FRAMES_MAX:
        return Damage(0, f"a table of {count} frames")
    return Frame(SEEK_HEAD.size + count * SEEK_ENTRY.size + SEEK_FOOTER_BYTES, SEEK_FOOTER_BYTES)


def decode_seek_table(tail: memoryview, file_bytes: int) -> Answer[tuple[PackedFrame, ...]]:
    """Decode the table in *tail*, the end of a file of *file_bytes*; return all frames, the footer's last."""
    size = seek_table_bytes(tail)
    if not isinstance(size, Frame):
        return size
    if len(tail) < size.value:
        return NeedMore(size.value - len(tail))
    table = tail[len(tail) - size.value :]
    magic, length = SEEK_HEAD.unpack_from(table)
    if magic != SKIPPABLE_MAGIC or length != size.value - SEEK_HEAD.size:
        return Damage(0, "the table of frames does not begin where its end says")
    frames: list[PackedFrame] = []
    start = offset = 0
    for packed, plain in SEEK_ENTRY.iter_unpack(table[SEEK_HEAD.size : -SEEK_FOOTER_BYTES]):
        if not 0 < plain <= FRAME_BYTES or not 0 < packed <= PACKED_BYTES_MAX:
            return Damage(0, f"a frame of {plain} bytes in {packed}")
        frames.append(PackedFrame(start, packed, offset, plain))
        start += packed
        offset += plain
    if start + size.value != file_bytes:
        return Damage(0, f"the frames end at {start}, the table begins at {file_bytes - size.value}")
    if frames[-1].size_bytes != FOOTER_BYTES or not HEADER_BYTES <= frames[-1].offset <= SEGMENT_BYTES_MAX:
        return Damage(0, "the last frame is not the footer of a segment")
    if any(one.size_bytes != FRAME_BYTES for one in frames[:-2]):
        return Damage(0, f"a frame in the middle does not hold {FRAME_BYTES} bytes")
    return Frame(tuple(frames), size.value)
