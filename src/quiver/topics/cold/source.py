"""
A range of a topic's log on its way into one object: frames are checked, indexed and checksummed.

An object never spans two log files, never contains an unsynced message, and has no gap: it ends before damaged frames,
and the next object starts after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import FileSystem
from quiver.topics.cold.blocks import BLOCK_BYTES, pack_block
from quiver.topics.format.descriptor import INDEX_EVERY_MESSAGES, ObjectCompression
from quiver.topics.format.frame import FRAME_HEADER_BYTES, FramePlace, encode_frame
from quiver.topics.wal.files import FileMarks, FrameScanner, Good, Lost, ReadStart

__all__ = ["ObjectSource", "SourceRange"]


@dataclass(frozen=True, slots=True)
class SourceRange:
    """A range of messages: from `first_offset` to below `next_offset`, found from `span` on."""

    span: ReadStart
    first_offset: int
    next_offset: int
    bytes_max: int | None


class ObjectSource:
    """
    Produces the parts of an object, repeatedly if needed, and describes it after all parts were taken.

    Attributes:
        next_offset: the offset after the last message.
        next_position: the position in the log file after it.
        size_bytes: of the object.
        checksum: CRC-32 of the object.
        index: offset and position of every thousandth frame, including the first.
        lost: the damage that ended it, or None.
    """

    def __init__(self, fs: FileSystem, wanted: SourceRange, compression: ObjectCompression) -> None:
        self._fs = fs
        self._wanted = wanted
        self._compression = compression
        self._begin()

    def _begin(self) -> None:
        self.next_offset = self._wanted.first_offset
        self.next_position = self._wanted.span.position
        self.size_bytes = 0
        self.checksum = 0
        self.index: list[tuple[int, int]] = []
        self.lost: Lost | None = None

    def parts(self) -> Iterator[bytes]:
        """
        Yield the object's bytes from the start.

        Raises:
            OSError: the log file cannot be read.
        """
        self._begin()
        pieces = self._plain()
        for part in pieces if self._compression == "none" else self._packed(pieces):
            self.checksum = crc32(part, self.checksum)
            self.size_bytes += len(part)
            yield part

    def _plain(self) -> Iterator[bytes]:
        wanted = self._wanted
        span = wanted.span
        taken = 0
        scanner = FrameScanner(
            self._fs, span.path, position=span.position, end=span.end, expected=span.expected, marks=FileMarks()
        )
        with scanner:
            while self.next_offset < wanted.next_offset and (wanted.bytes_max is None or taken < wanted.bytes_max):
                step = scanner.step()
                if isinstance(step, Lost):
                    if step.next_offset is None or step.next_offset > self.next_offset:
                        self.lost = step  # the next message is lost
                        return
                    continue
                if step is None:
                    return
                data = self._take(step, taken)
                taken += len(data)
                if data:
                    yield data

    def _take(self, step: Good, taken: int) -> bytes:
        wanted = self._wanted
        low = max(0, self.next_offset - step.first_offset)
        places = step.frames[low : max(low, wanted.next_offset - step.first_offset)]
        if wanted.bytes_max is not None and places:
            room = wanted.bytes_max - taken
            begin = places[0][1]
            places = places[: next((at for at, one in enumerate(places, 1) if one[2] - begin >= room), len(places))]
        if not places:
            return b""
        data, offset = step.data, self.next_offset
        if self._compression == "none":
            for at in range(-(offset - wanted.first_offset) % INDEX_EVERY_MESSAGES, len(places), INDEX_EVERY_MESSAGES):
                self.index.append((offset + at, taken + places[at][1] - places[0][1]))
        self.next_offset += len(places)
        self.next_position = step.position + places[-1][2]
        return _frames(data, places, offset)

    def _packed(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        # Here the index is of blocks: it is built as they are closed, from frames that are split again.
        block = bytearray()
        written = 0
        first = offset = self._wanted.first_offset
        for piece in pieces:
            at = 0
            while at < len(piece):
                size = FRAME_HEADER_BYTES + int.from_bytes(piece[at + 8 : at + 12], "little")
                block += piece[at : at + size]
                at += size
                offset += 1
                if len(block) >= BLOCK_BYTES or offset - first == INDEX_EVERY_MESSAGES:
                    packed = pack_block(block, self._compression)
                    self.index.append((first, written))
                    written += len(packed)
                    yield packed
                    block.clear()
                    first = offset
        if block:
            self.index.append((first, written))
            yield pack_block(block, self._compression)


def _frames(data: bytes, places: list[FramePlace], offset: int) -> bytes:
    if [place[0] for place in places] == list(range(offset, offset + len(places))):
        return data[places[0][1] : places[-1][2]]
    # A header was damaged, and the message in the frame repeats its offset: write an intact header to the object.
    return b"".join(
        encode_frame(at, data[place[1] + FRAME_HEADER_BYTES : place[2]]) for at, place in enumerate(places, offset)
    )
