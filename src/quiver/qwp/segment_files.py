"""
One segment of a ring, on disk or in memory: frames are added at its tail and read by their number.

Where a frame starts is kept in memory, so reading one is one call. The blocks of a file are reserved when it is made: a
full disk is an error then, and never one later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quiver.primitives.files import Buffer, File, FileSystem
from quiver.primitives.prealloc import reserve_blocks, zero_fill
from quiver.qwp.format.names import segment_name
from quiver.qwp.format.segment import FRAME_HEAD, SEGMENT_HEADER, SegmentHeader, encode_segment_header

__all__ = ["DiskSegments", "MemorySegments", "Segment", "SegmentStorage"]

_BASE_OFFSET = 8
_READ_ONLY = 0o644


class _Memory:
    """
    A file that is gone with the process. Only what a segment calls.
    """

    def __init__(self, path: str, size_bytes: int) -> None:
        self.path = path
        self._data = bytearray(size_bytes)

    def pread(self, size: int, offset: int) -> bytes:
        return bytes(memoryview(self._data)[offset : offset + size])

    def pwrite(self, data: Buffer, offset: int) -> None:
        view = memoryview(data).cast("B")
        self._data[offset : offset + len(view)] = view

    def pwritev(self, parts: Sequence[Buffer], offset: int, size: int = -1) -> None:  # noqa: ARG002
        for part in parts:
            self.pwrite(part, offset)
            offset += memoryview(part).nbytes

    def sync_data(self) -> None:
        return

    def close(self) -> None:
        self._data = bytearray()


class _SegmentFile(Protocol):
    path: str

    def pread(self, size: int, offset: int) -> bytes: ...
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
        """
        Of the file.
        """
        return self.file.path

    @property
    def base(self) -> int:
        """
        The sequence number of the first frame.
        """
        return self.header.base

    @property
    def count(self) -> int:
        """
        Frames that are in it.
        """
        return len(self.ends) - 1

    @property
    def next_fsn(self) -> int:
        """
        The sequence number behind the last frame.
        """
        return self.header.base + len(self.ends) - 1

    @property
    def tail(self) -> int:
        """
        The offset behind the last frame.
        """
        return self.ends[-1]

    def has_room(self, payload_bytes: int) -> bool:
        """
        Say whether a frame with so many bytes of payload still fits.
        """
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
        """
        Make the frame that ends at *end* the last one.
        """
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

    def read(self, fsn: int) -> bytes:
        """
        Return the payload of the frame *fsn*, which is in it.

        Raises:
            OSError: the disk refused.
        """
        index = fsn - self.header.base
        start = self.ends[index] + FRAME_HEAD.size
        return self.file.pread(self.ends[index + 1] - start, start)

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
    """
    Where segments are made and removed: a directory, or memory.
    """

    def create(self, generation: int, header: SegmentHeader, size_bytes: int) -> Segment:
        """
        Make an empty segment with all of its blocks; nothing is left of it when that fails.
        """

    def remove(self, segments: Sequence[Segment]) -> None:
        """
        Remove *segments*, in their order, durably on return.
        """


class MemorySegments:
    """
    Segments that are gone with the process.
    """

    def create(self, generation: int, header: SegmentHeader, size_bytes: int) -> Segment:
        """
        Make an empty segment.
        """
        return Segment(_Memory(segment_name(generation), size_bytes), size_bytes, header)

    def remove(self, segments: Sequence[Segment]) -> None:
        """
        Let go of the memory.
        """
        for segment in segments:
            segment.file.close()


class DiskSegments:
    """
    Segments in the directory of a slot. Without *durable* a new one is not synced, as nothing in it will be.
    """

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
