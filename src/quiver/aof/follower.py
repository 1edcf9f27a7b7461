"""Following a log as it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from quiver.aof.append.notify import Notifier, deadline_of
from quiver.aof.format.segment_file import FOOTER_BYTES
from quiver.aof.reading.reader import Reader
from quiver.aof.reading.source import ReadableSegments, Record
from quiver.clock import Clock
from quiver.errors import StoreFailedError
from quiver.lazy_names import renamed_keyword

__all__ = ["TailFollower"]

T = TypeVar("T")


class TailFollower:
    """
    Reads a log as it grows. A signal only wakes the follower; it reads the records from the log, so it misses nothing
    between two calls.
    """

    def __init__(
        self,
        reader: Reader,
        sources: ReadableSegments,
        notifier: Notifier,
        *,
        clock: Clock,
        is_closed: Callable[[], bool],
        failure: Callable[[], StoreFailedError | None],
        sealed_after: int,
    ) -> None:
        self._reader = reader
        self._sources = sources
        self._notifier = notifier
        self._clock = clock
        self._is_closed = is_closed
        self._failure = failure
        self._records = iter(reader)
        self._sealed_segment_id = sealed_after
        self._sealed_end = self._end_of(sealed_after)

    @renamed_keyword("timeout_s", "timeout")
    def next(self, timeout: float | None = None) -> Record | None:
        """
        Wait for the next record and return it; None when *timeout* passes first, or when the log was closed.

        Raises:
            DataLossError: records are lost or damaged and not to be skipped; the next call continues after them.
            StoreFailedError: the log failed, and all readable records were returned.
        """
        return self._wait_for(self._next_record, timeout)

    @renamed_keyword("timeout_s", "timeout")
    def next_sealed_segment(self, timeout: float | None = None) -> int | None:
        """
        Wait for the next sealed segment and return its id, each id once and in order; None as for `next`.

        Raises:
            DataLossError: segments were removed before this call, and are not to be skipped; the next call continues
                after them.
            StoreFailedError: as `next`.
        """
        before = self._sealed_segment_id
        found = self._wait_for(lambda: self._sources.next_sealed_segment_id(before), timeout)
        if found is None:
            return None
        extent, end = self._sources.extent(found), self._sealed_end
        if extent is not None and end is not None and extent.base_offset != end + FOOTER_BYTES:
            self._sealed_segment_id, self._sealed_end = found - 1, None
            self._reader.report_lost_segments(before + 1, found)
        self._sealed_segment_id, self._sealed_end = found, self._end_of(found)
        return found

    def _end_of(self, segment_id: int) -> int | None:
        """Return how many bytes the log has up to the end of a sealed segment; None if unknown."""
        extent = self._sources.extent(segment_id)
        return None if extent is None or extent.end is None else extent.base_offset + extent.end

    def _next_record(self) -> Record | None:
        record = next(self._records, None)
        if record is None:
            # An iteration ends where its segment ended when it began; a new one sees the present end.
            self._records = iter(self._reader)
            record = next(self._records, None)
        return record

    def _wait_for(self, poll: Callable[[], T | None], timeout: float | None) -> T | None:
        deadline = deadline_of(self._clock, timeout)
        while True:
            seen = self._notifier.generation("records")
            is_closed, failure = self._is_closed(), self._failure()
            found = poll()
            if found is not None or is_closed:
                return found
            if failure is not None:  # no more records become durable: the wait would never end
                raise failure
            left = None if deadline is None else deadline - self._clock.monotonic()
            if left is not None and left <= 0:
                return None
            self._notifier.wait("records", seen, left)

    def __iter__(self) -> Iterator[Record]:
        """Yield records as they are appended, until the log is closed. Raises as `next`."""
        while (record := self.next()) is not None:
            yield record
