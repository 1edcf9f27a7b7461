"""
The sealed segments of an open store: their sizes and files, and access to their bundles.

Readers are opened on first use and cached, up to a limit. A batch that was returned keeps its mapping alive, even after
its segment is closed or deleted.
"""

from __future__ import annotations

import posixpath
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator

from quiver.bundle import Adapter, Bundle
from quiver.errors import BundleUnavailableError, CorruptionError
from quiver.invariant import invariant
from quiver.primitives.disk.atomic import remove_durably
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.format.cores import EVICTED
from quiver.store.number_floor import raise_floor
from quiver.store.segment.info import SegmentInfo
from quiver.store.segment.reader import SegmentReader
from quiver.store.segment.verified import VerifiedSegments

__all__ = ["Catalog"]

READERS_MAX = 64

MAPPED_BYTES_MAX = 128 * 1024 * 1024
"""Pages of mapped files count as memory of this process. They are kept for this many bytes of segments, and at
least for one; otherwise the process would appear as large as the backlog that a subscriber reads."""

COLD_BYTES_MAX = 128 * 1024 * 1024
"""Segments of the object tier are read from memory: this many bytes of them are cached, and at least one."""

READ_AHEAD_MAX = 256
"""The number of bundles for which one look-up is enough if they are requested in sequence."""

PLACES_MAX = 16
"""The number of places in a segment from which bundles are read in sequence."""

_Latest = tuple[int, SegmentReader, dict[int, Generator[Bundle]]]
"""The segment that was read last, verified: its number, its reader, and what reads the bundles from some indices on.
Bundles of one segment are usually read in sequence."""


class Catalog:
    """Sealed segments by number. Thread-safe."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        adapter: Adapter,
        *,
        on_damage: Callable[[SegmentInfo, CorruptionError], None],
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._adapter = adapter
        self._on_damage = on_damage
        self._lock = threading.Lock()
        self._segments: dict[int, SegmentInfo] = {}
        self._cold: set[int] = set()
        """Segments that only the object tier has."""
        self._leaving: set[int] = set()
        """Segments whose files are being removed."""
        self._readers: OrderedDict[int, SegmentReader] = OrderedDict()
        self._mapped: OrderedDict[int, int] = OrderedDict()
        """Bytes of the segments that were read last, whose pages are kept; the latest is last."""
        self._latest: _Latest | None = None
        self.bytes = 0
        """The bytes of the segments on disk."""
        self.verified = VerifiedSegments()
        """Segments whose checksum was verified; other readers in this process need not repeat it."""

    def add(self, info: SegmentInfo) -> None:
        """Add a sealed segment; from now on it can be read."""
        with self._lock:
            invariant(info.seq not in self._segments, f"segment number {info.seq} must not be used twice")
            self._segments[info.seq] = info
            self.bytes += info.size_bytes

    def add_cold(self, info: SegmentInfo) -> None:
        """Add a segment that only the object tier has."""
        with self._lock:
            self._segments[info.seq] = info
            self._cold.add(info.seq)

    def is_local(self, seq: int) -> bool:
        """Return whether segment *seq* is on disk."""
        return seq in self._segments and seq not in self._cold

    def local_segments(self) -> list[SegmentInfo]:
        """Return the segments on disk, ascending."""
        with self._lock:
            return [self._segments[seq] for seq in sorted(self._segments.keys() - self._cold)]

    @property
    def local_count(self) -> int:
        """The number of segments on disk."""
        return len(self._segments) - len(self._cold)

    def segments(self) -> list[SegmentInfo]:
        """Return all known segments, ascending."""
        with self._lock:
            return [self._segments[seq] for seq in sorted(self._segments)]

    def get(self, seq: int) -> SegmentInfo | None:
        """Return the description of segment *seq*, or None if it does not exist."""
        return self._segments.get(seq)

    def __len__(self) -> int:
        return len(self._segments)

    def __contains__(self, seq: int) -> bool:
        return seq in self._segments

    def bundle(self, place: tuple[int, int]) -> Bundle:
        """
        Return the bundle at *place*, a segment and an index; its buffers stay valid while it is held.

        Raises:
            BundleUnavailableError: no such segment or index.
            CorruptionError: the segment's bytes are not what was written.
        """
        seq, index = place
        latest = self._latest
        if latest is None or latest[0] != seq:
            latest = self._look_at(seq)
        places = latest[2]
        # It belongs to this thread until it is put back.
        following = places.pop(index, None)
        bundle = None if following is None else next(following, None)
        if following is None or bundle is None:
            end = min(index + READ_AHEAD_MAX, latest[1].bundle_count)
            following = latest[1].bundles(index, max(end, index + 1), self._adapter)
            bundle = next(following)
            if len(places) >= PLACES_MAX:
                places.clear()
        places[index + 1] = following
        return bundle

    def bundles(self, seq: int, first: int, end: int) -> Iterator[Bundle]:
        """
        Return the bundles *first* to *end* (excluded) of segment *seq*, each read when it is due.

        Their buffers stay valid while they are held.

        Raises:
            BundleUnavailableError: no such segment or index.
            CorruptionError: the segment's bytes are not what was written.
        """
        latest = self._latest
        if latest is None or latest[0] != seq:
            latest = self._look_at(seq)
        following = latest[2].pop(first, None)
        if following is not None:
            following.close()  # a single bundle was read before: this continues where it returned
        return latest[1].bundles(first, end, self._adapter)

    def _look_at(self, seq: int) -> _Latest:
        info = self._segments.get(seq)
        if info is None:
            raise BundleUnavailableError(f"segment {seq} is not on disk any more")
        try:
            reader = self._reader(info)
            reader.verify()
        except CorruptionError as damage:
            was_local = self.is_local(seq)
            self._on_damage(info, damage)
            if was_local and seq in self._cold:
                return self._look_at(seq)  # the object tier still has it
            raise
        latest: _Latest = seq, reader, {}
        with self._lock:
            if seq in self._segments:
                self._latest = latest
                self._let_pages_go(seq, info.size_bytes)
        return latest

    def _let_pages_go(self, seq: int, nbytes: int) -> None:
        # Computing the checksum has read every page once.
        self._mapped[seq] = nbytes
        self._mapped.move_to_end(seq)
        mapped_bytes = sum(self._mapped.values())
        while mapped_bytes > MAPPED_BYTES_MAX and len(self._mapped) > 1:
            oldest, size_bytes = self._mapped.popitem(last=False)
            mapped_bytes -= size_bytes
            reader = self._readers.get(oldest)
            if reader is not None:
                reader.release_pages()

    def _reader(self, info: SegmentInfo) -> SegmentReader:
        with self._lock:
            reader = self._readers.get(info.seq)
            if reader is not None:
                self._readers.move_to_end(info.seq)
                return reader
        try:
            reader = SegmentReader.open(self._fs, info.path, verified=self.verified)
        except FileNotFoundError as error:
            with self._lock:
                is_leaving = info.seq in self._leaving or info.seq not in self._segments
            # Another core may have evicted it; the next maintenance pass accounts for that.
            if is_leaving or self._fs.exists(f"{self._directory.rpartition('/')[0]}/{EVICTED}"):
                raise BundleUnavailableError(f"segment {info.seq} is not on disk any more") from error
            raise CorruptionError(info.path, 0, "the segment file is missing") from error
        with self._lock:
            self._readers[info.seq] = reader
            # Dropped, not closed: another thread may be reading from it.
            if len(self._readers) > READERS_MAX:
                self._readers.popitem(last=False)
            cold_readers = [seq for seq in self._readers if seq in self._cold]
            nbytes = sum(self._readers[seq].info.size_bytes for seq in cold_readers)
            for seq in cold_readers[:-1]:
                if nbytes > COLD_BYTES_MAX:
                    nbytes -= self._readers.pop(seq).info.size_bytes
        return reader

    def forget(self, seq: int) -> None:
        """Remove a segment whose file was moved or deleted."""
        with self._lock:
            self._let_go(seq)
            self._leaving.discard(seq)
            info = self._segments.pop(seq, None)
            if info is not None:
                self.verified.forget(info.path)
            self._cold.discard(seq)

    def _let_go(self, seq: int) -> None:
        self._readers.pop(seq, None)  # an open file keeps its disk space even when it is deleted
        self._mapped.pop(seq, None)
        if self._latest is not None and self._latest[0] == seq:
            self._latest = None
        if seq in self._segments and seq not in self._cold:
            self.bytes -= self._segments[seq].size_bytes
            self._cold.add(seq)

    def went_cold(self, seq: int) -> None:
        """Record that only the object tier has segment *seq* now."""
        with self._lock:
            self._let_go(seq)

    def let_go(self, seqs: Iterable[int]) -> int:
        """
        Remove the files of segments that the object tier has, durably; return the bytes freed. The catalog keeps them.

        Raises:
            OSError: a file could not be removed; it still counts as present, and can be tried again.
        """
        infos = [self._segments[seq] for seq in seqs if self.is_local(seq)]
        remove_durably(self._fs, [info.path for info in infos])
        for info in infos:
            self.went_cold(info.seq)
        return sum(info.size_bytes for info in infos)

    def keep_floor(self, floor: int) -> None:
        """
        Ensure that after a restart no new segment gets a number below *floor*. Durable on return.

        The highest name on disk determines the next number. Before that file is removed, the number must be recorded;
        otherwise a new segment would get an old number that subscribers count as delivered.

        Raises:
            OSError: it could not be written; nothing may be removed.
        """
        with self._lock:
            highest = max(self._segments, default=-1)
        if floor > highest:
            raise_floor(self._fs, posixpath.dirname(self._directory), floor)

    def delete(self, seqs: Iterable[int]) -> int:
        """
        Remove segments from disk, durably, and return the bytes freed.

        Raises:
            OSError: a file could not be removed; it stays in the catalog and can be tried again.
        """
        with self._lock:
            removed = [self._segments[seq] for seq in seqs if seq in self._segments]
            self._leaving.update(info.seq for info in removed)
            local = [info for info in removed if info.seq not in self._cold]
        if local:
            remove_durably(self._fs, [info.path for info in local])
        for info in removed:
            self.forget(info.seq)
        return sum(info.size_bytes for info in local)

    def close(self) -> None:
        """Close all readers. Batches that were returned stay valid."""
        with self._lock:
            self._readers.clear()
            self._mapped.clear()
            self._latest = None
