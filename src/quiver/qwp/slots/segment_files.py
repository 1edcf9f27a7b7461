"""
One segment of a ring, on disk or in memory: frames are appended at its tail and read by number.

The offsets of frames are kept in memory, so that reading a frame takes one call. The blocks of a file are reserved when
it is created: a full disk is an error then, never later.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from quiver.invariant import invariant
from quiver.primitives.disk.file_system import Buffer, File, FileSystem
from quiver.primitives.disk.prealloc import reserve_blocks, zero_fill
from quiver.qwp.format.names import segment_name, shorter_name
from quiver.qwp.format.segment import FRAME_HEAD, SEGMENT_HEADER, SegmentHeader, encode_segment_header

__all__ = ["DiskSegments", "MemorySegments", "Segment", "SegmentStorage"]

_BASE_OFFSET = 8
_READ_ONLY = 0o644
_COPY_BYTES = 1 << 20
_SPARES_MAX = 2


class _Memory:
    """A file in memory, with only the methods that a segment uses."""

    def __init__(self, path: str, data: bytearray) -> None:
        self.path = path
        self.data = data

    def pread(self, size: int, offset: int) -> memoryview:
        return memoryview(self.data)[offset : offset + size]

    def pwrite(self, data: Buffer, offset: int) -> None:
        view = memoryview(data).cast("B")
        memoryview(self.data)[offset : offset + len(view)] = view

    def pwritev(self, parts: Sequence[Buffer], offset: int, size: int = -1) -> None:  # noqa: ARG002
        for part in parts:
            self.pwrite(part, offset)
            offset += memoryview(part).nbytes

    def sync_data(self) -> None:
        return

    def close(self) -> None:
        self.data = bytearray()


class _SegmentFile(Protocol):
    path: str

    def pread(self, size: int, offset: int) -> Buffer: ...
    def pwrite(self, data: Buffer, offset: int) -> None: ...
    def pwritev(self, parts: Sequence[Buffer], offset: int, size: int = -1) -> None: ...
    def sync_data(self) -> None: ...
    def close(self) -> None: ...


class Segment:
    """
    Frames `base` … `base + count - 1`. One thread appends; others may read published frames.

    Args:
        file: open for writing; closed with the segment.
        size_bytes: the size of the file.
        header: the header of the file.
        payloads: the start and end of each frame's payload.
    """

    def __init__(
        self,
        file: _SegmentFile,
        size_bytes: int,
        header: SegmentHeader,
        payloads: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.file = file
        self.size_bytes = size_bytes
        self.header = header
        self.ends = [SEGMENT_HEADER.size, *(end for _, end in payloads)]  # of the header, then of each frame
        self.unsynced = not payloads

    @property
    def path(self) -> str:
        """The path of the file."""
        return self.file.path

    @property
    def base(self) -> int:
        """The sequence number of the first frame."""
        return self.header.base

    @property
    def count(self) -> int:
        """The number of frames."""
        return len(self.ends) - 1

    @property
    def next_fsn(self) -> int:
        """The sequence number after the last frame."""
        return self.header.base + len(self.ends) - 1

    @property
    def tail(self) -> int:
        """The offset after the last frame."""
        return self.ends[-1]

    def has_space(self, payload_bytes: int) -> bool:
        """Return whether a frame with *payload_bytes* bytes of payload still fits."""
        return self.ends[-1] + FRAME_HEAD.size + payload_bytes <= self.size_bytes

    def write(self, head: bytes, payload: Buffer, payload_bytes: int) -> int:
        """
        Write a frame at the tail. Return its end. Readers see it only after `publish`.

        Raises:
            OSError: a part may have been written.
        """
        tail = self.ends[-1]
        self.unsynced = True
        end = tail + len(head) + payload_bytes
        self.file.pwritev((head, payload), tail, end - tail)
        return end

    def publish(self, end: int) -> None:
        """Make the frame that ends at *end* the last one."""
        self.ends.append(end)

    def erase(self, payload_bytes: int) -> None:
        """
        Zero an unfinished frame, so that no part of it is ever taken for a frame.

        Raises:
            OSError: the zeros could not be written either.
        """
        zero_fill(self.file, self.ends[-1], FRAME_HEAD.size + payload_bytes)  # type: ignore[arg-type]

    def rebase(self, base: int) -> None:
        """
        Change the first sequence number of an empty segment.

        Raises:
            OSError: the header could not be written.
        """
        if base != self.header.base:
            self.unsynced = True
            self.file.pwrite(base.to_bytes(8, "little"), _BASE_OFFSET)
            self.header = SegmentHeader(base, self.header.created_us, self.header.flags)

    def read(self, fsn: int) -> Buffer:
        """
        Return the payload of the frame *fsn* of this segment. In memory, it is valid until the segment is removed.

        Raises:
            OSError: a disk error.
        """
        index = fsn - self.header.base
        start = self.ends[index] + FRAME_HEAD.size
        return self.file.pread(self.ends[index + 1] - start, start)

    def payload_bytes_from(self, first: int) -> int:
        """Return the size of the payloads from the frame *first* on."""
        index = max(0, first - self.header.base)
        if index >= self.count:
            return 0
        return self.tail - self.ends[index] - FRAME_HEAD.size * (self.count - index)

    def bytes_saved(self, first: int) -> int:
        """
        Return how many bytes the segment saves without the frames before *first* and without space for new ones; 0 if
        *first* is not one of its frames.
        """
        index = first - self.header.base
        if not 0 < index < self.count:
            return 0
        return self.size_bytes - SEGMENT_HEADER.size - (self.tail - self.ends[index])

    def without(self, first: int, file: _SegmentFile) -> Segment:
        """Return *file* as a segment, after `copy_from` wrote the frames from *first* on into it."""
        cut = self.ends[first - self.header.base] - SEGMENT_HEADER.size
        ends = self.ends[first - self.header.base :]
        kept = [(start + FRAME_HEAD.size - cut, end - cut) for start, end in itertools.pairwise(ends)]
        segment = Segment(file, self.tail - cut, SegmentHeader(first, self.header.created_us), kept)
        segment.unsynced = False
        return segment

    def copy_from(self, first: int, file: _SegmentFile) -> None:
        """
        Write a segment with the frames from *first* on into *file*. The frames are copied without being decoded.

        Raises:
            OSError: a disk error; a part may have been written.
        """
        invariant(self.base <= first < self.next_fsn, "a shorter segment keeps its newest frames")
        file.pwrite(encode_segment_header(SegmentHeader(first, self.header.created_us)), 0)
        start = self.ends[first - self.header.base]
        cut = start - SEGMENT_HEADER.size
        for at in range(start, self.tail, _COPY_BYTES):
            file.pwrite(self.file.pread(min(_COPY_BYTES, self.tail - at), at), at - cut)

    def sync(self) -> None:
        """
        Make its frames durable.

        Raises:
            OSError: the durability of the frames is unknown.
        """
        if self.unsynced:
            self.unsynced = False
            self.file.sync_data()


class SegmentStorage(Protocol):
    """Creates and removes segments: in a directory, or in memory."""

    def create(self, generation: int, header: SegmentHeader, size_bytes: int) -> Segment:
        """Create an empty segment with all blocks reserved. If this fails, nothing is left of it."""

    def remove(self, segments: Sequence[Segment]) -> None:
        """Remove *segments*, in order; durable on return."""

    def shorten(self, segment: Segment, first: int) -> Segment:
        """
        Replace *segment* by one with its frames from *first* on, and return it. The old one is closed.

        A concurrent reader of the directory sees either the old or the new segment, complete.
        """


class MemorySegments:
    """Segments in memory. The memory of a few removed segments is reused."""

    def __init__(self) -> None:
        self._spares: deque[bytearray] = deque(maxlen=_SPARES_MAX)

    def create(self, generation: int, header: SegmentHeader, size_bytes: int) -> Segment:
        """Create an empty segment."""
        # Old content of the memory is harmless: only appended bytes are ever read.
        data = self._spares.pop() if self._spares else bytearray()
        if len(data) != size_bytes:
            data = bytearray(size_bytes)
        return Segment(_Memory(segment_name(generation), data), size_bytes, header)

    def remove(self, segments: Sequence[Segment]) -> None:
        """Release the memory."""
        for segment in segments:
            if isinstance(segment.file, _Memory):
                self._spares.append(segment.file.data)
            segment.file.close()

    def shorten(self, segment: Segment, first: int) -> Segment:
        """Return a copy that takes no more memory than its frames."""
        file = _Memory(segment.path, bytearray(segment.size_bytes - segment.bytes_saved(first)))
        segment.copy_from(first, file)
        segment.file.close()
        return segment.without(first, file)


class DiskSegments:
    """Segments in the directory of a slot. Without *durable*, new segments are not synced: their frames never are."""

    def __init__(self, fs: FileSystem, directory: str, *, durable: bool) -> None:
        self._fs = fs
        self._directory = directory
        self._durable = durable

    def create(self, generation: int, header: SegmentHeader, size_bytes: int) -> Segment:
        """
        Create an empty segment with all blocks reserved. With *durable*, its name and header are durable on return.

        Raises:
            OSError: the disk is full, or a disk error occurred; the file was removed again.
        """
        path = f"{self._directory}/{segment_name(generation)}"
        file: File = self._fs.create(path, mode=_READ_ONLY)
        try:
            reserve_blocks(file, 0, size_bytes, on_unsupported="zeros")
            file.pwrite(encode_segment_header(header), 0)
            if self._durable:
                # First the bytes, then the name: a name without a header would look like an unused file.
                file.sync_data()
                self._fs.sync_dir(self._directory)
        except OSError:
            file.close()
            self._fs.remove(path)
            raise
        segment = Segment(file, size_bytes, header)
        segment.unsynced = not self._durable
        return segment

    def remove(self, segments: Sequence[Segment]) -> None:
        """
        Remove the files, in order; durable on return.

        Raises:
            OSError: some may have been removed.
        """
        for segment in segments:
            segment.file.close()
            self._fs.remove(segment.path)
        if segments:
            self._fs.sync_dir(self._directory)

    def shorten(self, segment: Segment, first: int) -> Segment:
        """
        Replace the file of *segment* by one with its frames from *first* on; durable on return.

        A copy is written next to it, synced, and renamed over it. Punching a hole would not do: a scan of the slot
        would take its zeros for the end of the frames, and not every client reads the watermark to find the start.

        Raises:
            OSError: no space for the copy, which was removed again, or a disk error. The segment is unchanged.
        """
        temporary = shorter_name(segment.path)
        size_bytes = segment.size_bytes - segment.bytes_saved(first)
        file: File = self._fs.create_or_truncate(temporary, mode=_READ_ONLY)
        try:
            try:
                reserve_blocks(file, 0, size_bytes, on_unsupported="zeros")
                segment.copy_from(first, file)
                file.sync_data()
            finally:
                file.close()
        except OSError:
            with contextlib.suppress(OSError):
                self._fs.remove(temporary)
            raise
        segment.file.close()  # some systems cannot replace an open file
        try:
            self._fs.rename(temporary, segment.path)
        except OSError:
            segment.file = self._fs.open_write(segment.path)
            raise
        self._fs.sync_dir(self._directory)
        return segment.without(first, self._fs.open_write(segment.path))
