"""One log file, read in pieces: frames and their order are checked; damage is skipped and quarantined."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from quiver.errors import CorruptionError
from quiver.observe import Observer
from quiver.primitives.disk.copying import damaged_copy, keep_damaged
from quiver.primitives.disk.file_system import File, FileSystem
from quiver.primitives.scan import NeedMore
from quiver.topics.format.frame import FramePlace, take_frames
from quiver.topics.format.names import QUARANTINE_DIR
from quiver.topics.format.salvage import next_frame_after, offset_within

__all__ = [
    "FileMarks",
    "FrameScanner",
    "Good",
    "Lost",
    "OnLost",
    "ReadStart",
    "RecoveredWal",
    "WalFile",
    "quarantine_damage",
    "read_frames",
]

OnLost = Literal["raise", "skip"]
"""Whether a reader raises an error for a lost range of offsets or skips it."""

PIECE_BYTES = 1024 * 1024
MARK_MESSAGES = 1000


@dataclass(frozen=True, slots=True)
class WalFile:
    """
    A snapshot of one log file.

    Attributes:
        path: of the file.
        seq: its number; 0 is the first.
        first_offset: of its first message.
        next_offset: the offset after its last message.
        size_bytes: of complete frames.
        sealed: nothing is written to it any more, and every byte is synced.
        modified_ns: when it was last written to.
    """

    path: str
    seq: int
    first_offset: int
    next_offset: int
    size_bytes: int
    sealed: bool
    modified_ns: int


class FileMarks:
    """
    Some offsets of a file and the positions of their frames, so that a reader need not start at byte 0.

    Threads may add and look up marks concurrently: a mark never changes, and each thousand offsets have at most one.
    """

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: dict[int, tuple[int, int]] = {}

    def add(self, offset: int, byte: int) -> None:
        """Add a frame, unless its thousand has a mark already."""
        self._marks.setdefault(offset // MARK_MESSAGES, (offset, byte))

    def before(self, offset: int, first_offset: int) -> tuple[int, int]:
        """
        Return offset and position of the last known frame at or before *offset*, in a file that begins with
        *first_offset*.
        """
        for thousand in range(offset // MARK_MESSAGES, first_offset // MARK_MESSAGES - 1, -1):
            mark = self._marks.get(thousand)
            if mark is not None and mark[0] <= offset:
                return mark
        return first_offset, 0


@dataclass(frozen=True, slots=True)
class Good:
    """
    Consecutive frames: their places in `data`, whose first byte is byte `position` of the file.

    `first_offset` is the offset of the first frame; the offset in a place may come from a damaged header.
    """

    frames: list[FramePlace]
    data: bytes
    position: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class Lost:
    """
    Bytes `start` to `end` of a file are damaged.

    Attributes:
        start, end: the bytes.
        reason: what is wrong with them.
        next_offset: of the next good frame, which begins at `end`; None if there is none.
        first_offset: the offset expected at `start`. Equal to `next_offset` when no message is missing.
    """

    start: int
    end: int
    reason: str
    first_offset: int
    next_offset: int | None


@dataclass(frozen=True, slots=True)
class ReadStart:
    """Where to start reading for an offset: a frame at or before it, and how far the file may be read."""

    path: str
    position: int
    expected: int
    end: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class RecoveredWal:
    """
    The contents of a directory: the starting point of a `Wal`.

    `active` is the open file to continue, at byte `position`; None starts file number `seq`.
    """

    sealed: tuple[WalFile, ...] = ()
    active: File | None = None
    seq: int = 0
    first_offset: int = 0
    position: int = 0
    next_offset: int = 0
    marks: FileMarks | None = None


class FrameScanner:
    """
    Reads one file from *position* to *end* and yields its frames and its damage.

    Args:
        files, path: the file, open while this is.
        position: a byte where a frame begins.
        end: first byte not to read; None is the end of the file.
        expected: offset of the frame at *position*.
        marks: filled on the way.
    """

    def __init__(
        self, fs: FileSystem, path: str, *, position: int, end: int | None, expected: int, marks: FileMarks
    ) -> None:
        self._file: File = fs.open_read(path)
        self.path = path
        self.position = position
        self.expected = expected
        self._end = self._file.size() if end is None else end
        self._marks = marks
        self._wanted = PIECE_BYTES

    def extend(self, end: int) -> None:
        """Read up to byte *end* from now on: the file has grown."""
        self._end = max(self._end, end)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self) -> Good | Lost | None:
        """
        Return the next frames, the next damage, or None at the end.

        Raises:
            OSError: the file cannot be read.
        """
        while self.position < self._end:
            data = self._file.pread(min(self._wanted, self._end - self.position), self.position)
            frames, end, stopped = take_frames(data)
            if frames:
                self._wanted = PIECE_BYTES
                return self._in_order(frames, data)
            at_end = self.position + len(data) >= self._end or len(data) < self._wanted
            if isinstance(stopped, NeedMore) and not at_end:
                self._wanted = len(data) + max(stopped.missing, PIECE_BYTES)
                continue
            reason = stopped.reason if not isinstance(stopped, NeedMore) and stopped else "the file ends within a frame"
            return self._skip_damage(self.position + end, reason)
        return None

    def _in_order(self, frames: list[FramePlace], data: bytes) -> Good | Lost:
        count = len(frames)
        if [place[0] for place in frames] != list(range(self.expected, self.expected + count)):
            count = next(at for at, place in enumerate(frames) if place[0] != self.expected + at)
            frame = frames[count]
            found_offset = offset_within(data, frame)
            if found_offset == self.expected + count:
                count += 1  # only the header is damaged, and the message repeats its offset
            elif count == 0:
                return self._out_of_order(found_offset)
            frames = frames[:count]
        good = Good(frames, data, self.position, self.expected)
        self._marks.add(self.expected, self.position)
        self.expected += count
        self.position += frames[-1][2]
        return good

    def _out_of_order(self, found_offset: int | None) -> Lost:
        if found_offset is not None and found_offset > self.expected:
            lost = Lost(
                self.position,
                self.position,
                f"offset {found_offset} follows {self.expected - 1}",
                self.expected,
                found_offset,
            )
            self.expected = found_offset
            return lost
        return self._skip_damage(self.position, f"a message of offset {found_offset} where {self.expected} belongs")

    def _skip_damage(self, bad: int, reason: str) -> Lost:
        rest = self._file.pread(self._end - bad, bad)
        place = next_frame_after(rest, 0, expected=self.expected)
        first = self.expected
        if place is None:
            self.position = self._end
            return Lost(bad, bad + len(rest), reason, first, None)
        self.position = bad + place[1]
        self.expected = place[0]
        return Lost(bad, self.position, reason, first, self.expected)


def read_frames(
    fs: FileSystem, path: str, byte_offset: int = 0, *, byte_end: int | None = None
) -> Iterator[tuple[list[FramePlace], bytes, int]]:
    """
    Yield the complete frames of a file from *byte_offset* on, in pieces: places, bytes, and the position of the bytes.

    Checksums are verified; the caller has to check that the offsets are consecutive.

    Raises:
        CorruptionError: a frame is damaged, or the file ends within one; all frames before it were yielded.
        OSError: the file cannot be read.
    """
    file = fs.open_read(path)
    try:
        end = file.size() if byte_end is None else byte_end
        wanted = PIECE_BYTES
        while byte_offset < end:
            data = file.pread(min(wanted, end - byte_offset), byte_offset)
            frames, taken, stopped = take_frames(data)
            if frames:
                yield frames, data, byte_offset
                byte_offset += taken
                wanted = PIECE_BYTES
            elif isinstance(stopped, NeedMore) and len(data) == wanted and byte_offset + len(data) < end:
                wanted += max(stopped.missing, PIECE_BYTES)
            else:
                reason = "the file ends within a frame"
                raise CorruptionError(
                    path, byte_offset, reason if stopped is None or isinstance(stopped, NeedMore) else stopped.reason
                )
    finally:
        file.close()


def quarantine_damage(fs: FileSystem, path: str, lost: Lost, observer: Observer) -> CorruptionError:
    """
    Copy damaged bytes into the quarantine next to the file, count and report them; return the error to raise.

    It is called each time the damage is encountered: the same bytes are stored once.

    Raises:
        OSError: there may be no copy.
    """
    directory, _, name = path.rpartition("/")
    kept = None
    level = logging.ERROR
    if lost.end > lost.start:
        file = fs.open_read(path)
        try:
            data = file.pread(lost.end - lost.start, lost.start)
        finally:
            file.close()
        if fs.exists(damaged_copy(f"{directory}/{QUARANTINE_DIR}", name, data)):
            level = logging.INFO  # it has been reported before
        kept = keep_damaged(fs, f"{directory}/{QUARANTINE_DIR}", name, data)
    observer.count("danube_wal_damage_total", 1)
    observer.event(
        "danube.wal.damaged", level=level, path=path, offset=lost.start, reason=lost.reason, kept_as=kept,
        first_offset=lost.first_offset, next_offset=lost.next_offset,
    )  # fmt: skip
    return CorruptionError(path, lost.start, lost.reason)
