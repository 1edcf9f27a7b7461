"""The sealed segments of a log: where they are, what their header and footer say, and maps of those that are read."""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from quiver.aof.format.segment_file import FOOTER_BYTES, SegmentFooter, SegmentHeader
from quiver.primitives.disk.file_system import FileSystem

__all__ = ["Catalog", "SealedSegment"]

_MAPS_MAX = 64
"""Maps that are kept for the next reader. One that is in use stays as long as it is used."""


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A segment that never changes any more."""

    path: str
    header: SegmentHeader
    footer: SegmentFooter

    @property
    def segment_id(self) -> int:
        """Its id: the upper half of the ids of its records."""
        return self.header.segment_index

    @property
    def end(self) -> int:
        """The offset behind its last record."""
        return self.footer.durable_bytes - self.header.base_offset

    @property
    def next_base_offset(self) -> int:
        """The base offset of the segment that follows: header, records and footer are counted."""
        return self.footer.durable_bytes + FOOTER_BYTES

    @property
    def next_base_record_count(self) -> int:
        """Records up to and with this segment."""
        return self.header.base_record_count + self.footer.record_count


class Catalog:
    """Sealed segments by id, *sealed* to begin with. Thread-safe."""

    def __init__(self, fs: FileSystem, sealed: Iterable[SealedSegment] = ()) -> None:
        self._fs = fs
        self._lock = threading.Lock()
        self._segments = {one.segment_id: one for one in sealed}
        self._ids = sorted(self._segments)
        self._maps: OrderedDict[int, memoryview] = OrderedDict()

    def add(self, segment: SealedSegment) -> None:
        """Take a segment that was sealed."""
        with self._lock:
            self._segments[segment.segment_id] = segment
            insort(self._ids, segment.segment_id)

    def remove(self, segment_id: int) -> None:
        """Forget a segment that left. Readers that have it mapped go on."""
        with self._lock:
            del self._segments[segment_id]
            self._ids.remove(segment_id)
            self._maps.pop(segment_id, None)

    def forget_map(self, segment_id: int) -> None:
        """Keep no map of a segment whose file leaves. Readers that have it mapped go on."""
        with self._lock:
            self._maps.pop(segment_id, None)

    def get(self, segment_id: int) -> SealedSegment | None:
        """Return the sealed segment with that id."""
        with self._lock:
            return self._segments.get(segment_id)

    def after(self, segment_id: int) -> SealedSegment | None:
        """Return the sealed segment with the lowest id above *segment_id*."""
        with self._lock:
            index = bisect_right(self._ids, segment_id)
            return self._segments[self._ids[index]] if index < len(self._ids) else None

    def all(self) -> list[SealedSegment]:
        """Return all sealed segments, oldest first."""
        with self._lock:
            return [self._segments[segment_id] for segment_id in self._ids]

    def view(self, segment: SealedSegment) -> memoryview:
        """
        Return the bytes of a sealed segment, mapped. The view stays valid as long as it is kept.

        Raises:
            OSError: the file cannot be mapped; FileNotFoundError when it left meanwhile.
        """
        with self._lock:
            view = self._maps.get(segment.segment_id)
            if view is not None:
                self._maps.move_to_end(segment.segment_id)
                return view
        view = self._fs.map_read(segment.path).view()
        with self._lock:
            if segment.segment_id in self._segments:
                self._maps[segment.segment_id] = view
                if len(self._maps) > _MAPS_MAX:
                    self._maps.popitem(last=False)
        return view
