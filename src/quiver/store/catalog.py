"""
The sealed segments a store knows: which there are, how large, and a bundle of one.

Readers are opened when first needed and kept, a bounded number of them; a batch that was handed out keeps its
mapping alive by itself, also when its segment is closed or deleted here.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable

from quiver.bundle import Adapter, Bundle, BundleRef
from quiver.errors import BundleUnavailable, Damaged
from quiver.primitives.atomic import remove_durably, replace_file
from quiver.primitives.files import FileSystem
from quiver.store.format.cores import EVICTED
from quiver.store.format.floor import encode_floor
from quiver.store.format.names import SEGMENT_FLOOR
from quiver.store.segment.info import SegmentInfo
from quiver.store.segment.reader import SegmentReader
from quiver.store.segment.verified import VerifiedSegments

__all__ = ["Catalog"]

READERS_MAX = 64


class Catalog:
    """
    Sealed segments by number. Thread-safe.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        adapter: Adapter,
        *,
        on_damage: Callable[[SegmentInfo, Damaged], None],
    ) -> None:
        self._files = files
        self._directory = directory
        self._adapter = adapter
        self._on_damage = on_damage
        self._lock = threading.Lock()
        self._segments: dict[int, SegmentInfo] = {}
        self._leaving: set[int] = set()
        """Known still, while their files are being removed."""
        self._readers: OrderedDict[int, SegmentReader] = OrderedDict()
        self._latest: SegmentReader | None = None
        """The one that was asked last, checked: bundles of one segment are taken one behind the other."""
        self.bytes = 0
        self.verified = VerifiedSegments()
        """Segments whose checksum was computed; whoever reads them beside the catalog need not do it again."""

    def add(self, info: SegmentInfo) -> None:
        """
        Make a sealed segment known; from now on it can be read.
        """
        with self._lock:
            self._segments[info.seq] = info
            self.bytes += info.size_bytes

    def segments(self) -> list[SegmentInfo]:
        """
        Return all known segments, ascending.
        """
        with self._lock:
            return [self._segments[seq] for seq in sorted(self._segments)]

    def get(self, seq: int) -> SegmentInfo | None:
        """
        Return what is known of segment *seq*, or None when there is none.
        """
        return self._segments.get(seq)

    def __len__(self) -> int:
        return len(self._segments)

    def __contains__(self, seq: int) -> bool:
        return seq in self._segments

    def bundle(self, ref: BundleRef) -> Bundle:
        """
        Return one bundle; its buffers stay valid while it is held.

        Raises:
            BundleUnavailable: no such segment or index.
            Damaged: the segment's bytes are not what was written.
        """
        seq, index = ref
        info = self._segments.get(seq)
        if info is None:
            raise BundleUnavailable(f"segment {seq} is not on disk any more")
        reader = self._latest
        if reader is None or reader.info.seq != seq:
            try:
                reader = self._reader(info)
                reader.verify()
            except Damaged as damage:
                self._on_damage(info, damage)
                raise
            with self._lock:
                if seq in self._segments:
                    self._latest = reader
        slots, times = reader.bundle(index), reader.manifest.ingested_times_ns
        return Bundle.of_read(slots, None if times is None else times[index], self._adapter)

    def _reader(self, info: SegmentInfo) -> SegmentReader:
        with self._lock:
            reader = self._readers.get(info.seq)
            if reader is not None:
                self._readers.move_to_end(info.seq)
                return reader
        try:
            reader = SegmentReader.open(self._files, info.path, verified=self.verified)
        except FileNotFoundError as error:
            with self._lock:
                is_leaving = info.seq in self._leaving or info.seq not in self._segments
            # Another core may have evicted it; this one takes note at its next maintenance pass.
            if is_leaving or self._files.exists(f"{self._directory.rpartition('/')[0]}/{EVICTED}"):
                raise BundleUnavailable(f"segment {info.seq} is not on disk any more") from error
            raise Damaged(info.path, 0, "the segment file is gone") from error
        with self._lock:
            self._readers[info.seq] = reader
            if len(self._readers) > READERS_MAX:
                # Dropped, not closed: another thread may be reading from it.
                self._readers.popitem(last=False)
        return reader

    def forget(self, seq: int) -> None:
        """
        Stop knowing a segment whose file went elsewhere.
        """
        with self._lock:
            self._readers.pop(seq, None)
            if self._latest is not None and self._latest.info.seq == seq:
                self._latest = None
            self._leaving.discard(seq)
            info = self._segments.pop(seq, None)
            if info is not None:
                self.bytes -= info.size_bytes
                self.verified.forget(info.path)

    def keep_floor(self, floor: int) -> None:
        """
        Make sure that after a restart no new segment gets a number below *floor*. Durable on return.

        The highest name on disk says what the next number is. Before that name goes, the number is written down; or
        a new segment would get an old number that subscribers count as delivered.

        Raises:
            OSError: it could not be written; nothing may be removed.
        """
        with self._lock:
            highest = max(self._segments, default=-1)
        if floor > highest:
            replace_file(self._files, f"{self._directory}/{SEGMENT_FLOOR}", encode_floor(floor))

    def delete(self, seqs: Iterable[int]) -> int:
        """
        Remove segments from disk, durably, and return the bytes freed.

        Raises:
            OSError: a file could not be removed; it stays known and can be tried again.
        """
        with self._lock:
            gone = [self._segments[seq] for seq in seqs if seq in self._segments]
            self._leaving.update(info.seq for info in gone)
        remove_durably(self._files, [info.path for info in gone])
        for info in gone:
            self.forget(info.seq)
        return sum(info.size_bytes for info in gone)

    def close(self) -> None:
        """
        Let go of all readers. Batches handed out stay valid.
        """
        with self._lock:
            self._readers.clear()
            self._latest = None
