"""
From the open segment to a file: when it is due, who writes it, what happens when the write fails.

At most two segments are in memory: the open one, and one being written. A segment that could not be written
stays, keeps its number and is tried again; until it is on disk the log's cursor does not pass it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from quiver.clock import Clock
from quiver.errors import StoreFailed
from quiver.observe import Observer
from quiver.primitives.arena import Arena, BlockPool
from quiver.primitives.disk_full import is_full_disk
from quiver.primitives.files import FileSystem
from quiver.settings import Settings
from quiver.store.encode import EncodedBundle
from quiver.store.segment.accumulator import OpenSegment, SealedSegment
from quiver.store.segment.info import SegmentInfo
from quiver.store.segment.writer import write_segment

__all__ = ["LAG_SEGMENTS", "Pending", "Sealing"]

RETRY_S = 1.0
"""A segment write that found the disk full is tried again after this long."""

LAG_SEGMENTS = 8
"""Time-based sealing waits for size while every subscriber has this many finished segments to read."""


@dataclass(frozen=True, slots=True)
class Pending:
    """
    A segment that takes no more bundles and is not yet on disk.
    """

    seq: int
    sealed: SealedSegment
    arena: Arena


class Sealing:
    """
    The open segment and the one being written.

    `open`, `pending` and `next_seq` are read and changed under the store's lock; `write` runs outside it, by one
    thread at a time.
    """

    def __init__(
        self, files: FileSystem, directory: str, settings: Settings, clock: Clock, observer: Observer, next_seq: int
    ) -> None:
        self._files = files
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._observer = observer
        self.next_seq = next_seq
        self.open = self._new_segment()
        self.full = False
        """The open segment takes no more; it waits for the one before it."""
        # Two segments' worth: the open one's memory is what the one written before it gave back.
        self._pool = BlockPool(keep_bytes_max=2 * settings.segment_bytes_max)
        self.arena = Arena(self._pool)
        self.pending: Pending | None = None
        self.failure: OSError | None = None
        self._opened_at: float | None = None
        self._retry_at = 0.0

    def _new_segment(self) -> OpenSegment:
        return OpenSegment(streams_max=self._settings.segment_streams_max, bytes_max=self._settings.segment_bytes_max)

    @property
    def nbytes(self) -> int:
        """
        Bytes of bundles held in memory.
        """
        return self.open.nbytes + (self.pending.sealed.nbytes if self.pending is not None else 0)

    def add(self, encoded: EncodedBundle, ingested_at_ns: int, sequence: int, wal_start: int, wal_end: int) -> bool:
        """
        Add a bundle to the open segment; True when that has reached a limit of size, bundles or streams.
        """
        if self._opened_at is None:
            self._opened_at = self._clock.monotonic()
        self.full = full = self.open.append(encoded.slots, ingested_at_ns, sequence, wal_start, wal_end, encoded.nbytes)
        return full

    def is_old(self) -> bool:
        """
        Say whether the open segment's first bundle has waited its time.
        """
        return self._opened_at is not None and (
            self._clock.monotonic() - self._opened_at >= self._settings.segment_open_s_max
        )

    def swap(self) -> bool:
        """
        Close the open segment and begin another; False when it is empty or one is still being written.
        """
        if self.pending is not None or self.open.is_empty:
            return False
        self.pending = Pending(self.next_seq, self.open.seal(), self.arena)
        self.next_seq += 1
        self.arena = Arena(self._pool)
        self.open = self._new_segment()
        self._opened_at = None
        self.full = False
        return True

    def done(self) -> None:
        """
        Forget the pending segment, which is on disk, and use its memory again.
        """
        if self.pending is not None:
            pending, self.pending = self.pending, None
            pending.arena.release()

    def may_write(self) -> bool:
        """
        Say whether a pending segment may be tried now; a failed one waits a moment.
        """
        return self.pending is not None and (self.failure is None or self._clock.monotonic() >= self._retry_at)

    def write(self) -> SegmentInfo | None:
        """
        Write the pending segment; durable and named on return. None when the disk is full: try again later.

        Raises:
            StoreFailed: the disk failed otherwise.
        """
        pending = self.pending
        if pending is None:
            return None
        try:
            info = write_segment(
                self._files, self._directory, pending.seq, pending.sealed, profile=self._settings.format_profile
            )
        except OSError as error:
            self._observer.event("quiver.segment.flush", level=logging.ERROR, segment=pending.seq, problem=str(error))
            self._observer.count("quiver.segment.flush_failures_total")
            if not is_full_disk(error):
                raise StoreFailed(f"segment {pending.seq} could not be written: {error}; reopen to recover") from error
            self.failure = error
            self._retry_at = self._clock.monotonic() + RETRY_S
            return None
        self.failure = None
        return info
