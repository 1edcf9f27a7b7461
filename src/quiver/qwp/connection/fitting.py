"""
Adapting the frames of a slot to the connected server.

A frame is sent unchanged unless it is larger than the server accepts, because it was built before the server announced
its limit, or for another server. Then its rows are sent in several messages, as one group. A row that is too large by
itself is skipped, as is a message that the server refused. Skipped messages are remembered until the frame is
confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Frame
from quiver.qwp.wire.pieces import MessagePiece, as_group, split_message

__all__ = ["FittedFrame", "FrameFitter", "TooLarge"]


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A message that no split makes small enough for the server, and the reason."""

    message: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class FittedFrame:
    """The messages to send for a frame, and newly found parts of it that cannot be sent."""

    messages: list[Buffer]
    too_large: list[TooLarge] = field(default_factory=list)


@dataclass(slots=True)
class _Cut:
    """A split frame: the size limit used, the indexes of skipped messages, the indexes of sent ones."""

    bytes_max: int
    left_out: set[int] = field(default_factory=set)
    sent: list[int] = field(default_factory=list)


class FrameFitter:
    """Splits frames, and remembers which messages are skipped. For one thread."""

    def __init__(self) -> None:
        self._cuts: dict[int, _Cut] = {}

    def fit(self, fsn: int, frame: Buffer, bytes_max: int) -> FittedFrame:
        """Return what to send for the frame *fsn* to a server with a limit of *bytes_max* bytes; 0 means no limit."""
        size = memoryview(frame).nbytes
        cut = self._cuts.get(fsn)
        if cut is None and not 0 < bytes_max < size:
            return FittedFrame([frame])
        if cut is None or 0 < bytes_max < cut.bytes_max:
            # Smaller pieces have other indexes: skipped rows will be found or refused again.
            cut = self._cuts[fsn] = _Cut(bytes_max)
        pieces, reason = _pieces(frame, cut.bytes_max)
        too_large = []
        for number, piece in enumerate(pieces):
            if len(piece.message) > cut.bytes_max and number not in cut.left_out:
                cut.left_out.add(number)
                why = reason or f"the row has {len(piece.message)} bytes; the server takes at most {cut.bytes_max}"
                too_large.append(TooLarge(piece.message, why))
        cut.sent = [number for number in range(len(pieces)) if number not in cut.left_out]
        messages: list[Buffer] = list(as_group([pieces[number].message for number in cut.sent], frame))
        return FittedFrame(messages, too_large)

    def leave_out(self, fsn: int, frame: Buffer, index: int) -> bytes:
        """Skip the message *index* of those last sent for the frame *fsn* from now on. Return it."""
        cut = self._cuts[fsn]
        number = cut.sent[index]
        cut.left_out.add(number)
        return _pieces(frame, cut.bytes_max)[0][number].message

    def confirmed(self, fsn: int) -> None:
        """Forget frames up to *fsn*."""
        for known in [known for known in self._cuts if known <= fsn]:
            del self._cuts[known]


def _pieces(frame: Buffer, bytes_max: int) -> tuple[list[MessagePiece], str | None]:
    """Return the pieces of *frame*; if it cannot be decoded, the complete frame and the reason."""
    answer = split_message(memoryview(frame), bytes_max)
    if isinstance(answer, Frame):
        return answer.value, None
    reason = getattr(answer, "reason", "the message ends early")
    size = memoryview(frame).nbytes
    return [
        MessagePiece(bytes(frame), 0)
    ], f"{size} bytes; the server takes {bytes_max}, and splitting failed: {reason}"
