"""The sealed segments of a log: their paths, headers and footers, and mappings of those that are read."""

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
"""How many mappings are cached for the next reader. A mapping in use stays valid."""


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A segment that never changes."""

    path: str
    header: SegmentHeader
    footer: SegmentFooter

    @property
    def segment_id(self) -> int:
        """Its id: the upper half of its record ids."""
        return self.header.segment_index

    @property
    def end(self) -> int:
        """The offset after its last record."""
        return self.footer.durable_bytes - self.header.base_offset

    @property
    def next_base_offset(self) -> int:
        """The base offset of the next segment: header, records and footer count."""
        return self.footer.durable_bytes + FOOTER_BYTES

    @property
    def next_base_record_count(self) -> int:
        """Records up to and including this segment."""
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
        """Add a sealed segment."""
        with self._lock:
            self._segments[segment.segment_id] = segment
            insort(self._ids, segment.segment_id)

    def remove(self, segment_id: int) -> None:
        """Remove a segment that left the log. Existing mappings stay valid."""
        with self._lock:
            del self._segments[segment_id]
            self._ids.remove(segment_id)
            self._maps.pop(segment_id, None)

    def forget_map(self, segment_id: int) -> None:
        """Drop the cached mapping of a segment whose file is removed. Existing mappings stay valid."""
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
        Return the mapped bytes of a sealed segment. The view stays valid as long as it exists.

        Raises:
            OSError: the file cannot be mapped; FileNotFoundError when it was removed meanwhile.
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
