"""
One segment of a ring, on disk or in memory: frames are added at its tail and read by their number.

Where a frame starts is kept in memory, so reading one is one call. The blocks of a file are reserved when it is made: a
full disk is an error then, and never one later.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Protocol

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
    """A file that is gone with the process. Only what a segment calls."""

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
    Frames `base` … `base + count - 1`. One thread appends; others may read what was published.

    Args:
        file: open for writing; it is closed with the segment.
        size_bytes: of the file.
        header: what stands at its beginning.
        payloads: where the payload of each frame starts and ends.
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
        self.ends = [SEGMENT_HEADER.size, *(end for _, end in payloads)]  # of each frame; the header's first
        self.unsynced = not payloads

    @property
    def path(self) -> str:
        """Of the file."""
        return self.file.path

    @property
    def base(self) -> int:
        """The sequence number of the first frame."""
        return self.header.base

    @property
    def count(self) -> int:
        """Frames that are in it."""
        return len(self.ends) - 1

    @property
    def next_fsn(self) -> int:
        """The sequence number behind the last frame."""
        return self.header.base + len(self.ends) - 1

    @property
    def tail(self) -> int:
        """The offset behind the last frame."""
        return self.ends[-1]

    def has_room(self, payload_bytes: int) -> bool:
        """Say whether a frame with so many bytes of payload still fits."""
        return self.ends[-1] + FRAME_HEAD.size + payload_bytes <= self.size_bytes

    def write(self, head: bytes, payload: Buffer, payload_bytes: int) -> int:
        """
        Write a frame at the tail and return its end; it is there for readers only when `publish` has been called.

        Raises:
            OSError: some of it may have been written.
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
        Write zeros over a frame that was not finished, so that nothing of it is ever taken for one.

        Raises:
            OSError: the zeros were refused, too.
        """
        zero_fill(self.file, self.ends[-1], FRAME_HEAD.size + payload_bytes)  # type: ignore[arg-type]

    def rebase(self, base: int) -> None:
        """
        Give an empty segment another first sequence number.

        Raises:
            OSError: the header could not be written.
        """
        if base != self.header.base:
            self.unsynced = True
            self.file.pwrite(base.to_bytes(8, "little"), _BASE_OFFSET)
            self.header = SegmentHeader(base, self.header.created_us, self.header.flags)

    def read(self, fsn: int) -> Buffer:
        """
        Return the payload of the frame *fsn*, which is in it; in memory, valid until the segment is removed.

        Raises:
            OSError: the disk refused.
        """
        index = fsn - self.header.base
        start = self.ends[index] + FRAME_HEAD.size
        return self.file.pread(self.ends[index + 1] - start, start)

    def payload_bytes_from(self, first: int) -> int:
        """Return the bytes of the payloads of its frames from *first* on."""
        index = max(0, first - self.header.base)
        if index >= self.count:
            return 0
        return self.tail - self.ends[index] - FRAME_HEAD.size * (self.count - index)

    def bytes_saved(self, first: int) -> int:
        """
        Return by how much it is shorter without the frames before *first*, and without room for further ones; 0 when
        *first* is none of its frames.
        """
        index = first - self.header.base
        if not 0 < index < self.count:
            return 0
        return self.size_bytes - SEGMENT_HEADER.size - (self.tail - self.ends[index])

    def without(self, first: int, file: _SegmentFile) -> Segment:
        """Return what *file* is after `copy_from` put the frames from *first* on into it."""
        cut = self.ends[first - self.header.base] - SEGMENT_HEADER.size
        ends = self.ends[first - self.header.base :]
        kept = [(start + FRAME_HEAD.size - cut, end - cut) for start, end in itertools.pairwise(ends)]
        segment = Segment(file, self.tail - cut, SegmentHeader(first, self.header.created_us), kept)
        segment.unsynced = False
        return segment

    def copy_from(self, first: int, file: _SegmentFile) -> None:
        """
        Write a segment with the frames from *first* on into *file*. They are copied as they are, unread.

        Raises:
            OSError: the disk refused; some of it may be there.
        """
        file.pwrite(encode_segment_header(SegmentHeader(first, self.header.created_us)), 0)
        start = self.ends[first - self.header.base]
        cut = start - SEGMENT_HEADER.size
        for at in range(start, self.tail, _COPY_BYTES):
            file.pwrite(self.file.pread(min(_COPY_BYTES, self.tail - at), at), at - cut)

    def sync(self) -> None:
        """
        Make its frames durable.

        Raises:
            OSError: nothing may be assumed about them any more.
        """
        if self.unsynced:
            self.unsynced = False
            self.file.sync_data()


class SegmentStorage(Protocol):
    """Where segments are made and removed: a directory, or memory."""

    def create(self, generation: int, header: SegmentHeader, size_bytes: int) -> Segment:
        """Make an empty segment with all of its blocks; nothing is left of it when that fails."""

    def remove(self, segments: Sequence[Segment]) -> None:
        """Remove *segments*, in their order, durably on return."""

    def shorten(self, segment: Segment, first: int) -> Segment:
        """
        Return a segment with the frames of *segment* from *first* on, in its place; the old one is closed.

        Whoever reads the directory sees the old one or the new one, whole.
        """


class MemorySegments:
    """Segments that are gone with the process. Memory of a few that were removed is kept for the next."""

    def __init__(self) -> None:
        self._spares: deque[bytearray] = deque(maxlen=_SPARES_MAX)

    def create(self, generation: int, header: SegmentHeader, size_bytes: int) -> Segment:
        """Make an empty segment."""
        # What it held before is never read: only what was appended is.
        data = self._spares.pop() if self._spares else bytearray()
        if len(data) != size_bytes:
            data = bytearray(size_bytes)
        return Segment(_Memory(segment_name(generation), data), size_bytes, header)

    def remove(self, segments: Sequence[Segment]) -> None:
        """Let go of the memory."""
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
    """Segments in the directory of a slot. Without *durable* a new one is not synced, as nothing in it will be."""

    def __init__(self, fs: FileSystem, directory: str, *, durable: bool) -> None:
        self._fs = fs
        self._directory = directory
        self._durable = durable

    def create(self, generation: int, header: SegmentHeader, size_bytes: int) -> Segment:
        """
        Make an empty segment with all of its blocks reserved; its name and header are durable on return, if that was
        asked for.

        Raises:
            OSError: there is no room, or the disk refused; the file is gone again.
        """
        path = f"{self._directory}/{segment_name(generation)}"
        file: File = self._fs.create(path, mode=_READ_ONLY)
        try:
            reserve_blocks(file, 0, size_bytes, on_unsupported="zeros")
            file.pwrite(encode_segment_header(header), 0)
            if self._durable:
                # A name without a header would look like a file that was never used: first the bytes, then the name.
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
        Unlink the files, in their order, durably on return.

        Raises:
            OSError: some may be gone.
        """
        for segment in segments:
            segment.file.close()
            self._fs.remove(segment.path)
        if segments:
            self._fs.sync_dir(self._directory)

    def shorten(self, segment: Segment, first: int) -> Segment:
        """
        Replace the file of *segment* by one with its frames from *first* on, durably on return.

        A copy beside it is written, synced and renamed over it. Not a hole in the file: whoever scans the slot would
        take its zeros for the end of the frames, and not every client asks the watermark where to begin.

        Raises:
            OSError: there is no room for the copy, which is gone again, or the disk refused. The segment is as it was.
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
        segment.file.close()  # not every system replaces a file that is open
        try:
            self._fs.rename(temporary, segment.path)
        except OSError:
            segment.file = self._fs.open_write(segment.path)
            raise
        self._fs.sync_dir(self._directory)
        return segment.without(first, self._fs.open_write(segment.path))
