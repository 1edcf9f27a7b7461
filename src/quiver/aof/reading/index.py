"""
Sparse indexes of sealed segments: made when a segment is packed or first searched, and stored in `index/`.

An index only shortens a search. Without one, the search reads all record heads of the segment.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from quiver.aof.format.names import INDEX, index_name, parse_index_name
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.aof.format.sparse_index import (
    INDEX_BYTES_MAX,
    IndexMark,
    SparseIndex,
    decode_index,
    encode_index,
    mark_records,
)
from quiver.aof.reading.catalog import SealedSegment
from quiver.observe import Observer
from quiver.primitives.disk.atomic import TEMPORARY_SUFFIX, replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.small_file import read_if_valid

__all__ = ["SparseIndexes", "before_number", "before_time", "load_index"]

_KEPT_MAX = 64


def load_index(fs: FileSystem, root: str, segment_id: int, base_offset: int, end: int) -> SparseIndex | None:
    """
    Return the index of a sealed segment that ends at *end*; None without a valid one.

    Raises:
        OSError: the disk cannot be read.
    """
    path = f"{root}/{INDEX}/{index_name(segment_id, base_offset)}"
    found = read_if_valid(fs, path, decode_index, INDEX_BYTES_MAX)
    if found is None:
        return None
    fits = (found.segment_index, found.base_offset, found.end) == (segment_id & 0xFFFF_FFFF, base_offset, end)
    return found if fits else None


def before_time(marks: Sequence[IndexMark], timestamp: int) -> tuple[int, int | None]:
    """
    Return the offsets between which the first record that is not older than *timestamp* begins; None: up to the end.

    At the second offset a record begins that is not older.
    """
    at = bisect_left(marks, timestamp, key=lambda mark: mark.timestamp)
    return (marks[at - 1].offset if at else HEADER_BYTES), (marks[at].offset if at < len(marks) else None)


def before_number(marks: Sequence[IndexMark], number: int) -> tuple[int, int]:
    """Return the number of the last known record up to *number*, and where it begins."""
    at = bisect_right(marks, number, key=lambda mark: mark.number)
    return (marks[at - 1].number, marks[at - 1].offset) if at else (0, HEADER_BYTES)


class SparseIndexes:
    """
    The indexes of one open log. Thread-safe.

    Attributes:
        enabled: whether indexes are stored and made.
    """

    def __init__(self, fs: FileSystem, root: str, *, enabled: bool, observer: Observer) -> None:
        self._fs = fs
        self._root = root
        self.enabled = enabled
        self._observer = observer
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[IndexMark, ...]] = OrderedDict()

    def remove_others(self, known: Iterable[int]) -> None:
        """Remove the indexes of other segments than *known*, or all if indexes are disabled. Not durable."""
        folder = f"{self._root}/{INDEX}"
        if not self._fs.exists(folder):
            return
        wanted = set(known) if self.enabled else set()
        for name in self._fs.list_dir(folder):
            parsed = parse_index_name(name.removesuffix(TEMPORARY_SUFFIX))
            if parsed is not None and (parsed[0] not in wanted or name.endswith(TEMPORARY_SUFFIX)):
                with contextlib.suppress(FileNotFoundError):
                    self._fs.remove(f"{folder}/{name}")

    def marks(self, sealed: SealedSegment) -> tuple[IndexMark, ...] | None:
        """
        Return the marks of a segment; None when there are none yet.

        Raises:
            OSError: the disk cannot be read.
        """
        if not self.enabled:
            return None
        with self._lock:
            found = self._kept.get(sealed.segment_id)
        if found is not None:
            return found
        index = load_index(self._fs, self._root, sealed.segment_id, sealed.header.base_offset, sealed.end)
        return None if index is None else self._keep(sealed.segment_id, index.marks)

    def make(self, sealed: SealedSegment, view: memoryview) -> tuple[IndexMark, ...]:
        """Return the marks of a segment, whose file is *view*, and store them as far as the disk allows."""
        found = self.marks(sealed)
        if found is not None or not self.enabled:
            return found or ()
        marks = mark_records(view, sealed.end)
        index = SparseIndex(sealed.header.segment_index, sealed.header.base_offset, sealed.end, marks)
        name = index_name(sealed.segment_id, sealed.header.base_offset)
        try:
            self._fs.make_dirs(f"{self._root}/{INDEX}")
            replace_file(self._fs, f"{self._root}/{INDEX}/{name}", encode_index(index))
        except OSError:
            self._observer.count("aof_index_failed_total")  # the next search makes it again
        return self._keep(sealed.segment_id, marks)

    def remove(self, sealed: SealedSegment) -> None:
        """Remove the index of a removed segment. Not durable: after a crash `remove_others` removes it."""
        with self._lock:
            self._kept.pop(sealed.segment_id, None)
        name = index_name(sealed.segment_id, sealed.header.base_offset)
        with contextlib.suppress(FileNotFoundError):
            self._fs.remove(f"{self._root}/{INDEX}/{name}")

    def _keep(self, segment_id: int, marks: tuple[IndexMark, ...]) -> tuple[IndexMark, ...]:
        with self._lock:
            self._kept[segment_id] = marks
            if len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        return marks
