"""
From the open segment to a file: when it is due, who writes it, what happens when the write fails.

At most two segments are in memory: the open one, and one being written. A segment that could not be written
stays, keeps its number and is tried again; until it is on disk the log's cursor does not pass it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from quiver.bundle import Adapter
from quiver.clock import Clock
from quiver.errors import StoreFailedError
from quiver.observe import Observer
from quiver.primitives.arena import Arena, BlockPool
from quiver.primitives.disk.disk_full import passes
from quiver.primitives.disk.file_system import FileSystem
from quiver.settings import Settings
from quiver.store.encode import EncodedBundle
from quiver.store.segment.accumulator import OpenSegment, SealedSegment
from quiver.store.segment.info import SegmentInfo
from quiver.store.segment.writer import write_segment
from quiver.store.wal.reread import LogReader

__all__ = ["LAG_SEGMENTS", "Pending", "Sealing"]

RETRY_S = 1.0
"""A segment write that found the disk full, or no descriptor, is tried again after this long."""
TELL_S = 60.0
"""While the disk stays full, it is said this often."""

LAG_SEGMENTS = 8
"""Time-based sealing waits for size while every subscriber has this many finished segments to read."""


@dataclass(frozen=True, slots=True)
class Pending:
    """
    A segment that takes no more bundles and is not yet on disk.

    Attributes:
        seq: the number that it will have.
        sealed: its bundles.
        arena: the memory that they are in.
        log: reads the large ones, which stayed in the log.
        sequence_last: of the last of them.
        born_s: when the newest of them came, in monotonic seconds; never before it did.
    """

    seq: int
    sealed: SealedSegment
    arena: Arena
    log: LogReader
    sequence_last: int
    born_s: float


class Sealing:
    """
    The open segment and the one being written.

    `open`, `pending` and `next_seq` are read and changed under the store's lock; `write` runs outside it, by one
    thread at a time.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        settings: Settings,
        clock: Clock,
        observer: Observer,
        next_seq: int,
        adapter: Adapter,
    ) -> None:
        self._adapter = adapter
        self._fs = fs
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
        self.log = LogReader(fs)
        self.pending: Pending | None = None
        self.added_through = -1
        """The sequence number of the last bundle that was added."""
        self.sealed_through = -1
        """No bundle up to this sequence number is in memory only: all of them are sealed, or dropped by policy."""
        self.failure: OSError | None = None
        self._opened_at: float | None = None
        self._opened_wall_ns = 0
        self._retry_at = 0.0
        self._tell_at = 0.0

    def _new_segment(self) -> OpenSegment:
        settings = self._settings
        self._bundles_left = settings.segment_bundles_max
        return OpenSegment(streams_max=settings.segment_streams_max, bytes_max=settings.segment_bytes_max)

    @property
    def nbytes(self) -> int:
        """Bytes of bundles held in memory."""
        return self.open.nbytes + (self.pending.sealed.nbytes if self.pending is not None else 0)

    @property
    def file_bytes(self) -> int:
        """What those bundles will take on the disk once they are sealed."""
        return self.open.file_bytes + (self.pending.sealed.file_bytes if self.pending is not None else 0)

    def add(self, encoded: EncodedBundle, ingested_at_ns: int, sequence: int, wal_start: int, wal_end: int) -> bool:
        """Add a bundle to the open segment; True when that has reached a limit of size, bundles or streams."""
        if self._opened_at is None:
            self._opened_at = self._clock.monotonic()
            self._opened_wall_ns = self._clock.now_ns()
        full = self.open.append(encoded.slots, ingested_at_ns, sequence, wal_start, wal_end, encoded.nbytes)
        self.added_through = sequence
        self._bundles_left -= 1
        self.full = full = full or self._bundles_left <= 0
        return full

    def is_old(self) -> bool:
        """Say whether the open segment's first bundle has waited its time."""
        return self._opened_at is not None and (
            self._clock.monotonic() - self._opened_at >= self._settings.segment_open_s_max
        )

    def swap(self) -> bool:
        """Close the open segment and begin another; False when it is empty or one is still being written."""
        if self.pending is not None or self.open.is_empty:
            return False
        sealed = self.open.seal()
        born_s = self._born_s(sealed.ingested_max_ns)
        self.pending = Pending(self.next_seq, sealed, self.arena, self.log, self.added_through, born_s)
        self.next_seq += 1
        self.arena = Arena(self._pool)
        self.log = LogReader(self._fs)
        self.open = self._new_segment()
        self._opened_at = None
        self.full = False
        return True

    def oldest_ns(self) -> int | None:
        """
        Return when the oldest bundle was ingested that is in no segment on disk, in nanoseconds since 1970; None when
        there is none.
        """
        oldest_ns = None if self.pending is None else self.pending.sealed.ingested_min_ns
        return self.open.ingested_first_ns if oldest_ns is None else oldest_ns

    def open_born_s(self) -> float | None:
        """Return when the open segment's first bundle came, in monotonic seconds; None when there is none."""
        return self._opened_at

    def _born_s(self, newest_ns: int | None) -> float:
        """
        Return when the newest bundle came, in monotonic seconds; a wall clock that stepped makes nothing older.

        A caller may say when a bundle was ingested, and what a recovery replays is old already.
        """
        now_s, now_ns = self._clock.monotonic(), self._clock.now_ns()
        passed_ns = round((now_s - (now_s if self._opened_at is None else self._opened_at)) * 1e9)
        stepped_ns = max(0, now_ns - self._opened_wall_ns - passed_ns)
        return now_s - max(0, now_ns - stepped_ns - (now_ns if newest_ns is None else newest_ns)) / 1e9

    def done(self) -> None:
        """Forget the pending segment, which is on disk or given up, and use its memory again."""
        self.failure = None
        if self.pending is not None:
            pending, self.pending = self.pending, None
            self.sealed_through = pending.sequence_last
            pending.arena.release()

    def try_now(self) -> None:
        """Let a segment that found the disk full be tried at once: room was made."""
        self._retry_at = 0.0

    def may_write(self) -> bool:
        """Say whether a pending segment may be tried now; a failed one waits a moment."""
        return self.pending is not None and (self.failure is None or self._clock.monotonic() >= self._retry_at)

    def write(self, open_log: Callable[[LogReader], None]) -> SegmentInfo | None:
        """
        Write the pending segment; durable and named on return. None when the disk is full, or no file can be opened:
        try again later.

        *open_log* opens the files of the log that the segment's large messages are in.

        Raises:
            StoreFailedError: the disk failed otherwise.
        """
        pending = self.pending
        if pending is None:
            return None
        try:
            open_log(pending.log)
            info = write_segment(
                self._fs,
                self._directory,
                pending.seq,
                pending.sealed,
                profile=self._settings.format_profile,
                compression=self._settings.segment_compression,
                adapter=self._adapter,
            )
        except OSError as error:
            self._observer.count("quiver.segment.flush_failures_total")
            now_s = self._clock.monotonic()
            if self.failure is None or not passes(error) or now_s >= self._tell_at:
                # Once a second on a full disk, perhaps on the very disk that the words go to: not each time.
                self._tell_at = now_s + TELL_S
                self._observer.event(
                    "quiver.segment.flush", level=logging.ERROR, segment=pending.seq, problem=str(error)
                )
            if not passes(error):
                raise StoreFailedError(
                    f"segment {pending.seq} could not be written: {error}; reopen to recover"
                ) from error
            self.failure = error
            self._retry_at = now_s + RETRY_S
            return None
        finally:
            pending.log.close()
        self.failure = None
        return info
