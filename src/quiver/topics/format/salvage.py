"""Continuing after damage: finding the next message that can be trusted."""

from __future__ import annotations

from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Damage
from quiver.topics.format.frame import FRAME_HEADER, FRAME_HEADER_BYTES, FramePlace, find_frames, take_frames
from quiver.topics.format.message import decode_message

__all__ = ["next_frame_after", "offset_within"]


def offset_within(data: Buffer, place: FramePlace) -> int | None:
    """Return the offset in a frame's message: the checksum covers it, but not the offset in the frame's header."""
    message = decode_message(bytes(memoryview(data)[place[1] + FRAME_HEADER_BYTES : place[2]]))
    return None if isinstance(message, Damage) else message.offset


def next_frame_after(data: Buffer, bad: int, *, expected: int) -> FramePlace | None:
    """
    Return the first frame after the bad byte *bad* whose message has the same offset; None if there is none.

    *expected* is the offset that the frame at *bad* should have. If that frame's length leads to a good frame, only its
    payload is damaged, and the good frame is returned: so the contents of a payload are never mistaken for a frame.
    """
    view = memoryview(data)
    if bad + FRAME_HEADER_BYTES <= len(view):
        _, length, _ = FRAME_HEADER.unpack_from(view, bad)
        follower, _, _ = take_frames(view, min(bad + FRAME_HEADER_BYTES + length, len(view)), count_max=1)
        if follower and offset_within(view, follower[0]) == expected + 1:
            return follower[0]
    for place in find_frames(view, bad + 1, offset_min=expected + 1):
        if offset_within(view, place) == place[0]:
            return place
    return None
