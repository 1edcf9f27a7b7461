"""
From the open segment to a file: when it is due, and what happens if writing it fails.

At most two segments are in memory: the open one, and one being written. A segment that could not be written stays in
memory, keeps its number and is tried again; until it is on disk the log's cursor does not pass it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from quiver.bundle import Adapter
from quiver.clock import Clock
from quiver.errors import StoreFailedError
from quiver.observe import Observer
from quiver.primitives.arena import Arena, BlockPool
from quiver.primitives.disk.disk_full import passes
from quiver.primitives.disk.file_system import FileSystem
from quiver.settings import Settings
from quiver.store.encode import EncodedBundle
from quiver.store.segment.accumulator import EncodedRun, OpenSegment, SealedSegment
from quiver.store.segment.info import SegmentInfo
from quiver.store.segment.log_backed import LogBackedMessage
from quiver.store.segment.unsealed import UnsealedBundles
from quiver.store.segment.writer import write_segment
from quiver.store.wal.reread import LogReader

__all__ = ["LAG_SEGMENTS", "Pending", "Sealing"]

RETRY_S = 1.0
"""Delay before another attempt after a write that found the disk full, or no file descriptor."""
REPORT_S = 60.0
"""While the disk stays full, it is reported at this interval."""

LAG_SEGMENTS = 8
_SEAL_SHARE_MIN = 0.8
"""While every subscriber has this many sealed segments to read, the open segment is not sealed because of its age."""


@dataclass(frozen=True, slots=True)
class Pending:
    """
    A segment that takes no more bundles and is not yet on disk.

    Attributes:
        seq: its number.
        sealed: its bundles.
        arena: their memory.
        log: reads the large bundles, which are only in the log.
        sequence_last: the sequence number of the last bundle.
        born_s: when the newest bundle arrived, in monotonic seconds; never too early.
        unsealed: reads its bundles from memory.
        closed_s: when it was closed, in monotonic seconds.
    """

    seq: int
    sealed: SealedSegment
    arena: Arena
    log: LogReader
    sequence_last: int
    born_s: float
    unsealed: UnsealedBundles
    closed_s: float


class Sealing:
    """
    The open segment and the one being written.

    `open`, `pending` and `next_seq` are accessed under the store's lock; `write` runs outside it, in one thread at a
    time.
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
        """The number of the open segment."""
        self.delivered_through = -1
        """Segments up to this number are delivered before their files are written."""
        self.load_from_log: Callable[[LogBackedMessage], Any] = lambda message: message.load()
        """Reads a message that is only in the log, at any time."""
        self.on_begin: Callable[[], None] = lambda: None
        """Called when a segment gets its first bundle."""
        self._begin_segment()
        self.full = False
        """The open segment takes no more bundles; it waits for the pending one."""
        # Memory for two segments: the open one reuses the memory of the one written before it.
        self._pool = BlockPool(keep_bytes_max=2 * settings.segment_bytes_max)
        self.arena = Arena(self._pool)
        self.log = LogReader(fs)
        self.pending: Pending | None = None
        self.is_urgent = False
        """The pending segment is written without waiting for subscribers that may still resolve all of it."""
        self.added_through = -1
        """The sequence number of the last bundle added."""
        self.sealed_through = -1
        """All bundles up to this sequence number are sealed or dropped by policy; none is only in memory."""
        self.failure: OSError | None = None
        self._opened_at: float | None = None
        self._opened_wall_ns = 0
        self._age_s_max = settings.seal_age_s
        self._random = Random()  # noqa: S311 - spreads uploads, guards nothing
        self._retry_at = 0.0
        self._report_at = 0.0

    def _begin_segment(self) -> None:
        settings = self._settings
        self._bundles_left = settings.segment_bundles_max
        self.open = OpenSegment(streams_max=settings.segment_streams_max, bytes_max=settings.segment_bytes_max)
        self.unsealed = UnsealedBundles(self.next_seq, self.open, self._adapter, self._load)

    def _load(self, message: LogBackedMessage) -> Any:
        return self.load_from_log(message)

    def renumber(self, seq: int) -> None:
        """Give the open segment, which must be empty, the number *seq*, which is not below `next_seq`."""
        self.next_seq = seq
        self._begin_segment()

    def number_for_import(self) -> int | None:
        """
        Return the next number for a segment that another process wrote; None if an unsealed segment is before it.

        Readers in order of numbers would skip that segment. It is sealed first.
        """
        if self.pending is not None:
            return None
        number = self.next_seq
        if self.open.is_empty:
            self.renumber(number + 1)
        elif number <= self.delivered_through:
            self.swap()
            self.is_urgent = True
            return None
        else:
            self.next_seq = number + 1
            self.unsealed.seq = number + 1
        return number

    @property
    def nbytes(self) -> int:
        """The bytes of the bundles in memory."""
        return self.open.nbytes + (self.pending.sealed.nbytes if self.pending is not None else 0)

    @property
    def file_bytes(self) -> int:
        """The bytes that those bundles will take on disk when they are sealed."""
        return self.open.file_bytes + (self.pending.sealed.file_bytes if self.pending is not None else 0)

    def add(self, encoded: EncodedBundle, ingested_at_ns: int, sequence: int, wal_start: int, wal_end: int) -> bool:
        """Add a bundle to the open segment; return whether it reached a limit of size, bundles or streams."""
        if self._opened_at is None:
            self._begin()
        full = self.open.append(encoded.slots, ingested_at_ns, sequence, wal_start, wal_end, encoded.nbytes)
        self.added_through = sequence
        self._bundles_left -= 1
        self.full = full = full or self._bundles_left <= 0
        return full

    def add_run(self, run: EncodedRun, first: int, stop: int) -> int:
        """
        Add bundles of *run* from *first* until *stop* to the open segment until it is full.

        Return the index after the last one. At least one is added, even if it is full already.
        """
        if self._opened_at is None:
            self._begin()
        count = self.open.append_run(run, first, min(self._bundles_left, stop - first))
        self.added_through = run.sequences[first + count - 1]
        self._bundles_left -= count
        self.full = self.open.is_full or self._bundles_left <= 0
        return first + count

    def _begin(self) -> None:
        self._opened_at = self._clock.monotonic()
        self._opened_wall_ns = self._clock.now_ns()
        if self._settings.fleet_name is not None:
            # Nodes that were started at the same time must not upload at the same time.
            self._age_s_max = self._settings.seal_age_s * self._random.uniform(_SEAL_SHARE_MIN, 1.0)
        self.on_begin()

    def is_old(self) -> bool:
        """Return whether the open segment has reached its maximum age."""
        return self._opened_at is not None and (self._clock.monotonic() - self._opened_at >= self._age_s_max)

    def swap(self) -> bool:
        """Close the open segment and begin another; return False if it is empty or another is still being written."""
        if self.pending is not None or self.open.is_empty:
            return False
        sealed = self.open.seal(keeps_messages=self.next_seq <= self.delivered_through)
        born_s = self._born_s(sealed.ingested_max_ns)
        closed_s = self._clock.monotonic()
        self.pending = Pending(
            self.next_seq, sealed, self.arena, self.log, self.added_through, born_s, self.unsealed, closed_s
        )
        self.next_seq += 1
        self.arena = Arena(self._pool)
        self.log = LogReader(self._fs)
        self._begin_segment()
        self._opened_at = None
        self.full = False
        return True

    def oldest_ns(self) -> int | None:
        """Return the ingest time of the oldest bundle that is not on disk in a segment, in ns since 1970, or None."""
        oldest_ns = None if self.pending is None else self.pending.sealed.ingested_min_ns
        return self.open.ingested_first_ns if oldest_ns is None else oldest_ns

    def open_born_s(self) -> float | None:
        """Return when the first bundle of the open segment arrived, in monotonic seconds; None if it is empty."""
        return self._opened_at

    def _born_s(self, newest_ns: int | None) -> float:
        """
        Return when the newest bundle arrived, in monotonic seconds; a step of the wall clock makes nothing older.

        The ingest time may lie in the past: callers can set it, and recovery replays old bundles.
        """
        now_s, now_ns = self._clock.monotonic(), self._clock.now_ns()
        passed_ns = round((now_s - (now_s if self._opened_at is None else self._opened_at)) * 1e9)
        stepped_ns = max(0, now_ns - self._opened_wall_ns - passed_ns)
        return now_s - max(0, now_ns - stepped_ns - (now_ns if newest_ns is None else newest_ns)) / 1e9

    def done(self) -> None:
        """Forget the pending segment, which is on disk or dropped, and reuse its memory."""
        self.failure = None
        if self.pending is not None:
            pending, self.pending = self.pending, None
            self.sealed_through = pending.sequence_last
            self.is_urgent = False
            if pending.seq > self.delivered_through:  # otherwise a subscriber may hold bundles
                pending.arena.release()

    def try_now(self) -> None:
        """Try a failed segment again without delay: space was freed."""
        self._retry_at = 0.0

    def may_write(self) -> bool:
        """Return whether there is a pending segment whose retry delay has passed."""
        return self.pending is not None and (self.failure is None or self._clock.monotonic() >= self._retry_at)

    def write(self, open_log: Callable[[LogReader], None]) -> SegmentInfo | None:
        """
        Write the pending segment, durable under its name on return. Return None if the disk is full or no file can be
        opened: try again later.

        *open_log* opens the log files that contain the segment's large messages.

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
            if self.failure is None or not passes(error) or now_s >= self._report_at:
                # A full disk causes one failure a second, and the event may be logged to the same disk: limit the rate.
                self._report_at = now_s + REPORT_S
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
