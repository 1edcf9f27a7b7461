"""
Frames of a slot, made to fit the server that is connected now.

A frame goes as it is unless it is larger than the server takes: a frame that was built before the server said so, or
for another one. Then its rows go in several messages, as one group. A row that is too large by itself is left out, and
so is a message that the server refused: until the frame is confirmed it is remembered which.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Frame
from quiver.qwp.wire.pieces import Piece, as_group, split_message

__all__ = ["FittedFrame", "FrameFitter", "TooLarge"]


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A message that the server would not take, however it is cut; and why."""

    message: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class FittedFrame:
    """What to send for a frame, and what of it cannot be sent and was not known to be so before."""

    messages: list[Buffer]
    too_large: list[TooLarge] = field(default_factory=list)


@dataclass(slots=True)
class _Cut:
    """A frame in pieces: the size that they were cut for, numbers of those left out, numbers of those sent."""

    bytes_max: int
    left_out: set[int] = field(default_factory=set)
    sent: list[int] = field(default_factory=list)


class FrameFitter:
    """Cuts frames, and remembers which pieces are left out. For one thread."""

    def __init__(self) -> None:
        self._cuts: dict[int, _Cut] = {}

    def fit(self, fsn: int, frame: Buffer, bytes_max: int) -> FittedFrame:
        """
        Return what to send for the frame *fsn* to a server that takes messages of *bytes_max* bytes; 0: of any
        size.
        """
        size = memoryview(frame).nbytes
        cut = self._cuts.get(fsn)
        if cut is None and not 0 < bytes_max < size:
            return FittedFrame([frame])
        if cut is None or 0 < bytes_max < cut.bytes_max:
            # Smaller pieces than before have other numbers: what is left out is found again, or refused again.
            cut = self._cuts[fsn] = _Cut(bytes_max)
        pieces, reason = _pieces(frame, cut.bytes_max)
        too_large = []
        for number, piece in enumerate(pieces):
            if len(piece.message) > cut.bytes_max and number not in cut.left_out:
                cut.left_out.add(number)
                why = reason or f"a row of {len(piece.message)} bytes; the server takes {cut.bytes_max}"
                too_large.append(TooLarge(piece.message, why))
        cut.sent = [number for number in range(len(pieces)) if number not in cut.left_out]
        messages: list[Buffer] = list(as_group([pieces[number].message for number in cut.sent], frame))
        return FittedFrame(messages, too_large)

    def leave_out(self, fsn: int, frame: Buffer, index: int) -> bytes:
        """Send the message *index* of those that were last sent for the frame *fsn* no more; return it."""
        cut = self._cuts[fsn]
        number = cut.sent[index]
        cut.left_out.add(number)
        return _pieces(frame, cut.bytes_max)[0][number].message

    def confirmed(self, fsn: int) -> None:
        """Forget frames up to *fsn*."""
        for known in [known for known in self._cuts if known <= fsn]:
            del self._cuts[known]


def _pieces(frame: Buffer, bytes_max: int) -> tuple[list[Piece], str | None]:
    """Return the pieces of *frame*; all of it, and why, when it cannot be read."""
    answer = split_message(memoryview(frame), bytes_max)
    if isinstance(answer, Frame):
        return answer.value, None
    reason = getattr(answer, "reason", "the message ends early")
    size = memoryview(frame).nbytes
    return [Piece(bytes(frame), 0)], f"{size} bytes; the server takes {bytes_max}, and it cannot be cut: {reason}"
